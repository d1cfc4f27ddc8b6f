"""Read-only access to the files of a store: listings, whole small files, memory maps.

Nothing here creates, locks or touches anything. NumPy and the kernels read a map without a copy; the operating system's page
cache is the only cache. A file that shrinks under a map would end the process with SIGBUS, so `MappedFile.still_whole` is
called before each long sequential read (brokers never shrink log files; they unlink them, and an unlinked file stays readable).
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import mmap
import os
import stat
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import A_STORE, CannotOpenError, FileLostError
from mqstore.files.read_ahead import ReadAhead
from mqstore.files.regular_file import data_extents, open_regular, open_regular_file, why_unreadable

Bytes = NDArray[np.uint8]

_INT32 = struct.Struct(">i")
_BLOCK = 512  # bytes of the unit in which `stat` counts
_FEW_BYTES = 1 << 20
MOST_LEVELS = 100  # of directories below the root; a store has a handful


def too_deep(directory: str) -> CannotOpenError:
    """Return the error for a directory below more than MOST_LEVELS others."""
    shown = directory if len(directory) <= 120 else f"{directory[:80]}…{directory[-30:]}"
    return CannotOpenError(
        f"{shown} is more than {MOST_LEVELS} levels deep, which no store is; move that part away, or give the store itself"
    )


def walk_tree(root: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what `os.walk` does. Raises CannotOpenError where directories are more than MOST_LEVELS deep; `os.walk` would recurse on."""
    base = len(os.fspath(root))
    for above, directories, names in os.walk(root):
        if above[base:].count(os.sep) > MOST_LEVELS:
            raise too_deep(above)
        yield above, directories, names


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One entry of a directory. name: undecodable bytes as surrogates. size: bytes; mtime_ms: since 1970."""

    name: str
    size: int
    is_directory: bool
    is_file: bool
    mtime_ms: int
    blocks: int
    is_link: bool = False

    @classmethod
    def of(cls, name: str, status: os.stat_result, *, is_link: bool = False) -> DirectoryEntry:
        """Return the entry of a name whose status is known. is_link: the name is a symbolic link, and the status is of what it leads to."""
        mode, blocks = status.st_mode, getattr(status, "st_blocks", 0)
        return cls(name, status.st_size, stat.S_ISDIR(mode), stat.S_ISREG(mode), status.st_mtime_ns // 1_000_000, blocks, is_link)

    @classmethod
    def made_up(cls, name: str) -> DirectoryEntry:
        """Return the entry of a directory that is nowhere on a disk."""
        return cls(name, 0, is_directory=True, is_file=False, mtime_ms=0, blocks=0)


class ReadWindow:
    """Bytes start..end-1 of a file, in an array over the whole file; only these bytes may be read. Positions are those of the file."""

    __slots__ = ("data", "end", "start")

    def __init__(self, data: Bytes, start: int, end: int) -> None:
        self.data = data
        self.start = start
        self.end = end

    def advance(self, start: int, stop: int) -> None:
        """Move on so that at least start..stop-1 can be read. Arrays returned earlier keep their contents."""


def _read_only_what_is_stored(mapped: mmap.mmap, stored: int) -> None:
    """Keep the system from reading holes: the first access would read megabytes of zeros around it. stored: bytes, mostly at the start.

    A broker with 10,000 queues has as many files of 6 MB that hold a few kilobytes each.
    """
    if hasattr(mapped, "madvise"):
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_RANDOM)
            mapped.madvise(mmap.MADV_WILLNEED, 0, min(stored, len(mapped)))


class MappedFile:
    """A file mapped for reading. `data` is a read-only uint8 array over the whole file, empty for an empty file."""

    remote = False  # True: there is no `data`, only `reach` and `stretch`

    def __init__(self, path: str | os.PathLike[str]) -> None:
        descriptor = open_regular(path)
        try:
            status = os.fstat(descriptor)
            self.path = Path(path)
            self.size = status.st_size
            self.identity = (status.st_dev, status.st_ino)
            self._map: mmap.mmap | None = None
            if self.size:
                self._map = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ)
                stored = getattr(status, "st_blocks", 0) * _BLOCK  # 0 also where the file system does not say
                if 0 < stored < self.size and stored <= _FEW_BYTES:
                    _read_only_what_is_stored(self._map, stored)
        finally:
            os.close(descriptor)
        self.data: Bytes = np.frombuffer(self._map if self._map is not None else b"", np.uint8)

    def load(self, start: int, stop: int) -> Bytes:
        """Return an array over the whole file in which bytes start..stop-1 can be read, as far as the file extends."""
        return self.data

    def read_window(self, start: int, stop: int, *, together: bool = False) -> ReadWindow:
        """Return a window for sequential reading from start to about stop. together: keep all of it in one array."""
        return ReadWindow(self.data, 0, self.size)

    def find(self, pattern: bytes, start: int, stop: int) -> int:
        """Return the position of the first occurrence of pattern that is entirely in [start, stop), or -1."""
        if self._map is None:
            return -1
        # Python before 3.11.5 looks at the byte after `stop`, too, which after the end of the file may be on no page
        found = self._map.find(pattern, start, min(stop, self.size - 1))
        last = self.size - len(pattern)
        return last if found < 0 and start <= last and stop >= self.size and self._map[last:] == pattern else found

    def bytes(self, start: int, stop: int) -> builtins.bytes:
        """Return a copy of bytes start..stop-1."""
        return b"" if self._map is None else self._map[start:stop]

    def length_prefixed(self, start: int) -> builtins.bytes:
        """Return a copy of the bytes at start; the big-endian 32-bit number there is their count."""
        if self._map is None:
            return b""
        return self._map[start : start + _INT32.unpack_from(self._map, start)[0]]

    def data_extents(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the ranges of stored blocks at or after start, as (from, to): everything between them is zeros.

        Without support of the file system every byte counts as stored.
        """
        if start >= self.size:
            return
        descriptor = self._reopen() if hasattr(os, "SEEK_DATA") else None
        if descriptor is None:
            yield start, self.size
            return
        try:
            yield from data_extents(descriptor, self.size, start)
        finally:
            os.close(descriptor)

    def _reopen(self) -> int | None:
        """Return a descriptor of the mapped file, or None if its path leads to another one by now."""
        try:
            descriptor = open_regular(self.path)
        except OSError:
            return None
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) == self.identity:
            return descriptor
        os.close(descriptor)
        return None

    def data_end(self, start: int) -> int:
        """Return the end of the last stored block at or after start, at most size; start if only a hole follows.

        Without support of the file system every byte counts as stored. Bytes after the result are zeros.
        """
        return max((end for _, end in self.data_extents(start)), default=start)

    def last_nonzero(self, start: int, stop: int) -> int:
        """Return the position of the last byte in [start, stop) that is not zero, or -1. Holes are not read."""
        stop = min(stop, self.data_end(start))
        block = 1 << 20
        while stop > start:
            low = max(start, stop - block)
            if not self.data[low:stop].max():  # a tenth of the time of flatnonzero()
                stop = low
            elif block > 1 << 12:
                block >>= 4
            else:
                rows = np.flatnonzero(self.data[low:stop].copy())  # copy: NumPy raises if the data changes meanwhile
                if len(rows):
                    return low + int(rows[-1])
                stop = low
        return -1

    def still_whole(self) -> bool:
        """Return False once the file at this path is shorter than the map. An unlinked or replaced file is still whole."""
        try:
            status = os.stat(self.path)
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self.identity or status.st_size >= self.size

    def will_need(self, start: int, length: int) -> None:
        """Hint that [start, start+length) is read soon. Never fails."""
        self._advise("MADV_WILLNEED", start, length)

    def read_ahead(self, start: int, stop: int) -> ReadAhead:
        """Return what reads start..stop-1 ahead of a walk."""
        return ReadAhead(self._reopen, start, min(stop, self.size), self.will_need)

    def drop(self, start: int, length: int) -> None:
        """Release the resident pages of [start, start+length): they stay in the page cache, but not in the memory of this process."""
        self._advise("MADV_DONTNEED", start, length)

    def _advise(self, advice: str, start: int, length: int) -> None:
        if self._map is not None and hasattr(self._map, "madvise"):
            page = start - start % mmap.PAGESIZE
            try:
                self._map.madvise(getattr(mmap, advice), page, min(length + start - page, self.size - page))
            except (OSError, ValueError):
                return


