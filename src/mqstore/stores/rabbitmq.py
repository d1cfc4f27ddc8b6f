"""A RabbitMQ store as `mqstore.open` returns it: messages as a table, SQL, and the verbs of `mqstore.store`.

Conditions are those of `mqstore.table.QueueSelection`. Nothing is read before rows are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.store import NOBODY
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection, check_rabbitmq_columns, rabbitmq_schema
from mqstore.table.rows import Names, Rows, counted, least, names_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mqstore.diagnosis import Diagnosis
    from mqstore.findings import Report
    from mqstore.jobs.find_in_queues import FindInQueuesReport
    from mqstore.jobs.report import ExportReport
    from mqstore.rabbitmq.convert.convert_vhost import ConvertReport
    from mqstore.rabbitmq.get import Message
    from mqstore.rabbitmq.summary import RabbitMQSummary
    from mqstore.rabbitmq.usage import QueuesUsageReport
    from mqstore.repair.repair import Repair
    from mqstore.store import Observer, Progress, Store
    from mqstore.wreck.salvage import AnyReport

    _: type[Store]


class RabbitMQ(RabbitMQStore):
    """A RabbitMQ store, read-only. progress_unit: what `verify` and `diagnose` count; usage_unit, export_unit: what
    `usage` and `export` count.
    """

    progress_unit = "index entries"
    usage_unit = "queues"
    export_unit = "parts"

    def messages(
        self,
        columns: Sequence[str] = RABBITMQ_COLUMNS,
        selection: QueueSelection = QueueSelection(),
        *,
        vhost: Names = None,
        queue: Names = None,
        limit: int | None = None,
    ) -> Rows:
        """Return messages by vhost, queue, priority (high first) and sequence id.

        vhost, queue (by name): one or several. selection: further conditions. Raises UsageError.
        """
        selected = check_rabbitmq_columns(columns)
        chosen = replace(
            selection,
            vhosts=selection.vhosts if vhost is None else names_of(vhost),
            queues=selection.queues if queue is None else names_of(queue),
            limit=selection.limit if limit is None else limit,
        )

        def read(first: int | None, names: Sequence[str] = selected) -> Iterator[pa.RecordBatch]:
            return self.to_batches(names, replace(chosen, limit=least(first, chosen.limit)))

        return Rows(f"messages of {self._title()}", rabbitmq_schema(selected), read, counted(read, "seq_id"))

    def sql(self, query: str, *, columns: Sequence[str] | None = None) -> Rows:
        """Return the result of a query, in memory; tables: messages, index_entries, records (of the message files), refusals.

        columns: of `messages`; by default all but the payload, with `payload_len`. Raises UsageError, and UnsupportedError without DuckDB.
        """
        from mqstore.pipeline.queries.duck import rows_of

        return rows_of(self, query, columns)

    def summary(self) -> RabbitMQSummary:
        """Return what `inspect` shows, from names, indexes and small files."""
        from mqstore.rabbitmq.summary import summarize

        return summarize(self)

    def get(
        self,
        *,
        id: str | None = None,  # noqa: A002
        vhost: str | None = None,
        queue: str | None = None,
        at: int | None = None,
        seq: int | None = None,
        priority: int | None = None,
    ) -> Message:
        """Return one message in full, by its id, position in a queue (at) or sequence id (seq). Raises UsageError, NotFoundError."""
        from mqstore.rabbitmq.get import get

        return get(self, id=id, vhost=vhost, queue=queue, at=at, seq=seq, priority=priority)

    def find(
        self,
        text: str,
        *,
        body: str = "sha256",
        limit: int | None = None,
        spark: SparkSession | None = None,
        master: str | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> FindInQueuesReport:
        """Return the messages that hold a text, each with what became of it; arguments as for `find_in_queues`."""
        from mqstore.jobs.find_in_queues import find_in_queues

        return find_in_queues(
            self.carefully(), text, body=body, limit=limit, spark=spark, master=master, threads=threads, progress=progress
        )

    def verify(self, progress: Progress | None = None) -> Report:
        """Check journals, segments, message files and every stored message, and each against the others.

        progress: called with (rows checked, 0), because the total is not known in advance.
        """
        from mqstore.rabbitmq.diagnosis import advise
        from mqstore.rabbitmq.verify import verify

        report = verify(self, progress)
        return replace(report, advice=advise(self, report))

    def usage(self, by: str | None = None, *, progress: Progress | None = None) -> QueuesUsageReport:
        """Return live and garbage bytes of each message file and log, and messages and bytes by queue. progress: (queues done, queues).

        by: file, queue, or of quorum queues member or log, which are all counted. Raises UsageError for another group.
        """
        from mqstore.rabbitmq.usage import check_group, usage

        check_group(by)
        return usage(self, progress)

    def diagnose(self, version: str | None = None, *, threads: int | None = None, progress: Progress | None = None) -> Diagnosis:
        """Return whether a node of a version (by default the one that wrote the store) starts on it, what that loses, what to do next.

        threads: not used; the indexes are read one after the other.
        """
        from mqstore.rabbitmq.diagnosis import diagnose

        return diagnose(self, version, progress=progress)

    def repair(self, *, journal: str | os.PathLike[str] | None = None, threads: int | None = None, observer: Observer = NOBODY) -> Repair:
        """Return the plan of a repair, which can be applied, and taken back; arguments and errors as for `Repair`.

        threads: not used; the indexes are read one after the other.
        """
        from mqstore.rabbitmq.repair.plan import LOCKING, plan
        from mqstore.rabbitmq.repair.queue_step import QueueStep, completed
        from mqstore.repair.repair import Repair

        def steps() -> list[QueueStep]:
            with observer.progress("planning", "queues") as progress:
                return plan(self, progress=progress)

        chosen = None if journal is None else Path(journal)
        return Repair(self.path, self.directory.root, "node", LOCKING, steps, lambda steps: completed(self.directory, steps), chosen)

    def salvage(self, to: str | os.PathLike[str], *, observer: Observer = NOBODY, **options: Any) -> AnyReport:
        """Write every intact message, with its verdict, to `to`; options and errors as for `mqstore.wreck.salvage.salvage`."""
        from mqstore.wreck.salvage import salvage

        return salvage(self, to, observer=observer, **options)

    def export(self, to: str | os.PathLike[str], **options: Any) -> ExportReport:
        """Write messages to files in the new directory `to`; options as for `mqstore.jobs.export.export_queues`."""
        from mqstore.jobs.export import export_queues as export

        return export(self, to, **options)

    def convert(self, to: str | os.PathLike[str], version: int | None = None, **options: Any) -> ConvertReport:
        """Write the queues as version 1 or 2 into the new directory `to`; options as for `mqstore.jobs.convert.convert`."""
        from mqstore.jobs.convert import convert

        return convert(self.path, Path(to), version, **options)


if TYPE_CHECKING:
    _ = RabbitMQ
