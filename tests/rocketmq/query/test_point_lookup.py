"""Lookups of single records and numbers, against the golden stores and against the rules of the format."""

from __future__ import annotations

import pytest
from support.golden import CASES, PLAIN, VERSIONS, GoldenCase, address, case_id, expected, has, queries
from support.reading import batch_queue, made, started, tagged

from mqstore.errors import UsageError
from mqstore.rocketmq.dispatch.consume_queue_image import QueueImage
from mqstore.rocketmq.format.log_slices import LogFiles, store_timestamp_at
from mqstore.rocketmq.format.queue_page import PagedQueue, entry_at
from mqstore.rocketmq.format.record import encode, offset_message_id, parse_host
from mqstore.rocketmq.query import point_lookup

START = 1640995200123

both_versions = pytest.mark.parametrize("version", VERSIONS)


# the golden stores


@pytest.mark.parametrize("case", [case for case in CASES if has(case, "queries.jsonl")], ids=case_id)
def test_every_key_query_of_the_brokers_is_answered_alike(case: GoldenCase) -> None:
    broker = started(case)
    for row in queries(case):
        found = point_lookup.query_message(
            broker.index_files, broker.log, row["topic"], row["key"], row["max_num"], row["begin"], row["end"]
        )
        assert [int.from_bytes(raw[28:36], "big") for raw in found.slices] == row["expected"], row
        assert found.index_last_update_timestamp == row["result_last_update_timestamp"], row
        assert found.index_last_update_physical_offset == row["result_last_update_phyoffset"], row


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_message_is_found_by_its_offset_and_by_its_id(case: GoldenCase) -> None:
    log = started(case).log
    for row in expected(case):
        found = point_lookup.record_by_id(log, row["msg_id"])
        assert found is not None
        assert found == point_lookup.record_at(log, row["physical_offset"])
        assert (found.topic, found.queue_id, found.queue_offset, found.body_crc) == (
            row["topic"],
            row["queue_id"],
            row["queue_offset"],
            row["body_crc"],
        )
        assert address(found.store_host) == address(row["store_host"])


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_queue_entry_leads_to_the_store_time_of_its_message(case: GoldenCase) -> None:
    broker = started(case)
    times = {row["physical_offset"]: row["store_timestamp"] for row in expected(case)}
    for queue in broker.queues:
        listed = range(queue.min_offset, queue.max_offset)
        for offset in listed:
            physical = physical_at(queue, offset)
            found = point_lookup.store_timestamp_of(queue, broker.log, offset, case.version)
            assert found == (times[physical] if physical >= broker.log.min_offset else -1)
        if listed:
            assert point_lookup.earliest_time(queue, broker.log, case.version) in {*times.values(), -1}
    oldest = min(expected(case), key=lambda row: int(row["physical_offset"]))
    assert point_lookup.earliest_time_of_log(broker.log, case.version, max_message_size=1000) == oldest["store_timestamp"]


# in the log


@both_versions
def test_the_first_the_last_and_nothing_behind(version: str) -> None:
    store = made([tagged("TagA", store_timestamp=START + number) for number in range(10)])
    assert [point_lookup.record_at(store.log, physical) is not None for physical in store.physicals] == [True] * 10
    assert point_lookup.record_at(store.log, store.log.max_offset) is None
    assert point_lookup.record_at(store.log, store.physicals[3] + 1) is None
    assert point_lookup.raw_record_at(store.log, store.log.max_offset - 2) is None
    assert store_timestamp_at(store.log, store.physicals[3], store.sizes[3], version) == START + 3
    assert store_timestamp_at(store.log, -10, store.sizes[3], version) == -1
    assert store_timestamp_at(store.log, store.physicals[-1], store.sizes[-1] + 1, version) == -1


def test_bytes_that_are_no_record_are_returned_raw_and_not_decoded() -> None:
    log = LogFiles([(0, memoryview(bytes([0, 0, 0, 9]) + b"abcdefgh"))], 64)
    assert bytes(point_lookup.raw_record_at(log, 0) or b"") == b"\0\0\0\x09abcde"
    assert point_lookup.record_at(log, 0) is None
    assert point_lookup.raw_record_at(LogFiles([(0, memoryview(b"\xff\xff\xff\xffabcd"))], 64), 0) is None


def test_an_invalid_id_is_refused() -> None:
    store = made([tagged("TagA")])
    for text in ("", "xyz", "7F00000100002A9F", "7F00000100002A9F00000000000043E8FF"):
        with pytest.raises(UsageError, match="is not a message id"):
            point_lookup.record_by_id(store.log, text)
    assert point_lookup.record_by_id(store.log, offset_message_id(parse_host("[::1]:10911"), 0)) is not None
    assert point_lookup.record_by_id(store.log, "7F00000100002A9F00000000000043E8") is None


