"""Messages of a topic in a time range: by its queues, newest first, or from the log itself."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mqstore.console import listing
from mqstore.console.listing import Cursor
from mqstore.console.page import Asked
from mqstore.console.pages.rule import Rule
from mqstore.errors import NotFoundError
from mqstore.table.columns import Selection

__all__ = ["RULES"]


def by_time(asked: Asked) -> Response:
    opened = asked.store
    view = opened.view(asked.view)
    topic = asked.text("topic")
    since, until = asked.moment("since"), asked.moment("until")
    queue_id = asked.number("queue", low=-(2**31), high=2**31 - 1)
    topics = sorted({queue.topic for queue in view.queues()})
    values: dict[str, Any] = {
        "store": opened,
        "section": "messages",
        "tab": "time",
        "topics": topics,
        "topic": topic,
        "listed": None,
        "walked": None,
        "wide": True,
        "basket": asked.session.basket if asked.session else (),
    }
    if asked.text("source") == "log":
        selection = Selection(
            topics=frozenset({topic}) if topic else None,
            queue_ids=None if queue_id is None else frozenset({queue_id}),
            since=since,
            until=until,
        )
        return asked.show("messages.html", **values | {"walked": listing.from_log(view, selection, asked.number("begin"))})
    if not topic:
        return asked.show("messages.html", **values)
    queues = [queue for queue in view.queues() if queue.topic == topic and queue_id in (None, queue.queue_id)]
    if not queues:
        which = f"topic {topic!r} has no queue {queue_id}" if topic in topics else f"no consume queue of topic {topic!r} is there"
        raise NotFoundError(f"{which} in the {view.name} view; its records, if there are any, can be read from the log itself")
    found = listing.ranges(queues, view, since, until)
    if asked.text("newer"):
        page = listing.newer(found, view, Cursor.of(asked.text("newer", longest=60_000)))
    else:
        older = asked.text("older", longest=60_000)
        page = listing.older(found, view, Cursor.of(older) if older else None)
    return asked.show("messages.html", **values | {"listed": page})


RULES = (Rule("/stores/{number:int}/messages", by_time),)
