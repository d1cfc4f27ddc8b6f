"""A store's directory behind a URL, with the same interface as a local directory; files are read in ranges.

Files are never fetched as a whole. A sequential scan gets windows, the next one read ahead; random access gets blocks, which grow
when one follows the other. Memory is bounded: two windows per scan, and CACHE bytes of blocks for the whole directory. A window is
an array over the whole file of which only the window's pages exist, so positions stay those of the file; it is freed with the last
array that refers to it.

The directory is listed once, and files must stay as they were then: size and identity (an ETag, or the modification time) are
compared after each request, and a changed file is an error instead of wrong bytes. `pin` fixes the state seen by a plan, for the
processes that carry it out.
"""

from __future__ import annotations

import builtins
import mmap
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from mqstore.errors import CannotOpenError, FileLostError, UnsupportedError
from mqstore.files.location import Location, Url, as_location
from mqstore.files.read_ahead import ReadAhead
from mqstore.files.readonly import MOST_LEVELS, Bytes, DirectoryEntry, MappedFile, ReadOnlyDirectory, ReadWindow, too_deep
from mqstore.files.remote_fs import OpenFile, RemoteFiles, attempt, connect, window_of

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

BLOCK = 256 << 10  # bytes of the first read at a position
CACHE = 64 << 20  # bytes of blocks that a directory keeps

_INT32 = struct.Struct(">i")
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


def open_directory(place: str | Location) -> ReadOnlyDirectory:
    """Open the directory at a path or URL."""
    location = as_location(place)
    return RemoteDirectory(location) if isinstance(location, Url) else ReadOnlyDirectory(location)


def _unbacked_array(size: int) -> tuple[mmap.mmap | None, Bytes]:
    """Return an array of this many bytes that takes no memory until it is written."""
    room = mmap.mmap(-1, size, flags=_PRIVATE) if size else None
    data = np.frombuffer(room if room is not None else b"", np.uint8)
    data.flags.writeable = False
    return room, data


class _RemoteWindow(ReadWindow):
    """A window of a remote file. together: it grows; otherwise advancing starts a new one, and the bytes after it are read ahead."""

    __slots__ = ("_ahead", "_file", "_from", "_room", "_stop", "_together")

    def __init__(self, file: RemoteFile, start: int, stop: int, together: bool) -> None:
        self._file = file
        self._stop = stop
        self._together = together
        self._ahead: tuple[int, int, Future[Bytes]] | None = None
        self._room, data = _unbacked_array(file.size)
        super().__init__(data, start, start)
        self.advance(start, start)

    def advance(self, start: int, stop: int) -> None:
        file = self._file
        # a little more than requested: the last record that starts before the end extends past it
        end = min(file.size, max(stop, min(self._stop + BLOCK, start + file.window)))
        if not self._together and start > self.start:
            rest = self.data[start : self.end]
            self._room, self.data = _unbacked_array(file.size)
            self._put(start, rest)
            self.start = start
            self.end = max(start, self.end)
            end = min(file.size, max(stop, min(self._stop + BLOCK, self.end + file.window)))
        while self.end < end:
            ahead = self._fetched_ahead()
            if ahead is None:
                ahead = file.fetch(self.end, min(end, self.end + file.window))
            self._put(self.end, ahead)
            self.end += len(ahead)
        upto = min(file.size, self._stop + BLOCK, self.end + file.window)
        if not self._together and self.end < upto and self._ahead is None:
            self._ahead = self.end, upto, file.fetch_ahead(self.end, upto)

    def _fetched_ahead(self) -> Bytes | None:
        ahead, self._ahead = self._ahead, None
        return None if ahead is None or ahead[0] != self.end else ahead[2].result()

    def _put(self, start: int, octets: Bytes) -> None:
        if len(octets):
            assert self._room is not None
            memoryview(self._room)[start : start + len(octets)] = octets.data


