"""One text, looked for in all stores of the console."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.responses import Response

from mqstore.console.jobs import Job, Progress, State
from mqstore.console.page import JOB_WAIT, PageRequest, address
from mqstore.console.pages.route import PageRoute
from mqstore.console.stores import OpenStore
from mqstore.errors import MqstoreError
from mqstore.jobs.find import find as search_log
from mqstore.rabbitmq.find import FoundInQueues
from mqstore.rabbitmq.find import find as search_queues
from mqstore.rabbitmq.store.store import RabbitMQStore
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


def _search(opened: OpenStore, needle: Needle, progress: Progress) -> _Found:
    if isinstance(opened.store, RabbitMQStore):
        return _search_queues(opened.store, opened.number, needle, progress)
    report = search_log(opened.rocketmq.directory.root, needle.text, body="none", limit=SHOWN, threads=2, progress=progress)
    sentences = [f"{report.records:,} records were read: {report.how}"]
    sentences += [f"the text is in damaged bytes of {file} at {offset:,}" for file, offset in report.buried[:10]]
    if not report.complete:
        sentences.append("parts of the log are damaged: whether a message that was there had the text is unknown")
    rows = [
        row
        | {
            "link": address(f"/stores/{opened.number}/message", offset=row["physical_offset"]),
            "where": f"{row['topic']}, queue {row['queue_id']}, offset {row['queue_offset']:,}",
            "what": row["keys"] or row["uniq_key"] or "",
        }
        for row in report.rows
    ]
    return _Found(report.hits, tuple(rows), (*sentences, *report.notes))


def _search_queues(store: RabbitMQStore, number: int, needle: Needle, progress: Progress) -> _Found:
    counts = FoundInQueues()
    hits = search_queues(store, needle, counts, body="none", progress=progress)
    rows = []
    for row in islice(hits, SHOWN):
        place = {"vhost": row["vhost"], "queue": row["queue"], "level": row["priority_level"], "seq": row["seq_id"]}
        queue = row["queue"] or "in no queue"
        where = queue if row["seq_id"] is None else f"{queue} of vhost {row['vhost'] or '?'}, sequence id {row['seq_id']:,}"
        link = "" if row["queue"] is None or row["seq_id"] is None else address(f"/stores/{number}/message", **place)
        rows.append(row | {"link": link, "where": where, "what": (row["properties"] or {}).get("message_id") or "", "not_consumed_by": []})
    for _ in hits:  # counted, not kept
        pass
    sentences = [f"{counts.messages:,} messages were searched, acknowledged ones in the files included"]
    if counts.unreadable:
        sentences.append(f"{counts.unreadable:,} messages are damaged or lost: whether one of them had the text is unknown")
    return _Found(counts.hits, tuple(rows), tuple(sentences))


def _line(request: PageRequest, number: int, needle: Needle, until: float) -> _Line:
    """Return what is known of one store. until: monotonic time after which an unfinished search is no longer waited for."""
    stores = request.console.stores
    name = stores.names[number]
    try:
        opened = stores.get(number)
        job = request.console.jobs.start(
            "find",
            f"Finding {needle.text!r} in {name}",
            lambda progress: _search(opened, needle, progress),
            store=number,
            key=(*opened.key, needle.text),
            unit="bytes" if opened.family == "rocketmq" else "messages",
        )
        job.settled.wait(max(0.0, until - time.monotonic()))
        return _Line(number, name, job.error, job)
    except (MqstoreError, OSError) as error:
        return _Line(number, name, str(error), None)


def find(request: PageRequest) -> Response:
    text = request.text("text")
    if not text:
        return request.show("find.html", section="stores", text="", lines=[], wide=True)
    needle = Needle(text)
    numbers = range(len(request.console.stores))
    for number in numbers:  # start all before waiting for one
        _line(request, number, needle, 0.0)
    until = time.monotonic() + JOB_WAIT
    lines = [_line(request, number, needle, until) for number in numbers]
    refresh = any(line.job is not None and not line.job.over for line in lines)
    return request.show("find.html", section="stores", text=text, lines=lines, wide=True, refresh=refresh)


ROUTES = (PageRoute("/find", find),)
