"""Findings of readers: damage, verdicts, coverage, and the report that `verify` returns.

A reader that meets invalid bytes yields a `Damage` and continues after them; it never raises for bad data and never guesses silently.
The caller decides what to do about it. The kinds below are a fixed list: a kind never changes its meaning; new kinds may be added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mqstore.shown import Shown, count

STAND_IN = "as `repair` leaves it in the place of a message that is gone"  # said of an entry that repeats the one beside it


class Subject(StrEnum):
    """What a finding is about."""

    BYTES = "bytes"  # bytes that are not a record, where one must be
    RECORD = "record"  # what is inside a record whose lengths hold
    FILE = "file"  # a file as a whole, or the part of it that is not there: what it holds is not read
    QUEUE_ENTRY = "queue entry"  # one entry of a consume queue
    QUEUE = "queue"  # what lies between the entries of a consume queue
    INDEX = "index"  # an index file of RocketMQ
    MESSAGE = "message"  # an entry of a RabbitMQ queue, with the message that it announces
    NODE = "node"  # a queue or vhost of RabbitMQ
    OTHER = "other"  # configuration, databases, timers, what does not belong in a store


class Reaction(StrEnum):
    """What a broker makes of it at its start. Where it depends on the place, the worst."""

    REFUSES = "refuses"  # it does not start, or not this queue or vhost
    STOPS = "stops"  # it reads nothing after it
    DROPS = "drops"  # it goes on without what this stands for: the messages lost by that are counted
    SERVES = "serves"  # it serves it as it is, and clients notice
    MENDS = "mends"  # it puts it right by itself, and loses nothing that was promised
    PASSES = "passes"  # it goes on, and clients notice nothing
    UNKNOWN = "unknown"


class Remedy(StrEnum):
    """What helps, whatever else is in the store."""

    REPAIR = "repair"
    REBUILD = "rebuild"
    SALVAGE = "salvage"
    BACKUP = "backup"  # no command: only a replica or a backup has what is lost
    BROKER = "broker"  # none is needed: a broker mends it


class Kind(StrEnum):
    """Kinds of damage. The comment on each is its permanent meaning; what follows from it is in the table below, kind by kind."""

    # commit log
    BAD_FRAME = "bad-frame"  # bytes where a record should start are not a valid record
    BAD_LENGTHS = "bad-lengths"  # the inner lengths of a record do not add up to its size
    BAD_OFFSET = "bad-offset"  # a record's own physical offset differs from its position
    BAD_CHECKSUM = "bad-checksum"  # the body does not match its CRC
    BAD_PROPERTY_CHECKSUM = "bad-property-checksum"  # the record does not match its __CRC32# property
    BAD_COMPRESSION = "bad-compression"  # the body cannot be decompressed with the method its flags name
    BAD_PROPERTIES = "bad-properties"  # the property text is not a list of name/value pairs
    BAD_TEXT = "bad-text"  # topic or properties are not UTF-8
    TORN_RECORD = "torn-record"  # the last record of the log is incomplete
    ZEROED = "zeroed"  # zeros where records must have been
    MISSING_FILE = "missing-file"  # a file between two others of a file queue is missing
    ABSENT_PART = "absent-part"  # a part of the store that others show to have been there, and that is not
    WRONG_SIZE = "wrong-size"  # a file whose length differs from that of its file queue
    STRAY_FILE = "stray-file"  # a file or directory that does not belong in a store
    UNREADABLE = "unreadable"  # the operating system refused or failed to read a file, or a path is not the store that it should be
    # consume queue
    BAD_QUEUE_ENTRY = "bad-queue-entry"  # an entry that does not point to a record of its queue
    QUEUE_ENTRY_MISMATCH = "queue-entry-mismatch"  # size, tags code or position differ from the record's
    QUEUE_GAP = "queue-gap"  # unwritten entries between written ones
    QUEUE_ORDER = "queue-order"  # entries of a queue whose log positions do not ascend
    MISSING_QUEUE_ENTRY = "missing-queue-entry"  # a record of the log without an entry in its queue
    # index
    BAD_INDEX_HEADER = "bad-index-header"  # counts or times in the header that contradict the file's own entries or its name
    BAD_INDEX_ENTRY = "bad-index-entry"  # an entry without a record that has its key
    BAD_INDEX_CHAIN = "bad-index-chain"  # a slot or link that does not form a chain from newer to older
    MISSING_INDEX_ENTRY = "missing-index-entry"  # a key of a record within the file's range that has no entry
    # RabbitMQ: index of a queue
    BAD_JOURNAL = "bad-journal"  # bytes of a journal that are not a record, with or without records after them
    BAD_SEGMENT = "bad-segment"  # bytes or marks of a segment file that are not valid there
    BAD_QUEUE_FILE = "bad-queue-file"  # invalid header, entry or checksum of a version 2 queue file
    BAD_QUEUE_NAME = "bad-queue-name"  # .queue_name or .vhost is missing or does not match its directory
    REPEATED_ENTRY = "repeated-entry"  # a sequence id is published twice with different bytes
    BROKER_CRASH = "broker-crash"  # a state on which the broker itself fails: it would not start this queue or vhost
    BROKER_LOSES = "broker-loses"  # messages that exist, but that the broker would not find or would discard
    # RabbitMQ: messages
    BAD_TERM = "bad-term"  # a stored message is invalid, or not the one (id, size) that its entry announces
    BAD_STORE_RECORD = "bad-store-record"  # bytes of a message store file that are not a record
    MISSING_BODY = "missing-body"  # an index entry whose message is in no message file
    MISSING_PART = "missing-part"  # a message file or a queue's directory that the lists of a clean stop name, and that is not there
    BAD_SIDE_FILE = "bad-side-file"  # recovery.dets, clean.dot, an .ets or a Mnesia file that cannot be read as one
    # RabbitMQ: streams
    BAD_CHUNK = "bad-chunk"  # bytes of a stream's segment that are not a chunk, or a chunk that does not match its checksum or counts
    BAD_BATCH = "bad-batch"  # a sub-batch of a stream whose records cannot be read: its compression, sizes or counts do not fit
    BAD_STREAM_INDEX = "bad-stream-index"  # the index of a stream's segment is missing, too short, or contradicts the chunks
    MISSING_SEGMENT = "missing-segment"  # offsets of a stream that no segment holds, between two that are held
    # RabbitMQ: quorum queues
    BAD_WAL = "bad-wal"  # a record in the middle of a write-ahead log is damaged: the node starts no quorum queue
    BAD_RAFT_SEGMENT = "bad-raft-segment"  # invalid header, place or entry of a segment of a Raft log
    BAD_SNAPSHOT = "bad-snapshot"  # a snapshot, checkpoint or list of live entries that cannot be read as one
    MISSING_ENTRIES = "missing-entries"  # entries of a Raft log that must be there are not: what is after them is uncertain
    UNKNOWN_MEMBER = "unknown-member"  # a member of a quorum queue that the node does not know, or that is there twice
    # the rest
    BAD_CONFIG = "bad-config"  # a configuration file that cannot be parsed
    BAD_DATABASE = "bad-database"  # a RocksDB database of which a file or a block cannot be read
    BAD_COMPACTION = "bad-compaction"  # a message of a compaction log that its unit does not lead to whole
    BAD_TIMER = "bad-timer"  # a slot of the timer wheel, a unit of the timer log or a timer in RocksDB that contradicts another, or the log
    BAD_TRANSACTION = "bad-transaction"  # a pair of a half message in RocksDB that contradicts the log
    BAD_CHECKPOINT = "bad-checkpoint"  # a checkpoint file that cannot be read as one

    @property
    def subject(self) -> Subject:
        """What it is about."""
        return _TRAITS[self][0]

    @property
    def lost(self) -> bool:
        """Whether bytes of messages are lost with it."""
        return _TRAITS[self][1]

    @property
    def reaction(self) -> Reaction:
        """What a broker makes of it at its start."""
        return _TRAITS[self][2]

    @property
    def remedy(self) -> Remedy:
        """What helps, whatever else is in the store."""
        return _TRAITS[self][3]

    @property
    def unread(self) -> bool:
        """Whether nothing can be read from the range: an answer is incomplete there."""
        return self.subject in (Subject.BYTES, Subject.FILE)

    @property
    def noticed(self) -> bool:
        """Whether clients of a broker that starts on the store notice it."""
        return self.reaction in (Reaction.REFUSES, Reaction.STOPS, Reaction.SERVES)


_TRAITS: dict[Kind, tuple[Subject, bool, Reaction, Remedy]] = {
    Kind.BAD_FRAME: (Subject.BYTES, True, Reaction.STOPS, Remedy.REBUILD),
    Kind.BAD_LENGTHS: (Subject.BYTES, True, Reaction.STOPS, Remedy.REBUILD),
    Kind.BAD_OFFSET: (Subject.BYTES, True, Reaction.SERVES, Remedy.REBUILD),
    Kind.BAD_CHECKSUM: (Subject.RECORD, True, Reaction.STOPS, Remedy.REPAIR),
    Kind.BAD_PROPERTY_CHECKSUM: (Subject.RECORD, True, Reaction.SERVES, Remedy.BACKUP),
    Kind.BAD_COMPRESSION: (Subject.RECORD, True, Reaction.SERVES, Remedy.BACKUP),
    Kind.BAD_PROPERTIES: (Subject.RECORD, True, Reaction.SERVES, Remedy.BACKUP),
    Kind.BAD_TEXT: (Subject.RECORD, True, Reaction.SERVES, Remedy.BACKUP),
    Kind.TORN_RECORD: (Subject.BYTES, False, Reaction.MENDS, Remedy.BROKER),
    Kind.ZEROED: (Subject.BYTES, True, Reaction.STOPS, Remedy.REBUILD),
    Kind.MISSING_FILE: (Subject.FILE, True, Reaction.STOPS, Remedy.REBUILD),
    Kind.ABSENT_PART: (Subject.FILE, True, Reaction.DROPS, Remedy.BACKUP),
    Kind.WRONG_SIZE: (Subject.FILE, False, Reaction.REFUSES, Remedy.REPAIR),
    Kind.STRAY_FILE: (Subject.OTHER, False, Reaction.PASSES, Remedy.REPAIR),
    Kind.UNREADABLE: (Subject.FILE, False, Reaction.UNKNOWN, Remedy.BACKUP),
    Kind.BAD_QUEUE_ENTRY: (Subject.QUEUE_ENTRY, False, Reaction.DROPS, Remedy.REBUILD),
    Kind.QUEUE_ENTRY_MISMATCH: (Subject.QUEUE_ENTRY, False, Reaction.SERVES, Remedy.REBUILD),
    Kind.QUEUE_GAP: (Subject.QUEUE, False, Reaction.DROPS, Remedy.REPAIR),
    Kind.QUEUE_ORDER: (Subject.QUEUE, False, Reaction.PASSES, Remedy.REBUILD),
    Kind.MISSING_QUEUE_ENTRY: (Subject.QUEUE, False, Reaction.DROPS, Remedy.REBUILD),
    Kind.BAD_INDEX_HEADER: (Subject.INDEX, False, Reaction.SERVES, Remedy.REBUILD),
    Kind.BAD_INDEX_ENTRY: (Subject.INDEX, False, Reaction.SERVES, Remedy.REBUILD),
    Kind.BAD_INDEX_CHAIN: (Subject.INDEX, False, Reaction.SERVES, Remedy.REBUILD),
    Kind.MISSING_INDEX_ENTRY: (Subject.INDEX, False, Reaction.SERVES, Remedy.REBUILD),
    Kind.BAD_JOURNAL: (Subject.BYTES, True, Reaction.STOPS, Remedy.REPAIR),
    Kind.BAD_SEGMENT: (Subject.BYTES, True, Reaction.REFUSES, Remedy.REPAIR),
    Kind.BAD_QUEUE_FILE: (Subject.MESSAGE, True, Reaction.DROPS, Remedy.REPAIR),
    Kind.BAD_QUEUE_NAME: (Subject.NODE, False, Reaction.DROPS, Remedy.SALVAGE),
    Kind.REPEATED_ENTRY: (Subject.NODE, False, Reaction.DROPS, Remedy.BACKUP),
    Kind.BROKER_CRASH: (Subject.NODE, False, Reaction.REFUSES, Remedy.REPAIR),
    Kind.BROKER_LOSES: (Subject.NODE, False, Reaction.DROPS, Remedy.REPAIR),
    Kind.BAD_TERM: (Subject.MESSAGE, True, Reaction.DROPS, Remedy.BACKUP),
    Kind.BAD_STORE_RECORD: (Subject.BYTES, True, Reaction.STOPS, Remedy.REPAIR),
    Kind.MISSING_BODY: (Subject.MESSAGE, True, Reaction.DROPS, Remedy.BACKUP),
    Kind.MISSING_PART: (Subject.NODE, True, Reaction.DROPS, Remedy.BACKUP),
    Kind.BAD_SIDE_FILE: (Subject.OTHER, False, Reaction.MENDS, Remedy.BROKER),
    Kind.BAD_CHUNK: (Subject.BYTES, True, Reaction.STOPS, Remedy.BACKUP),
    Kind.BAD_BATCH: (Subject.MESSAGE, True, Reaction.SERVES, Remedy.BACKUP),
    Kind.BAD_STREAM_INDEX: (Subject.NODE, False, Reaction.DROPS, Remedy.BACKUP),
    Kind.MISSING_SEGMENT: (Subject.NODE, True, Reaction.STOPS, Remedy.BACKUP),
    Kind.BAD_WAL: (Subject.BYTES, True, Reaction.REFUSES, Remedy.BACKUP),
    Kind.BAD_RAFT_SEGMENT: (Subject.NODE, True, Reaction.REFUSES, Remedy.BACKUP),
    Kind.BAD_SNAPSHOT: (Subject.NODE, False, Reaction.REFUSES, Remedy.BACKUP),
    Kind.MISSING_ENTRIES: (Subject.NODE, True, Reaction.REFUSES, Remedy.BACKUP),
    Kind.UNKNOWN_MEMBER: (Subject.NODE, False, Reaction.DROPS, Remedy.BACKUP),
    Kind.BAD_CONFIG: (Subject.OTHER, False, Reaction.DROPS, Remedy.REPAIR),
    Kind.BAD_DATABASE: (Subject.OTHER, False, Reaction.DROPS, Remedy.REBUILD),
    Kind.BAD_COMPACTION: (Subject.OTHER, True, Reaction.SERVES, Remedy.BACKUP),
    Kind.BAD_TIMER: (Subject.OTHER, False, Reaction.DROPS, Remedy.BACKUP),
    Kind.BAD_TRANSACTION: (Subject.OTHER, False, Reaction.DROPS, Remedy.BACKUP),
    Kind.BAD_CHECKPOINT: (Subject.OTHER, False, Reaction.MENDS, Remedy.REPAIR),
}


class Verdict(StrEnum):
    """The state of one message."""

    INTACT = "intact"
    CONSUMED = "consumed"
    UNINDEXED = "unindexed"
    UNREACHABLE = "unreachable"
    DAMAGED = "damaged"
    DUPLICATE = "duplicate"
    UNPROVED = "unproved"


LOST_VERDICTS = frozenset({Verdict.DAMAGED, Verdict.UNREACHABLE})  # of messages in a queue whose bytes cannot be given


@dataclass(frozen=True, slots=True)
class Damage:
    """Invalid bytes.

    file: path relative to the store, with `/` as separator. offset, length: byte range in that file.
    messages: number of messages known to be affected.
    """

    file: str
    offset: int
    length: int
    kind: Kind
    detail: str
    messages: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `verify -o json` prints."""
        return {
            "file": self.file,
            "offset": self.offset,
            "length": self.length,
            "kind": str(self.kind),
            "detail": self.detail,
            "messages": self.messages,
        }


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """A range that was not read, and why. offset, length: byte range in the file."""

    file: str
    offset: int
    length: int
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file, "offset": self.offset, "length": self.length, "why": self.why}


