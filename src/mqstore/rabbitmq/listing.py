"""Queues with their counts, and index entries with their state, as `topics`, `queue` and the console show them.

    queue_rows(store)    a row per queue, with the levels of a priority queue combined
    totals(rows)         the sums of such rows
    entry_rows(rows)     a row per index entry: ready, delivered, acknowledged, missing, damaged, duplicate, hidden or unfound

Some queues only the node's metadata knows: empty classic queues without a directory, quorum queues and streams without files here, and
queues of types that are not read. 3.8 and 3.9 create the directory of a queue with its first message on disk.

Format: docs/formats/rabbitmq.md, sections 5 and 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mqstore.rabbitmq.definitions.document import queue_type
from mqstore.rabbitmq.definitions.metadata import CLASSIC, QueueDefinition
from mqstore.rabbitmq.erlang.terms import text_of
from mqstore.rabbitmq.format.index_v1 import ACKED, DELIVERED
from mqstore.rabbitmq.format.names import queue_directory, vhost_directory
from mqstore.rabbitmq.quorum.facts import FAILING
from mqstore.rabbitmq.store import message_table
from mqstore.rabbitmq.store.fate import FATES, HIDDEN, UNFOUND, Fates
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.queue import CONSUMED, DAMAGED, DUPLICATE, UNREACHABLE, Queue
from mqstore.rabbitmq.store.stated_parts import MissingQueue
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.table.columns import CLASSIC as CLASSIC_TYPE
from mqstore.table.columns import QUORUM, STREAM
from mqstore.table.formatting import count

QUEUE_NAMES = (
    "vhost",
    "queue",
    "priority_levels",
    "queue_version",
    "messages",
    "bytes",
    "min_seq_id",
    "max_seq_id",
    "next_seq_id",
    "not_recovered",
    "transient",
    "lost",
    "waiting",
    "expired",
    "acknowledged",
    "missing",
    "damaged",
    "hidden",
    "repeated",
    "unfound",
    "start",
    "refused",
    "directories",
    "type",
    "ready",
    "unacknowledged",
    "total",
    "first_offset",
    "last_offset",
    "segments",
    "consumers",
    "publishers",
)
ENTRY_NAMES = (
    "seq_id",
    "priority_level",
    "queue_version",
    "state",
    "fate",
    "recovered",
    "pos",
    "delivered",
    "acknowledged",
    "msg_id",
    "size",
    "persistent",
    "expiry_us",
    "redelivered",
    "location",
    "index_file",
    "index_position",
    "store_file",
    "position",
)
NOT_READ = "not read"
STATES = ("ready", "delivered", "acknowledged", "missing", "damaged", "duplicate", "hidden", "unfound")  # of an index entry
BAD_STATES = frozenset({"missing", "damaged", "hidden", "duplicate", "unfound"})

# columns of a queue whose sum is `not_recovered`, as a person reads them
NOT_RECOVERED = {
    "transient": "transient",
    "missing": "missing",
    "damaged": "damaged",
    "hidden": "after damage",
    "repeated": "repeated",
    "unfound": "that the broker would not find",
    "waiting": "in a queue that would not start",
}

_NO_COUNTS: dict[str, Any] = dict.fromkeys(QUEUE_NAMES)
# of a quorum queue or stream
_REPLAYED = _NO_COUNTS | {"waiting": 0, "acknowledged": 0, "transient": 0, "start": "recovery", "refused": False}
_FROM_TABLE = tuple(
    name for name in ENTRY_NAMES if name not in ("state", "fate", "delivered", "acknowledged", "index_file", "index_position")
)
_PLURAL = {QUORUM: "quorum queues without a member here", STREAM: "streams without files here"}


# queues


def queue_rows(
    store: RabbitMQStore, vhosts: Collection[str] | None = None, queues: Collection[str] | None = None, *, unread: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a row per queue, with the levels of a priority queue combined. Empty queues that have no directory are included.

    messages, bytes: those the broker would recover. not_recovered: all others that are not acknowledged, which are transient, lost, or
    waiting (intact, but the broker would not start their queue). lost: missing, damaged, hidden, repeated or unfound, as `store.fate`
    says. expired: None if no time was given. unread: also quorum queues and streams, and queues without counts, with the start `not read`.
    ready, unacknowledged, total: as the restarted node lists them; those of a stream count its tracking chunks. Of streams: first_offset,
    last_offset, segments, and the consumers that stored an offset and the named publishers, as their last segment has them.
    """
    for vhost in store.vhosts:
        if vhosts is None or (vhost.name or "") in vhosts:
            yield from vhost_rows(vhost, queues, empty_queues(store, vhost))
    rows = (*quorum_rows(store), *stream_rows(store), *map(_unread_row, unread_queues(store))) if unread else ()
    for row in rows:
        if (vhosts is None or row["vhost"] in vhosts) and (queues is None or row["queue"] in queues):
            yield row


