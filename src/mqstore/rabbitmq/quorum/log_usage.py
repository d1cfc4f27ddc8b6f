r"""What the logs of quorum queues take on disk: by member, and by file with the members that hold it.

    live       entries whose message is still in the queue
    dead       all other entries: messages that have left it, settles and other commands, entries that later ones replace

A write-ahead log is deleted when every member's entries in it are in segments, so that all of them hold it. A segment is deleted when no
entry in it is needed: up to 4.2 the oldest message of the queue holds everything after it, from 4.3 on a message holds its own segment
alone. So one message that is never acknowledged may hold thousands of dead entries: `held_dead`.

Format: docs/formats/rabbitmq-quorum.md, sections 2 to 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage
from mqstore.rabbitmq.quorum.queue import QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import SEGMENT, WAL, RaftDirectory, raft_systems
from mqstore.rabbitmq.quorum.rules import NEWEST, RULES

DELETED = "of deleted queues"
SNAPSHOT = "snapshot"
_KINDS = {"wal": WAL, "segment": SEGMENT, "compacting": SEGMENT, "snapshot.dat": SNAPSHOT}  # by the end of the name


@dataclass(frozen=True, slots=True)
class MemberUsage:
    """One member. messages: in the queue; entries: of its log. bytes: of its entries; of them live_bytes are those of the messages.

    wal_bytes, segment_bytes: the same bytes by location; snapshot_bytes: of files. held_dead: dead entries that messages hold. oldest:
    index of the oldest message; state, consumer: of that message.
    """

    vhost: str | None
    queue: str
    messages: int
    bytes: int
    live_bytes: int
    entries: int
    live_entries: int
    wal_bytes: int
    segment_bytes: int
    snapshot_bytes: int
    oldest: int | None
    held_dead: int
    state: str | None
    consumer: str | None
    place: str

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class LogUsage:
    """One file: `wal`, `segment` or `snapshot`. entries: records in it, live: of these, those with a message of a queue.

    queues: the number of entries by queue, as `vhost: queue`.
    """

    file: str
    kind: str
    bytes: int
    entries: int = 0
    live_entries: int = 0
    live_bytes: int = 0
    queues: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class QuorumUsage:
    """The logs of a node. members: the largest first; logs: the files, the largest first; damage: of what was read."""

    members: tuple[MemberUsage, ...] = ()
    logs: tuple[LogUsage, ...] = ()
    damage: tuple[Damage, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(log.bytes for log in self.logs)

    @property
    def live_bytes(self) -> int:
        return sum(log.live_bytes for log in self.logs)

    @property
    def messages(self) -> int:
        return sum(member.messages for member in self.members)


def quorum_usage(directory: ReadOnlyDirectory) -> QuorumUsage:
    """Count the logs of a node's data directory. Every queue is replayed."""
    members: list[MemberUsage] = []
    logs: list[LogUsage] = []
    damage: list[Damage] = []
    for system in raft_systems(directory, "quorum"):
        files = _files(system)
        names: dict[bytes, str] = {}
        for uid in system.uids:
            queue = QuorumQueue(system.member(uid))
            names[uid.encode("latin-1", "replace")] = _title(queue)
            members.append(_member(queue, files))
            damage += (*queue.log.damage, *queue.damage)
        for path, wal in system.write_ahead_logs:
            for logged, rows in wal.rows.items():
                _add(files[path], names.get(logged, DELETED), len(rows))
        logs += files.values()
        damage += system.damage
    return QuorumUsage(
        tuple(sorted(members, key=lambda each: (-each.bytes, each.vhost or "", each.queue, each.place))),
        tuple(sorted(logs, key=lambda log: (-log.bytes, log.file))),
        tuple(dict.fromkeys(damage)),
    )


def _title(queue: QuorumQueue) -> str:
    vhost, name = queue.name
    return f"{'?' if vhost is None else vhost}: {name}"


def _add(log: LogUsage, queue: str, entries: int) -> None:
    log.entries += entries
    log.queues[queue] = log.queues.get(queue, 0) + entries


def _files(system: RaftDirectory) -> dict[str, LogUsage]:
    """Return the files of a system that hold entries or states, by path, without their entries."""
    found = {}
    for path, entry in system.directory.walk(system.place):
        kind = _KINDS.get(path.rpartition("." if not path.endswith("/snapshot.dat") else "/")[2])
        if kind is not None and not entry.is_link:
            found[path] = LogUsage(path, kind, entry.size)
    return found


def _member(queue: QuorumQueue, files: dict[str, LogUsage]) -> MemberUsage:
    """Count one member, and add its segments and its messages to the files."""
    log, state = queue.log, queue.replay()
    live = np.zeros(len(log), np.bool_)
    live[[message.row for message in state.messages if message.row >= 0]] = True
    wal_bytes, beside = 0, 0
    for path, rows in log.by_file():
        file, kept = files[path], rows[live[rows]]
        file.live_entries += len(kept)
        file.live_bytes += int(log.lengths[kept].sum())
        beside += len(rows) - len(kept) if len(kept) else 0
        if file.kind == WAL:
            wal_bytes += int(log.lengths[rows].sum())
        else:
            _add(file, _title(queue), len(rows))
    sparse = RULES[min(state.version, NEWEST)].sparse
    oldest = min((message for message in state.messages if message.row >= 0), key=lambda message: message.index, default=None)
    after = 0 if oldest is None else int(np.count_nonzero(~live[oldest.row :]))
    vhost, name = queue.name
    return MemberUsage(
        vhost=vhost,
        queue=name,
        messages=state.total,
        bytes=log.size,
        live_bytes=int(log.lengths[live].sum()),
        entries=len(log),
        live_entries=int(live.sum()),
        wal_bytes=wal_bytes,
        segment_bytes=log.size - wal_bytes,
        snapshot_bytes=sum(file.bytes for path, file in files.items() if file.kind == SNAPSHOT and path.startswith(f"{log.place}/")),
        oldest=None if oldest is None else oldest.index,
        held_dead=beside if sparse else after,
        state=None if oldest is None else oldest.state,
        consumer=None if oldest is None else oldest.consumer,
        place=log.place,
    )
