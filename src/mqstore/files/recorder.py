"""Writes as a list of operations: the observer of the durable layer, and a recorder that can replay them.

After a power failure every synced operation has survived, and any part of the rest. A test records a run, then builds
the directory as a crash after operation n would have left it, and opens that:

    >>> from tempfile import TemporaryDirectory
    >>> from mqstore.files.durable import DurableDirectory
    >>> recorded = RecordedWrites()
    >>> with TemporaryDirectory() as place, DurableDirectory(place, recorder=recorded) as directory:
    ...     _ = directory.append("log", b"one")
    ...     directory.sync("log")
    ...     _ = directory.append("log", b"two")
    >>> for operation in recorded.operations:
    ...     print(operation)
    Create(path='log', size=0)
    Write(path='log', offset=0, data=b'one')
    Sync(path='log')
    Write(path='log', offset=3, data=b'two')
    >>> with TemporaryDirectory() as crashed:
    ...     recorded.replay(crashed, upto=2)
    ...     open(f"{crashed}/log", "rb").read()
    b'one'

Paths are relative to the recorded directory, with `/` as separator. A new directory that is published by
one rename is recorded relative to its parent, so the rename is an operation like any other.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    path: str


@dataclass(frozen=True, slots=True)
class Create:
    """A new file of `size` zero bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Write:
    path: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """The file is `size` bytes long from now on: truncated, or extended by zeros."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Link:
    """`path` is the file at `source`, an absolute path outside the recorded directory: linked or copied."""

    source: str
    path: str
    copied: bool


@dataclass(frozen=True, slots=True)
class Rename:
    """`old` moves to `new`; a file at `new` is replaced."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Remove:
    path: str


@dataclass(frozen=True, slots=True)
class RemoveTree:
    path: str