@dataclass(frozen=True, slots=True)
class Coverage:
    """What an answer is based on: everything, or everything except `skipped`."""

    skipped: tuple[SkippedRange, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.skipped

    def as_dict(self) -> dict[str, Any]:
        return {"complete": self.complete, "skipped": [skip.as_dict() for skip in self.skipped]}


@dataclass(slots=True)
class CheckCounts:
    """How much was checked. bytes: of the records and entries, without space that is allocated and unwritten.

    records: frames found; messages: those that are messages with a valid frame. RabbitMQ: bytes of all files of the vhosts; records of
    the message files; messages that are not acknowledged, queue by queue.
    """

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
class Advice:
    """What can be said without a diagnosis, for the end of another command's output. starts: None if only a diagnosis shows it.

    next: a command line, for `why`.
    """

    starts: bool | None
    next: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that `inspect -o json` and `verify -o json` have besides their own."""
        return {"starts": self.starts, "next": self.next, "why": self.why}


@dataclass(frozen=True, slots=True)
class Report(Shown):
    """Outcome of `verify`. notes: sentences about states that are not damage (an unclean shutdown, queues that lag behind the log).

    affected: number of messages that the findings are about, each counted once. gone: messages of which only a queue entry is left;
    they are affected, and not among those that were checked. cautions: what does not work although nothing is damaged; the headline
    says it. without: where most of the answer depends on a part that is not there, the predicate of a sentence about it; empty otherwise.
    runs_on, why: where it ran, and why there; empty if there was no choice. advice: what to do next.
    """

    store: str
    family: str
    checked: CheckCounts
    coverage: Coverage = Coverage()
    damage: tuple[Damage, ...] = ()
    notes: tuple[str, ...] = field(default=())
    affected: int = 0
    gone: int = 0
    cautions: tuple[str, ...] = ()
    without: str = ""
    runs_on: str = field(default="", compare=False)
    why: str = field(default="", compare=False)
    advice: Advice | None = field(default=None, compare=False)

    def _title(self) -> str:
        return f"report on {self.store!r}"

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "verdict", self.headline
        yield "checked", f"{count(self.checked.messages, 'message')} in {count(self.checked.files, 'file')}"

    def __repr__(self) -> str:  # that of a dataclass would print every finding
        return Shown.__repr__(self)

    @property
    def headline(self) -> str:
        """The outcome in one sentence, the same for the command line and the console."""
        if self.damage:
            findings = count(len(self.damage), "finding")
            affected = f"{self.affected:,} of {count(self.total, 'message')} affected"
            return f"Damaged: {affected if self.affected else 'no message is known to be affected'}; {findings}."
        if self.without:
            return f"Whether messages are damaged {self.without}; nothing of what is here is."
        if self.cautions:
            return f"Nothing is damaged, but {'; '.join(self.cautions)}."
        return "Intact: nothing is damaged." if self.coverage.complete else "No damage was found; not everything could be checked."

    @property
    def total(self) -> int:
        """The number of messages that the store holds or should hold."""
        return self.checked.messages + self.gone

    @property
    def ok(self) -> bool:
        """Whether what the answer depends on is there, and nothing is damaged."""
        return not self.damage and not self.without

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `verify -o json` prints."""
        return {
            "store": self.store,
            "family": self.family,
            "ok": self.ok,
            "checked": self.checked.as_dict(),
            "messages": {"total": self.total, "affected": self.affected},
            "coverage": self.coverage.as_dict(),
            "damage": [item.as_dict() for item in self.damage],
            "notes": list(self.notes),
            **({} if self.advice is None else self.advice.as_dict()),
        }


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """Messages of a store that were written to a file. verdicts: all messages by verdict; messages: those written; bytes: of the file.

    store: the path of the store. findings: None for a store whose damaged messages say it all.
    """

    store: str
    to: str
    format: str
    messages: int
    bytes: int
    verdicts: dict[str, int]
    findings: tuple[Damage, ...] | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing was damaged or missing."""
        return not self.findings and not any(self.verdicts.get(verdict, 0) for verdict in LOST_VERDICTS)

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `salvage -o json` prints."""
        return {
            "to": self.to,
            "format": self.format,
            "ok": self.ok,
            "messages": self.messages,
            "bytes": self.bytes,
            "verdicts": {str(verdict): self.verdicts.get(verdict, 0) for verdict in Verdict},
            **({} if self.findings is None else {"damage": [item.as_dict() for item in self.findings]}),
            "seconds": round(self.seconds, 3),
            "store": self.store,
        }


def merge_adjacent(findings: Iterable[Damage]) -> list[Damage]:
    """Merge adjacent damage with equal file, kind and detail; order by file and offset."""
    merged: list[Damage] = []
    for item in sorted(findings, key=lambda d: (d.file, d.offset, d.length)):
        last = merged[-1] if merged else None
        if last and (last.file, last.kind, last.detail) == (item.file, item.kind, item.detail) and last.offset + last.length == item.offset:
            merged[-1] = Damage(last.file, last.offset, last.length + item.length, last.kind, last.detail, last.messages + item.messages)
        else:
            merged.append(item)
    return merged
