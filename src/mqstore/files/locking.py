"""The lock on the first byte of a file, as a Java program takes it: `FileChannel.tryLock(0, 1, false)` is `fcntl` on bytes [0, 1).

Such a lock belongs to the process, not to the descriptor. Two things follow. The system grants a second lock of the same
process, so this module keeps its own list and refuses it. And the lock is released as soon as the process closes *any*
descriptor of the file: while it is held, nothing in the process may open the file, not even to read or sync it.

    >>> from tempfile import TemporaryDirectory
    >>> from mqstore.files.durable import DurableDirectory
    >>> with TemporaryDirectory() as place, DurableDirectory(place) as directory:
    ...     first, second = LockedFile(directory, "lock"), None
    ...     try:
    ...         second = LockedFile(directory, "lock")
    ...     except LockHeldError as error:
    ...         print("held by another process:", error.elsewhere)
    ...     first.write(b"lock")
    ...     first.close()
    ...     LockedFile(directory, "lock").close()
    held by another process: False

A forked child has copies of all objects of its parent, but none of its locks. What must not be used there registers with
`bind_to_process`: its `forked` is called in the child before anything else runs. Locks of `flock` belong to the descriptor, which the
child shares: they are closed there, so that they end with the parent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from mqstore.errors import TargetError
from mqstore.files.durable_file import FileOwner, permissions, writing
from mqstore.files.readonly import walk_tree
from mqstore.files.recorder import Create, Sync

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64-bit machines

_guard = threading.Lock()
_held: dict[tuple[int, int], int] = {}  # device and inode -> process that holds it; a forked child does not inherit locks


class ProcessBound(Protocol):
    """An object that only the process that made it may use."""

    def forked(self) -> None:
        """Give the object up, in a forked child. Takes no lock: a thread of the parent may have held it. Must not raise."""


_bound: weakref.WeakSet[ProcessBound] = weakref.WeakSet()


def bind_to_process(owner: ProcessBound) -> None:
    """Have `owner.forked()` called in every child that is forked from this process while the object exists."""
    _bound.add(owner)


def forked_sentence(what: object, process: int) -> str:
    """Return why an object that another process opened is not used here. process: the id of that process."""
    return f"{what} was opened by process {process}, from which this one was forked; close it there, then open it here"


def remove_own_tree(path: str | os.PathLike[str], process: int) -> None:
    """Remove a temporary directory when its owner ends, but not in a child that was forked from the process that made it."""
    if os.getpid() == process:
        import shutil  # a broker starts without it

        shutil.rmtree(path, ignore_errors=True)


def _forked() -> None:
    global _guard  # noqa: PLW0603
    _guard = threading.Lock()  # a thread that is not here may hold the old one
    _held.clear()
    for owner in list(_bound):
        owner.forked()


os.register_at_fork(after_in_child=_forked)


class LockHeldError(TargetError):
    """The lock is already held. elsewhere: by another process, otherwise by this one."""

    def __init__(self, sentence: str, *, elsewhere: bool) -> None:
        super().__init__(sentence)
        self.elsewhere = elsewhere


class LockedFile:
    """A file whose first byte this process has locked, created if necessary. Raises LockHeldError, TargetError if it cannot be opened."""

    def __init__(self, directory: FileOwner, relative: str) -> None:
        self.path = directory.path(relative)
        self._directory = directory
        self._relative = relative
        self._descriptor = -1
        with _guard, writing(self.path):
            self._refuse_twice()
            if not os.path.lexists(self.path):
                directory.attempt("create", relative)
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, permissions(self.path.parent)))
                directory.note(Create(directory.named(relative), 0))
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            status = os.fstat(descriptor)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise LockHeldError(f"{self.path} is locked by another process", elsewhere=True) from None
                raise
            self._key = (status.st_dev, status.st_ino)
            _held[self._key] = os.getpid()
            self._descriptor = descriptor

    def _refuse_twice(self) -> None:
        """Refuse a second lock before the file is opened: closing it again would release the lock that is held."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return
        if _held.get((status.st_dev, status.st_ino)) == os.getpid():
            raise LockHeldError(f"{self.path} is already locked by this process", elsewhere=False)

    def write(self, content: bytes) -> None:
        """Make the file begin with `content`, synced. Nothing is written if it already does."""
        with writing(self.path):
            if os.pread(self._descriptor, len(content), 0) == content:
                return
            self._directory.attempt("write", self._relative)
            os.pwrite(self._descriptor, content, 0)
            self._directory.note_write(self._relative, 0, memoryview(content))
            self._directory.attempt("sync", self._relative)
            os.fsync(self._descriptor)
        self._directory.note(Sync(self._directory.named(self._relative)))

    def close(self) -> None:
        """Release the lock. The file stays."""
        if self._descriptor < 0:
            return
        with _guard:
            descriptor, self._descriptor = self._descriptor, -1
            if _held.get(self._key) == os.getpid():
                del _held[self._key]
            os.close(descriptor)


