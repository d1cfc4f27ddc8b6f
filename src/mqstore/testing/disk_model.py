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
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
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
from mqstore.testing.images import FileLayout, Image, Inode


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
            change.synced.update(place for place, entry in enumerate(change.entries) if entry.directory is directory)
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
            found = [names.get((id(entry.directory), entry.name), (entry.directory, entry.before)) for entry in later.entries]
            if all((id(entry.directory), entry.name) not in names for entry in later.entries):
                continue
            if not isinstance(later.operation, Rename):
                put(0, later, later.entries[0].after)
            elif (moved := found[0][1]) is not None:
                put(0, later, None)
                put(1, later, moved)
            else:
                put(1, later, found[1][1])
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
