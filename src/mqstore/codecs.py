"""Compressed bytes expanded, by the name of their format and never beyond a limit.

    zlib    a stream of RFC 1950                  lz4     a frame
    gzip    members of RFC 1952, one or more      zstd    a frame
    snappy  the framing format, or one bare block

    >>> expand("zlib", zlib.compress(b"abc"), limit=10)
    b'abc'
    >>> expand("gzip", gzip.compress(bytes(1 << 20)), limit=1000)
    Traceback (most recent call last):
    mqstore.codecs.TooLargeError: it expands beyond 1000 bytes
    >>> unpack(zlib.compress(b"paid")), unpack(b"paid")
    (Unpacked(method='zlib', content=b'paid', why=''), None)

Snappy's framing is a sequence of u8 kind, u24 length (little-endian) and contents: ff the text sNaPpY, 00 a masked CRC-32C and a block, 01
the same with plain bytes, 80 to fe to be skipped. The checksums are not verified.
"""

from __future__ import annotations

import gzip
import io
import zlib
from dataclasses import dataclass

NAMES = ("zlib", "gzip", "snappy", "lz4", "zstd")
UNPACKED = 8 << 20  # bytes that a body which its producer compressed may expand to
_SNAPPY = b"\xff\x06\x00\x00sNaPpY"
_FRAME_LIMIT = 1 << 16  # uncompressed bytes of one of snappy's frames


class ExpandError(ValueError):
    """Bytes that are not of their format."""


class TooLargeError(ExpandError):
    """Bytes that expand beyond the limit."""


def expand(name: str, octets: bytes, limit: int) -> bytes:
    """Return the bytes uncompressed. name: one of NAMES. Raises ExpandError, and TooLargeError beyond the limit."""
    try:
        text = {"zlib": _zlib, "gzip": _gzip, "snappy": _snappy, "lz4": _lz4, "zstd": _zstd}[name](octets, limit)
    except TooLargeError:
        raise
    except (ValueError, RuntimeError, EOFError, OSError, MemoryError, zlib.error) as error:
        raise ExpandError(str(error)) from None
    if len(text) > limit:
        raise TooLargeError(f"it expands beyond {limit} bytes")
    return text


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The content of bytes that were compressed. content: None if they cannot be expanded, for the reason why."""

    method: str
    content: bytes | None
    why: str = ""


def unpack(body: bytes, limit: int = UNPACKED) -> Unpacked | None:
    """Expand a body that is itself gzip, zlib, zstd or LZ4; None for one that does not begin so. Reads at most `limit` bytes of content."""
    method = _announced(body)
    if method is None:
        return None
    try:
        return Unpacked(method, expand(method.lower(), body, limit))
    except TooLargeError:
        return Unpacked(method, None, f"the body expands beyond {limit >> 20} MiB")
    except ExpandError as error:
        # two bytes of a zlib stream also begin other content
        return None if method == "zlib" else Unpacked(method, None, f"the body is not a valid {method} stream: {error}")
    except ImportError as error:
        return Unpacked(method, None, f"the library for {method} is not installed ({error.name})")


def _announced(body: bytes) -> str | None:
    """Return the method that the first bytes of a body announce."""
    for magic, method in ((b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x04\x22\x4d\x18", "LZ4")):
        if body.startswith(magic):
            return method
    return "zlib" if len(body) > 5 and body[0] == 0x78 and (body[0] << 8 | body[1]) % 31 == 0 else None


def _zlib(octets: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    text = stream.decompress(octets, limit + 1)
    if len(text) <= limit and not stream.eof:
        raise ValueError("it ends early")
    return text


def _gzip(octets: bytes, limit: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(octets)) as stream:
        return stream.read(limit + 1)


def _lz4(octets: bytes, limit: int) -> bytes:
    from lz4.frame import LZ4FrameDecompressor

    stream = LZ4FrameDecompressor()
    text: bytes = stream.decompress(octets, max_length=limit + 1)
    if len(text) <= limit and not stream.eof:
        raise ValueError("it ends early")
    return text


def _zstd(octets: bytes, limit: int) -> bytes:
    import zstandard

    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(io.BytesIO(octets)) as stream:
            text: bytes = stream.read(limit + 1)
        size = zstandard.get_frame_parameters(octets).content_size
        whole = size == len(text)
        if size == zstandard.CONTENTSIZE_UNKNOWN and len(text) <= limit:
            # the reader above is silent about a frame that is cut; what it gave is known to fit into memory
            once_more = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
            once_more.decompress(octets)
            whole = once_more.eof
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    if not whole and len(text) <= limit:
        raise ValueError("it ends early")
    return text


def _snappy(octets: bytes, limit: int) -> bytes:
    if not octets.startswith(_SNAPPY):
        return _snappy_block(octets, limit)
    pieces: list[bytes] = []
    size, at = 0, len(_SNAPPY)
    while at < len(octets) and size <= limit:
        kind, length = octets[at], int.from_bytes(octets[at + 1 : at + 4], "little")
        content = octets[at + 4 : at + 4 + length]
        if len(octets) - at < 4 + length:
            raise ValueError("it ends early")
        if kind in (0, 1):
            pieces.append(content[4:] if kind else _snappy_block(content[4:], _FRAME_LIMIT))
            size += len(pieces[-1])
        elif kind != 0xFF and kind < 0x80:
            raise ValueError(f"a frame of kind {kind} is unknown")
        at += 4 + length
    return b"".join(pieces)


def _snappy_block(octets: bytes, limit: int) -> bytes:
    import pyarrow as pa

    size = shift = at = 0
    while True:
        if at == min(5, len(octets)):
            raise ValueError("it does not begin with a length")
        size |= (octets[at] & 0x7F) << shift
        at += 1
        if not octets[at - 1] & 0x80:
            break
        shift += 7
    if size > limit:
        raise TooLargeError(f"it expands beyond {limit} bytes")
    if not size:
        return b""
    text: bytes = pa.Codec("snappy").decompress(octets, decompressed_size=size, asbytes=True)
    return text
