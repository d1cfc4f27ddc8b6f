"""Exports that must fail: a full disk, a size limit, an existing target. One sentence each, and no partial output remains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, opened, run_cli, unchanged
from support.limits import files_of_at_most
from support.tables import plain, table

from mqstore.errors import TargetError
from mqstore.jobs.export import export
from mqstore.rocketmq.store.split_reader import ExportTask, TaskOutput, export_split

FORMATS = ("parquet", "iceberg", "delta")
SMALL = case_named("4.9.3/e-delay-transaction-batch")
COLUMNS = ["topic", "queue_id", "size"]


def rows(file_format: str, root: Path) -> int:
    return len(plain(root) if file_format == "parquet" else table(file_format, root))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "small disk"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, free: int) -> None:
    """Leave this many bytes free on a disk, in whole pages."""
    (disk / "other").unlink(missing_ok=True)
    status = os.statvfs(disk)
    with open(disk / "other", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_bsize - free)


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_file_that_may_not_grow_leaves_nothing(file_format: str, tmp_path: Path) -> None:
    source, told = opened(SMALL), list[str]()
    for size in (1 << bits for bits in range(8, 24)):
        try:
            with files_of_at_most(size):
                export(source, tmp_path / "out", format=file_format, columns=COLUMNS, threads=1, splits=8)
        except TargetError as error:
            told.append(str(error))
            assert list(tmp_path.iterdir()) == []
        else:
            break
    assert rows(file_format, tmp_path / "out") == 661
    assert len(told) >= 3
    for sentence in told:
        assert re.fullmatch(r"[\w/.~-]+(:| cannot be written:) [\w :()'/]+; free some space or choose a target on another disk", sentence)
    # a table's metadata is larger here than any of its files: both exceed the limit
    assert ("could not create the table" in told[-1]) == (file_format != "parquet")


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_full_disk_gives_a_one_sentence_error_and_leaves_nothing(file_format: str, small_disk: Path) -> None:
    source = opened(SMALL)

    def run() -> None:
        export(source, small_disk / "out", format=file_format, columns=COLUMNS, threads=1, splits=2)

    before = os.statvfs(small_disk).f_bavail
    run()
    needed = (before - os.statvfs(small_disk).f_bavail) * os.statvfs(small_disk).f_bsize
    shutil.rmtree(small_disk / "out")
    for free in (0, 8 << 10, needed // 2, needed - (4 << 10)):
        fill(small_disk, free)
        with pytest.raises(TargetError, match=r"^/[^:;\n]*:[^;\n]*; free some space or choose a target on another disk$"):
            run()
        assert [path.name for path in small_disk.iterdir()] == ["other"]
    (small_disk / "other").unlink()
    run()
    assert rows(file_format, small_disk / "out") == 661


def test_what_a_full_disk_stopped_resumes_when_there_is_space(small_disk: Path) -> None:
    source = opened(SMALL)
    fill(small_disk, 96 << 10)
    with pytest.raises(TargetError, match="the disk is full"):
        export(source, small_disk / "out", format="delta", resume=True, threads=1, splits=4)
    assert sorted(path.name for path in small_disk.iterdir()) == [".out.mqstore-export", "other"]
    (small_disk / "other").unlink()
    assert export(source, small_disk / "out", format="delta", resume=True, threads=1).messages == 661
    assert rows("delta", small_disk / "out") == 661
    assert [path.name for path in small_disk.iterdir()] == ["out"]


def a_file(place: Path) -> None:
    place.write_text("mine")


def a_directory(place: Path) -> None:
    place.mkdir()
    (place / "mine").write_text("mine")


def a_link_to_nothing(place: Path) -> None:
    place.symlink_to("nothing")


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("there", [a_file, a_directory, a_link_to_nothing])
@pytest.mark.parametrize("resume", [False, True])
def test_what_is_there_already_is_not_touched(file_format: str, there: Callable[[Path], None], resume: bool, tmp_path: Path) -> None:
    there(tmp_path / "out")
    asked = ["export", opened(SMALL), "--to", tmp_path / "out", "--format", file_format, "--threads", 1]
    done = run_cli(*asked, *(["--resume"] if resume else []))
    assert done.status == 2
    assert f"{tmp_path / 'out'} exists already; choose another name or remove it first, nothing is ever overwritten" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_text() != "mine"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_impossible_target_is_one_sentence(file_format: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for to, sentence in (("no/where", "is not a directory; create it first"), ("file/out", "is not a directory; create it first")):
        done = run_cli("export", opened(SMALL), "--to", tmp_path / to, "--format", file_format, "--threads", 1)
        assert (done.status, done.stderr.count("\n")) == (2, 1)
        assert sentence in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_every_store_goes_on_by_the_command_after_a_failure(case: GoldenCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = opened(case)
    whole = export(source, tmp_path / "whole", config=case.config, threads=1, splits=3)
    for file_format in ("iceberg", "delta"):
        asked = ["export", source, "--to", tmp_path / file_format, "--format", file_format, "--threads", 1, "--config", case.config]
        written: list[int] = []

        def failing(task: ExportTask, written: list[int] = written) -> TaskOutput:
            if len(written) == 1:
                raise TargetError("the disk is full")
            written.append(task.read.split.number)
            return export_split(task)

        with unchanged(source), monkeypatch.context() as patched:
            patched.setattr("mqstore.jobs.export.export_split", failing)
            stopped = run_cli(*asked, "--splits", 3, "--resume")
            # a store of one split is done by then
            done = stopped if (tmp_path / file_format).exists() else None
            if done is None:
                assert (stopped.status, stopped.stderr.strip().splitlines()[-1]) == (2, "mqstore: the disk is full")
                patched.undo()
                done = run_cli(*asked, "--resume")
        assert done.status == (0 if whole.ok else 1), done.stderr
        assert table(file_format, tmp_path / file_format) == plain(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["delta", "iceberg", "whole"]
