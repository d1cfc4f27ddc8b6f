"""The quorum queues of a node, read as a whole: counts, findings, what cannot be known, and what the node makes of each.

`verify`, `diagnose` and the summaries take their figures from here. Every log is replayed, and the entry of every message in a queue is
proved or decoded. Of a queue stays what is counted here; its messages do not.

    unread     messages in the queue whose content cannot be read
    facts      what the node does with what it finds (`facts`)

Format: docs/formats/rabbitmq-quorum.md, sections 9 to 11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import CheckCounts, Damage, Kind
from mqstore.rabbitmq.quorum.facts import Fact, delivered_indexes, facts_of_directory, facts_of_queue
from mqstore.rabbitmq.quorum.queue import QueueState, QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import RaftDirectory, raft_systems
from mqstore.rabbitmq.quorum.rows import count_unread
from mqstore.table.formatting import count

ROOT = "quorum"


@dataclass(frozen=True, slots=True)
class ExaminedQueue:
    """One member of a queue. vhost: None if its name is not known; then queue is the UID. place: its directory.

    ready, unacknowledged, total: as the restarted node lists them. recovered: messages that it would deliver if nothing were damaged;
    redelivered: of these, those with the mark; delivered: those that it does deliver. bytes: of them, as the machine counts them.
    version: of the machine. members: of the cluster. uncertain: what cannot be known, without a full stop.
    """

    vhost: str | None
    queue: str
    place: str
    ready: int
    unacknowledged: int
    total: int
    recovered: int
    redelivered: int
    delivered: int
    bytes: int
    unread: int
    entries: int
    version: int
    members: tuple[tuple[str, str], ...]
    uncertain: tuple[str, ...]
    facts: tuple[Fact, ...]
    damage: tuple[Damage, ...]

    def __str__(self) -> str:
        return f"the quorum queue in {self.place}" if self.vhost is None else f"quorum queue {self.queue!r} of vhost {self.vhost!r}"


@dataclass(frozen=True, slots=True)
class ExaminedNode:
    """The quorum queues below one `quorum/<node>`. facts, damage: of the files that all share. counts: what was checked."""

    place: str
    counts: CheckCounts
    queues: tuple[ExaminedQueue, ...]
    facts: tuple[Fact, ...]
    damage: tuple[Damage, ...]


def examine(directory: ReadOnlyDirectory) -> list[ExaminedNode]:
    """Read the quorum queues of a node's data directory."""
    nodes = [_node(system) for system in raft_systems(directory, ROOT)]
    return [replace(node, facts=(*node.facts, *_elsewhere(node, nodes[:number]))) for number, node in enumerate(nodes)]


def _node(system: RaftDirectory) -> ExaminedNode:
    checked = CheckCounts()
    try:
        for _, entry in system.directory.walk(system.place):
            checked.files += 1
            checked.bytes += entry.size
    except CannotOpenError as error:
        system.damage.append(Damage(system.place, 0, 0, Kind.UNREADABLE, str(error)))
    queues = []
    names: dict[tuple[str | None, str], list[tuple[bool, str]]] = {}
    for uid in system.uids:
        queue = QuorumQueue(system.member(uid))
        queues.append(_queue(queue, queue.replay()))
        names.setdefault(queue.name, []).append((queue.known, uid))
    facts = [*facts_of_directory(system), *_repeated(system, names)]
    checked.records += sum(queue.entries for queue in queues)
    checked.messages += sum(queue.total for queue in queues)
    queues.sort(key=lambda queue: (queue.vhost or "", queue.queue, queue.place))
    return ExaminedNode(system.place, checked, tuple(queues), tuple(facts), tuple(system.damage))


def _queue(queue: QuorumQueue, state: QueueState) -> ExaminedQueue:
    recovered = [message for message in state.messages if message.recovered]
    vhost, name = queue.name
    return ExaminedQueue(
        vhost=vhost,
        queue=name,
        place=queue.log.place,
        ready=state.ready,
        unacknowledged=state.unacknowledged,
        total=state.total,
        recovered=len(recovered),
        redelivered=sum(message.redelivered for message in recovered),
        delivered=len(delivered_indexes(queue, state)),
        bytes=sum(message.size for message in recovered),
        unread=count_unread(queue, state.messages),
        entries=len(queue.log),
        version=state.version,
        members=state.members,
        uncertain=tuple(sentence.removesuffix(".") for sentence in state.uncertain),
        facts=tuple(facts_of_queue(queue, state)),
        damage=state.damage,
    )


def _repeated(system: RaftDirectory, names: dict[tuple[str | None, str], list[tuple[bool, str]]]) -> Iterator[Fact]:
    """Two directories of one queue: the node uses the one in names.dets."""
    for (vhost, name), members in names.items():
        if len(members) > 1 and vhost is not None:
            used = [uid for known, uid in members if known]
            others = ", ".join(uid for _, uid in members)
            seen = f"queue {name!r} of vhost {vhost!r} has {len(members)} directories: {others}"
            yield Fact("queue-twice", system.place, seen, f"uses {used[0]}" if used else "uses neither")


def _elsewhere(node: ExaminedNode, others: Sequence[ExaminedNode]) -> Iterator[Fact]:
    """Queues that are below another node's name, too: after a node was renamed, or directories of several were put together."""
    here = {(queue.vhost, queue.queue): queue for queue in node.queues if queue.vhost is not None}
    for other in others:
        both = [here[name] for name in dict.fromkeys((queue.vhost, queue.queue) for queue in other.queues) if name in here]
        if both:
            more = f" and {count(len(both) - 1, 'other queue')}" if len(both) > 1 else ""
            seen = f"{both[0]}{more} {'are' if more else 'is'} also in {other.place}"
            yield Fact("queue-twice", node.place, seen, "uses only the directory with its name")
