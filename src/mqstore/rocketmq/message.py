"""What a producer hands to a store, and what it gets back.

    >>> Message("orders", b"paid", keys="o-1 o-2", tags="eu", properties={"a": "1"}).encoded_properties("4.9.3")
    b'KEYS\\x01o-1 o-2\\x02TAGS\\x01eu\\x02a\\x011'

A property text is stored in the order in which it is given, and nothing is added to it: what a broker adds on its send path
(CLUSTER, the order of its hash map) is the business of whoever stands between producer and store.

Format: docs/formats/rocketmq.md, sections 2.6, 2.12, 3.4 and 3.9.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mqstore.rocketmq import record

__all__ = ["DEFAULT_HOST", "Inner", "Message", "MessageBatch", "PutResult", "PutStatus"]

DEFAULT_HOST = "127.0.0.1:10911"


class Message:
    """One message on its way into a store.

    properties: a mapping, or the text itself as bytes, which is stored as it is. keys, tags: shorthands for KEYS (several
    with blanks between them) and TAGS; they are put in front of the mapping. born_timestamp: ms; None takes the store's clock.
    born_host, store_host: `ip:port` or `[ip]:port`; None takes the store's own.
    """

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp",
        "flag",
        "prepared_transaction_offset",
        "properties",
        "queue_id",
        "reconsume_times",
        "store_host",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        body: bytes | memoryview = b"",
        *,
        queue_id: int = 0,
        keys: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | bytes | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | None = None,
        store_host: str | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> None:
        self.topic = topic
        self.body = body
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        if keys is None and tags is None:
            self.properties: Mapping[str, str] | bytes = b"" if properties is None else properties
            return
        if isinstance(properties, bytes):
            raise TypeError("keys and tags cannot be added to a property text; put them into it")
        named = {} if keys is None else {"KEYS": keys}
        if tags is not None:
            named["TAGS"] = tags
        if properties:
            named.update(properties)
        self.properties = named

    def encoded_properties(self, version: str) -> bytes:
        """The property text as a broker of this version stores it; one that was given as bytes is left alone."""
        given = self.properties
        return given if isinstance(given, bytes) else record.encode_properties(given, trailing=version != "4.9.3")

    def property_map(self) -> dict[str, str]:
        """The properties as name -> value."""
        given = self.properties
        return record.decode_properties(given) if isinstance(given, bytes) else dict(given)

    def replaced(self, **changes: object) -> Message:
        """A copy with some fields changed."""
        copy = Message.__new__(Message)
        for name in Message.__slots__:
            setattr(copy, name, changes.pop(name) if name in changes else getattr(self, name))
        if changes:
            raise TypeError(f"a message has no field {next(iter(changes))}")
        return copy

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} bytes, queue_id={self.queue_id}, properties={self.properties!r})"


@dataclass(frozen=True, slots=True)
class Inner:
    """One message inside a producer's batch. properties: its text, as it came."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """A producer's batch: messages of one topic and queue that are stored together or not at all.

    envelope: all they share; its body is not used, and its properties are stored behind each message's own.
    """

    envelope: Message
    messages: Sequence[Inner]


class PutStatus(enum.Enum):
    """What became of a put. With the first four the message is stored."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"

    @property
    def stored(self) -> bool:
        """Whether the message is in the log."""
        return self in _STORED

    def spelled(self, version: str) -> str:
        """The name that a broker of this version gives it."""
        return self.value if version != "4.9.3" else _OLD_SPELLING.get(self, self.value)


_STORED = frozenset({PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE})
_OLD_SPELLING = {
    PutStatus.CREATE_MAPPED_FILE_FAILED: "CREATE_MAPEDFILE_FAILED",
    PutStatus.OS_PAGE_CACHE_BUSY: "OS_PAGECACHE_BUSY",
}


class PutResult:
    """status: a PutStatus. physical_offset, queue_offset: where the (first) message stands, -1 if it is not stored.

    size: bytes in the log, of all messages of a batch. count: messages. store_timestamp: ms. detail: why not, in a sentence.
    """

    __slots__ = ("_host", "_sizes", "count", "detail", "physical_offset", "queue_offset", "size", "status", "store_timestamp")

    def __init__(
        self,
        status: PutStatus,
        physical_offset: int = -1,
        queue_offset: int = -1,
        size: int = 0,
        store_timestamp: int = 0,
        host: bytes = b"",
        sizes: Sequence[int] | None = None,
        detail: str = "",
    ) -> None:
        self.status = status
        self.physical_offset = physical_offset
        self.queue_offset = queue_offset
        self.size = size
        self.store_timestamp = store_timestamp
        self.count = 1 if sizes is None else len(sizes)
        self.detail = detail
        self._host = host
        self._sizes = sizes

    @property
    def stored(self) -> bool:
        """Whether the message is in the log."""
        return self.physical_offset >= 0

    @property
    def msg_id(self) -> str:
        """The offset message id; of a batch all ids, joined by commas; empty if nothing is stored."""
        if not self.stored:
            return ""
        at = self.physical_offset
        ids = []
        for size in self._sizes if self._sizes is not None else (self.size,):
            ids.append(record.offset_message_id(self._host, at))
            at += size
        return ",".join(ids)

    def __repr__(self) -> str:
        said = f", detail={self.detail!r}" if self.detail else ""
        return f"PutResult({self.status.value}, physical_offset={self.physical_offset}, queue_offset={self.queue_offset}{said})"
