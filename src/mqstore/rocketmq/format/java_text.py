"""Text as Java sees it: UTF-8 decoding with replacement, and the string hash used in tags codes and index files.

The hash runs over the UTF-16 code units c: h = 31 h + c modulo 2^32, read as a signed 32-bit integer.

    text                        signed hash    index key hash
    (empty)                               0                 0
    Aa and BB                          2112              2112
    TagA                            2598919
    TopicTest#OrderID188        -1231271670        1231271670
    polygenelubricants          -2147483648                 0

The index key hash is the absolute value; that of -2^31 does not fit in 32 bits and becomes 0.

    >>> java_hash("TagA"), java_hash("TopicTest#OrderID188"), index_hash("TopicTest", "OrderID188")
    (2598919, -1231271670, 1231271670)
    >>> index_hash("TopicTest", "ogaQmc")
    0
    >>> decode_utf8(b"a\\xed\\xa0\\xbdb")
    'a\\ufffdb'

Format: docs/formats/rocketmq.md, sections 2.9 and 5.2.
"""

from __future__ import annotations

import codecs

from mqstore.kernels.rocketmq.hashing import MALFORMED, hash_bytes

_MIN_INT = -(1 << 31)
_ERRORS = "mqstore-java"


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    """Replace as "replace" does, but take an encoded surrogate (ED A0..BF xx) as one malformed unit, as the JDK does."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, at = error.object, error.start
    if data[at] == 0xED and at + 1 < len(data) and 0xA0 <= data[at + 1] <= 0xBF:
        return "\ufffd", at + (3 if at + 2 < len(data) and 0x80 <= data[at + 2] <= 0xBF else 2)
    return "\ufffd", error.end


codecs.register_error(_ERRORS, _replace_as_java)


def decode_utf8(data: bytes | memoryview) -> str:
    """Decode as `new String(data, UTF_8)` does: malformed bytes become U+FFFD, never an error."""
    return str(data, "utf-8", _ERRORS)


def java_hash(text: str) -> int:
    """Return `text.hashCode()`, a signed 32-bit integer. A lone surrogate counts as its code unit."""
    unsigned = MALFORMED
    try:
        unsigned = hash_bytes(memoryview(text.encode()))
    except UnicodeEncodeError:
        unsigned = 0
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            unsigned = (31 * unsigned + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return unsigned - ((unsigned & 0x80000000) << 1)


def slot_hash(signed: int) -> int:
    """Return the key hash that index files store for a signed string hash: its absolute value, 0 for -2^31."""
    return 0 if signed == _MIN_INT else abs(signed)


def index_hash(topic: str, key: str) -> int:
    """Return the key hash of a key in index files; slot = hash mod slots. topic: as stored in the record."""
    return slot_hash(java_hash(f"{topic}#{key}"))