@pytest.mark.parametrize("host", ["127.0.0.1:5", "[::1]:5"])
def test_the_earliest_time_of_a_log_is_read_by_5_3_from_a_header_and_by_4_9_from_two_largest_messages(host: str) -> None:
    record = tagged("TagA", store_timestamp=START, born_host=host)
    raw = encode(record)
    log = LogFiles([(0, memoryview(raw))], 4096)
    assert point_lookup.earliest_time_of_log(log, "5.3.3") == START
    assert point_lookup.earliest_time_of_log(log, "4.9.3", len(raw) // 2) == START
    assert point_lookup.earliest_time_of_log(log, "4.9.3", len(raw) // 2 + 1) == -1
    assert point_lookup.earliest_time_of_log(LogFiles([(0, memoryview(raw[:60]))], 4096), "5.3.3") == -1
    for version in VERSIONS:
        assert point_lookup.earliest_time_of_log(LogFiles([], 4096), version) == -1


# in a queue


def physical_at(queue: PagedQueue, offset: int) -> int:
    entry = entry_at(queue, offset)
    return 0 if entry is None else int(entry["physical_offset"])


@both_versions
def test_a_queue_tells_offsets_and_times(version: str) -> None:
    store = made([tagged("TagA", store_timestamp=START + number) for number in range(25)], first=13)
    queue = store.queue
    assert [point_lookup.store_timestamp_of(queue, store.log, 13 + number, version) for number in range(25)] == [
        START + n for n in range(25)
    ]
    assert [physical_at(queue, 13 + number) for number in range(25)] == store.physicals
    assert point_lookup.earliest_time(queue, store.log, version) == START
    for offset in (-1, 12, 38):
        assert point_lookup.store_timestamp_of(queue, store.log, offset, version) == -1
        assert physical_at(queue, offset) == 0


@both_versions
def test_an_unknown_queue_tells_nothing(version: str) -> None:
    store = made([tagged("TagA")])
    empty = QueueImage("T", 9, 200)
    assert point_lookup.store_timestamp_of(empty, store.log, 0, version) == -1
    assert point_lookup.earliest_time(empty, store.log, version) == -1


def test_of_a_batch_queue_the_unit_that_holds_an_offset_answers() -> None:
    queue = batch_queue([10] * 50, times=[START + number for number in range(50)])
    assert [physical_at(queue, offset) for offset in (0, 9, 10, 199, 200, 499, 500)] == [
        0,
        0,
        100,
        1900,
        2000,
        4900,
        0,
    ]


# by key


def test_an_empty_answer_has_no_last_update() -> None:
    store = made([tagged("TagA")])
    found = point_lookup.query_message([], store.log, "T", "k")
    assert (found.slices, found.index_last_update_timestamp, found.index_last_update_physical_offset) == ((), 0, 0)
    assert found.records == []


@pytest.mark.parametrize("case", [case for case in PLAIN if case.name == "c-index-collisions"], ids=case_id)
def test_records_of_a_query_hold_messages_of_other_keys_with_the_same_hash(case: GoldenCase) -> None:
    broker = started(case)
    strangers = 0
    for row in queries(case):
        found = point_lookup.query_message(
            broker.index_files, broker.log, row["topic"], row["key"], row["max_num"], row["begin"], row["end"]
        )
        for record in found.records:
            names = record.property_map()
            keys = {*names.get("KEYS", "").split(" "), names.get("UNIQ_KEY")}
            strangers += record.topic != row["topic"] or row["key"] not in keys
        assert [record.physical_offset for record in found.records] == sorted(found.physical_offsets)
    assert strangers > 0


@pytest.mark.parametrize("case", [case for case in PLAIN if case.name == "a-clean-small"], ids=case_id)
def test_the_newest_records_are_kept_when_there_are_too_many(case: GoldenCase) -> None:
    broker = started(case)
    row = max(queries(case), key=lambda row: len(row["expected"]))
    every = point_lookup.query_message(broker.index_files, broker.log, row["topic"], row["key"], 64).physical_offsets
    assert len(every) > 3
    for most in (1, 3):
        found = point_lookup.query_message(broker.index_files, broker.log, row["topic"], row["key"], most)
        assert len(found.slices) == most
    assert len(point_lookup.query_message(broker.index_files, broker.log, row["topic"], row["key"], 2**31 - 1, cap=2).slices) == 2
