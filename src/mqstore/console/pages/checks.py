"""Verify and usage: long jobs over a whole store, started from their pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from mqstore.console.damage_map import map_of
from mqstore.console.jobs import Job, Progress, State
from mqstore.console.page import PageRequest
from mqstore.console.pages.route import PageRoute
from mqstore.console.stores import OpenStore
from mqstore.findings import Report
from mqstore.pipeline.jobs.usage import usage as count_log
from mqstore.rabbitmq.store import usage as queue_usage
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rocketmq.verify import verification

__all__ = ["ROUTES", "start_verify"]

SHOWN = 200
MAPS = 60


def _verify(opened: OpenStore, progress: Progress) -> Report:
    store = opened.store
    return store.verify(progress) if isinstance(store, RabbitMQStore) else verification.verify(store, threads=2, progress=progress)


def _usage(opened: OpenStore, progress: Progress) -> Any:
    store = opened.store
    if isinstance(store, RabbitMQStore):
        return queue_usage.usage(store, progress)
    return count_log(store.directory.root, threads=2, progress=progress)


_WORK: dict[str, tuple[str, Callable[[OpenStore, Progress], Any], str]] = {
    "verify": ("Verifying", _verify, "index entries"),
    "usage": ("Counting", _usage, "queues"),
}


def _start_check(request: PageRequest, opened: OpenStore, kind: str, *, again: bool = False) -> Job:
    title, work, unit = _WORK[kind]
    return request.console.jobs.start(
        kind,
        f"{title} {opened.name}",
        lambda progress: work(opened, progress),
        store=opened.number,
        key=opened.key,
        unit="bytes" if opened.family == "rocketmq" else unit,
        again=again,
    )


def start_verify(request: PageRequest) -> Response:
    opened = request.store
    request.waited(_start_check(request, opened, "verify", again=True))
    return request.go(f"/stores/{opened.number}/verify")


def verify(request: PageRequest) -> Response:
    opened = request.store
    job = request.console.jobs.find("verify", opened.key)
    report: Report | None = job.result if job is not None and job.state is State.DONE else None
    values: dict[str, Any] = {
        "store": opened,
        "section": "verify",
        "job": job,
        "report": report,
        "refresh": job is not None and not job.over,
    }
    if report is None:
        return request.show("verify.html", **values)
    start = request.number("from") or 0
    sizes = {name: entry.size for name, entry in opened.store.directory.walk()}
    damaged = dict.fromkeys(item.file for item in report.damage)
    maps = [(name, map_of(name, sizes[name], sizes[name], report.damage)) for name in damaged if sizes.get(name)]
    return request.show(
        "verify.html",
        **values,
        damage=report.damage[start : start + SHOWN],
        start=start,
        size=SHOWN,
        maps=maps[:MAPS],
        more_maps=max(0, len(maps) - MAPS),
    )


def start_usage(request: PageRequest) -> Response:
    opened = request.store
    request.waited(_start_check(request, opened, "usage", again=True))
    return request.go(f"/stores/{opened.number}/usage")


def usage(request: PageRequest) -> Response:
    opened = request.store
    job = request.console.jobs.find("usage", opened.key)
    report = job.result if job is not None and job.state is State.DONE else None
    values: dict[str, Any] = {
        "store": opened,
        "section": "usage",
        "job": job,
        "report": report,
        "refresh": job is not None and not job.over,
    }
    if report is None:
        return request.show("usage.html", **values)
    if opened.family == "rabbitmq":
        return request.show("queueusage.html", **values, files=report.files[:SHOWN], queues=report.queues[:SHOWN], wide=True)
    parts = (
        ("Bodies", report.total.body),
        ("Properties", report.total.properties),
        ("Overhead of records", report.total.overhead),
        ("Fillers at file ends", report.filler_bytes),
        ("Damaged", report.damaged_bytes),
        ("Unwritten", report.unwritten_bytes),
    )
    tables = [
        (title, by, report.rows(by))
        for title, by in (("By topic", "topic"), ("By queue", "queue"), ("By day", "day"), ("What retains the log files", "retained"))
    ]
    return request.show("usage.html", **values, parts=parts, tables=tables, shown=SHOWN, wide=True)


ROUTES = (
    PageRoute("/stores/{number:int}/verify", verify),
    PageRoute("/stores/{number:int}/verify", start_verify, posts=True),
    PageRoute("/stores/{number:int}/usage", usage),
    PageRoute("/stores/{number:int}/usage", start_usage, posts=True),
)
