"""Jobs and their pages: verify and usage of a whole store, progress and cancellation of any."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.responses import Response

from mqstore.console.drawing import map_of
from mqstore.console.jobs import Job, State, start_check
from mqstore.console.page import PageRequest, PageRoute
from mqstore.findings import Report
from mqstore.report.checks import UsageReport, usage_parts, verify_parts
from mqstore.report.parts import Table

SHOWN = 200
FIRST = 12  # rows of the first page of each table of usage
MAPS = 60
_UNLISTED = frozenset({"look", "draw"})  # of every store, as soon as its page is opened


def start_verify(request: PageRequest) -> Response:
    opened = request.store
    request.waited(start_check(request.console.jobs, opened, "verify", again=True))
    return request.go(f"/stores/{opened.number}/verify")


def _job_values(request: PageRequest, kind: str) -> dict[str, Any]:
    opened = request.store
    job = request.console.jobs.find(kind, opened.key)
    report = job.result if job is not None and job.state is State.DONE else None
    return {"store": opened, "section": kind, "job": job, "report": report, "refresh": job is not None and not job.over}


def verify(request: PageRequest) -> Response:
    values = _job_values(request, "verify")
    report: Report | None = values["report"]
    if report is None:
        return request.show("verify.html", **values)
    start = request.number("from") or 0
    sizes = {name: entry.size for name, entry in request.store.store.directory.walk()}
    damaged = dict.fromkeys(item.file for item in report.damage)
    maps = [(name, map_of(name, sizes[name], sizes[name], report.damage)) for name in damaged if sizes.get(name)]
    return request.show(
        "verify.html",
        **values,
        parts=request.parts(verify_parts(report, values["job"].seconds)),
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
    values = _job_values(request, "usage")
    report: UsageReport | None = values["report"]
    if report is None:
        return request.show("usage.html", **values)
    further = ("queue", "retained") if report.family == "rocketmq" else ()
    parts = usage_parts(report, None, values["job"].seconds, further=further, zone=request.zone)
    shown = (replace(part, shown=FIRST) if isinstance(part, Table) else part for part in parts)
    return request.show("usage.html", **values, parts=request.parts(shown), wide=True)


def start_all(request: PageRequest) -> Response:
    """Start every check of the overview."""
    opened = request.store
    for kind in ("diagnose", "verify", "usage"):
        start_check(request.console.jobs, opened, kind)
    return request.go(f"/stores/{opened.number}")


def _result_address(job: Job) -> str | None:
    """Return the address of the page that shows a job's result."""
    if job.store is None or job.state is not State.DONE:
        return None
    base = f"/stores/{job.store}"
    return {"verify": f"{base}/verify", "usage": f"{base}/usage", "look": base, "draw": base, "diagnose": base}.get(job.kind)


# jobs


def jobs(request: PageRequest) -> Response:
    listed = [(job, _result_address(job)) for job in request.console.jobs.all() if job.kind not in _UNLISTED or not job.over]
    return request.show("jobs.html", section="jobs", listed=listed, refresh=any(not job.over for job, _ in listed))


def one(request: PageRequest) -> Response:
    job = request.console.jobs.get(str(request.http.path_params["job"]))
    return request.show("job.html", section="jobs", job=job, target=_result_address(job), refresh=not job.over)


def cancel(request: PageRequest) -> Response:
    job = request.console.jobs.get(str(request.http.path_params["job"]))
    request.console.jobs.cancel(job)
    job.settled.wait(1.0)
    return request.back(f"/jobs/{job.id}")


ROUTES = (
    PageRoute("/stores/{number:int}/check", start_all, posts=True),
    PageRoute("/stores/{number:int}/verify", verify),
    PageRoute("/stores/{number:int}/verify", start_verify, posts=True),
    PageRoute("/stores/{number:int}/usage", usage),
    PageRoute("/stores/{number:int}/usage", start_usage, posts=True),
    PageRoute("/jobs", jobs),
    PageRoute("/jobs/{job}", one),
    PageRoute("/jobs/{job}/cancel", cancel, posts=True),
)
