"""Which processes have files of a directory open for writing: found by device and inode, readers and other directories left out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqstore.files.locking import can_tell, writers

HOLD = "import sys; file = open(sys.argv[1], sys.argv[2]); print(flush=True); sys.stdin.read()"


@pytest.fixture
def held(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, int]]:
    """Yield a directory and the id of a process that has a file in it open."""
    place = tmp_path / "data" / "\u00fc"
    place.mkdir(parents=True)
    file = place / "LATEST.LOG"
    file.touch()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file), request.param], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield tmp_path / "data", process.pid
    process.communicate("")


@pytest.mark.parametrize("held", ["r+", "a"], indirect=True)
def test_a_process_that_may_write_to_a_file_below_is_named_with_the_file(held: tuple[Path, int]) -> None:
    data, process = held
    assert can_tell(data)
    (found,) = writers(data)
    assert (found.process, found.file) == (process, "\u00fc/LATEST.LOG")
    assert found.name.startswith("python")
    # by any name of the directory
    (data.parent / "link").symlink_to(data)
    assert [writer.process for writer in writers(data.parent / "link")] == [process]


@pytest.mark.parametrize("held", ["r"], indirect=True)
def test_a_process_that_only_reads_is_not(held: tuple[Path, int]) -> None:
    assert writers(held[0]) == []


@pytest.mark.parametrize("held", ["a"], indirect=True)
def test_nor_is_one_that_writes_elsewhere(held: tuple[Path, int], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "LATEST.LOG").touch()
    assert writers(tmp_path / "other") == []
