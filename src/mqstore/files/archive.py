"""Archives of a store (.tar, .tar.gz, .tar.xz, .tar.zst, .zip), unpacked to a private temporary directory that is removed afterwards.
A file that is compressed by itself (.gz, .bz2, .xz, .zst) is unpacked there, too.

Holes stay holes: blocks of zeros are not written, so the 420 MB index file of a small store takes only the space of its data. What is
made of each member, and what is refused: `mqstore.files.unpacked_tree`.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import stat
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

from mqstore.errors import CannotOpenError, TargetError
from mqstore.files.locking import remove_own_tree
from mqstore.files.regular_file import open_regular_file, why_unreadable
from mqstore.files.unpacked_tree import NoSpaceError, RefusedMemberError, UnpackedTree

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


def is_packed(path: str | os.PathLike[str] | Url) -> bool:
    """Return whether a path leads to an archive or a compressed file, going by its name."""
    path = Path(str(path))
    return path.name.lower().endswith((*SUFFIXES, *_COMPRESSED)) and path.is_file()


def refuse_packed(path: str | os.PathLike[str] | Url) -> None:
    """Refuse an archive or a compressed file where tasks open the store by its path. Raises CannotOpenError."""
    if is_packed(path):
        raise CannotOpenError(f"{path} is packed: unpack it first, tasks cannot share an unpacked copy")


def member_names(archive: Path) -> Iterator[str]:
    """Yield the names of the members, in the order of the archive; stop where the archive is damaged."""
    with contextlib.suppress(*_DAMAGED_ARCHIVE, RefusedMemberError, OSError):
        if archive.name.lower().endswith(".zip"):
            with open_regular_file(archive) as packed, zipfile.ZipFile(packed) as opened:
                yield from opened.namelist()
        else:
            with _tar_stream(archive) as tar:
                for member in tar:
                    yield member.name


class UnpackedArchive:
    """An archive or a compressed file, unpacked below `root`; `close` removes the directory, at the latest when the process ends.

    Raises CannotOpenError, and TargetError if there is no room for it.
    """

    def __init__(self, archive: Path) -> None:
        try:
            place = tempfile.mkdtemp(prefix="mqstore-")
        except OSError as error:
            why = error.strerror or error
            raise TargetError(
                f"{archive} cannot be unpacked: no temporary directory can be made: {why}; set TMPDIR to a directory that can be written"
            ) from None
        self.root = Path(place)
        self._file: Path | None = None
        self._cleanup = weakref.finalize(self, remove_own_tree, place, os.getpid())
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
            told = str(error).partition("\n")[0].rstrip(":")
            raise CannotOpenError(f"{archive} is not a valid archive: {told or 'it ends too early'}; {advice}") from None
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
            inner = list(root.iterdir())
            if len(inner) != 1 or not inner[0].is_dir() or inner[0].name in ("commitlog", "msg_stores", "vhosts"):
                return root
            root = inner[0]

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
            if member.is_dir():
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
