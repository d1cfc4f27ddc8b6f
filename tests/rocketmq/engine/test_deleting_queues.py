"""The queues of a deleted topic are removed; its messages stay in the log, and the topic starts again at queue offset 0."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import pytest

from mqstore.errors import TargetError
from mqstore.rocketmq.append import admission
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message

SMALL = StoreConfig(
    commit_log_file_size=1 << 16, consume_queue_file_size=200, max_hash_slot_num=100, max_index_num=400, services=False, version="4.9.3"
)


def bodies(store: MessageStore, topic: str) -> list[bytes]:
    return [bytes(record.body) for record in store.get("g", topic, 0, 0).records()]


def lived(store: MessageStore) -> None:
    """Thirty messages, of which the topic is deleted while the last ten are not dispatched yet; then two more."""
    for number in range(30):
        store.put(Message("T", b"old %d" % number))
        store.put(Message("other", b"%d" % number))
        if number == 19:
            store.dispatch_now()
    assert store.delete_queues("T") == 1
    assert [store.put(Message("T", b"new %d" % number)).queue_offset for number in range(2)] == [0, 1]
    store.dispatch_now()


def test_a_deleted_topic_starts_again_at_0_and_others_stay(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL) as store:
        lived(store)
        assert bodies(store, "T") == [b"new 0", b"new 1"]
        assert store.max_offset("other", 0) == 30
        old = store.record_at(0)
        assert old is not None
        assert old.body == b"old 0"


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_what_was_deleted_does_not_come_back(tmp_path: Path, end: str) -> None:
    store = MessageStore.open(tmp_path / "store", SMALL)
    lived(store)
    getattr(store, end)()
    with MessageStore.open(tmp_path / "store", SMALL) as again:
        assert bodies(again, "T") == [b"new 0", b"new 1"]
        assert again.put(Message("T", b"new 2")).queue_offset == 2
        again.dispatch_now()
        assert bodies(again, "T") == [b"new 0", b"new 1", b"new 2"]


def test_what_was_never_there_is_deleted_too(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL) as store:
        assert store.delete_queues("nowhere") == 0


def test_a_closed_store_deletes_nothing(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path / "store", SMALL)
    store.close()
    with pytest.raises(TargetError):
        store.delete_queues("T")


def test_no_directory_of_a_deleted_topic_is_left(tmp_path: Path) -> None:
    queues = tmp_path / "store" / "consumequeue"
    with MessageStore.open(tmp_path / "store", SMALL) as store:
        for queue_id in range(3):
            store.put(Message("T", b"m", queue_id=queue_id))
        store.put(Message("other", b"m"))
        store.dispatch_now()
        assert store.delete_queues("T") == 3
        assert [path.name for path in queues.iterdir()] == ["other"]
        store.flush()  # the directories whose names were to be synced are gone
        store.put(Message("T", b"new"))
        store.dispatch_now()
        store.flush()
        assert bodies(store, "T") == [b"new"]
        assert [path.name for path in (queues / "T").iterdir()] == ["0"]


def test_nothing_of_a_deleted_topic_is_kept_in_memory(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL) as store:
        for number in range(20):
            assert [store.put(Message(f"T{number}", b"m")).queue_offset for _ in range(2)] == [0, 1]
            store.delete_queues(f"T{number}")
            store.delete_queues(f"%RETRY%{number}")
        assert store._appender.path.topics == store._appender.next_offset._by_topic == {}
        assert store.put(Message("T0", b"m")).queue_offset == 0


def test_more_topics_than_are_kept_at_hand_are_numbered_correctly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_TOPICS", 3)
    with MessageStore.open(tmp_path / "store", SMALL) as store:
        for turn in range(3):
            for number in range(10):
                assert [store.put(Message(f"T{number}", b"m")).queue_offset for _ in range(2)] == [2 * turn, 2 * turn + 1]
        assert len(store._appender.path.topics) <= 3
        store.delete_queues("T9")
        assert store.put(Message("T9", b"m")).queue_offset == 0
        assert store.put(Message("T8", b"m")).queue_offset == 6


def test_puts_while_their_topic_is_deleted_are_numbered_from_0_without_a_gap(tmp_path: Path) -> None:
    config = dataclasses.replace(
        SMALL, services=True, commit_log_file_size=1 << 22, consume_queue_file_size=200_000, max_index_num=1_000_000
    )
    ended = threading.Event()

    def put(store: MessageStore) -> None:
        while not ended.is_set():
            for _ in range(50):
                store.put(Message("T", b"m"))
            store.put(Message("T", b"m", properties={"DELAY": "0"}))  # one that takes the slow path
            time.sleep(0)  # a thread that never lets go of the interpreter's lock would keep dispatch waiting

    with MessageStore.open(tmp_path / "store", config) as store:
        threads = [threading.Thread(target=put, args=(store,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        deleted, limit = 0, time.monotonic() + 60
        while deleted < 20 and time.monotonic() < limit:
            deleted += store.delete_queues("T")
        ended.set()
        for thread in threads:
            thread.join()
        assert deleted >= 20
        assert store.wait_dispatched()
        stop, at = store.max_offset("T", 0), store.min_offset("T", 0)
        while at < stop:
            offsets = [record.queue_offset for record in store.get("g", "T", 0, at).records()]
            assert offsets == list(range(at, at + len(offsets)))
            at += len(offsets)
        assert store.put(Message("T", b"last")).queue_offset == stop


def test_what_others_put_beside_a_queue_stays(tmp_path: Path) -> None:
    topic = tmp_path / "store" / "consumequeue" / "T"
    with MessageStore.open(tmp_path / "store", SMALL) as store:
        for queue_id in range(2):
            store.put(Message("T", b"m", queue_id=queue_id))
        store.dispatch_now()
        (topic / "1" / "notes").write_text("mine")
        assert store.delete_queues("T") == 2
        assert [str(path.relative_to(topic)) for path in sorted(topic.rglob("*"))] == ["1", "1/notes"]
        store.put(Message("T", b"new", queue_id=1))
        store.dispatch_now()
        assert [bytes(record.body) for record in store.get("g", "T", 1, 0).records()] == [b"new"]
