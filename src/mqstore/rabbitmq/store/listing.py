"""Queues with their counts, and index entries with their state, as `topics`, `queue` and the console show them.

    queue_rows(store)    a row per queue, with the levels of a priority queue combined
    entry_rows(rows)     a row per index entry: ready, delivered, acknowledged, missing, damaged, duplicate or hidden

Format: docs/formats/rabbitmq.md, sections 5 and 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.message_table import MessageRows
    from mqstore.rabbitmq.store.queue import Queue
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rabbitmq.store.vhost import Vhost

__all__ = ["BAD_STATES", "ENTRY_NAMES", "QUEUE_NAMES", "entry_rows", "queue_rows", "vhost_rows"]

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
    "expired",
    "acknowledged",
    "missing",
    "hidden",
    "start",
    "refused",
    "directories",
)
ENTRY_NAMES = (
    "seq_id",
    "priority_level",
    "queue_version",
    "state",
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
BAD_STATES = frozenset({"missing", "damaged", "hidden", "duplicate"})

_FROM_TABLE = tuple(name for name in ENTRY_NAMES if name not in ("state", "delivered", "acknowledged", "index_file", "index_position"))


# queues


def queue_rows(
    store: RabbitMQStore, vhosts: Collection[str] | None = None, queues: Collection[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a row per queue, with the levels of a priority queue combined. messages, bytes: those the broker would recover."""
    for vhost in store.vhosts:
        if vhosts is None or (vhost.name or "") in vhosts:
            yield from vhost_rows(vhost, queues)


def vhost_rows(vhost: Vhost, queues: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of one vhost's queues."""
    levels: dict[str, list[Queue]] = {}
    for found in vhost.queues:
        if queues is None or found.name in queues:
            levels.setdefault(found.name, []).append(found)
    for directories in levels.values():
        yield _queue_row(directories, refused=bool(vhost.refusals or any(each.crashes for each in directories)))


def _queue_row(directories: list[Queue], *, refused: bool) -> dict[str, Any]:
    counts = [each.counts for each in directories]
    spans = [span for each in directories for span in _spans(each)]
    first = directories[0]
    return {
        "vhost": first.vhost,
        "queue": first.name,
        "priority_levels": None if first.priority_level is None else len(directories),
        "queue_version": max(each.version for each in directories),
        "messages": sum(each.ready for each in counts),
        "bytes": sum(each.size for each in counts),
        "min_seq_id": min((span.low for span in spans if span.low is not None), default=None),
        "max_seq_id": max((span.high for span in spans if span.high is not None), default=None),
        "next_seq_id": None if first.priority_level is not None else first.next_seq,
        "not_recovered": sum(span.not_recovered for span in spans),
        "transient": sum(each.transient for each in counts),
        "expired": sum(each.expired for each in counts),
        "acknowledged": sum(each.acked for each in counts),
        "missing": sum(each.missing_body for each in counts),
        "hidden": sum(each.hidden for each in counts),
        "start": first.start.name,
        "refused": refused,
        "directories": [each.directory for each in directories],
    }


@dataclass(frozen=True, slots=True)
class _SegmentSpan:
    """The lowest and highest sequence id that the broker would recover from one segment, and how many messages it would not."""

    low: int | None
    high: int | None
    not_recovered: int


def _spans(queue: Queue) -> Iterator[_SegmentSpan]:
    for found in queue.entry_tables():
        seq = found.entries["seq"][found.kept]
        left = int(((found.entries["seen"] != 0) & ~found.kept).sum())
        yield _SegmentSpan(int(seq.min()) if len(seq) else None, int(seq.max()) if len(seq) else None, left)


# entries


def entry_rows(rows: MessageRows) -> Iterator[dict[str, Any]]:
    """Yield index entries with their state, as `queue` lists them."""
    from mqstore.rabbitmq.format.index_v1 import ACKED, DELIVERED
    from mqstore.rabbitmq.store import message_table
    from mqstore.rabbitmq.store.queue import CONSUMED, DAMAGED, DUPLICATE, UNREACHABLE

    entries = rows.table.entries
    special = {CONSUMED: "acknowledged", UNREACHABLE: "missing", DAMAGED: "damaged", DUPLICATE: "duplicate"}
    table = message_table.build_batch(rows, _FROM_TABLE, None).to_pylist()
    files = [name for name, _ in rows.table.sources]
    columns = zip(
        table, rows.table.known.tolist(), entries["state"].tolist(), entries["seen"].tolist(), rows.table.index_file.tolist(),
        entries["record"].tolist(), strict=True,
    )  # fmt: skip
    for row, known, state, seen, file, record in columns:
        delivered, acked = bool(state & DELIVERED), bool(state & ACKED)
        plain = "hidden" if not seen else "delivered" if delivered else "ready"
        row |= {
            "state": special.get(known, plain),
            "delivered": delivered,
            "acknowledged": acked,
            "index_file": files[file],
            "index_position": record,
        }
        yield {name: row[name] for name in ENTRY_NAMES}
