"""Archives of a store (.tar, .tar.gz, .tar.xz, .tar.zst, .zip), unpacked to a private temporary directory that is removed afterwards.
A file that is compressed by itself (.gz, .bz2, .xz, .zst) is unpacked there, too.

Holes stay holes: blocks of zeros are not written, so the 420 MB index file of a small store takes only the space of its data. What is
made of each member, and what is refused: see `UnpackedTree`. What a Mac adds for itself beside the files, `__MACOSX` and `._…`, is
unpacked, and passed over when the store is looked for.
"""

from __future__ import annotations

import atexit
import bz2
import contextlib
import errno
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

from mqstore.errors import CannotOpenError, TargetError
from mqstore.files.readonly import MOST_LEVELS
from mqstore.files.regular_file import open_regular_file, why_unreadable

if TYPE_CHECKING:
    from mqstore.files.location import Url

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.zst", ".zip")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")

_DAMAGED_ARCHIVE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    EOFError,
    ValueError,
    NotImplementedError,
)
_MOST_HEADER = 1 << 20
_MOST_TARGET = 4096
_ENCRYPTED = 1


def is_archive(path: Path) -> bool:
    """Return whether the name is that of an archive this module unpacks."""
    return path.name.lower().endswith(SUFFIXES)


def packed_file(path: str | os.PathLike[str] | Url) -> Path | None:
    """Return the archive or compressed file, going by its name, that a path leads to or, as `ARCHIVE/DIRECTORY`, into; None without one."""
    path = Path(str(path))
    return next((each for each in (path, *path.parents) if each.name.lower().endswith((*SUFFIXES, *_COMPRESSED)) and each.is_file()), None)


def is_packed(path: str | os.PathLike[str] | Url) -> bool:
    """Return whether a path leads to, or into, an archive or a compressed file."""
    return packed_file(path) is not None


_MAGICS = {b"PK": ".zip", b"\x28\xb5\x2f\xfd": ".tar.zst"}  # tarfile knows the others by themselves
ON_STANDARD_INPUT = "standard-input"


def spooled(stream: IO[bytes]) -> Path:
    """Write an archive that can only be read once to a temporary file, which is removed when the process ends. Raises CannotOpenError."""
    head = stream.read(4)
    if not head:
        raise CannotOpenError("standard input is empty; `-` reads a .tar, .tar.gz, .tar.xz, .tar.zst or .zip of a store from it")
    suffix = next((suffix for magic, suffix in _MAGICS.items() if head.startswith(magic)), ".tar")
    try:
        from mqstore.files.locking import remove_own_tree

        root = tempfile.mkdtemp(prefix="mqstore-")
        atexit.register(remove_own_tree, root, os.getpid())
        path = Path(root) / f"{ON_STANDARD_INPUT}{suffix}"
        with path.open("wb") as out:
            out.write(head)
            shutil.copyfileobj(stream, out, 1 << 20)
    except OSError as error:
        raise TargetError(
            f"standard input cannot be kept in a temporary file: {error.strerror}; set TMPDIR to a directory with enough space"
        ) from None
    return path


def added_by_mac(name: str) -> bool:
    """Return whether a Mac adds a file or directory of this name to archives and foreign disks, for itself.

    >>> added_by_mac("._0.rdq"), added_by_mac("__MACOSX"), added_by_mac(".vhost")
    (True, True, False)
    """
    return name.startswith("._") or name == "__MACOSX"


def refuse_packed(path: str | os.PathLike[str] | Url) -> None:
    """Refuse an archive or a compressed file where tasks open the store by its path. Raises CannotOpenError."""
    if is_packed(path):
        raise CannotOpenError(f"{path} is packed: unpack it first, tasks cannot share an unpacked copy")


def compressed_head(path: Path, length: int) -> tuple[str, bytes] | None:
    """Return how a file is compressed, going by its content, and the first bytes of what it holds; None if it is not, or cannot be read."""
    with contextlib.suppress(*_DAMAGED_ARCHIVE, OSError, RuntimeError), open_regular_file(path) as raw:
        first = raw.read(_MOST_MAGIC)
        raw.seek(0)
        for magic, (method, reader) in _BY_CONTENT.items():
            if first.startswith(magic):
                return method, reader(raw).read(length)
    return None


def _xz_reader(raw: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", lzma.LZMAFile(raw))


def _zstd_reader(raw: IO[bytes]) -> IO[bytes]:
    import zstandard

    return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(raw))


