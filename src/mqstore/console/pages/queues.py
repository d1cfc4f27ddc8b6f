"""RabbitMQ queues with their counts, the messages of one queue with their states, and those of all queues, or of some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from starlette.responses import Response

from mqstore.console.basket import InQueue
from mqstore.console.bodies import decode_head
from mqstore.console.drawing import segment_maps
from mqstore.console.page import PageRequest, PageRoute, address
from mqstore.console.stores import OpenStore
from mqstore.errors import NotFoundError, UsageError
from mqstore.rabbitmq import listing, queue_states
from mqstore.rabbitmq.get import indexed_with_id
from mqstore.rabbitmq.queue_states import QueueDepth, count_entries, entry_page, page_of_rows, queue_depths, state_numbers
from mqstore.rabbitmq.quorum.queue import QueueState, QuorumQueue
from mqstore.rabbitmq.quorum.rows import QuorumRows, build_batch, log_rows, rows_of
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.streams.rows import StreamRows
from mqstore.rabbitmq.streams.stream import NamedStream
from mqstore.report.queues import held_back, member_sentences, not_recovered
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import count, shorten

SHOWN = 200
MAPS = 24  # segments that are mapped
BEGINNING = 80  # characters of a body that a list shows
_OTHER_COLUMNS = (
    "vhost",
    "queue",
    "queue_type",
    "raft_index",
    "stream_offset",
    "state",
    "size",
    "routing_keys",
    "payload",
    "verdict",
)
_STREAM_COLUMNS = ("stream_offset", "pos", "chunk_timestamp", "size", "routing_keys", "payload", "verdict", "store_file", "position")
_COLUMNS = ("vhost", "queue", "priority_level", "seq_id", "pos", "size", "exchange", "routing_keys", "payload", "verdict")


def queues(request: PageRequest) -> Response:
    opened = request.store
    store = opened.rabbitmq
    substring, start = request.text("name").lower(), request.number("from") or 0
    rows = opened.cached("queues", lambda: [*listing.queue_rows(store), *listing.quorum_rows(store), *listing.stream_rows(store)])
    shown = [row for row in rows if substring in row["queue"].lower() or substring in (row["vhost"] or "").lower()]
    sums, held = listing.totals(rows), sum(map(held_back, rows))
    others = [f"{getattr(sums, state):,} {state}" for state in ("lost", "waiting", "transient") if getattr(sums, state)]
    return request.show(
        "queues.html",
        store=opened,
        section="queues",
        vhosts=store.vhosts,
        rows=shown[start : start + SHOWN],
        reasons=not_recovered,
        sums=sums,
        others=others + [f"{count(held, 'dead letter')} held, or delayed" for _ in range(bool(held))],
        start=start,
        total=len(shown),
        size=SHOWN,
        wide=True,
    )


def queue(request: PageRequest) -> Response:
    opened = request.store
    vhost, name, state = request.text("vhost"), request.text("queue"), request.text("state")
    if members := opened.rabbitmq.quorum_members(vhost, name):
        return _quorum_queue(request, opened, members[0], others=[each.log.place for each in members[1:]])
    if (stream := opened.rabbitmq.stream_or_none(vhost, name)) is not None:
        return _stream(request, opened, stream)
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


def _quorum_queue(request: PageRequest, opened: OpenStore, member: QuorumQueue, others: list[str]) -> Response:
    """Show the log of a member: its messages in the order of the queue, then those that have left it."""
    replayed, rows = opened.cached(("quorum", member.log.place), lambda: _replayed(member))
    state, start = request.text("state"), request.number("from") or 0
    counts = Counter(_kind(row) for row in rows)
    if state not in ("", *counts):
        raise UsageError(f"there is no message in state {state!r}; the states are {', '.join(counts)}")
    shown = [row for row in rows if state in ("", _kind(row))]
    bodies = _bodies(member, replayed, [row["raft_index"] for row in shown[start : start + SHOWN]])
    return request.show(
        "quorum.html",
        store=opened,
        section="queues",
        member=member,
        others=others,
        replayed=replayed,
        sentences=[part.text for part in member_sentences(member, replayed)],
        rows=[row | {"beginning": _beginning(bodies.get(row["raft_index"]))} for row in shown[start : start + SHOWN]],
        counts=counts,
        state=state,
        start=start,
        total=len(shown),
        size=SHOWN,
        vhost=request.text("vhost"),
        queue=request.text("queue"),
        wide=True,
    )


def _stream(request: PageRequest, opened: OpenStore, named: NamedStream) -> Response:
    """Show a stream: its clients, and its messages from an offset on."""
    start = max(named.stream.first_offset, request.number("from") or 0)
    shown: list[dict[str, Any]] = []
    for part in opened.rabbitmq.stream_rows(named, QueueSelection(from_offset=start, limit=SHOWN + 1)):
        batch = opened.rabbitmq.batch(part.take(np.arange(min(len(part), SHOWN + 1 - len(shown)))), _STREAM_COLUMNS)
        shown += [] if batch is None else batch.to_pylist()
        if len(shown) > SHOWN:
            break
    for row in shown:
        row["beginning"] = _beginning(row["payload"])
    [summary] = [row for row in opened.cached("streams", lambda: list(listing.stream_rows(opened.rabbitmq))) if _is_of(row, named)]
    return request.show(
        "stream.html",
        store=opened,
        section="queues",
        row=summary,
        rows=shown[:SHOWN],
        start=start,
        following=shown[SHOWN]["stream_offset"] if len(shown) > SHOWN else None,
        vhost=request.text("vhost"),
        queue=named.queue,
        size=SHOWN,
        wide=True,
    )


def _is_of(row: dict[str, Any], named: NamedStream) -> bool:
    return bool(row["directories"] == [named.stream.place])


def _replayed(member: QuorumQueue) -> tuple[QueueState, list[dict[str, Any]]]:
    state = member.replay()
    return state, list(log_rows(member, state, None, None))


def _bodies(member: QuorumQueue, state: QueueState, indexes: list[int]) -> dict[int, bytes | None]:
    """Return the bodies of messages by the indexes of their entries."""
    bodies: dict[int, bytes | None] = {}
    for rows in rows_of(member, QueueSelection(everything=True), None, state):
        chosen = np.flatnonzero(np.isin([message.index for message in rows.messages], indexes))
        for row in build_batch(member, rows.take(chosen).messages, ("raft_index", "payload")).to_pylist():
            bodies[row["raft_index"]] = row["payload"]
    return bodies


def _kind(row: dict[str, Any]) -> str:
    return str(row["state"]).partition(" at index ")[0]


def by_id(request: PageRequest) -> Response:
    opened = request.store
    message_id = request.text("id")
    hits = indexed_with_id(opened.rabbitmq, message_id)
    if hits is None:
        raise NotFoundError(
            f"no index entry of this store has message id {message_id}; a version 2 queue keeps ids of small messages elsewhere"
        )
    vhost, queue, level, seq = hits
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


def _others(opened: OpenStore, substring: str, start: int) -> list[dict[str, Any]]:
    """Return the messages of quorum queues and streams from a number on, one more than are shown; the queues before it are not decoded."""
    store = opened.rabbitmq
    needed = QueueSelection(limit=start + SHOWN + 1)
    parts: Iterator[QuorumRows | StreamRows] = chain(
        store.quorum_rows(), chain.from_iterable(store.stream_rows(named, needed) for named in store.streams if _has(substring, named))
    )
    others: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, QuorumRows) and not any(substring in (name or "").lower() for name in part.queue.name):
            continue
        skipped, start = min(start, len(part)), max(0, start - len(part))
        batch = store.batch(part.take(np.arange(skipped, min(len(part), skipped + SHOWN + 1 - len(others)))), _OTHER_COLUMNS)
        others += [] if batch is None else batch.to_pylist()
        if len(others) > SHOWN:
            break
    return [row | {"beginning": _beginning(row["payload"])} for row in others]


def _has(substring: str, named: NamedStream) -> bool:
    return substring in named.queue.lower() or substring in (named.vhost or "").lower()


def queue_messages(request: PageRequest) -> Response:
    """Show the messages in the order of `messages`: by vhost, queue, priority and position."""
    opened = request.store
    state, substring, start = request.text("state"), request.text("name").lower(), request.number("from") or 0
    if state not in ("", *queue_states.STATES):
        raise UsageError(f"there is no state {state!r}; the states are {', '.join(reversed(queue_states.STATES))}")
    depths: tuple[QueueDepth, ...] = opened.cached("depths", lambda: queue_depths(opened.rabbitmq))
    shown = [depth for depth in depths if substring in depth.queue.lower() or substring in depth.vhost.lower()]
    states = [number for number, each in enumerate(queue_states.STATES) if (each == state if state else each != "acknowledged")]
    total = sum(depth.counts[number] for depth in shown for number in states)
    names = frozenset((depth.vhost, depth.queue) for depth in shown)
    rows: list[dict[str, Any]] = []
    for part in page_of_rows(_rows(opened, names), frozenset(states), start, SHOWN):
        batch = opened.rabbitmq.batch(part, _COLUMNS)
        numbers = state_numbers(part.table).tolist()
        for row, number in zip([] if batch is None else batch.to_pylist(), numbers, strict=True):
            place = InQueue(opened.number, row["vhost"] or "", row["queue"] or "", row["priority_level"], row["seq_id"])
            rows.append(row | {"state": queue_states.STATES[number], "beginning": _beginning(row["payload"]), "place": place})
    beyond = request.number("others") or 0
    others = _others(opened, substring, beyond) if not state and start + len(rows) >= total else []
    return request.show(
        "queuemessages.html",
        store=opened,
        section="messages",
        others=others[:SHOWN],
        beyond=beyond,
        more_others=len(others) > SHOWN,
        has_others=bool(opened.rabbitmq.quorum_queues or opened.rabbitmq.streams),
        rows=rows,
        start=start,
        size=SHOWN,
        total=total,
        state=state,
        states=tuple(reversed(queue_states.STATES)),
        sums={each: sum(depth.counts[number] for depth in shown) for number, each in enumerate(queue_states.STATES)},
        wide=True,
        basket=request.session.basket if request.session else (),
    )


ROUTES = (
    PageRoute("/stores/{number:int}/queues", queues),
    PageRoute("/stores/{number:int}/queue", queue),
    PageRoute("/stores/{number:int}/queued", by_id),
)
