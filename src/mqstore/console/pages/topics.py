"""Topics with their queues, and consumer groups with their lag."""

from __future__ import annotations

from functools import partial

from starlette.responses import Response

from mqstore.console.page import PageRequest, PageRoute
from mqstore.console.stores import OpenStore
from mqstore.errors import UnsupportedError
from mqstore.report.queues import progress_notes
from mqstore.rocketmq.format.system_topics import kind_of
from mqstore.rocketmq.store.view import QueueView, View, groups_of, messages_of

SHOWN = 200


def unread_queues(view: View) -> str:
    """Return the sentence for queues of a view that are not read, or not known; empty if they are read."""
    try:
        view.require_queues()
    except UnsupportedError as error:
        return str(error)
    return ""


def unread_offsets(opened: OpenStore) -> str:
    """Return the sentence for consumer offsets that are not read, or not known; empty if they are read."""
    place = opened.rocketmq.unread_offsets
    return "" if place is None else opened.rocketmq.unread_sentence("consumer offsets", place)


def topics(request: PageRequest) -> Response:
    opened = request.store
    view = opened.view(request.view)
    substring, start = request.text("name").lower(), request.number("from") or 0
    by_name: dict[str, list[QueueView]] = {name: [] for name in opened.rocketmq.topics.names}
    for queue in view.queues():
        by_name.setdefault(queue.topic, []).append(queue)
    names = sorted(name for name in by_name if substring in name.lower())
    shown = [
        (name, kind_of(name), by_name[name], opened.cached(("messages", request.view, name), partial(messages_of, view, by_name[name])))
        for name in names[start : start + SHOWN]
    ]
    return request.show(
        "topics.html",
        store=opened,
        section="topics",
        rows=shown,
        unread=unread_queues(view),
        start=start,
        total=len(names),
        size=SHOWN,
    )


def groups(request: PageRequest) -> Response:
    opened = request.store
    view = opened.view(request.view)
    substring, start = request.text("name").lower(), request.number("from") or 0
    shown = groups_of(each for each in view.consumer_offsets() if substring in each.group.lower() or substring in each.topic.lower())
    return request.show(
        "groups.html",
        store=opened,
        section="groups",
        rows=shown[start : start + SHOWN],
        start=start,
        unread=unread_offsets(opened),
        total=len(shown),
        size=SHOWN,
        notes=progress_notes,
    )


ROUTES = (
    PageRoute("/stores/{number:int}/topics", topics),
    PageRoute("/stores/{number:int}/groups", groups),
)
