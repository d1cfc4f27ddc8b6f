"""Conversion of one queue directory to version 1 or 2 in a new directory, from columns to columns.

    entries, segment by segment --> which messages are carried over --> .qi + .qs, or segments
                                          |
                                          +--> rows of the message store that are still needed

Every message that the broker would recover is carried over, and every other live, persistent one whose bytes are intact: after damage in
a journal, in a state on which the broker crashes, in a journal that it would ignore. Those are counted separately (`beyond`). Messages
that are not carried over are counted by reason. Sequence ids are kept; the result has the terms that a clean stop would record, so that
numbering and redelivered marks continue.

A task consists of plain values and may run in any process; running it again writes the same bytes.

One more queue has all messages of a vhost that are in none: from parts of unknown queues, and messages without an index entry.

They are in the order of their parts, those without an index last, by file and position: approximately publish order. Sequence ids are
reassigned. Nothing records whether such a message was already acknowledged; all are included.

Format: docs/formats/rabbitmq.md, sections 12.6, 14 and 15.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes
from mqstore.files.directory_views import AliasDirectory, ConfinedDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.findings import Damage
from mqstore.kernels.rabbitmq import message_terms, terms
from mqstore.rabbitmq.convert.convert_messages import Refusal, rewrite_entries
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format.index_v1 import ACKED, IN_STORE, PERSISTENT, PUBLISHED
from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT
from mqstore.rabbitmq.format.layout import REQUIRED, QueueDirectory, read_queues, small_file
from mqstore.rabbitmq.format.names import parse_queue_name_file, priority_name, queue_directory, queue_name_file, vhost_directory
from mqstore.rabbitmq.format.queue_writer import queue_writer
from mqstore.rabbitmq.format.recovery_terms import QueueTerms
from mqstore.rabbitmq.message.message_term import read_message
from mqstore.rabbitmq.store.fate import QueueStart
from mqstore.rabbitmq.store.message_table import orphan_rows
from mqstore.rabbitmq.store.queue import DAMAGED, DUPLICATE, PERSISTENT_STORE, TRANSIENT_STORE, UNINDEXED, EntryTable, Queue
from mqstore.rabbitmq.store.vhost import Vhost

ROWS = (
    ".needed"  # only while the new directory is written: one file per queue with the rows of the message store that it needs, 8 bytes each
)

# why a message of the old directory is not in the new one
TRANSIENT = "transient: a broker throws it away at every start"
MISSING = "no message file has the body"
MISPLACED = "the body is in msg_store_transient, which a broker empties at every start"
UNREADABLE = "damaged bytes"
REPEATED = "another publish of its sequence id, with other bytes, counts"
EXPIRED = "expired at the head of its queue"
LEFT_OUT = (TRANSIENT, MISSING, MISPLACED, UNREADABLE, REPEATED, EXPIRED)
LOST = frozenset({MISSING, MISPLACED, UNREADABLE, REPEATED})
Piece = tuple[NDArray[np.void], tuple[Bytes, ...]]


@dataclass(frozen=True, slots=True)
class QueueTask:
    """The conversion of one queue.

    root: path of the store; vhost: place of the vhost below it; directory: that of the queue. stage: the new root. version: of the queue
    in the new directory, None: unchanged. entries_v2: M of the node that will read it. now: microseconds; messages at the head that
    are expired by then are left out, None: none are. files: an arrangement, as pairs of names. place: of the new vhost. basic: message
    containers are rewritten as `basic_message`.
    """

    root: str
    vhost: str
    directory: str
    stage: str
    version: int | None
    entries_v2: int = ENTRY_COUNT
    now: int | None = None
    names: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    place: str = ""
    basic: bool = False


@dataclass(frozen=True, slots=True)
class QueueReport:
    """The result for one queue directory. bytes: size of the bodies carried over; beyond: messages carried over that the broker itself
    would not have recovered. left_out: number of messages by reason. rewritten: messages carried over as `basic_message`. from_version:
    `quorum` for a quorum queue.
    """

    vhost: str | None
    queue: str
    priority_level: int | None
    directory: str
    named: bool
    from_version: int | str
    version: int
    messages: int
    bytes: int
    next_seq: int
    redelivered: int
    beyond: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    rewritten: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class QueueResult:
    """The outcome of a task. terms: for the recovery.dets of the new directory. refused: messages that cannot be rewritten."""

    report: QueueReport
    terms: QueueTerms
    findings: tuple[Damage, ...] = ()
    refused: tuple[Refusal, ...] = ()


class OpenVhost(NamedTuple):
    """A vhost, and its queue directories by name."""

    vhost: Vhost
    queues: dict[str, QueueDirectory]


@lru_cache(maxsize=4)
def open_vhost(root: str, place: str, names: tuple[tuple[str, str], ...], files: tuple[tuple[str, str], ...] = ()) -> OpenVhost:
    """Return the vhost of a task; the tasks of one process share it, and with it the scan of its message store."""
    directory = AliasDirectory(root, dict(files)) if files else ConfinedDirectory(root)
    directory.tolerate_unlisted(*REQUIRED)
    vhost = Vhost(directory, place, names=names, careful=True)
    return OpenVhost(vhost, {queue.directory: queue for queue in read_queues(vhost.root, vhost.place, names)})


def convert_queue(task: QueueTask) -> QueueResult:
    """Write the files of one queue below the stage; they are synced together with the stage."""
    vhost, queues = open_vhost(task.root, task.vhost, task.names, task.files)
    if task.directory not in queues:
        raise CannotOpenError(f"{task.directory} has disappeared since the store was listed")
    # not one of vhost.queues, which would keep every journal in memory
    queue = Queue(vhost.root, queues[task.directory], vhost.entry_count, (vhost.persistent, vhost.transient), vhost.start(task.directory))
    path = f"{task.place}/queues/{task.directory}" if task.place else f"queues/{task.directory}"
    version = task.version or queue.version
    converter = _QueueConverter(queue, vhost, task.now, task.basic)
    with DurableDirectory(task.stage) as stage:
        stage.remove_tree(path)
        stage.make_directory(path)
        writer = queue_writer(stage, path, version, count=vhost.entry_count, count_v2=task.entries_v2)
        for entries, sources in converter.pieces():
            writer.add(entries, sources)
        unacked = writer.close()
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *converter.rows]))
        stage.write_small(needed_rows(task.vhost, task.directory), rows.tobytes())
        name = _name_file(vhost, queue, version == 2)
        if name is not None:
            stage.write_small(f"{path}/.queue_name", name)
    report = QueueReport(
        queue.vhost,
        queue.name,
        queue.priority_level,
        queue.directory,
        queue.place.named,
        queue.version,
        version,
        converter.messages,
        converter.bytes,
        converter.next_seq,
        converter.redelivered,
        converter.beyond,
        {why: count for why, count in converter.left_out.items() if count},
        converter.rewritten,
    )
    noted = QueueTerms(
        unacked if version == 1 else None,
        unacked if version == 2 else None,
        converter.next_seq,
        converter.next_deliver,
        queue_reference(vhost, queue.directory),
        converter.messages,
        converter.bytes,
        *converter.deliveries,
    )
    findings = (*queue.place.findings, *queue.index.journal.findings, *converter.findings)
    return QueueResult(report, noted, findings, tuple(converter.refused))


def needed_rows(vhost: str, directory: str) -> str:
    """Return the file, below the stage, that names the rows of the message store which a queue needs. vhost: the place of the old one."""
    # a digest: the name of a directory may be as long as a name can be
    return f"{ROWS}/{vhost_directory(vhost)}-{hashlib.sha256(os.fsencode(directory)).hexdigest()}"


def queue_reference(vhost: Vhost, directory: str) -> bytes:
    """Return the 16-byte reference of a queue for `clean.dot`: unique within the vhost, and the same on every run."""
    return hashlib.sha256(f"mqstore {vhost.directory} {directory}".encode("utf-8", "surrogateescape")).digest()[:16]


def _name_file(vhost: Vhost, queue: Queue, v2: bool) -> bytes | None:
    """Return the bytes of `.queue_name`; None if the name is not known."""
    if not queue.place.named:
        return None
    raw = small_file(vhost.root, f"{queue.place.place}/.queue_name", 8192)
    parsed = None if raw is None else parse_queue_name_file(raw, queue.directory)
    if parsed is not None:
        return queue_name_file(parsed.vhost, parsed.name, v2)
    name: bytes | str = queue.name if queue.priority_level is None else priority_name(queue.name, queue.priority_level)
    return queue_name_file(queue.vhost or "", name, v2)


class _QueueConverter:
    """Reads a queue once, selects the messages to write, and counts."""

    def __init__(self, queue: Queue, vhost: Vhost, now: int | None, basic: bool) -> None:
        self.queue = queue
        self.vhost = vhost
        self.now = now
        self.basic = basic
        self.messages = 0
        self.rewritten = 0
        self.refused: list[Refusal] = []
        self.bytes = 0
        self.beyond = 0
        self.redelivered = 0
        self.left_out = dict.fromkeys(LEFT_OUT, 0)
        self.rows: list[NDArray[np.int64]] = []
        self.findings: list[Damage] = []
        self._last = -1
        self._boundary = 0  # first sequence id of the segment after the last message
        self._delivered = 0
        self._carried: set[int] = set()  # sequence ids of messages that are marked
        self._at_head = now is not None

    def pieces(self) -> Iterator[tuple[NDArray[np.void], tuple[Bytes, ...]]]:
        """Yield messages to write, with the buffers that their `place` refers to."""
        for table in self.queue.entry_tables():
            self.findings += table.findings
            rows, entries = select_messages(table, self.vhost, self.left_out)
            dropped = self._expired(entries)
            rows, entries = rows[dropped:], entries[dropped:]
            if not len(entries):
                continue
            count = self.queue.index_of(table.version).count
            self._last = max(self._last, int(entries["seq"].max()))
            self._boundary = max(self._boundary, (self._last // count + 1) * count)
            marked = entries["seq"][table.redelivered[rows]]
            self._delivered = max(self._delivered, int(marked.max(initial=-1)) + 1)
            self.redelivered += len(marked)
            self._carried.update(marked.tolist())
            written = buffers(table)
            if self.basic:
                basic = rewrite_entries(table, rows, entries, self.vhost, self.queue.vhost or self.vhost.name)
                entries, written = basic.entries, (basic.data,)
                self.rewritten += basic.count
                self.refused += basic.refused
            self.messages += len(entries)
            self.bytes += int(entries["size"].sum())
            self.beyond += int((~table.recovered[rows]).sum())
            shared = entries[entries["place"] == IN_STORE]
            if len(shared):
                self.rows.append(self.vhost.persistent.find(shared["hi"], shared["lo"]))
            yield entries, written

    def _expired(self, entries: NDArray[np.void]) -> int:
        """Return how many of these messages are expired at the head of the queue."""
        if not self._at_head or not len(entries):
            return 0
        expired = (entries["expiry"] > 0) & (entries["expiry"] <= (self.now or 0))
        first = len(entries) if expired.all() else int(np.argmin(expired))
        self._at_head = first == len(entries)
        self.left_out[EXPIRED] += first
        return first

    @property
    def next_seq(self) -> int:
        """The sequence id that the broker would assign to the next message."""
        noted = self.queue.start.terms
        if noted is None or noted.next_seq is None:
            return self._boundary
        return max(noted.next_seq, self._last + 1)

    @property
    def next_deliver(self) -> int:
        """Messages below this sequence id are marked as redelivered."""
        noted = self.queue.start.terms
        if noted is None:
            return self.next_seq
        # 3.8, 3.9 and 4.3 mark each message; in between one number marks all messages below it
        return self._delivered if noted.next_deliver is None or noted.delivery_counts else min(noted.next_deliver, self.next_seq)

    @property
    def deliveries(self) -> tuple[dict[int, int] | None, int | None]:
        """The marks of single messages as 4.3 records them, and its number below which all are marked; None if there were none."""
        noted = self.queue.start.terms
        if noted is None or noted.delivery_counts is None:
            return None, None
        return {seq: count for seq, count in noted.delivery_counts.items() if seq in self._carried}, min(
            noted.redeliver or 0, self.next_seq
        )


def buffers(table: EntryTable) -> tuple[Bytes, ...]:
    """Return the bytes of embedded messages and queue stores, by the `place` of an entry."""
    return tuple(np.empty(0, np.uint8) if data is None else data for _, data in table.sources[:IN_STORE])


def select_messages(table: EntryTable, vhost: Vhost, left_out: dict[str, int]) -> tuple[NDArray[np.intp], NDArray[np.void]]:
    """Return the rows of a segment that are carried over, and their entries as they are written. Adds to left_out."""
    state = table.entries["state"]
    live = (state & (PUBLISHED | ACKED)) == PUBLISHED
    repeated = live & (table.known == DUPLICATE)
    persistent = table.recovered | ((table.entries["flags"] & PERSISTENT) != 0)
    left_out[REPEATED] += int(repeated.sum())
    live &= ~repeated
    left_out[TRANSIENT] += int((live & ~persistent).sum())
    rows = np.flatnonzero(live & persistent)
    there = table.source[rows] >= 0
    left_out[MISSING] += int((~there).sum())
    rows = rows[there]
    transient = np.array([name.startswith(f"{vhost.transient.place}/") for name, _ in table.sources], np.bool_)
    misplaced = transient[table.source[rows]]
    left_out[MISPLACED] += int(misplaced.sum())
    rows = rows[~misplaced]
    entries = table.entries[rows].copy()
    entries["at"], entries["length"] = table.at[rows], table.length[rows]
    valid = valid_messages(table, rows, entries, vhost)
    left_out[UNREADABLE] += int((~valid).sum())
    return rows[valid], entries[valid]


def valid_messages(table: EntryTable, rows: NDArray[np.intp], entries: NDArray[np.void], vhost: Vhost) -> NDArray[np.bool_]:
    """Return whether the bytes of each are a persistent message with the entry's id. Fills in missing ids."""
    valid = np.zeros(len(rows), np.bool_)
    source = table.source[rows]
    for number in np.unique(source).tolist():
        name, data = table.sources[number]
        mine = np.flatnonzero(source == number)
        if data is None:
            try:
                data = vhost.root.map(name).data
            except CannotOpenError:
                continue
        at, length = (np.ascontiguousarray(entries[field][mine]) for field in ("at", "length"))
        if (entries["hi"][mine] == 0).all() and (entries["lo"][mine] == 0).all():
            entries["hi"][mine], entries["lo"][mine] = _ids(data, at, length)
        hi, lo = (np.ascontiguousarray(entries[field][mine]) for field in ("hi", "lo"))
        shape = np.zeros(len(mine), np.uint8)
        terms.shapes(data, at, length, hi, lo, shape)
        sound = terms.MESSAGE | terms.SAME_ID
        good = (shape & sound == sound) & (shape & (terms.PERSISTENT | terms.CONTAINER) != 0)
        for k in np.flatnonzero(shape & terms.PACKED).tolist():
            good[k] = _id_of(data, int(at[k]), int(length[k])) == _halves(int(hi[k]), int(lo[k]))
        valid[mine] = good
    # a version 2 entry with a wrong checksum: its bytes are not trusted
    return np.asarray(valid & (table.known[rows] != DAMAGED))


