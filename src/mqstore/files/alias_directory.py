"""A directory whose files are read under other names: the scattered parts of a damaged store, as the store they came from.

Nothing is copied or linked: only the names differ.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     _ = Path(place, "found.000").write_bytes(b"journal")
    ...     wreck = AliasDirectory(place, {"queues/Q/journal.jif": "found.000"})
    ...     [entry.name for entry in wreck.entries("queues")], wreck.read("queues/Q/journal.jif"), wreck.original("queues/Q/journal.jif")
    (['Q'], b'journal', 'found.000')
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from mqstore.errors import CannotOpenError
from mqstore.files.readonly import DirectoryEntry, ReadOnlyDirectory


class AliasDirectory(ReadOnlyDirectory):
    """A directory of aliases. files: from the name here to the path below root of the actual file."""

    def __init__(self, root: str | os.PathLike[str], files: Mapping[str, str]) -> None:
        super().__init__(root)
        self.files = dict(files)
        self._below: dict[str, set[str]] = {"": set()}
        for name in self.files:
            while name:
                above, _, own = name.rpartition("/")
                self._below.setdefault(above, set()).add(own)
                name = above

    def __reduce__(self) -> tuple[type[AliasDirectory], tuple[Path, dict[str, str]]]:  # type: ignore[override]
        return AliasDirectory, (self.root, self.files)

    def original(self, relative: str) -> str:
        """Return the actual path of a file, below root."""
        return self.files.get(relative, relative)

    def path(self, relative: str) -> Path:
        if relative in self.files:
            return self.root / self.files[relative]
        # a name that is not an alias must not open a file that happens to have that name
        return self.root / os.devnull[1:] / "none" / relative if relative else self.root

    def _where(self, relative: str) -> str:
        return str(self.path(relative))

    def exists(self, relative: str) -> bool:
        return relative in self.files or relative in self._below

    def is_directory(self, relative: str) -> bool:
        return relative in self._below

    def entries(self, relative: str = "") -> list[DirectoryEntry]:
        found = []
        for name in sorted(self._below.get(relative, ())):
            below = f"{relative}/{name}" if relative else name
            if below in self._below:
                found.append(DirectoryEntry(name, 0, True, False, 0, 0))
                continue
            try:
                status = self.path(below).stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CannotOpenError(f"{self.path(below)} cannot be read: {error.strerror}") from None
            blocks = getattr(status, "st_blocks", 0)
            regular = stat.S_ISREG(status.st_mode)
            found.append(
                DirectoryEntry(name, status.st_size, False, regular, status.st_mtime_ns // 1_000_000, blocks, self.path(below).is_symlink())
            )
        return found
