"""`topics` and `queue` on a RabbitMQ store: the queues with their counts, and the index entries of one with their state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mqstore.cli.common.arguments import Store, ViewName, at_microseconds
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import QueueOptions, TopicsOptions
from mqstore.cli.rabbitmq.store import note_damage, open_rabbitmq
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import count, size

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.queue import Queue


# topics


def topics(out: Output, store: Store, options: TopicsOptions) -> int:
    """List queues: messages and bytes that the broker would recover, sequence ids, and what it would not recover.

    Exit status 1 if messages are missing, a file cannot be read, or the broker would not start a queue.
    """
    import time

    from mqstore.rabbitmq.store.listing import NOT_READ, QUEUE_NAMES, queue_rows, totals

    now = time.time_ns() // 1000 if options.at is None else at_microseconds(options.at)
    opened = open_rabbitmq(store, now=now, names=options.names)
    shown = list(queue_rows(opened, options.vhost, options.queue, unread=True))
    found = (*opened.unread, *opened.definitions.damage)
    if options.view is ViewName.RECOVERED:
        shown = [row for row in shown if not row["refused"]]
    sums = totals(shown)
    bad = bool(sums.lost) or any(row["refused"] for row in shown)
    if not out.is_text:
        out.records(QUEUE_NAMES, shown)
        return 1 if note_damage(out, found) or bad else 0
    columns = (
        Column("vhost", flexible=True),
        Column("queue", flexible=True),
        Column("version", right=True, drop=3),
        Column("messages", right=True),
        Column("bytes", right=True, drop=1),
        Column("seq ids", drop=2),
        Column("not recovered", flexible=True),
        Column("start", style=lambda text: "31" if text == "refused" else ""),
    )
    out.table(columns, (_topic_cells(row, before) for row, before in zip(shown, [None, *shown], strict=False)))
    if not shown:
        unknown = opened.unknown_name(options.vhost, options.queue)
        filtered = f"no queue matches: {unknown}" if unknown else "no queue matches; without filters all are listed"
        out.line(filtered if options.vhost or options.queue else "no queues: this store has no queue directory")
        return 1 if note_damage(out, found) else 0
    vhosts, others = len({row["vhost"] for row in shown}), sum(row["start"] == NOT_READ for row in shown)
    more = f"; {count(others, 'queue')} of other types, not read" if others else ""
    out.line(f"{count(vhosts, 'vhost')}, {count(sums.queues, 'queue')}, {count(sums.messages, 'message')}{more}", style="bold")
    for sentence in sums.sentences:
        out.line(f"{sentence}.")
    for each in opened.vhosts:
        for sentence in each.refusals[:1]:
            out.note(f"the broker would not start vhost {each.name!r}: {sentence}")
    return 1 if note_damage(out, found) or bad else 0


def _topic_cells(row: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    from mqstore.rabbitmq.store.listing import NOT_READ, NOT_RECOVERED

    vhost = "" if before is not None and before["vhost"] == row["vhost"] else row["vhost"] or "?"
    if row["start"] == NOT_READ:
        return [vhost, row["queue"], row["type"], "-", "-", "-", "-", NOT_READ]
    other = [f"{row[name]:,} {title}" for name, title in NOT_RECOVERED.items() if row[name]]
    other += [f"{row['acknowledged']:,} acknowledged"] if row["acknowledged"] else []
    other += [f"{row['expired']:,} expired"] if row["expired"] else []
    return [
        vhost,
        row["queue"] if row["priority_levels"] is None else f"{row['queue']} ({count(row['priority_levels'], 'priority level')})",
        str(row["queue_version"]),
        f"{row['messages']:,}",
        size(row["bytes"]),
        "-" if row["min_seq_id"] is None else f"{row['min_seq_id']} to {row['max_seq_id']}",
        ", ".join(other) or "-",
        "refused" if row["refused"] else row["start"],
    ]


# queue


def queue(out: Output, store: Store, options: QueueOptions) -> int:
    """List the index entries of a queue, by priority level (high first) and sequence id, including acknowledged ones.

    State: ready, delivered (not acknowledged), acknowledged, missing (its message is in no file), damaged, duplicate, hidden (after damage
    that the broker does not read past), unfound (intact, but the broker does not find it). Fate: what becomes of it at the next start.
    Exit status 1 if an entry is in one of the last five states, unless it is transient and the node was killed.
    """
    from mqstore.rabbitmq.store.listing import BAD_STATES, ENTRY_NAMES, entry_rows

    opened = open_rabbitmq(store, names=options.names)
    directories = opened.queue(options.topic, options.queue_id)
    chosen = QueueSelection(
        vhosts=frozenset({options.topic}), queues=frozenset({options.queue_id}), from_seq=options.from_seq, to_seq=options.to_seq,
        everything=True, recovered=True if options.view is ViewName.RECOVERED else None,
    )  # fmt: skip
    states: Counter[str] = Counter()
    bad: Counter[str] = Counter()

    def watched() -> Iterator[dict[str, Any]]:
        left = options.limit
        for rows in opened.rows(chosen):
            if options.priority is not None and rows.priority_level != options.priority:
                continue
            for row in entry_rows(rows):
                if left is not None and left <= 0:
                    return
                left = None if left is None else left - 1
                states[row["state"]] += 1
                if row["state"] in BAD_STATES and row["fate"] != "transient":
                    bad[row["state"]] += 1
                yield row

    if not out.is_text:
        out.records(ENTRY_NAMES, watched())
    else:
        _print_entries(out, directories, watched())
        out.line(", ".join(f"{number:,} {state}" for state, number in sorted(states.items())) or "no entry", style="bold")
    if bad:
        out.note(f"entries that do not point to their message: {', '.join(f'{n:,} {s}' for s, n in sorted(bad.items()))}")
    return 1 if bad else 0


def _print_entries(out: Output, directories: list[Queue], rows: Iterator[dict[str, Any]]) -> None:
    from mqstore.rabbitmq.store.listing import BAD_STATES

    first = directories[0]
    start = {"clean": "as a clean shutdown left it", "terms": "cleanly shut down, in a store that was not", "dirty": "as a crash left it"}
    more = "" if first.priority_level is None else f", {count(len(directories), 'priority level')}"
    out.line(f"vhost {first.vhost}, queue {first.name}: version {first.version}{more}, {start[first.start.name]}")
    columns = [
        Column("seq id", right=True),
        Column("state", style=lambda state: "2" if state == "acknowledged" else "31" if state in BAD_STATES else ""),
        Column("pos", right=True, drop=4),
        Column("size", right=True),
        Column("message id", drop=1),
        Column("message is in", flexible=True, path=True, drop=2),
        Column("at", right=True, drop=3),
    ]
    if first.priority_level is not None:
        columns.insert(0, Column("priority", right=True))
    grid = out.grid(columns)
    for row in rows:
        cells = [
            str(row["seq_id"]),
            row["state"],
            "-" if row["pos"] is None else str(row["pos"]),
            str(row["size"]),
            row["msg_id"] or "-",
            "-" if row["state"] == "missing" else row["store_file"].rpartition("queues/")[2],
            str(row["position"]),
        ]
        grid.add([[str(row["priority_level"]), *cells] if first.priority_level is not None else cells])
    grid.close()
