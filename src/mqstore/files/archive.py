"""Archives of a store (.tar, .tar.gz, .tar.xz, .tar.zst, .zip), unpacked to a private temporary directory that is removed afterwards.

Holes stay holes: blocks of zeros are not written, so the 420 MB index file of a small store takes only the space of its data.
Members that would leave the directory (absolute paths, `..`, links, devices) are refused, not followed.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from mqstore.errors import CannotOpenError, TargetError

__all__ = ["SUFFIXES", "UnpackedArchive", "is_archive", "member_names"]

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.zst", ".zip")

_BLOCK = 1 << 16
_DAMAGED_ARCHIVE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError)


def is_archive(path: Path) -> bool:
    """Return whether the name is that of an archive this module unpacks."""
    return path.name.lower().endswith(SUFFIXES)


def member_names(archive: Path) -> Iterator[str]:
    """Yield the names of the members, in the order of the archive; stop where the archive is damaged."""
    with contextlib.suppress(*_DAMAGED_ARCHIVE, OSError):
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as opened:
                yield from opened.namelist()
        else:
            with _tar_stream(archive) as tar:
                for member in tar:
                    yield member.name


class UnpackedArchive:
    """An archive unpacked below `root`; `close` removes the directory, at the latest when the process ends."""

    def __init__(self, archive: Path) -> None:
        place = tempfile.mkdtemp(prefix="mqstore-")
        self.root = Path(place)
        self._cleanup = weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        try:
            if archive.name.lower().endswith(".zip"):
                _unzip(archive, self.root)
            else:
                _untar(archive, self.root)
        except _DAMAGED_ARCHIVE as error:
            self.close()
            raise CannotOpenError(f"{archive} is not a valid archive: {error}; unpack it yourself and give the directory") from None
        except OSError as error:
            self.close()
            if error.filename is not None and Path(error.filename) == archive:
                raise CannotOpenError(f"{archive} cannot be read: {error.strerror}") from None
            raise TargetError(
                f"{archive} cannot be unpacked below {place}: {error.strerror or error}; set TMPDIR to a directory with enough space"
            ) from None
        except BaseException:
            self.close()
            raise

    def store_root(self) -> Path:
        """Return the unpacked directory, without the single outer directories that archives often have."""
        root = self.root
        while True:
            inner = list(root.iterdir())
            if len(inner) != 1 or not inner[0].is_dir() or inner[0].name in ("commitlog", "msg_stores", "vhosts"):
                return root
            root = inner[0]

    def close(self) -> None:
        """Remove the unpacked files."""
        self._cleanup()


def _member_path(root: Path, name: str) -> Path:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise ValueError(f"member {name!r} would leave the archive's directory")
    return root.joinpath(*parts)


@contextlib.contextmanager
def _tar_stream(archive: Path) -> Iterator[tarfile.TarFile]:
    if not archive.name.lower().endswith(".zst"):
        with tarfile.open(archive) as tar:
            yield tar
        return
    import zstandard

    with open(archive, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as tar:
                yield tar
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None


def _untar(archive: Path, root: Path) -> None:
    with _tar_stream(archive) as tar:
        for member in tar:
            target = _member_path(root, member.name)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                target.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                if source is not None:
                    _copy_sparse(source, target, member.size)
                    os.utime(target, (member.mtime, member.mtime))


def _unzip(archive: Path, root: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            target = _member_path(root, member.filename)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            elif not stat.S_ISLNK(member.external_attr >> 16):
                target.parent.mkdir(parents=True, exist_ok=True)
                with opened.open(member) as source:
                    _copy_sparse(source, target, member.file_size)


def _copy_sparse(source: IO[bytes], target: Path, size: int) -> None:
    with open(target, "wb") as out:
        while block := source.read(_BLOCK):
            if block.count(0) == len(block):
                out.seek(len(block), os.SEEK_CUR)
            else:
                out.write(block)
        out.truncate(max(out.tell(), size))
