"""A new RocksDB database, written into a directory that is made for it.

The library is `rocksdict`, of the extra `rocksdb`. It writes newer forms than the RocksDB 8 of a broker can read, so the form of its
tables is fixed to one that both know, and what a broker does not need (the options and the log of this run, the library's own
settings) is removed when the database is closed. The write-ahead log is not used: `close` writes everything into tables.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mqstore.errors import TargetError, UsageError
from mqstore.files.rocksdb import is_installed

TABLE_FORMAT = 5  # of RocksDB 6.6 to 10; a broker's 8.4 cannot read 6
_MEMORY = 32 << 20  # bytes of pairs that are held before they become a table
_NEEDED = ("CURRENT", "IDENTITY", "MANIFEST-")


class NewDatabase:
    """A database that is being written. Pairs of one family replace each other by key; the last one counts."""

    def __init__(self, path: str | os.PathLike[str], families: Sequence[str]) -> None:
        """path: a directory, which is made. families: column families other than `default`. Raises UsageError, TargetError."""
        if not is_installed():
            raise UsageError("a RocksDB database cannot be written: `pip install 'mqstore[rocksdb]'` installs what writes it")
        from rocksdict import Rdict, WriteOptions

        self.path = Path(path)
        self._writing = _without_log(WriteOptions())
        self._open = False
        try:
            self._database = Rdict(str(self.path), _options(), {name: _options() for name in ("default", *families)})
            self._open = True
            self._handles: dict[str, Any] = {name: self._database.get_column_family_handle(name) for name in ("default", *families)}
        except Exception as error:  # the library raises `Exception` itself
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> TargetError:
        return TargetError(f"the RocksDB database {self.path} cannot be written: {' '.join(str(error).split())}")

    def put(self, pairs: Iterable[tuple[bytes, bytes]], family: str = "default") -> None:
        """Write pairs, all of them or none. Raises TargetError."""
        from rocksdict import WriteBatch

        handle = self._handles[family]
        batch = WriteBatch(raw_mode=True)
        for key, value in pairs:
            batch.put(key, value, handle)
        try:
            self._database.write(batch, self._writing)
        except Exception as error:  # the library raises `Exception` itself
            raise self._refused(error) from error

    def close(self) -> None:
        """Write everything into tables, and leave only the files that a broker needs. Raises TargetError."""
        try:
            for name in self._handles:
                self._database.get_column_family(name).flush(True)
            self._release()
        except Exception as error:  # the library raises `Exception` itself
            raise self._refused(error) from error
        for name in os.listdir(self.path):
            if not name.startswith(_NEEDED) and not name.endswith(".sst"):
                os.unlink(self.path / name)

    def _release(self) -> None:
        if self._open:
            self._open = False
            self._handles.clear()
            self._database.close()

    def abandon(self) -> None:
        """Release the files of a database that is not completed. Does nothing after `close`, and never raises."""
        with contextlib.suppress(Exception):  # what made the writer give up says more
            self._release()


def _without_log(options: Any) -> Any:
    options.disable_wal = True  # the library's stub takes the property for a method
    return options


def _options() -> Any:
    from rocksdict import BlockBasedOptions, DBCompressionType, Options

    tables = BlockBasedOptions()
    tables.set_format_version(TABLE_FORMAT)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(tables)
    options.set_compression_type(DBCompressionType.none())
    options.set_write_buffer_size(_MEMORY)
    options.set_keep_log_file_num(1)
    return options
