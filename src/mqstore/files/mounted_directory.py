"""A directory in which some names stand for directories elsewhere: a store whose log is on other disks, read as one store.

Nothing is linked: only the places differ. A name may stand for several directories, whose files are listed together.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     root, first, second = Path(place, "store"), Path(place, "disk1"), Path(place, "disk2")
    ...     _ = root.mkdir(), first.mkdir(), second.mkdir()
    ...     _ = Path(first, "0000").write_bytes(b"a"), Path(second, "1000").write_bytes(b"b")
    ...     store = MountedDirectory(root, {"commitlog": (first, second)})
    ...     (
    ...         [entry.name for entry in store.entries("commitlog")],
    ...         store.read("commitlog/1000"),
    ...         store.path("commitlog/1000") == second / "1000",
    ...     )
    (['0000', '1000'], b'b', True)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mqstore.files.readonly import DirectoryEntry, ReadOnlyDirectory


class MountedPath(str):
    """The path of a directory with mounts, for a task that opens it in another process."""

    __slots__ = ("mounts",)

    mounts: dict[str, tuple[Path, ...]]

    def __new__(cls, path: str, mounts: dict[str, tuple[Path, ...]]) -> MountedPath:
        made = super().__new__(cls, path)
        made.mounts = mounts
        return made

    def __reduce__(self) -> tuple[type[MountedPath], tuple[str, dict[str, tuple[Path, ...]]]]:
        return MountedPath, (str(self), self.mounts)


class MountedDirectory(ReadOnlyDirectory):
    """A directory with mounts. mounts: from a name in the root to the directories that it stands for, the first of which comes first."""

    def __init__(self, root: str | os.PathLike[str], mounts: Mapping[str, Sequence[Path]]) -> None:
        super().__init__(root)
        self.mounts = {name: tuple(directories) for name, directories in mounts.items()}

    def __reduce__(self) -> tuple[type[MountedDirectory], tuple[Path, dict[str, tuple[Path, ...]]]]:  # type: ignore[override]
        return MountedDirectory, (self.root, self.mounts)

    def path(self, relative: str) -> Path:
        return Path(self._where(relative)) if relative else self.root

    def _where(self, relative: str) -> str:
        name, _, below = relative.partition("/")
        directories = self.mounts.get(name)
        if directories is None:
            return super()._where(relative)
        places = [f"{directory}/{below}" if below else str(directory) for directory in directories]
        return next((place for place in places if os.path.lexists(place)), places[0])

    def _list(self, relative: str) -> list[DirectoryEntry]:
        directories = self.mounts.get(relative, ())
        if directories:
            by_name: dict[str, DirectoryEntry] = {}
            for directory in directories:
                for entry in ReadOnlyDirectory(directory).entries() if os.path.isdir(directory) else ():
                    by_name.setdefault(entry.name, entry)
            return sorted(by_name.values(), key=lambda entry: entry.name)
        listed = super()._list(relative)
        if relative:
            return listed
        away = [DirectoryEntry(name, 0, True, False, 0, 0) for name in self.mounts if all(entry.name != name for entry in listed)]
        return sorted([*listed, *away], key=lambda entry: entry.name)
