"""Messages by key and by id, and the explanation of a key query's result."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mqstore.console import listing
from mqstore.console.jobs import Progress
from mqstore.console.page import PageRequest, address
from mqstore.console.pages.route import PageRoute
from mqstore.console.stores import OpenStore
from mqstore.errors import NotFoundError, UsageError
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.format.record import parse_message_id
from mqstore.rocketmq.lookup import explain as explaining
from mqstore.rocketmq.query.index_search import END_OF_TIME, MAX_RESULTS
from mqstore.rocketmq.store.view import View

STEPS = 200


def _values(opened: OpenStore, view: View, tab: str) -> dict[str, Any]:
    topics = sorted({queue.topic for queue in view.queues()} | set(opened.rocketmq.topics.names))
    return {"store": opened, "section": "messages", "tab": tab, "topics": topics, "wide": True, "answer": None, "rows": []}


def by_key(request: PageRequest) -> Response:
    opened = request.store
    view = opened.view(request.view)
    topic, key = request.text("topic"), request.text("key")
    values = _values(opened, view, "key") | {"basket": request.session.basket if request.session else ()}
    if not key:
        return request.show("bykey.html", **values)
    if not topic:
        raise UsageError("choose a topic: the index stores keys by topic")
    begin, end, most = _limits(request)
    answer = explaining.query(opened.rocketmq, view, topic, key, most, begin, end, scan=False)
    return request.show("bykey.html", **values | {"answer": answer, "rows": listing.rows_at(view, answer.messages)[::-1]})


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
        **_values(opened, view, "key"),
        found=answer,
        hits=listing.rows_at(view, answer.messages)[::-1],
        missing=listing.rows_at(view, answer.missing[:50]),
        files=list(reversed(view.index_files())),
        steps=steps,
        hidden_steps=max(0, len(answer.steps) - STEPS),
        key_hash=index_hash(topic, key),
        low=low,
        high=high,
    )


def by_id(request: PageRequest) -> Response:
    """Find a message by id. A broker's id (store host and physical offset) and a client's (UNIQ_KEY) look alike, so both are tried."""
    opened = request.store
    view = opened.view(request.view)
    wanted, topic = request.text("id"), request.text("topic")
    values = _values(opened, view, "id")
    if not wanted:
        return request.show("byid.html", **values)
    tried: list[str] = []
    place = _by_offset(view, wanted, tried)
    if place is None:
        place = _by_unique_key(opened, view, wanted, topic, tried)
    if place is None:
        raise NotFoundError(f"no message with id {wanted} was found: {'; '.join(tried)}")
    return request.go(address(f"/stores/{opened.number}/message", offset=place, view=request.text("view")))


def _by_offset(view: View, wanted: str, tried: list[str]) -> int | None:
    low, high = view.log_range()
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 20:
        if view.record(int(wanted)) is not None:
            return int(wanted)
        tried.append(f"no valid record starts at physical offset {wanted} (the log ranges from {low:,} to {high:,})")
        if len(wanted) != 32:
            return None
    try:
        host, offset = parse_message_id(wanted)
    except ValueError:
        tried.append("it is not an offset message id, which has 32 or 56 hexadecimal digits")
        return None
    message = view.record(offset) if low <= offset < high else None
    if message is not None and message.store_host == host:
        return offset
    where = (
        "where the log has another broker's message"
        if message is not None
        else f"which is outside the log ({low:,} to {high:,}) or between records"
    )
    tried.append(f"as the id of broker {host} it points at physical offset {offset:,}, {where}")
    return None


def _by_unique_key(opened: OpenStore, view: View, wanted: str, topic: str, tried: list[str]) -> int | None:
    topics = [topic] if topic else sorted({queue.topic for queue in view.queues()})
    for each in topics:
        answer = explaining.query(opened.rocketmq, view, each, wanted, scan=False)
        for place in reversed(answer.messages):
            message = view.record(place)
            if message is not None and message.property_map().get("UNIQ_KEY") == wanted:
                return place
    where = f"topic {topic}" if topic else f"any of {len(topics):,} topics"
    tried.append(f"the index has no message of {where} with this unique key; explain the query by key to search the log")
    return None


ROUTES = (
    PageRoute("/stores/{number:int}/key", by_key),
    PageRoute("/stores/{number:int}/id", by_id),
    PageRoute("/stores/{number:int}/explain", explain),
)
