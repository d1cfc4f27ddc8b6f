"""An image: a file of any content and size, or a block device, read in ranges; what cannot be read is passed over, not fatal.

Nothing is mapped: a mapped block that the disk cannot read would end the process.

>>> from tempfile import NamedTemporaryFile
>>> with NamedTemporaryFile() as file:
...     _ = file.write(b"some bytes"), file.flush()
...     image = Image(file.name)
...     image.size, image.read(5, 100).tobytes(), image.read(10, 20).tobytes()
(10, b'bytes', b'')
"""

from __future__ import annotations

import errno
import os
import stat
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from mqstore.errors import CannotOpenError
from mqstore.files.regular_file import NotARegularFileError, why_unreadable

if TYPE_CHECKING:
    from mqstore.files.readonly import Bytes

BLOCK = 4096  # bytes that are passed over at once where the disk cannot read
LARGEST_READ = 1 << 30
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_TRANSIENT = (errno.EINTR, errno.EAGAIN)


class Image:
    """A regular file or a block device. size: in bytes; path: as given. Raises CannotOpenError. Not to be shared by threads."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._descriptor = -1
        self.size = 0
        self._open()

    def _open(self) -> None:
        try:
            mode = os.stat(self.path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
                raise NotARegularFileError(mode, self.path)
            self._descriptor = os.open(self.path, _FLAGS)
            self.size = os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            raise CannotOpenError(why_unreadable(self.path, error)) from None

    def read(self, start: int, stop: int, into: Bytes | None = None) -> Bytes:
        """Return the bytes from start to stop, or to where the file ends or the disk cannot read. into: an array to read into."""
        if self._descriptor < 0:
            self._open()
        length = max(0, min(stop, self.size) - start)
        room = np.empty(length, np.uint8) if into is None or len(into) < length else into
        view = room.data
        done = 0
        while done < length:
            try:
                got = os.preadv(self._descriptor, [view[done : min(length, done + LARGEST_READ)]], start + done)
            except OSError as error:
                if error.errno in _TRANSIENT:
                    continue
                break
            if not got:
                break
            done += got
        return room[:done]

    def after_unreadable(self, at: int, stop: int) -> int:
        """Return the next position after at, at most stop, that can be read."""
        while at < stop:
            at = min(stop, (at // BLOCK + 1) * BLOCK)
            if at >= stop or len(self.read(at, at + 1)):
                return at
        return stop

    def next_data(self, at: int) -> int:
        """Return the first position at or after `at` that is not in a hole of a sparse file; size if only a hole follows."""
        if self._descriptor < 0:
            self._open()
        try:
            return min(self.size, max(at, os.lseek(self._descriptor, at, os.SEEK_DATA)))
        except OSError as error:
            return self.size if error.errno == errno.ENXIO and at < self.size and self._is_regular() else at

    def _is_regular(self) -> bool:
        return stat.S_ISREG(os.fstat(self._descriptor).st_mode)

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
