"""The log is read where the broker's configuration has it: on other disks, in several directories, in a copy of the store."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from support.archives import extract_all
from support.golden import GOLDEN

import mqstore
from mqstore.rocketmq.config.broker_config import parse
from mqstore.rocketmq.config.broker_paths import split_paths

SIZES = "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=6000\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A store whose log, of 7 files with 1,500 messages, is in logdisk/commitlog beside it; no configuration."""
    with tarfile.open(GOLDEN / "rocketmq-sites" / "separate-commitlog.tar.xz") as archive:
        extract_all(archive, tmp_path)
    (tmp_path / "broker.conf").unlink()
    return tmp_path


def _spread(site: Path, paths: int) -> list[Path]:
    """Put file n of the log into directory n modulo their number, as a broker does."""
    directories = [site / f"disk{number}" for number in range(paths)]
    for directory in directories:
        directory.mkdir()
    for number, file in enumerate(sorted((site / "logdisk" / "commitlog").iterdir())):
        file.rename(directories[number % paths] / file.name)
    return directories


def _is_whole(store: Path) -> bool:
    opened = mqstore.open(store)
    report = opened.verify()
    view = opened.view("recovered")
    return report.ok and len(opened.messages()) == 1500 and len(list(view.queues())) == 4 and not opened.repair().steps


@pytest.mark.parametrize("separator", [",", ":", " , "])
@pytest.mark.parametrize("paths", [1, 2, 3])
def test_several_directories_are_one_log(site: Path, paths: int, separator: str) -> None:
    named = separator.join(map(str, _spread(site, paths)))
    (site / "broker.conf").write_text(f"storePathRootDir={site}/store\nstorePathCommitLog={named}\n{SIZES}")
    assert _is_whole(site / "store")


def test_read_only_paths_belong_to_the_log(site: Path) -> None:
    first, second = _spread(site, 2)
    (site / "broker.conf").write_text(f"storePathCommitLog={first}\nreadOnlyCommitLogStorePaths={second}\n{SIZES}")
    assert _is_whole(site / "store")


@pytest.mark.parametrize(
    ("root", "log"),
    [
        ("/data/mq/store", "/data/mq/logdisk/commitlog"),
        ("/data/mq/store/", "/data/mq/x/../logdisk/commitlog"),
        (r"D:\\mq\\store", r"D:\\mq\\logdisk\\commitlog"),
        ("D:/mq/store", "D:/mq/logdisk/commitlog"),
        ("store", "logdisk/commitlog"),
        (None, "logdisk/commitlog"),
        (None, "../logdisk/commitlog"),
    ],
)
def test_a_copy_has_its_log_at_the_same_place_relative_to_it(site: Path, root: str | None, log: str) -> None:
    lines = "" if root is None else f"storePathRootDir={root}\n"
    (site / "broker.conf").write_text(f"{lines}storePathCommitLog={log}\n{SIZES}")
    assert _is_whole(site / "store")


def test_the_log_of_the_original_is_not_taken_for_that_of_its_copy(site: Path) -> None:
    live = site / "live"
    (site / "logdisk").rename(live)
    (site / "broker.conf").write_text(f"storePathRootDir=/no/such/store\nstorePathCommitLog={live}/commitlog\n{SIZES}")
    assert len(mqstore.open(site / "store").messages()) == 0


def test_what_is_rebuilt_has_the_whole_log(site: Path) -> None:
    first, second = _spread(site, 2)
    (site / "broker.conf").write_text(f"storePathCommitLog={first},{second}\n{SIZES}")
    mqstore.open(site / "store").rebuild(site / "rebuilt")
    (site / "broker.conf").unlink()
    assert _is_whole(site / "rebuilt")


def test_a_path_that_is_named_twice_or_is_a_file_is_read_once_or_not_at_all(site: Path) -> None:
    (first,) = _spread(site, 1)
    (site / "file").write_bytes(b"")
    (site / "broker.conf").write_text(f"storePathCommitLog={first},{first}\nreadOnlyCommitLogStorePaths={first},{site}/file\n{SIZES}")
    assert len(mqstore.open(site / "store").messages()) == 1500


def test_each_setting_knows_its_line() -> None:
    config = parse(b"# a comment\n\nstorePathRootDir=/a\nstorePathCommitLog=/b,\\\n  /c\n")
    assert dict(config.lines) == {"storePathRootDir": 3, "storePathCommitLog": 4}
    assert split_paths(config.store_path_commit_log) == ["/b", "/c"]