@dataclass(frozen=True, slots=True)
class Sync:
    """The bytes and the length of the file have reached the disk.

    begun: operations recorded when the sync began, if known; it does not cover later writes of other threads.
    """

    path: str
    begun: int | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """The names in the directory have reached the disk."""

    path: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A note of the test between the operations ("this message was acknowledged"). It changes nothing on disk."""

    label: str
    payload: object = None


Operation = MakeDirectory | Create | Write | Truncate | Link | Rename | Remove | RemoveTree | Sync | SyncDirectory | Mark


class Recorder(Protocol):
    """Observes every change on disk. Called from every thread that writes."""

    def attempt(self, operation: str, relative: str) -> None:
        """Called before the system call. An OSError raised here is handled like one raised by the call.

        operation: create, write, truncate, reserve, link, rename, remove, mkdir, sync or sync directory.
        relative: the path as recorded; for a rename the new one.
        """

    def record(self, operation: Operation) -> None:
        """Called after the call has succeeded, in the order of the calls of a thread."""


@dataclass(slots=True)
class RecordedWrites:
    """Keeps every operation in memory, bytes included, in the order in which the calls of the threads arrived."""

    operations: list[Operation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _syncs: dict[tuple[int, str], int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def attempt(self, operation: str, relative: str) -> None:
        """Allow everything; remember where a sync begins."""
        if operation == "sync":
            with self._lock:
                self._syncs[threading.get_ident(), relative] = len(self.operations)

    def record(self, operation: Operation) -> None:
        with self._lock:
            if isinstance(operation, Sync):
                begun = self._syncs.pop((threading.get_ident(), operation.path), None)
                operation = replace(operation, begun=begun)
            self.operations.append(operation)

    def mark(self, label: str, payload: object = None) -> None:
        """Note a fact about the run between the operations."""
        self.record(Mark(label, payload))

    def replay(self, into: str | os.PathLike[str], upto: int | None = None, *, lose_unsynced: bool = False) -> None:
        """Carry out the first `upto` operations (None: all) in the existing directory `into`.

        lose_unsynced: keep only what was synced by then, the worst state a crash at that point may leave.
        """
        done = self.operations[:upto]
        if lose_unsynced:
            _SimulatedDisk(Path(into)).crash_after(done)
            return
        for operation in done:
            _carry_out(Path(into), operation)


def _carry_out(root: Path, operation: Operation) -> None:
    import shutil  # only tests carry operations out; what a broker imports to start is kept small

    match operation:
        case MakeDirectory(path):
            (root / path).mkdir()
        case Create(path, size):
            with open(root / path, "xb") as file:
                file.truncate(size)
        case Write(path, offset, data):
            with open(root / path, "r+b") as file:
                file.seek(offset)
                file.write(data)
        case Truncate(path, size):
            os.truncate(root / path, size)
        case Link(source, path):
            shutil.copy2(source, root / path)
        case Rename(old, new):
            os.replace(root / old, root / new)
        case Remove(path):
            (root / path).unlink()
        case RemoveTree(path):
            shutil.rmtree(root / path)
        case Sync() | SyncDirectory() | Mark():
            return


@dataclass(slots=True, eq=False)
class _File:
    """start: the path of the initial bytes (None: none). changes[:synced] have reached the disk."""

    start: Path | None
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)
    synced: int = 0


@dataclass(slots=True, eq=False)
class _Directory:
    """names: as a running program sees them; lasting: as they were when the directory was last synced."""

    start: Path | None
    names: dict[str, _File | _Directory] = field(default_factory=dict)
    lasting: dict[str, _File | _Directory] = field(default_factory=dict)


class _SimulatedDisk:
    """The tree below a directory; what a sync has made durable is kept apart from what a running program sees."""

    def __init__(self, root: Path) -> None:
        self.place = root
        self.root = _Directory(root)

    def crash_after(self, operations: list[Operation]) -> None:
        import shutil
        import tempfile

        for operation in operations:
            self.apply(operation)
        hold = Path(tempfile.mkdtemp(prefix=".replay-", dir=self.place))
        try:
            held: dict[Path, Path] = {}
            self.set_aside(self.root, hold, held)
            self.lay_out(self.root, self.place, held)
        finally:
            shutil.rmtree(hold)

    def apply(self, operation: Operation) -> None:
        match operation:
            case MakeDirectory(path):
                self.put(path, _Directory(None))
            case Create(path, size):
                self.put(path, _File(None, [(size, None)]))
            case Link(source, path, copied):
                self.put(path, _File(Path(source)) if not copied else _CopiedFile(Path(source)))
            case Write(path, offset, data):
                self.file(path).changes.append((offset, data))
            case Truncate(path, size):
                self.file(path).changes.append((size, None))
            case Rename(old, new):
                node = self.find(old)
                self.take(old)
                self.put(new, node)
            case Remove(path) | RemoveTree(path):
                self.find(path)
                self.take(path)
            case Sync(path):
                file = self.file(path)
                file.synced = len(file.changes)
                if isinstance(file, _CopiedFile):
                    file.arrived = True
            case SyncDirectory(path):
                directory = self.directory(path)
                directory.lasting = dict(directory.names)

    def find(self, path: str) -> _File | _Directory:
        """Return the node at a path; what existed before the first operation is durable from the start."""
        node: _File | _Directory = self.root
        for name in path.split("/") if path else ():
            assert isinstance(node, _Directory)
            if name not in node.names:
                if node.start is None:
                    raise FileNotFoundError(path)
                start = node.start / name
                node.names[name] = node.lasting[name] = _Directory(start) if start.is_dir() else _File(start)
            node = node.names[name]
        return node

    def file(self, path: str) -> _File:
        node = self.find(path)
        assert isinstance(node, _File)
        return node

    def directory(self, path: str) -> _Directory:
        node = self.find(path)
        assert isinstance(node, _Directory)
        return node

    def put(self, path: str, node: _File | _Directory) -> None:
        above, _, name = path.rpartition("/")
        directory = self.directory(above)
        if name not in directory.names and directory.start is not None and os.path.lexists(directory.start / name):
            self.find(path)
        directory.names[name] = node

    def take(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        del self.directory(above).names[name]

    def set_aside(self, directory: _Directory, hold: Path, held: dict[Path, Path]) -> None:
        """Move every file and directory that an operation touched aside, children first."""
        for node in {*directory.names.values(), *directory.lasting.values()}:
            if isinstance(node, _Directory):
                self.set_aside(node, hold, held)
            if node.start is not None and node.start.is_relative_to(self.place) and node.start not in held:
                held[node.start] = hold / str(len(held))
                os.replace(node.start, held[node.start])

    def lay_out(self, directory: _Directory, at: Path, held: dict[Path, Path]) -> None:
        import shutil

        for name, node in directory.lasting.items():
            target = at / name
            start = node.start and held.get(node.start, node.start)
            if isinstance(node, _Directory):
                if start is None:
                    target.mkdir()
                else:
                    os.replace(start, target)
                self.lay_out(node, target, held)
                continue
            if start is None or (isinstance(node, _CopiedFile) and not node.arrived):
                target.touch()
            else:
                shutil.copy2(start, target)
            with open(target, "r+b") as file:
                for offset, data in node.changes[: node.synced]:
                    if data is None:
                        file.truncate(offset)
                    else:
                        file.seek(offset)
                        file.write(data)


@dataclass(slots=True, eq=False)
class _CopiedFile(_File):
    """A copy of a file outside: its bytes are durable once it has been synced."""

    arrived: bool = False
