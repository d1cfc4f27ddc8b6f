"""Catalogue 13.1: encoding, appending, putting."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.catalogue import IPV6, START, VERSIONS, Clock, bodies, opened, put_some

from mqstore.rocketmq.append.delay import DelayOffsetTable
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.message import Inner, Message, MessageBatch, PutStatus, property_text
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.format.system_topics import SCHEDULE_TOPIC

HOSTS = pytest.mark.parametrize("host", ["127.0.0.1:8123", IPV6], ids=["ipv4", "ipv6"])
SHARED = {"a": "1"}


def batch_of(count: int, host: str = "127.0.0.1:8123", *, shared: dict[str, str] | None = None, version: str = "5.3.3") -> MessageBatch:
    """Messages with body `body`, property a and a tag."""
    own = record.encode_properties({"a": "aaa", "TAGS": "abc"}, trailing=version != "4.9.3")
    envelope = Message("test-topic", queue_id=0, born_host=host, store_host=host, born_timestamp=START - 5, properties=shared or b"")
    return MessageBatch(envelope, [Inner(b"body", own, flag=number) for number in range(count)])


def raw_log(store: MessageStore, start: int, size: int) -> bytes:
    found = store.slice(start, size)
    assert found is not None
    return bytes(found)


@HOSTS
@VERSIONS
def test_a_batch_at_the_end_of_a_file_leaves_a_blank_record_of_all_the_room(version: str, host: str, tmp_path: Path) -> None:
    """AppendCallbackTest.testAppendMessageBatchEndOfFile: 1000 bytes are left, of which 8 are written."""
    with opened(tmp_path / "store", version) as store:
        room = store.log.file_size - 1000
        filler = Message("filler", bytes(room - 91 - len("filler")))
        assert store.put(filler).size == room
        result = store.put_messages(batch_of(10, host, version=version))
        assert (result.status, result.count, result.queue_offset) == (PutStatus.PUT_OK, 10, 0)
        assert result.size > 1000 - 8
        assert result.physical_offset == store.log.file_size
        assert raw_log(store, room, 1000) == record.blank(1000) + bytes(992)
        assert record.blank(1000) == (1000).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        assert len(set(result.msg_id.split(","))) == 10


@HOSTS
@VERSIONS
def test_the_messages_of_a_batch_are_records_of_their_own(version: str, host: str, tmp_path: Path) -> None:
    """AppendCallbackTest.testAppendMessageBatchSucc: ten ids of 32 characters, of 56 with IPv6 hosts."""
    with opened(tmp_path / "store", version) as store:
        result = store.put_messages(batch_of(10, host, version=version))
        ids = result.msg_id.split(",")
        assert (result.status, result.count, result.size) == (PutStatus.PUT_OK, 10, store.log_max)
        assert len(set(ids)) == 10
        assert {len(each) for each in ids} == {56 if host == IPV6 else 32}
        found = [store.record_by_id(each) for each in ids]
        assert [each and each.queue_offset for each in found] == list(range(10))
        assert {
            (each.topic, each.body, each.property_map()["TAGS"], each.born_host, each.born_timestamp, each.store_timestamp)
            for each in found
            if each is not None
        } == {("test-topic", b"body", "abc", host, START - 5, START)}
        assert record.decode(raw_log(store, 0, result.size)).prepared_transaction_offset == 0


def checked_by_properties(tmp_path: Path) -> MessageStore:
    return opened(tmp_path / "store", "5.3.3", enabled_append_prop_crc=True, force_verify_prop_crc=True)


def change_the_properties_of_the_last(tmp_path: Path, at: int) -> None:
    """One letter of the value of property a."""
    with (tmp_path / "store" / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at)
        position = at + file.read().index(b"a\x01aaa") + 3
        file.seek(position)
        file.write(b"b")


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_a_changed_property_is_seen_by_its_checksum(batch: bool, tmp_path: Path) -> None:
    """AppendPropCRCTest.testAppendMessageSucc and testAppendMessageBatchSucc."""
    with checked_by_properties(tmp_path) as store:
        if batch:
            store.put_messages(batch_of(10))
        else:
            put_some(store, 10, "test-topic", properties={"a": "aaa", "TAGS": "abc"})
        store.dispatch_now()
        raws = store.get("g", "test-topic", 0, 0).slices
        assert [record.property_crc_fits(raw) for raw in raws] == [True] * 10
        assert {each.property_map()["a"] for each in map(record.decode, raws)} == {"aaa"}
        last = store.log_max - len(raws[-1])
    change_the_properties_of_the_last(tmp_path, last)
    (tmp_path / "store" / "abort").touch()
    with checked_by_properties(tmp_path) as store:
        assert (store.log_max, store.max_offset("test-topic", 0)) == (last, 9)


def test_a_checksum_property_that_is_there_already_is_taken_out(tmp_path: Path) -> None:
    """What a message brings along of another record would be looked at in its place."""
    old = b"a\x01aaa\x02__CRC32#\x010123456789\x02TAGS\x01abc\x02"
    with checked_by_properties(tmp_path) as store:
        result = store.put(Message("test-topic", b"body", properties=old))
        raw = raw_log(store, 0, result.size)
        assert record.property_crc_fits(raw)
        assert raw.count(b"__CRC32#") == 1
        assert record.decode(raw).properties.startswith(b"a\x01aaa\x02TAGS\x01abc\x02__CRC32#\x01")
    (tmp_path / "store" / "abort").touch()
    with checked_by_properties(tmp_path) as store:
        assert store.log_max == result.size


A, B = b"KeyA\x01ValueA", b"KeyB\x01ValueB"
END = b"\x02"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (A, b""),
        (A + END, b""),
        (A + END + A, b""),
        (A + END + A + END, b""),
        (B + END + A, B + END),
        (A + END + B, B),
        (A + END + B + END + A, B + END),
        (B + END + A + END + B, B + END + B),
        (b"KeyB\x01ValueBKeyA\x01ValueA", b"KeyB\x01ValueBKeyA\x01ValueA"),
        (b"KeyA\x01" + END + B, B),
        (b"KeyA", b"KeyA"),
        (b"KeyA" + END, b"KeyA" + END),
        (b"", b""),
    ],
)
def test_a_property_is_taken_out_of_a_text(text: bytes, left: bytes) -> None:
    """MessageExtBrokerInnerTest.testDeleteProperty: only a name at the start of a pair counts, and only one with its separator."""
    assert record.without_property(text, b"KeyA") == left


@pytest.mark.parametrize(("host", "fixed"), [("127.0.0.1:8123", 91), (IPV6, 115)], ids=["ipv4", "ipv6"])
@VERSIONS
def test_every_message_of_a_batch_starts_where_it_must_and_is_found(version: str, host: str, fixed: int, tmp_path: Path) -> None:
    """BatchPutMessageTest.testPutMessages (with a property of the batch) and testPutIPv6HostMessages (without)."""
    shared = SHARED if host != IPV6 else None
    batch = batch_of(10, host, shared=shared, version=version)
    own, common = batch.messages[0].properties, property_text(batch.envelope, version)
    properties = len(own) + len(common) + (1 if common and not own.endswith(b"\x02") else 0)
    length = fixed + len(b"body") + len("test-topic") + properties
    with opened(tmp_path / "store", version) as store:
        result = store.put_messages(batch)
        store.dispatch_now()
        assert result.size == 10 * length
        for number in range(10):
            got = store.get("g", "test-topic", 0, number, 1)
            assert (got.status.value, got.physical_offsets) == ("FOUND", [number * length])
            assert got.records()[0].property_map() == {"a": "1" if shared else "aaa", "TAGS": "abc"}


@VERSIONS
def test_two_light_queues_begin_at_zero_and_go_on(version: str, tmp_path: Path) -> None:
    """MultiDispatchTest.queueKey, wrapMultiDispatch, updateMultiQueueOffset: two names, 0,0 recorded, then 1,1."""
    names = "%LMQ%lmq123,%LMQ%lmq456"
    with opened(tmp_path / "store", version, enable_multi_dispatch=True, enable_lmq=True) as store:
        put_some(store, 2, "test", queue_id=2, properties={"INNER_MULTI_DISPATCH": names})
        recorded = [each.property_map()["INNER_MULTI_QUEUE_OFFSET"] for each in store.get("g", "test", 2, 0).records()]
        assert recorded == ["0,0", "1,1"]
        assert [bodies(store, name) for name in names.split(",")] == [[b"0", b"1"]] * 2


@pytest.mark.parametrize(("version", "status"), [("4.9.3", PutStatus.UNKNOWN_ERROR), ("5.3.3", PutStatus.MESSAGE_ILLEGAL)])
def test_a_record_that_the_offsets_of_its_light_queues_make_too_long_is_refused(version: str, status: PutStatus, tmp_path: Path) -> None:
    """Scripts 276 and 912: the real 4.9.3 accepts the message, adds the offsets, and answers UNKNOWN_ERROR where they do not fit."""
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
    with opened(tmp_path / "store", version, enable_multi_dispatch=True, enable_lmq=True, max_message_size=2000) as store:
        fixed = store.put(Message("T", b"x", properties=properties)).size - 1
        statuses = [store.put(Message("T", bytes(2000 - fixed + more), properties=properties)).status for more in (0, 1, 25, 26, 200)]
        assert statuses[:3] == [PutStatus.PUT_OK, status, status]
        assert statuses[4] == PutStatus.MESSAGE_ILLEGAL
        store.dispatch_now()
        assert store.max_offset("T", 0) == 2
        properties["filler"] = "v" * 1500
        assert store.put(Message("T", bytes(500), properties=properties)).status == PutStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize(("version", "status"), [("4.9.3", PutStatus.MESSAGE_ILLEGAL), ("5.3.3", PutStatus.PROPERTIES_SIZE_EXCEEDED)])
def test_properties_that_are_too_long_take_no_queue_offset(version: str, status: PutStatus, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testPutMessage_whenMessagePropertyIsTooLong."""
    long = b"a\x01" + b"v" * 32766
    with opened(tmp_path / "store", version, commit_log_file_size=1 << 20) as store:
        assert store.put(Message("FooBar", b"body", properties=long)).status == status
        put_some(store, 1)
        assert store.max_offset("FooBar", 0) == 1
        assert store.get("g", "FooBar", 0, 0).records()[0].queue_offset == 0


