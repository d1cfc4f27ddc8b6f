"""Opening a file for reading, if it is a regular file: the one way in which this package opens what it reads; and its stored blocks.

A FIFO or a terminal in the place of a file would block its reader, a device would never end. Anything but a regular file is refused
before it is opened, since opening a device may already do something; the open itself does not block, in case the file was replaced
meanwhile.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     os.mkfifo(f"{place}/checkpoint")
    ...     open_regular(f"{place}/checkpoint")
    Traceback (most recent call last):
    mqstore.files.regular_file.NotARegularFileError: is a FIFO, not a regular file; replace it by a copy of the file or move it away
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import IO

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


class NotARegularFileError(OSError):
    """The path leads to a FIFO, a socket, a device or a directory."""

    def __init__(self, mode: int, path: str | os.PathLike[str]) -> None:
        sentence = f"is {kind_of_file(mode)}, not a regular file; replace it by a copy of the file or move it away"
        super().__init__(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, sentence, os.fspath(path))

    def __str__(self) -> str:
        return str(self.strerror)


def kind_of_file(mode: int) -> str:
    """Return what a file of this mode is, with an article."""
    return _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> int:
    """Return a descriptor for reading. Raises OSError, for anything but a regular file NotARegularFileError.

    follow: accept a symbolic link to a regular file.
    """
    mode = os.stat(path, follow_symlinks=follow).st_mode
    if not stat.S_ISREG(mode):
        raise NotARegularFileError(mode, path)
    descriptor = os.open(path, _FLAGS | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotARegularFileError(mode, path)
    return descriptor


def open_regular_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Return a regular file, open for reading. Raises OSError as `open_regular` does."""
    return os.fdopen(open_regular(path), "rb")


def data_extents(descriptor: int, size: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the ranges of stored blocks at or after start, as (from, to): everything between them is zeros. size: of the file.

    Without support of the file system every byte counts as stored.
    """
    at = start
    while at < size:
        try:
            low = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: only a hole follows
                yield at, size
            return
        if low >= size:
            return
        try:
            high = os.lseek(descriptor, low, os.SEEK_HOLE)
        except OSError:
            high = size
        at = min(size, max(high, low + 1))
        yield low, at


def why_unreadable(path: str | os.PathLike[str], error: OSError) -> str:
    """Return the sentence for a file that the operating system, or `open_regular`, refuses to open or read."""
    if isinstance(error, NotARegularFileError):
        return f"{path} {error}"
    if error.errno == errno.ENOMEM:
        return (
            f"{path} cannot be read: files are mapped as a whole, and this process may not use that many addresses; raise the limit "
            "(ulimit -v; for a Python worker of Spark spark.executor.pyspark.memory) by more than the size of the file"
        )
    return f"{path} cannot be read: {error.strerror or error}"
