r"""Several members of one queue together: directories of several nodes, or several directories of one.

A cluster that has lost its majority has no leader, and its queues cannot be used. The last entry decides which member to recover from:
the one with the highest (term, index) has everything that a majority has accepted, because no leader could have been elected without it.
The other members may still have messages that it has not: entries that were never accepted, or that its disk has lost.

    >>> first, second = Standing("a", 2, 90, 80, 50), Standing("b", 3, 70, 70, 60)
    >>> furthest([first, second])
    1

Format: docs/formats/rabbitmq-quorum.md, section 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.quorum.queue import QueueState, QuorumMessage, QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import raft_systems
from mqstore.table.formatting import count
from mqstore.threads import TaskThreads


@dataclass(frozen=True, slots=True)
class Standing:
    """How far one member is. name: of its node's directory, as given. last_term, last_index: of the last entry.

    last_applied: from meta.dets, -1 if unknown. snapshot: index, -1 without one. gaps: number of entries that its log lacks.
    messages: that it would deliver; uncertain: what is not known of it, as sentences.
    """

    name: str
    last_term: int
    last_index: int
    last_applied: int = -1
    snapshot: int = -1
    gaps: int = 0
    messages: int = 0
    uncertain: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedMessage:
    """A message that at least one member has. members: numbers of those in whose state it is.

    entries: of those whose log has its entry. gone: of those that have let it go, though they had it.
    """

    index: int
    term: int
    members: tuple[int, ...]
    entries: tuple[int, ...]
    gone: tuple[int, ...]

    @property
    def only_on(self) -> int | None:
        """The one member that has it and from which alone it can be recovered, or None."""
        return self.members[0] if len(self.members) == len(self.entries) == 1 and not self.gone else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The members of a queue, compared. best: number of the member to recover from.

    held: the index up to which a majority of the cluster has the entries; None if fewer than a majority of the members are given.
    conflicts: indexes with different entries. absent: nodes of the cluster whose member is not given.
    """

    standings: tuple[Standing, ...]
    best: int
    held: int | None
    conflicts: tuple[int, ...]
    messages: tuple[SharedMessage, ...]
    absent: tuple[str, ...] = ()

    @property
    def unique(self) -> tuple[SharedMessage, ...]:
        """The messages that only one member has."""
        return tuple(message for message in self.messages if message.only_on is not None)

    @property
    def not_on_best(self) -> tuple[SharedMessage, ...]:
        """The messages that recovery from the best member would lose: others have them, and it has not let them go."""
        return tuple(message for message in self.messages if self.best not in message.members and self.best not in message.gone)

    @property
    def sentences(self) -> list[str]:
        """What an operator must know before recovering from the best member."""
        best = self.standings[self.best].name
        said = []
        if self.absent:
            said.append(f"what the member of {', '.join(self.absent)} has is not known")
        if self.held is not None and self.held < self.standings[self.best].last_index:
            said.append(
                f"of the members given a majority has the entries up to {self.held}; later ones are on {best}, and may be uncommitted"
            )
        if self.not_on_best:
            lacking = count(len(self.not_on_best), "message")
            said.append(f"{best} lacks {lacking} that others have, the first in entry {self.not_on_best[0].index}")
        if self.conflicts:
            said.append(f"members have different entries from {self.conflicts[0]} on: those of {best} have the higher term at their end")
        return said


COLUMNS = (
    "vhost",
    "queue",
    "node",
    "best",
    "last_term",
    "last_index",
    "last_applied",
    "snapshot",
    "gaps",
    "messages",
    "unique",
    "missing",
    "conflicts",
    "held",
    "absent",
    "unique_indexes",
    "missing_indexes",
    "uncertain",
)


