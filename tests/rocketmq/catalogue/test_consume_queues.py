"""Catalogue 13.3: consume queues, including extended and batch queues."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.catalogue import START, VERSIONS, Clock, bodies, opened, put_some
from support.reading import batch_queue

from mqstore.errors import RefusedError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rocketmq.append.appender import INNER_BATCH
from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage, QueueImage
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.batch_consume_queue import UNIT_SIZE
from mqstore.rocketmq.format.consume_queue import ENTRY
from mqstore.rocketmq.format.consume_queue_ext import ConsumeQueueExt, ExtUnit, address_of, is_address, position_of
from mqstore.rocketmq.format.log_slices import LogFiles
from mqstore.rocketmq.format.mapped_file_queue import load as load_files
from mqstore.rocketmq.format.message import Message, PutStatus
from mqstore.rocketmq.format.queue_page import entry_at
from mqstore.rocketmq.live.consume_queue_ext_writer import END_ROOM, ExtQueueWriter
from mqstore.rocketmq.live.queue_files import QueueFiles, StoredBatchQueue
from mqstore.rocketmq.query import time_lookup

# plain queues


def run_of(rows: Sequence[tuple[int, int, int]], first: int) -> QueueRun:
    """Entries (physical offset, size, tags code) from a queue offset on."""
    entries = np.array(rows, ENTRY)
    return QueueRun("T", 0, np.arange(first, first + len(rows)), entries.view(np.uint8), consecutive=True)


def hundreds(count: int) -> QueueImage:
    """Entries of records of 100 bytes, in one file."""
    queue = QueueImage("T", 0, 20 * count)
    queue.append(run_of([(100 * k, 100, k) for k in range(count)], 0))
    return queue


def test_the_first_of_2000_records_is_listed_once() -> None:
    """ConsumeQueueTest.testPutMessagePositionInfo_buildCQRepeatedly: dispatched again, it is dropped."""
    rows = [(160 * k, 160, k) for k in range(2000)]
    queue = QueueImage("T", 0, 20 * 100)
    queue.append(run_of(rows, 0))
    end = (queue.max_offset, queue.max_physical_offset, len(queue.files))
    assert end == (2000, 2000 * 160, 20)
    for again in (rows[:1], rows):
        queue.append(run_of(again, 0))
        assert (queue.max_offset, queue.max_physical_offset, len(queue.files)) == end


@VERSIONS
def test_dispatching_a_store_again_lists_nothing_twice(version: str, tmp_path: Path) -> None:
    """The same through the store: after a kill all of the log is dispatched again."""
    store = opened(tmp_path / "store", version, commit_log_file_size=1 << 20)
    put_some(store, 2000)
    store.abandon()
    with opened(tmp_path / "store", version, commit_log_file_size=1 << 20) as again:
        assert again.max_offset("FooBar", 0) == 2000
        assert bodies(again) == [b"%d" % number for number in range(2000)]


@VERSIONS
def test_a_message_for_two_light_queues_is_listed_in_both(version: str, tmp_path: Path) -> None:
    """ConsumeQueueTest.testPutMessagePositionInfoWrapper_MultiQueue, testPutMessagePositionInfoMultiQueue: with queue id 0."""
    with opened(tmp_path / "store", version, enable_multi_dispatch=True, enable_lmq=True) as store:
        put_some(store, 1, "T", queue_id=3, properties={"INNER_MULTI_DISPATCH": "%LMQ%123,%LMQ%456"})
        assert [(queue.topic, queue.queue_id, queue.max_offset) for queue in store.queues()] == [
            ("%LMQ%123", 0, 1),
            ("%LMQ%456", 0, 1),
            ("T", 3, 1),
        ]


@VERSIONS
def test_every_entry_of_an_extended_queue_leads_to_its_unit(version: str, tmp_path: Path) -> None:
    """ConsumeQueueTest.testConsumeQueueWithExtendData: 8 KiB log files, 200-byte queue files."""
    with opened(
        tmp_path / "store", version, enable_consume_queue_ext=True, consume_queue_ext_file_size=200, message_delay_level="1s"
    ) as store:
        for number in range(100):
            store.put(Message("FooBar", b"", tags=f"tag{number}"))
        store.dispatch_now()
        queue = store.queue_or_none("FooBar", 0)
        assert queue is not None
        codes = queue.entries(0, 100)["tags_code"].tolist()
        ext = ConsumeQueueExt(ReadOnlyDirectory(tmp_path / "store"), "FooBar", 0, file_size=200)
        assert all(is_address(code) for code in codes)
        units = [ext.unit(code) for code in codes]
        times = {
            record.queue_offset: record.store_timestamp for at in range(0, 100, 10) for record in store.get("g", "FooBar", 0, at).records()
        }
        assert len(times) == 100
        for number, unit in enumerate(units):
            assert unit is not None
            text = f"tag{number}"
            expected = 0
            for letter in text:
                expected = (31 * expected + ord(letter)) & 0xFFFFFFFF
            assert (unit.tags_code & 0xFFFFFFFF, unit.store_timestamp) == (expected, times[number])
        assert [record.property_map()["TAGS"] for record in store.get("g", "FooBar", 0, 40, filter="tag44").records()] == ["tag44"]


def test_the_minimum_of_10000_entries_follows_the_log() -> None:
    """ConsumeQueueTest.testCorrectMinOffset."""
    queue = hundreds(10_000)
    queue.correct_min(0, "5.3.3")
    assert queue.min_offset == 0
    queue.min_logic_offset = 100
    queue.correct_min(2000, "5.3.3")
    assert queue.min_offset == 20
    queue.correct_min(2000, "5.3.3")
    assert queue.min_offset == 20
    for _ in range(2):
        queue.correct_min(100 * 10_000, "5.3.3")
        assert (queue.min_offset, queue.max_offset) == (10_000, 10_000)


def test_entries_follow_each_other_to_the_last(tmp_path: Path) -> None:
    """queue/ConsumeQueueTest.testIterator: an empty queue, then 100 messages, from each offset to 99, with extended units."""
    empty = QueueImage("FooBar", 0, 200)
    assert (empty.min_offset, empty.max_offset, entry_at(empty, 0)) == (0, 0, None)
    with opened(
        tmp_path / "store", "5.3.3", enable_consume_queue_ext=True, consume_queue_file_size=2000, consume_queue_ext_file_size=4096
    ) as store:
        put_some(store, 100, tags="TagA")
        queue = store.queue_or_none("FooBar", 0)
        assert queue is not None
        assert (queue.max_offset, len(queue.files)) == (100, 1)
        assert entry_at(queue, -1) is None
        assert entry_at(queue, 100) is None
        ext = ConsumeQueueExt(store.reading, "FooBar", 0, file_size=4096)
        positions = queue.entries(0, 100)["physical_offset"].tolist()
        for start in range(100):
            rows = queue.entries(start, 100)
            assert rows["physical_offset"].tolist() == positions[start:]
            assert entry_at(queue, start) == rows[0]
        assert {ext.tags_code(code) for code in queue.entries(0, 100)["tags_code"].tolist()} == {2598919}
        for number in (0, 99):
            found = store.record_at(positions[number])
            assert found is not None
            assert found.queue_offset == number


# extended queues

UNITS = 10
UNIT_BITMAP = bytes(12)
EXT_UNIT = 20 + len(UNIT_BITMAP)
EXT_FILE = 4 * EXT_UNIT + END_ROOM + 6
PER_FILE = (EXT_FILE - END_ROOM) // EXT_UNIT


@dataclass
class Ext:
    """An extended queue of ten units, four in a file of 138 bytes."""

    root: Path
    writer: ExtQueueWriter
    addresses: list[int]

    @property
    def reading(self) -> ConsumeQueueExt:
        return ConsumeQueueExt(ReadOnlyDirectory(self.root), "T", 0, file_size=EXT_FILE)

    @property
    def starts(self) -> list[int]:
        return sorted(int(path.name) for path in (self.root / self.writer.relative).iterdir())


@pytest.fixture
def ext(tmp_path: Path) -> Ext:
    writer = ExtQueueWriter(DurableDirectory(tmp_path), ReadOnlyDirectory(tmp_path), "T", 0, file_size=EXT_FILE)
    addresses = [writer.append(number, START + number, UNIT_BITMAP) for number in range(UNITS)]
    assert None not in addresses
    return Ext(tmp_path, writer, [address for address in addresses if address is not None])


def test_addresses_are_negative_and_lead_to_what_was_put(ext: Ext) -> None:
    """ConsumeQueueExtTest.testPut."""
    assert all(address < 0 for address in ext.addresses)
    assert [ext.reading.unit(address) for address in ext.addresses] == [
        ExtUnit(address, EXT_UNIT, number, START + number, UNIT_BITMAP) for number, address in enumerate(ext.addresses)
    ]


def test_from_the_first_unit_on_there_are_units_up_to_the_end_of_the_file(ext: Ext) -> None:
    """ConsumeQueueExtTest.testGet."""
    found = 0
    while (unit := ext.reading.unit(address_of(found * EXT_UNIT))) is not None:
        assert unit.tags_code == found
        found += 1
    assert found == PER_FILE == 4


def test_an_invalid_address_has_no_unit(ext: Ext) -> None:
    """ConsumeQueueExtTest.testGet_invalidAddress: 0, and the position after the last unit of a file."""
    assert ext.reading.unit(0) is None
    assert ext.reading.unit(address_of(PER_FILE * EXT_UNIT)) is None
    assert ext.reading.unit(address_of(2 * EXT_FILE + 2 * EXT_UNIT)) is None


def test_a_reloaded_extended_queue_ends_after_its_last_unit(ext: Ext) -> None:
    """ConsumeQueueExtTest.testRecovery: minimum -2^63, maximum (files - 1) x file size + units in the last file x unit size."""
    again = ExtQueueWriter(DurableDirectory(ext.root), ReadOnlyDirectory(ext.root), "T", 0, file_size=EXT_FILE)
    again.recover()
    files = -(-UNITS // PER_FILE)
    assert len(again.files) == files == 3
    assert address_of(int(again.files[0].rpartition("/")[2])) == -(2**63)
    assert again.end == (files - 1) * EXT_FILE + (UNITS - (files - 1) * PER_FILE) * EXT_UNIT


def test_files_before_the_minimum_go(ext: Ext) -> None:
    """ConsumeQueueExtTest.testTruncateByMinOffset: at one and a half files the second file becomes the first."""
    ext.writer.truncate_by_min(address_of(EXT_FILE + EXT_FILE // 2))
    assert ext.starts[0] == EXT_FILE


def test_units_after_the_maximum_are_removed(ext: Ext) -> None:
    """ConsumeQueueExtTest.testTruncateByMaxOffset: at an address the end is that address and one unit."""
    address = ext.addresses[PER_FILE + 1]
    ext.writer.truncate_by_max(address)
    assert ext.writer.end == position_of(address) + EXT_UNIT
    assert ext.starts == [0, EXT_FILE]


# batch queues


def test_500_files_of_a_batch_queue_are_built_and_read() -> None:
    """queue/BatchConsumeQueueTest.testBuildAndIterateBatchConsumeQueue: 10000 units of 10 from 1000 on, 20 in a file."""
    queue = batch_queue([10] * 10_000, first=1000)
    assert (len(queue.files), queue.min_offset, queue.max_offset) == (500, 1000, 101_000)
    units = queue.entries(1000, 101_000)
    assert units["base_offset"].tolist() == list(range(1000, 101_000, 10))
    for offset in range(1000, 101_000, 7):
        unit = entry_at(queue, offset)
        assert unit is not None
        number = (offset - 1000) // 10
        assert (int(unit["base_offset"]), int(unit["size"]), int(unit["count"])) == (1000 + 10 * number, 100, 10)
        assert int(unit["physical_offset"]) == 100 * number


def test_a_batch_queue_is_searched_by_offset_and_time() -> None:
    """queue/BatchConsumeQueueTest.testBuildAndSearchBatchConsumeQueue: 20000 units from 1 on; the last base is 199991."""
    queue = batch_queue([10] * 20_000, times=[START + 10 * number for number in range(20_000)], first=1)
    log = LogFiles([], 4096)
    assert entry_at(queue, queue.max_offset) is None
    assert len(queue.entries(0, queue.min_offset)) == 0
    times = [(START - 1, 1), (START, 1), (START + 10 * 777, 7771), (START + 10**9, 199_991)]
    for time, base in times:
        assert time_lookup.offset_by_time(queue, log, time, "5.3.3") == base


def stored(root: Path, *, per_file: int = 20, existing: bool = False) -> StoredBatchQueue:
    """A batch queue on disk."""
    reading = ReadOnlyDirectory(root)
    files = QueueFiles(reading, DurableDirectory(root), DurableDirectory(root))
    size = UNIT_SIZE * per_file
    loaded = load_files(reading, "batchconsumequeue/T/0", size=size) if existing else None
    return StoredBatchQueue(files, "T", 0, size, loaded)


def hundred_batches(queue: BatchQueueImage) -> None:
    """100 units of 10 messages from queue offset 1 on; unit k is of the record at k."""
    queue.append(QueueRun("T", 0, np.arange(1, 1001, 10), _units().view(np.uint8), consecutive=True, batch=True))


def _units() -> np.ndarray:
    return batch_queue([10] * 100, size=1, first=1, per_file=100).files[0].written_rows()


def test_a_batch_queue_is_recovered(tmp_path: Path) -> None:
    """queue/BatchConsumeQueueTest.testBuildAndRecoverBatchConsumeQueue: 5 files, minimum 1, maximum 1001, and all lookups."""
    hundred_batches(stored(tmp_path))
    queue = stored(tmp_path, existing=True)
    queue.recover()
    assert (len(queue.files), queue.min_offset, queue.max_offset, queue.max_physical_offset) == (5, 1, 1001, 99)
    for offset in range(1, 1001):
        unit = entry_at(queue, offset)
        assert unit is not None
        assert int(unit["base_offset"]) == 1 + (offset - 1) // 10 * 10
    assert entry_at(queue, 1001) is None


@pytest.mark.parametrize("cut", [1, 20, 21, 50, 99, 100])
def test_a_truncated_batch_queue_has_no_unit_after_the_cut(cut: int, tmp_path: Path) -> None:
    """queue/BatchConsumeQueueTest.testTruncateBatchConsumeQueue."""
    queue = stored(tmp_path)
    hundred_batches(queue)
    queue.truncate(cut)
    assert (queue.min_offset, queue.max_offset) == (1, 1 + 10 * cut)
    assert [entry_at(queue, 1 + 10 * number) is not None for number in range(100)] == [number < cut for number in range(100)]


def test_a_batch_queue_is_truncated_at_its_end_and_expired_at_its_start(tmp_path: Path) -> None:
    """queue/BatchConsumeQueueTest.testTruncateAndDeleteBatchConsumeQueue: at 80: 4 files, maximum 801; at 30: 3, minimum 301."""
    queue = stored(tmp_path)
    hundred_batches(queue)
    assert len(queue.files) == 5
    queue.truncate(80)
    assert (len(queue.files), queue.max_offset) == (4, 801)
    queue.expire(30)
    queue.correct_min(30)
    assert (len(queue.files), queue.min_offset, queue.max_offset) == (3, 301, 801)
    assert len(list((tmp_path / "batchconsumequeue" / "T" / "0").iterdir())) == 3


# batches through the store

BATCHED = {"batch_topics": frozenset({"batched"}), "commit_log_file_size": 1 << 20}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[MessageStore]:
    with opened(tmp_path / "store", "5.3.3", clock=clock, **BATCHED) as made:
        yield made


def put_batches(store: MessageStore, count: int, per_batch: int = 10, size: int = 10) -> None:
    """Batches that are one record each, 10 ms apart."""
    clock = store.config.clock
    assert isinstance(clock, Clock)
    for _ in range(count):
        clock.now += 10
        message = Message("batched", bytes(size), properties={"INNER_NUM": str(per_batch)}, sys_flag=INNER_BATCH)
        assert store.put(message).status == PutStatus.PUT_OK
    store.dispatch_now()


@pytest.mark.parametrize("topic", ["simple", "batched"])
def test_ordinary_messages_go_to_either_kind_of_topic(topic: str, store: MessageStore) -> None:
    """queue/BatchConsumeMessageTest.testSendMessagesToCqTopic, testSendMessagesToBcqTopic."""
    put_some(store, 10, topic)
    queue = store.queue_or_none(topic, 0)
    assert queue is not None
    assert (queue.batch, queue.max_offset) == (topic == "batched", 10)
    assert bodies(store, topic) == [b"%d" % number for number in range(10)]


def test_every_offset_inside_a_stored_batch_finds_it(store: MessageStore) -> None:
    """queue/BatchConsumeMessageTest.testConsumeBatchMessage: minimum 0, maximum 10."""
    put_batches(store, 1)
    for offset in range(10):
        got = store.get("g", "batched", 0, offset, 1)
        assert (got.status.value, got.min_offset, got.max_offset, len(got.slices)) == ("FOUND", 0, 10, 1)


def test_a_pull_continues_after_the_batch(store: MessageStore) -> None:
    """queue/BatchConsumeMessageTest.testNextBeginOffsetConsumeBatchMessage."""
    put_batches(store, 3, per_batch=7)
    for base in (0, 7, 14):
        assert store.get("g", "batched", 0, base + 2, 1).next_begin_offset == base + 7


def test_batches_are_found_by_time(store: MessageStore) -> None:
    """queue/BatchConsumeMessageTest.testGetOffsetInQueueByTime: nothing at first, then between batches 8 and 9 the later one."""
    assert (store.min_offset("batched", 0), store.max_offset("batched", 0)) == (-1, 0)
    assert (store.offset_by_time("batched", 0, START), store.earliest_time("batched", 0)) == (-1, -1)
    got = store.get("g", "batched", 0, 0)
    assert (got.status.value, got.min_offset, got.max_offset) == ("NO_MESSAGE_IN_QUEUE", -1, 0)
    put_batches(store, 10)
    assert store.offset_by_time("batched", 0, START + 10 * 8 + 5) == 80
    assert store.offset_by_time("batched", 0, START + 10 * 9) == 80


def test_an_ordinary_queue_answers_times_up_to_its_maximum(store: MessageStore) -> None:
    """queue/BatchConsumeMessageTest.testDispatchNormalConsumeQueue: time 0 is 0, the 50th is 50, the far future the maximum of 100."""
    results = put_some(store, 100, "simple", step=10)
    assert store.max_offset("simple", 0) == 100
    assert [store.offset_by_time("simple", 0, time) for time in (0, results[50].store_timestamp, results[99].store_timestamp + 10**6)] == [
        0,
        50,
        100,
    ]
    queue = store.queue_or_none("simple", 0)
    assert queue is not None
    assert store.earliest_time("simple", 0) == results[0].store_timestamp
    assert queue.max_offset - queue.min_offset == 100
    entry = entry_at(queue, 50)
    assert entry is not None
    assert int(entry["physical_offset"]) == results[50].physical_offset


def test_a_batch_queue_is_dispatched_with_base_and_count(store: MessageStore) -> None:
    """queue/BatchConsumeMessageTest.testDispatchBuildBatchConsumeQueue: 100 batches of 10; maximum 1000."""
    put_batches(store, 100)
    assert (store.min_offset("batched", 0), store.max_offset("batched", 0)) == (0, 1000)
    assert store.earliest_time("batched", 0) == START + 10
    for number in (0, 20, 50, 99):
        assert store.offset_by_time("batched", 0, START + 10 * (number + 1)) == 10 * number
        properties = store.get("g", "batched", 0, 10 * number, 1).records()[0].property_map()
        assert (properties["INNER_BASE"], properties["INNER_NUM"]) == (str(10 * number), "10")


@pytest.mark.parametrize(("asked", "records"), [(1, 1), (39, 1), (60, 3)])
def test_batches_are_complete_within_the_number_requested(asked: int, records: int, store: MessageStore) -> None:
    """queue/BatchConsumeMessageTest.testGetBatchMessageWithinNumber: 20 in a batch, from offset 5 on.

    There the broker takes up to 1024 messages at once; by its defaults, which hold here, 32 from memory: 60 are taken for 32.
    """
    put_batches(store, 10, per_batch=20)
    got = store.get("g", "batched", 0, 5, asked)
    taken = min(records, 2)
    assert (len(got.slices), got.message_count, got.next_begin_offset) == (taken, 20 * taken, 20 * taken)


def test_a_topic_cannot_change_the_kind_of_its_queues(tmp_path: Path) -> None:
    """queue/ConsumeQueueStoreTest.testLoadConsumeQueuesWithWrongAttribute: entries in plain queues would no longer be visible."""
    root = tmp_path / "store"
    with opened(root, "5.3.3") as store:
        put_some(store, 3, "T")
    table = {"topicConfigTable": {"T": {"topicName": "T", "attributes": {"queue.type": "BatchCQ"}}}}
    (root / "config" / "topics.json").write_text(json.dumps(table))
    before = sorted(path for path in root.rglob("*"))
    with pytest.raises(RefusedError, match="should be BatchCQ, but is SimpleCQ"):
        opened(root, "5.3.3")
    with pytest.raises(RefusedError, match="should be BatchCQ, but is SimpleCQ"):
        opened(root, "5.3.3", batch_topics=frozenset({"T"}))
    assert sorted(path for path in root.rglob("*")) == before
    (root / "config" / "topics.json").unlink()
    with opened(root, "5.3.3") as store:
        assert store.max_offset("T", 0) == 3


def test_a_topic_with_batch_queues_is_a_batch_topic(tmp_path: Path) -> None:
    """queue/ConsumeQueueStoreTest.testLoadBatchConsumeQueuesWithWrongAttribute: the broker refuses; here the directory decides the kind."""
    root = tmp_path / "store"
    with opened(root, "5.3.3", **BATCHED) as store:
        put_batches(store, 2)
    with opened(root, "5.3.3", commit_log_file_size=1 << 20) as store:
        put_batches(store, 1)
        assert store.max_offset("batched", 0) == 30
        assert not (root / "consumequeue" / "batched").exists()


def test_a_topic_whose_attribute_says_so_takes_batches(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "config").mkdir(parents=True)
    table = {"topicConfigTable": {"batched": {"topicName": "batched", "attributes": {"queue.type": "BatchCQ"}}}}
    (root / "config" / "topics.json").write_text(json.dumps(table))
    with opened(root, "5.3.3") as store:
        put_batches(store, 2)
        assert store.max_offset("batched", 0) == 20
