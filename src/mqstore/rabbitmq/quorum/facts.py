r"""What a node makes of the quorum queues in its directory: facts for a diagnosis, one function each.

A fact names what was seen, what the node does with it, and how many messages that concerns. Nothing here is guessed: what the node does was
observed on real nodes (the page of the format, section 11).

    >>> fact = Fact("wal-damaged", "quorum/n/1.wal", "bytes 9 to 20 are damaged", "does not start", 0)
    >>> fact.sentence
    'quorum/n/1.wal: bytes 9 to 20 are damaged; the node does not start.'

Format: docs/formats/rabbitmq-quorum.md, section 11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mqstore.rabbitmq.quorum.queue import CHECKED_OUT, QueueState, QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import WAL_NAME, RaftDirectory

_LONG_NAME = 16  # digits of the names of files, from 4.1 on


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact. place: file or directory. seen, does: parts of a sentence. messages: that the node does not deliver, as far as known."""

    name: str
    place: str
    seen: str
    does: str
    messages: int = 0

    @property
    def sentence(self) -> str:
        return f"{self.place}: {self.seen}; the node {self.does}."


# the directory


def uses_long_names(system: RaftDirectory) -> bool:
    """Return whether the files have names of 16 digits: 4.1 or newer has written them."""
    names = [entry.name for entry in system.entries(system.place)]
    return "segment_name_upgrade_marker" in names or any(WAL_NAME.fullmatch(name) and len(name) == _LONG_NAME + 4 for name in names)


def damaged_logs(system: RaftDirectory) -> Iterator[Fact]:
    """Write-ahead logs with which no quorum queue of the node starts: damaged in the middle, or empty."""
    for path, wal in system.write_ahead_logs:
        if wal.stops_at >= 0:
            rest = system.directory.mapped(path).size - wal.stops_at
            seen = f"a record at byte {wal.stops_at:,} is damaged, {rest:,} bytes from there on are in doubt"
            yield Fact("wal-damaged", path, seen, "does not start")
        if not system.directory.mapped(path).size:
            yield Fact("wal-empty", path, "the file has 0 bytes", "does not start; removing the file loses nothing")


def torn_logs(system: RaftDirectory) -> Iterator[Fact]:
    """Write-ahead logs whose last record is incomplete, which is what a kill leaves."""
    for path, wal in system.write_ahead_logs:
        if wal.torn >= 0:
            yield Fact("wal-torn", path, f"the last record, at byte {wal.torn:,}, is incomplete", "drops it without a word")


def missing_names(system: RaftDirectory) -> Iterator[Fact]:
    """No names.dets: the members are not known to the node."""
    path = f"{system.place}/names.dets"
    if not system.directory.exists(path) and system.uids:
        does = "skips the write-ahead log for every queue: older states come back"
        if not uses_long_names(system):
            does = "starts every queue without a leader: none is usable"
        yield Fact("names-missing", path, f"the names of {len(system.uids)} queues are missing", does)


# one queue


def unknown_member(queue: QuorumQueue, state: QueueState) -> Iterator[Fact]:
    """A member that the node does not know, or whose config is missing."""
    system, log = queue.log.system, queue.log
    delivered = sum(message.recovered for message in state.messages)
    if not queue.known and system.names:
        seen = "the member is not in names.dets; the node was killed soon after the queue was declared"
        yield Fact("member-unknown", log.place, seen, "starts the queue empty, under another UID", delivered)
    if not system.directory.exists(f"{log.place}/config"):
        yield Fact("config-missing", f"{log.place}/config", "it is missing", "starts the member without the write-ahead log")


def lost_log(queue: QuorumQueue) -> Iterator[Fact]:
    """Entries that the node had applied and that no file has: a write-ahead log is gone."""
    meta, last = queue.meta, queue.log.last[1]
    if meta is not None and meta.last_applied > last:
        seen = f"the node had applied entry {meta.last_applied}, the last one in the files is {last}"
        yield Fact("wal-missing", queue.log.place, seen, "starts with an older state: acknowledged messages come back, later ones are lost")


def broken_recovery(queue: QuorumQueue, state: QueueState) -> Iterator[Fact]:
    """Entries above the snapshot that are missing or damaged: the queue fails in recovery."""
    delivered = sum(message.recovered for message in state.messages)
    does = "starts, but this queue fails in recovery: clients see no message"
    for first, last in queue.log.gaps:
        yield Fact("entries-missing", queue.log.place, f"entries {first} to {last} of the log are missing", does, delivered)
    above = queue.log.index >= queue.log.first_replayed
    damaged = queue.log.index[above & ~queue.log.valid].tolist()
    if damaged:
        seen = f"{len(damaged)} entries of the log that it must replay are damaged, the first is {damaged[0]}"
        yield Fact("entries-damaged", queue.log.place, seen, does, delivered)


def messages_without_entry(queue: QuorumQueue, state: QueueState) -> Iterator[Fact]:
    """Messages in the state whose entries are missing or damaged: consumers fail when they reach them."""
    lost = [message for message in state.messages if message.row < 0 or not queue.log.valid[message.row]]
    if lost:
        seen = f"{len(lost)} messages of the queue have no readable entry, the first is {lost[0].index}"
        yield Fact("bodies-missing", queue.log.place, seen, "counts them, and closes a consumer with 541 when it reaches one", len(lost))


def closed_consumers(queue: QuorumQueue, state: QueueState) -> Iterator[Fact]:
    """Messages from before 3.13 that 4.3 cannot redeliver: it closes the connection of every consumer that reaches one."""
    head = [message for message in state.messages if message.recovered and message.row >= 0]
    old = [message for message in head if _comes_back(message.state) and _is_old(queue, message.row)]
    if old and state.version < 4:
        seen = f"{len(old)} messages were published before 3.13 and will be redelivered"
        blocked = len(head)
        yield Fact(
            "redelivery-fails", queue.log.place, seen, "4.3 closes the connection of every consumer that reaches one, with 541", blocked
        )


def _comes_back(state: str) -> bool:
    return state in (CHECKED_OUT, "returned")


def _is_old(queue: QuorumQueue, row: int) -> bool:
    return b"basic_message" in queue.log.entry(row).entry[:400]


def repeated_queues(queues: Sequence[QuorumQueue]) -> Iterator[Fact]:
    """Two directories of one queue: the node uses the one in names.dets."""
    seen: dict[tuple[str | None, str], list[QuorumQueue]] = {}
    for queue in queues:
        seen.setdefault(queue.name, []).append(queue)
    for (vhost, name), several in seen.items():
        if len(several) > 1 and vhost is not None:
            used = [queue.log.uid for queue in several if queue.known]
            does = f"uses {used[0]}" if used else "uses neither"
            others = ", ".join(queue.log.uid for queue in several)
            yield Fact("queue-twice", several[0].log.system.place, f"the queue {name!r} of vhost {vhost!r} is there twice: {others}", does)


def facts_of(system: RaftDirectory, *, for_4_3: bool = False) -> list[Fact]:
    """Return all facts about a directory, the gravest first. for_4_3: also what a node of 4.3 makes of an older directory."""
    queues = [QuorumQueue(system.member(uid)) for uid in system.uids]
    found = [*damaged_logs(system), *missing_names(system), *repeated_queues(queues)]
    for queue in queues:
        state = queue.replay()
        found += [
            *unknown_member(queue, state),
            *lost_log(queue),
            *broken_recovery(queue, state),
            *messages_without_entry(queue, state),
        ]
        if for_4_3 and not uses_long_names(system):
            found += closed_consumers(queue, state)
    return [*found, *torn_logs(system)]
