"""Pulling, against what the original brokers answered and against the rules of the format, one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from support.golden import PLAIN, VERSIONS, GoldenCase, case_id, reads
from support.reading import Made, batch_queue, made, started, tagged

from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage, QueueImage
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE
from mqstore.rocketmq.format.java_text import java_hash
from mqstore.rocketmq.format.log_slices import LogFiles
from mqstore.rocketmq.format.record import Record, encode_properties
from mqstore.rocketmq.format.tag_filter import TagFilter
from mqstore.rocketmq.query.pull import GetResult, GetStatus, PullRules, _scan_fast, _scan_slow, get_message

EVERYWHERE = 1 << 40  # all of the log is in memory

both_versions = pytest.mark.parametrize("version", VERSIONS)


def rules(version: str, **changes: int) -> PullRules:
    return replace(PullRules(version=version, in_memory_bytes=EVERYWHERE), **changes)  # type: ignore[arg-type]


def messages(count: int, tags: str = "TagA", size: int = 0) -> list[Record]:
    """So many messages; tags: names, taken in turn."""
    names = tags.split()
    return [replace(tagged(names[number % len(names)]), body=bytes(size)) for number in range(count)]


# the original brokers


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_read_of_the_brokers_is_answered_alike(case: GoldenCase) -> None:
    broker = started(case)
    for row in reads(case):
        queue = broker.queue(row["topic"], row["queue_id"])
        tags = None if row["tags"] is None else TagFilter.parse(row["tags"])
        found = get_message(
            broker.log, queue, row["offset"], row["max_msg_nums"], tags, broker.rules, broker.tags_code_of(row["topic"], row["queue_id"])
        )
        answer = {
            "status": str(found.status),
            "next_begin_offset": found.next_begin_offset,
            "min_offset": found.min_offset,
            "max_offset": found.max_offset,
            "physical_offsets": [int.from_bytes(raw[28:36], "big") for raw in found.slices],
            "buffer_total_size": found.total_bytes,
        }
        assert answer == {name: row[name] for name in answer}, row


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_the_fast_scan_answers_the_brokers_reads_like_the_slow_one(case: GoldenCase) -> None:
    broker = started(case)
    for row in reads(case):
        queue = broker.queue(row["topic"], row["queue_id"])
        if not queue.min_offset <= row["offset"] < queue.max_offset:
            continue
        tags = None if row["tags"] in (None, "*") else TagFilter.parse(row["tags"])
        of = broker.tags_code_of(row["topic"], row["queue_id"])
        swift = _scan_fast(broker.log, queue, row["offset"], row["max_msg_nums"], tags, broker.rules, queue.min_offset, queue.max_offset)
        if swift is not None:
            assert swift == _scan_slow(broker.log, queue, row["offset"], row["max_msg_nums"], tags, broker.rules, of)


# both scans


def test_the_fast_scan_agrees_with_the_slow_one_on_random_queues() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    swift_answers = asked = 0
    for _ in range(60):
        store = random_store(dice)
        for _ in range(25):
            asked += 1
            log = store.log if dice.random() < 0.8 else store.without_log_before(dice.choice(store.physicals))
            asking = rules(
                dice.choice(VERSIONS),
                in_memory_bytes=dice.choice([EVERYWHERE, EVERYWHERE, 0, 3000, 20_000]),
                travel_files=dice.choice([1, 1, 2, 5]),
                max_total_bytes=dice.choice([128 << 20, 500, 1500]),
                max_filter_bytes=dice.choice([16_000, 16_000, 110, 40]),
                max_bytes_in_memory=dice.choice([256 << 10, 900, 3000]),
                max_count_in_memory=dice.choice([32, 5]),
            )
            tags = dice.choice([None, TagFilter.parse("TagA"), TagFilter.parse("TagB||TagC"), TagFilter.parse("||".join("bcdefghijTagC"))])
            offset = dice.randrange(store.queue.min_offset, store.queue.max_offset)
            count = dice.choice([0, 1, 2, 7, 32, 900, 2**31 - 1])
            swift = _scan_fast(log, store.queue, offset, count, tags, asking, store.queue.min_offset, store.queue.max_offset)
            if swift is not None:
                swift_answers += 1
                assert swift == _scan_slow(log, store.queue, offset, count, tags, asking, None), (seed, offset, count, tags, asking)
    assert swift_answers > asked // 3


def random_store(dice: random.Random) -> Made:
    """Records of odd sizes and tags; in one queue of three some entries are blank, addresses or lead nowhere."""
    records = [
        replace(tagged(dice.choice(["TagA", "TagB", "TagC"])), body=bytes(dice.randrange(600))) for _ in range(dice.randrange(1, 120))
    ]
    codes = [java_hash(record.property_map()["TAGS"]) for record in records]
    odd = dice.random() < 0.3
    if odd:
        codes = [dice.choice([code, code, code, -(1 << 63) + 5]) for code in codes]
    store = made(records, first=dice.choice([0, 0, 13]), queue_file=dice.choice([10, 50, 200]), codes=codes)
    if odd:
        for file in store.queue.files:
            for row in file.part(0, file.written // 20):
                if dice.random() < 0.1:
                    row["size"] = dice.choice([0, -5, BLANK_SIZE, 4000])
    return store


# statuses and the next offset


@both_versions
def test_each_status_and_where_to_go_on(version: str) -> None:
    store = made(messages(25), first=13)
    store.queue.correct_min(0, "5.3.3")
    assert (store.queue.min_offset, store.queue.max_offset) == (13, 38)

    def pull(queue: QueueImage | None, offset: int, log: LogFiles = store.log, tags: str = "*") -> tuple[str, int]:
        found = get_message(log, queue, offset, 32, TagFilter.parse(tags), rules(version))
        return str(found.status), found.next_begin_offset

    assert pull(None, 5) == ("NO_MATCHED_LOGIC_QUEUE", 0)
    assert pull(QueueImage("T", 1, 200), 5) == ("NO_MESSAGE_IN_QUEUE", 0)
    assert pull(store.queue, 12) == ("OFFSET_TOO_SMALL", 13)
    assert pull(store.queue, 38) == ("OFFSET_OVERFLOW_ONE", 38)
    assert pull(store.queue, 39) == ("OFFSET_OVERFLOW_BADLY", 38)
    assert pull(store.queue, 13) == ("FOUND", 20)
    assert pull(store.queue, 13, tags="TagZ") == ("NO_MATCHED_MESSAGE", 20)
    assert pull(store.queue, 13, log=LogFiles([(1 << 20, memoryview(b""))], 4096)) == ("MESSAGE_WAS_REMOVING", 20)
    del store.queue.files[1]
    assert pull(store.queue, 23) == ("OFFSET_FOUND_NULL", 30)


@pytest.mark.parametrize(("version", "following"), [("4.9.3", 0), ("5.3.3", 5)])
def test_4_9_sends_a_consumer_far_past_the_end_of_a_complete_queue_back_to_its_beginning(version: str, following: int) -> None:
    store = made(messages(5))
    assert get_message(store.log, store.queue, 9, 32, None, rules(version)).next_begin_offset == following


@both_versions
def test_a_slave_may_leave_the_offset_as_it_was_asked(version: str) -> None:
    store = made(messages(5), first=13)
    asking = rules(version, corrects_offsets=False)
    for queue, offset in [(None, 7), (QueueImage("T", 1, 200), 7), (store.queue, 7), (store.queue, 70)]:
        assert get_message(store.log, queue, offset, 32, None, asking).next_begin_offset == offset


# how much a batch holds


@both_versions
def test_so_many_messages_as_asked_for(version: str) -> None:
    store = made(messages(32), queue_file=100)
    for asked in (32, 20, 10):
        found = get_message(store.log, store.queue, 0, asked, None, rules(version))
        assert (len(found.slices), found.message_count, found.next_begin_offset) == (asked, asked, asked)


@both_versions
def test_a_pull_of_no_messages_returns_one(version: str) -> None:
    store = made(messages(3))
    for asked in (0, -4):
        assert get_message(store.log, store.queue, 1, asked, None, rules(version)).queue_offsets == [1]


@both_versions
def test_a_batch_ends_with_the_queue_file(version: str) -> None:
    store = made(messages(25))
    found = get_message(store.log, store.queue, 8, 10, None, rules(version))
    assert (found.queue_offsets, found.next_begin_offset) == ([8, 9], 10)


@both_versions
def test_a_batch_holds_32_messages_or_256_kib_from_memory_and_8_or_64_kib_from_disk(version: str) -> None:
    small, large = made(messages(50), queue_file=100), made(messages(50, size=20_000), queue_file=100, log_file=1 << 20)
    size = large.sizes[0]
    for store, memory, disk in ((small, 32, 8), (large, (256 << 10) // size, (64 << 10) // size)):
        assert get_message(store.log, store.queue, 0, 900, None, rules(version)).message_count == memory
        assert get_message(store.log, store.queue, 0, 900, None, rules(version, in_memory_bytes=0)).message_count == disk


@both_versions
def test_one_message_larger_than_a_batch_comes_alone(version: str) -> None:
    store = made(messages(3, size=300_000), log_file=1 << 20)
    assert get_message(store.log, store.queue, 0, 32, None, rules(version)).queue_offsets == [0]


@both_versions
def test_an_entry_that_would_not_fit_ends_the_batch_although_the_filter_drops_it(version: str) -> None:
    records = messages(6, "TagA TagB")
    records[3] = replace(records[3], body=bytes(2000))
    store = made(records)
    found = get_message(store.log, store.queue, 0, 32, TagFilter.parse("TagA"), rules(version, max_bytes_in_memory=2000))
    assert (found.queue_offsets, found.next_begin_offset) == ([0, 2], 3)


@both_versions
def test_a_scan_looks_at_800_entries_or_as_many_as_are_asked_for(version: str) -> None:
    store = made(messages(1200), queue_file=2000, log_file=1 << 20)
    nothing = TagFilter.parse("TagZ")
    for asked, looked_at in ((32, 800), (900, 900), (2000, 1200), (2**31 - 1, 800)):
        found = get_message(store.log, store.queue, 0, asked, nothing, rules(version))
        assert (str(found.status), found.next_begin_offset) == ("NO_MATCHED_MESSAGE", looked_at)


def test_5_3_goes_on_to_further_queue_files_while_nothing_is_found() -> None:
    store = made(messages(30, "TagA " * 24 + "TagB"))
    tags = TagFilter.parse("TagB")
    found = get_message(store.log, store.queue, 3, 32, tags, rules("5.3.3", travel_files=3))
    assert (found.queue_offsets, found.next_begin_offset) == ([24], 30)
    assert get_message(store.log, store.queue, 3, 32, tags, rules("5.3.3", travel_files=2)).next_begin_offset == 20
    assert get_message(store.log, store.queue, 3, 32, tags, rules("4.9.3", travel_files=3)).next_begin_offset == 10


def test_5_3_takes_a_limit_of_bytes_of_at_least_100() -> None:
    store = made(messages(9))
    size = store.sizes[0]
    assert get_message(store.log, store.queue, 0, 32, None, rules("5.3.3", max_total_bytes=3 * size)).message_count == 3
    assert get_message(store.log, store.queue, 0, 32, None, rules("5.3.3", max_total_bytes=1)).message_count == 1
    assert get_message(store.log, store.queue, 0, 32, None, rules("4.9.3", max_total_bytes=1)).message_count == 9


@both_versions
def test_a_slave_is_suggested_when_what_was_read_is_far_behind_the_end_of_the_log(version: str) -> None:
    store = made(messages(40), queue_file=100)
    behind = store.log.max_offset - store.physicals[19]
    for memory, suggested in ((behind, False), (behind - 1, True)):
        asking = rules(version, in_memory_bytes=memory, max_count_on_disk=32)
        found = get_message(store.log, store.queue, 0, 19 if version == "4.9.3" else 20, None, asking)
        assert found.suggest_pulling_from_slave is suggested


# records that have left the log


@both_versions
def test_entries_of_a_deleted_log_file_are_skipped_up_to_the_next_file(version: str) -> None:
    store = made(messages(60), queue_file=100)
    first_kept = next(number for number, physical in enumerate(store.physicals) if physical >= 4096)
    found = get_message(store.without_log_before(4096), store.queue, 1, 32, None, rules(version))
    assert (str(found.status), found.queue_offsets[0]) == ("FOUND", first_kept)
    assert found.next_begin_offset == found.queue_offsets[-1] + 1


@both_versions
def test_the_last_thing_that_went_wrong_decides_when_nothing_is_found(version: str) -> None:
    store = made(messages(9, "TagA TagB"))
    log = LogFiles([(8192, memoryview(b""))], 4096)
    # the first TagA has left the log, so the others are not examined; an earlier TagB does not match
    assert get_message(log, store.queue, 0, 32, TagFilter.parse("TagA"), rules(version)).status == GetStatus.MESSAGE_WAS_REMOVING
    assert get_message(log, store.queue, 8, 32, TagFilter.parse("TagB"), rules(version)).status == GetStatus.NO_MATCHED_MESSAGE


@both_versions
def test_an_entry_for_offset_0_leads_to_the_first_log_file_there_is(version: str) -> None:
    store = made(messages(60), queue_file=100)
    found = get_message(store.without_log_before(4096), store.queue, 0, 32, None, rules(version))
    kept = [physical for physical in store.physicals if physical >= 4096]
    assert found.physical_offsets == [0, *kept]
    assert [int.from_bytes(raw[28:36], "big") for raw in found.slices] == [4096, *kept]


# filters


@both_versions
def test_tags_with_equal_hashes_pass_the_broker_and_not_the_client(version: str) -> None:
    store = made(messages(6, "Aa BB Ab"))
    wanted = TagFilter.parse("Aa")
    found = get_message(store.log, store.queue, 0, 32, wanted, rules(version))
    assert found.queue_offsets == [0, 1, 3, 4]
    assert [record.queue_offset for record in found.records(wanted)] == [0, 3]
    assert [record.queue_offset for record in found.records()] == [0, 1, 3, 4]


@both_versions
def test_a_client_drops_messages_without_tags(version: str) -> None:
    store = made([tagged("TagA"), Record("T", b"")], codes=[java_hash("TagA")] * 2)
    wanted = TagFilter.parse("TagA")
    found = get_message(store.log, store.queue, 0, 32, wanted, rules(version))
    assert (len(found.slices), len(found.records(wanted))) == (2, 1)


@both_versions
def test_addresses_are_resolved_and_match_where_they_cannot_be(version: str) -> None:
    first = -(1 << 63)
    store = made(messages(3, "TagA TagB TagC"), codes=[first, first + 20, first + 40])
    units = {first: java_hash("TagA"), first + 20: java_hash("TagB")}
    found = get_message(store.log, store.queue, 0, 32, TagFilter.parse("TagB"), rules(version), units.get)
    assert found.queue_offsets == [1, 2]
    assert get_message(store.log, store.queue, 0, 32, TagFilter.parse("TagB"), rules(version)).queue_offsets == [0, 1, 2]


# batch queues


def pull_batch(queue: BatchQueueImage, offset: int, count: int, size: int, **changes: int) -> GetResult:
    log = LogFiles([(0, memoryview(bytes(size * 1000)))], size * 1000)
    return get_message(log, queue, offset, count, None, rules("5.3.3", **changes))


def test_every_offset_inside_a_batch_leads_to_its_record() -> None:
    queue = batch_queue([10])
    for offset in range(10):
        found = pull_batch(queue, offset, 1, 100)
        assert (found.status, found.min_offset, found.max_offset) == (GetStatus.FOUND, 0, 10)
        assert (found.queue_offsets, found.next_begin_offset, found.message_count) == ([0], 10, 10)


@pytest.mark.parametrize(("asked", "records", "following"), [(1, 1, 20), (39, 1, 20), (60, 3, 60)])
def test_batches_are_taken_whole_within_the_number_asked_for(asked: int, records: int, following: int) -> None:
    found = pull_batch(batch_queue([20] * 10), 5, asked, 100, max_count_in_memory=10_000)
    assert (len(found.slices), found.next_begin_offset, found.message_count) == (records, following, 20 * records)


@pytest.mark.parametrize(("size_limit", "records"), [(100, 1), (2048, 1), (4096, 3)])
def test_batches_are_taken_whole_within_the_bytes_asked_for(size_limit: int, records: int) -> None:
    found = pull_batch(batch_queue([10] * 10, size=1200), 0, 900, 1200, max_total_bytes=size_limit, max_count_in_memory=10_000)
    assert len(found.slices) == records


def test_batches_end_with_their_queue_file_and_go_on_in_the_next() -> None:
    queue = batch_queue([10] * 50, first=1000)
    found = pull_batch(queue, 1195, 900, 100)
    assert (found.queue_offsets, found.next_begin_offset) == ([1190], 1200)
    assert pull_batch(queue, 1200, 1, 100).physical_offsets == [2000]
    assert pull_batch(queue, 999, 1, 100).status == GetStatus.OFFSET_TOO_SMALL


# what comes out


@both_versions
def test_slices_are_views_of_the_log(version: str) -> None:
    store = made(messages(3))
    found = get_message(store.log, store.queue, 0, 32, None, rules(version))
    assert all(np.shares_memory(np.asarray(raw), np.asarray(store.log.files[0][1])) for raw in found.slices)
    assert found.sizes == store.sizes
    assert found.total_bytes == sum(store.sizes)


@both_versions
def test_bytes_that_are_no_record_are_left_out_of_the_records(version: str) -> None:
    store = made(messages(3))
    raw = bytearray(store.log.files[0][1])
    raw[store.physicals[1] + 4] ^= 1
    found = get_message(LogFiles([(0, memoryview(raw))], 4096), store.queue, 0, 32, None, rules(version))
    assert [record.queue_offset for record in found.records()] == [0, 2]
    assert len(found.slices) == 3


def test_tags_of_a_record_are_the_property_not_the_entry() -> None:
    store = made([Record("T", b"", properties=encode_properties({"TAGS": "TagA"}))], codes=[java_hash("TagB")])
    found = get_message(store.log, store.queue, 0, 32, TagFilter.parse("TagB"), rules("4.9.3"))
    assert len(found.slices) == 1
    assert found.records(TagFilter.parse("TagB")) == []
