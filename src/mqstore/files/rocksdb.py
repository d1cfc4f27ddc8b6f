"""A RocksDB database, read without touching its directory: the library opens a private directory of links to the files.

The library is `rocksdict`, which the extra `rocksdb` installs. It writes a file into each directory that it opens, and so it never gets
the store's own: it gets a temporary directory with a symbolic link to every file except LOCK (copies, for a store at a URL), which is
removed with the object. The write-ahead log is replayed in memory. A log that ends in an incomplete record is what a killed process
leaves behind; `torn` says so. A damaged record before the end is one of the `faults`; what precedes it is read.

A database that cannot be opened as it is (a table file is missing or cut, the manifest is damaged) is repaired in a second private
directory, of copies: the sentence of the first attempt is one of the `faults`, and what the repair could save is read.
"""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mqstore.errors import CannotOpenError, TargetError, UsageError
from mqstore.files.readonly import ReadOnlyDirectory

_CHUNK = 8 << 20
_MAX_FAULTS = 100
_NOISE = re.compile(
    r"Corruption: |IO error: |No such file or directory: While [a-z ]+: (?=\S+: )| The file \S+ may be corrupted\.?|\(context removed\)"
)
_NOT_LINKED = ("LOCK", "rocksdict-config.json")

OnFault = Callable[[str], None]


class UnreadDatabaseError(CannotOpenError):
    """A database from which nothing can be read, because of its files or because the library is not installed."""


def is_installed() -> bool:
    """Return whether the library that reads RocksDB is installed."""
    return find_spec("rocksdict") is not None


def is_database(directory: ReadOnlyDirectory, relative: str) -> bool:
    """Return whether a directory is that of a RocksDB database: it has CURRENT, or a manifest or a table file without one."""
    if directory.exists(f"{relative}/CURRENT"):
        return True
    if not directory.is_directory(relative):
        return False
    return any(
        entry.is_file and (entry.name.startswith("MANIFEST-") or entry.name.endswith(".sst")) for entry in directory.entries(relative)
    )


class _PrivateDirectory:
    """A temporary directory, removed with the last object that refers to it, and the faults met in it. relative: what it stands for."""

    def __init__(self, relative: str) -> None:
        import tempfile  # a broker without such a database starts without it

        from mqstore.files.locking import remove_own_tree

        self.path = tempfile.mkdtemp(prefix="mqstore-rocksdb-")
        self.relative = relative
        self.faults: dict[str, None] = {}
        weakref.finalize(self, remove_own_tree, self.path, os.getpid())

    def sentence(self, error: Exception) -> str:
        """Return what the library says, with the store's own paths and in one line."""
        text = " ".join(str(error).split()).replace(f"{self.path}/", f"{self.relative}/")
        return _NOISE.sub("", text).strip(" .")

    def note(self, error: Exception) -> str:
        """Keep the sentence of a fault, and return it."""
        sentence = self.sentence(error)
        if len(self.faults) < _MAX_FAULTS:
            self.faults.setdefault(sentence)
        return sentence


class Family:
    """A column family: pairs of bytes, in the order of the keys. A block that cannot be read is reported to `on_fault`."""

    def __init__(self, handle: Any, private: _PrivateDirectory) -> None:
        self._handle = handle
        self._private = private

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none, or its block cannot be read."""
        try:
            value: bytes | None = self._handle.get(key)
        except Exception as error:  # the library raises `Exception` itself
            self._private.note(error)
            return None
        return value

    def first(self, key: bytes, on_fault: OnFault | None = None) -> tuple[bytes, bytes] | None:
        """Return the first pair at or after a key; None if there is none, or it cannot be read."""
        cursor = self._handle.iter()
        cursor.seek(key)
        return self._at(cursor, on_fault)

    def last(self, key: bytes, on_fault: OnFault | None = None) -> tuple[bytes, bytes] | None:
        """Return the last pair at or before a key; None if there is none, or it cannot be read."""
        cursor = self._handle.iter()
        cursor.seek_for_prev(key)
        return self._at(cursor, on_fault)

    def _at(self, cursor: Any, on_fault: OnFault | None) -> tuple[bytes, bytes] | None:
        if cursor.valid():
            return cursor.key(), cursor.value()
        self._check(cursor, on_fault)
        return None

    def _check(self, cursor: Any, on_fault: OnFault | None) -> bool:
        """Return whether a cursor stopped at a fault, which it reports."""
        try:
            cursor.status()
        except Exception as error:  # the library raises `Exception` itself
            sentence = self._private.note(error)
            if on_fault is not None:
                on_fault(sentence)
            return True
        return False

    def items(self, start: bytes = b"", stop: bytes | None = None, on_fault: OnFault | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs from a key on, up to stop, which is not included. Ends at a block that cannot be read."""
        cursor = self._handle.iter()
        cursor.seek(start) if start else cursor.seek_to_first()
        while cursor.valid():
            key: bytes = cursor.key()
            if stop is not None and key >= stop:
                return
            yield key, cursor.value()
            cursor.next()
        self._check(cursor, on_fault)