KEPT_MAPS = 256


class ReadOnlyDirectory:
    """A store's directory, read by paths relative to it with `/` as separator."""

    remote = False  # True: a URL, whose files have the same identity on each host
    _required: frozenset[str] | None = None
    _unlisted: Mapping[str, str] = MappingProxyType({})

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        try:
            status = os.stat(self.root)
        except FileNotFoundError:
            raise CannotOpenError(f"{self.root} does not exist; give the directory that contains {A_STORE}") from None
        except PermissionError:
            raise CannotOpenError(
                f"{self.root} cannot be read: permission denied; run as the broker's user or copy the directory"
            ) from None
        except OSError as error:
            raise CannotOpenError(f"{self.root} cannot be read: {error.strerror}") from None
        self._check_kind(status.st_mode)
        self._prefix = f"{self.root}/"
        self._kept: dict[str, MappedFile] = {}
        self._lock = threading.Lock()

    def _check_kind(self, mode: int) -> None:
        if not stat.S_ISDIR(mode):
            raise CannotOpenError(f"{self.root} is a file, not a directory; give the store's root directory or an archive of it")

    def __reduce__(self) -> tuple[type[ReadOnlyDirectory], tuple[Path]]:
        return ReadOnlyDirectory, (self.root,)

    def tolerate_unlisted(self, *required: str, known: Mapping[str, str] = MappingProxyType({})) -> None:
        """From now on, a directory that cannot be listed is listed as empty and noted in `unlisted`, unless it is one of these.

        known: those that were found out elsewhere.
        """
        self._required = frozenset(required)
        self._unlisted = {**self._unlisted, **known}

    @property
    def unlisted(self) -> Mapping[str, str]:
        """Why directories could not be listed, by path: of those that were to be listed so far."""
        return self._unlisted

    def require_listed(self, relative: str = "") -> None:
        """Raise CannotOpenError if a directory at or below a path could not be listed."""
        for path, why in self._unlisted.items():
            if not relative or path == relative or path.startswith(f"{relative}/"):
                raise CannotOpenError(why)

    def path(self, relative: str) -> Path:
        return self.root / relative if relative else self.root

    def _where(self, relative: str) -> str:
        """Return the path as text: with thousands of small files, Path objects cost as much as the system calls."""
        return self._prefix + relative

    def exists(self, relative: str) -> bool:
        return os.path.lexists(self._where(relative))

    def leads_out(self, relative: str) -> bool:
        """Return whether a file is a link out of the directory, which may come from an untrusted source."""
        root = os.path.realpath(self.root)
        return os.path.commonpath([root, os.path.realpath(self.path(relative))]) != root

    def has_entry(self, relative: str) -> bool:
        """Return whether there is an entry of this name, readable or not."""
        return self.exists(relative)

    def is_directory(self, relative: str) -> bool:
        return os.path.isdir(self._where(relative))

    def entries(self, relative: str = "") -> list[DirectoryEntry]:
        """Return the entries of a directory by name; none if it does not exist.

        Raises CannotOpenError if it cannot be listed, unless that is tolerated.
        """
        try:
            if relative.count("/") >= MOST_LEVELS:
                raise too_deep(self._where(relative))
            return self._list(relative)
        except CannotOpenError as error:
            if self._required is None or relative in self._required:
                raise
            assert isinstance(self._unlisted, dict)
            self._unlisted[relative] = str(error)
            return []

    def _list(self, relative: str) -> list[DirectoryEntry]:
        directory = self._where(relative)
        listed: list[DirectoryEntry] = []
        try:
            with os.scandir(directory) as scan:
                for entry in scan:
                    try:
                        status = entry.stat()
                    except OSError as error:
                        # a link that leads nowhere or in a circle is an entry that is neither file nor directory
                        if entry.is_symlink():
                            status = entry.stat(follow_symlinks=False)
                        elif isinstance(error, FileNotFoundError):
                            continue
                        else:
                            raise
                    listed.append(DirectoryEntry.of(entry.name, status, is_link=entry.is_symlink()))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            return []
        except PermissionError:
            raise CannotOpenError(
                f"{directory} cannot be listed: permission denied; run as the broker's user or copy the directory"
            ) from None
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link to itself, which is not a directory either
                return []
            raise CannotOpenError(f"{directory} cannot be listed: {error.strerror}") from None
        return sorted(listed, key=lambda entry: entry.name)

    def walk(self, relative: str = "") -> Iterator[tuple[str, DirectoryEntry]]:
        """Yield every file below relative as (path relative to the root, entry), by name. Links to directories are not followed."""
        for entry in self.entries(relative):
            below = f"{relative}/{entry.name}" if relative else entry.name
            if entry.is_directory:
                if not entry.is_link:
                    yield from self.walk(below)
            else:
                yield below, entry

    def directories(self, relative: str = "") -> Iterator[str]:
        """Yield the path of every directory below relative, by name. Links are not followed, files are not examined."""
        above = f"{relative}/" if relative else ""
        if relative.count("/") >= MOST_LEVELS:
            raise too_deep(self._where(relative))
        try:
            with os.scandir(self.path(relative)) as scan:
                names = sorted(entry.name for entry in scan if entry.is_dir(follow_symlinks=False))
        except OSError:
            return
        for name in names:
            yield f"{above}{name}"
            yield from self.directories(f"{above}{name}")

    def read(self, relative: str, limit: int = 64 << 20) -> bytes | None:
        """Return the first `limit` bytes of a small file; None if it does not exist. Raises CannotOpenError if it cannot be read."""
        try:
            with open_regular_file(self._where(relative)) as file:
                return file.read(min(limit, os.fstat(file.fileno()).st_size))  # as many bytes are allocated as are asked for
        except FileNotFoundError:
            if os.path.islink(self._where(relative)):
                raise CannotOpenError(f"{self.path(relative)} is a symbolic link to a file that does not exist") from None
            return None
        except OSError as error:
            raise CannotOpenError(why_unreadable(self.path(relative), error)) from None

    def map(self, relative: str) -> MappedFile:
        """Map a file for reading. Raises CannotOpenError, also if it has been removed since it was listed."""
        try:
            return MappedFile(self._where(relative))
        except FileNotFoundError:
            raise FileLostError(f"{self.path(relative)} no longer exists: it was removed after the directory was listed") from None
        except OSError as error:
            raise CannotOpenError(why_unreadable(self.path(relative), error)) from None

    def mapped(self, relative: str) -> MappedFile:
        """Map a file and keep it: up to KEPT_MAPS most recent maps stay open, since each holds one of a limited number of descriptors."""
        with self._lock:
            mapped = self._kept.pop(relative, None) or self.map(relative)
            self._kept[relative] = mapped
            if len(self._kept) > KEPT_MAPS:
                del self._kept[next(iter(self._kept))]
            return mapped

    def forget(self, relative: str) -> None:
        """Drop the map of a removed file, so that another one of the same name is mapped again."""
        with self._lock:
            self._kept.pop(relative, None)

    def forget_all(self) -> None:
        """Drop all maps. Maps in use stay readable."""
        with self._lock:
            self._kept.clear()

    def drop_all(self) -> None:
        """Release the resident pages of all maps that `mapped` keeps."""
        with self._lock:
            files = [each for each in self._kept.values() if not each.remote]
        for file in files:
            file.drop(0, file.size)

    def identities(self, relatives: Sequence[str]) -> list[str]:
        """Return what distinguishes each file from another of its name and size; "" for one that is missing.

        Without mapping them. Of local files it is the inode, which another host may know by another number.
        """
        return [self._identity(relative) for relative in relatives]

    def _identity(self, relative: str) -> str:
        try:
            status = os.stat(self.path(relative))
        except OSError:
            return ""
        return f"{status.st_dev} {status.st_ino}"

    def kept(self, relative: str) -> MappedFile | None:
        """Return the map of a file if `mapped` still keeps it."""
        return self._kept.get(relative)
