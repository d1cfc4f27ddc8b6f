"""Iceberg and Delta tables over exported Parquet files: the files stay as the tasks wrote them, only metadata is added.

    OUT/metadata/00001-….metadata.json, catalog.db     Iceberg: table mqstore.messages in a SQLite catalog beside it
    OUT/_delta_log/00000000000000000000.json           Delta

No JVM is involved: pyiceberg and deltalake write the metadata. Both are extras, `pip install 'mqstore[iceberg]'` and
`'mqstore[delta]'`. The metadata is written into the staged directory, before OUT appears under its name. Delta refers to files
relative to the table; Iceberg by absolute paths, so its metadata is written with the paths that the files will have.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mqstore.errors import MqstoreError, TargetError, UsageError

CATALOG = "catalog.db"
TABLE = "mqstore.messages"
TABLE_FORMATS = {"iceberg": "pyiceberg", "delta": "deltalake"}
_NEEDED = {"iceberg": ("pyiceberg", "sqlalchemy"), "delta": ("deltalake",)}
_NO_ROOM = re.compile("disk is full|disk I/O error|No space left|File too large|quota")  # SQLite reports a file size limit as the second
_STAGED, _TARGET = "mqstore.staged", "mqstore.target"


@dataclass(frozen=True, slots=True)
class AddedBatch:
    """A batch that is on disk. files: paths below OUT, with their sizes. start, stop: physical offsets."""

    number: int
    start: int
    stop: int
    files: tuple[tuple[str, int], ...]

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the commit that adds the batch."""
        return {"mqstore.batch": str(self.number), "mqstore.start": str(self.start), "mqstore.stop": str(self.stop)}


def check_table_format(table_format: str, target: Path, partition_by: Sequence[str] = (), *, option: str = "--format") -> None:
    """Check that a table can be created, before anything is written. option: the one that requested it. Raises UsageError."""
    missing = next((module for module in _NEEDED[table_format] if find_spec(module) is None), None)
    if missing is not None:
        raise UsageError(
            f"{option} {table_format} needs {missing}, which is not installed: pip install 'mqstore[{table_format}]', or choose parquet"
        )
    if partition_by:
        raise UsageError(
            f"tables of format {table_format} cannot be partitioned here: readers skip files by the bounds in the table's metadata; "
            "omit --partition-by, or choose --format parquet"
        )
    if any(letter in str(target) for letter in "?#%"):
        raise UsageError(f"{target} has a ?, # or % in its path, which table formats interpret as part of a URL; choose another name")


def make_table(table_format: str, staged: Path, target: Path, files: Sequence[str]) -> None:
    """Create a table over the Parquet files in the staged directory, which will become `target`. Raises TargetError."""
    made: Callable[[Path, Path, Sequence[str]], None] = _iceberg if table_format == "iceberg" else _delta
    with table_errors(table_format, target, "create the table"):
        made(staged, target, files)


@contextlib.contextmanager
def table_errors(table_format: str, path: Path, doing: str, after: str = "") -> Iterator[None]:
    """Translate exceptions of the two libraries into a TargetError; their error classes do not name the operation.

    doing: the operation, such as `open the table`. after: what the state is now, or the next step; it ends the sentence.
    """
    try:
        yield
    except MqstoreError:
        raise
    except Exception as error:
        reason = "; ".join(filter(None, (_library_error_text(error), after)))
        raise TargetError(f"{path}: {TABLE_FORMATS[table_format]} could not {doing}: {reason}") from error


def _library_error_text(error: Exception) -> str:
    """Return the message of a pyiceberg or deltalake error: one line, without colours and SQL, with advice for a full disk."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("[SQL:")[0]
    text = re.sub(r"\s*↳\s*", ": ", re.sub(r"^\(\w+\.\w+\) ", "", text))
    said = " ".join(text.split()) or type(error).__name__
    return f"{said}; free some space or choose a target on another disk" if _NO_ROOM.search(said) else said


def _delta(staged: Path, target: Path, files: Sequence[str]) -> None:
    from deltalake import convert_to_deltalake

    convert_to_deltalake(str(staged), name=TABLE.rpartition(".")[2])


def _iceberg(staged: Path, target: Path, files: Sequence[str]) -> None:
    import pyarrow.parquet as pq
    from pyiceberg.catalog.sql import SqlCatalog

    moved = _moved_io()
    catalog = SqlCatalog(
        "mqstore",
        **{
            "uri": f"sqlite:///{staged / CATALOG}",
            "warehouse": str(target),
            "py-io-impl": f"{moved.__module__}.{moved.__name__}",
            _STAGED: str(staged),
            _TARGET: str(target),
        },
    )
    try:
        with quiet_pyiceberg():
            catalog.create_namespace(TABLE.partition(".")[0])
            table = catalog.create_table(TABLE, schema=pq.read_schema(staged / files[0]), location=str(target))
            table.add_files([str(target / name) for name in files])
    finally:
        catalog.engine.dispose()


@contextlib.contextmanager
def quiet_pyiceberg() -> Iterator[None]:
    """Suppress pyiceberg's warnings for columns without bounds: bodies have none on purpose."""
    logger = logging.getLogger("pyiceberg.io.pyarrow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@cache
def _moved_io() -> Any:
    """Return a FileIO class that reads files of the target from the staged directory. pyiceberg imports it by name."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    class MovedFileIO(PyArrowFileIO):
        @staticmethod
        def parse_location(location: str, properties: Any = None) -> tuple[str, str, str]:
            scheme, netloc, path = PyArrowFileIO.parse_location(location, properties or {})
            target = (properties or {}).get(_TARGET, "")
            if target and path.startswith(f"{target}/"):
                path = properties[_STAGED] + path[len(target) :]
            return scheme, netloc, path

    globals()["MovedFileIO"] = MovedFileIO
    return MovedFileIO
