"""Messages of a topic in a time range: by its queues, newest first, or from the log itself. Of a RabbitMQ store: by queue."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mqstore.console import listing
from mqstore.console.listing import Cursor
from mqstore.console.page import PageRequest
from mqstore.console.pages.queue_messages import by_queue
from mqstore.console.pages.route import PageRoute
from mqstore.console.pages.topics import unread_queues
from mqstore.errors import NotFoundError
from mqstore.table.columns import Selection


def by_time(request: PageRequest) -> Response:
    opened = request.store
    if opened.family == "rabbitmq":
        return by_queue(request)
    view = opened.view(request.view)
    topic = request.text("topic")
    since, until = request.moment("since"), request.moment("until")
    queue_id = request.number("queue", low=-(2**31), high=2**31 - 1)
    topics = sorted({queue.topic for queue in view.queues()})
    values: dict[str, Any] = {
        "store": opened,
        "section": "messages",
        "tab": "time",
        "topics": topics,
        "unread": unread_queues(view),
        "topic": topic,
        "listed": None,
        "walked": None,
        "wide": True,
        "basket": request.session.basket if request.session else (),
    }
    if request.text("source") == "log":
        selection = Selection(
            topics=frozenset({topic}) if topic else None,
            queue_ids=None if queue_id is None else frozenset({queue_id}),
            since=since,
            until=until,
        )
        return request.show("messages.html", **values | {"walked": listing.from_log(view, selection, request.number("begin"))})
    if not topic:
        return request.show("messages.html", **values)
    view.require_queues()
    queues = [queue for queue in view.queues() if queue.topic == topic and queue_id in (None, queue.queue_id)]
    if not queues:
        which = f"topic {topic!r} has no queue {queue_id}" if topic in topics else f"there is no consume queue of topic {topic!r}"
        raise NotFoundError(f"{which} in the {view.name} view; its records, if any, can be read from the log")
    found = listing.ranges(queues, view, since, until)
    if request.text("newer"):
        page = listing.newer(found, view, Cursor.of(request.text("newer", longest=60_000)))
    else:
        older = request.text("older", longest=60_000)
        page = listing.older(found, view, Cursor.of(older) if older else None)
    return request.show("messages.html", **values | {"listed": page})


ROUTES = (PageRoute("/stores/{number:int}/messages", by_time),)
