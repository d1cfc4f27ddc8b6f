"""What readers say about what they saw: damage, verdicts, coverage, and the report that `verify` returns.

A reader that meets bytes it cannot believe yields a `Damage` and goes on behind them; it never raises
for bad data and never guesses silently. What to do about it is decided above the reader.
The kinds below are a fixed list: a kind never changes its meaning, new ones may be added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Checked", "Coverage", "Damage", "Kind", "Report", "Skipped", "Verdict"]


class Kind(StrEnum):
    """Kinds of damage. The comment of each is its meaning for ever."""

    # commit log
    BAD_FRAME = "bad-frame"  # bytes where a record should start are not a believable record
    BAD_LENGTHS = "bad-lengths"  # the inner lengths of a record do not add up to its size
    BAD_OFFSET = "bad-offset"  # a record's own physical offset is not where it stands
    BAD_CHECKSUM = "bad-checksum"  # the body does not fit its CRC
    BAD_PROPERTY_CHECKSUM = "bad-property-checksum"  # the record does not fit its __CRC32# property
    BAD_COMPRESSION = "bad-compression"  # the body cannot be decompressed as its flags say
    BAD_PROPERTIES = "bad-properties"  # bytes of the property text are not name/value pairs
    BAD_TEXT = "bad-text"  # topic or properties are not UTF-8
    TORN_RECORD = "torn-record"  # the last record of the log is incomplete
    ZEROED = "zeroed"  # zeros where records must have stood
    MISSING_FILE = "missing-file"  # a file between two others of a file queue is not there
    WRONG_SIZE = "wrong-size"  # a file whose length differs from that of its file queue
    STRAY_FILE = "stray-file"  # an entry of a store directory that does not belong there
    UNREADABLE = "unreadable"  # the operating system refused or failed to read a file
    # consume queue
    BAD_QUEUE_ENTRY = "bad-queue-entry"  # an entry that does not lead to a record of its queue
    QUEUE_ENTRY_MISMATCH = "queue-entry-mismatch"  # size, tags code or position differ from the record's
    QUEUE_GAP = "queue-gap"  # unwritten entries between written ones
    QUEUE_ORDER = "queue-order"  # entries of a queue that do not ascend in the log
    MISSING_QUEUE_ENTRY = "missing-queue-entry"  # a record of the log that its queue does not list
    # index
    BAD_INDEX_HEADER = "bad-index-header"  # counts or times of the header that the file's own entries contradict
    BAD_INDEX_ENTRY = "bad-index-entry"  # an entry without a record that has such a key
    BAD_INDEX_CHAIN = "bad-index-chain"  # a slot or a link that is no chain from newer to older
    MISSING_INDEX_ENTRY = "missing-index-entry"  # a key of a record inside the file's range without an entry
    # RabbitMQ: index of a queue
    BAD_JOURNAL = "bad-journal"  # bytes of a journal that are no record, with or without records behind them
    BAD_SEGMENT = "bad-segment"  # bytes or marks of a segment file that cannot stand there
    BAD_QUEUE_FILE = "bad-queue-file"  # header, entry or checksum of a version 2 queue file that cannot be believed
    BAD_QUEUE_NAME = "bad-queue-name"  # .queue_name or .vhost does not fit the directory it lies in, or is missing
    REPEATED_ENTRY = "repeated-entry"  # a sequence id is published twice with different bytes
    BROKER_CRASH = "broker-crash"  # a state on which the broker itself stops: it would not bring up this queue or vhost
    BROKER_LOSES = "broker-loses"  # messages that are here, but that the broker would not find or would throw away
    # RabbitMQ: messages
    BAD_TERM = "bad-term"  # a stored message is no message, or is not the one (id, size) that its entry announces
    BAD_STORE_RECORD = "bad-store-record"  # bytes of a message store file that are no record
    MISSING_BODY = "missing-body"  # an index entry whose message is in no message file
    BAD_SIDE_FILE = "bad-side-file"  # recovery.dets, clean.dot, an .ets or a Mnesia file that cannot be read as one
    # the rest
    BAD_CONFIG = "bad-config"  # a configuration file that cannot be parsed
    BAD_CHECKPOINT = "bad-checkpoint"  # a checkpoint file that cannot be read as one


class Verdict(StrEnum):
    """What can be said of one message."""

    INTACT = "intact"
    CONSUMED = "consumed"
    UNINDEXED = "unindexed"
    UNREACHABLE = "unreachable"
    DAMAGED = "damaged"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that cannot be believed.

    file: path relative to the store, `/` as separator. offset, length: bytes in that file.
    messages: how many messages are known to be affected.
    """

    file: str
    offset: int
    length: int
    kind: Kind
    detail: str
    messages: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The object that `verify -o json` prints."""
        return {
            "file": self.file,
            "offset": self.offset,
            "length": self.length,
            "kind": str(self.kind),
            "detail": self.detail,
            "messages": self.messages,
        }


@dataclass(frozen=True, slots=True)
class Skipped:
    """A range that was not read, and why. offset, length: bytes in file."""

    file: str
    offset: int
    length: int
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file, "offset": self.offset, "length": self.length, "why": self.why}


@dataclass(frozen=True, slots=True)
class Coverage:
    """What an answer is based on: everything, or everything but `skipped`."""

    skipped: tuple[Skipped, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.skipped

    def as_dict(self) -> dict[str, Any]:
        return {"complete": self.complete, "skipped": [skip.as_dict() for skip in self.skipped]}


@dataclass(slots=True)
class Checked:
    """How much was looked at. records: frames met; messages: those that are messages with a believable frame."""

    files: int = 0
    bytes: int = 0
    records: int = 0
    messages: int = 0
    queue_entries: int = 0
    index_entries: int = 0

    def as_dict(self) -> dict[str, int]:
        return {
            "files": self.files,
            "bytes": self.bytes,
            "records": self.records,
            "messages": self.messages,
            "queue_entries": self.queue_entries,
            "index_entries": self.index_entries,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome of `verify`. notes: sentences about the state of the store that are no damage (an unclean exit, queues behind the log)."""

    store: str
    family: str
    checked: Checked
    coverage: Coverage = Coverage()
    damage: tuple[Damage, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not self.damage

    def as_dict(self) -> dict[str, Any]:
        """The document that `verify -o json` prints."""
        return {
            "store": self.store,
            "family": self.family,
            "ok": self.ok,
            "checked": self.checked.as_dict(),
            "coverage": self.coverage.as_dict(),
            "damage": [item.as_dict() for item in self.damage],
            "notes": list(self.notes),
        }


def merge_adjacent(findings: Iterable[Damage]) -> list[Damage]:
    """Damage of equal file, kind and detail that touches is told once; order by file and offset."""
    merged: list[Damage] = []
    for item in sorted(findings, key=lambda d: (d.file, d.offset, d.length)):
        last = merged[-1] if merged else None
        if last and (last.file, last.kind, last.detail) == (item.file, item.kind, item.detail) and last.offset + last.length == item.offset:
            merged[-1] = Damage(last.file, last.offset, last.length + item.length, last.kind, last.detail, last.messages + item.messages)
        else:
            merged.append(item)
    return merged
