"""Files of the disk model: pages of 4096 bytes, the state at the last sync, and each change since.

>>> from mqstore.files.recorder import Truncate, Write
>>> log = Inode(Image())
>>> log.write(0, Write("log", 0, b"one"))
>>> log.sync(None)
>>> log.write(1, Write("log", 3, b"two"))
>>> log.truncate(2, Truncate("log", 5))
>>> log.laid().content(), FileLayout(log.synced, log.synced.size).content()
(b'onetw', b'one')
>>> [FileLayout(log.image, change.size, change.pages).content() for change in log.unsynced]  # the file without each change
[b'one\\x00\\x00', b'onetwo']
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mqstore.files.recorder import Truncate, Write
from mqstore.files.regular_file import data_extents

PAGE = 4096
ZEROS = bytes(PAGE)


class Page:
    """4096 bytes at a position of a file. Immutable; its digest is a number, 0 for a page of zeros."""

    __slots__ = ("_digest", "index", "octets")

    def __init__(self, index: int, octets: bytes = ZEROS) -> None:
        self.index = index
        self.octets = octets
        self._digest = -1

    @property
    def digest(self) -> int:
        if self._digest < 0:
            hashed = hashlib.blake2b(self.octets, digest_size=16, salt=self.index.to_bytes(8, "big")).digest()
            self._digest = 0 if self.octets == ZEROS else int.from_bytes(hashed, "big")
        return self._digest

    def patched(self, start: int, piece: bytes) -> Page:
        return Page(self.index, self.octets[:start] + piece + self.octets[start + len(piece) :])

    def cut(self, size: int) -> Page:
        """Return the page of a file of size bytes, with zeros after its end."""
        kept = min(max(0, size - self.index * PAGE), PAGE)
        return Page(self.index, self.octets[:kept].ljust(PAGE, b"\0")) if self.octets[kept:].strip(b"\0") else self


@dataclass(frozen=True, eq=False)
class Image:
    """The content of a file: its size and the pages that are not all zeros. total: sum of the pages' digests."""

    size: int = 0
    pages: dict[int, Page] = field(default_factory=dict)
    total: int = 0

    @classmethod
    def read(cls, path: Path) -> Image:
        pages: dict[int, Page] = {}
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            for start, stop in data_extents(descriptor, size):
                for index in range(start // PAGE, -(-stop // PAGE)):
                    octets = os.pread(descriptor, PAGE, index * PAGE).ljust(PAGE, b"\0")
                    if octets != ZEROS:
                        pages[index] = Page(index, octets)
        finally:
            os.close(descriptor)
        return cls(size, pages, sum(page.digest for page in pages.values()))

    def page(self, index: int) -> Page:
        return self.pages.get(index) or Page(index)

    @cached_property
    def runs(self) -> list[tuple[int, bytes]]:
        """The contiguous pieces of the file, without holes."""
        pieces: list[list[Page]] = []
        for index in sorted(self.pages):
            if pieces and pieces[-1][-1].index == index - 1:
                pieces[-1].append(self.pages[index])
            else:
                pieces.append([self.pages[index]])
        starts = [piece[0].index * PAGE for piece in pieces]
        return [(start, b"".join(page.octets for page in piece)[: self.size - start]) for start, piece in zip(starts, pieces, strict=True)]


@dataclass(slots=True, eq=False)
class FileLayout:
    """A file as a crash leaves it: an image with another size and some other pages."""

    image: Image
    size: int
    pages: dict[int, Page] = field(default_factory=dict)

    def write(self, descriptor: int) -> None:
        """Write the file into an empty one."""
        end = 0
        for start, octets in self.image.runs:
            os.pwrite(descriptor, octets, start)
            end = start + len(octets)
        for page in self.pages.values():
            os.pwrite(descriptor, page.octets, page.index * PAGE)
        if self.pages or end != self.size:
            os.ftruncate(descriptor, self.size)

    def content(self) -> bytes:
        octets = bytearray(max(self.size, self.image.size))
        for start, run in self.image.runs:
            octets[start : start + len(run)] = run
        for page in self.pages.values():
            octets[page.index * PAGE : (page.index + 1) * PAGE] = page.octets
        return bytes(octets[: self.size])


def _split_write(offset: int, octets: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Split a write into (page, first byte within it, bytes)."""
    done = 0
    while done < len(octets):
        index, start = divmod(offset + done, PAGE)
        piece = octets[done : done + PAGE - start]
        yield index, start, piece
        done += len(piece)


@dataclass(slots=True, eq=False)
class UnsyncedChange:
    """A change of a file since its last sync, with the size and differing pages of the file without it."""

    number: int
    change: Write | Truncate
    size: int
    pages: dict[int, Page]


class Inode:
    """A file, under any name: as the program sees it, as of the last sync, and each change since."""

    def __init__(self, image: Image) -> None:
        self.synced = image
        self.unsynced: list[UnsyncedChange] = []
        self.touched: set[int] = set()
        self._start_from(image)

    def _start_from(self, image: Image) -> None:
        self.size = image.size
        self.pages = dict(image.pages)
        self.total = image.total
        self._image: Image | None = image

    @property
    def image(self) -> Image:
        if self._image is None:
            self._image = Image(self.size, dict(self.pages), self.total)
        return self._image

    def laid(self) -> FileLayout:
        return FileLayout(self.image, self.size)

    def page(self, index: int) -> Page:
        return self.pages.get(index) or Page(index)

    def _put(self, page: Page) -> None:
        self._image = None
        self.total += page.digest - self.page(page.index).digest
        if page.digest:
            self.pages[page.index] = page
        else:
            self.pages.pop(page.index, None)

    def write(self, number: int, change: Write) -> None:
        if not change.data:
            return
        end = change.offset + len(change.data)
        missing = UnsyncedChange(number, change, self.size, {})
        for index, start, piece in _split_write(change.offset, change.data):
            for other in self.unsynced:
                if index in other.pages:
                    other.pages[index] = other.pages[index].patched(start, piece)
            missing.pages[index] = self.page(index)
            self._put(missing.pages[index].patched(start, piece))
        self.size = max(self.size, end)
        for other in self.unsynced:
            other.size = max(other.size, end)
        self.touched.update(missing.pages)
        self.unsynced.append(missing)

    def truncate(self, number: int, change: Truncate) -> None:
        cut = {index: page for index, page in self.pages.items() if (index + 1) * PAGE > change.size}
        missing = UnsyncedChange(number, change, self.size, cut)
        for other in self.unsynced:
            other.size = change.size
            other.pages = {index: page.cut(change.size) for index, page in other.pages.items()}
        for page in cut.values():
            self._put(page.cut(change.size))
        self.size = change.size
        self._image = None
        self.unsynced.append(missing)

    def sync(self, begun: int | None) -> None:
        """Sync the file. begun: operations before the sync started; later changes stay unsynced."""
        later = [change for change in self.unsynced if begun is not None and change.number >= begun]
        if later:
            earlier = self.unsynced[: -len(later)]
            self._start_from(self.synced)
            self._redo(earlier)
        self.synced = self.image
        self.unsynced = []
        self.touched = set()
        self._redo(later)

    def _redo(self, changes: list[UnsyncedChange]) -> None:
        self.unsynced = []
        for change in changes:
            match change.change:
                case Write():
                    self.write(change.number, change.change)
                case Truncate():
                    self.truncate(change.number, change.change)
