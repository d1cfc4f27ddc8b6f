"""Closing a store on a real full disk: a small tmpfs. Nothing is lost, and the newest index file is there afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop import realbroker
from support.crash_engine import Clock, settings

from mqstore.errors import TargetError
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message

COUNT = 30
ROOM_FOR_ALL_KEYS = {"max_index_num": 4000, "max_hash_slot_num": 100}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, mounted for the test."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Take all room that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def put_keys(store: MessageStore, clock: Clock, topic: str, numbers: range) -> None:
    """Put messages with a key each, some seconds apart, over several files of the log."""
    for number in numbers:
        clock.now += 5000
        assert store.put(Message(topic, b"x" * 600, keys=f"k{number}")).stored


def found(store: MessageStore, topic: str, numbers: range) -> list[int]:
    """Return the numbers of the messages whose keys are in the index."""
    return [number for number in numbers if len(store.query(topic, f"k{number}").records) == 1]


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_close_that_cannot_write_the_offsets_closes_all_else_cleanly(version: str, disk: Path) -> None:
    clock = Clock()
    store = MessageStore.open(disk / "store", settings(version, clock, **ROOM_FOR_ALL_KEYS))
    put_keys(store, clock, "orders", range(COUNT))
    store.dispatch_now()
    store.offsets.commit("billing", "orders", 0, 7)
    index = sorted((disk / "store/index").iterdir())
    filler = fill(disk)
    with pytest.raises(TargetError, match="the disk is full"):
        store.close()
    assert not (disk / "store/abort").exists()
    filler.unlink()
    with MessageStore.open(disk / "store", settings(version, clock, **ROOM_FOR_ALL_KEYS)) as opened:
        assert sorted((disk / "store/index").iterdir()) == index
        assert found(opened, "orders", range(COUNT)) == list(range(COUNT))


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_close_that_cannot_dispatch_loses_no_key_of_the_index_file_that_recovery_removes(version: str, disk: Path) -> None:
    left_with_a_full_disk(disk, version)
    with MessageStore.open(disk / "store", settings(version, Clock(2_000_000_000_000), **ROOM_FOR_ALL_KEYS)) as opened:
        opened.dispatch_now()
        assert found(opened, "orders", range(COUNT)) == list(range(COUNT))
        assert found(opened, "new", range(COUNT, COUNT + 3)) == [COUNT, COUNT + 1, COUNT + 2]


def left_with_a_full_disk(disk: Path, version: str) -> None:
    """Leave a store whose last messages, of a new topic, could not be dispatched, as their queue needs a new file."""
    clock = Clock()
    store = MessageStore.open(disk / "store", settings(version, clock, **ROOM_FOR_ALL_KEYS))
    put_keys(store, clock, "orders", range(COUNT))
    store.dispatch_now()
    store.flush()
    put_keys(store, clock, "new", range(COUNT, COUNT + 3))
    filler = fill(disk)
    with pytest.raises(TargetError, match="the disk is full"):
        store.close()
    assert (disk / "store/abort").exists()
    assert len(list((disk / "store/commitlog").iterdir())) >= 4
    filler.unlink()


@pytest.mark.interop
def test_the_real_store_finds_all_keys_after_a_close_that_could_not_dispatch(disk: Path, tmp_path: Path) -> None:
    why = realbroker.why_not("4.9.3")
    if why:
        pytest.skip(why)
    left_with_a_full_disk(disk, "4.9.3")
    copy = tmp_path / "copy"
    shutil.copytree(disk / "store", copy)
    questions = tmp_path / "questions.jsonl"
    topics = ["orders"] * COUNT + ["new"] * 3
    asked = [{"topic": topic, "key": f"k{number}", "max_num": 8, "begin": 0, "end": 1 << 62} for number, topic in enumerate(topics)]
    questions.write_text("".join(json.dumps(question) + "\n" for question in asked))
    options = {"mappedFileSizeCommitLog": "4096", "mappedFileSizeConsumeQueue": "200", "maxHashSlotNum": "100", "maxIndexNum": "4000"}
    job = realbroker.Job("query", ("query", str(copy), "--tmp", str(tmp_path), "--in", str(questions)), options)
    done = realbroker.run("4.9.3", [job], tmp_path / "work")["query"]
    assert done.error is None, done.error
    answers = [row for row in done.rows if "expected" in row]
    assert [len(row["expected"]) for row in answers] == [1] * (COUNT + 3), done.rows[:2]
