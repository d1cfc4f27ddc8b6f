"""Follow into a table: batches are Parquet directories as usual, and each is added to an Iceberg or Delta table in one commit.

    OUT/batch=0000000000/part-00000.parquet …            as `sinks.ParquetSink` writes them
    OUT/metadata/…, catalog.db   or   OUT/_delta_log/…   the table over them; a reader never sees part of a batch

The commit that adds the files of a batch records its number in the same step: as property `mqstore.batch` of an Iceberg table and of
the snapshot, as application transaction `mqstore-follow` of a Delta table. So the table itself records its last batch, and a repeated
batch is not added again. A batch that was written but not added, because a process died in between, is added when the next follow
begins. A table without its metadata is rebuilt from the batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mqstore.errors import TargetError
from mqstore.jobs.lakehouse import table_errors
from mqstore.pipeline.tail.added_batch import AddedBatch
from mqstore.pipeline.tail.sinks import MANIFEST, BatchOutcome, FollowOutput, ParquetSink, read_batch

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.pipeline.source.stream import LogRange

_METADATA = {"iceberg": "metadata and catalog.db", "delta": "_delta_log"}


class BatchTable(Protocol):
    """A table that records the last batch added to it."""

    def last(self) -> int:
        """Return the number of that batch as the table currently records it; -1 if there is none."""
        ...

    def add(self, batch: AddedBatch) -> None:
        """Add the files of a batch, and its number, in one commit that is on disk when this returns."""
        ...

    def close(self) -> None: ...


def open_table(form: str, target: FollowOutput, schema: pa.Schema) -> BatchTable:
    """Open the table of a target, or create it. Raises TargetError."""
    with table_errors(form, target.path, "open the table", _mending(form)):
        if form == "iceberg":
            from mqstore.pipeline.tail.iceberg import IcebergBatches

            return IcebergBatches(target.directory, schema)
        from mqstore.pipeline.tail.delta import DeltaBatches

        return DeltaBatches(target.directory, schema)


class TableSink:
    """Writes batches as Parquet files and adds them to the table."""

    def __init__(self, form: str, target: FollowOutput, files: ParquetSink, table: BatchTable, compact_every: int = 0) -> None:
        self._compact_every = compact_every
        self._form = form
        self._target = target
        self._files = files
        self._table = table
        with self._table_errors():
            self._last = table.last()
        missing = [number for number in self._batches_on_disk() if number > self._last]
        for number in missing:
            self._add(number)
        self.notes: tuple[str, ...] = tuple(f"batch {number} was on disk but not in the table; it was added" for number in missing)

    def take(self, number: int, ranges: Sequence[LogRange]) -> BatchOutcome:
        if number <= self._last and not self._target.directory.exists(_name(number)):
            raise TargetError(
                f"{self._target.path} already has batch {self._last}, but its checkpoint continues with batch {number}: the checkpoint was "
                "removed or belongs to another target; use a new target"
            )
        taken = self._files.take(number, ranges)
        if number > self._last and self._target.directory.exists(_name(number)):
            self._add(number)
        return taken

    def _batches_on_disk(self) -> list[int]:
        """Return the numbers of the batches on disk, in order."""
        names = (path.name.removeprefix("batch=") for path in self._target.path.glob(f"batch=*/{MANIFEST}") for path in (path.parent,))
        return sorted(int(name) for name in names if name.isdigit())

    def _add(self, number: int) -> None:
        name = _name(number)
        manifest = read_batch(self._target.directory.path(f"{name}/{MANIFEST}"))
        files = tuple((f"{name}/{file['name']}", int(file["bytes"])) for file in manifest["files"])
        with self._table_errors():
            self._table.add(AddedBatch(number, int(manifest["start"]), int(manifest["stop"]), files))
            if self._compact_every and (number + 1) % self._compact_every == 0:
                self._compact()
        self._last = number

    def _compact(self) -> None:
        from mqstore.pipeline.tail.delta import DeltaBatches

        if isinstance(self._table, DeltaBatches):
            self._table.compact()

    def _table_errors(self) -> contextlib.AbstractContextManager[None]:
        return table_errors(self._form, self._target.path, "add to the table", _mending(self._form))


def _mending(form: str) -> str:
    return f"the batches are intact: follow again once that is fixed, or remove {_METADATA[form]} there to rebuild the table"


def _name(number: int) -> str:
    return f"batch={number:010d}"
