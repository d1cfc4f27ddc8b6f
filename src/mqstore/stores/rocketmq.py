"""A RocketMQ store as `mqstore.open` returns it: messages as a table, SQL, and the verbs of `mqstore.store`.

    store = mqstore.open("/backup/broker-a/store")
    orders = store.messages(topic="orders", since=datetime(2026, 11, 22, tzinfo=UTC))
    len(orders), orders.head(3), orders.to_pandas()
    store.sql("select topic, count(*) as messages from messages group by topic").to_arrow()
    store.verify().damage

Conditions are those of `mqstore.table.Selection`. Nothing is read before rows are asked for, and nothing but what the conditions and
columns need. SQL needs DuckDB (`pip install 'mqstore[sql]'`), and no Java.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.store import NOBODY, StorePlace
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, check_columns, rocketmq_schema
from mqstore.table.rows import Names, Rows, counted, least, names_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mqstore.diagnosis import Diagnosis
    from mqstore.findings import Report
    from mqstore.jobs.report import ExportReport, RebuildReport
    from mqstore.repair.change import Step
    from mqstore.repair.repair import Repair
    from mqstore.rocketmq.find import FindReport
    from mqstore.rocketmq.get import Message
    from mqstore.rocketmq.live.group_reset import GroupReset
    from mqstore.rocketmq.store.known_ranges import KnownRanges
    from mqstore.rocketmq.summary import RocketMQSummary
    from mqstore.rocketmq.usage import UsageReport
    from mqstore.store import Observer, Progress, Store
    from mqstore.wreck.salvage import AnyReport

    _: type[Store]


class RocketMQ(RocketMQStore):
    """A RocketMQ store, read-only. progress_unit: what `verify` and `diagnose` count; usage_unit, export_unit: what
    `usage` and `export` count.
    """

    progress_unit = "bytes"
    usage_unit = "bytes"
    export_unit = "bytes"

    def messages(
        self,
        columns: Sequence[str] = ROCKETMQ_COLUMNS,
        selection: Selection = Selection(),
        *,
        topic: Names = None,
        queue: int | Iterable[int] | None = None,
        tag: Names = None,
        key: Names = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        limit: int | None = None,
    ) -> Rows:
        """Return messages in the order of the log, with what the disk holds: `view("recovered")` has what a broker would.

        topic, queue (by id), tag, key: one or several; a key is one of KEYS or the UNIQ_KEY. since, until: store time from, and up to but
        not including, with a time zone or in milliseconds. selection: further conditions. Raises UsageError.
        """
        selected = check_columns(columns)
        queue_ids = None if queue is None else frozenset((queue,) if isinstance(queue, int) else queue)
        chosen = replace(
            selection,
            topics=selection.topics if topic is None else names_of(topic),
            queue_ids=selection.queue_ids if queue_ids is None else queue_ids,
            tags=selection.tags if tag is None else names_of(tag),
            keys=selection.keys if key is None else names_of(key),
            since=selection.since if since is None else _milliseconds(since),
            until=selection.until if until is None else _milliseconds(until),
            limit=selection.limit if limit is None else limit,
        )

        def read(first: int | None, names: Sequence[str] = selected) -> Iterator[pa.RecordBatch]:
            return self.to_batches(names, replace(chosen, limit=least(first, chosen.limit)))

        return Rows(f"messages of {self._title()}", rocketmq_schema(selected), read, counted(read, "physical_offset"))

    def sql(self, query: str, *, columns: Sequence[str] | None = None) -> Rows:
        """Return the result of a query, in memory; tables: messages, queues, groups, damage, index_entries, timers, findings.

        columns: of `messages`; by default all but the body, with `body_len`. Raises UsageError, and UnsupportedError without DuckDB.
        """
        from mqstore.pipeline.queries.duck import rows_of

        return rows_of(self, query, columns)

    def summary(self) -> RocketMQSummary:
        """Return what `inspect` shows, from names, sizes, headers and the end of the log."""
        from mqstore.rocketmq.summary import summarize

        return summarize(self)

    def get(
        self,
        *,
        offset: int | None = None,
        id: str | None = None,  # noqa: A002
        unique: str | None = None,
        topic: str | None = None,
        queue: int | None = None,
        at: int | None = None,
        view: str = "disk",
    ) -> Message:
        """Return one message in full, by its physical offset, id, unique key (with topic), or queue offset (at, with topic and queue).

        Raises UsageError, NotFoundError.
        """
        from mqstore.rocketmq.get import get

        return get(self, self.view(view), offset=offset, id=id, unique=unique, topic=topic, queue=queue, at=at)

    def find(
        self,
        text: str,
        *,
        whole_key: bool = False,
        body: str = "sha256",
        limit: int | None = None,
        spark: SparkSession | None = None,
        master: str | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> FindReport:
        """Return the messages that hold a text, each with what became of it; arguments as for `mqstore.jobs.find.find`."""
        from mqstore.jobs.find import DEFAULT_LIMIT, find

        return find(
            self, text, whole_key=whole_key, body=body, limit=limit or DEFAULT_LIMIT, spark=spark, master=master, threads=threads,
            progress=progress,
        )  # fmt: skip

    def verify(
        self,
        *,
        spark: SparkSession | None = None,
        master: str | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Report:
        """Check every record, queue entry and index entry, and each against the others; arguments as for `mqstore.jobs.verify.verify`."""
        from mqstore.jobs.verify import verify
        from mqstore.rocketmq.diagnosis.diagnosis import advise

        report = verify(self, spark=spark, master=master, threads=threads, progress=progress)
        return replace(report, advice=advise(self, report))

    def usage(
        self,
        by: str | None = None,
        *,
        prefix: int | None = None,
        spark: SparkSession | None = None,
        master: str | None = None,
        threads: int | None = None,
        splits: int | None = None,
        progress: Progress | None = None,
    ) -> UsageReport:
        """Return what takes the space in the log, and what its files retain; arguments as for `mqstore.jobs.usage.usage`.

        by: one of `mqstore.rocketmq.usage.BY`: only key-prefix:N, the same as prefix=N, must be known before the log is read.
        """
        from mqstore.jobs.usage import usage
        from mqstore.rocketmq.usage import key_prefix

        prefix = prefix if by is None else key_prefix(by)
        return usage(self, prefix=prefix, spark=spark, master=master, threads=threads, splits=splits, progress=progress)

    def diagnose(
        self,
        version: str | None = None,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
        rebuilt: int | None = None,
        known: KnownRanges | None = None,
    ) -> Diagnosis:
        """Return whether a broker of a version (by default the one that wrote the store) starts on it, what that loses, what to do next.

        rebuilt: `RebuildReport.queue_entries`, where a rebuild has just made the store of intact records: the log is not read again.
        known: `RebuildReport.known`, where a rebuild has just mended the store: what it has read of the log is not read again.
        """
        from mqstore.rocketmq.diagnosis.diagnosis import diagnose

        return diagnose(self, version, threads=threads or len(os.sched_getaffinity(0)), progress=progress, rebuilt=rebuilt, known=known)

    def repair(self, *, journal: str | os.PathLike[str] | None = None, threads: int | None = None, observer: Observer = NOBODY) -> Repair:
        """Return the plan of a repair, which can be applied, and taken back; arguments and errors as for `Repair`."""
        from mqstore.repair.repair import Repair
        from mqstore.rocketmq.repair.plan import LOCKING, plan

        def steps() -> list[Step]:
            with observer.progress("planning") as progress:
                return plan(self, threads=threads or os.cpu_count() or 1, progress=progress)

        def completed(chosen: Sequence[Step]) -> Sequence[Step]:
            self.log.forget_all()
            return chosen

        self.require_directory_for("repair")
        root = Path(str(self.directory.root))
        return Repair(self.path, root, "broker", LOCKING, steps, completed, None if journal is None else Path(journal))

    def reset_group(
        self,
        group: str,
        topic: str,
        to: str,
        *,
        queue: int | None = None,
        force: bool = False,
        version: str | None = None,
        observer: Observer = NOBODY,
    ) -> GroupReset:
        """Move a consumer group, and write its offsets; arguments and errors as for `mqstore.rocketmq.live.group_reset.reset_group`."""
        from mqstore.rocketmq.live.group_reset import reset_group

        def reopen() -> RocketMQ:
            return type(self).at(StorePlace("rocketmq", self.path, self.directory.root), config=self.config_path)

        return reset_group(self, reopen, group, topic, to, queue_id=queue, force=force, as_version=version, observer=observer)

    def salvage(self, to: str | os.PathLike[str], *, observer: Observer = NOBODY, **options: Any) -> AnyReport:
        """Write every intact message, with its verdict, to `to`; options and errors as for `mqstore.wreck.salvage.salvage`."""
        from mqstore.wreck.salvage import salvage

        return salvage(self, to, observer=observer, **options)

    def export(self, to: str | os.PathLike[str], **options: Any) -> ExportReport:
        """Write messages to files in the new directory `to`; options as for `mqstore.jobs.export.export`."""
        from mqstore.jobs.export import export

        return export(self, to, **options)

    def rebuild(self, to: str | os.PathLike[str], **options: Any) -> RebuildReport:
        """Build queues, index and checkpoint from the log, in a new store in `to`; options as for `mqstore.jobs.rebuild.rebuild`."""
        from mqstore.jobs.rebuild import rebuild

        return rebuild(self, to, **options)


def _milliseconds(when: datetime | int | None) -> int | None:
    if not isinstance(when, datetime):
        return when
    if when.tzinfo is None:
        raise UsageError(f"{when} has no time zone; give one, such as datetime(…, tzinfo=UTC), or milliseconds since 1970")
    return round(when.timestamp() * 1000)


if TYPE_CHECKING:
    _ = RocketMQ