def _lz4_reader(raw: IO[bytes]) -> IO[bytes]:
    import lz4.frame

    return cast("IO[bytes]", lz4.frame.open(raw))


def _zip_reader(raw: IO[bytes]) -> IO[bytes]:
    """Return the only member of an archive, open."""
    opened = zipfile.ZipFile(raw)
    (member,) = opened.infolist()
    return opened.open(member)


_MOST_MAGIC = 6
_BY_CONTENT: dict[bytes, tuple[str, Callable[[IO[bytes]], IO[bytes]]]] = {
    b"\x1f\x8b": ("gzip", lambda raw: cast("IO[bytes]", gzip.GzipFile(fileobj=raw))),
    b"BZh": ("bzip2", lambda raw: cast("IO[bytes]", bz2.BZ2File(raw))),
    b"\xfd7zXZ\0": ("xz", _xz_reader),
    b"\x28\xb5\x2f\xfd": ("Zstandard", _zstd_reader),
    b"\x04\x22\x4d\x18": ("LZ4", _lz4_reader),
    b"PK\x03\x04": ("zip", _zip_reader),
}


class UnpackedArchive:
    """An archive or a compressed file, unpacked below `root`; `close` removes the directory, at the latest when the process ends.

    Raises CannotOpenError, and TargetError if there is no room for it.
    """

    def __init__(self, archive: Path) -> None:
        from mqstore.files.locking import remove_own_tree

        try:
            root = tempfile.mkdtemp(prefix="mqstore-")
        except OSError as error:
            why = error.strerror or error
            raise TargetError(
                f"{archive} cannot be unpacked: no temporary directory can be made: {why}; set TMPDIR to a directory that can be written"
            ) from None
        self.archive = archive
        self.root = Path(root)
        self._file: Path | None = None
        self._cleanup = weakref.finalize(self, remove_own_tree, root, os.getpid())
        try:
            self._unpack(archive)
        except BaseException:
            self.close()
            raise

    def _unpack(self, archive: Path) -> None:
        advice = "unpack it yourself and give the directory"
        try:
            tree = UnpackedTree(self.root)
            if not is_archive(archive):
                self._file = _decompress(archive, tree)
            elif archive.name.lower().endswith(".zip"):
                _unzip(archive, tree)
            else:
                _untar(archive, tree)
            tree.finish()
        except RefusedMemberError as error:
            raise CannotOpenError(f"{archive} is not unpacked: {error}; {advice}") from None
        except NoSpaceError:
            raise TargetError(
                f"{archive} does not fit below {self.root.parent}, where it is unpacked; set TMPDIR to a directory with enough space"
            ) from None
        except _DAMAGED_ARCHIVE as error:
            # tarfile lists every method that it has tried, a line each
            why = str(error).partition("\n")[0].rstrip(":")
            raise CannotOpenError(f"{archive} is not a valid archive: {why or 'it ends too early'}; {advice}") from None
        except OSError as error:
            if error.errno is None:  # from a decompressor
                raise CannotOpenError(f"{archive} is not a valid archive: {error}; {advice}") from None
            if error.filename is not None and Path(error.filename) == archive:
                raise CannotOpenError(why_unreadable(archive, error)) from None
            raise CannotOpenError(f"{archive} cannot be unpacked: {error.strerror}; {advice}") from None

    def store_root(self) -> Path:
        """Return the unpacked directory, without the single outer directories that archives often have; of a compressed file, the file."""
        if self._file is not None:
            return self._file
        root = self.root
        while True:
            inner = [each for each in root.iterdir() if not added_by_mac(each.name)]
            if len(inner) != 1 or not inner[0].is_dir() or inner[0].name in ("commitlog", "msg_stores", "vhosts"):
                return root
            root = inner[0]

    def named(self, path: str) -> str:
        """Return an unpacked path under the archive's name: the place where it is unpacked is about to vanish. Others are returned."""
        return str(self.archive / os.path.relpath(path, self.root)) if Path(path).is_relative_to(self.root) else path

    def packed_members(self) -> list[str]:
        """Return the archives among the files of the outer directory, by name."""
        root = self.store_root()
        return sorted(each.name for each in root.iterdir() if is_packed(each)) if root.is_dir() else []

    def close(self) -> None:
        """Remove the unpacked files."""
        self._cleanup()


