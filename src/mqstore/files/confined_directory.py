"""A directory that is not trusted, not even to contain its own files.

Symbolic links that lead out of it, and anything that is neither file nor directory (a pipe would block its reader forever), are
treated as if they did not exist.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     _ = Path(place, "inside").write_bytes(b"own")
    ...     Path(place, "link").symlink_to(Path(place, "inside"))
    ...     Path(place, "secret").symlink_to("/etc/hostname")
    ...     own = ConfinedDirectory(place)
    ...     [entry.name for entry in own.entries()], own.read("link"), own.read("secret"), list(own.foreign_entries())
    (['inside', 'link'], b'own', None, ['secret'])
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mqstore.errors import CannotOpenError
from mqstore.files.readonly import DirectoryEntry, MappedFile, ReadOnlyDirectory, walk_tree


class ConfinedDirectory(ReadOnlyDirectory):
    """A `ReadOnlyDirectory` limited to what is in the directory itself."""

    def __reduce__(self) -> tuple[type[ConfinedDirectory], tuple[Path]]:
        return ConfinedDirectory, (self.root,)

    def _is_own(self, relative: str) -> bool:
        """Return whether a name is that of a file or directory in here, or does not exist."""
        path = f"{self.root}/{relative}"
        is_link = False
        try:
            mode = os.lstat(path).st_mode
            is_link = stat.S_ISLNK(mode)
            if is_link:
                if not Path(path).resolve().is_relative_to(self.root.resolve()):
                    return False
                mode = os.stat(path).st_mode
        except FileNotFoundError:
            return not is_link
        except (OSError, RuntimeError):
            return False
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode)

    def exists(self, relative: str) -> bool:
        return super().exists(relative) and self._is_own(relative)

    def has_entry(self, relative: str) -> bool:
        return super().exists(relative)

    def _list(self, relative: str) -> list[DirectoryEntry]:
        return [entry for entry in self._all_entries(relative) if self._is_own(f"{relative}/{entry.name}" if relative else entry.name)]

    def _all_entries(self, relative: str) -> list[DirectoryEntry]:
        # stat fails for a circular link
        try:
            return super()._list(relative)
        except CannotOpenError as error:
            try:
                names = sorted(os.listdir(self.root / relative))
                return [self._entry(relative, name) for name in names if self._is_own(f"{relative}/{name}" if relative else name)]
            except OSError:
                raise error from None

    def _entry(self, relative: str, name: str) -> DirectoryEntry:
        status = os.stat(self.root / relative / name)
        directory, file = stat.S_ISDIR(status.st_mode), stat.S_ISREG(status.st_mode)
        return DirectoryEntry(name, status.st_size, directory, file, status.st_mtime_ns // 1_000_000, getattr(status, "st_blocks", 0))

    def read(self, relative: str, limit: int = 64 << 20) -> bytes | None:
        return super().read(relative, limit) if self._is_own(relative) else None

    def map(self, relative: str) -> MappedFile:
        if not self._is_own(relative):
            raise CannotOpenError(f"{self.root}/{relative} is not a file of this directory; replace it by a copy of what it points to")
        return super().map(relative)

    def foreign_entries(self) -> Iterator[str]:
        """Yield what is ignored: links that lead out, and anything that is neither file nor directory."""
        for directory, directories, files in walk_tree(self.root):
            above = "" if directory == str(self.root) else os.path.relpath(directory, self.root)
            for name in sorted((*directories, *files)):
                relative = f"{above}/{name}" if above else name
                if not self._is_own(relative):
                    yield relative
