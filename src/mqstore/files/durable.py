"""The durable layer: every byte this package writes goes through here, can be synced, and can be recorded.

A `DurableDirectory` is an existing directory that is written to, by paths relative to it. A `NewDirectory` (or `NewFile`)
appears under its name only when it is complete:

    target's parent/
        .NAME.mqstore-XXXXXXXX     staged beside the target, so that one rename publishes it
        NAME                       exists only after every file and directory in it was synced

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place, NewDirectory(f"{place}/store") as new:
    ...     new.directory.create("consumequeue/orders/0/00000000000000000000", size=40)
    ...     new.directory.pwrite("consumequeue/orders/0/00000000000000000000", 20, b"second entry")
    ...     new.publish()
    ...     sorted(os.listdir(place))
    ['store']

Leaving the block without `publish` (an error, an interrupt) removes the staged directory. One that a killed process left
behind is removed by the next run with the same target: the process held a lock on it, which ended with the process.

Tasks in other processes write into the staged directory by `DurableDirectory(root)`. That never creates the root, so a
late attempt cannot write after the rename: its root no longer exists.

What is created lets no one in whom the directory around it keeps out, and never more than the umask allows (`permissions`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mqstore.errors import CannotOpenError, TargetError
from mqstore.files.durable_file import SECRET, DurableFile, copy_file, permissions, sync_path, target_error, writing
from mqstore.files.location import check_parent, exists_already
from mqstore.files.locking import forked_sentence
from mqstore.files.recorder import Create, Link, MakeDirectory, Operation, Recorder, Remove, RemoveTree, Rename, Sync, SyncDirectory, Write

OPEN_FILES = 64
STAGED = ".mqstore-"

WriteAll = Callable[[Sequence[int], Sequence[int], Sequence[Any]], tuple[int, int]]


class DurableDirectory:
    """An existing directory that is written to. Paths are relative, `/` between names; none leads out of the root.

    root: never created here. within: prefix of recorded paths (a staged directory is recorded relative to its parent).
    Files opened by `pwrite` and `append` stay open until `close`, the last `open_files` of them. Not thread-safe. A child that is forked
    while it is open is refused: what it would write belongs to the parent, and neither knows of the other.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, recorder: Recorder | None = None, within: str = "", open_files: int = OPEN_FILES
    ) -> None:
        self.root = Path(root)
        self._process = os.getpid()
        self._open_files = open_files
        self._recorder = recorder
        self._within = within
        self._files: OrderedDict[str, DurableFile] = OrderedDict()
        self._made: set[str] = {""}
        if not os.path.isdir(self.root):
            raise TargetError(f"{self.root} cannot be written to: it is not a directory, or no longer exists; give an existing directory")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the files that `pwrite` and `append` keep open."""
        while self._files:
            self._files.popitem()[1].close()

    def path(self, relative: str) -> Path:
        """Return the absolute path. Raises TargetError for a name that leads out of the root: names may come from damaged bytes."""
        if relative and any(part in ("", ".", "..") or "\0" in part for part in relative.split("/")):
            raise TargetError(f"{relative!r} cannot be the name of a file below {self.root}: it would lead elsewhere")
        try:
            os.fsencode(relative)
        except UnicodeEncodeError:
            raise TargetError(f"{relative!r} cannot be the name of a file on this system") from None
        return self.root / relative if relative else self.root

    def named(self, relative: str) -> str:
        """Return the path as recorded."""
        return "/".join(part for part in (self._within, relative) if part)

    @property
    def recorded(self) -> bool:
        """Whether writes are recorded."""
        return self._recorder is not None

    def attempt(self, operation: str, relative: str) -> None:
        """Announce a system call that changes the disk. Raises TargetError in a forked child; a recorder may raise an OSError."""
        if os.getpid() != self._process:
            raise TargetError(forked_sentence(self.root, self._process))
        if self._recorder is not None:
            self._recorder.attempt(operation, self.named(relative))

    def note(self, operation: Operation) -> None:
        if self._recorder is not None:
            self._recorder.record(operation)

    def note_write(self, relative: str, offset: int, view: memoryview) -> None:
        if self._recorder is not None:
            self._recorder.record(Write(self.named(relative), offset, bytes(view)))

    def exists(self, relative: str) -> bool:
        return os.path.lexists(self.path(relative))

    def make_directory(self, relative: str) -> None:
        """Create a directory and its parents, but never the root. No error if it exists."""
        if relative in self._made:
            return
        path = self.path(relative)
        self.make_directory(relative.rpartition("/")[0])
        with writing(path):
            self.attempt("mkdir", relative)
            try:
                os.mkdir(path, permissions(path.parent, 0o777))
            except FileExistsError:
                if not path.is_dir():
                    raise
            else:
                self.note(MakeDirectory(self.named(relative)))
        self._made.add(relative)

    def create(self, relative: str, size: int = 0) -> None:
        """Create a file of `size` zero bytes that occupy no disk space yet. Raises TargetError if it exists."""
        path = self.path(relative)
        self.make_directory(relative.rpartition("/")[0])
        with writing(path):
            self.attempt("create", relative)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, permissions(path.parent))
            try:
                if size:
                    self.attempt("truncate", relative)
                    os.ftruncate(descriptor, size)
            except BaseException:
                os.unlink(path)  # a file of the wrong size would block the next attempt
                raise
            finally:
                os.close(descriptor)
        self.note(Create(self.named(relative), size))

    def ensure(self, relative: str, size: int) -> None:
        """Create a file of `size` zero bytes unless it exists. Safe for concurrent processes: what they write meanwhile is kept."""
        if relative in self._files:
            return
        path = self.path(relative)
        self.make_directory(relative.rpartition("/")[0])
        with writing(path):
            self.attempt("create", relative)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, permissions(path.parent))
            try:
                grown = os.fstat(descriptor).st_size < size
                if grown:
                    self.attempt("truncate", relative)
                    os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)
        if grown:
            self.note(Create(self.named(relative), size))

    def open(self, relative: str) -> DurableFile:
        """Open an existing file for writing; the caller closes it."""
        return DurableFile(self, relative)

    def open_new(self, relative: str, *, mode: int | None = None) -> DurableFile:
        """Create a file and open it for writing; the caller closes it. Raises TargetError if it exists."""
        self.path(relative)
        self.make_directory(relative.rpartition("/")[0])
        return DurableFile(self, relative, exclusive=True, mode=mode)

    def pwrite(self, relative: str, offset: int, buffer: Any) -> None:
        """Write the whole buffer at an offset of an existing file."""
        self._file(relative).pwrite(offset, buffer)

    def pwrite_all(self, writes: Sequence[tuple[str, int, Any]], write_all: WriteAll) -> tuple[int, TargetError | None]:
        """Write several buffers (file, offset, uint8 array) to existing files with few calls; stop at the first that fails.

        write_all: writes buffers at offsets of descriptors, as `mqstore.kernels.common.positioned_writes` does.
        Returns how many are written completely, and the error of the one after them.
        """
        done = 0
        failed: TargetError | None = None
        if self._recorder is not None:  # it sees each write, and may refuse one
            try:
                for relative, offset, buffer in writes:
                    self.pwrite(relative, offset, buffer)
                    done += 1
            except TargetError as error:
                failed = error
            return done, failed
        if writes:
            self.attempt("write", writes[0][0])
        while done < len(writes) and failed is None:
            part = writes[done : done + self._open_files]
            files = []
            try:
                for relative, _, _ in part:
                    files.append(self._file(relative))
            except TargetError as error:
                failed = error
            rest = part[: len(files)]
            count, code = write_all([file.fileno() for file in files], [offset for _, offset, _ in rest], [buffer for _, _, buffer in rest])
            done += count
            if code:
                failed = target_error(OSError(code, os.strerror(code)), files[count].path)
        return done, failed

    def append(self, relative: str, buffer: Any) -> int:
        """Write at the end of a file, created if necessary. Return the offset of the first byte."""
        if relative not in self._files and not self.exists(relative):
            self.create(relative)
        file = self._file(relative)
        offset = file.size
        file.pwrite(offset, buffer)
        return offset

    def truncate(self, relative: str, size: int) -> None:
        """Truncate an existing file to `size` bytes, or extend it by zeros that occupy no disk space."""
        self._file(relative).truncate(size)

    def write_small(self, relative: str, content: bytes, *, mode: int | None = None) -> None:
        """Write a whole small file atomically and synced: a reader sees the old content or the new one, never a part.

        mode: the exact permission bits; by default as `permissions` says.
        """
        path = self.path(relative)
        above, _, name = relative.rpartition("/")
        self.make_directory(above)
        draft = "/".join(part for part in (above, f".{name[:200]}{STAGED}{os.urandom(4).hex()}") if part)
        try:
            with self.open_new(draft, mode=None if mode is None else mode & SECRET) as file:
                file.write(content)
                if mode is not None:
                    with writing(path):
                        os.fchmod(file.fileno(), mode)
                file.sync()
            self.rename(draft, relative)
            self.sync_directory(above)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self.path(draft))
                self.note(Remove(self.named(draft)))
            raise

    def link_or_copy(self, source: str | os.PathLike[str], relative: str, *, copy: bool = False) -> bool:
        """Create `relative` from the file at `source`: a hard link, or a copy if requested or if no link is possible.

        Return whether it is a link. A copy keeps holes and the modification time (brokers expire log files by it).
        """
        path = self.path(relative)
        self.make_directory(relative.rpartition("/")[0])
        origin = os.path.realpath(source)
        if not copy:
            try:
                self.attempt("link", relative)
                os.link(origin, path)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES):
                    if error.errno == errno.ENOENT and not os.path.exists(origin):
                        raise CannotOpenError(f"{source} no longer exists: it was removed after the directory was listed") from error
                    raise target_error(error, path) from error
            else:
                self.note(Link(origin, self.named(relative), False))
                return True
        with writing(path):
            self.attempt("create", relative)
        copy_file(origin, path)
        self.note(Link(origin, self.named(relative), True))
        return False

    def rename(self, old: str, new: str) -> None:
        """Move a file or directory; a file at the new name is replaced."""
        self._forget(old)
        self._forget(new)
        with writing(self.path(new)):
            self.attempt("rename", new)
            os.replace(self.path(old), self.path(new))
        self.note(Rename(self.named(old), self.named(new)))

    def remove(self, relative: str) -> None:
        """Unlink a file. Raises TargetError if it does not exist."""
        opened = self._files.pop(relative, None)
        if opened is not None:
            opened.close()
        with writing(self.path(relative)):
            self.attempt("remove", relative)
            os.unlink(self.path(relative))
        self.note(Remove(self.named(relative)))

    def remove_empty(self, relative: str) -> bool:
        """Remove a directory if nothing is in it. Returns whether it is gone; a symbolic link to one stays."""
        path = self.path(relative)
        with writing(path):
            self.attempt("remove", relative)
            try:
                os.rmdir(path)
            except FileNotFoundError:
                self._made.discard(relative)
                return True
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY):
                    return False
                raise
        self._made.discard(relative)
        self.note(RemoveTree(self.named(relative)))
        return True

    def remove_tree(self, relative: str) -> None:
        """Remove a directory with all its contents, or what is there in its place. No error if it does not exist."""
        if not relative or not self.exists(relative):
            return
        path = self.path(relative)
        if not path.is_dir() and not path.is_symlink():  # rmtree opens it, and the opening of a pipe never returns
            self.remove(relative)
            return
        self._forget(relative)
        with writing(self.path(relative)):
            self.attempt("remove", relative)
            import shutil  # a broker starts without it

            shutil.rmtree(self.path(relative))
        self.note(RemoveTree(self.named(relative)))

    def discard(self, relative: str) -> None:
        """Remove a directory that tasks of a dead or failed job may still be writing to. No error if it does not exist.

        It is renamed first: tasks never create their root, so from then on they can add nothing, and the removal terminates.
        If this process dies in between, the directory remains under a name with the same prefix.
        """
        if not relative or not self.exists(relative):
            return
        doomed = f"{relative}~{os.urandom(3).hex()}"
        self.rename(relative, doomed)
        self.remove_tree(doomed)

    def sync(self, relative: str) -> None:
        """Return when the bytes of a file have reached the disk, whichever process wrote them."""
        path = self.path(relative)
        with writing(path):
            self.attempt("sync", relative)
            sync_path(path)
        self.note(Sync(self.named(relative)))

    def sync_directory(self, relative: str = "") -> None:
        """Return when the names in a directory have reached the disk."""
        path = self.path(relative)
        with writing(path):
            self.attempt("sync directory", relative)
            sync_path(Path(os.path.realpath(path)))  # a store, or a part of it, may be a symbolic link
        self.note(SyncDirectory(self.named(relative)))

    def sync_tree(self, relative: str = "") -> None:
        """Sync every file and directory at and below relative. Hard links are skipped: their bytes are older than this run."""
        path = self.path(relative)
        with writing(path):
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        for entry in entries:
            below = f"{relative}/{entry.name}" if relative else entry.name
            if entry.is_dir(follow_symlinks=False):
                self.sync_tree(below)
            elif entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_nlink == 1:
                self.sync(below)
        self.sync_directory(relative)

    def _file(self, relative: str) -> DurableFile:
        file = self._files.get(relative)
        if file is None:
            file = self._files[relative] = DurableFile(self, relative)
            if len(self._files) > self._open_files:
                self._files.popitem(last=False)[1].close()
        else:
            self._files.move_to_end(relative)
        return file

    def _forget(self, relative: str) -> None:
        """Close the open files at or below a path that is about to be renamed or removed."""
        for name in [name for name in self._files if name == relative or name.startswith(relative + "/")]:
            self._files.pop(name).close()
        self._made = {name for name in self._made if name != relative and not name.startswith(relative + "/")}


def make_root(root: str | os.PathLike[str]) -> bool:
    """Create a directory to write to, its name synced; return False if it exists. Its parent must exist."""
    path = Path(root)
    if path.is_dir():
        return False
    with writing(path):
        path.mkdir(permissions(path.parent, 0o777))
        sync_path(path.parent)
    return True


class _StagedTarget:
    """Common part of `NewDirectory` and `NewFile`: a private directory beside the target, removed when the block is left."""

    def __init__(self, target: str | os.PathLike[str], *, recorder: Recorder | None = None) -> None:
        self.target = Path(os.path.abspath(target))
        self._recorder = recorder
        self._lock = -1
        self._parent: DurableDirectory | None = None
        self._staged = ""

    def _stage(self) -> DurableDirectory:
        name = self.target.name
        if os.path.lexists(self.target):
            raise exists_already(self.target)
        check_parent(self.target)
        self._parent = DurableDirectory(self.target.parent, recorder=self._recorder)
        remove_left_behind(self.target)
        self._staged = staged_name(name)
        self._parent.make_directory(self._staged)
        try:
            with writing(self.target):
                self._lock = os.open(self.target.parent / self._staged, os.O_RDONLY | os.O_CLOEXEC)
                with contextlib.suppress(OSError):  # without file system locks, leftovers of killed processes stay
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return DurableDirectory(self.target.parent / self._staged, recorder=self._recorder, within=self._staged)
        except BaseException:
            self._unstage()
            raise

    def _put_in_place(self, staged: str) -> None:
        assert self._parent is not None
        if os.path.lexists(self.target):
            raise TargetError(f"{self.target} was created by another process meanwhile; nothing was overwritten or written")
        self._parent.rename(staged, self.target.name)
        self._parent.sync_directory()

    def _unstage(self) -> None:
        """Remove what is staged. Never raises: it runs while an exception propagates, also in a forked child, which may not remove it."""
        if self._parent is not None:
            with contextlib.suppress(TargetError):
                self._parent.discard(self._staged)
            self._parent.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def staged_name(name: str) -> str:
    """Return a new name for what is staged for, or taken away from, a target of that name."""
    return f".{name[:100]}{STAGED}{os.urandom(4).hex()}"


def remove_left_behind(target: Path) -> None:
    """Remove staged directories of a target whose processes are dead. What cannot be removed stays."""
    parent = target.parent
    for path in parent.glob(_literal(f".{target.name[:100]}{STAGED}") + "*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with DurableDirectory(parent) as directory:
                directory.discard(path.name)
        except (OSError, TargetError):
            continue
        finally:
            os.close(descriptor)


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


class NewDirectory(_StagedTarget):
    """A directory that does not exist yet. Write to `directory`; `publish` makes it appear, synced and complete.

    Raises TargetError if the target exists, or its parent is missing or not writable.
    """

    directory: DurableDirectory

    def __enter__(self) -> Self:
        self.directory = self._stage()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with contextlib.suppress(TargetError):
                self.directory.close()
        finally:
            self._unstage()

    def publish(self) -> None:
        """Sync everything that is staged, then rename it to the target."""
        self.directory.close()
        self.directory.sync_tree()
        self._put_in_place(self._staged)


class NewFile(_StagedTarget):
    """A file that does not exist yet. `file` is a binary sink; `publish` makes it appear, synced and complete."""

    file: DurableFile

    def __enter__(self) -> Self:
        directory = self._stage()
        self.file = directory.open_new("file")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with contextlib.suppress(TargetError):
                self.file.close()
        finally:
            self._unstage()

    def identity(self) -> list[int]:
        """Return what `identity_of` gives for the target once it is published."""
        status = os.stat(self.target.parent / self._staged / "file")
        return [status.st_ino, status.st_size]

    def publish(self) -> None:
        """Sync the file, then rename it to the target."""
        self.file.sync()
        self.file.close()
        self._put_in_place(f"{self._staged}/file")


def identity_of(path: Path) -> list[int] | None:
    """Return the inode and the size of a file, by which it is known again; None if there is none."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return [status.st_ino, status.st_size]