@contextlib.contextmanager
def _tar_stream(archive: Path) -> Iterator[tarfile.TarFile]:
    if not archive.name.lower().endswith(".zst"):
        with open_regular_file(archive) as packed, tarfile.open(fileobj=packed, tarinfo=_TarInfo) as tar:
            yield tar
        return
    import zstandard

    with open_regular_file(archive) as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", tarinfo=_TarInfo) as tar:
                yield tar
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None


def _decompress(packed: Path, tree: UnpackedTree) -> Path:
    """Unpack a compressed file under its name without the suffix, and return where it is."""
    with open_regular_file(packed) as raw:
        if packed.suffix.lower() == ".zst":
            import zstandard

            try:
                return tree.stream(packed.stem, zstandard.ZstdDecompressor().stream_reader(raw))
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from None
        readers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
        with readers[packed.suffix.lower()](raw) as stream:
            return tree.stream(packed.stem, stream)


_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_LABEL = b"V"


class _TarInfo(tarfile.TarInfo):
    """A member; headers that `tarfile` would read into memory, whatever their size, are refused if they are too large.

    After the first member `tarfile` takes a damaged header, and the end of the file, as the end of the archive: here they are damage.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError):  # type: ignore[attr-defined]
            raise tarfile.ReadError("it ends too early") from None
        except tarfile.InvalidHeaderError:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"the bytes at {archive.offset:,} are not the header of a member") from None

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > _MOST_HEADER:
            raise RefusedMemberError(f"a header has {self.size:,} bytes")
        made: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return made


def _untar(archive: Path, tree: UnpackedTree) -> None:
    with _tar_stream(archive) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined] # not needed again; a million of them would take a gigabyte
            if member.isdir():
                tree.directory(member.name)
            elif member.isfile():
                source = tar.extractfile(member)
                if source is not None:
                    tree.file(member.name, source, member.size, member.mtime, cast("list[tuple[int, int]] | None", member.sparse))
            elif member.islnk():
                tree.hard_link(member.name, member.linkname)
            elif member.issym():
                tree.symbolic_link(member.name, member.linkname)
            elif member.isfifo():
                tree.fifo(member.name)
            elif member.isdev():
                raise RefusedMemberError(f"member {member.name!r} is a device")
            elif member.type != _LABEL:
                raise RefusedMemberError(f"member {member.name!r} is of type {member.type!r}, which is not known")


def _unzip(archive: Path, tree: UnpackedTree) -> None:
    with open_regular_file(archive) as packed, zipfile.ZipFile(packed) as opened:
        tree.expect(len(opened.infolist()))
        for member in opened.infolist():
            if member.is_dir() or _parts(member.filename)[1]:
                tree.directory(member.filename)
                continue
            if member.flag_bits & _ENCRYPTED:
                raise RefusedMemberError(f"member {member.filename!r} is encrypted")
            try:
                source = opened.open(member)
            except (NotImplementedError, RuntimeError) as error:
                method = f"compression method {member.compress_type}"
                raise RefusedMemberError(f"member {member.filename!r} cannot be read ({method}): {error}") from None
            with source:
                if stat.S_ISLNK(member.external_attr >> 16):
                    tree.symbolic_link(member.filename, source.read(_MOST_TARGET).decode("utf-8", "surrogateescape"))
                else:
                    tree.file(member.filename, source, member.file_size)


# ---- the files of an archive, written below a private directory: members in, files and links out, and nothing outside of it
#
#     directory, file        made as they come; a later member of the same name replaces an earlier file
#     hard link              a second name of a file that came before
#     symbolic link          made after everything else, so that no member is written through one
#     FIFO                   made: readers report it, as in a directory
#
# A link whose target is outside of the directory is refused by name, and so is a member below a link. What is written is bounded: by the
# free space of the file system, by `MOST_BYTES` (holes included), by `MOST_MEMBERS`, and in depth by `MOST_LEVELS`.

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
        parts, _ = _parts(name)
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


def _parts(name: str) -> tuple[tuple[str, ...], bool]:
    """Return the parts of a member's path, and whether its name is that of a directory. Some Windows programs separate them by `\\`.

    >>> _parts("rabbit@HOST-mnesia\\\\msg_stores\\\\"), _parts("a/./b")
    ((('rabbit@HOST-mnesia', 'msg_stores'), True), (('a', 'b'), False))
    """
    separator = "\\" if "\\" in name and "/" not in name else "/"
    return tuple(part for part in name.split(separator) if part not in ("", ".")), name.endswith(separator)


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
