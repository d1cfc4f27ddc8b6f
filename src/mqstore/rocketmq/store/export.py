"""Writing the message table to files, split by split: each task reads one split and writes its files (`mqstore.table.row_files`)."""

from __future__ import annotations

from dataclasses import dataclass

from mqstore.files.durable import DurableDirectory
from mqstore.findings import Damage
from mqstore.rocketmq.store.split_reader import ReadTask, read_split
from mqstore.table.columns import rocketmq_schema
from mqstore.table.row_files import PartFile, PartFiles, TaskOutput

LINEAGE = ("physical_offset", "store_file", "verdict")

MAX_FINDINGS = 1000


@dataclass(frozen=True, slots=True)
class ExportTask:
    """Write the selected messages of one split. read.columns: as in the files, including partition columns.

    metadata: added to each Parquet file. limit: maximum number of messages. keep_partition_columns: in the files, not only in their paths.
    """

    read: ReadTask
    stage: str
    format: str
    partition_by: tuple[str, ...]
    metadata: tuple[tuple[str, str], ...]
    limit: int | None = None
    keep_partition_columns: bool = False

    @property
    def number(self) -> int:
        """Number of the split."""
        return self.read.split.number


def export_split(task: ExportTask) -> TaskOutput:
    """Write the selected messages of one split. Every attempt writes the same messages in the same order."""
    damage: list[Damage] = []
    rows = 0
    with DurableDirectory(task.stage) as stage:
        writers = PartFiles(stage, task.number, task.format, task.partition_by, task.metadata, keep=task.keep_partition_columns)
        for batch in read_split(task.read, milliseconds=task.format != "parquet", report=damage.append):
            if task.limit is not None:
                batch = batch.slice(0, task.limit - rows)
            rows += batch.num_rows
            writers.add(batch)
            if rows == task.limit:
                break
        parts = writers.finish()
    return TaskOutput(parts, rows, tuple(damage[:MAX_FINDINGS]), max(0, len(damage) - MAX_FINDINGS))


def empty_part(task: ExportTask) -> PartFile:
    """Write a file without rows that has the columns of the others."""
    import pyarrow as pa

    schema = rocketmq_schema(task.read.columns)
    with DurableDirectory(task.stage) as stage:
        writers = PartFiles(stage, task.number, task.format, metadata=task.metadata)
        writers.add(pa.RecordBatch.from_pylist([], schema))
        return writers.finish()[0]