class RocksDatabase:
    """A database that is open for reading. relative: its directory in the store. torn: what is wrong at the end of a log that was cut.

    repaired: it cannot be opened as it is; what a repair of copies could save is read.
    """

    def __init__(self, directory: ReadOnlyDirectory, relative: str) -> None:
        """Raises UnreadDatabaseError."""
        if not is_installed():
            raise UnreadDatabaseError(f"{relative} is a RocksDB database; `pip install 'mqstore[rocksdb]'` installs what reads it")
        self.relative = relative
        self._source = directory
        self.torn: str | None = None
        self.repaired = False
        self._private = self._directory(links=type(directory).path is ReadOnlyDirectory.path)
        first = self._attempt("absolute_consistency")
        if first is None:
            return
        if self._attempt("tolerate_corrupted_tail_records") is None:
            self.torn = self._private.sentence(first)
            return
        sentence = self._private.note(first)
        if "comparator" in sentence:
            raise UnreadDatabaseError(f"the RocksDB database {relative} cannot be opened: {sentence}") from first
        if self._attempt("point_in_time") is not None:
            self._repair(sentence)

    def _directory(self, *, links: bool) -> _PrivateDirectory:
        """Make a private directory of links to the files, or of copies."""
        private = _PrivateDirectory(self.relative)
        for entry in self._source.entries(self.relative):
            if not entry.is_file or entry.name in _NOT_LINKED:
                continue
            name = f"{self.relative}/{entry.name}"
            own = self._source.path(name)
            if links and os.path.exists(own):
                os.symlink(os.path.abspath(own), f"{private.path}/{entry.name}")
            else:
                self._copy(name, Path(private.path, entry.name))
        return private

    def _copy(self, name: str, target: Path) -> None:
        mapped = self._source.map(name)
        with open(target, "wb") as copy:
            for start in range(0, mapped.size, _CHUNK):
                copy.write(mapped.bytes(start, min(mapped.size, start + _CHUNK)))

    def _attempt(self, log_mode: str) -> Exception | None:
        """Open the private directory; return the error if that fails. log_mode: what is accepted in the write-ahead log."""
        from rocksdict import AccessType, Rdict

        try:
            names = Rdict.list_cf(self._private.path, _options())
            families = {name: _options() for name in names}
            self._database = Rdict(self._private.path, _options(log_mode), families, AccessType.read_only(False))
            self.families: dict[str, Family] = {name: Family(self._database.get_column_family(name), self._private) for name in names}
        except Exception as error:  # the library raises `Exception` itself
            return error
        return None

    def _repair(self, sentence: str) -> None:
        from rocksdict import Rdict

        failed: Exception | None
        try:
            self._private = self._directory(links=False)
            Rdict.repair(self._private.path, _options())
            failed = self._attempt("point_in_time")
        except Exception as error:  # the library raises `Exception` itself
            failed = error
        if failed is not None:
            raise UnreadDatabaseError(f"the RocksDB database {self.relative} cannot be opened: {sentence}") from failed
        self._private.faults.setdefault(sentence)
        self.repaired = True

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the files, as far as it has been met: at the opening, and by reads since."""
        return tuple(self._private.faults)

    def family(self, name: str = "default") -> Family | None:
        """Return a column family, or None."""
        return self.families.get(name)


def _options(log_mode: str | None = None) -> Any:
    from rocksdict import DBRecoveryMode, Options

    options = Options(raw_mode=True)
    options.create_if_missing(False)
    if log_mode is not None:
        options.set_wal_recovery_mode(getattr(DBRecoveryMode, log_mode)())
    return options


# ---- a new database, written into a directory that is made for it
#
# The library writes newer forms than the RocksDB 8 of a broker can read, so the form of its tables is fixed to one that both know, and what
# a broker does not need (the options and the log of this run, the library's own settings) is removed when the database is closed. The
# write-ahead log is not used: `close` writes everything into tables.

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
            self._database = Rdict(str(self.path), _new_options(), {name: _new_options() for name in ("default", *families)})
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


def _new_options() -> Any:
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
