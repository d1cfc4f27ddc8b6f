"""What is opened for a path: a store, files of a log alone, or a directory of other files."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.golden import case_named, opened

from mqstore.files import ReadOnlyDirectory
from mqstore.files.directory_views import MountedDirectory, MountedPath
from mqstore.rocketmq.format.log_file import named_start, open_place
from mqstore.rocketmq.format.timer_wheel import UNIT_SIZE, TimerLog

LOG = opened(case_named("4.9.3/a-clean-small")) / "commitlog"


def test_a_directory_with_mounts_is_opened_with_them(tmp_path: Path) -> None:
    place = open_place(MountedPath(str(tmp_path), {"commitlog": (LOG,)}))
    assert isinstance(place, MountedDirectory)
    assert place.mounts == {"commitlog": (LOG,)}
    assert [entry.name for entry in place.entries("commitlog")] == sorted(path.name for path in LOG.iterdir())


def test_files_of_a_log_beside_those_of_a_rabbitmq_store_are_not_a_log(tmp_path: Path) -> None:
    for number, path in enumerate(sorted(LOG.iterdir())[:2]):
        shutil.copy(path, tmp_path / f"part{number}")
    names = [entry.name for entry in open_place(str(tmp_path)).entries("commitlog")]
    assert names == [path.name for path in sorted(LOG.iterdir())[:2]]
    (tmp_path / "0.rdq").write_bytes(b"")
    assert type(open_place(str(tmp_path))) is ReadOnlyDirectory


def test_a_name_of_20_digits_is_a_position_if_java_has_a_number_for_it() -> None:
    for name, start in (("0" * 16 + "4096", 4096), (f"{(1 << 63) - 1:020d}", (1 << 63) - 1), (f"{1 << 63:020d}", None), ("4096", None)):
        assert named_start(Path(name)) == start


def test_a_timer_log_ends_after_its_last_unit_although_a_file_is_made_ahead(tmp_path: Path) -> None:
    place = tmp_path / "timerlog"
    place.mkdir()
    size = 10 * UNIT_SIZE
    (place / f"{0:020d}").write_bytes((bytes(UNIT_SIZE - 1) + b"x").ljust(size, b"\0"))
    (place / f"{size:020d}").write_bytes(bytes(size))
    assert TimerLog(ReadOnlyDirectory(tmp_path)).end == UNIT_SIZE
    (place / f"{0:020d}").write_bytes(bytes(size))
    assert TimerLog(ReadOnlyDirectory(tmp_path)).end == 0
