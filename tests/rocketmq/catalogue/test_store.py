"""Catalogue 13.4: the store as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.catalogue import IPV6, START, VERSIONS, Clock, bodies, opened, put_some

from mqstore.errors import TargetError
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.log_slices import store_timestamp_at
from mqstore.rocketmq.format.message import Message, PutStatus
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.query import point_lookup

BOTH = pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])


def bounds(store: MessageStore, topic: str = "FooBar") -> tuple[int, int]:
    """Ends of the log and of the queue."""
    return store.log_max, store.max_offset(topic, 0)


def end(store: MessageStore, clean: bool) -> None:
    """The end of a session of the store."""
    if clean:
        store.close()
    else:
        store.abandon()


@VERSIONS
def test_a_store_is_not_opened_twice(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.test_repeat_restart: the lock is held; the first store stays open; the next can open once it is closed."""
    with opened(tmp_path / "store", version) as store:
        with pytest.raises(TargetError, match="in use"):
            opened(tmp_path / "store", version)
        put_some(store, 1)
    with opened(tmp_path / "store", version) as again:
        assert bodies(again) == [b"0"]


@VERSIONS
def test_what_was_written_is_read(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testWriteAndRead: ten messages of IPv4 hosts, then ten of IPv6 hosts."""
    with opened(tmp_path / "store", version) as store:
        put_some(store, 10)
        put_some(store, 10, born_host=IPV6, store_host=IPV6)
        for offset in range(20):
            got = store.get("g", "FooBar", 0, offset, 1)
            assert (got.status.value, got.records()[0].store_host) == ("FOUND", IPV6 if offset > 9 else "127.0.0.1:10911")
        assert bodies(store) == 2 * [b"%d" % number for number in range(10)]


@VERSIONS
def test_messages_are_looked_at_by_their_place_in_the_log(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testLookMessageByOffset_OffsetIsFirst, _OffsetIsLast, _OffsetIsOutOfBound."""
    with opened(tmp_path / "store", version) as store:
        results = put_some(store, 10)
        for number in (0, 9):
            found = store.record_at(results[number].physical_offset)
            assert found is not None
            assert found.body == b"%d" % number
        assert store.record_at(results[9].physical_offset + results[9].size) is None
        assert store.record_at(-1) is None


@VERSIONS
def test_a_store_time_leads_to_its_message(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testGetOffsetInQueueByTime: ten messages, 10 ms apart."""
    with opened(tmp_path / "store", version) as store:
        for number, result in enumerate(put_some(store, 10, step=10)):
            assert store.offset_by_time("FooBar", 0, result.store_timestamp) == number


@pytest.mark.parametrize(("version", "skews"), [("4.9.3", [-2, 2]), ("5.3.3", [-2])])
def test_a_time_that_is_2_ms_off_leads_to_the_same_message(version: str, skews: list[int], tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testGetOffsetInQueueByTime_TimestampIsSkewing: the nearest; the first that is not earlier."""
    with opened(tmp_path / "store", version) as store:
        for number, result in enumerate(put_some(store, 10, step=10)):
            for skew in skews:
                assert store.offset_by_time("FooBar", 0, result.store_timestamp + skew) == number


@pytest.mark.parametrize(("version", "far"), [("4.9.3", 9), ("5.3.3", 10)])
def test_a_time_that_is_20_seconds_off_leads_to_an_end(version: str, far: int, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testGetOffsetInQueueByTime_TimestampSkewingIsLarge: the first message, the last one (5.3.3: after it)."""
    with opened(tmp_path / "store", version) as store:
        for result in put_some(store, 10, step=10):
            assert store.offset_by_time("FooBar", 0, result.store_timestamp - 20_000) == 0
            assert store.offset_by_time("FooBar", 0, result.store_timestamp + 20_000) == far


@VERSIONS
def test_a_queue_that_nobody_knows_has_no_times(version: str, tmp_path: Path) -> None:
    """testGetOffsetInQueueByTime_ConsumeQueueNotFound1; testGetMessageStoreTimeStamp's _ConsumeQueueNotFound2, _OffsetNotExist."""
    with opened(tmp_path / "store", version) as store:
        put_some(store, 10)
        assert store.offset_by_time("FooBar", 1, START) == 0
        assert store.earliest_time("FooBar", 1) == -1
        queue = store.queue_or_none("FooBar", 0)
        assert queue is not None
        assert point_lookup.store_timestamp_of(queue, store.log, -1, version) == -1


@VERSIONS
def test_the_store_time_of_every_entry_is_that_of_its_put(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testGetMessageStoreTimeStamp."""
    with opened(tmp_path / "store", version) as store:
        results = put_some(store, 25, step=10)
        queue = store.queue_or_none("FooBar", 0)
        assert queue is not None
        assert [point_lookup.store_timestamp_of(queue, store.log, number, version) for number in range(25)] == [
            result.store_timestamp for result in results
        ]


@VERSIONS
def test_a_store_time_is_read_from_the_log_or_minus_one(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testGetStoreTime_ParamIsNull, _EverythingIsOk, _PhyOffsetIsLessThanCommitLogMinOffset."""
    with opened(tmp_path / "store", version) as store:
        (result,) = put_some(store, 1)
        assert store_timestamp_at(store.log, 0, result.size, version) == result.store_timestamp
        assert store_timestamp_at(store.log, -10, result.size, version) == -1
        assert store_timestamp_at(store.log, store.log_max, result.size, version) == -1


@pytest.mark.parametrize("asked", [32, 20, 10])
@VERSIONS
def test_a_pull_returns_as_many_as_asked_for(version: str, asked: int, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testPullSize."""
    with opened(tmp_path / "store", version, consume_queue_file_size=20 * 100) as store:
        put_some(store, 32)
        assert len(store.get("g", "FooBar", 0, 0, asked).slices) == asked


@BOTH
@VERSIONS
def test_a_restart_keeps_both_ends(version: str, clean: bool, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testRecover, first part: 100 messages; writing continues after them."""
    with opened(tmp_path / "store", version) as store:
        put_some(store, 100)
        before = bounds(store)
        store.put(Message("FooBar", b"last"))
        end(store, clean)
        assert before[1] == 100
    with opened(tmp_path / "store", version) as again:
        assert bounds(again)[1] == 101
        put_some(again, 1)
        assert bodies(again)[99:] == [b"99", b"last", b"0"]


@pytest.mark.parametrize("abort", [False, True], ids=["clean", "abort"])
@VERSIONS
def test_a_last_record_with_zeroed_topic_and_properties_is_given_up(version: str, abort: bool, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testRecover, second and third part: log and queue are cut after the record before, then writing continues."""
    root = tmp_path / "store"
    with opened(root, version) as store:
        put_some(store, 100)
        before = bounds(store)
        result = store.put(Message("FooBar", b"last", properties={"a": "1"}))
        assert result.stored
        start = result.physical_offset
        text = record.encode_properties({"a": "1"}, trailing=version != "4.9.3")
        tail = len("FooBar") + 2 + len(text)
        assert bytes(store.slice(start + result.size - tail, len("FooBar")) or b"") == b"FooBar"
    file, at = divmod(start + result.size - tail, 8 << 10)
    with (root / "commitlog" / f"{file * (8 << 10):020d}").open("r+b") as opened_file:
        opened_file.seek(at)
        opened_file.write(bytes(tail))
    if abort:
        (root / "abort").touch()
    with opened(root, version) as again:
        assert bounds(again) == before == (start, 100)
        assert again.max_offset("", 0) == 0
        (more,) = put_some(again, 1)
        assert (more.physical_offset, more.queue_offset, bounds(again)[1]) == (start, 100, 101)
    with opened(root, version) as last:
        assert bodies(last) == [*[b"%d" % number for number in range(100)], b"0"]


@VERSIONS
def test_a_new_store_has_its_directories(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testStorePathOK."""
    with opened(tmp_path / "store", version):
        assert (tmp_path / "store" / "commitlog").is_dir()
        assert (tmp_path / "store" / "consumequeue").is_dir()


def test_a_light_queue_lives_on_by_itself(tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testCleanUnusedLmqTopic: light queues have no topic, and are not considered unused."""
    fields = {"enable_multi_dispatch": True, "enable_lmq": True}
    with opened(tmp_path / "store", "4.9.3", **fields) as store:
        put_some(store, 3, "T", properties={"INNER_MULTI_DISPATCH": "%LMQ%123"})
        store.run_retention(START)
    with opened(tmp_path / "store", "4.9.3", **fields) as store:
        assert store.topics.get("%LMQ%123") is None
        assert bodies(store, "%LMQ%123") == [b"0", b"1", b"2"]


@VERSIONS
def test_what_is_put_with_sync_flush_is_on_disk_and_read(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testGroupCommit."""
    with opened(tmp_path / "store", version, flush_disk_type="SYNC_FLUSH") as store:
        for number, result in enumerate(put_some(store, 10)):
            assert (result.status, store.log.flushed) == (PutStatus.PUT_OK, store.log_max)
            assert store.get("g", "FooBar", 0, number, 1).records()[0].body == b"%d" % number


@VERSIONS
def test_what_is_not_dispatched_is_not_in_the_queue_yet(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testMaxOffset: the queue ends at 3 while the next put gets 5."""
    with opened(tmp_path / "store", version) as store:
        put_some(store, 3)
        for number in range(2):
            assert store.put(Message("FooBar", b"late")).queue_offset == 3 + number
        assert store.max_offset("FooBar", 0) == 3
        assert store.dispatch_lag > 0
        assert store.put(Message("FooBar", b"late")).queue_offset == 5


def test_slices_of_the_log_are_its_records(tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testGetBulkCommitLogData: ten messages of 2 MiB in files of 10 MiB, decoded from whole files at once."""
    with opened(tmp_path / "store", "5.3.3", commit_log_file_size=10 << 20) as store:
        for number in range(10):
            assert store.put(Message("FooBar", bytes([number]) * (2 << 20))).stored
        found: list[Record] = []
        at = 0
        while at < store.log_max:
            file = store.log.file_at(at)
            assert file is not None
            part = store.slice(at, file.start + file.written - at)
            assert part is not None
            while len(part) and part[4:8] != record.blank(8)[4:8]:
                size = int.from_bytes(part[:4], "big")
                found.append(record.decode(part[:size]))
                part = part[size:]
            at = file.start + file.size
        assert [each.body[:1] for each in found] == [bytes([number]) for number in range(10)]
        assert len(store.log.files) == 3


def test_brokers_settings_are_ours() -> None:
    """DefaultMessageStoreTest.testChangeStoreConfig: a property of the broker's file sets the setting of that name."""
    assert StoreConfig().with_broker({"enableBatchPush": "true", "diskMaxUsedSpaceRatio": "50"}) == StoreConfig(
        disk_max_used_space_ratio=50
    )


def test_with_sync_flush_nothing_is_listed_that_is_not_on_disk(tmp_path: Path) -> None:
    """ReputMessageServiceTest.testReputEndOffset_whenSyncFlush (5.3.3): ten puts that do not wait, nothing flushed: the queue ends at 0."""
    with opened(tmp_path / "store", "5.3.3", flush_disk_type="SYNC_FLUSH") as store:
        put_some(store, 10, properties={"WAIT": "false"})
        assert (store.log.flushed, store.max_offset("FooBar", 0)) == (0, 0)
        store.flush()
        store.dispatch_now()
        assert store.max_offset("FooBar", 0) == 10


def test_with_async_flush_everything_is_listed(tmp_path: Path) -> None:
    """ReputMessageServiceTest.testReputEndOffset_whenAsyncFlush (5.3.3): ten messages of 1580 bytes together; the queue ends at 10."""
    with opened(tmp_path / "store", "5.3.3") as store:
        topic = "reputTest"
        results = put_some(store, 10, topic, properties={"a": "b" * 54})
        assert (sum(result.size for result in results), store.log_max, store.max_offset(topic, 0)) == (1580, 1580, 10)
        assert store.log.flushed == 0


@BOTH
@VERSIONS
def test_all_queues_are_made_again_from_the_log(version: str, clean: bool, tmp_path: Path) -> None:
    """MixCommitlogTest.testFallBehindCQ: all queue files are deleted; the next start lists 1000 messages again.

    5.3.3 does so after a clean exit only if it is configured to (spec 8.3): what it skips otherwise is in test_recovery.
    """
    root = tmp_path / "store"
    store = opened(root, version)
    put_some(store, 1000)
    end(store, clean)
    for path in sorted((root / "consumequeue").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with opened(root, version, recheck_reput_offset_from_cq=True) as again:
        again.dispatch_now()
        assert again.max_offset("FooBar", 0) == 1000
        assert bodies(again) == [b"%d" % number for number in range(1000)]


def test_a_pull_counts_messages_and_bytes(tmp_path: Path) -> None:
    """GetMessageResultTest.testAddMessage: of records that hold several messages."""
    with opened(tmp_path / "store", "5.3.3", batch_topics=frozenset({"batched"})) as store:
        sizes = []
        for count in (5, 6):
            message = Message("batched", b"body", properties={"INNER_NUM": str(count)}, sys_flag=0xC0)
            sizes.append(store.put(message).size)
        store.dispatch_now()
        got = store.get("g", "batched", 0, 0)
        assert (len(got.slices), got.message_count, got.total_bytes, got.next_begin_offset) == (2, 11, sum(sizes), 11)


@VERSIONS
def test_a_clock_that_stops_or_goes_back_loses_nothing(version: str, tmp_path: Path) -> None:
    clock = Clock()
    config = {"clock": clock, "commit_log_file_size": 1024}
    with opened(tmp_path / "store", version, **config) as store:
        put_some(store, 30)
        clock.now -= 60_000
        put_some(store, 30)
        store.flush()
        end(store, clean=False)
    with opened(tmp_path / "store", version, **config) as again:
        assert again.max_offset("FooBar", 0) == 60
        assert bodies(again) == 2 * [b"%d" % number for number in range(30)]
