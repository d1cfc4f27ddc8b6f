"""The store of a broker: a writable one, or a view of a read-only one, under the same interface.

`ServedStore` is the interface that handlers need for reading. `writable` is the store to put into, or None if it is read-only; then
`refusal` gives the reason, as a sentence for clients.

Clients compute message ids from the store host of a record, and connect to it to look up an id. Records of a salvaged store name the
broker that stored them. `Settings.rewrite_store_host` replaces it with this broker's address, so that ids shown by clients point here. The
offset in an id does not change, and no checksum covers the field.

    >>> from mqstore.rocketmq.format.record import Record, decode, encode, parse_host
    >>> raw = memoryview(encode(Record("T", b"body", store_host="192.0.2.7:10911")))
    >>> decode(rewritten(raw, parse_host("127.0.0.1:9876"))).store_host
    '127.0.0.1:9876'

An address of the other IP family does not fit; such a record is sent unchanged.

The C++ client knows IPv4 hosts only. It reads a record with an IPv6 host wrongly and drops the rest of the response without an error, so
`with_ipv4_hosts` gives it records of the same messages with IPv4 hosts.

    >>> raw = memoryview(encode(Record("T", b"body", sys_flag=0x10, born_host="[::1]:7000", store_host="192.0.2.7:10911")))
    >>> sent = decode(with_ipv4_hosts(raw, parse_host("127.0.0.1:9876")))
    >>> sent.born_host, sent.store_host, sent.body, sent.sys_flag
    ('0.0.0.0:7000', '192.0.2.7:10911', b'body', 0)

Format: docs/formats/rocketmq.md, section 2.1. Protocol: docs/formats/rocketmq-remoting.md, section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from mqstore.rocketmq.config.consumer_offsets import ConsumerOffsets
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.config.topic_table import SubscriptionGroups, Topics
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.queue_page import PagedQueue
from mqstore.rocketmq.format.record import BORN_HOST_IPV6, STORE_HOST_IPV6, Record
from mqstore.rocketmq.format.tag_filter import TagFilter
from mqstore.rocketmq.query import point_lookup
from mqstore.rocketmq.query.pull import GetResult

Boundary = Literal["lower", "upper"]


class NamedQueue(PagedQueue, Protocol):
    """A consume queue that knows its name."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...


class ServedStore(Protocol):
    """A store as the broker reads it, with the members of `MessageStore`."""

    version: str
    config: StoreConfig
    notes: tuple[str, ...]
    offsets: ConsumerOffsets
    topics: Topics
    groups: SubscriptionGroups

    @property
    def writable(self) -> MessageStore | None: ...
    @property
    def refusal(self) -> str: ...
    @property
    def log_min(self) -> int: ...
    @property
    def log_max(self) -> int: ...

    def get(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        filter: TagFilter | str | None = None,  # noqa: A002 - as in MessageStore
    ) -> GetResult: ...
    def query(self, topic: str, key: str, max_num: int = 64, begin: int = 0, end: int = (1 << 63) - 1) -> point_lookup.QueryResult: ...
    def record_at(self, physical: int) -> Record | None: ...
    def raw_record_at(self, physical: int) -> memoryview | None:
        """Return the bytes of the record at a physical offset, or None if none can be decoded."""
        ...

    def slice(self, physical: int, size: int) -> memoryview | None: ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = "lower") -> int: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int: ...
    def queues(self) -> Sequence[NamedQueue]: ...
    def queue_or_none(self, topic: str, queue_id: int) -> NamedQueue | None: ...
    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of the message at a queue offset, ms; -1 if there is none."""
        ...

    def close(self) -> None: ...


class LiveStore(MessageStore):
    """A writable store."""

    refusal = ""

    @property
    def writable(self) -> MessageStore | None:
        return self


# hosts in outgoing records


_SYS_FLAG, _BORN_HOST = 36, 48
LEAST = 91  # bytes of the smallest record; shorter reads are of its head only


def rewritten(raw: memoryview, host: bytes) -> bytes | memoryview:
    """Return a record with another store host, or unchanged if the address does not fit. host: encoded as in a record."""
    if len(raw) < LEAST:
        return raw
    flag = int.from_bytes(raw[_SYS_FLAG : _SYS_FLAG + 4], "big")
    at = _BORN_HOST + (20 if flag & BORN_HOST_IPV6 else 8) + 8
    length = 20 if flag & STORE_HOST_IPV6 else 8
    if length != len(host) or at + length > len(raw):
        return raw
    changed = bytearray(raw)
    changed[at : at + length] = host
    return bytes(changed)


def with_ipv4_hosts(raw: memoryview, host: bytes) -> bytes | memoryview:
    """Return a record whose hosts are IPv4 addresses: in place of an IPv6 store host this one, of an IPv6 born host 0.0.0.0.

    host: encoded as in a record. A record without IPv6 hosts is returned unchanged.
    """
    if len(raw) < LEAST:
        return raw
    flag = int.from_bytes(raw[_SYS_FLAG : _SYS_FLAG + 4], "big")
    if not flag & (BORN_HOST_IPV6 | STORE_HOST_IPV6):
        return raw
    born_end = _BORN_HOST + (20 if flag & BORN_HOST_IPV6 else 8)
    store_at = born_end + 8
    store_end = store_at + (20 if flag & STORE_HOST_IPV6 else 8)
    born, stored = bytes(raw[_BORN_HOST:born_end]), bytes(raw[store_at:store_end])
    if flag & BORN_HOST_IPV6:
        born = bytes(4) + born[-4:]
    if flag & STORE_HOST_IPV6:
        stored = host if len(host) == 8 else bytes(4) + stored[-4:]
    flag &= ~(BORN_HOST_IPV6 | STORE_HOST_IPV6)
    head = bytes(raw[4:_SYS_FLAG]) + flag.to_bytes(4, "big") + bytes(raw[_SYS_FLAG + 4 : _BORN_HOST])
    rest = b"".join((head, born, bytes(raw[born_end:store_at]), stored, bytes(raw[store_end:])))
    return (len(rest) + 4).to_bytes(4, "big") + rest
