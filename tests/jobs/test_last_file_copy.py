"""The copy of the last log file ends after the last record, however far the copying had come."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.golden import case_named, opened

from mqstore.errors import TargetError
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.files.durable_file import DurableFile
from mqstore.jobs import rebuild as module
from mqstore.jobs.rebuild import LastFileCopy
from mqstore.places import open_rocketmq
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.threads import TaskThreads


@pytest.fixture
def log() -> CommitLog:
    return open_rocketmq(opened(case_named("4.9.3/a-clean-small"))).log


def copied(log: CommitLog, place: Path, end: int) -> bytes:
    file = log.files[log.last_written()]
    with NewDirectory(place) as new:
        with LastFileCopy(log, file, new.directory) as copy:
            copy.finish(end)
        new.publish()
    return (place / "commitlog" / file.name).read_bytes()


def expected(log: CommitLog, end: int) -> bytes:
    file = log.files[log.last_written()]
    return log.mapped(file).data[: max(0, end - file.start)].tobytes().ljust(log.file_size, b"\0")


@pytest.mark.parametrize("back", [0, 1, 4096, 5000, 1 << 40])
def test_it_ends_where_it_is_told_to(log: CommitLog, tmp_path: Path, back: int) -> None:
    end = log.end() - back
    assert copied(log, tmp_path / "new", end) == expected(log, end)


def test_what_was_not_yet_written_when_it_began_is_added(log: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = log.files[log.last_written()]
    monkeypatch.setattr(type(log.mapped(file)), "last_nonzero", lambda self, start, stop: 9000)
    assert copied(log, tmp_path / "new", log.end()) == expected(log, log.end())


def test_small_pieces_make_the_same_file(log: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COPIED_AT_ONCE", 4096)
    assert copied(log, tmp_path / "new", log.end()) == expected(log, log.end())


def test_an_error_of_the_copy_is_raised_at_its_end(log: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: DurableFile, offset: int, buffer: object) -> None:
        raise TargetError("the disk is full")

    monkeypatch.setattr(DurableFile, "pwrite_past_cache", full)
    with pytest.raises(TargetError, match="the disk is full"):
        copied(log, tmp_path / "new", log.end())
    assert not (tmp_path / "new").exists()


def test_nothing_is_written_after_the_block_was_left(log: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COPIED_AT_ONCE", 4096)
    began, go_on = threading.Event(), threading.Event()
    write = DurableFile.pwrite_past_cache
    writes = []

    def slow(self: DurableFile, offset: int, buffer: object) -> None:
        began.set()
        assert go_on.wait(60)
        writes.append(offset)
        write(self, offset, buffer)

    class Threads(TaskThreads):
        def __exit__(self, *error: Any) -> None:
            go_on.set()  # the block has been left by now
            super().__exit__(*error)

    monkeypatch.setattr(DurableFile, "pwrite_past_cache", slow)
    monkeypatch.setattr(module, "TaskThreads", Threads)
    (tmp_path / "root").mkdir()
    file = log.files[log.last_written()]
    with (
        DurableDirectory(tmp_path / "root") as directory,
        pytest.raises(RuntimeError, match="elsewhere"),
        LastFileCopy(log, file, directory),
    ):
        assert began.wait(60)
        raise RuntimeError("an error elsewhere")
    assert writes == [0]
