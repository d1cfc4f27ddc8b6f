r"""What a node makes of the quorum queues in its directory: facts for a diagnosis, one function each.

A fact names what was seen, what the node does with it, and how many messages that concerns. Nothing here is guessed: what the node does was
observed on real nodes (the page of the format, section 11).

    >>> fact = Fact("wal-damaged", "quorum/n/1.wal", "bytes 9 to 20 are damaged", "does not start", 0)
    >>> fact.sentence
    'quorum/n/1.wal: bytes 9 to 20 are damaged; the node does not start'

Format: docs/formats/rabbitmq-quorum.md, section 11.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mqstore.rabbitmq.quorum.queue import QueueState, QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import WAL_NAME, RaftDirectory
from mqstore.rabbitmq.quorum.wal import HEADER
from mqstore.table.formatting import count

FAILING = frozenset({"entries-missing", "entries-damaged"})  # the queue does not start
REDELIVERY_FAILS = "redelivery-fails"
_LONG_NAME = 16  # digits of the names of files, from 4.1 on


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact. place: file or directory. seen, does: parts of a sentence. messages: that the node does not deliver, as far as known.

    again: messages that it delivers although they had left the queue. wrong_last: it is the wrong checksum of a last record.
    """

    name: str
    place: str
    seen: str
    does: str
    messages: int = 0
    again: int = 0
    wrong_last: bool = False

    @property
    def stops(self) -> bool:
        """Whether no quorum queue starts, and with them the node."""
        return self.name in ("wal-damaged", "wal-empty")

    @property
    def what(self) -> str:
        """The fact without its place."""
        return f"{self.seen}; the node {self.does}"

    @property
    def sentence(self) -> str:
        return f"{self.place}: {self.what}"


# the directory


def uses_long_names(system: RaftDirectory) -> bool:
    """Return whether the files have names of 16 digits: 4.1 or newer has written them."""
    names = [entry.name for entry in system.entries(system.place)]
    return "segment_name_upgrade_marker" in names or any(WAL_NAME.fullmatch(name) and len(name) == _LONG_NAME + 4 for name in names)


def damaged_logs(system: RaftDirectory) -> Iterator[Fact]:
    """Write-ahead logs with which no quorum queue of the node starts: damaged in the middle, or shorter than a header."""
    for path, wal in system.write_ahead_logs:
        size = system.directory.mapped(path).size
        if size < HEADER:
            seen = f"the file has {count(size, 'byte')}" + (", less than its header" if size else "")
            yield Fact("wal-empty", path, seen, "does not start; removing the file loses nothing")
        elif wal.stops_at >= 0:
            rest = size - wal.stops_at
            seen = f"a record at byte {wal.stops_at:,} is damaged, {rest:,} bytes from there on are in doubt"
            if not wal.stops_at:
                seen = "it does not begin as a write-ahead log"
            yield Fact("wal-damaged", path, seen, "does not start")


def torn_logs(system: RaftDirectory) -> Iterator[Fact]:
    """Write-ahead logs whose last record is incomplete, which is what a kill leaves, or has a wrong checksum."""
    for path, wal in system.write_ahead_logs:
        if wal.torn >= 0:
            seen = f"the last record, at byte {wal.torn:,}, {'has a wrong checksum' if wal.wrong_last else 'is incomplete'}"
            yield Fact("wal-torn", path, seen, "drops it without a word", wrong_last=wal.wrong_last)
        if wal.ends_at >= 0:
            after = count(int((wal.records["start"] > wal.ends_at).sum()), "record")
            seen = f"a record at byte {wal.ends_at:,} is damaged so that it seems longer than the file"
            yield Fact("wal-torn", path, seen, f"takes it for the end, and drops it and {after} after it without a word")


def missing_names(system: RaftDirectory) -> Iterator[Fact]:
    """No names.dets: the members are not known to the node. What that does to each queue is a fact of the queue."""
    path = f"{system.place}/names.dets"
    if not system.directory.exists(path) and system.uids:
        does = "skips the write-ahead log for every queue: older states come back"
        if not uses_long_names(system):
            does = "starts every queue without a leader: none is usable"
        yield Fact("names-missing", path, f"the names of {count(len(system.uids), 'queue')} are missing", does)


