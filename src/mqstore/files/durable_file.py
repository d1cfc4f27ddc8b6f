"""One file that is written, and an error message for each way in which the operating system can refuse.

A file with a second hard link is never opened for writing: the link may belong to a store that must not change.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mqstore.errors import CannotOpenError, TargetError
from mqstore.files.location import exists_already
from mqstore.files.recorder import Create, Operation, Sync, Truncate
from mqstore.files.regular_file import data_extents, open_regular, why_unreadable

COPY_CHUNK = 64 << 20
SECRET = 0o600  # mode of a file with keys or passwords, or their hashes

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up", errno.EFBIG: "the file size limit is reached"}
_REFUSED = {errno.EACCES: "permission denied", errno.EPERM: "operation not permitted", errno.EROFS: "the file system is read-only"}


def target_error(error: OSError, path: str | os.PathLike[str]) -> TargetError:
    """Return the TargetError for an OSError raised while writing path."""
    code = error.errno or 0
    if code in _FULL:
        return TargetError(f"{path} cannot be written: {_FULL[code]}; free some space or choose a target on another disk")
    if code in _REFUSED:
        return TargetError(f"{path} cannot be written: {_REFUSED[code]}; choose a target where this user may write")
    if code == errno.ENOENT:
        return TargetError(f"{path} cannot be written: its directory does not exist; create it first")
    if code == errno.EEXIST:
        return exists_already(path)
    if code == errno.ENAMETOOLONG:
        return TargetError(f"{path} cannot be written: the name is too long for this file system")
    return TargetError(f"{path} cannot be written: {error.strerror or error}")


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Translate errors of the operating system into a TargetError that names path."""
    try:
        yield
    except OSError as error:
        raise target_error(error, path) from error


def _byte_view(buffer: Any) -> memoryview:
    """Return the bytes of any contiguous buffer, structured arrays included, without a copy."""
    view = memoryview(buffer)
    if not view.contiguous:
        raise ValueError("only contiguous buffers can be written")
    try:
        return view.cast("B")
    except (TypeError, ValueError):
        return memoryview(buffer.reshape(-1).view("u1"))


_HELD = 64 << 10  # writes up to this size keep the GIL: reacquiring it would take longer than the copy
_PIECE = 1 << 20  # larger writes get larger pages, of memory that a virtual machine often has yet to get from its host
_COPIED = 4 << 10  # buffers up to this size are copied: finding out the address of one takes longer
_held_pwrite = ctypes.PyDLL(None, use_errno=True).pwrite
_held_pwrite.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong)
_held_pwrite.restype = ctypes.c_ssize_t


def _pwrite(descriptor: int, view: memoryview, offset: int) -> None:
    if 0 < len(view) <= _HELD:
        source = view.tobytes() if len(view) <= _COPIED else np.frombuffer(view, np.uint8).__array_interface__["data"][0]
        written = _held_pwrite(descriptor, source, len(view), offset)
        if written < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        view = view[written:]
        offset += written
    while view:
        written = os.pwrite(descriptor, view[:_PIECE], offset)
        view = view[written:]
        offset += written


def permissions(directory: str | os.PathLike[str], mode: int = 0o666) -> int:
    """Return the mode for what is created in a directory: this one, as far as the directory itself lets its group and others in.

    The umask takes more away. Thus messages written into a private directory stay private wherever the file goes later; 0o777 is wanted
    for directories, and `SECRET` for what only its owner may read. Raises OSError.
    """
    return mode & (0o700 | os.stat(directory).st_mode)


def open_for_writing(path: Path, flags: int = 0, mode: int | None = None) -> int:
    """Open a regular file that has no second hard link. Raises OSError, or TargetError for any other file.

    mode: of a file that is created (O_CREAT); by default as `permissions` says.
    """
    created = 0 if not flags & os.O_CREAT else permissions(path.parent) if mode is None else mode
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, created)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        reason = "it has a second hard link, whose bytes must not change" if stat.S_ISREG(status.st_mode) else "it is not a regular file"
        raise TargetError(f"{path} is not written to: {reason}; work on a real copy (--copy)")
    return descriptor


class FileOwner(Protocol):
    """The directory that a file belongs to: it resolves paths and records operations."""

    def path(self, relative: str) -> Path: ...
    def named(self, relative: str) -> str: ...
    def attempt(self, operation: str, relative: str) -> None: ...
    def note(self, operation: Operation) -> None: ...
    def note_write(self, relative: str, offset: int, view: memoryview) -> None: ...