def member_rows(vhost: str | None, queue: str, comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row of COLUMNS for each member, in the order in which they were given.

    unique: messages that only this member has; missing: those that others have and that it has not let go. None: not known.
    """
    rows = []
    for number, standing in enumerate(comparison.standings):
        unique = [message.index for message in comparison.unique if message.only_on == number]
        missing = [message.index for message in comparison.messages if number not in message.members and number not in message.gone]
        rows.append(
            {
                "vhost": vhost,
                "queue": queue,
                "node": standing.name,
                "best": number == comparison.best,
                "last_term": standing.last_term,
                "last_index": standing.last_index,
                "last_applied": None if standing.last_applied < 0 else standing.last_applied,
                "snapshot": None if standing.snapshot < 0 else standing.snapshot,
                "gaps": standing.gaps,
                "messages": standing.messages,
                "unique": len(unique),
                "missing": len(missing),
                "conflicts": len(comparison.conflicts),
                "held": comparison.held,
                "absent": list(comparison.absent),
                "unique_indexes": unique,
                "missing_indexes": missing,
                "uncertain": list(standing.uncertain),
            }
        )
    return rows


def furthest(standings: Sequence[Standing]) -> int:
    """Return the number of the member with the highest last entry; of several the one that lacks least, then has applied most."""
    return max(
        range(len(standings)),
        key=lambda number: (
            (standings[number].last_term, standings[number].last_index),
            -standings[number].gaps,
            standings[number].last_applied,
            -number,
        ),
    )


def members_by_queue(nodes: Iterable[tuple[str, ReadOnlyDirectory]]) -> dict[tuple[str | None, str], list[tuple[str, QuorumQueue]]]:
    """Return the members of every queue in the data directories of some nodes, by vhost and name.

    nodes: a name for each directory. Of one that has the queues of several nodes the names of their members say of which.
    """
    members: dict[tuple[str | None, str], list[tuple[str, QuorumQueue]]] = {}
    for name, directory in nodes:
        systems = raft_systems(directory, "quorum")
        for system in systems:
            for uid in system.uids:
                queue = QuorumQueue(system.member(uid))
                members.setdefault(queue.name, []).append((f"{name}/{system.place}" if len(systems) > 1 else name, queue))
    return members


def compare(members: Sequence[tuple[str, QuorumQueue]]) -> Comparison:
    """Compare the members of one queue. All are replayed at the same time."""
    with TaskThreads(len(members)) as threads:
        states = list(threads.map(QuorumQueue.replay, [queue for _, queue in members]))
    standings = [_standing(name, queue, state) for (name, queue), state in zip(members, states, strict=True)]
    conflicts = _conflicts([queue for _, queue in members])
    queues = [queue for _, queue in members]
    given = {queue.log.system.place.rpartition("/")[2] for queue in queues}
    absent = dict.fromkeys(node for queue in queues for _, node in queue.cluster if node not in given)
    return Comparison(tuple(standings), furthest(standings), _held(queues), conflicts, _union(members, states), tuple(absent))


def _standing(name: str, queue: QuorumQueue, state: QueueState) -> Standing:
    term, index = queue.log.last
    meta, base = queue.meta, queue.log.base
    lacking = sum(last - first + 1 for first, last in queue.log.gaps)
    return Standing(
        name,
        term,
        index,
        -1 if meta is None else meta.last_applied,
        -1 if base is None else base.snapshot.index,
        lacking,
        sum(message.recovered for message in state.messages),
        state.uncertain,
    )


def _conflicts(queues: Sequence[QuorumQueue]) -> tuple[int, ...]:
    """Return the indexes that entries of different terms have."""
    index = np.concatenate([queue.log.index for queue in queues])
    term = np.concatenate([queue.log.term for queue in queues])
    order = np.lexsort((term, index))
    index, term = index[order], term[order]
    differs = (index[1:] == index[:-1]) & (term[1:] != term[:-1])
    return tuple(np.unique(index[1:][differs]).tolist())


def _held(queues: Sequence[QuorumQueue]) -> int | None:
    """Return the index up to which a majority of the cluster has the entries of the member that is furthest."""
    size = max(len(queue.cluster) for queue in queues)
    majority = size // 2 + 1
    if len(queues) < majority:
        return None
    # a member has everything up to its last entry of the term that the furthest one has there
    lasts = []
    best = max(queues, key=lambda queue: queue.log.last)
    for queue in queues:
        same = queue.log.index[np.isin(queue.log.index, best.log.index)]
        rows = np.searchsorted(queue.log.index, same)
        others = np.searchsorted(best.log.index, same)
        equal = same[queue.log.term[rows] == best.log.term[others]]
        base = -1 if queue.log.base is None else queue.log.base.snapshot.index
        lasts.append(max(int(equal[-1]) if len(equal) else -1, base))
    return sorted(lasts, reverse=True)[majority - 1]


def _union(members: Sequence[tuple[str, QuorumQueue]], states: Sequence[QueueState]) -> tuple[SharedMessage, ...]:
    held: dict[tuple[int, int], list[int]] = {}
    for number, ((_, queue), state) in enumerate(zip(members, states, strict=True)):
        for message in state.messages:
            held.setdefault((message.index, _term(queue, message)), []).append(number)
    shared = []
    for (index, term), numbers in sorted(held.items()):
        entries, gone = [], []
        for number, (_, queue) in enumerate(members):
            row = queue.log.row(index)
            if row >= 0 and (term < 0 or int(queue.log.term[row]) == term):
                entries.append(number)
            base = queue.log.base
            # what the state of a snapshot does not have any more has left the queue before it
            passed = base is not None and index <= base.snapshot.index
            if number not in numbers and (passed or queue.departures.of(index) is not None):
                gone.append(number)
        shared.append(SharedMessage(index, term, tuple(numbers), tuple(entries), tuple(gone)))
    return tuple(shared)


def _term(queue: QuorumQueue, message: QuorumMessage) -> int:
    return int(queue.log.term[message.row]) if message.row >= 0 else -1