class RemoteFile(MappedFile):
    """A file of a remote directory. It has no `data`: there is no array over all of its bytes."""

    remote = True

    def __init__(self, directory: RemoteDirectory, relative: str, opened: OpenFile) -> None:
        self.path = directory.url / relative  # type: ignore[assignment]
        self.size = opened.size
        self.identity = opened.identity  # type: ignore[assignment]
        self.window = directory.window
        self._directory = directory
        self._relative = relative
        self._opened = opened
        self._next = (-1, 0)  # end and length of the last block
        self._zeros = (0, 0)  # a range that is known to be all zeros

    def __getattr__(self, name: str) -> NoReturn:
        if name == "data":
            raise UnsupportedError(f"{self.path}: this operation needs random access to whole files; copy the store to a local disk")
        raise AttributeError(name)

    def fetch(self, start: int, stop: int) -> Bytes:
        """Return bytes start..stop-1 in one request. Raises CannotOpenError, also if the file has changed."""
        url = self.path
        raw = attempt(url, lambda: self._opened.read(start, stop))  # type: ignore[arg-type]
        self._directory.check(self._relative, self.size, str(self.identity))
        if len(raw) != stop - start:
            raise FileLostError(f"{url} changed while it was read: bytes {start} to {stop - 1} do not exist; run the job again")
        octets: Bytes = np.frombuffer(raw, np.uint8)
        if not octets.any():
            low, high = self._zeros
            if low <= stop and start <= high and low < high:
                self._zeros = min(low, start), max(high, stop)
            elif stop - start > high - low:
                self._zeros = start, stop
        return octets

    def fetch_ahead(self, start: int, stop: int) -> Future[Bytes]:
        return self._directory.threads.submit(self.fetch, start, stop)

    def read_window(self, start: int, stop: int, *, together: bool = False) -> ReadWindow:
        return _RemoteWindow(self, start, stop, together)

    def load(self, start: int, stop: int) -> Bytes:
        stop = min(stop, self.size)
        if start >= stop:
            return self._directory.empty_array(self.size)
        known = self._directory.kept_block(self._relative, start, stop)
        if known is not None:
            return known
        last, length = self._next
        # a read that continues after the last block is sequential: double the block
        length = min(2 * length, self.window) if last - BLOCK <= start <= last else min(BLOCK, self.window)
        low, high = start, max(stop, min(self.size, start + length))
        if stop - start < BLOCK:
            low -= low % min(4096, self.window)
        room, data = _unbacked_array(self.size)
        assert room is not None
        into = memoryview(room)
        for at in range(low, high, self.window):
            upto = min(high, at + self.window)
            if not (self._zeros[0] <= at and upto <= self._zeros[1]):
                into[at:upto] = self.fetch(at, upto).data
        self._next = high, high - low
        self._directory.keep_block(self._relative, low, high, data)
        return data

    def find(self, pattern: builtins.bytes, start: int, stop: int) -> int:
        stop = min(stop, self.size)
        while start + len(pattern) <= stop:
            if self._zeros[0] <= start < self._zeros[1] and any(pattern):
                start = max(start, min(stop, self._zeros[1]) - len(pattern) + 1)
                if start + len(pattern) > stop:
                    return -1
            upto = min(stop, start + self.window)
            offset = self.load(start, upto)[start:upto].tobytes().find(pattern)
            if offset >= 0:
                return start + offset
            start = upto - len(pattern) + 1 if upto < stop else stop
        return -1

    def bytes(self, start: int, stop: int) -> builtins.bytes:
        stop = min(stop, self.size)
        return self.load(start, stop)[start:stop].tobytes()

    def length_prefixed(self, start: int) -> builtins.bytes:
        return self.bytes(start, start + _INT32.unpack(self.bytes(start, start + 4))[0])

    def data_end(self, start: int) -> int:
        low, high = self._zeros
        return start if low <= start and high >= self.size else self.size

    def last_nonzero(self, start: int, stop: int) -> int:
        stop = min(stop, self.size)
        while stop > start:
            if self._zeros[0] < stop <= self._zeros[1]:
                stop = self._zeros[0]
                continue
            low = max(start, stop - self.window)
            part = self.load(low, stop)[low:stop]
            if part.any():
                return low + int(np.flatnonzero(part)[-1])
            stop = low
        return -1

    def still_whole(self) -> bool:
        return True

    def will_need(self, start: int, length: int) -> None:
        """Do nothing: a scan reads ahead by itself."""

    def read_ahead(self, start: int, stop: int) -> ReadAhead:
        """Return what does nothing: a scan reads ahead by itself."""
        return ReadAhead(lambda: None, start, start, self.will_need)

    def drop(self, start: int, length: int) -> None:
        self._directory.drop_blocks(self._relative)