def _ids(data: Bytes, at: NDArray[np.int64], length: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids inside these messages, as two big-endian halves; zeros if one cannot be read."""
    fields = np.zeros((len(at), message_terms.FIELD_COUNT), np.int64)
    inside = (at >= 0) & (length > 0) & (at <= len(data) - length)
    message_terms.fields(data, np.where(inside, at, 0), np.where(inside, length, 0), fields)
    fast = inside & (fields[:, message_terms.STATUS] == message_terms.FAST)
    raw = np.zeros((len(at), 16), np.uint8)
    starts = fields[fast, message_terms.ID_START]
    raw[fast] = data[starts[:, None] + np.arange(16)]
    for k in np.flatnonzero(inside & ~fast).tolist():
        raw[k] = np.frombuffer(_id_of(data, int(at[k]), int(length[k])) or bytes(16), np.uint8)
    halves = raw.view(">i8").astype(np.int64)
    return halves[:, 0], halves[:, 1]


def _id_of(data: Bytes, at: int, length: int) -> bytes | None:
    try:
        message = read_message(data[at : at + length].tobytes())
    except EtfError:
        return None
    return message.id if len(message.id) == 16 else None


def _halves(hi: int, lo: int) -> bytes:
    return hi.to_bytes(8, "big", signed=True) + lo.to_bytes(8, "big", signed=True)


def write_orphan_queue(
    vhost: Vhost, parts: Iterable[QueueDirectory], of: str, name: str, stage: DurableDirectory, place: str, version: int, entries_v2: int
) -> QueueResult:
    """Write the queue `name` of the vhost `of` below the new vhost's place. parts: queue directories whose messages it includes."""
    directory = queue_directory(of, name)
    below = f"{place}/queues/{directory}"
    stage.make_directory(below)
    writer = queue_writer(stage, below, version, count=vhost.entry_count, count_v2=entries_v2)
    left_out = dict.fromkeys(LEFT_OUT, 0)
    messages = size = 0
    rows = [np.empty(0, np.int64)]
    for entries, sources in _orphan_pieces(vhost, parts, left_out):
        entries["seq"] = np.arange(messages, messages + len(entries))
        shared = entries[entries["place"] == IN_STORE]
        rows.append(vhost.persistent.find(shared["hi"], shared["lo"]))
        writer.add(entries, sources)
        messages += len(entries)
        size += int(entries["size"].sum())
    unacked = writer.close()
    stage.write_small(needed_rows(vhost.place.place, directory), np.unique(np.concatenate(rows)).tobytes())
    stage.write_small(f"{below}/.queue_name", queue_name_file(of, name, version == 2))
    counted = {why: count for why, count in left_out.items() if count}
    report = QueueReport(of, name, None, directory, True, version, version, messages, size, messages, messages, messages, counted)
    reference = queue_reference(vhost, directory)
    v1, v2 = (unacked, None) if version == 1 else (None, unacked)
    return QueueResult(report, QueueTerms(v1, v2, messages, messages, reference, messages, size))


def _orphan_pieces(vhost: Vhost, parts: Iterable[QueueDirectory], left_out: dict[str, int]) -> Iterator[Piece]:
    for part in parts:
        queue = Queue(vhost.root, part, vhost.entry_count, (vhost.persistent, vhost.transient), QueueStart(None, False))
        for table in queue.entry_tables():
            _, entries = select_messages(table, vhost, left_out)
            if len(entries):
                yield entries, buffers(table)
    for rows in orphan_rows(vhost):
        table = rows.table
        chosen = np.flatnonzero((table.known == UNINDEXED) & (table.location != TRANSIENT_STORE))
        entries = table.entries[chosen].copy()
        entries["at"], entries["length"] = table.at[chosen], table.length[chosen]
        entries["place"] = np.where(table.location[chosen] == PERSISTENT_STORE, IN_STORE, 0)
        valid = valid_messages(table, chosen, entries, vhost)
        chosen, entries = chosen[valid], entries[valid]
        if len(entries):
            entries["size"] = _sizes(table, chosen, vhost)
            yield entries, buffers(table)


def _sizes(table: EntryTable, rows: NDArray[np.intp], vhost: Vhost) -> NDArray[np.int64]:
    """Return the sizes of the bodies of valid messages."""
    sizes = np.zeros(len(rows), np.int64)
    for number in np.unique(table.source[rows]).tolist():
        name, data = table.sources[number]
        if data is None:
            data = vhost.root.map(name).data
        mine = np.flatnonzero(table.source[rows] == number)
        at, length = table.at[rows[mine]], table.length[rows[mine]]
        fields = np.zeros((len(mine), message_terms.FIELD_COUNT), np.int64)
        message_terms.fields(data, at, length, fields)
        sizes[mine] = fields[:, message_terms.BODY_LENGTH]
        for k in np.flatnonzero(fields[:, message_terms.STATUS] != message_terms.FAST).tolist():
            sizes[mine[k]] = _body_size(data, int(at[k]), int(length[k]))
    return sizes


def _body_size(data: Bytes, at: int, length: int) -> int:
    try:
        message = read_message(data[at : at + length].tobytes())
    except EtfError:
        return 0
    return len(message.body) if message.stated_size is None else message.stated_size
