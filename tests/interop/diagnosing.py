"""What `diagnose` predicts of RocketMQ stores, beside what the real store of the version makes of copies of them.

The oracle finds queues in RocksDB by the records of the log: what was lost is not known if it stops before the end, or if reading fails.
A message counts as lost by the real store if pulls from the minimum of its queue do not hand it out whole any more (in RocksDB: no entry of
its queue leads to it), or the log ends before it, or its record can no longer be parsed. A store that neither starts nor says why within
the patience counts as one that does not start: 4.9.3 waits forever for bytes that no file has.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interop.realbroker import Job, oracle

from mqstore.diagnosis import Diagnosis
from mqstore.places import open_rocketmq
from mqstore.rocketmq.diagnosis.diagnosis import diagnose
from mqstore.rocketmq.format.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, Record

__all__ = ["Outcome", "Place", "outcomes_of"]

PATIENCE = 60.0  # seconds without a further answer, more under load, after which the stores without one are given up
POLL = 0.2
READING = "mqstore.oracle.Report"  # in a stack trace: the store had started, and the oracle was reading


@dataclass(frozen=True)
class Place:
    """A store that is asked about. base: the store that it was made from, with the messages that it should still have.

    questions: key queries that the real store answers in `report/queries.jsonl`.
    """

    name: str
    store: Path
    base: Path
    options: Mapping[str, str]
    questions: Sequence[Mapping[str, object]] = ()


@dataclass(frozen=True)
class Outcome:
    """What the real store made of a place. lost: messages of the base that it no longer delivers; None: not known."""

    name: str
    predicted: Diagnosis
    starts: bool
    lost: int | None
    error: str


def outcomes_of(version: str, places: Sequence[Place], work: Path, *, threads: int = 32, patience: float = PATIENCE) -> list[Outcome]:
    """Predict what becomes of stores under a version, then let its real store load and start on copies of them."""
    work.mkdir(parents=True, exist_ok=True)
    jobs = []
    configs: dict[str, Path] = {}
    for number, place in enumerate(places):
        out = work / f"{number}"
        out.mkdir()
        configs[place.name] = out / "store.properties"
        configs[place.name].write_text("".join(f"{name}={value}\n" for name, value in place.options.items()))
        asked = out / "questions.jsonl"
        asked.write_text("".join(json.dumps(question) + "\n" for question in place.questions), encoding="utf-8")
        words = ("report", str(place.store), "--tmp", str(out), "--out", str(out / "report"), "--queries", str(asked))
        jobs.append(Job(str(number), words, dict(place.options)))
    errors = _boot(version, jobs, work, threads, patience)
    bases: dict[Path, dict[int, tuple[str, int, int]]] = {}
    found = []
    for number, place in enumerate(places):
        config, report = configs[place.name], work / f"{number}" / "report"
        predicted = diagnose(open_rocketmq(place.store, config=config), version)
        boot = _lines(report / "boot.json")[0] if (report / "boot.json").exists() else {"load_ok": False}
        error = errors.get(str(number))
        starts = bool(boot["load_ok"]) if error is None else READING in error
        lost = None
        if starts and error is None and (boot["walk_stopped_at"] is None or place.options.get("storeType") != "defaultRocksDB"):
            if place.base not in bases:
                bases[place.base] = _messages(place.base, config)
            lost = _lost(bases[place.base], place.store, config, report, boot["max_phy_offset"])
        found.append(Outcome(place.name, predicted, starts, lost, str(boot.get("load_error") or error or "")))
    return found


def _boot(version: str, jobs: Sequence[Job], work: Path, threads: int, patience: float) -> dict[str, str]:
    """Run all jobs in one JVM; return what went wrong, by job."""
    list_file, answers = work / "jobs.jsonl", work / "answers.jsonl"
    lines = [{"id": job.id, "args": job.command(), "stdout": str(work / f"{job.id}.out")} for job in jobs]
    list_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with answers.open("wb") as out, (work / "java.err").open("wb") as errors:
        running = subprocess.Popen(oracle(version, "batch", str(list_file), "--threads", str(threads)), stdout=out, stderr=errors)
    done, since = -1, time.monotonic()
    while running.poll() is None and time.monotonic() - since < patience * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)):
        time.sleep(POLL)
        now = len(_lines(answers)) + sum((work / job.id / "report" / "boot.json").exists() for job in jobs)
        if now != done:
            done, since = now, time.monotonic()
    running.kill()
    running.wait()
    told = {row["id"]: row.get("error") for row in _lines(answers)}
    given_up = {job.id: "no answer" for job in jobs if job.id not in told and not (work / job.id / "report" / "boot.json").exists()}
    return {name: str(error) for name, error in told.items() if error is not None} | given_up


def _messages(store: Path, config: Path) -> dict[int, tuple[str, int, int]]:
    """Return the messages that queues of a store should list: physical offset -> topic, queue id, size."""
    opened = open_rocketmq(store, config=config)
    found = {}
    for queue in opened.view("recovered").queues():
        for row in queue.entries(queue.min_offset, queue.max_offset):
            message = opened.log.record(int(row["physical_offset"]))
            if message is not None and (message.topic, message.queue_id) == (queue.topic, queue.queue_id):
                found[int(row["physical_offset"])] = (queue.topic, queue.queue_id, int(row["size"]))
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, without a last line that is still being written."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].split("\n") if line]


def _lost(messages: Mapping[int, tuple[str, int, int]], store: Path, config: Path, report: Path, end: int) -> int | None:
    opened = open_rocketmq(store, config=config)
    log, pulled = opened.log, report / "pulled.jsonl"
    longest: dict[tuple[str, int, int], int] = {}
    listed = [(queue["topic"], queue["queue_id"], *entry[:2]) for queue in _lines(report / "queues.jsonl") for entry in queue["entries"]]
    listed += [  # the report has no entries of a queue whose minimum no file has
        (queue.topic, queue.queue_id, *row[:2])
        for queue in opened.consume_queues()
        for file in queue.files
        for row in queue.rows(file).tolist()
    ]
    for topic, queue_id, at, size in listed:
        key = (topic, queue_id, at or log.start)  # where no file has 0, the first one is read
        longest[key] = max(longest.get(key, 0), size)
    handed = longest.keys()
    if pulled.exists():
        handed = {
            (queue["topic"], queue["queue_id"], at)
            for queue in _lines(pulled)
            for number, at in enumerate(queue["physical_offsets"])
            if at or not number  # the first message of a log is the first of its queue; bytes of no record read as 0, too
        }
    return sum(
        (topic, queue_id, offset) not in handed
        or longest.get((topic, queue_id, offset), size) < size
        or offset + size > end
        or not _is_message(log.record(offset))
        for offset, (topic, queue_id, size) in messages.items()
        if offset >= log.start  # the messages of a missing oldest file have expired, as far as anything shows
    )


def _is_message(record: Record | None) -> bool:
    """Return whether a message is left at a place: the body of a rolled-back one, with which a repair fills bytes, is none."""
    return record is not None and record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


def describe(outcomes: Iterable[Outcome]) -> dict[str, tuple[object, ...]]:
    """Return the outcomes for the message of a failed test."""
    return {
        item.name: (item.predicted.starts, item.starts, item.predicted.loses, item.lost, item.predicted.unknown, item.error[:300])
        for item in outcomes
    }