@VERSIONS
def test_a_body_above_the_limit_is_illegal(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testPutMsgExceedsMaxLength: 4 MiB and one byte."""
    with opened(tmp_path / "store", version, commit_log_file_size=16 << 20) as store:
        assert store.put(Message("FooBar", bytes((4 << 20) + 1))).status == PutStatus.MESSAGE_ILLEGAL
        assert store.log_max == 0


@VERSIONS
def test_a_batch_above_the_limit_is_refused_with_the_reason(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testPutMsgBatchExceedsMaxLength."""
    with opened(tmp_path / "store", version, commit_log_file_size=16 << 20) as store:
        batch = MessageBatch(Message("FooBar"), [Inner(bytes(1 << 20))] * 4)
        result = store.put_messages(batch)
        assert result.status == PutStatus.MESSAGE_ILLEGAL
        assert "message body size exceeded" in result.detail
        assert store.log_max == 0


MOST = 4 << 10


@pytest.mark.parametrize(
    ("body", "topic", "properties", "status"),
    [
        (MOST, 127, 32767, PutStatus.PUT_OK),
        (MOST + 1, 10, 10, PutStatus.MESSAGE_ILLEGAL),
        (MOST + (64 << 10), 10, 10, PutStatus.MESSAGE_ILLEGAL),
        (10, 10, 32768, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        (10, 32767, 10, PutStatus.MESSAGE_ILLEGAL),
    ],
)
def test_the_limits_of_body_topic_and_properties(body: int, topic: int, properties: int, status: PutStatus, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testPutLongMessage: the longest of each are accepted together, one byte more of any is not."""
    text = b"a\x01" + b"v" * (properties - 2)
    with opened(tmp_path / "store", "5.3.3", commit_log_file_size=1 << 20, max_message_size=MOST) as store:
        assert store.put(Message("t" * topic, bytes(body), properties=text)).status == status


@VERSIONS
def test_another_limit_holds_from_the_next_opening(version: str, tmp_path: Path) -> None:
    """DefaultMessageStoreTest.testDynamicMaxMessageSize, with settings that are given when a store is opened."""
    size = 101 if version != "4.9.3" else 101 + 91 + len("FooBar")  # 4.9.3 counts the whole record
    for most, taken in ((size - 1, PutStatus.MESSAGE_ILLEGAL), (size, PutStatus.PUT_OK), (50, PutStatus.MESSAGE_ILLEGAL)):
        with opened(tmp_path / "store", version, max_message_size=most) as store:
            assert store.put(Message("FooBar", bytes(101))).status == taken


@VERSIONS
def test_progress_of_all_levels_goes_to_zero_where_nothing_waits(version: str, tmp_path: Path) -> None:
    """ScheduleMessageServiceTest.testCorrectDelayOffset_whenInit: 18 levels are saved, loaded and moved into queues without messages."""
    with opened(tmp_path / "store", version) as store:
        table = DelayOffsetTable(version)
        for level in range(1, 19):
            table.update(level, 10 + level)
        table.persist(store.directory)
    clock = Clock()
    with opened(tmp_path / "store", version, clock=clock) as store:
        assert store.delays.offsets() == {level: 10 + level for level in range(1, 19)}
        assert store.delays.run_once() == 0
        assert store.delays.offsets() == dict.fromkeys(range(1, 19), 0)
        store.put(Message("FooBar", b"late", properties={"DELAY": "1"}))
        store.dispatch_now()
        clock.now += 1000
        assert store.delays.run_once() == 1


@VERSIONS
def test_a_delayed_message_is_not_there_first_and_found_later(version: str, tmp_path: Path) -> None:
    """deliverDelayedMessageTimerTaskTest: the queue of the level is level - 1; then NO_MESSAGE_IN_QUEUE, then FOUND with the body."""
    clock = Clock()
    with opened(tmp_path / "store", version, clock=clock) as store:
        store.put(Message("FooBar", b"late", properties={"DELAY": "3"}))
        store.dispatch_now()
        assert (store.max_offset(SCHEDULE_TOPIC, 2), store.get("g", "FooBar", 0, 0).status.value) == (1, "NO_MESSAGE_IN_QUEUE")
        clock.now += 10_000
        assert store.delays.run_once() == 1
        store.dispatch_now()
        got = store.get("g", "FooBar", 0, 0)
        assert (got.status.value, got.records()[0].body) == ("FOUND", b"late")


@VERSIONS
def test_every_delivery_counts_in_the_offsets_of_its_level(version: str, tmp_path: Path) -> None:
    """ScheduleMessageServiceTest.testHandlePutResultTask: the table ends as the number of messages of each level."""
    clock = Clock()
    with opened(tmp_path / "store", version, clock=clock, message_delay_level="5s 8s") as store:
        for level, count in ((1, 10), (2, 7)):
            put_some(store, count, properties={"DELAY": str(level)})
        clock.now += 8000
        assert store.delays.run_once() == 17
        assert store.delays.offsets() == {1: 10, 2: 7}


@VERSIONS
def test_a_level_that_the_configuration_does_not_know_waits_for_the_last_one(version: str, tmp_path: Path) -> None:
    """schedule/ScheduleMessageServiceTest.otherTest: queue id and level are one apart, and a level beyond the last is the last one."""
    with opened(tmp_path / "store", version, message_delay_level="1s 5s") as store:
        store.put(Message("FooBar", b"late", properties={"DELAY": "999"}))
        store.dispatch_now()
        queue = store.queue_or_none(SCHEDULE_TOPIC, 1)
        assert queue is not None
        assert int(queue.entries(0, 1)["tags_code"][0]) == START + 5000


def test_a_record_is_stored_as_it_is(tmp_path: Path) -> None:
    """MessageDecoderTest: what was put decodes to the same fields, with IPv6 hosts on both sides."""
    given = Record("FooBar", b"body", flag=7, born_host=IPV6, store_host=IPV6, reconsume_times=2, properties=b"a\x01b\x02")
    with opened(tmp_path / "store", "5.3.3") as store:
        store.put_stored(given)
        found = store.record_at(0)
        assert found is not None
        assert (found.topic, found.body, found.flag, found.born_host, found.store_host, found.reconsume_times, found.properties) == (
            given.topic,
            given.body,
            given.flag,
            given.born_host,
            given.store_host,
            given.reconsume_times,
            given.properties,
        )
