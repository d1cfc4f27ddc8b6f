"""A process that has queues open forks: the child is refused, and neither what it does nor its end changes anything for the parent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mqstore.errors import CannotOpenError, TargetError
from mqstore.rabbitmq.engine.queue_store import QueueStore

CALLS: dict[str, Callable[[QueueStore], object]] = {
    "publish": lambda store: store.publish("orders", b"from the child", confirm=True),
    "publish a large one": lambda store: store.publish("orders", bytes(100_000)),
    "deliver": lambda store: store.deliver("orders"),
    "declare": lambda store: store.declare("new"),
    "purge": lambda store: store.purge("orders"),
    "sync": lambda store: store.sync(),
    "idle": lambda store: store.idle(),
}


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("what", CALLS)
def test_a_forked_child_is_refused(tmp_path: Path, what: str) -> None:
    with QueueStore.open(tmp_path / "msg_stores") as store:
        store.declare("orders")
        store.publish("orders", b"before", confirm=True)
        before = files_of(tmp_path)
        child = os.fork()
        if child == 0:
            try:
                CALLS[what](store)
            except CannotOpenError as error:
                os._exit(7 if "was opened by process" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert files_of(tmp_path) == before
        assert store.counts("orders") == (1, 0)


@pytest.mark.parametrize("ending", ["close", "abandon", "context manager"])
def test_the_end_of_a_forked_child_leaves_the_queues_to_the_parent(tmp_path: Path, ending: str) -> None:
    """The child's `close` wrote the tables of a clean stop under the running parent."""
    with QueueStore.open(tmp_path / "msg_stores") as store:
        store.declare("orders")
        store.publish("orders", b"before", confirm=True)
        before = files_of(tmp_path)
        child = os.fork()
        if child == 0:
            if ending == "context manager":
                store.__exit__(None, None, None)
            else:
                getattr(store, ending)()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert files_of(tmp_path) == before
        with pytest.raises(TargetError, match="already open for writing"):
            QueueStore.open(tmp_path / "msg_stores")
        store.publish("orders", b"after", confirm=True)
        store.abandon()  # as if the parent were killed now
    with QueueStore.open(tmp_path / "msg_stores") as again:
        assert [each.message.body for each in again.deliver("orders", 5)] == [b"before", b"after"]


def test_the_lock_ends_with_the_parents_close_while_a_forked_child_runs(tmp_path: Path) -> None:
    store = QueueStore.open(tmp_path / "msg_stores")
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        store.close()
        QueueStore.open(tmp_path / "msg_stores").close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
