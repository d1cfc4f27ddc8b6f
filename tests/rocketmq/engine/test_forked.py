"""A process that has a store open forks: the child is refused, and neither what it does nor its end changes anything for the parent."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqstore.broker.server import Broker
from mqstore.errors import MqstoreError
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message, MessageBatch, PutStatus

OWN = "was opened by process"
SMALL = StoreConfig(version="4.9.3", commit_log_file_size=65536, consume_queue_file_size=1000, max_hash_slot_num=50, max_index_num=200)


def in_child(run: Callable[[], object]) -> object:
    """Run in a forked child; return what `run` returned there, or the name and sentence of its error."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer: object = run()
        except BaseException as error:
            answer = [type(error).__name__, str(error)]
        os.write(sending, json.dumps(answer).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as answers:
        raw = answers.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(raw)


def files_of(root: Path) -> dict[str, bytes]:
    """Return all contents; `lock` is left out, since reading it would release the lock."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"}


@contextmanager
def opened(root: Path, *, services: bool = False, flush: str = "ASYNC_FLUSH") -> Iterator[MessageStore]:
    config = StoreConfig(**{**{name: getattr(SMALL, name) for name in SMALL.__slots__}, "services": services, "flush_disk_type": flush})
    with MessageStore.open(root, config) as store:
        assert store.put(Message("orders", b"before")).status is PutStatus.PUT_OK
        yield store


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("services", [False, True])
def test_a_put_in_a_forked_child_is_refused_and_the_parents_messages_are_kept(tmp_path: Path, services: bool, flush: str) -> None:
    with opened(tmp_path, services=services, flush=flush) as store:

        def put() -> list[object]:
            results = [
                store.put(Message("orders", b"from the child")),  # the fast path
                store.put(Message("orders", b"from the child", properties={"DELAY": "1"})),  # the slow path
                store.put_messages(MessageBatch(Message("orders"), (Message("orders", b"1"), Message("orders", b"2")))),
                store.put_batch([Message("orders", b"1")]),
            ]
            return [[result.status.name, result.detail] for result in results]

        answers = in_child(put)
        assert isinstance(answers, list)
        for status, detail in answers:
            assert status == "SERVICE_NOT_AVAILABLE"
            assert f"{OWN} {os.getpid()}, from which this one was forked" in detail
        assert store.put(Message("orders", b"after")).status is PutStatus.PUT_OK
    with MessageStore.open(tmp_path, SMALL) as store:
        store.wait_dispatched()
        assert [found.body for found in store.get("g", "orders", 0, 0).records()] == [b"before", b"after"]


WRITES: dict[str, Callable[[MessageStore], object]] = {
    "flush": lambda store: store.flush(),
    "dispatch": lambda store: store.dispatch_now(),
    "flush of queues": lambda store: store.flush_queues(0),
    "checkpoint": lambda store: store.write_checkpoint(),
    "retention": lambda store: store.run_retention(),
    "removal of queues": lambda store: store.delete_queues("orders"),
    "persisting": lambda store: store.persist(),
    "progress of delays": lambda store: store.directory.write_small("config/delayOffset.json", b"{}"),
}


@pytest.mark.parametrize("what", WRITES)
def test_nothing_else_writes_in_a_forked_child(tmp_path: Path, what: str) -> None:
    with opened(tmp_path) as store:
        before = files_of(tmp_path)
        answer = in_child(lambda: WRITES[what](store))
        assert isinstance(answer, list)
        name, sentence = answer
        assert (name, OWN in sentence) == ("TargetError", True)
        assert files_of(tmp_path) == before


@pytest.mark.parametrize("ending", ["close", "abandon", "context manager", "exit"])
@pytest.mark.parametrize("services", [False, True])
def test_the_end_of_a_forked_child_leaves_abort_and_the_lock_to_the_parent(tmp_path: Path, ending: str, services: bool) -> None:
    """The child's `close` removed `abort` under the running parent, whose next acknowledged message was lost when it was killed."""
    with opened(tmp_path, services=services) as store:
        child = os.fork()
        if child == 0:
            if ending == "exit":
                del store
                os._exit(0)
            if ending == "context manager":
                store.__exit__(None, None, None)
            else:
                getattr(store, ending)()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (tmp_path / "abort").exists()
        with pytest.raises(MqstoreError, match="in use"):
            MessageStore.open(tmp_path, SMALL)
        assert store.put(Message("orders", b"after")).status is PutStatus.PUT_OK
        store.abandon()  # as if the parent were killed now
    with MessageStore.open(tmp_path, SMALL) as again:
        assert [found.body for found in again.get("g", "orders", 0, 0).records()] == [b"before", b"after"]


def test_a_child_that_is_forked_while_another_thread_holds_the_stores_locks_is_refused_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        held, free = threading.Event(), threading.Event()

        def hold() -> None:
            with store._appender.lock, store._dispatch_loop.lock:
                held.set()
                free.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        try:
            refused = in_child(lambda: [store.put(Message("orders", b"x" * 100_000)).status.name, store.close()])
            named = [in_child(run) for run in (store.dispatch_now, store.flush, lambda: store.delete_queues("orders"))]
        finally:
            free.set()
            holder.join()
        assert refused == ["SERVICE_NOT_AVAILABLE", None]
        assert [isinstance(each, list) and each[0] for each in named] == ["TargetError"] * 3


def _in_worker(store: MessageStore, answers: multiprocessing.SimpleQueue[tuple[str, str]]) -> None:
    result = store.put(Message("orders", b"from a worker"))
    answers.put((result.status.name, result.detail))
    store.close()


def test_a_worker_of_multiprocessing_that_is_forked_is_refused(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with opened(tmp_path) as store:
        answers = context.SimpleQueue()
        worker = context.Process(target=_in_worker, args=(store, answers))
        worker.start()
        status, detail = answers.get()
        worker.join()
        assert (status, OWN in detail, worker.exitcode) == ("SERVICE_NOT_AVAILABLE", True, 0)
        assert (tmp_path / "abort").exists()


def test_a_broker_in_a_forked_child_does_not_run_and_its_stop_does_nothing(tmp_path: Path) -> None:
    async def forked() -> None:
        async with Broker(tmp_path / "store") as broker:

            def stop() -> str:
                with pytest.raises(StopIteration):
                    broker.stop().send(None)  # it returns without waiting for anything
                with pytest.raises(MqstoreError) as refused:
                    _ = broker.context
                return str(refused.value)

            assert "not running" in str(in_child(stop))
            assert (tmp_path / "store/abort").exists()
            store = broker.context.store.writable
            assert store is not None
            assert store.put(Message("TBW102", b"after")).stored

    asyncio.run(forked())


def test_a_directory_is_not_written_to_by_a_forked_child(tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as directory:
        directory.append("kept", b"parent")

        def write() -> object:
            with pytest.raises(MqstoreError, match=OWN):
                directory.append("kept", b"child")
            with pytest.raises(MqstoreError, match=OWN):
                directory.remove("kept")
            with pytest.raises(MqstoreError, match=OWN):
                directory.write_small("new", b"child")
            return None

        assert in_child(write) is None
        assert files_of(tmp_path) == {"kept": b"parent"}


def test_what_is_staged_outlives_a_forked_child_that_leaves_the_block(tmp_path: Path) -> None:
    with NewDirectory(tmp_path / "new") as new:
        new.directory.append("file", b"staged")
        assert in_child(lambda: new.__exit__(None, None, None)) is None
        new.publish()
    assert (tmp_path / "new/file").read_bytes() == b"staged"


UNPACKED = """
import os, sys
from mqstore.files.archive import UnpackedArchive
from pathlib import Path
archive = UnpackedArchive(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
print(archive.root.exists())
archive.close()
print(archive.root.exists())
"""


def test_an_unpacked_archive_outlives_a_forked_child(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "file", "file")
    done = subprocess.run([sys.executable, "-c", UNPACKED, str(tmp_path / "a.tar")], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
