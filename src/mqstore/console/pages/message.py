"""The page of one message: record fields, body, properties, consumers, trace, and location on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.responses import Response

from mqstore.codecs import unpack
from mqstore.console import bodies
from mqstore.console.basket import InLog, InQueue, queue_rows
from mqstore.console.page import PageRequest, PageRoute
from mqstore.console.stores import OpenStore
from mqstore.errors import NotFoundError, UsageError
from mqstore.rabbitmq import listing
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rocketmq.format.consume_queue import ConsumeQueueReader
from mqstore.rocketmq.get import consumers_of, trace_of
from mqstore.rocketmq.store.message_pages import batches_at
from mqstore.rocketmq.store.view import View
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of a file that belongs to a message."""

    what: str
    file: str
    at: int
    length: int


def rocketmq_row(view: View, offset: int) -> dict[str, Any]:
    """Return the message at a physical offset as a row of the message table, times in ms. Raises NotFoundError."""
    for batch in batches_at(view, [offset]):
        for row in batch.to_pylist():
            return dict(row) | {"properties": None if row["properties"] is None else dict(row["properties"])}
    low, high = view.log_range()
    where = f"outside the log, which ranges from {low:,} to {high:,}" if not low <= offset < high else "where no valid record starts"
    raise NotFoundError(f"physical offset {offset:,} is {where} in the {view.name} view; see the damage map of the log")


def _rocketmq(request: PageRequest, opened: OpenStore) -> Response:
    store, view = opened.rocketmq, opened.view(request.view)
    offset = request.needed("offset")
    row = rocketmq_row(view, offset)
    file = store.log.file_at(offset)
    places = [ByteRange("record", row["store_file"], offset - (file.start if file else 0), row["size"])]
    queue = next((each for each in store.consume_queues() if (each.topic, each.queue_id) == (row["topic"], row["queue_id"])), None)
    if isinstance(queue, ConsumeQueueReader) and queue.min_offset <= row["queue_offset"] < queue.max_offset:
        name, at = queue.place(row["queue_offset"])
        places.append(ByteRange("queue entry", name, at, 20))
    raw = store.log.raw(offset) or b""
    return request.show(
        "message.html",
        store=opened,
        section="messages",
        row=row,
        consumers=consumers_of(view, row),
        trace=trace_of(store, view, row["uniq_key"]) if row["uniq_key"] else [],
        places=places,
        place=InLog(opened.number, offset),
        record=bodies.hex_lines(raw, request.number("record") or 0) if request.text("record") else None,
        record_size=len(raw),
        **_body_views(request, row["body"]),
    )


def _body_views(request: PageRequest, body: bytes | None) -> dict[str, Any]:
    """Return the template values of a body. body: None if it cannot be read."""
    unpacked = None if body is None else unpack(body)
    is_unpacked = bool(request.text("unpacked")) and unpacked is not None and unpacked.content is not None
    stored = 0 if body is None else len(body)
    if is_unpacked and unpacked is not None:
        body = unpacked.content
    views = None if body is None else bodies.views(body)
    start = request.number("from") or 0
    chosen = request.text("body") or (views.likely if views else "text")
    if chosen not in ("text", "json", "hex"):
        raise UsageError("a body can be shown as text, json or hex")
    return {
        "unpacked": unpacked,
        "is_unpacked": is_unpacked,
        "stored_size": stored,
        "body": views,
        "chosen": chosen,
        "hex": bodies.hex_lines(body or b"", start) if chosen == "hex" else [],
        "hex_start": start - start % 16,
        "hex_size": bodies.HEX_SHOWN,
        "shown": bodies.SHOWN,
        "basket": request.session.basket if request.session else (),
    }


# RabbitMQ


def _place(request: PageRequest) -> InQueue:
    level, seq_id = request.number("level"), request.needed("seq")
    return InQueue(int(request.http.path_params["number"]), request.text("vhost"), request.text("queue"), level, seq_id)


