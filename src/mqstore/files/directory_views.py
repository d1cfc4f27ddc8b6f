"""Directories that are read as something else than they are: under other names, with parts from elsewhere, without what is not their
own, or as one file.

Nothing is copied or linked.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     _ = Path(place, "found.000").write_bytes(b"journal")
    ...     Path(place, "secret").symlink_to("/etc/hostname")
    ...     wreck = AliasDirectory(place, {"queues/Q/journal.jif": "found.000"})
    ...     [entry.name for entry in wreck.entries("queues")], wreck.read("queues/Q/journal.jif"), wreck.original("queues/Q/journal.jif")
    ...     own = ConfinedDirectory(place)
    ...     [entry.name for entry in own.entries()], own.read("found.000"), own.read("secret"), list(own.foreign_entries())
    ...     alone = SingleFile(Path(place, "found.000"), "commitlog/00000000000000000000")
    ...     [name for name, _ in alone.walk()], alone.read("commitlog/00000000000000000000"), alone.read("checkpoint")
    (['Q'], b'journal', 'found.000')
    (['found.000'], b'journal', None, ['secret'])
    (['commitlog/00000000000000000000'], b'journal', None)
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mqstore.errors import CannotOpenError, FileLostError
from mqstore.files.readonly import DirectoryEntry, MappedFile, ReadOnlyDirectory, walk_tree
from mqstore.files.regular_file import kind_of_file, why_unreadable


class AliasDirectory(ReadOnlyDirectory):
    """The scattered parts of a damaged store, as the store they came from. files: from the name in it to the actual path below root."""

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
        return self.root if relative in self._below else self.root / os.devnull[1:] / "none" / relative

    def _where(self, relative: str) -> str:
        return str(self.path(relative))

    def exists(self, relative: str) -> bool:
        return relative in self.files or relative in self._below

    def is_directory(self, relative: str) -> bool:
        return relative in self._below

    def entries(self, relative: str = "") -> list[DirectoryEntry]:
        listed = []
        for name in sorted(self._below.get(relative, ())):
            below = f"{relative}/{name}" if relative else name
            if below in self._below:
                listed.append(DirectoryEntry.made_up(name))
                continue
            try:
                status = self.path(below).stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CannotOpenError(f"{self.path(below)} cannot be read: {error.strerror}") from None
            listed.append(DirectoryEntry.of(name, status, is_link=self.path(below).is_symlink()))
        return listed


class ConfinedDirectory(ReadOnlyDirectory):
    """A directory that is not trusted, not even to contain its own files.

    Symbolic links that lead out of it, and anything that is neither file nor directory (a pipe would block its reader forever), are treated
    as if they did not exist.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self._own_directories: dict[str, bool] = {}  # as they were when they were first asked for

    def __reduce__(self) -> tuple[type[ConfinedDirectory], tuple[Path]]:
        return ConfinedDirectory, (self.root,)

    def _is_own(self, relative: str) -> bool:
        """Return whether a name is that of a file or directory in here, or does not exist."""
        above = relative.rpartition("/")[0]
        if above and not self._is_own_directory(above):
            return False
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

    def _is_own_directory(self, relative: str) -> bool:
        own = self._own_directories.get(relative)
        if own is None:
            own = self._own_directories[relative] = self._is_own(relative)
        return own

    def exists(self, relative: str) -> bool:
        return super().exists(relative) and self._is_own(relative)

    def has_entry(self, relative: str) -> bool:
        return super().exists(relative)

    def is_directory(self, relative: str) -> bool:
        return super().is_directory(relative) and (not relative or self._is_own(relative))

    def _list(self, relative: str) -> list[DirectoryEntry]:
        if relative and not self._is_own_directory(relative):
            return []
        # what is neither a link nor special is its own; the others are looked up
        plain = ((entry, not entry.is_link and (entry.is_file or entry.is_directory)) for entry in self._all_entries(relative))
        return [entry for entry, own in plain if own or self._is_own(f"{relative}/{entry.name}" if relative else entry.name)]

    def _all_entries(self, relative: str) -> list[DirectoryEntry]:
        # stat fails for a circular link
        try:
            return super()._list(relative)
        except CannotOpenError as error:
            try:
                names = sorted(os.listdir(self.root / relative))
                own = [name for name in names if self._is_own(f"{relative}/{name}" if relative else name)]
                return [DirectoryEntry.of(name, os.stat(self.root / relative / name)) for name in own]
            except OSError:
                raise error from None

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


class SingleFile(ReadOnlyDirectory):
    """One file as if it were alone in the directory that it came from. root: path of the file; name: its path in that directory."""

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
            return [DirectoryEntry.made_up(own)]
        try:
            status = os.stat(self.root)
        except OSError as error:
            raise CannotOpenError(why_unreadable(self.root, error)) from None
        return [DirectoryEntry.of(own, status)]

    def read(self, relative: str, limit: int = 64 << 20) -> bytes | None:
        return super().read(relative, limit) if relative == self.name else None

    def map(self, relative: str) -> MappedFile:
        if relative != self.name:
            raise FileLostError(f"{relative} is not known: only {self.root} was given")
        return super().map(relative)


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
    """A directory in which some names stand for directories elsewhere: a store whose log is on other disks, read as one store.

    mounts: from a name in the root to the directories that it stands for, whose files are listed together; of equal names the first counts.

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
        return next((path for path in places if os.path.lexists(path)), places[0])

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

    def walk(self, relative: str = "") -> Iterator[tuple[str, DirectoryEntry]]:
        if relative not in self.mounts:
            yield from super().walk(relative)
            return
        for entry in self.entries(relative):  # what is below is another's: a mount may be any directory, even the root of the machine
            if not entry.is_directory:
                yield f"{relative}/{entry.name}", entry
