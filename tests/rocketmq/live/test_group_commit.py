"""Group commit: which threads one sync answers, with every thread stopped where it matters."""

from __future__ import annotations

import threading
import time

import pytest

from mqstore.errors import TargetError
from mqstore.rocketmq.live import group_commit
from mqstore.rocketmq.live.group_commit import GroupCommit

ROUNDS = 50


class Log:
    """A log of which `sync` brings everything written so far to disk. syncs: how often that was done."""

    def __init__(self) -> None:
        self.written = self.syncs = 0
        self.lock = threading.Lock()

    def append(self) -> int:
        with self.lock:
            self.written += 1
            return self.written

    def sync(self) -> int:
        self.syncs += 1
        covered = self.written
        time.sleep(0.002)  # the others come meanwhile
        return covered


def put(commit: GroupCommit, log: Log, threads: int, rounds: int) -> None:
    """Let each of some threads append and wait, again and again."""
    answers: list[bool] = []

    def run() -> None:
        answers.extend(commit.wait(log.append(), 30.0) for _ in range(rounds))

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert answers == [True] * (threads * rounds)


@pytest.mark.parametrize("threads", [2, 16])
def test_a_sync_waits_for_the_threads_that_the_last_one_concerned(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # with much time, the first rounds find out how many threads there are, and each of the others is one sync
    monkeypatch.setattr(group_commit, "GATHERING", 0.5)
    monkeypatch.setattr(group_commit, "GATHERING_SHARE", 1e12)
    log = Log()
    put(GroupCommit(log.sync, lambda: None), log, threads, ROUNDS)
    assert ROUNDS <= log.syncs < 1.5 * ROUNDS


def test_a_thread_that_does_not_come_back_is_not_waited_for_again() -> None:
    log = Log()
    commit = GroupCommit(log.sync, lambda: None)
    put(commit, log, 8, 5)
    before = log.syncs
    assert all(commit.wait(log.append(), 30.0) for _ in range(ROUNDS))
    assert log.syncs == before + ROUNDS


def test_a_sync_that_fails_answers_everybody_and_is_not_repeated() -> None:
    log = Log()
    failures: list[str] = []

    def fail() -> int:
        log.syncs += 1
        raise TargetError("the disk is gone")

    commit = GroupCommit(fail, lambda: failures.append("told"))
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(commit.wait(log.append(), 30.0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [False] * 8
    assert (log.syncs, failures, commit.failed) == (1, ["told"], "the disk is gone")
