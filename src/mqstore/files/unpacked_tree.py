"""The files of an archive, written below a private directory: members in, files and links out, and nothing outside of it.

    directory, file        made as they come; a later member of the same name replaces an earlier file
    hard link              a second name of a file that came before
    symbolic link          made after everything else, so that no member is written through one
    FIFO                   made: readers report it, as in a directory

A link whose target is outside of the directory is refused by name, and so is a member below a link. What is written is bounded: by the
free space of the file system, by `MOST_BYTES` (holes included), by `MOST_MEMBERS`, and in depth by `MOST_LEVELS`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from mqstore.files.readonly import MOST_LEVELS

MOST_BYTES = 1 << 40
MOST_MEMBERS = 200_000  # which take half a minute; a directory can have more
MOST_LINKS = 40  # on the way to one target
_BLOCK = 1 << 16
_SPARE = 64 << 20  # what unpacking leaves free, for the rest of the machine
_FULL = (errno.ENOSPC, errno.EDQUOT)


class RefusedMemberError(Exception):
    """A member that is not unpacked; the text says which, and why."""


class NoSpaceError(Exception):
    """The archive needs more space than there is."""


class UnpackedTree:
    """Members of an archive below `root`. Methods raise RefusedMemberError, NoSpaceError, OSError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.members = 0
        self.bytes = 0
        self.written = 0
        self._space = max(0, shutil.disk_usage(root).free - _SPARE)
        self._links: dict[tuple[str, ...], tuple[str, str]] = {}
        self._directories: set[tuple[str, ...]] = {()}

    def expect(self, members: int) -> None:
        """Refuse an archive that has too many members, where the number is known beforehand."""
        if members > MOST_MEMBERS:
            raise RefusedMemberError(f"it has more than {MOST_MEMBERS:,} members")

    def _take(self, name: str, size: int = 0) -> tuple[str, ...]:
        """Return the parts of a member's path; count it."""
        self.members += 1
        self.bytes += size
        self.expect(self.members)
        if self.bytes > MOST_BYTES:
            raise RefusedMemberError(f"its files have more than {MOST_BYTES >> 40} TiB together")
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if name.startswith("/") or ".." in parts:
            raise RefusedMemberError(f"member {_shown(name)} would leave the archive's directory")
        if len(parts) > MOST_LEVELS:
            raise RefusedMemberError(f"member {_shown(name)} is {len(parts):,} levels deep, more than {MOST_LEVELS}")
        if "\0" in name:
            raise RefusedMemberError(f"the name of member {_shown(name)} has a zero byte")
        for length in range(1, len(parts) if self._links else 0):
            if parts[:length] in self._links:
                link = "/".join(parts[:length])
                raise RefusedMemberError(f"member {_shown(name)} is below {_shown(link)}, which is a link")
        return parts

    def _place(self, name: str, parts: tuple[str, ...]) -> Path:
        """Return the path of a member that is not a directory, free to be made."""
        path = Path(self._path(name, parts))
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _refusal(name, error) from None
        return path

    def _path(self, name: str, parts: tuple[str, ...]) -> str:
        """Return the path of a member that is not a directory, in a directory that exists."""
        self._links.pop(parts, None)
        if parts[:-1] not in self._directories:
            self._make_directory(name, parts[:-1])
        return f"{self.root}/{'/'.join(parts)}"

    def _make_directory(self, name: str, parts: tuple[str, ...]) -> None:
        try:
            self.root.joinpath(*parts).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _refusal(name, error) from None
        self._directories.add(parts)

    def _create(self, name: str, parts: tuple[str, ...]) -> IO[bytes]:
        """Create the file of a member in place of an earlier file."""
        path = self._path(name, parts)
        try:
            return open(path, "xb", buffering=0)
        except FileExistsError:
            os.unlink(path)
            return open(path, "xb", buffering=0)

    def directory(self, name: str) -> None:
        """Make a directory."""
        parts = self._take(name)
        if parts in self._links:
            raise RefusedMemberError(f"member {_shown(name)} is a link and a directory")
        self._make_directory(name, parts)

    def file(
        self, name: str, source: IO[bytes], size: int, mtime: float | None = None, extents: Iterable[tuple[int, int]] | None = None
    ) -> None:
        """Write a file; blocks of zeros become holes. extents: where the source is not zeros, as (offset, length); None: unknown."""
        parts = self._take(name, size)
        try:
            with self._create(name, parts) as out:
                for at, length in [(0, size)] if extents is None else extents:
                    if extents is not None:
                        source.seek(at)
                    out.seek(at)
                    self._copy(source, out, length)
                if size:
                    out.truncate(size)
                if mtime is not None:
                    # times that no file can have are left out
                    with contextlib.suppress(OverflowError, ValueError, OSError):
                        os.utime(out.fileno(), (mtime, mtime))
        except OSError as error:
            # a damaged archive raises errors without a number
            if error.errno is None:
                raise
            raise _refusal(name, error) from None

    def stream(self, name: str, source: IO[bytes]) -> Path:
        """Write a file whose size is not known beforehand, and return its path; blocks of zeros become holes."""
        parts = self._take(name)
        try:
            with self._create(name, parts) as out:
                self._copy(source, out, MOST_BYTES)
                out.truncate(out.tell())
        except OSError as error:
            if error.errno is None:  # from a decompressor
                raise
            raise _refusal(name, error) from None
        return self.root.joinpath(*parts)

    def _copy(self, source: IO[bytes], out: IO[bytes], length: int) -> None:
        while length > 0 and (block := source.read(min(_BLOCK, length))):
            length -= len(block)
            if block.count(0) == len(block):
                out.seek(len(block), os.SEEK_CUR)
                continue
            self.written += len(block)
            if self.written > self._space:
                raise NoSpaceError
            view = memoryview(block)
            while view:
                view = view[out.write(view) :]

    def hard_link(self, name: str, target: str) -> None:
        """Make another name of a file that came before."""
        parts = self._take(name)
        there = tuple(part for part in target.split("/") if part not in ("", "."))
        origin = self.root.joinpath(*there)
        if target.startswith("/") or ".." in there:
            raise RefusedMemberError(f"member {_shown(name)} is a hard link to {_shown(target)}, outside of the archive")
        if parts == there:
            return
        if there in self._links:
            self._place(name, parts)
            self._links[parts] = self._links[there]
            return
        if any(there[:length] in self._links for length in range(1, len(there))) or not origin.is_file():
            raise RefusedMemberError(
                f"member {_shown(name)} is a hard link to {_shown(target)}, which does not come before it in the archive"
            )
        path = self._place(name, parts)
        try:
            os.link(origin, path, follow_symlinks=False)
        except OSError as error:
            raise _refusal(name, error) from None

    def symbolic_link(self, name: str, target: str) -> None:
        """Note a symbolic link, which `finish` makes."""
        parts = self._take(name)
        if self.root.joinpath(*parts).is_dir():
            raise RefusedMemberError(f"member {_shown(name)} is a link and a directory")
        self._place(name, parts)
        self._links[parts] = (name, target)

    def fifo(self, name: str) -> None:
        """Make a FIFO."""
        path = self._place(name, self._take(name))
        try:
            os.mkfifo(path, 0o600)
        except OSError as error:
            raise _refusal(name, error) from None

    def finish(self) -> None:
        """Make the symbolic links, once all their targets are known to be inside."""
        for parts, (name, target) in self._links.items():
            if "\0" in target or not self._stays_inside(parts[:-1], target):
                raise RefusedMemberError(
                    f"member {_shown(name)} is a link to {_shown(target)}, outside of the archive (tar -h packs what it leads to)"
                )
        for parts, (name, target) in self._links.items():
            try:
                self.root.joinpath(*parts).symlink_to(target)
            except OSError as error:
                raise _refusal(name, error) from None

    def _stays_inside(self, above: tuple[str, ...], target: str) -> bool:
        """Return whether a link's target is inside, whichever links are on the way; one that leads in a circle stays inside."""
        at = above
        followed = 0
        left = target.split("/")
        if target.startswith("/"):
            return False
        while left:
            part = left.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                if not at:
                    return False
                at = at[:-1]
                continue
            at = (*at, part)
            if at in self._links:
                followed += 1
                further = self._links[at][1]
                if followed > MOST_LINKS:
                    return True
                if further.startswith("/"):
                    return False
                left = further.split("/") + left
                at = at[:-1]
        return True


def _shown(name: str) -> str:
    return repr(name if len(name) <= 200 else f"{name[:160]}…{name[-30:]}")


def _refusal(name: str, error: OSError) -> Exception:
    """Return the error for a member that the operating system refuses."""
    if error.errno in _FULL:
        return NoSpaceError()
    if error.errno == errno.ENAMETOOLONG:
        return RefusedMemberError(f"the name of member {_shown(name)} is too long for this file system")
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY):
        return RefusedMemberError(f"member {_shown(name)} is a file and a directory at once")
    if error.errno in (errno.EFBIG, errno.EINVAL):
        return RefusedMemberError(f"member {_shown(name)} is too large for this file system")
    return RefusedMemberError(f"member {_shown(name)} cannot be written: {error.strerror or error}")
