"""Verify and usage: long work over a whole store, done by jobs that are started from here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from mqstore.console.damage_map import map_of
from mqstore.console.jobs import Job, Progress, State
from mqstore.console.page import Asked
from mqstore.console.pages.rule import Rule
from mqstore.console.stores import Opened
from mqstore.findings import Report
from mqstore.pipeline.jobs.usage import usage as count_log
from mqstore.rabbitmq.store import usage as queue_usage
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rocketmq.verify import verification

__all__ = ["RULES", "start_verify"]

SHOWN = 200
MAPS = 60


def _verify(opened: Opened, progress: Progress) -> Report:
    store = opened.store
    return store.verify(progress) if isinstance(store, RabbitMQStore) else verification.verify(store, threads=2, progress=progress)


def _usage(opened: Opened, progress: Progress) -> Any:
    store = opened.store
    if isinstance(store, RabbitMQStore):
        return queue_usage.usage(store, progress)
    return count_log(store.directory.root, threads=2, progress=progress)


_WORK: dict[str, tuple[str, Callable[[Opened, Progress], Any], str]] = {
    "verify": ("Verifying", _verify, "index entries"),
    "usage": ("Counting", _usage, "queues"),
}


def _start(asked: Asked, opened: Opened, kind: str, *, again: bool = False) -> Job:
    title, work, unit = _WORK[kind]
    return asked.console.jobs.start(
        kind,
        f"{title} {opened.name}",
        lambda progress: work(opened, progress),
        store=opened.number,
        key=opened.key,
        unit="bytes" if opened.family == "rocketmq" else unit,
        again=again,
    )


def start_verify(asked: Asked) -> Response:
    opened = asked.store
    asked.waited(_start(asked, opened, "verify", again=True))
    return asked.go(f"/stores/{opened.number}/verify")


def verify(asked: Asked) -> Response:
    opened = asked.store
    job = asked.console.jobs.find("verify", opened.key)
    report: Report | None = job.result if job is not None and job.state is State.DONE else None
    values: dict[str, Any] = {
        "store": opened,
        "section": "verify",
        "job": job,
        "report": report,
        "refresh": job is not None and not job.over,
    }
    if report is None:
        return asked.show("verify.html", **values)
    start = asked.number("from") or 0
    sizes = {name: entry.size for name, entry in opened.store.directory.walk()}
    damaged = dict.fromkeys(item.file for item in report.damage)
    maps = [(name, map_of(name, sizes[name], sizes[name], report.damage)) for name in damaged if sizes.get(name)]
    return asked.show(
        "verify.html",
        **values,
        damage=report.damage[start : start + SHOWN],
        start=start,
        size=SHOWN,
        maps=maps[:MAPS],
        more_maps=max(0, len(maps) - MAPS),
    )


def start_usage(asked: Asked) -> Response:
    opened = asked.store
    asked.waited(_start(asked, opened, "usage", again=True))
    return asked.go(f"/stores/{opened.number}/usage")


def usage(asked: Asked) -> Response:
    opened = asked.store
    job = asked.console.jobs.find("usage", opened.key)
    report = job.result if job is not None and job.state is State.DONE else None
    values: dict[str, Any] = {
        "store": opened,
        "section": "usage",
        "job": job,
        "report": report,
        "refresh": job is not None and not job.over,
    }
    if report is None:
        return asked.show("usage.html", **values)
    if opened.family == "rabbitmq":
        return asked.show("queueusage.html", **values, files=report.files[:SHOWN], queues=report.queues[:SHOWN], wide=True)
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
        for title, by in (("By topic", "topic"), ("By queue", "queue"), ("By day", "day"), ("What keeps the log files", "retained"))
    ]
    return asked.show("usage.html", **values, parts=parts, tables=tables, shown=SHOWN, wide=True)


RULES = (
    Rule("/stores/{number:int}/verify", verify),
    Rule("/stores/{number:int}/verify", start_verify, posts=True),
    Rule("/stores/{number:int}/usage", usage),
    Rule("/stores/{number:int}/usage", start_usage, posts=True),
)
