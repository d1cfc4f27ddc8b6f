"""RabbitMQ queues with their counts, the messages of one queue with their states, and those of all queues, or of some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from mqstore.console.basket import InQueue
from mqstore.console.bodies import decode_head
from mqstore.console.drawing import segment_maps
from mqstore.console.page import PageRequest, PageRoute, address
from mqstore.console.stores import OpenStore
from mqstore.errors import NotFoundError, UsageError
from mqstore.rabbitmq.get import indexed_with_id
from mqstore.rabbitmq.store import listing, queue_states
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.queue_states import QueueDepth, count_entries, entry_page, page_of_rows, queue_depths, state_numbers
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import shorten

SHOWN = 200
MAPS = 24  # segments that are mapped
BEGINNING = 80  # characters of a body that a list shows
_COLUMNS = ("vhost", "queue", "priority_level", "seq_id", "pos", "size", "exchange", "routing_keys", "payload", "verdict")


def queues(request: PageRequest) -> Response:
    opened = request.store
    store = opened.rabbitmq
    wanted, start = request.text("name").lower(), request.number("from") or 0
    rows = opened.cached("queues", lambda: list(listing.queue_rows(store)))
    found = [row for row in rows if wanted in row["queue"].lower() or wanted in (row["vhost"] or "").lower()]
    return request.show(
        "queues.html",
        store=opened,
        section="queues",
        vhosts=store.vhosts,
        found=found[start : start + SHOWN],
        why=listing.NOT_RECOVERED,
        sums=listing.totals(rows),
        start=start,
        total=len(found),
        size=SHOWN,
        wide=True,
    )


def queue(request: PageRequest) -> Response:
    opened = request.store
    vhost, name, state = request.text("vhost"), request.text("queue"), request.text("state")
    if state not in ("", *listing.STATES):
        raise UsageError(f"there is no state {state!r}; the states are {', '.join(listing.STATES)}")
    directories = opened.rabbitmq.queue(vhost, name)
    part = entry_page(opened.rabbitmq, vhost, name, state, SHOWN, request.number("level"), request.number("seq") or 0)
    counts = opened.cached(("states", vhost, name), lambda: count_entries(opened.rabbitmq, vhost, name))
    refused = any(each.crashes for each in directories) or any(each.refusals for each in opened.rabbitmq.vhosts if each.name == vhost)
    maps, more_maps = opened.cached(("maps", vhost, name), lambda: segment_maps(directories, refused=refused, limit=MAPS))
    for row in part.rows:
        row["place"] = InQueue(opened.number, vhost, name, row["priority_level"], row["seq_id"])
    return request.show(
        "queue.html",
        store=opened,
        section="queues",
        directories=directories,
        crashes=[crash for each in directories for crash in each.crashes],
        part=part,
        maps=maps,
        more_maps=more_maps,
        map_states=queue_states.STATES,
        counts=counts,
        states=listing.STATES,
        state=state,
        total=counts[state] if state else sum(counts.values()),
        vhost=vhost,
        queue=name,
        wide=True,
        basket=request.session.basket if request.session else (),
    )


def by_id(request: PageRequest) -> Response:
    opened = request.store
    wanted = request.text("id")
    found = indexed_with_id(opened.rabbitmq, wanted)
    if found is None:
        raise NotFoundError(
            f"no index entry of this store has message id {wanted}; a version 2 queue keeps ids of small messages elsewhere"
        )
    vhost, queue, level, seq = found
    return request.go(address(f"/stores/{opened.number}/message", vhost=vhost, queue=queue, level=level, seq=seq))


# the messages of all queues


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


def queue_messages(request: PageRequest) -> Response:
    """Show the messages in the order of `messages`: by vhost, queue, priority and position."""
    opened = request.store
    state, wanted, start = request.text("state"), request.text("name").lower(), request.number("from") or 0
    if state not in ("", *queue_states.STATES):
        raise UsageError(f"there is no state {state!r}; the states are {', '.join(reversed(queue_states.STATES))}")
    depths: tuple[QueueDepth, ...] = opened.cached("depths", lambda: queue_depths(opened.rabbitmq))
    found = [depth for depth in depths if wanted in depth.queue.lower() or wanted in depth.vhost.lower()]
    states = [number for number, each in enumerate(queue_states.STATES) if (each == state if state else each != "acknowledged")]
    total = sum(depth.counts[number] for depth in found for number in states)
    names = frozenset((depth.vhost, depth.queue) for depth in found)
    rows: list[dict[str, Any]] = []
    for part in page_of_rows(_rows(opened, names), frozenset(states), start, SHOWN):
        batch = opened.rabbitmq.batch(part, _COLUMNS)
        numbers = state_numbers(part.table).tolist()
        for row, number in zip([] if batch is None else batch.to_pylist(), numbers, strict=True):
            place = InQueue(opened.number, row["vhost"] or "", row["queue"] or "", row["priority_level"], row["seq_id"])
            rows.append(row | {"state": queue_states.STATES[number], "beginning": _beginning(row["payload"]), "place": place})
    return request.show(
        "queuemessages.html",
        store=opened,
        section="messages",
        rows=rows,
        start=start,
        size=SHOWN,
        total=total,
        state=state,
        states=tuple(reversed(queue_states.STATES)),
        sums={each: sum(depth.counts[number] for depth in found) for number, each in enumerate(queue_states.STATES)},
        wide=True,
        basket=request.session.basket if request.session else (),
    )


ROUTES = (
    PageRoute("/stores/{number:int}/queues", queues),
    PageRoute("/stores/{number:int}/queue", queue),
    PageRoute("/stores/{number:int}/queued", by_id),
)
