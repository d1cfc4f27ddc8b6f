"""Compressed bodies: how SYSFLAG describes them, and how to decompress them.

    bit 0 set: compressed.  bits 8-10: 0 or 3 zlib stream (RFC 1950), 1 LZ4 frame, 2 zstd frame

Version 4.9 supports only zlib and sets no type bits. Output is bounded: a body that exceeds the limit is refused.

    >>> decompress(zlib.compress(b"abc"), COMPRESSED)
    b'abc'

Format: docs/formats/rocketmq.md, 2.4.
"""

from __future__ import annotations

import zlib

from mqstore.rocketmq.format.record import COMPRESSED

__all__ = ["COMPRESSED", "MAX_BODY", "BadCompressionError", "decompress"]

MAX_BODY = 256 << 20

_NAMES = {0: "zlib", 1: "LZ4", 2: "zstd", 3: "zlib"}


class BadCompressionError(ValueError):
    """A body that cannot be decompressed according to its flags."""


def decompress(body: bytes, sys_flag: int, limit: int = MAX_BODY) -> bytes:
    """Return the body as the producer sent it; a body without the compressed bit is returned unchanged. Raises BadCompressionError."""
    if not sys_flag & COMPRESSED:
        return body
    kind = (sys_flag >> 8) & 7
    if kind not in _NAMES:
        raise BadCompressionError(f"compression type {kind} is unknown")
    try:
        if kind == 1:
            text = _lz4(body, limit)
        elif kind == 2:
            text = _zstd(body, limit)
        else:
            text = _zlib(body, limit)
    except BadCompressionError:
        raise
    except (ValueError, RuntimeError, EOFError, OSError, MemoryError, zlib.error) as error:
        raise BadCompressionError(f"the body is not a valid {_NAMES[kind]} stream: {error}") from None
    if len(text) > limit:
        raise BadCompressionError(f"the body expands beyond {limit} bytes")
    return text


def _zlib(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    text = stream.decompress(body, limit + 1)
    if len(text) <= limit and not stream.eof:
        raise ValueError("it ends early")
    return text


def _lz4(body: bytes, limit: int) -> bytes:
    from lz4.frame import LZ4FrameDecompressor

    stream = LZ4FrameDecompressor()
    text: bytes = stream.decompress(body, max_length=limit + 1)
    if len(text) <= limit and not stream.eof:
        raise ValueError("it ends early")
    return text


def _zstd(body: bytes, limit: int) -> bytes:
    import io

    import zstandard

    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(io.BytesIO(body)) as stream:
            text: bytes = stream.read(limit + 1)
        frame = zstandard.get_frame_parameters(body)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    if frame.content_size not in (zstandard.CONTENTSIZE_UNKNOWN, len(text)) and len(text) <= limit:
        raise ValueError("it ends early")
    return text
