"""Verify and usage: long jobs over a whole store, started from their pages."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mqstore.console.checkup import start_check
from mqstore.console.damage_map import map_of
from mqstore.console.jobs import State
from mqstore.console.page import PageRequest
from mqstore.console.pages.route import PageRoute
from mqstore.findings import Report

SHOWN = 200
MAPS = 60


def start_verify(request: PageRequest) -> Response:
    opened = request.store
    request.waited(start_check(request.console.jobs, opened, "verify", again=True))
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
    request.waited(start_check(request.console.jobs, opened, "usage", again=True))
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


def start_all(request: PageRequest) -> Response:
    """Start every check of the overview."""
    opened = request.store
    for kind in ("diagnose", "verify", "usage"):
        start_check(request.console.jobs, opened, kind)
    return request.go(f"/stores/{opened.number}")


ROUTES = (
    PageRoute("/stores/{number:int}/check", start_all, posts=True),
    PageRoute("/stores/{number:int}/verify", verify),
    PageRoute("/stores/{number:int}/verify", start_verify, posts=True),
    PageRoute("/stores/{number:int}/usage", usage),
    PageRoute("/stores/{number:int}/usage", start_usage, posts=True),
)
