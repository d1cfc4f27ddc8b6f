"""A directory as the changes of a repair would leave it: nothing is written.

Files that are changed are private maps, of which only the pages that a change touches take memory; one that gets longer is copied there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     _ = Path(place, "checkpoint").write_bytes(bytes(range(8))), Path(place, "core").write_bytes(b"")
    ...     changes = [Change("write", "checkpoint", 2, bytes(3)), Change("remove", "core"), Change("put", "config/a.json", content=b"{}")]
    ...     seen = ChangedDirectory(ReadOnlyDirectory(place), [Change("mkdir", "config"), *changes])
    ...     [entry.name for entry in seen.entries()], seen.read("checkpoint"), seen.read("config/a.json"), sorted(os.listdir(place))
    (['checkpoint', 'config'], b'\\x00\\x01\\x00\\x00\\x00\\x05\\x06\\x07', b'{}', ['checkpoint', 'core'])
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import assert_never

import numpy as np

from mqstore.errors import FileLostError
from mqstore.files.readonly import DirectoryEntry, MappedFile, ReadOnlyDirectory
from mqstore.repair.change import Change


class _ChangedFile(MappedFile):
    """A file in memory, with the ranges of it that may be other than zeros. Its path leads to what it was before, if to anything."""

    def __init__(self, path: Path, content: mmap.mmap | None, written: list[tuple[int, int]]) -> None:
        self.path = path
        self.size = len(content) if content is not None else 0
        self.identity = (0, 0)  # of no file on a disk
        self._map = content
        self.data = np.frombuffer(content if content is not None else b"", np.uint8)
        self.data.flags.writeable = False
        self._written = written

    def drop(self, start: int, length: int) -> None:
        """Keep the pages: they hold what is changed, and it is nowhere else."""

    def data_extents(self, start: int = 0) -> Iterator[tuple[int, int]]:
        at = start
        for begin, end in sorted(self._written):
            if min(end, self.size) > max(at, begin):
                yield max(at, begin), min(end, self.size)
                at = min(end, self.size)


class ChangedDirectory(ReadOnlyDirectory):
    """A directory after changes, which were made in their order."""

    def __init__(self, directory: ReadOnlyDirectory, changes: Iterable[Change]) -> None:
        super().__init__(directory.root)
        self.before = directory
        self.changes = tuple(changes)
        self._changed: dict[str, tuple[mmap.mmap | None, list[tuple[int, int]]]] = {}
        self._gone: set[str] = set()
        self._made: set[str] = set()
        for change in self.changes:
            self._make(change)

    def _make(self, change: Change) -> None:
        match change.op:
            case "write":
                content = change.made
                end = change.offset + len(content)
                file, written = self._file(change.file, end)
                if file is not None:
                    file[change.offset : end] = content
                written.append((change.offset, end))
            case "resize":
                self._file(change.file, change.length, exactly=True)
            case "put":
                content = change.made
                file = _memory(len(content))
                if file is not None:
                    file[:] = content
                self._take(change.file, file, [(0, len(content))])
            case "rename":
                self._take(change.to, *self._file(change.file, 0))
                self._remove(change.file)
            case "remove" | "rmdir":
                self._remove(change.file)
            case "mkdir":
                if not self.is_directory(change.file):
                    self._made.add(change.file)
                    self._gone.discard(change.file)
            case _:
                assert_never(change.op)

    def _take(self, relative: str, file: mmap.mmap | None, written: list[tuple[int, int]]) -> None:
        self._changed[relative] = file, written
        self._gone.discard(relative)

    def _remove(self, relative: str) -> None:
        self._changed.pop(relative, None)
        self._made.discard(relative)
        self._gone.add(relative)

    def _file(self, relative: str, length: int, *, exactly: bool = False) -> tuple[mmap.mmap | None, list[tuple[int, int]]]:
        """Return a file to be changed, which has this length at least, or exactly, and its written ranges."""
        if relative in self._changed:
            file, written = self._changed[relative]
            size = len(file) if file is not None else 0
        else:
            before = None if self._is_gone(relative) or not self.before.exists(relative) else self.before.map(relative)
            size = before.size if before is not None else 0
            written = list(before.data_extents()) if before is not None else []
            file = _private(before) if before is not None else None
        new_size = length if exactly else max(size, length)
        if new_size != size:
            longer = _memory(new_size)
            for begin, end in written if longer is not None and file is not None else ():
                old_end = max(begin, min(end, new_size, size))  # what was cut off is gone, also if the file gets longer again
                longer[begin:old_end] = file[begin:old_end]  # type: ignore[index]
            file = longer
        self._take(relative, file, written)
        return file, written

    def _is_gone(self, relative: str) -> bool:
        above = relative
        while above:
            if above in self._gone:
                return True
            above = above.rpartition("/")[0]
        return False

    # reading

    def __reduce__(self) -> tuple[type[ReadOnlyDirectory], tuple[Path]]:
        raise TypeError("a directory that is only in the memory of this process cannot be sent to another one")

    def exists(self, relative: str) -> bool:
        return relative in self._changed or relative in self._made or (not self._is_gone(relative) and self.before.exists(relative))

    def is_directory(self, relative: str) -> bool:
        if relative in self._changed:
            return False
        return relative in self._made or (not self._is_gone(relative) and self.before.is_directory(relative))

    def _list(self, relative: str) -> list[DirectoryEntry]:
        prefix = f"{relative}/" if relative else ""
        listed = {} if self._is_gone(relative) else {entry.name: entry for entry in self.before.entries(relative)}
        listed = {name: entry for name, entry in listed.items() if prefix + name not in self._gone}
        for path, (file, _) in self._changed.items():
            above, _, name = path.rpartition("/")
            if above == relative:
                size = len(file) if file is not None else 0
                made = DirectoryEntry(name, size, is_directory=False, is_file=True, mtime_ms=0, blocks=0)
                listed[name] = replace(listed[name], size=size) if name in listed else made
        for path in self._made:
            above, _, name = path.rpartition("/")
            if above == relative:
                listed[name] = DirectoryEntry.made_up(name)
        return sorted(listed.values(), key=lambda entry: entry.name)

    def directories(self, relative: str = "") -> Iterator[str]:
        for entry in self.entries(relative):
            if entry.is_directory and not entry.is_link:
                below = f"{relative}/{entry.name}" if relative else entry.name
                yield below
                yield from self.directories(below)

    def read(self, relative: str, limit: int = 64 << 20) -> bytes | None:
        if relative in self._changed:
            file = self._changed[relative][0]
            return b"" if file is None else file[:limit]
        return None if self._is_gone(relative) else self.before.read(relative, limit)

    def map(self, relative: str) -> MappedFile:
        if relative in self._changed:
            return _ChangedFile(self.path(relative), *self._changed[relative])
        if self._is_gone(relative):
            raise FileLostError(f"{self.path(relative)} is taken out by an earlier step")
        return self.before.map(relative)


def _memory(size: int) -> mmap.mmap | None:
    return mmap.mmap(-1, size) if size else None


def _private(file: MappedFile) -> mmap.mmap | None:
    """Map a file so that what is written stays in memory."""
    if not file.size:
        return None
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, file.size, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