def _unread_row(queue: UnreadQueue) -> dict[str, Any]:
    named = {"vhost": queue.vhost, "queue": queue.name, "type": queue.type}
    return _NO_COUNTS | named | {"start": NOT_READ, "refused": False, "directories": []}


def quorum_rows(store: RabbitMQStore) -> Iterator[dict[str, Any]]:
    """Yield a row per quorum queue. messages: that the restarted node delivers; waiting: intact, in a queue that it does not start."""
    for node in store.examined_quorum:
        stopped = any(fact.stops for fact in node.facts)
        for queue in node.queues:
            refused = stopped or any(fact.name in FAILING for fact in queue.facts)
            yield _REPLAYED | {
                "vhost": queue.vhost,
                "queue": queue.queue,
                "messages": queue.delivered,
                "bytes": queue.bytes,
                "not_recovered": queue.total - queue.delivered,
                "lost": 0 if refused else queue.recovered - queue.delivered,
                "waiting": queue.recovered if refused else 0,
                "refused": refused,
                "directories": [queue.place],
                "type": QUORUM,
                "ready": queue.ready,
                "unacknowledged": queue.unacknowledged,
                "total": queue.total,
            }  # fmt: skip


def stream_rows(store: RabbitMQStore) -> Iterator[dict[str, Any]]:
    """Yield a row per stream. messages: that the restarted node keeps; lost: others, and those of damaged chunks; bytes: of its files."""
    for named, examined in store.examined_streams:
        start, stream = examined.node_start(), named.stream
        known = stream.tracking()
        lost = start.lost + examined.unread
        yield _REPLAYED | {
            "vhost": named.vhost,
            "queue": named.queue,
            "messages": start.kept,
            "bytes": stream.bytes,
            "not_recovered": lost,
            "lost": lost,
            "directories": [stream.place],
            "type": STREAM,
            "ready": start.following - start.first,
            "unacknowledged": 0,
            "total": start.following - start.first,
            "first_offset": start.first if start.following > start.first else None,
            "last_offset": start.following - 1 if start.following > start.first else None,
            "segments": len(stream),
            "consumers": [{"name": text_of(name), "offset": offset} for name, offset in sorted(known.offsets.items())],
            "publishers": [
                {"name": text_of(name), "publishing_id": number, "chunk_id": chunk}
                for name, (chunk, number) in sorted(known.sequences.items())
            ],
        }  # fmt: skip


