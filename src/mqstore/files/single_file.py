"""One file, read as if it were alone in the directory that it came from: nothing else of that directory is known.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as place:
...     _ = Path(place, "copy.bin").write_bytes(b"records")
...     alone = SingleFile(Path(place, "copy.bin"), "commitlog/00000000000000000000")
...     [name for name, _ in alone.walk()], alone.read("commitlog/00000000000000000000"), alone.read("checkpoint")
(['commitlog/00000000000000000000'], b'records', None)
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mqstore.errors import CannotOpenError, FileLostError
from mqstore.files.readonly import DirectoryEntry, MappedFile, ReadOnlyDirectory
from mqstore.files.regular_file import kind_of_file, why_unreadable


class SingleFile(ReadOnlyDirectory):
    """A directory that holds one file. root: path of the file; name: its path in the directory that is made up."""

    def __init__(self, root: str | os.PathLike[str], name: str) -> None:
        self.name = name
        above = name.split("/")[:-1]
        self._above = ["/".join(above[:length]) for length in range(len(above) + 1)]
        super().__init__(root)

    def __reduce__(self) -> tuple[type[SingleFile], tuple[Path, str]]:  # type: ignore[override]
        return SingleFile, (self.root, self.name)

    def _check_kind(self, mode: int) -> None:
        if not stat.S_ISREG(mode):
            raise CannotOpenError(f"{self.root} is {kind_of_file(mode)}, not a regular file")

    def path(self, relative: str) -> Path:
        return self.root

    def _where(self, relative: str) -> str:
        return str(self.root)

    def exists(self, relative: str) -> bool:
        return relative == self.name or relative in self._above

    def is_directory(self, relative: str) -> bool:
        return relative in self._above

    def _list(self, relative: str) -> list[DirectoryEntry]:
        if relative not in self._above:
            return []
        depth = self._above.index(relative)
        own = self.name.split("/")[depth]
        if depth + 1 < len(self._above):
            return [DirectoryEntry(own, 0, True, False, 0, 0)]
        try:
            status = os.stat(self.root)
        except OSError as error:
            raise CannotOpenError(why_unreadable(self.root, error)) from None
        blocks = getattr(status, "st_blocks", 0)
        return [DirectoryEntry(own, status.st_size, False, True, status.st_mtime_ns // 1_000_000, blocks)]

    def read(self, relative: str, limit: int = 64 << 20) -> bytes | None:
        return super().read(relative, limit) if relative == self.name else None

    def map(self, relative: str) -> MappedFile:
        if relative != self.name:
            raise FileLostError(f"{relative} is not known: only {self.root} was given")
        return super().map(relative)