# one queue


def unknown_member(queue: QuorumQueue, state: QueueState) -> Iterator[Fact]:
    """A member that the node does not know, or whose config is missing or damaged, which is the same for the node."""
    system, log = queue.log.system, queue.log
    if queue.known:
        if not queue.configured:
            seen = "it cannot be read" if system.directory.exists(f"{log.place}/config") else "it is missing"
            yield _rolled_back("config-missing", f"{log.place}/config", seen, queue, state)
        return
    seen = "the member is not in names.dets"
    if queue.config.uid not in ("", log.uid):
        seen += f", and its config is that of member {queue.config.uid}: the directory is a copy, or has another name"
    elif system.names:
        seen += "; the node was killed soon after the queue was declared"
    if uses_long_names(system):
        yield _rolled_back("member-unknown", log.place, seen, queue, state)
    else:
        does = "starts the queue without a leader: it cannot be used"
        yield Fact("member-unknown", log.place, seen, does, _delivered(state))


def delivered_indexes(queue: QuorumQueue, state: QueueState) -> frozenset[int]:
    """Return the messages that the node delivers: none, if it does not start or the queue fails in recovery or has no leader."""
    system = queue.log.system
    failing = any(fact.stops for fact in damaged_logs(system)) or any(True for _ in broken_recovery(queue, state))
    if failing or (not queue.known and not uses_long_names(system)):
        return frozenset()
    there = _readable(queue, state)
    if queue.known and queue.configured:
        return there & _readable(*_older(queue, ended=True)) if _has_ended(queue) else there
    return there & _readable(*_older(queue))


def _readable(queue: QuorumQueue, state: QueueState) -> frozenset[int]:
    """Return the messages that the queue delivers and whose entries have their bodies."""
    valid = queue.log.valid
    return frozenset(message.index for message in state.messages if message.recovered and message.row >= 0 and valid[message.row])


def _older(queue: QuorumQueue, *, ended: bool = False) -> tuple[QuorumQueue, QueueState]:
    """Return the queue without the write-ahead log, or without what follows its end for a node."""
    older = QuorumQueue(queue.log.system.member(queue.log.uid, wal=ended, ended=ended))
    return older, older.replay()


def _has_ended(queue: QuorumQueue) -> bool:
    """Return whether the queue has entries in a write-ahead log after what a node takes for its end."""
    logs = queue.log.system.write_ahead_logs
    return any(wal.ends_at >= 0 and bool((wal.of(queue.log.uid)["start"] > wal.ends_at).any()) for _, wal in logs)


def ended_log(queue: QuorumQueue, state: QueueState) -> Iterator[Fact]:
    """Entries after damage that is the end of a write-ahead log for a node."""
    if queue.known and queue.configured and _has_ended(queue):
        yield _rolled_back("wal-torn", queue.log.place, "it has entries after the end of a write-ahead log", queue, state, ended=True)


def _rolled_back(name: str, place: str, seen: str, queue: QuorumQueue, state: QueueState, *, ended: bool = False) -> Fact:
    """The node starts the member without the write-ahead log, or its end: which messages come back and which are gone is replayed."""
    then_queue, older = _older(queue, ended=ended)
    now, then = _readable(queue, state), _readable(then_queue, older)
    until = f"as of entry {older.applied} of {state.applied}" if older.applied >= 0 else "so without any entry"
    gone = f"{count(len(now - then), 'message')} lost" if now - then else "no message is lost"
    back = f", {count(len(then - now), 'message')} back that had left the queue" if then - now else ""
    without = "what follows that" if ended else "the write-ahead log"
    does = f"starts the member without {without}, {until}: {gone}{back}"
    return Fact(name, place, seen, does, len(now - then), len(then - now))


def _delivered(state: QueueState) -> int:
    return sum(message.recovered for message in state.messages)


