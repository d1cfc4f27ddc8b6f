"""Store hosts in outgoing records: clients compute message ids from this address, and connect to it to look up an id.

Records of a salvaged store name the broker that stored them. `Settings.rewrite_store_host` replaces it with this broker's address, so
that ids shown by clients point here. The offset in an id does not change, and no checksum covers the field.

    >>> from mqstore.rocketmq.format.record import Record, decode, encode, parse_host
    >>> raw = memoryview(encode(Record("T", b"body", store_host="192.0.2.7:10911")))
    >>> decode(rewritten(raw, parse_host("127.0.0.1:9876"))).store_host
    '127.0.0.1:9876'

An address of the other IP family does not fit; such a record is sent unchanged.

Format: docs/formats/rocketmq.md, section 2.1. Protocol: docs/formats/rocketmq-remoting.md, section 3.4.
"""

from __future__ import annotations

from mqstore.rocketmq.format.record import BORN_HOST_IPV6, STORE_HOST_IPV6

__all__ = ["rewritten"]

_SYS_FLAG, _BORN_HOST = 36, 48
_LEAST = 91  # bytes of the smallest record


def rewritten(raw: memoryview, host: bytes) -> bytes | memoryview:
    """Return a record with another store host, or unchanged if the address does not fit. host: encoded as in a record."""
    if len(raw) < _LEAST:
        return raw
    flag = int.from_bytes(raw[_SYS_FLAG : _SYS_FLAG + 4], "big")
    at = _BORN_HOST + (20 if flag & BORN_HOST_IPV6 else 8) + 8
    length = 20 if flag & STORE_HOST_IPV6 else 8
    if length != len(host) or at + length > len(raw):
        return raw
    changed = bytearray(raw)
    changed[at : at + length] = host
    return bytes(changed)
