"""A disk with a cache: what a running program sees, and what a sync has made durable.

The disk keeps files as pages of 4096 bytes and names in directories. A write is in the cache at once and durable after a
sync of its file. A created, renamed or removed name is durable after a sync of its directory, and not before: a synced file
under an unsynced name is lost. A hard link to an outside file has its bytes from the start, a copy of one after a sync.

    >>> from mqstore.files.recorder import Create, Sync, SyncDirectory, Write
    >>> disk = Disk(None)
    >>> for number, operation in enumerate([Create("log", 0), Write("log", 0, b"one"), Sync("log"), Write("log", 3, b"two")]):
    ...     disk.apply(number, operation)
    >>> {path: file.content() for path, file in disk.tree().files.items()}
    {'log': b'onetwo'}
    >>> disk.lasting[1].files
    {}
    >>> disk.apply(4, SyncDirectory(""))
    >>> {path: file.content() for path, file in disk.lasting[1].files.items()}
    {'log': b'one'}

Every tree has a 128-bit key, which is equal for trees with the same names and bytes only.

A file has its state at the last sync, and each change since:

    >>> from mqstore.files.recorder import Truncate
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

from mqstore.files.recorder import (
    Create,
    Link,
    MakeDirectory,
    Mark,
    Operation,
    Remove,
    RemoveTree,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Write,
)
from mqstore.files.regular_file import data_extents

# files


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
        length = min(max(0, size - self.index * PAGE), PAGE)
        return Page(self.index, self.octets[:length].ljust(PAGE, b"\0")) if self.octets[length:].strip(b"\0") else self


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


@dataclass(slots=True, eq=False)
class Directory:
    """A directory. names: as the program sees them; lasting: as of the last sync."""

    names: dict[str, Inode | Directory] = field(default_factory=dict)
    lasting: dict[str, Inode | Directory] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Directory:
        names = {entry.name: cls.read(entry) if entry.is_dir() else Inode(Image.read(entry)) for entry in sorted(path.iterdir())}
        return cls(names, dict(names))


Node = Inode | Directory


@dataclass(slots=True, eq=False)
class Entry:
    directory: Directory
    name: str
    before: Node | None
    after: Node | None


@dataclass(slots=True, eq=False)
class NameChange:
    """An operation on names. entries: of a rename first the old, then the new one. synced: the durable ones."""

    number: int
    operation: Create | MakeDirectory | Link | Rename | Remove | RemoveTree
    entries: list[Entry]
    synced: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Tree:
    """What a crash leaves: directories, parents first, and files."""

    directories: list[str]
    files: dict[str, FileLayout]


class Disk:
    """The files below a directory while a recorded run is replayed. base: the content before, all of it durable."""

    def __init__(self, base: Path | None) -> None:
        self.root = Directory() if base is None else Directory.read(base)
        self.name_changes: list[NameChange] = []
        self.unlinked: set[str] = set()
        self.done = 0
        self.last: Operation | None = None
        self._lasting: tuple[int, Tree] | None = None
        self._losses: list[tuple[NameChange, dict[str, Node], dict[str, Node]]] | None = None
        self._see()

    def apply(self, number: int, operation: Operation) -> None:
        """Apply an operation. number: its position in the run, from 0."""
        match operation:
            case Write(path) | Truncate(path) | Sync(path) if path in self.unlinked and path not in self.files:
                pass  # by a map or descriptor that outlived the name
            case Write(path):
                self._file(path).write(number, operation)
                self._changed(path)
            case Truncate(path):
                self._file(path).truncate(number, operation)
                self._changed(path)
            case Sync(path, begun):
                self._file(path).sync(begun)
                self._lasting = None
            case SyncDirectory(path):
                self._sync_names(self.directories[path])
            case Create(path, size):
                inode = Inode(Image())
                if size:
                    inode.truncate(number, Truncate(path, size))
                self._rename(number, operation, [self._entry(path, inode)])
            case Link(source, path, copied):
                image = Image.read(Path(source))
                self._rename(number, operation, [self._entry(path, _copy(number, path, image) if copied else Inode(image))])
            case MakeDirectory(path):
                self._rename(number, operation, [self._entry(path, Directory())])
            case Rename(old, new):
                gone = self._entry(old, None)
                self._rename(number, operation, [gone, self._entry(new, gone.before)])
            case Remove(path) | RemoveTree(path):
                self._rename(number, operation, [self._entry(path, None)])
            case Mark():
                pass
        self.done = number + 1
        self.last = operation

    def _file(self, path: str) -> Inode:
        if path not in self.files:
            raise ValueError(f"the run writes to {path}, which it did not create; pass the directory before the run as base")
        return self.files[path]

    def _entry(self, path: str, after: Node | None) -> Entry:
        above, _, name = path.rpartition("/")
        directory = self.directories[above]
        return Entry(directory, name, directory.names.get(name), after)

    def _rename(self, number: int, operation: Create | MakeDirectory | Link | Rename | Remove | RemoveTree, entries: list[Entry]) -> None:
        for entry in entries:
            _set(entry.directory.names, entry.name, entry.after)
        self.name_changes.append(NameChange(number, operation, entries))
        before = self.files
        self._see()
        self.unlinked.update(before.keys() - self.files.keys())

    def _sync_names(self, directory: Directory) -> None:
        directory.lasting = dict(directory.names)
        for change in self.name_changes:
            change.synced.update(number for number, entry in enumerate(change.entries) if entry.directory is directory)
        self.name_changes = [change for change in self.name_changes if len(change.synced) < len(change.entries)]
        self._losses = None
        self._lasting = None

    # ---- the whole tree and its key

    def _see(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: dict[str, Directory] = {}
        _flatten("", self.root, self.files, self.directories)
        self._paths = {id(directory): path for path, directory in self.directories.items()}
        self._parts = {path: file_part(path, inode.size, inode.total) for path, inode in self.files.items()}
        self.key = sum(self._parts.values()) + sum(map(directory_part, self.directories))
        self._losses = None

    def _changed(self, path: str) -> None:
        inode = self.files[path]
        part = file_part(path, inode.size, inode.total)
        self.key += part - self._parts[path]
        self._parts[path] = part

    def part(self, path: str) -> int:
        return self._parts[path]

    @property
    def lasting(self) -> tuple[int, Tree]:
        """Return what certainly survives, with its key."""
        if self._lasting is None:
            files: dict[str, Inode] = {}
            directories: dict[str, Directory] = {}
            _flatten("", self.root, files, directories, lasting=True)
            key = sum(file_part(path, inode.synced.size, inode.synced.total) for path, inode in files.items())
            tree = Tree(list(directories)[1:], {path: FileLayout(inode.synced, inode.synced.size) for path, inode in files.items()})
            self._lasting = key + sum(map(directory_part, directories)), tree
        return self._lasting

    def tree(self) -> Tree:
        """Return what a running program sees."""
        return Tree(list(self.directories)[1:], {path: inode.laid() for path, inode in self.files.items()})

    def without_names(self) -> list[tuple[NameChange, dict[str, Node], dict[str, Node]]]:
        """Return for each change of names that may be lost what is then missing and what exists instead, by path."""
        if self._losses is None:
            self._losses = [(change, *self._without(change)) for change in self.name_changes]
        return self._losses

    def _without(self, change: NameChange) -> tuple[dict[str, Node], dict[str, Node]]:
        names: dict[tuple[int, str], tuple[Directory, Node | None]] = {}

        def put(part: int, of: NameChange, node: Node | None) -> None:
            if part not in of.synced:
                entry = of.entries[part]
                names[id(entry.directory), entry.name] = entry.directory, node

        for part, entry in enumerate(change.entries):
            put(part, change, entry.before)
        for later in self.name_changes[self.name_changes.index(change) + 1 :]:
            nodes = [names.get((id(entry.directory), entry.name), (entry.directory, entry.before)) for entry in later.entries]
            if all((id(entry.directory), entry.name) not in names for entry in later.entries):
                continue
            if not isinstance(later.operation, Rename):
                put(0, later, later.entries[0].after)
            elif (moved := nodes[0][1]) is not None:
                put(0, later, None)
                put(1, later, moved)
            else:
                put(1, later, nodes[1][1])
        gone: dict[str, Node] = {}
        back: dict[str, Node] = {}
        for (_, name), (directory, node) in names.items():
            above = self._paths.get(id(directory))
            now = directory.names.get(name)
            if above is None or now is node:
                continue
            path = f"{above}/{name}" if above else name
            gone.update(_below(path, now))
            back.update(_below(path, node))
        return gone, back


def _copy(number: int, path: str, image: Image) -> Inode:
    """Return a copy of an outside file: its bytes are durable once it is synced."""
    inode = Inode(Image())
    inode.truncate(number, Truncate(path, image.size))
    for offset, octets in image.runs:
        inode.write(number, Write(path, offset, octets))
    return inode


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        del names[name]
    else:
        names[name] = node


def _flatten(path: str, directory: Directory, files: dict[str, Inode], directories: dict[str, Directory], *, lasting: bool = False) -> None:
    directories[path] = directory
    for name, node in (directory.lasting if lasting else directory.names).items():
        below = f"{path}/{name}" if path else name
        if isinstance(node, Directory):
            _flatten(below, node, files, directories, lasting=lasting)
        else:
            files[below] = node


def _below(path: str, node: Node | None) -> dict[str, Node]:
    if isinstance(node, Inode):
        return {path: node}
    files: dict[str, Inode] = {}
    directories: dict[str, Directory] = {}
    if node is not None:
        _flatten(path, node, files, directories)
    return {**directories, **files}


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest(), "big")


def file_part(path: str, size: int, total: int) -> int:
    """Return a file's part of the key of a tree."""
    return _digest(f"{path}\0{size}\0{total}")


def directory_part(path: str) -> int:
    return _digest(f"{path}/")
