"""The class archive: Spark's Java classes, parsed and linked once, which every later session of this user maps into memory.

Loading classes is half of what a local session costs until its first result. The first session on a machine has Java write the archive
(`-XX:ArchiveClassesAtExit`) as it exits; later ones map it (`-XX:SharedArchiveFile`). It is in the user's cache, some 150 MB, under a
name made from the Java runtime and Spark's jars as they are now, so that another version never meets it. Java checks it, too, and starts
without it if anything differs. The setting spark.mqstore.classArchive=false turns all of this off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import sys
import time
from pathlib import Path

from mqstore.pipeline.spark.java import Java, cache_directory

SETTING = "spark.mqstore.classArchive"

_MAGIC = 0xF00BABA8  # the first four bytes; Java writes the header last
_SMALLEST = 64 << 20  # bytes: an archive of a session that ran no query lacks half of the classes
_SPACE = 2 << 30  # bytes free in the cache, below which no archive is written
_ABANDONED = 3600  # seconds after which an incomplete archive has no writer
_KEPT = 3  # archives in the cache, those used last: one for each pair of Java and Spark


def class_archive_options(java: Java, jars: Path, cache: Path | None = None) -> list[str]:
    """Return the options with which a JVM maps the archive or, if there is none, writes it as it exits. Empty if it can do neither.

    jars: the directory of Spark's jars. cache: the directory of the archive; the user's cache by default.
    """
    cache = cache_directory() if cache is None else cache
    archive = cache / f"{_name(java, jars)}.jsa"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _adopt(archive)
        if archive.exists():
            if not _trusted(archive) or not _quotable(archive):
                return []
            with contextlib.suppress(OSError):  # a cache that is only read
                os.utime(archive)  # the time of its last use: archives of many environments displace each other
            return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"]
        if _quotable(archive) and os.access(cache, os.W_OK) and shutil.disk_usage(cache).free >= _SPACE:
            return [f"-XX:ArchiveClassesAtExit={archive}.{secrets.token_hex(4)}", "-Xlog:disable"]
    except OSError:
        pass
    return []


def _name(java: Java, jars: Path) -> str:
    """Return a name for what an archive depends on: the files of the Java runtime and Spark's jars."""
    depends = hashlib.sha256(f"{java.home} {java.version}".encode())
    for path in [java.home / "lib" / "modules", java.home / "lib" / "server" / "libjvm.so", *sorted(jars.glob("*.jar"))]:
        state = path.stat()
        depends.update(f"{path} {state.st_size} {state.st_mtime_ns}".encode())
    return f"classes-{depends.hexdigest()[:16]}"


def _quotable(path: Path) -> bool:
    """Return whether Spark passes the path on as one Java option, and Java takes it as one file."""
    return not any(character.isspace() or character in "\"'\\:," for character in str(path))


def _trusted(archive: Path) -> bool:
    """Return whether only this user can have written the archive, whose code the JVM runs."""
    state = archive.stat()
    return state.st_uid == os.geteuid() and not state.st_mode & 0o022


def _adopt(archive: Path) -> None:
    """Give the archive its name, if there is none and a session has written one completely. Remove all others, and old archives."""
    for written in archive.parent.glob(f"{archive.name}.*"):
        with contextlib.suppress(OSError):
            if not _is_complete(written):
                if time.time() - written.stat().st_mtime > _ABANDONED:
                    written.unlink()
            elif archive.exists() or written.stat().st_size < _SMALLEST:
                written.unlink()
            else:
                written.chmod(0o400)
                written.replace(archive)
                for old in sorted(archive.parent.glob("classes-*.jsa"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
                    old.unlink()


def _is_complete(written: Path) -> bool:
    with written.open("rb") as file:
        return int.from_bytes(file.read(4), sys.byteorder) == _MAGIC
