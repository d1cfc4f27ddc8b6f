"""Find in a RabbitMQ store: groups of queues searched in threads or on Spark; the hits are those of `rabbitmq.find`, in its order."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from mqstore.findings import Damage
from mqstore.jobs.report import Progress
from mqstore.jobs.runner import Runner, choose_runner
from mqstore.rabbitmq.find import FOUND_COLUMNS, FoundInQueues, find, find_delayed
from mqstore.rabbitmq.site import absent_queues
from mqstore.rabbitmq.store import task_groups
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.store.task_groups import QueueGroup
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import clock, count, size
from mqstore.table.needle import Needle
from mqstore.table.text import rabbitmq_columns_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DEFAULT_LIMIT = 10_000
FINDINGS_NAMED = 20


@dataclass(frozen=True, slots=True)
class FindInQueuesReport:
    """Outcome of a search. rows: hits as JSON values, up to the limit; counts: of all; runs_on, why: where it ran, and why.

    damage: the store's findings, because of which messages may be missing; absent: sentences on parts that are not here.
    """

    family: ClassVar[str] = "rabbitmq"

    store: str
    text: str
    rows: tuple[dict[str, Any], ...]
    counts: FoundInQueues
    seconds: float
    runs_on: str
    damage: tuple[Damage, ...]
    why: str = ""
    absent: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether a message with the text cannot have been missed."""
        return not self.damage and not self.counts.unreadable and not self.absent

    @property
    def hits(self) -> int:
        """How many there are, also beyond the limit."""
        return self.counts.hits

    @property
    def extent(self) -> str:
        """What was searched, and how fast."""
        return f"{count(self.counts.messages, 'message')}, {size(self.counts.bytes)} of payloads searched in {clock(self.seconds)}"

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences on what the search could not see, and on what an answer without hits is worth."""
        limits = [f"{item.file} at {item.offset}: {item.detail}" for item in self.damage[:FINDINGS_NAMED]]
        if len(self.damage) > FINDINGS_NAMED:
            limits.append(f"and {len(self.damage) - FINDINGS_NAMED} further findings; `mqstore verify` lists them all")
        if self.counts.unreadable:
            unread = count(self.counts.unreadable, "message")
            limits.append(f"{unread} could not be searched, because their bytes are damaged or lost")
        limits += self.absent
        if not self.hits and self.complete:
            limits.append("not found: no message in these files has it")
        elif not self.hits:
            limits.append("not found; whether a message that could not be searched has it is unknown")
        return tuple(limits)

    def columns(self, body: str) -> tuple[str, ...]:
        """Return the names of the values of a row. body: as for `find_in_queues`."""
        names = ("properties" if name == "properties_json" else name for name in rabbitmq_columns_for(body))
        return (*(name for name in names if name not in FOUND_COLUMNS), *FOUND_COLUMNS)

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `find -o json` prints."""
        return {
            "store": self.store,
            "text": self.text,
            "hits": self.counts.hits,
            "messages": list(self.rows),
            "complete": self.complete,
            "read": {
                "messages": self.counts.messages,
                "bytes": self.counts.bytes,
                "seconds": round(self.seconds, 3),
                "runs_on": self.runs_on,
                "why": self.why,
            },
            "messages_not_readable": self.counts.unreadable,
        }


@dataclass(frozen=True, slots=True)
class _Task:
    """The search of one group. token, now, names: as for `task_groups.open_cached`."""

    root: str
    token: str
    now: int | None
    names: tuple[tuple[str, str], ...]
    group: QueueGroup
    text: str
    body: str
    limit: int


@dataclass(slots=True)
class _TaskResult:
    rows: list[dict[str, Any]] = field(default_factory=list)
    counts: FoundInQueues = field(default_factory=FoundInQueues)
    damage: tuple[Damage, ...] = ()


def find_in_queues(
    store: RabbitMQStore,
    text: str,
    *,
    body: str = "sha256",
    limit: int | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> FindInQueuesReport:
    """Find the messages of a store, opened carefully, that hold a text.

    body: how rows show payloads: none, sha256, base64 or text. limit: rows to return; further hits are counted. spark,
    master, threads: as for `mqstore.jobs.verify.verify`. progress: called with (bytes of files searched, bytes of files to search).
    Raises CannotOpenError, UsageError, and PipelineError if Spark cannot run.
    """
    choice = choose_runner(store.path, partial(task_groups.stored_bytes, store), spark=spark, master=master, threads=threads)
    root, token = os.path.abspath(store.directory.root), task_groups.files_token(store) if choice.threads is None else ""
    task = _Task(root, token, store.now, store.names, QueueGroup(0, (), (), 0), Needle(text).text, body, limit or DEFAULT_LIMIT)
    with choice.runner(spark) as runner:
        report = _run(store, runner, task, progress)
    return replace(report, why=choice.why, absent=tuple(each.sentence for each in absent_queues(store) if each.sure))


def _run(store: RabbitMQStore, runner: Runner, task: _Task, progress: Progress | None) -> FindInQueuesReport:
    started = time.monotonic()
    groups = task_groups.plan_queues(store, 4 * runner.width, QueueSelection(everything=True))
    total = sum(group.bytes for group in groups)

    def done(finished: int) -> None:
        if progress is not None:
            progress(sum(group.bytes for group in groups[:finished]), total)

    tasks = [replace(task, group=group) for group in groups]
    # in this process all tasks share the store that is open, and what was read of it
    outcomes: Iterator[_TaskResult] = runner.each(tasks, partial(_search, store) if runner.shares_memory else _open_and_search, done)
    rows: list[dict[str, Any]] = []
    counts = FoundInQueues()
    damage = dict.fromkeys(store.findings)
    for outcome in outcomes:
        rows += outcome.rows[: max(0, task.limit - len(rows))]
        counts.add(outcome.counts)
        damage.update(dict.fromkeys(outcome.damage))
    rows += islice(find_delayed(store, Needle(task.text), counts, body=task.body), max(0, task.limit - len(rows)))
    return FindInQueuesReport(str(store.path), task.text, tuple(rows), counts, time.monotonic() - started, runner.name, tuple(damage))


def _open_and_search(task: _Task) -> _TaskResult:
    return _search(task_groups.open_cached(task.root, task.token, task.now, task.names, careful=True), task)


def _search(store: RabbitMQStore, task: _Task) -> _TaskResult:
    result = _TaskResult()
    pieces = task_groups.group_rows(store, task.group, QueueSelection(everything=True))
    hits = find(store, Needle(task.text), result.counts, body=task.body, pieces=pieces)
    result.rows = list(islice(hits, task.limit))
    for _ in hits:  # counted, not kept
        pass
    result.damage = tuple(store.walked) if task.group.segments else ()
    return result