def vhost_rows(vhost: Vhost, queues: Collection[str] | None = None, empty: Iterable[EmptyQueue] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rows of one vhost's queues. empty: those without a directory."""
    levels: dict[str, list[Queue]] = {}
    for directory in vhost.queues:
        if queues is None or directory.name in queues:
            levels.setdefault(directory.name, []).append(directory)
    missing: dict[str, list[MissingQueue]] = {}
    for part in vhost.missing_queues:
        if queues is None or part.queue in queues:
            missing.setdefault(part.queue, []).append(part)
    for directories in levels.values():
        row = _queue_row(directories, refused=vhost.stops(directories[0]))
        yield _with_missing(row, missing.pop(row["queue"], ()))
    for queue in empty:
        if queues is None or queue.name in queues:
            yield _with_missing(_empty_row(queue, vhost), missing.pop(queue.name, ()))
    for name, parts in missing.items():
        levelled = any(part.level is not None for part in parts)
        unnamed = EmptyQueue(vhost.name or "", name, len(parts) if levelled else None, parts[0].version)
        yield _with_missing(_empty_row(unnamed, vhost), parts)


def _with_missing(row: dict[str, Any], parts: Sequence[MissingQueue]) -> dict[str, Any]:
    """Return a row with the messages of directories that are not there."""
    messages = sum(part.messages for part in parts)
    if not messages:
        return row
    versions = {part.version for part in parts} if not row["directories"] else {row["queue_version"]}
    return row | {name: row[name] + messages for name in ("lost", "missing", "not_recovered")} | {"queue_version": max(versions)}


def _empty_row(queue: EmptyQueue, vhost: Vhost) -> dict[str, Any]:
    nothing = ("messages", "bytes", "not_recovered", "lost", "acknowledged", "ready", "unacknowledged", "total", *NOT_RECOVERED)
    terms = vhost.terms.get(queue_directory(queue.vhost, queue.name))
    return _NO_COUNTS | dict.fromkeys(nothing, 0) | {
        "vhost": queue.vhost,
        "queue": queue.name,
        "priority_levels": queue.priority_levels,
        "queue_version": queue.version,
        "next_seq_id": None if queue.priority_levels is not None else 0 if terms is None else terms.next_seq or 0,
        "start": "clean" if vhost.clean else "dirty",
        "refused": bool(vhost.refusals),
        "directories": [],
        "type": CLASSIC_TYPE,
    }  # fmt: skip


def _queue_row(directories: list[Queue], *, refused: bool) -> dict[str, Any]:
    counts = [each.counts for each in directories]
    fates = Fates()
    for each in counts:
        fates.add(each.fates)
    if refused:
        fates.refused, fates.recovered = fates.recovered, 0
    expired = [each.expired for each in counts if each.expired is not None]
    first = directories[0]
    return {
        "vhost": first.vhost,
        "queue": first.name,
        "priority_levels": None if first.priority_level is None else len(directories),
        "queue_version": max(each.version for each in directories),
        "messages": fates.recovered,
        "bytes": 0 if refused else sum(each.size for each in counts),
        "min_seq_id": min((each.min_seq for each in counts if each.min_seq is not None), default=None),
        "max_seq_id": max((each.max_seq for each in counts if each.max_seq is not None), default=None),
        "next_seq_id": None if first.priority_level is not None else first.next_seq,
        "not_recovered": fates.not_recovered,
        "transient": fates.transient,
        "lost": fates.lost,
        "waiting": fates.refused,
        "expired": sum(expired) if expired else None,
        **{name: getattr(fates, name) for name in ("acknowledged", "missing", "damaged", "hidden", "repeated", "unfound")},
        "start": first.start.name,
        "refused": refused,
        "directories": [each.directory for each in directories],
        "type": CLASSIC_TYPE,
        "ready": fates.recovered,
        "unacknowledged": 0,
        "total": fates.recovered,
    }


@dataclass(slots=True)
class StoreTotals:
    """Sums over the queues of a store or a vhost; as in `queue_rows`. expired: None if no time was given."""

    queues: int = 0
    messages: int = 0
    bytes: int = 0
    not_recovered: int = 0
    transient: int = 0
    lost: int = 0
    waiting: int = 0
    acknowledged: int = 0
    expired: int | None = None

    @property
    def sentences(self) -> Iterator[str]:
        """What the messages are that a broker would not recover, one sentence for each reason."""
        if self.lost:
            yield f"{count(self.lost, 'message')} lost: the broker would start without {'it' if self.lost == 1 else 'them'}"
        if self.waiting:
            yield f"{count(self.waiting, 'message')} in queues that the broker would not start"
        if self.transient:
            yield f"{count(self.transient, 'transient message')}, which a broker drops at every start"


def totals(rows: Iterable[dict[str, Any]]) -> StoreTotals:
    """Add up the rows of `queue_rows`: the one source of the sums that `inspect`, `topics` and the console show."""
    sums = StoreTotals()
    for row in rows:
        if row["start"] == NOT_READ:
            continue
        sums.queues += 1
        for name in ("messages", "bytes", "not_recovered", "transient", "lost", "waiting", "acknowledged"):
            setattr(sums, name, getattr(sums, name) + row[name])
        if row["expired"] is not None:
            sums.expired = (sums.expired or 0) + row["expired"]
    return sums


# entries


def entry_rows(rows: MessageRows) -> Iterator[dict[str, Any]]:
    """Yield index entries with their state, as `queue` lists them, and their fate at the next start of the broker."""
    entries = rows.table.entries
    special = {CONSUMED: "acknowledged", UNREACHABLE: "missing", DAMAGED: "damaged", DUPLICATE: "duplicate"}
    table = message_table.build_batch(rows, _FROM_TABLE, None).to_pylist()
    files = [name for name, _ in rows.table.sources]
    columns = zip(
        table, rows.table.known.tolist(), entries["state"].tolist(), rows.table.fate.tolist(), rows.table.index_file.tolist(),
        entries["record"].tolist(), strict=True,
    )  # fmt: skip
    for row, known, state, ends, file, record in columns:
        delivered, acked = bool(state & DELIVERED), bool(state & ACKED)
        plain = FATES[ends] if ends in (HIDDEN, UNFOUND) else "delivered" if delivered else "ready"
        row |= {
            "state": special.get(known, plain),
            "fate": FATES[ends],
            "delivered": delivered,
            "acknowledged": acked,
            "index_file": files[file],
            "index_position": record,
        }
        yield {name: row[name] for name in ENTRY_NAMES}


@dataclass(frozen=True, slots=True)
class EmptyQueue:
    """A classic queue without messages on disk. version: that of its arguments, else that of the other queues of the vhost."""

    vhost: str
    name: str
    priority_levels: int | None
    version: int


@dataclass(frozen=True, slots=True)
class UnreadQueue:
    """A queue without files here: `classic`, of a vhost that is not here, `quorum`, `stream`, or the module of a type of a plugin."""

    vhost: str
    name: str
    type: str

    def __str__(self) -> str:
        kind = {"quorum": "quorum queue", "stream": "stream"}.get(self.type, f"queue of type {self.type}")
        return f"{kind} {self.name!r} of vhost {self.vhost!r}"


def _lasting(store: RabbitMQStore) -> Iterator[QueueDefinition]:
    return (queue for queue in store.definitions.queues if queue.durable and not queue.exclusive)


def empty_queues(store: RabbitMQStore, vhost: Vhost) -> list[EmptyQueue]:
    """Return the durable classic queues of a vhost that have no directory, by name."""
    names = {queue.name for queue in vhost.queues}
    versions = {queue.version for queue in vhost.queues}
    usual = 1 if versions == {1} or (not versions and not vhost.queue_addresses) else 2
    empty = []
    for queue in _lasting(store):
        of, name = queue.names
        if queue.type == CLASSIC and of == vhost.name and name not in names:
            levels = None if queue.priorities is None else queue.priorities + 1
            empty.append(EmptyQueue(of, name, levels, queue.version or usual))
    return sorted(empty, key=lambda queue: queue.name)


def unread_queues(store: RabbitMQStore) -> list[UnreadQueue]:
    """Return the durable queues without files here, classic ones only of vhosts that are not here, and those of types of plugins.

    By vhost and name.
    """
    node = store.node
    whole = node is not None and node.root == store.directory.root
    vhosts = {vhost.directory for vhost in store.vhosts} | {vhost_directory(vhost.name or "") for vhost in store.vhosts}
    read = {(QUORUM, queue.name) for queue in store.quorum_queues} | {(STREAM, (each.vhost, each.queue)) for each in store.streams}
    unread = [
        UnreadQueue(*queue.names, queue_type(queue.type))
        for queue in _lasting(store)
        if queue.type != CLASSIC or (whole and vhost_directory(queue.vhost) not in vhosts)
    ]
    left = (queue for queue in unread if (queue.type, (queue.vhost, queue.name)) not in read)
    return sorted(left, key=lambda queue: (queue.vhost, queue.name))


def unread_parts(store: RabbitMQStore) -> list[str]:
    """Return a phrase for each queue of another type that is not read."""
    others = (queue for queue in unread_queues(store) if queue.type != CLASSIC_TYPE)
    return [f"{queue}: {_PLURAL.get(queue.type, 'such queues')} are not read" for queue in others]
