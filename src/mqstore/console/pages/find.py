"""One text, looked for in all stores of the console."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from mqstore.console.jobs import Job, Progress, State
from mqstore.console.page import JOB_WAIT, PageRequest, PageRoute, address
from mqstore.console.stores import OpenStore
from mqstore.errors import MqstoreError
from mqstore.rocketmq.find import FindReport
from mqstore.table.formatting import agreeing
from mqstore.table.needle import Needle

SHOWN = 200


@dataclass(frozen=True, slots=True)
class _Found:
    """The hits in one store. sentences: what was read, and what could not be."""

    hits: int
    rows: tuple[dict[str, Any], ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    name: str
    error: str
    job: Job | None

    @property
    def found(self) -> _Found | None:
        result: _Found | None = self.job.result if self.job is not None and self.job.state is State.DONE else None
        return result


def _search(opened: OpenStore, text: str, progress: Progress) -> _Found:
    report = opened.store.find(text, body="none", limit=SHOWN, threads=2, progress=progress)
    if isinstance(report, FindReport):
        sentences = [f"{agreeing(report.records, 'record', 'was', 'were')} read: {report.how}"]
        sentences += [f"the text is in damaged bytes of {file} at {offset:,}" for file, offset in report.buried[:10]]
        if not report.complete:
            sentences.append("parts of the log are damaged: whether a message that was there had the text is unknown")
        return _Found(report.hits, tuple(_in_log(opened, row) for row in report.rows), (*sentences, *report.notes))
    counts = report.counts
    sentences = [f"{agreeing(counts.messages, 'message', 'was', 'were')} searched, acknowledged ones in the files included"]
    if counts.unreadable:
        lost = agreeing(counts.unreadable, "message", "is", "are")
        sentences.append(f"{lost} damaged or lost: whether one of them had the text is unknown")
    return _Found(counts.hits, tuple(_in_queue(opened, row) for row in report.rows), tuple(sentences))


def _in_log(opened: OpenStore, row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "link": address(f"/stores/{opened.number}/message", offset=row["physical_offset"]),
        "where": f"{row['topic']}, queue {row['queue_id']}, offset {row['queue_offset']:,}",
        "what": row["keys"] or row["uniq_key"] or "",
    }


def _in_queue(opened: OpenStore, row: dict[str, Any]) -> dict[str, Any]:
    queue, seq = row["queue"], row["seq_id"]
    place = {"vhost": row["vhost"], "queue": queue, "level": row["priority_level"], "seq": seq}
    where = queue or "in no queue"
    return row | {
        "link": "" if queue is None or seq is None else address(f"/stores/{opened.number}/message", **place),
        "where": where if seq is None else f"{where} of vhost {row['vhost'] or '?'}, sequence id {seq:,}",
        "what": (row["properties"] or {}).get("message_id") or "",
        "not_consumed_by": [],
    }


def _line(request: PageRequest, number: int, text: str, until: float) -> _Line:
    """Return what is known of one store. until: monotonic time after which an unfinished search is no longer waited for."""
    stores = request.console.stores
    name = stores.names[number]
    try:
        opened = stores.get(number)
        job = request.console.jobs.start(
            "find",
            f"Finding {text!r} in {name}",
            lambda progress: _search(opened, text, progress),
            store=number,
            key=(*opened.key, text),
        )
        job.settled.wait(max(0.0, until - time.monotonic()))
        return _Line(number, name, job.error, job)
    except (MqstoreError, OSError) as error:
        return _Line(number, name, str(error), None)


def find(request: PageRequest) -> Response:
    text = request.text("text")
    if not text:
        return request.show("find.html", section="stores", text="", lines=[], wide=True)
    text = Needle(text).text
    numbers = range(len(request.console.stores))
    for number in numbers:  # start all before waiting for one
        _line(request, number, text, 0.0)
    until = time.monotonic() + JOB_WAIT
    lines = [_line(request, number, text, until) for number in numbers]
    lines.sort(key=lambda line: line.found is not None and not line.found.hits)  # what was found first
    refresh = any(line.job is not None and not line.job.over for line in lines)
    return request.show("find.html", section="stores", text=text, lines=lines, wide=True, refresh=refresh)


ROUTES = (PageRoute("/find", find),)
