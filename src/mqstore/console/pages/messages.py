"""Messages of a RocketMQ store: of a topic in a time range, by key with the explanation of the answer, and by id."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mqstore.console.jobs import Progress
from mqstore.console.page import PageRequest, PageRoute, address
from mqstore.console.pages.queues import queue_messages
from mqstore.console.pages.topics import unread_queues
from mqstore.console.stores import OpenStore
from mqstore.errors import NotFoundError, UsageError
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.get import place_of
from mqstore.rocketmq.lookup import explain as explaining
from mqstore.rocketmq.query.index_search import END_OF_TIME, MAX_RESULTS
from mqstore.rocketmq.store import message_pages
from mqstore.rocketmq.store.message_pages import Cursor
from mqstore.rocketmq.store.view import View
from mqstore.table.columns import Selection

STEPS = 200
NEWEST = 50  # messages that are listed before a topic is chosen


def _values(request: PageRequest, opened: OpenStore, view: View, tab: str) -> dict[str, Any]:
    return {
        "store": opened,
        "section": "messages",
        "tab": tab,
        "topics": sorted({queue.topic for queue in view.queues()} | set(opened.rocketmq.topics.names)),
        "wide": True,
        "answer": None,
        "rows": [],
        "basket": request.session.basket if request.session else (),
    }


def by_time(request: PageRequest) -> Response:
    opened = request.store
    if opened.family == "rabbitmq":
        return queue_messages(request)
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
        "newest": None,
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
        return request.show("messages.html", **values | {"walked": message_pages.from_log(view, selection, request.number("begin"))})
    if not topic:
        every = [queue for queue in view.queues() if queue_id in (None, queue.queue_id)]
        newest = message_pages.newest(message_pages.ranges(every, view, since, until), view, NEWEST) if every else None
        return request.show("messages.html", **values | {"newest": newest})
    view.require_queues()
    queues = [queue for queue in view.queues() if queue.topic == topic and queue_id in (None, queue.queue_id)]
    if not queues:
        which = f"topic {topic!r} has no queue {queue_id}" if topic in topics else f"there is no consume queue of topic {topic!r}"
        raise NotFoundError(f"{which} in the {view.name} view; its records, if any, can be read from the log")
    ranges = message_pages.ranges(queues, view, since, until)
    if request.text("newer"):
        page = message_pages.newer(ranges, view, Cursor.of(request.text("newer", longest=60_000)))
    else:
        older = request.text("older", longest=60_000)
        page = message_pages.older(ranges, view, Cursor.of(older) if older else None)
    return request.show("messages.html", **values | {"listed": page})


def by_key(request: PageRequest) -> Response:
    opened = request.store
    view = opened.view(request.view)
    topic, key = request.text("topic"), request.text("key")
    values = _values(request, opened, view, "key")
    if not key:
        return request.show("bykey.html", **values)
    if not topic:
        raise UsageError("choose a topic: the index stores keys by topic")
    begin, end, most = _limits(request)
    answer = explaining.query(opened.rocketmq, view, topic, key, most, begin, end, scan=False)
    return request.show("bykey.html", **values | {"answer": answer, "rows": message_pages.rows_at(view, answer.messages)[::-1]})


def _limits(request: PageRequest) -> tuple[int, int, int]:
    begin, end = request.moment("since"), request.moment("until")
    most = request.number("max", MAX_RESULTS, low=1, high=MAX_RESULTS)
    return begin or 0, END_OF_TIME if end is None else end, most or MAX_RESULTS


def explain(request: PageRequest) -> Response:
    """Show every step of the search, and scan the log for messages that it missed. Runs as a job."""
    opened = request.store
    topic, key, name = request.text("topic"), request.text("key"), request.view
    if not topic or not key:
        raise UsageError("give a topic and a key to explain a query")
    begin, end, most = _limits(request)
    view = opened.view(name)

    def work(progress: Progress) -> explaining.KeyAnswer:
        return explaining.query(opened.rocketmq, view, topic, key, most, begin, end, explain=True, progress=progress)

    job = request.waited(
        request.console.jobs.start(
            "explain",
            f"Explaining key {key} of topic {topic}",
            work,
            store=opened.number,
            key=(*opened.key, topic, key, name, begin, end, most),
        )
    )
    if not job.over:
        return request.show("job.html", store=opened, section="messages", job=job, refresh=True)
    answer: explaining.KeyAnswer = request.outcome(job)
    steps: dict[str, list[object]] = {}
    for step in answer.steps[:STEPS]:
        steps.setdefault(step.file, []).append(step)
    low, high = view.log_range()
    return request.show(
        "explain.html",
        **_values(request, opened, view, "key"),
        explained=answer,
        hits=message_pages.rows_at(view, answer.messages)[::-1],
        missing=message_pages.rows_at(view, answer.missing[:50]),
        files=list(reversed(view.index_files())),
        steps=steps,
        hidden_steps=max(0, len(answer.steps) - STEPS),
        key_hash=index_hash(topic, key),
        low=low,
        high=high,
    )


def by_id(request: PageRequest) -> Response:
    opened = request.store
    view = opened.view(request.view)
    message_id = request.text("id")
    if not message_id:
        return request.show("byid.html", **_values(request, opened, view, "id"))
    place = place_of(opened.rocketmq, view, message_id, request.text("topic"))
    return request.go(address(f"/stores/{opened.number}/message", offset=place, view=request.text("view")))


ROUTES = (
    PageRoute("/stores/{number:int}/messages", by_time),
    PageRoute("/stores/{number:int}/key", by_key),
    PageRoute("/stores/{number:int}/id", by_id),
    PageRoute("/stores/{number:int}/explain", explain),
)
