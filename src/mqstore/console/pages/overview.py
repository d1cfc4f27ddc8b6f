"""The first page of a store: its state in one line, messages over time or the depth of queues, its files, lag, and what fills the disk."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from mqstore.console.drawing import DEPTH, Bar, columns_of, depth_bars, file_strips
from mqstore.console.jobs import NoDiagnosis, State, is_small, result_of, start_check
from mqstore.console.page import JOB_WAIT, PageRequest, PageRoute
from mqstore.console.pages.files import damage_of, log_end, written_bytes
from mqstore.console.pages.home import Health, store_line
from mqstore.console.stores import OpenStore
from mqstore.diagnosis import Diagnosis
from mqstore.rabbitmq.queue_states import QueueDepth
from mqstore.report.checks import diagnosis_parts
from mqstore.report.parts import NextStep, Part, Table
from mqstore.report.queues import progress_notes
from mqstore.report.summary import summary_parts
from mqstore.rocketmq.store.timeline import Timeline
from mqstore.rocketmq.store.view import ConsumerGroup, groups_of
from mqstore.table.formatting import count

SHOWN = 10  # bars of a chart


def overview(request: PageRequest) -> Response:
    opened = request.store
    jobs = request.console.jobs
    small = is_small(opened)
    kinds = ("draw", "diagnose", "verify", "usage") if small else ("draw",)
    until = time.monotonic() + JOB_WAIT
    started = [start_check(jobs, opened, kind) for kind in kinds]
    line = store_line(request, opened.number, until)
    for job in started:
        job.settled.wait(max(0.0, until - time.monotonic()))
    unfinished = [job for job in jobs.all() if job.key == opened.key and not job.over]
    result = result_of(jobs, opened, "diagnose")
    damage, proved = damage_of(request, opened)
    end = log_end(opened)
    files = [(name, entry.size) for name, entry in opened.store.directory.walk()]
    return request.show(
        "store.html",
        store=opened,
        line=line,
        section="overview",
        refresh=bool(unfinished),
        running=[job for job in unfinished if job.kind != "look"],
        failed=[job for job in started if job.state is State.FAILED],
        diagnosis=result if isinstance(result, Diagnosis) else None,
        summary=request.parts(_summary(line.health, result)) if line.health is not None else "",
        reasons=request.parts(list(diagnosis_parts(result))[2:]) if isinstance(result, Diagnosis) else "",
        undiagnosed=result.why if isinstance(result, NoDiagnosis) else "",
        small=small,
        unchecked=[kind for kind in ("diagnose", "verify", "usage") if jobs.find(kind, opened.key) is None],
        strips=file_strips(files, damage, lambda name, size: written_bytes(name, size, end)),
        proved=proved,
        states=DEPTH,
        **_pictures(opened, result_of(jobs, opened, "draw"), result_of(jobs, opened, "usage")),
    )


def _summary(health: Health, diagnosis: Diagnosis | None) -> Iterator[Part]:
    """Yield the parts of a summary but for what the page shows by itself: files, findings, and the next step of a diagnosis."""
    for part in summary_parts(replace(health.summary, findings=())):
        if not (isinstance(part, NextStep) and diagnosis is not None) and not (isinstance(part, Table) and part.title == "Files"):
            yield part


def _pictures(opened: OpenStore, drawn: Any, usage: Any) -> dict[str, Any]:
    """Return the template values of the charts. drawn: a timeline or the depths of queues; usage: the report; None: not known yet."""
    if opened.family == "rabbitmq":
        depths: Sequence[QueueDepth] = drawn or ()
        full = sorted((depth for depth in depths if depth.messages), key=lambda depth: (-depth.messages, depth.vhost, depth.queue))
        disk = (
            []
            if usage is None
            else [(f"{queue.queue} of {queue.vhost}", queue.bytes + queue.index_bytes, queue.messages) for queue in usage.queues]
            + [(f"{row['queue']} of {row['vhost'] or '?'}", row["bytes"], row["messages"]) for row in usage.rows("member")]
            + [
                (f"{row['stream']} of {row['vhost'] or '?'}", row["bytes"] + row["index_bytes"], row["messages"])
                for row in usage.rows("stream")
            ]
        )
        return {
            "depths": None if drawn is None else depth_bars(full[:SHOWN]),
            "more_depths": max(0, len(full) - SHOWN),
            "unrecorded": any(not depth.clean for depth in full),
            "chart": None,
            "lags": None,
            "more_lags": 0,
            **_disk(disk, known=usage is not None),
        }
    timeline: Timeline | None = drawn
    lags = _lags(opened.cached("groups", lambda: groups_of(opened.view("disk").consumer_offsets())))
    topics = [] if usage is None else [(str(row["topic"]), int(row["bytes"]), int(row["messages"])) for row in usage.rows("topic")]
    return {
        "depths": None,
        "more_depths": 0,
        "unrecorded": False,
        "chart": None if timeline is None else columns_of(timeline),
        "lags": lags[:SHOWN],
        "more_lags": max(0, len(lags) - SHOWN),
        **_disk(topics, known=usage is not None),
    }


def _disk(rows: list[tuple[str, int, int]], *, known: bool) -> dict[str, Any]:
    rows = sorted((row for row in rows if row[1]), key=lambda row: (-row[1], row[0]))
    longest = rows[0][1] if rows else 1
    bars = [Bar(name, amount, amount / longest, messages) for name, amount, messages in rows[:SHOWN]]
    return {"disk": bars if known else None, "more_disk": max(0, len(rows) - SHOWN)}


def _lags(groups: Sequence[ConsumerGroup]) -> list[Bar]:
    """Return bars of groups, each with the sum over its queues as on the page of groups."""
    longest = max([1, *(group.lag or 0 for group in groups)])
    notes = [progress_notes(group) + [f"{count(group.odd, 'offset')} outside the queues"] * bool(group.odd) for group in groups]
    return [Bar(group.name, group.lag, (group.lag or 0) / longest, note=", ".join(note)) for group, note in zip(groups, notes, strict=True)]


ROUTES = (PageRoute("/stores/{number:int}", overview),)
