"""An Iceberg table that grows by batches: one snapshot each, in a SQLite catalog beside the files, each step durable before the next.

pyiceberg leaves it to the operating system when metadata reaches the disk. Here every metadata file is synced before the
catalog refers to it, so that after a power failure the catalog never points to a file without its bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from mqstore.errors import TargetError
from mqstore.files.durable import DurableDirectory
from mqstore.files.durable_file import DurableFile
from mqstore.jobs.lakehouse import CATALOG, TABLE, quiet_pyiceberg

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from mqstore.jobs.lakehouse import AddedBatch

TRIES = 5
_LAST = "mqstore.batch"
_KEPT = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}


class _SyncedOutput(DurableFile):
    """A new file whose bytes and name are on disk when it is closed."""

    def __init__(self, path: Path) -> None:
        self._above = DurableDirectory(path.parent)
        super().__init__(self._above, path.name, exclusive=True)

    def close(self) -> None:
        if not self.closed:
            self.sync()
            super().close()
            self._above.sync_directory()
            self._above.close()


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        # names of metadata files are never reused, so there is nothing to overwrite
        return _SyncedOutput(Path(self._path))


class SyncedFileIO(PyArrowFileIO):
    """Writes files that are on disk when they are closed. pyiceberg imports it by name."""

    def new_output(self, location: str) -> PyArrowFile:
        made = super().new_output(location)
        return _SyncedFile(made.location, made._path, made._filesystem)


def sql_catalog(directory: DurableDirectory) -> SqlCatalog:
    """Return the catalog of the table in a directory, beside its files."""
    directory.make_directory("metadata")
    return SqlCatalog(
        "mqstore",
        **{
            "uri": f"sqlite:///{directory.root / CATALOG}",
            "warehouse": str(directory.root),
            "py-io-impl": f"{__name__}.{SyncedFileIO.__name__}",
        },
    )


class IcebergBatches:
    """The table in a directory, created if necessary. Raises TargetError and the exceptions of pyiceberg."""

    def __init__(self, directory: DurableDirectory, schema: pa.Schema) -> None:
        self._root = directory.root
        self._catalog = sql_catalog(directory)
        try:
            self._catalog.create_namespace_if_not_exists(TABLE.partition(".")[0])
            self._table = self._open(schema)
        except BaseException:
            self.close()
            raise

    def _open(self, schema: pa.Schema) -> Table:
        with quiet_pyiceberg():
            table = self._catalog.create_table_if_not_exists(TABLE, schema, location=str(self._root), properties=_KEPT)
        if table.location() != str(self._root):
            raise TargetError(
                f"{self._root} was created as {table.location()}, and Iceberg stores absolute paths; remove metadata and "
                f"{CATALOG} there to rebuild the table from the batches"
            )
        return table

    def last(self) -> int:
        self._table.refresh()
        return int(self._table.properties.get(_LAST, -1))

    def add(self, batch: AddedBatch) -> None:
        for left in reversed(range(TRIES)):
            if self.last() >= batch.number:
                return
            try:
                with quiet_pyiceberg(), self._table.transaction() as step:
                    paths = [str(self._root / name) for name, _ in batch.files]
                    # the batch number below excludes duplicates; searching all manifests for each file would cost more with every batch
                    step.add_files(paths, snapshot_properties=batch.properties, check_duplicate_files=False)
                    step.set_properties({_LAST: str(batch.number)})
            except CommitFailedException:
                if not left:
                    raise
            else:
                return

    def close(self) -> None:
        self._catalog.engine.dispose()
