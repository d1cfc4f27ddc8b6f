"""RabbitMQ: the messages of all queues, or of some, each with its state, route and the beginning of its body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from mqstore.console.basket import InQueue
from mqstore.console.bodies import decode_head
from mqstore.console.page import PageRequest
from mqstore.console.queue_states import STATES, QueueDepth, page_of_rows, queue_depths, state_numbers
from mqstore.console.stores import OpenStore
from mqstore.errors import UsageError
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import shorten

SHOWN = 200
BEGINNING = 80  # characters of a body that a list shows
_COLUMNS = ("vhost", "queue", "priority_level", "seq_id", "pos", "size", "exchange", "routing_keys", "payload", "verdict")


def _rows(opened: OpenStore, names: frozenset[tuple[str, str]]) -> Iterator[MessageRows]:
    store = opened.rabbitmq
    selection = QueueSelection(
        vhosts=frozenset(vhost for vhost, _ in names), queues=frozenset(queue for _, queue in names), everything=True
    )
    for rows in store.rows(selection) if names else ():
        if (rows.vhost or "", rows.queue or "") in names:
            yield rows


def _beginning(payload: bytes | None) -> str | None:
    """Return the first characters of a body on one line; None for a body that is not text."""
    if payload is None:
        return ""
    text = decode_head(payload[: 4 * BEGINNING], cut=len(payload) > 4 * BEGINNING)
    return None if text is None else shorten(" ".join(text.split()), BEGINNING)


def by_queue(request: PageRequest) -> Response:
    """Show the messages in the order of `messages`: by vhost, queue, priority and position."""
    opened = request.store
    state, wanted, start = request.text("state"), request.text("name").lower(), request.number("from") or 0
    if state not in ("", *STATES):
        raise UsageError(f"there is no state {state!r}; the states are {', '.join(reversed(STATES))}")
    depths: tuple[QueueDepth, ...] = opened.cached("depths", lambda: queue_depths(opened.rabbitmq))
    found = [depth for depth in depths if wanted in depth.queue.lower() or wanted in depth.vhost.lower()]
    states = [number for number, each in enumerate(STATES) if (each == state if state else each != "acknowledged")]
    total = sum(depth.counts[number] for depth in found for number in states)
    names = frozenset((depth.vhost, depth.queue) for depth in found)
    rows: list[dict[str, Any]] = []
    for part in page_of_rows(_rows(opened, names), frozenset(states), start, SHOWN):
        batch = opened.rabbitmq.batch(part, _COLUMNS)
        numbers = state_numbers(part.table).tolist()
        for row, number in zip([] if batch is None else batch.to_pylist(), numbers, strict=True):
            place = InQueue(opened.number, row["vhost"] or "", row["queue"] or "", row["priority_level"], row["seq_id"])
            rows.append(row | {"state": STATES[number], "beginning": _beginning(row["payload"]), "place": place})
    return request.show(
        "queuemessages.html",
        store=opened,
        section="messages",
        rows=rows,
        start=start,
        size=SHOWN,
        total=total,
        state=state,
        states=tuple(reversed(STATES)),
        sums={each: sum(depth.counts[number] for depth in found) for number, each in enumerate(STATES)},
        wide=True,
        basket=request.session.basket if request.session else (),
    )