class _OwnLock:
    """A lock on a whole file or directory (`flock`), of one descriptor. Nothing is locked on a file system without such locks."""

    def __init__(self, path: str | os.PathLike[str], flags: int, held: str) -> None:
        """flags: to open it with, for reading. held: the rest of the sentence if another one has the lock. Raises LockHeldError."""
        with writing(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                self.close()
                raise LockHeldError(f"{path} {held}", elsewhere=True) from None
        bind_to_process(self)

    def forked(self) -> None:
        self._close()

    def close(self) -> None:
        """Release the lock, also for a forked child that has not closed its own yet. No error if it was released before."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class LockedDirectory(_OwnLock):
    """A directory locked as a whole, without a lock file, so that a broker does not notice. Raises LockHeldError."""

    def __init__(self, directory: FileOwner, relative: str) -> None:
        super().__init__(directory.path(relative), os.O_DIRECTORY, "is locked by a process that has it open")


class UsedFile(_OwnLock):
    """An existing file that one run at a time uses: other descriptors of it may come and go. Raises LockHeldError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, os.O_NONBLOCK, "is in use by another run; wait for its end")


def is_locked(path: str | os.PathLike[str]) -> bool | None:
    """Return whether the first byte of a file is locked, by this process or another one; None: unknown. Changes nothing."""
    with _guard:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return False
        except OSError:
            return None
        if _held.get((status.st_dev, status.st_ino)) == os.getpid():
            return True  # and opening the file would release the lock
        if not sys.platform.startswith("linux"):
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            lock: int = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0]
            return lock != fcntl.F_UNLCK
        except OSError:
            return None
        finally:
            os.close(descriptor)


# ---- which processes of this machine have files below a directory open for writing, according to /proc
#
# Files are compared by device and inode, so that a process in a container or under another mount is found too.

PROCESSES = "/proc"
WRITING = (os.O_WRONLY, os.O_RDWR)


@dataclass(frozen=True, slots=True)
class Writer:
    """A process, its name, and one of the files that it has open, relative to the directory."""

    process: int
    name: str
    file: str


def can_tell(directory: str | os.PathLike[str]) -> bool:
    """Return whether the open files of the directory's owner can be seen by this process."""
    if not os.path.isdir(f"{PROCESSES}/self/fd"):
        return False
    return os.geteuid() in (0, os.stat(directory).st_uid)


def writers(directory: str | os.PathLike[str], *, own: bool = False) -> list[Writer]:
    """Return the processes that have a file below a directory open for writing, one entry each. own: including this one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory, open(f"{directory}/log", "w") as log:
    ...     [writer.process == os.getpid() for writer in writers(directory, own=True)]
    [True]
    """
    open_files = {(device, inode): process for process, device, inode in _open_for_writing(os.stat(directory).st_dev, own)}
    if not open_files:
        return []
    seen: dict[int, Writer] = {}
    for above, _, names in walk_tree(directory):
        for name in names:
            path = os.path.join(above, name)
            try:
                known = os.lstat(path)
            except OSError:
                continue
            process = open_files.get((known.st_dev, known.st_ino))
            if process is not None and process not in seen:
                seen[process] = Writer(process, _name(process), os.path.relpath(path, directory))
    return [seen[process] for process in sorted(seen)]


def _open_for_writing(device: int, own: bool) -> Iterator[tuple[int, int, int]]:
    """Yield process, device and inode of each regular file on a device that is open for writing."""
    try:
        processes = [int(name) for name in os.listdir(PROCESSES) if name.isdecimal()]
    except OSError:
        return
    for process in processes:
        if process == os.getpid() and not own:
            continue
        about = f"{PROCESSES}/{process}"
        try:
            numbers = os.listdir(f"{about}/fd")
        except OSError:  # it has ended, or is another user's
            continue
        for number in numbers:
            try:
                known = os.stat(f"{about}/fd/{number}")
                if known.st_dev == device and stat.S_ISREG(known.st_mode) and _is_writing(f"{about}/fdinfo/{number}"):
                    yield process, known.st_dev, known.st_ino
            except (OSError, ValueError):
                continue


def _is_writing(description: str) -> bool:
    with open(description) as lines:
        flags = next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), 0)
    return flags & os.O_ACCMODE in WRITING


def _name(process: int) -> str:
    try:
        with open(f"{PROCESSES}/{process}/comm", errors="replace") as name:
            return name.read().strip()
    except OSError:
        return "?"