def rabbitmq_row(request: PageRequest, place: InQueue) -> tuple[dict[str, Any], MessageRows]:
    """Return a message by its index entry, as a row of the message table, with the entry. Raises NotFoundError."""
    for store, rows in queue_rows(request.console.stores, [place]):
        batch = store.batch(rows, RABBITMQ_COLUMNS)
        for row in [] if batch is None else batch.to_pylist():
            return dict(row), rows
    raise NotFoundError(f"queue {place.queue!r} of vhost {place.vhost!r} has no index entry with sequence id {place.seq_id}")


def _rabbitmq(request: PageRequest, opened: OpenStore) -> Response:
    place = _place(request)
    row, rows = rabbitmq_row(request, place)
    entry = next(listing.entry_rows(rows))
    places = [ByteRange("index entry", entry["index_file"], entry["index_position"], 0)]
    if row["store_file"] and entry["state"] != "missing":
        places.append(ByteRange("message", row["store_file"], row["position"], 0))
    headers, plain = _properties(row)
    return request.show(
        "queued.html",
        store=opened,
        section="queues",
        row=row,
        entry=entry,
        headers=headers,
        properties=plain,
        places=places,
        place=place,
        **_body_views(request, row["payload"]),
    )


def quorum_row(request: PageRequest, opened: OpenStore) -> dict[str, Any]:
    """Return a message of a quorum queue by the index of its entry, as a row of the message table. Raises NotFoundError."""
    vhost, queue, index = request.text("vhost"), request.text("queue"), request.needed("index")
    chosen = QueueSelection(vhosts=frozenset({vhost}), queues=frozenset({queue}), everything=True)
    for rows in opened.rabbitmq.quorum_rows(chosen):
        numbers = np.array([each.index for each in rows.messages], np.int64)
        batch = opened.rabbitmq.batch(rows.take(np.flatnonzero(numbers == index)), RABBITMQ_COLUMNS) if index in numbers else None
        for row in [] if batch is None else batch.to_pylist():
            return dict(row)
    raise NotFoundError(f"quorum queue {queue!r} of vhost {vhost!r} has no message in entry {index}")


def _quorum(request: PageRequest, opened: OpenStore) -> Response:
    row = quorum_row(request, opened)
    headers, plain = _properties(row)
    places = [ByteRange("entry", row["store_file"], row["position"], 0)] if row["store_file"] else []
    return request.show(
        "quorummessage.html",
        store=opened,
        section="queues",
        row=row,
        headers=headers,
        properties=plain,
        places=places,
        **_body_views(request, row["payload"]),
    )


def _properties(row: dict[str, Any]) -> tuple[list[tuple[str, str, Any]], dict[str, Any]]:
    """Return the headers of a row of RabbitMQ as (name, type, value), and the other properties that it has."""
    properties = row["properties"] or {}
    headers = [(each["name"], each["type"], each["value"]) for each in properties.get("headers") or ()]
    return headers, {name: value for name, value in properties.items() if value is not None and name != "headers"}


def message(request: PageRequest) -> Response:
    opened = request.store
    if opened.family == "rocketmq":
        return _rocketmq(request, opened)
    return _quorum(request, opened) if request.text("index") else _rabbitmq(request, opened)


def download(request: PageRequest) -> Response:
    """Return the raw body as a download, which the browser never displays."""
    opened = request.store
    if opened.family == "rocketmq":
        offset = request.needed("offset")
        body, name = rocketmq_row(opened.view(request.view), offset)["body"], f"body-{offset}"
    elif request.text("index"):
        body, name = quorum_row(request, opened)["payload"], f"body-{request.needed('index')}"
    else:
        place = _place(request)
        body, name = rabbitmq_row(request, place)[0]["payload"], f"body-{place.seq_id}"
    if body is None:
        raise NotFoundError("the body cannot be read; see the message page for the reason")
    headers = {"Content-Disposition": f'attachment; filename="{name}.bin"'}
    return Response(body, media_type="application/octet-stream", headers=headers)


ROUTES = (
    PageRoute("/stores/{number:int}/message", message),
    PageRoute("/stores/{number:int}/body", download),
)