class DurableFile(io.RawIOBase):
    """One file open for writing, also usable as a binary sink. `write` writes at the position, `pwrite` at an offset.

    Every error is a TargetError. Closing does not sync.
    """

    def __init__(self, directory: FileOwner, relative: str, *, exclusive: bool = False, mode: int | None = None) -> None:
        super().__init__()
        self.path = directory.path(relative)
        self.relative = relative
        self._directory = directory
        self._position = 0
        self._descriptor = -1
        with writing(self.path):
            if exclusive:
                directory.attempt("create", relative)
            self._descriptor = open_for_writing(self.path, os.O_CREAT | os.O_EXCL if exclusive else 0, mode)
        if exclusive:
            directory.note(Create(directory.named(relative), 0))

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence, self.size if whence == os.SEEK_END else 0)
        self._position = start + offset
        return self._position

    @property
    def size(self) -> int:
        """Current size in bytes."""
        with writing(self.path):
            return os.fstat(self._descriptor).st_size

    def write(self, buffer: Any) -> int:
        view = _byte_view(buffer)
        self.pwrite(self._position, view)
        self._position += len(view)
        return len(view)

    def pwrite(self, offset: int, buffer: Any) -> None:
        """Write the whole buffer at an offset; the file grows if necessary."""
        view = _byte_view(buffer)
        try:
            self._directory.attempt("write", self.relative)
            _pwrite(self._descriptor, view, offset)
        except OSError as error:
            raise target_error(error, self.path) from error
        self._directory.note_write(self.relative, offset, view)

    def pwrite_past_cache(self, offset: int, buffer: Any) -> None:
        """Write like `pwrite`, but without the page cache, as far as possible: for what is large and not read soon."""
        view = _byte_view(buffer)
        try:
            self._directory.attempt("write", self.relative)
            written = write_past_cache(self._descriptor, view, offset)
            _pwrite(self._descriptor, view[written:], offset + written)
        except OSError as error:
            raise target_error(error, self.path) from error
        self._directory.note_write(self.relative, offset, view)

    def truncate(self, size: int | None = None) -> int:
        """Truncate the file to `size` bytes, or extend it by zeros that occupy no disk space."""
        length = self._position if size is None else size
        with writing(self.path):
            self._directory.attempt("truncate", self.relative)
            os.ftruncate(self._descriptor, length)
        self._directory.note(Truncate(self._directory.named(self.relative), length))
        return length

    def sync(self) -> None:
        """Return when the bytes have reached the disk."""
        with writing(self.path):
            self._directory.attempt("sync", self.relative)
            os.fsync(self._descriptor)
        self._directory.note(Sync(self._directory.named(self.relative)))

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._descriptor >= 0:
                descriptor, self._descriptor = self._descriptor, -1
                with writing(self.path):
                    os.close(descriptor)


def sync_path(path: Path) -> None:
    """Return when the bytes of a file, or the names in a directory, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_file(origin: str, path: Path) -> None:
    """Copy a file with its holes and its modification time; nothing remains if it fails."""
    try:
        reading = open_regular(origin)
    except OSError as error:
        raise CannotOpenError(why_unreadable(origin, error)) from error
    try:
        status = os.fstat(reading)
        with writing(path):
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, permissions(path.parent))
            try:
                os.ftruncate(target, status.st_size)
                for start, stop in data_extents(reading, status.st_size):
                    _copy_range(reading, target, start, stop)
                os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
            except BaseException:
                os.unlink(path)
                raise
            finally:
                os.close(target)
    finally:
        os.close(reading)


def _copy_range(reading: int, target: int, start: int, stop: int) -> None:
    """Copy bytes start..stop-1 inside the kernel, or through a buffer if that is not possible. Ends early if the source has shrunk."""
    by_kernel = hasattr(os, "copy_file_range")
    while start < stop:
        count = min(stop - start, COPY_CHUNK)
        if by_kernel:
            try:
                copied = os.copy_file_range(reading, target, count, start, start)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                    raise
                by_kernel = False
                continue
        else:
            chunk = os.pread(reading, min(count, 1 << 20), start)
            _pwrite(target, memoryview(chunk), start)
            copied = len(chunk)
        if not copied:
            return
        start += copied


# ---- a large range written past the page cache (O_DIRECT)
#
# Bytes that are written as usual are copied into new pages of the page cache, and a later sync waits until those are on the disk. A whole
# log file that is not read soon is better written without: the disk takes the bytes from the writer's memory, which may be a map of
# another file, and the sync finds nothing to do.
#
# Offset, address and length have to be multiples of a block, and not every file system can do it. So this writes what it can.

BLOCK = 4096  # bytes: a multiple of what every usual disk and file system asks for

_NOT_HERE = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)


def write_past_cache(descriptor: int, view: memoryview, offset: int) -> int:
    """Write the leading whole blocks of a buffer at an offset. Returns the bytes written: 0 where that is not possible.

    Raises OSError as `os.pwrite` does.
    """
    flag = getattr(os, "O_DIRECT", 0)
    whole = len(view) - len(view) % BLOCK
    if not flag or not whole or offset % BLOCK or np.frombuffer(view, np.uint8).__array_interface__["data"][0] % BLOCK:
        return 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return 0
        raise
    done = 0
    try:
        while done < whole and not done % BLOCK:
            written = os.pwrite(descriptor, view[done:whole], offset + done)
            if not written:
                break
            done += written
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return done