def lost_log(queue: QuorumQueue) -> Iterator[Fact]:
    """Entries that the node had applied and that no file has: a write-ahead log is gone."""
    meta, last = queue.meta, queue.log.last[1]
    if meta is not None and meta.last_applied > last:
        rest = f"the last one in the files is {last}" if last >= 0 else "no file has an entry"
        seen = f"the node had applied entry {meta.last_applied}, and {rest}"
        yield Fact("wal-missing", queue.log.place, seen, "starts with an older state: acknowledged messages come back, later ones are lost")


def foreign_snapshots(queue: QuorumQueue, state: QueueState) -> Iterator[Fact]:
    """A snapshot of another queue in the member's directory. What a node makes of it was not tried."""
    for base in queue.foreign[:1]:
        last = base.snapshot.index
        passed = sum(message.recovered and message.index <= last for message in state.messages)
        seen = f"it is the state of another queue after entry {last} of that one"
        does = f"may start with that state, which was not tried: {count(passed, 'message')} of this one up to that entry are then lost"
        yield Fact("snapshot-foreign", base.path, seen, does, passed)


def broken_recovery(queue: QuorumQueue, state: QueueState) -> Iterator[Fact]:
    """Entries above the snapshot that are missing or damaged: the queue fails in recovery."""
    does = "does not recover this queue: clients see no message"
    if _has_ended(queue):
        queue, state = _older(queue, ended=True)
    gaps = queue.log.gaps
    above = queue.log.index >= queue.log.first_replayed
    damaged = queue.log.index[above & ~queue.log.valid].tolist()
    if gaps:
        first, last = gaps[0]
        more = f", and {count(len(gaps) - 1, 'other range')}" if len(gaps) > 1 else ""
        seen = f"entries {first} to {last} of the log are missing{more}"
        yield Fact("entries-missing", queue.log.place, seen, does, _delivered(state))
    elif damaged:
        seen = f"entry {damaged[0]}, which it must replay, is damaged"
        if len(damaged) > 1:
            seen = f"{count(len(damaged), 'entry')} that it must replay are damaged, the first is {damaged[0]}"
        yield Fact("entries-damaged", queue.log.place, seen, does, _delivered(state))


def messages_without_entry(queue: QuorumQueue, state: QueueState) -> Iterator[Fact]:
    """Messages in the state whose entries are missing or damaged: consumers fail when they reach them."""
    lost = [message for message in state.messages if message.row < 0 or not queue.log.valid[message.row]]
    if lost:
        seen = f"{count(len(lost), 'message')} of the queue without a readable entry, the first is {lost[0].index}"
        yield Fact("bodies-missing", queue.log.place, seen, "counts them, and closes a consumer with 541 when it reaches one", len(lost))


def closed_consumers(queue: QuorumQueue, state: QueueState) -> Iterator[Fact]:
    """Messages from before 3.13 that 4.3 cannot redeliver: it closes the connection of every consumer that reaches one."""
    head = [message for message in state.messages if message.recovered and message.row >= 0]
    old = [message for message in head if message.redelivered and _is_old(queue, message.row)]
    if old:
        seen = f"{count(len(old), 'message')} published before 3.13 will be redelivered"
        does = "closes the connection of every consumer that reaches one (4.3: error 541)"
        yield Fact(REDELIVERY_FAILS, queue.log.place, seen, does, len(head))


def _is_old(queue: QuorumQueue, row: int) -> bool:
    return b"basic_message" in queue.log.entry(row).entry[:400]


def facts_of_directory(system: RaftDirectory) -> list[Fact]:
    """Return the facts about the shared files, the gravest first."""
    return [*damaged_logs(system), *missing_names(system), *torn_logs(system)]


def facts_of_queue(queue: QuorumQueue, state: QueueState) -> list[Fact]:
    """Return the facts about one queue, the gravest first. closed_consumers is one for a node of 4.3 only."""
    return [
        *unknown_member(queue, state),
        *lost_log(queue),
        *ended_log(queue, state),
        *foreign_snapshots(queue, state),
        *broken_recovery(queue, state),
        *messages_without_entry(queue, state),
        *closed_consumers(queue, state),
    ]