class RemoteDirectory(ReadOnlyDirectory):
    """A directory behind a URL, listed once."""

    remote = True

    def __init__(self, url: Url) -> None:
        self.url = url
        self.root = url  # type: ignore[assignment]
        self.window = window_of(url)
        self._files, self._base = connect(url)
        self._pinned: dict[str, tuple[int, str]] = {}
        self._kept: dict[str, MappedFile] = {}
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int, int], Bytes] = OrderedDict()
        self._held = 0

    def __reduce__(self) -> Any:
        return RemoteDirectory, (self.url,)

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(4, thread_name_prefix="mqstore-ahead")

    # listing

    @cached_property
    def _listed(self) -> dict[str, dict[str, DirectoryEntry]]:
        """Entries by directory. Directories known only from the paths of their files are included."""
        listed = attempt(self.url, lambda: self._files.listing(self._base, recursive=True))
        entries: dict[str, dict[str, DirectoryEntry]] = {}
        for each in listed or ():
            if each.relative:
                self._enter(entries, each.relative, each.size, each.is_directory, each.mtime_ms)
        if not entries:
            if attempt(self.url, lambda: self._files.open(self._base)) is not None:
                raise CannotOpenError(f"{self.url} is a file, not a directory; give the store's root directory, archives need a path")
            if listed is None:
                raise CannotOpenError(f"{self.url} does not exist; give the URL of the directory that holds commitlog/")
        return entries

    @staticmethod
    def _enter(entries: dict[str, dict[str, DirectoryEntry]], relative: str, size: int, is_directory: bool, mtime_ms: int) -> None:
        above, _, name = relative.rpartition("/")
        if above and name not in entries.get(above, {}):
            RemoteDirectory._above(entries, above)
        known = entries.setdefault(above, {}).get(name)
        mtime_ms = mtime_ms or (0 if known is None else known.mtime_ms)
        entries[above][name] = DirectoryEntry(name, size, is_directory, not is_directory, mtime_ms, -(-size // 512))

    @staticmethod
    def _above(entries: dict[str, dict[str, DirectoryEntry]], relative: str) -> None:
        above, _, name = relative.rpartition("/")
        if name not in entries.setdefault(above, {}):
            entries[above][name] = DirectoryEntry.made_up(name)
            if above:
                RemoteDirectory._above(entries, above)

    def _entry(self, relative: str) -> DirectoryEntry | None:
        above, _, name = relative.rpartition("/")
        return self._listed.get(above, {}).get(name)

    def path(self, relative: str) -> Any:
        return self.url / relative if relative else self.url

    def exists(self, relative: str) -> bool:
        return not relative or self._entry(relative) is not None

    def leads_out(self, relative: str) -> bool:
        return False

    def is_directory(self, relative: str) -> bool:
        entry = self._entry(relative)
        return not relative or (entry is not None and entry.is_directory)

    def entries(self, relative: str = "") -> list[DirectoryEntry]:
        return sorted(self._listed.get(relative, {}).values(), key=lambda entry: entry.name)

    def walk(self, relative: str = "") -> Iterator[tuple[str, DirectoryEntry]]:
        if relative.count("/") >= MOST_LEVELS:
            raise too_deep(self._path(relative))
        for entry in self.entries(relative):
            below = f"{relative}/{entry.name}" if relative else entry.name
            if entry.is_directory:
                yield from self.walk(below)
            else:
                yield below, entry

    # files

    def _path(self, relative: str) -> str:
        return f"{self._base.rstrip('/')}/{relative}"

    def read(self, relative: str, limit: int = 64 << 20) -> bytes | None:
        entry = self._entry(relative)
        if entry is None or not entry.is_file:
            return None
        file = self.mapped(relative)
        return file.bytes(0, min(limit, file.size))

    def map(self, relative: str) -> MappedFile:
        url = self.url / relative
        opened = attempt(url, lambda: self._files.open(self._path(relative)))
        expected = self._pinned.get(relative)
        if opened is None:
            raise FileLostError(f"{url} no longer exists: it was removed after the store was listed")
        if expected is None:
            listed = self._entry(relative)
            expected = (opened.size if listed is None else listed.size, opened.identity)
        if (opened.size, opened.identity) != expected:
            raise FileLostError(f"{url}: the file changed since the store was listed; run the job again")
        return RemoteFile(self, relative, opened)

    def check(self, relative: str, size: int, identity: str) -> None:
        """Raise CannotOpenError if a file is no longer the one that was opened."""
        url = self.url / relative
        now = attempt(url, lambda: self._files.open(self._path(relative)))
        if now is None:
            raise FileLostError(f"{url} no longer exists: it was removed after the store was listed")
        if (now.size, now.identity) != (size, identity):
            raise FileLostError(f"{url}: the file changed while it was read; run the job again")

    # the state that a plan has seen

    def identities(self, relatives: Sequence[str]) -> list[str]:
        """Return the identities of files, the same on each host. They are kept: any other state of such a file is an error from now on."""
        unknown = [relative for relative in relatives if relative not in self._pinned]
        if len(unknown) > 1:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(16, len(unknown)), thread_name_prefix="mqstore-state") as pool:
                files = list(pool.map(self.map, unknown))
        else:
            files = [self.map(relative) for relative in unknown]
        for relative, file in zip(unknown, files, strict=True):
            self._pinned[relative] = (file.size, str(file.identity))
        return [self._pinned[relative][1] for relative in relatives]

    # blocks

    def empty_array(self, size: int) -> Bytes:
        return _unbacked_array(size)[1]

    def kept_block(self, relative: str, start: int, stop: int) -> Bytes | None:
        """Return a kept array in which the range can be read, or None."""
        with self._lock:
            for key in self._blocks:
                if key[0] == relative and key[1] <= start and stop <= key[2]:
                    self._blocks.move_to_end(key)
                    return self._blocks[key]
        return None

    def keep_block(self, relative: str, start: int, stop: int, data: Bytes) -> None:
        if stop - start > CACHE // 2:
            return
        with self._lock:
            if (relative, start, stop) not in self._blocks:
                self._blocks[relative, start, stop] = data
                self._held += stop - start
            while self._held > CACHE:
                (_, low, high), _ = self._blocks.popitem(last=False)
                self._held -= high - low

    def drop_blocks(self, relative: str) -> None:
        with self._lock:
            for key in [key for key in self._blocks if key[0] == relative]:
                del self._blocks[key]
                self._held -= key[2] - key[1]


def matching(url: Url) -> list[Url]:
    """Return the directories that match a URL with `*`, `?` or `[` in it, by name."""
    from fnmatch import fnmatchcase

    def step(files: RemoteFiles, above: str, rest: list[str]) -> Iterator[str]:
        if not rest:
            yield above
            return
        if not any(sign in rest[0] for sign in "*?["):
            yield from step(files, f"{above}/{rest[0]}", rest[1:])
            return
        for each in attempt(url, lambda: files.listing(above, recursive=False)) or ():
            if each.is_directory and fnmatchcase(each.relative, rest[0]):
                yield from step(files, f"{above}/{each.relative}", rest[1:])

    parts = url.url.split("/")
    first = next(number for number, part in enumerate(parts) if any(sign in part for sign in "*?["))
    fixed = Url("/".join(parts[:first]), url.options)
    files, base = connect(fixed)
    base = base.rstrip("/")
    urls = sorted(fixed.url + path[len(base) :] for path in step(files, base, parts[first:]))
    return [Url(each, url.options) for each in urls if (there := _listing(files, base + each[len(fixed.url) :], url)) is not None and there]


def _listing(files: RemoteFiles, path: str, url: Url) -> Any:
    asked: Callable[[], Any] = lambda: files.listing(path, recursive=False)  # noqa: E731
    return attempt(url, asked)
