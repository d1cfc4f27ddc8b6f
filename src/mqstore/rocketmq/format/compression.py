"""Compressed bodies: how SYSFLAG describes them, and how to decompress them.

    bit 0 set: compressed.  bits 8-10: 0 or 3 zlib stream (RFC 1950), 1 LZ4 frame, 2 zstd frame

Version 4.9 supports only zlib and sets no type bits. Output is bounded: a body that exceeds the limit is refused.

    >>> import zlib
    >>> decompress(zlib.compress(b"abc"), COMPRESSED)
    b'abc'

Format: docs/formats/rocketmq.md, 2.4.
"""

from __future__ import annotations

from mqstore.codecs import ExpandError, TooLargeError, expand
from mqstore.rocketmq.format.record import COMPRESSED

MAX_BODY = 256 << 20

_NAMES = {0: "zlib", 1: "LZ4", 2: "zstd", 3: "zlib"}
_FORMATS = {kind: name.lower() for kind, name in _NAMES.items()}


class BadCompressionError(ValueError):
    """A body that cannot be decompressed according to its flags."""


def decompress(body: bytes, sys_flag: int, limit: int = MAX_BODY) -> bytes:
    """Return the body as the producer sent it; a body without the compressed bit is returned unchanged. Raises BadCompressionError."""
    if not sys_flag & COMPRESSED:
        return body
    kind = (sys_flag >> 8) & 7
    if kind not in _FORMATS:
        raise BadCompressionError(f"compression type {kind} is unknown")
    try:
        return expand(_FORMATS[kind], body, limit)
    except TooLargeError:
        raise BadCompressionError(f"the body expands beyond {limit} bytes") from None
    except ExpandError as error:
        raise BadCompressionError(f"the body is not a valid {_NAMES[kind]} stream: {error}") from None
