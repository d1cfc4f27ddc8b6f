"""The process that holds a store's lock from the planning of a write until its commit: held as long as needed, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqstore.errors import TargetError
from mqstore.files.durable import DurableDirectory
from mqstore.rocketmq.engine import lock_keeper
from mqstore.rocketmq.engine.lock_keeper import hold, lent, release
from mqstore.rocketmq.live.store_lock import StoreInUseError, StoreLock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the process is on Linux only")


def take(store: Path) -> StoreLock:
    with DurableDirectory(store) as directory:
        return StoreLock(directory)


def is_free(store: Path) -> bool:
    try:
        take(store).close()
    except StoreInUseError:
        return False
    return True


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def keeper_of(store: Path) -> int:
    answer = lock_keeper._ask(store, "release", store / "nothing", start=False)
    assert answer is not None
    return int(answer["process"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "store").mkdir()
    yield tmp_path / "store"
    answer = lock_keeper._ask(tmp_path / "store", "release", tmp_path / "nothing", start=False)
    if answer is not None:
        os.kill(answer["process"], signal.SIGKILL)


@pytest.fixture
def stages(tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "stage1", tmp_path / "stage2"
    for each in found:
        each.mkdir()
    return found


def test_the_lock_is_held_until_the_last_stage_is_released(store: Path, stages: tuple[Path, Path]) -> None:
    for stage in stages:
        hold(store, stage, 0)
    hold(store, stages[0], 0)
    for stage in stages:
        assert not is_free(store)
        release(store, stage)
        release(store, stage)
    assert is_free(store)


def test_a_store_that_is_in_use_is_refused_and_nothing_is_held(store: Path, stages: tuple[Path, Path]) -> None:
    with take(store), pytest.raises(StoreInUseError, match=f"{store} is in use by another process; stop the broker"):
        hold(store, stages[0], 0.3)
    assert is_free(store)


def test_a_lent_lock_can_be_taken_and_is_taken_back_for_the_other_stages(store: Path, stages: tuple[Path, Path]) -> None:
    for stage in stages:
        hold(store, stage, 0)
    with lent(store, stages[0]):
        with lent(store, stages[1]):
            take(store).close()
            hold(store, stages[0], 0)
        take(store).close()
        hold(store, stages[1], 0)
    assert not is_free(store)
    with lent(store, stages[1]):
        assert is_free(store)
    assert is_free(store)


def test_a_lock_that_another_process_took_while_it_was_lent_is_taken_back_later(store: Path, stages: tuple[Path, Path]) -> None:
    for stage in stages:
        hold(store, stage, 0)
    with lent(store, stages[0]):
        other = take(store)
    other.close()
    until(lambda: not is_free(store))


def test_a_stage_that_was_removed_needs_the_lock_no_longer(store: Path, stages: tuple[Path, Path]) -> None:
    hold(store, stages[0], 0)
    assert not is_free(store)
    stages[0].rmdir()
    until(lambda: is_free(store))


def test_the_lock_ends_with_the_job_even_if_that_is_killed(store: Path, stages: tuple[Path, Path]) -> None:
    script = (
        "import os, signal; from pathlib import Path; from mqstore.rocketmq.engine.lock_keeper import hold; "
        f"hold(Path({str(store)!r}), Path({str(stages[0])!r}), 0); print(os.getpid(), flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert int(job.stdout.readline()) == job.pid
        assert not is_free(store)
        with pytest.raises(StoreInUseError):
            hold(store, stages[1], 0)
        job.kill()
    until(lambda: is_free(store))


def test_a_keeper_that_was_killed_is_replaced_and_does_not_stand_in_the_way_of_a_commit(store: Path, stages: tuple[Path, Path]) -> None:
    hold(store, stages[0], 0)
    os.kill(keeper_of(store), signal.SIGKILL)
    until(lambda: is_free(store))
    with lent(store, stages[0]):
        take(store).close()
    hold(store, stages[0], 0)
    assert not is_free(store)


def test_without_the_process_a_store_in_use_is_still_noticed(
    store: Path, stages: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_keeper, "_POSSIBLE", False)
    hold(store, stages[0], 0)
    assert is_free(store)
    script = (
        "from mqstore.files.durable import DurableDirectory; from mqstore.rocketmq.live.store_lock import StoreLock; "
        f"lock = StoreLock(DurableDirectory({str(store)!r})); print(1, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StoreInUseError, match="in use by another process"):
            hold(store, stages[0], 0)
        other.kill()
    with lent(store, stages[0]):
        take(store).close()


def test_a_directory_that_cannot_be_locked_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot be written to: it is not a directory"):
        hold(tmp_path / "nowhere", tmp_path, 0)
