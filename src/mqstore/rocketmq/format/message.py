"""Messages that a producer puts into a store, and the result of a put.

    >>> Message("orders", b"paid", keys="o-1 o-2", tags="eu", properties={"a": "1"}).encoded_properties(trailing_separator=False)
    b'KEYS\\x01o-1 o-2\\x02TAGS\\x01eu\\x02a\\x011'

A property text is stored in the given order, and nothing is added to it. What a broker does on its send path (adding CLUSTER,
reordering by its hash map) is left to the caller: see `append.send_path`.

Format: docs/formats/rocketmq.md, sections 2.6, 2.12, 3.4 and 3.9.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from mqstore.kernels.rocketmq.put import Message, PutResult
from mqstore.rocketmq.format.profile import version_rules

__all__ = ["DEFAULT_HOST", "Inner", "Message", "MessageBatch", "PutResult", "PutStatus", "property_text"]

DEFAULT_HOST = "127.0.0.1:10911"


def property_text(message: Message, version: str) -> bytes:
    """Return the property text of a message as a broker of this version stores it; a text given as bytes is returned unchanged."""
    return message.encoded_properties(trailing_separator=version_rules(version).ends_with_separator)


@dataclass(frozen=True, slots=True)
class Inner:
    """One message inside a producer's batch. properties: its property text, unchanged."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """A producer's batch: messages of one topic and queue, stored all together or not at all.

    envelope: what they share; its body is not used, and its properties are stored after each message's own.
    """

    envelope: Message
    messages: Sequence[Inner]


class PutStatus(enum.Enum):
    """The result of a put. With the first four the message is stored."""

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

    @property
    def is_refusal(self) -> bool:
        """Whether the message itself is the reason why it is not stored: a store with these settings will never accept it."""
        return self in _REFUSALS

    def spelled(self, version: str) -> str:
        """Return the name that a broker of this version uses."""
        return self.value if version_rules(version).spells_status_correctly else _OLD_SPELLING.get(self, self.value)


_STORED = frozenset({PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE})
_REFUSALS = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED, PutStatus.UNKNOWN_ERROR})
_OLD_SPELLING = {
    PutStatus.CREATE_MAPPED_FILE_FAILED: "CREATE_MAPEDFILE_FAILED",
    PutStatus.OS_PAGE_CACHE_BUSY: "OS_PAGECACHE_BUSY",
}
