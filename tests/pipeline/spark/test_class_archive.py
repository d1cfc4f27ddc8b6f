"""The class archive: written by the first session, mapped by the next, and never trusted or kept without need."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mqstore.pipeline.spark.java import Java, class_archive_options

COMPLETE = (0xF00BABA8).to_bytes(4, sys.byteorder)
LARGE, SMALL = 100 << 20, 10 << 20


@pytest.fixture
def java(tmp_path: Path) -> Java:
    home = tmp_path / "java"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "modules").write_bytes(b"modules")
    (home / "lib" / "server" / "libjvm.so").write_bytes(b"machine")
    return Java(home, "17.0.15", "PATH", has_vector_module=True)


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    place = tmp_path / "jars"
    place.mkdir()
    (place / "spark-core.jar").write_bytes(b"classes")
    return place


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def option(options: list[str]) -> tuple[str, Path]:
    name, _, path = options[0].partition("=")
    return name, Path(path)


def written(java: Java, jars: Path, cache: Path, head: bytes = COMPLETE, size: int = LARGE) -> Path:
    """Write what the JVM of a first session would write, as a sparse file."""
    name, path = option(class_archive_options(java, jars, cache))
    assert name == "-XX:ArchiveClassesAtExit"
    return fill(path, head, size)


def fill(path: Path, head: bytes = COMPLETE, size: int = LARGE) -> Path:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    path.chmod(0o444)
    return path


def test_what_a_first_session_writes_the_next_one_maps(java: Java, jars: Path, cache: Path) -> None:
    path = written(java, jars, cache)
    name, archive = option(class_archive_options(java, jars, cache))
    assert (name, archive.parent, path.exists()) == ("-XX:SharedArchiveFile", cache, False)
    assert [each.name for each in cache.iterdir()] == [archive.name]


@pytest.mark.parametrize(("head", "size"), [(b"", LARGE), (bytes(4), LARGE), (COMPLETE, SMALL)], ids=["empty", "unfinished", "no-query"])
def test_an_archive_that_lacks_something_is_not_mapped(java: Java, jars: Path, cache: Path, head: bytes, size: int) -> None:
    written(java, jars, cache, head, size)
    assert option(class_archive_options(java, jars, cache))[0] == "-XX:ArchiveClassesAtExit"


def test_an_unfinished_archive_is_removed_when_it_has_no_writer(java: Java, jars: Path, cache: Path) -> None:
    path = written(java, jars, cache, bytes(4))
    class_archive_options(java, jars, cache)
    assert path.exists()
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    class_archive_options(java, jars, cache)
    assert not path.exists()


def test_of_two_first_sessions_one_archive_is_kept(java: Java, jars: Path, cache: Path) -> None:
    both = [option(class_archive_options(java, jars, cache))[1] for _ in range(2)]
    fill(both[0])
    class_archive_options(java, jars, cache)
    fill(both[1])
    _, archive = option(class_archive_options(java, jars, cache))
    assert [each.name for each in cache.iterdir()] == [archive.name]


@pytest.mark.parametrize("changed", ["jar", "java"])
def test_other_jars_or_another_java_never_meet_the_archive(java: Java, jars: Path, cache: Path, changed: str) -> None:
    written(java, jars, cache)
    class_archive_options(java, jars, cache)
    (jars / "spark-core.jar" if changed == "jar" else java.home / "lib" / "modules").write_bytes(b"other bytes")
    assert option(class_archive_options(java, jars, cache))[0] == "-XX:ArchiveClassesAtExit"


def test_only_the_newest_archives_are_kept(java: Java, jars: Path, cache: Path) -> None:
    cache.mkdir()
    for number in range(5):
        old = cache / f"classes-{number}.jsa"
        old.write_bytes(COMPLETE)
        os.utime(old, (number, number))
    written(java, jars, cache)
    _, archive = option(class_archive_options(java, jars, cache))
    assert {each.name for each in cache.iterdir()} == {archive.name, "classes-3.jsa", "classes-4.jsa"}


def test_an_archive_in_use_outlives_newer_ones(java: Java, jars: Path, cache: Path) -> None:
    written(java, jars, cache)
    _, mine = option(class_archive_options(java, jars, cache))
    for number in range(4):
        os.utime(mine, (number, number))
        other = fill(cache / f"classes-{number:016x}.jsa")
        os.utime(other, (number + 100, number + 100))
        assert option(class_archive_options(java, jars, cache)) == ("-XX:SharedArchiveFile", mine)
    # another environment adds its own, and the oldest have to go
    (jars / "another.jar").write_bytes(b"classes")
    written(java, jars, cache)
    class_archive_options(java, jars, cache)
    assert mine.exists()
    assert len(list(cache.glob("classes-*.jsa"))) == 3


def test_an_archive_that_others_can_write_is_not_mapped(java: Java, jars: Path, cache: Path) -> None:
    written(java, jars, cache)
    _, archive = option(class_archive_options(java, jars, cache))
    archive.chmod(0o666)
    assert class_archive_options(java, jars, cache) == []


@pytest.mark.parametrize("name", ["with space", "with'quote", "with:colon"])
def test_a_cache_whose_name_java_options_cannot_hold_is_not_used(java: Java, jars: Path, tmp_path: Path, name: str) -> None:
    assert class_archive_options(java, jars, tmp_path / name) == []


def test_a_cache_that_is_not_a_directory_costs_nothing(java: Java, jars: Path, cache: Path) -> None:
    cache.write_bytes(b"")
    assert class_archive_options(java, jars, cache) == []


SESSION = """
import os, pathlib, sys
from mqstore.pipeline.spark.session import session
spark = session("local[1]", config={"spark.mqstore.classArchive": sys.argv[1]})
assert spark.range(10).selectExpr("sum(id)").first()[0] == 45
java = spark._jvm.java.lang.ProcessHandle.current().pid()
print("/mqstore/classes-" in pathlib.Path(f"/proc/{java}/maps").read_text(), java, flush=True)
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what a process has mapped is not known here")
def test_a_session_maps_the_archive_that_another_has_written(cache: Path) -> None:
    mapped = []
    for archive in ("true", "true", "false"):
        command = [sys.executable, "-c", SESSION, archive]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"XDG_CACHE_HOME": str(cache)}
        )
        assert (done.returncode, done.stderr) == (0, "")
        answer, java = done.stdout.split()
        mapped.append(answer)
        until = time.monotonic() + 300
        while Path(f"/proc/{java}").exists() and time.monotonic() < until:
            time.sleep(0.05)  # the JVM outlives this process while it writes
    assert mapped == ["False", "True", "False"]
