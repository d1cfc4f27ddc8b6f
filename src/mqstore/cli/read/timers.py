"""`timers`: the messages with an arbitrary delay, when they are due, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from mqstore.cli.common.arguments import Config, Store, open_store, option, verb
from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import OnlyTopic
from mqstore.table.formatting import count, moment, size

_NO_TIMERS = (
    "it has no timer wheel; a queue with a message TTL and a dead-letter exchange delays messages, and `mqstore messages` lists them"
)


def timers(
    out: Output,
    store: Store,
    topic: OnlyTopic = None,
    state: Annotated[
        str | None, option("--state", metavar="STATE", help="Only messages in this state: waiting, delivered, recalled or unknown.")
    ] = None,
    config: Config = None,
) -> int:
    """List messages with an arbitrary delay (timer wheel and RocksDB timers of 5.x): when each is due, and whether it waits.

    State: waiting, delivered (to its topic), recalled (by its producer), or unknown (what shows it is missing or not read). The
    physical offset is that of the record that waits in topic rmq_sys_wheel_timer. Messages with a delay level are in topic
    SCHEDULE_TOPIC_XXXX instead.
    """
    from mqstore.errors import UsageError
    from mqstore.rocketmq.store.timers import TIMER_NAMES, Timers

    if state not in (None, "waiting", "delivered", "recalled", "unknown"):
        raise UsageError(f"--state {state} is not a state; the states are waiting, delivered, recalled and unknown")
    opened = open_store(store, config)
    opened.require_directory_for("the list of timer messages")
    found = Timers(opened)
    states: Counter[str] = Counter()

    def rows() -> Iterator[dict[str, Any]]:
        for row in found.rows():
            if topic in (None, row.topic) and state in (None, row.state):
                states[row.state] += 1
                yield row._asdict()

    if out.is_text:
        columns = (
            Column("due (UTC)"),
            Column("topic", flexible=True),
            Column("queue", right=True),
            Column("physical offset", right=True),
            Column("size", right=True, drop=2),
            Column("unique key", flexible=True, drop=1),
            Column("state", style=lambda text: "33" if text == "unknown" else "2" if text in ("delivered", "recalled") else ""),
        )
        out.table(columns, (_cells(row) for row in rows()))
        by_state = ", ".join(f"{number:,} {name}" for name, number in sorted(states.items()))
        total = sum(states.values())
        out.line(f"{count(total, 'message')}: {by_state}" if total else "no messages with an arbitrary delay", style="bold")
    else:
        out.records(TIMER_NAMES, rows())
    for note in found.notes():
        out.note(note)
    return 1 if found.unread or found.file_findings else 0


def _cells(row: dict[str, Any]) -> list[str]:
    queue = "-" if row["queue_id"] is None else str(row["queue_id"])
    return [
        moment(row["due_time"]), row["topic"], queue, str(row["physical_offset"]), size(row["size"]), row["uniq_key"] or "-", row["state"],
    ]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="timers /backup/store --state waiting", panel="Read", rabbitmq=_NO_TIMERS)(timers)
