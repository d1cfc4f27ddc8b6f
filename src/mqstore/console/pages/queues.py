"""RabbitMQ queues with their counts, and the messages of one queue with their states."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.responses import Response

from mqstore.console.basket import InQueue
from mqstore.console.page import PageRequest, address
from mqstore.console.pages.health import queue_rows
from mqstore.console.pages.route import PageRoute
from mqstore.console.queue_states import STATES as MAP_STATES
from mqstore.console.queue_states import segment_maps
from mqstore.console.stores import OpenStore
from mqstore.errors import NotFoundError, UsageError
from mqstore.rabbitmq.store import listing
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.table.columns import QueueSelection

SHOWN = 200
MAPS = 24  # segments that are mapped
STATES = ("ready", "delivered", "acknowledged", "missing", "damaged", "duplicate", "hidden", "unfound")


def queues(request: PageRequest) -> Response:
    opened = request.store
    store = opened.rabbitmq
    wanted, start = request.text("name").lower(), request.number("from") or 0
    rows = queue_rows(opened)
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


@dataclass(frozen=True, slots=True)
class _EntryPage:
    """A page of index entries. following: (level, sequence id) of the next one, None at the end."""

    rows: list[dict[str, Any]]
    following: tuple[int | None, int] | None


def _counts(opened: OpenStore, vhost: str, queue: str) -> Counter[str]:
    """Count the entries of a queue by state. Reads the whole index, once."""

    def count() -> Counter[str]:
        states: Counter[str] = Counter()
        for rows in opened.rabbitmq.rows(_selection(vhost, queue)):
            states.update(row["state"] for row in listing.entry_rows(rows))
        return states

    return opened.cached(("states", vhost, queue), count)


def _selection(vhost: str, queue: str) -> QueueSelection:
    return QueueSelection(vhosts=frozenset({vhost}), queues=frozenset({queue}), everything=True)


def _entry_page(opened: OpenStore, vhost: str, queue: str, state: str, level: int | None, start: int) -> _EntryPage:
    """Return the entries from a position onwards: high priority first, then by ascending sequence id."""
    found: list[dict[str, Any]] = []
    for rows in opened.rabbitmq.rows(_selection(vhost, queue)):
        if rows.priority_level is not None and level is not None and rows.priority_level > level:
            continue
        begin = start if level is None or rows.priority_level == level else 0
        for row in listing.entry_rows(_rows_from(rows, begin)):
            if state in ("", row["state"]):
                if len(found) == SHOWN:
                    return _EntryPage(found, (row["priority_level"], row["seq_id"]))
                found.append(row)
    return _EntryPage(found, None)


def _rows_from(rows: MessageRows, seq_id: int) -> MessageRows:
    return rows.take(np.flatnonzero(rows.table.entries["seq"] >= seq_id)) if seq_id else rows


def queue(request: PageRequest) -> Response:
    opened = request.store
    vhost, name, state = request.text("vhost"), request.text("queue"), request.text("state")
    if state not in ("", *STATES):
        raise UsageError(f"there is no state {state!r}; the states are {', '.join(STATES)}")
    directories = opened.rabbitmq.queue(vhost, name)
    part = _entry_page(opened, vhost, name, state, request.number("level"), request.number("seq") or 0)
    counts = _counts(opened, vhost, name)
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
        map_states=MAP_STATES,
        counts=counts,
        states=STATES,
        state=state,
        total=counts[state] if state else sum(counts.values()),
        vhost=vhost,
        queue=name,
        wide=True,
        basket=request.session.basket if request.session else (),
    )


def by_id(request: PageRequest) -> Response:
    """Find an entry by message id. RabbitMQ has no index of message ids, so all queue indexes are read."""
    opened = request.store
    wanted = request.text("id").lower()
    if len(wanted) != 32 or any(letter not in "0123456789abcdef" for letter in wanted):
        raise UsageError("a message id of RabbitMQ has 32 hexadecimal digits")
    key = (int(wanted[:16], 16), int(wanted[16:], 16))
    signed = [value - (1 << 64) if value >= 1 << 63 else value for value in key]
    for rows in opened.rabbitmq.rows(QueueSelection(everything=True)):
        entries = rows.table.entries
        hits = np.flatnonzero((entries["hi"] == signed[0]) & (entries["lo"] == signed[1]))
        if len(hits) and rows.indexed and rows.queue is not None:
            seq = int(entries["seq"][hits[0]])
            level = rows.priority_level
            return request.go(address(f"/stores/{opened.number}/message", vhost=rows.vhost, queue=rows.queue, level=level, seq=seq))
    raise NotFoundError(f"no index entry of this store has message id {wanted}; a version 2 queue keeps ids of small messages elsewhere")


ROUTES = (
    PageRoute("/stores/{number:int}/queues", queues),
    PageRoute("/stores/{number:int}/queue", queue),
    PageRoute("/stores/{number:int}/queued", by_id),
)
