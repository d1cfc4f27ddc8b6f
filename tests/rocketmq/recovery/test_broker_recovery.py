"""The recovered view, against what the original brokers held in memory after loading the same directories."""

from __future__ import annotations

import gc
import os
import resource
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.golden import (
    CASES,
    DAMAGED,
    PLAIN,
    GoldenCase,
    boot,
    boot_abort,
    case_id,
    case_named,
    expected,
    has,
    opened,
    queries,
    queues,
    unchanged,
)

import mqstore
from mqstore.errors import NotFoundError, RefusedError
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.format.checkpoint import Checkpoint
from mqstore.rocketmq.format.checkpoint import encode as encode_checkpoint
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.consume_queue import ENTRY
from mqstore.rocketmq.format.profile import profile
from mqstore.rocketmq.format.record import Record, blank, encode, encode_properties
from mqstore.rocketmq.query.index_search import query_offsets
from mqstore.rocketmq.recovery import broker_parser, broker_recovery
from mqstore.rocketmq.recovery.broker_recovery import Recovery
from mqstore.rocketmq.store.recovered_view import RecoveredView, recover
from mqstore.rocketmq.store.store import RocketMQStore

Row = dict[str, Any]


def recovered(case: GoldenCase, *, unclean: bool | None = None) -> RecoveredView:
    store = mqstore.open(opened(case), config=case.config)
    return recover(store, case.version, unclean=unclean)


def header(file: Any) -> Row:
    fields = (file.begin_timestamp, file.end_timestamp, file.begin_physical_offset, file.end_physical_offset)
    names = ("begin_timestamp", "end_timestamp", "begin_phy_offset", "end_phy_offset")
    return {**dict(zip(names, fields, strict=True)), "hash_slot_count": file.hash_slot_count, "index_count": file.index_count}


def agrees(view: RecoveredView, found: Row) -> None:
    assert view.log_range() == (found["min_phy_offset"], found["max_phy_offset_after_load"])
    assert view.log_files() == found["after"]["commitlog"]
    assert [header(file) for file in view.index_files()] == [
        {name: value for name, value in file.items() if name != "name"} for file in found["index_files"]
    ]
    kept = [file["name"] for file in found["index_files"] if file["name"] in found["before"]["index"]]
    assert [file.name for file in view.index_files()][: len(kept)] == kept


def bounds(view: RecoveredView) -> list[list[Any]]:
    return [[queue.topic, queue.queue_id, queue.min_offset, queue.max_offset] for queue in view.queues()]


def walked(view: RecoveredView) -> list[int]:
    """Physical offsets of the records that an unbroken walk from the minimum reaches."""
    low, high = view.log_range()
    found: list[int] = []
    for event in view.log.scan(low, high):
        if isinstance(event, Records):
            found.extend((event.file.start + event.positions).tolist())
        elif not hasattr(event, "position"):
            break
    return found


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_log_and_index_are_what_the_broker_holds(case: GoldenCase) -> None:
    with unchanged(opened(case)):
        agrees(recovered(case), boot(case))


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_queue_is_what_the_broker_holds(case: GoldenCase) -> None:
    view = recovered(case)
    assert [(queue.topic, queue.queue_id) for queue in view.queues()] == sorted((row["topic"], row["queue_id"]) for row in queues(case))
    for row in queues(case):
        queue = view.queue(row["topic"], row["queue_id"])
        assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (
            row["min_offset"],
            row["max_offset"],
            row["max_physic_offset"],
        )
        entries = queue.entries(queue.min_offset, queue.max_offset)
        names = ["physical_offset", "size", "tags_code"] + (["base_offset", "count"] if queue.batch else [])
        found = [[int(entry[name]) for name in names] for entry in entries]
        assert found == row["entries"], f"{row['topic']}/{row['queue_id']}"


@pytest.mark.parametrize("case", [case for case in CASES if has(case, "queries.jsonl")], ids=case_id)
def test_every_key_query_is_answered_as_the_broker_does(case: GoldenCase) -> None:
    files = recovered(case).index_files()
    for row in queries(case):
        answer = query_offsets(files, row["topic"], row["key"], row["max_num"], row["begin"], row["end"])
        wanted = (row["index_offsets"], row["index_last_update_timestamp"], row["index_last_update_phyoffset"])
        assert (list(answer.offsets), answer.last_update_timestamp, answer.last_update_physical_offset) == wanted, row


@pytest.mark.parametrize("case", [case for case in PLAIN if has(case, "expected.jsonl")], ids=case_id)
def test_the_messages_are_those_that_the_broker_reads(case: GoldenCase) -> None:
    offsets = [offset for batch in recovered(case).batches(["physical_offset"]) for offset in batch.column(0).to_pylist()]
    assert offsets == [row["physical_offset"] for row in expected(case)]


@pytest.mark.parametrize("unclean", [False, True], ids=["clean", "abort"])
@pytest.mark.parametrize("case", DAMAGED, ids=case_id)
def test_a_damaged_store_is_loaded_as_the_broker_loads_it(case: GoldenCase, unclean: bool) -> None:
    found = boot_abort(case) if unclean else boot(case)
    if not found["load_ok"]:
        with pytest.raises(RefusedError):
            recovered(case, unclean=unclean)
        return
    view = recovered(case, unclean=unclean)
    agrees(view, found)
    assert bounds(view) == sorted(found["queues"])
    assert walked(view) == found["readable_offsets"]


# what the golden stores do not show. Stores are written record by record here, in files of 1 KiB.


FILE_SIZE = 1024


class Written:
    """A store that a test writes: a commit log, and queues if asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.position = 0
        self.offsets: dict[tuple[str, int], int] = {}
        self.physical: list[int] = []
        (root / "commitlog").mkdir(parents=True)

    def put(self, topic: str = "T", body: bytes = b"body", *, keys: str = "", properties: bytes | None = None, **fields: Any) -> int:
        """Append one message; its physical offset."""
        queue = (topic, fields.get("queue_id", 0))
        made = Record(
            topic,
            body,
            queue_offset=self.offsets.get(queue, 0),
            store_timestamp=fields.pop("store_timestamp", 1640995200000 + 10_000 * len(self.physical)),
            properties=encode_properties({"KEYS": keys or f"k{len(self.physical)}"}) if properties is None else properties,
            **fields,
        )
        size = len(encode(made))
        room = FILE_SIZE - self.position % FILE_SIZE
        if size + 8 > room:
            self._write(blank(room))
            self.position += room - 8
        at = self.position
        self._write(encode(replace(made, physical_offset=at)))
        self.offsets[queue] = self.offsets.get(queue, 0) + 1
        self.physical.append(at)
        return at

    def _write(self, raw: bytes) -> None:
        path = self.file(self.position // FILE_SIZE)
        if not path.exists():
            path.write_bytes(bytes(FILE_SIZE))
        with path.open("r+b") as file:
            file.seek(self.position % FILE_SIZE)
            file.write(raw)
        self.position += len(raw)

    def file(self, number: int) -> Path:
        return self.root / "commitlog" / f"{FILE_SIZE * number:020d}"

    def change(self, physical: int, raw: bytes) -> None:
        with self.file(physical // FILE_SIZE).open("r+b") as file:
            file.seek(physical % FILE_SIZE)
            file.write(raw)

    def queue_file(self, topic: str, rows: Sequence[tuple[int, int, int]], start: int = 0, *, queue_id: int = 0, size: int = 200) -> Path:
        path = self.root / "consumequeue" / topic / str(queue_id) / f"{start:020d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.array(list(rows), ENTRY).tobytes().ljust(size, b"\0"))
        return path

    def recovered(self, version: str = "4.9.3", *, unclean: bool = False, **settings: Any) -> RecoveredView:
        config = {"commit_log_file_size": FILE_SIZE, "consume_queue_file_size": 200, "max_hash_slot_num": 10, "max_index_num": 40}
        store = RocketMQStore(self.root, config=BrokerConfig(**{**config, **settings}))
        with unchanged(self.root):
            return recover(store, version, unclean=unclean)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "store")


def entries_of(view: RecoveredView, topic: str = "T", queue_id: int = 0) -> list[int]:
    queue = view.queue(topic, queue_id)
    return [int(entry["physical_offset"]) for entry in queue.entries(queue.min_offset, queue.max_offset)]


def sizes_of(written: Written) -> dict[int, int]:
    logs = {offset: written.file(offset // FILE_SIZE).read_bytes()[offset % FILE_SIZE :] for offset in written.physical}
    return {offset: int.from_bytes(raw[:4], "big") for offset, raw in logs.items()}


def test_4_9_lists_at_start_what_no_queue_lists(written: Written) -> None:
    for _ in range(20):
        written.put()
    view = written.recovered()
    assert entries_of(view) == written.physical
    assert [file.index_count for file in view.index_files()] == [21]


def test_5_3_lists_nothing_at_start_unless_told_to(written: Written) -> None:
    for _ in range(20):
        written.put()
    sizes = sizes_of(written)
    written.queue_file("T", [(offset, sizes[offset], 0) for offset in written.physical[:5]])
    assert entries_of(written.recovered("5.3.3"))[:5] == written.physical[:5]
    # the record at which the queues end is skipped, later ones move down by one
    assert entries_of(written.recovered("5.3.3")) == written.physical[:5] + written.physical[6:]
    assert entries_of(written.recovered("5.3.3", unclean=True)) == written.physical
    (written.root / "consumequeue" / "T" / "0" / f"{0:020d}").unlink()
    assert entries_of(written.recovered("5.3.3", recheck_reput_offset_from_cq=True)) == written.physical


def test_the_log_ends_at_a_body_that_does_not_fit_its_crc(written: Written) -> None:
    for _ in range(20):
        written.put()
    written.change(written.physical[15] + 88, b"x")
    for version in ("4.9.3", "5.3.3"):
        view = written.recovered(version, unclean=True)
        assert view.log_range() == (0, written.physical[15])
        assert view.notes[-1].startswith(f"the log is cut at {written.physical[15]}")
        whole = written.recovered(version, unclean=True, check_crc_on_recover=False)
        assert whole.log_range() == (0, written.position)
        assert whole.notes == ()


def test_of_fewer_than_three_files_each_is_read_after_a_clean_exit(written: Written) -> None:
    while written.position < FILE_SIZE:
        written.put()
    assert not written.file(2).exists()
    written.change(written.physical[1] + 88, b"x")
    assert written.recovered().log_range() == (0, written.physical[1])


def test_damage_before_the_last_three_files_goes_unnoticed_after_a_clean_exit(written: Written) -> None:
    for _ in range(40):
        written.put()
    assert written.position > 4 * FILE_SIZE
    written.change(written.physical[1] + 88, b"x")
    assert written.recovered().log_range() == (0, written.position)
    assert written.recovered(unclean=True).log_range() == (0, written.physical[1])


def test_dispatch_of_4_9_skips_the_rest_of_a_file_behind_a_record_that_it_cannot_take(written: Written) -> None:
    for _ in range(40):
        written.put()
    bad = written.physical[2]
    written.change(bad + 4, b"\0\0\0\0")
    view = written.recovered()
    assert entries_of(view) == written.physical[:2] + [offset for offset in written.physical if offset >= FILE_SIZE]
    assert view.notes == (f"dispatch skips {FILE_SIZE - bad} bytes from {bad} on: the broker cannot accept the bytes there",)


def test_dispatch_of_4_9_reads_on_behind_lengths_that_do_not_add_up(written: Written) -> None:
    for _ in range(40):
        written.put()
    bad = written.physical[2]
    size = sizes_of(written)[bad]
    written.change(bad, (size + 1).to_bytes(4, "big"))
    view = written.recovered()
    # what it counts is one byte ahead of what it reads, so that the next file is read from its second byte on
    inside = [offset for offset in written.physical if bad < offset < FILE_SIZE]
    assert entries_of(view)[: 2 + len(inside)] == written.physical[:2] + inside


def test_dispatch_of_4_9_reads_properties_of_a_negative_length_as_none(written: Written) -> None:
    for _ in range(40):
        written.put()
    bad = written.physical[2]
    end = bad + sizes_of(written)[bad]
    text = len(encode_properties({"KEYS": "k2"}))
    written.change(end - text - 2, b"\xff\xf0" + written.file(0).read_bytes()[end:])
    # the next record is read where the properties began, and counted at its old place
    inside = [offset for offset in written.physical if bad < offset < FILE_SIZE]
    assert entries_of(written.recovered())[: 2 + len(inside)] == written.physical[:2] + inside


def test_4_9_corrects_a_minimum_again_when_dispatch_has_caught_up(written: Written) -> None:
    for _ in range(20):
        written.put()
    sizes = sizes_of(written)
    written.queue_file("T", [(0, sizes[0], 0)])
    written.file(0).unlink()
    assert written.recovered().queue("T", 0).min_offset == 1  # behind the entry whose record is gone


def test_an_index_file_made_anew_has_the_default_size_of_the_broker(written: Written) -> None:
    written.put()
    for version in ("4.9.3", "5.3.3"):
        made = written.recovered(version, max_hash_slot_num=None, max_index_num=None, unclean=True).index_files()
        assert [(file.slot_count, file.positions) for file in made] == [(5_000_000, 20_000_000)]


def test_without_a_commit_log_all_queues_go(written: Written) -> None:
    written.queue_file("T", [(0, 100, 0)])
    for version in ("4.9.3", "5.3.3"):
        view = written.recovered(version)
        assert (view.log_range(), view.queues(), view.index_files()) == ((0, 0), [], [])
        assert view.notes == ("there is no commit log, so all consume queues are deleted",)


def test_without_any_file_nothing_is_there_and_nothing_is_lost(written: Written) -> None:
    for version in ("4.9.3", "5.3.3"):
        view = written.recovered(version)
        assert (view.log_range(), view.queues(), view.notes) == ((0, 0), [], ())


def test_the_same_is_recovered_if_a_thread_parses_ahead_and_pages_are_released(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(40):
        written.put()
    monkeypatch.setattr(broker_recovery, "_WORTH_A_THREAD", 0)
    monkeypatch.setattr(broker_recovery, "_DROP", 0)
    monkeypatch.setattr(broker_parser, "FIRST", 1)
    for version, unclean in (("4.9.3", False), ("4.9.3", True), ("5.3.3", True)):
        assert entries_of(written.recovered(version, unclean=unclean)) == written.physical


def test_without_an_index_the_queues_are_recovered_all_the_same(written: Written) -> None:
    for _ in range(4):
        written.put()
    view = written.recovered(unclean=True, message_index_enable=False)
    assert (entries_of(view), view.index_files()) == (written.physical, [])


def test_an_empty_file_made_ahead_goes(written: Written) -> None:
    for _ in range(10):
        written.put()
    number = written.position // FILE_SIZE + 1
    written.file(number).write_bytes(bytes(FILE_SIZE))
    view = written.recovered()
    assert len(view.log_files()) == number
    assert view.notes == ()


def test_entries_of_records_behind_the_truncation_point_go(written: Written) -> None:
    for _ in range(8):
        written.put()
    sizes = sizes_of(written)
    written.queue_file("T", [(offset, sizes[offset], 0) for offset in written.physical])
    written.change(written.physical[5] + 88, b"x")
    for version in ("4.9.3", "5.3.3"):
        for unclean in (False, True):
            view = written.recovered(version, unclean=unclean)
            assert entries_of(view) == written.physical[:5]


IPV6 = {"sys_flag": 0b11 << 4, "born_host": "[2001:db8::1]:1", "store_host": "[2001:db8::2]:2"}


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
@pytest.mark.parametrize("hosts", [{}, IPV6], ids=["IPv4", "IPv6"])
def test_recovery_starts_at_the_newest_file_that_the_checkpoint_covers(written: Written, hosts: Row, version: str) -> None:
    for _ in range(40):
        written.put(**hosts)
    covered = next(number for number, offset in enumerate(written.physical) if offset == 2 * FILE_SIZE)
    flushed = 1640995200000 + 10_000 * covered + 3000
    checkpoint = Checkpoint(physic=flushed, logics=flushed, index=2**50)
    (written.root / "checkpoint").write_bytes(encode_checkpoint(checkpoint))
    view = written.recovered(version, unclean=True)
    # queues without files begin where recovery begins
    assert entries_of(view) == written.physical[covered:]
    assert view.queue("T", 0).min_offset == covered
    assert entries_of(written.recovered(version, unclean=True, message_index_safe=True)) == written.physical[covered:]
    (written.root / "checkpoint").write_bytes(encode_checkpoint(replace(checkpoint, index=1)))
    assert entries_of(written.recovered(version, unclean=True, message_index_safe=True)) == written.physical


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_recovery_does_not_start_at_a_record_without_a_store_time(written: Written, version: str) -> None:
    for number in range(40):
        written.put(**({} if number < 20 else {"store_timestamp": 0}))
    (written.root / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(physic=2**50, logics=2**50, index=2**50)))
    covered = [n for n, offset in enumerate(written.physical) if offset % FILE_SIZE == 0]
    start = max(number for number in covered if number < 20)
    assert start < max(covered)
    assert written.recovered(version, unclean=True).queue("T", 0).min_offset == start


def test_4_9_forgets_delivery_times_while_it_recovers_from_an_unclean_exit(written: Written) -> None:
    properties = encode_properties({"DELAY": "3", "TAGS": "TagA"})
    written.put("SCHEDULE_TOPIC_XXXX", queue_id=2, properties=properties, store_timestamp=1640995200000)
    codes = {}
    for version, unclean in (("4.9.3", False), ("4.9.3", True), ("5.3.3", True)):
        [entry] = written.recovered(version, unclean=unclean).queue("SCHEDULE_TOPIC_XXXX", 2).entries(0, 1)
        codes[version, unclean] = int(entry["tags_code"])
    assert codes == {("4.9.3", False): 1640995210000, ("4.9.3", True): 2598919, ("5.3.3", True): 1640995210000}


@pytest.mark.parametrize(
    ("level", "taken"),
    [("3", True), ("+3", True), ("2147483647", True), ("2147483648", False), ("99999999999", False), ("x", False), (" 3", False)],
)
def test_a_delay_level_that_java_cannot_read_ends_the_log(written: Written, level: str, taken: bool) -> None:
    first = written.put()
    written.put("SCHEDULE_TOPIC_XXXX", properties=encode_properties({"DELAY": level}))
    end = written.position if taken else first + sizes_of(written)[first]
    assert written.recovered(unclean=True).log_range() == (0, end)


def test_4_9_does_not_know_records_of_version_2(written: Written) -> None:
    first = written.put()
    written.put("long" * 40, version=2)
    assert written.recovered("5.3.3", unclean=True).log_range() == (0, written.position)
    assert written.recovered("4.9.3", unclean=True).log_range() == (0, first + sizes_of(written)[first])


def test_records_whose_own_offset_is_wrong_are_taken_at_their_word(written: Written) -> None:
    for _ in range(4):
        written.put()
    written.change(written.physical[2] + 28, (5000).to_bytes(8, "big"))
    view = written.recovered(unclean=True)
    assert view.log_range() == (0, written.position)
    # the next one ends before 5000 plus its size, so it counts as a duplicate
    assert entries_of(view) == [written.physical[0], written.physical[1], 5000]


def test_forced_property_checksums_replace_those_of_bodies(written: Written) -> None:
    first = written.put()
    end = first + sizes_of(written)[first]
    raw = encode(Record("T", b"y", physical_offset=end, properties=b"a\x01b\x02__CRC32#\x010000000000\x02"))
    digits = f"{zlib.crc32(raw[:-20]) & 0x7FFFFFFF:010d}"[::-1].encode()
    written.change(end, raw[:-11] + digits + b"\x02")
    assert written.recovered("5.3.3", unclean=True).log_range() == (0, end + len(raw))
    assert written.recovered("5.3.3", unclean=True, force_verify_prop_crc=True).log_range() == (0, 0)
    (written.root / "commitlog" / f"{0:020d}").write_bytes((raw[:-11] + digits + b"\x02").ljust(FILE_SIZE, b"\0"))
    assert written.recovered("5.3.3", unclean=True, force_verify_prop_crc=True).log_range() == (0, len(raw))


# stores on which a broker does not start


def test_a_log_file_of_another_length_is_refused(written: Written) -> None:
    for _ in range(20):
        written.put()
    written.file(0).write_bytes(written.file(0).read_bytes()[:-1])
    for version in ("4.9.3", "5.3.3"):
        with pytest.raises(RefusedError, match=r"commitlog/0{20} has 1023 bytes"):
            written.recovered(version)


def test_an_empty_last_file_is_refused_by_4_9_only(written: Written) -> None:
    for _ in range(10):
        written.put()
    written.file(written.position // FILE_SIZE + 1).touch()
    with pytest.raises(RefusedError):
        written.recovered("4.9.3")
    assert written.recovered("5.3.3").log_range() == (0, written.position)


def test_a_queue_file_of_another_length_is_refused(written: Written) -> None:
    written.put()
    written.queue_file("T", [(0, 100, 0)], size=180)
    with pytest.raises(RefusedError, match="consumequeue/T/0"):
        written.recovered()


def test_without_a_configuration_the_size_of_most_queues_is_that_of_all(written: Written) -> None:
    written.put()
    for topic, size in (("T", 200), ("U", 200), ("V", 400)):
        written.queue_file(topic, [(0, 100, 0)], size=size)
    with pytest.raises(RefusedError) as refused:
        written.recovered(consume_queue_file_size=None)
    assert [reason.split(" ")[0] for reason in refused.value.reasons] == [f"consumequeue/V/0/{0:020d}"]


def test_4_9_waits_for_ever_for_a_log_file_that_is_missing(written: Written) -> None:
    for _ in range(40):
        written.put()
    written.file(1).unlink()
    with pytest.raises(RefusedError, match="no log file holds 1024"):
        written.recovered("4.9.3")
    assert written.recovered("5.3.3").log_range() == (0, written.position)
    for number in range(2, written.position // FILE_SIZE + 1):
        written.file(number).write_bytes(bytes(FILE_SIZE))  # made ahead, as that before them was
    with pytest.raises(RefusedError, match="no log file holds 1024"):
        written.recovered("4.9.3")
    rechecked = written.recovered("5.3.3", recheck_reput_offset_from_cq=True)
    assert entries_of(rechecked) == [offset for offset in written.physical if offset < FILE_SIZE]


def test_4_9_asks_for_as_much_memory_as_a_size_field_says(written: Written) -> None:
    for _ in range(10):
        written.put()
    written.change(written.physical[3], (0x7FFFFFF0).to_bytes(4, "big"))
    with pytest.raises(RefusedError, match="2147483632 bytes"):
        written.recovered("4.9.3", unclean=True)
    assert written.recovered("5.3.3", unclean=True).log_range() == (0, written.physical[3])


def test_4_9_with_multi_dispatch_stumbles_over_a_record_without_properties(written: Written) -> None:
    written.put()
    assert entries_of(written.recovered("4.9.3", unclean=True, enable_multi_dispatch=True)) == written.physical
    written.put(properties=b"")
    with pytest.raises(RefusedError, match="has no properties"):
        written.recovered("4.9.3", unclean=True, enable_multi_dispatch=True)
    assert entries_of(written.recovered("5.3.3", unclean=True, enable_multi_dispatch=True)) == written.physical


# what the view is asked for


def test_records_behind_the_truncation_point_are_not_shown(written: Written) -> None:
    for _ in range(10):
        written.put()
    written.change(written.physical[7] + 88, b"x")
    view = written.recovered(unclean=True)
    shown = [offset for batch in view.batches(["physical_offset"]) for offset in batch.column(0).to_pylist()]
    assert shown == written.physical[:7]
    assert view.record(written.physical[6]) is not None
    assert view.record(written.physical[8]) is None


def test_a_queue_that_is_not_there_is_said_to_be_not_there(written: Written) -> None:
    written.put()
    with pytest.raises(NotFoundError, match="has no queue 7"):
        written.recovered().queue("T", 7)


def test_more_queues_than_a_process_may_have_files_open(written: Written) -> None:
    for number in range(300):
        written.put(queue_id=number)
    sizes = sizes_of(written)
    for number, offset in enumerate(written.physical):
        written.queue_file("T", [(offset, sizes[offset], 0)], queue_id=number)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what other tests of this process have let go of
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, hard))
    try:
        view = written.recovered(unclean=True)
        assert [int(queue.entries(0, 1)["physical_offset"][0]) for queue in view.queues()] == written.physical
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("version", "flushed", "logics", "first"),
    [
        ("5.5.0", 600_000, 0, 9),
        ("5.5.0", 65_536, 0, 1),
        ("5.5.0", 65_535, 1_640_995_300_000, 0),
        ("5.5.0", 0, 1_640_995_300_000, 9),  # the time alone, without that of the log
        ("5.3.3", 600_000, 0, 0),
        ("5.4.0", 600_000, 0, 0),
    ],
)
def test_5_5_begins_an_unclean_recovery_where_the_checkpoint_says_that_the_queues_are_flushed(
    version: str, flushed: int, logics: int, first: int
) -> None:
    case = case_named("5.5.0/a-clean")
    store = mqstore.open(opened(case), config=case.config)
    point = replace(store.checkpoint, logics_physical_offset=flushed, logics=logics)
    of = profile(version)
    recovery = Recovery(
        store.directory, store.log, store.index_files(), point, store.config, store.rules(version), of.rules, unclean=True, of=of
    )
    recovery.touched_queues = set()
    recovery.load()
    begin = recovery.recovered_from
    assert begin == store.log.files[first].start
    rows = [row for batch in store.view().batches(["physical_offset", "topic", "queue_id"]) for row in batch.to_pylist()]
    assert recovery.touched_queues == {(row["topic"], row["queue_id"]) for row in rows if row["physical_offset"] >= begin}


def test_5_5_begins_after_a_clean_exit_at_the_file_whose_first_record_is_where_the_queues_end() -> None:
    case = case_named("5.5.0/a-clean")
    store = mqstore.open(opened(case), config=case.config)
    of = profile("5.5.0")
    for listed, first in ((65_536, 1), (65_535, 0)):
        arguments = (store.directory, store.log, store.index_files(), store.checkpoint, store.config, store.rules("5.5.0"), of.rules)
        recovery = broker_recovery.RocksRecovery((), listed, *arguments, unclean=False, of=of)
        recovery.load()
        assert recovery.recovered_from == store.log.files[first].start


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_5_4_does_not_begin_at_a_file_whose_first_record_it_cannot_accept(written: Written, version: str) -> None:
    for _ in range(40):
        written.put()
    (written.root / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(physic=2**50, logics=2**50, index=2**50)))
    last = max(offset for offset in written.physical if offset % FILE_SIZE == 0)
    written.change(last + 88, b"x")
    view = written.recovered(version, unclean=True)
    begin = last - FILE_SIZE if version == "5.5.0" else last
    listed = [entry for queue in view.queues() for entry in entries_of(view, queue.topic, queue.queue_id)]
    assert listed == [offset for offset in written.physical if begin <= offset < last]


@pytest.mark.parametrize("name", ["c-rocksdb-queues-clean", "i-rocksdb-kill9", "j-rocksdb-rolled"])
def test_queues_of_a_database_are_what_the_broker_holds(name: str) -> None:
    case = case_named(f"5.5.0/{name}")
    view = recovered(case)
    for row in queues(case):
        queue = view.queue(row["topic"], row["queue_id"])
        assert [list(entry) for entry in queue.entries(queue.min_offset, queue.max_offset).tolist()] == row["entries"]


def test_5_0_to_5_4_do_not_start_on_a_queue_whose_last_file_has_no_entry_and_others_do(written: Written) -> None:
    rows = [(written.put(), 100, 0) for _ in range(10)]
    written.queue_file("T", rows)
    last = written.queue_file("T", [], 200)
    for version in ("5.3.3", "5.4.0"):
        with pytest.raises(RefusedError, match=rf"the last file of queue 0 of topic 'T' has no entry \(consumequeue/T/0/{last.name}\)"):
            written.recovered(version)
    for version in ("4.9.3", "5.5.0"):
        assert len(entries_of(written.recovered(version))) == 10


def test_5_4_cuts_the_queues_at_the_end_of_the_log_if_they_list_it_after_the_dispatch(written: Written) -> None:
    """Seed 61061 of `scripts/prove --kind diagnosis-rocketmq`, real 5.5.0: the next file of a full queue then has one entry, of zeros."""
    others = [(written.put("U"), 100, 0) for _ in range(10)]
    written.offsets["T", 0] = 5
    written.put()
    written.put("U")
    written.queue_file("T", others)
    with pytest.raises(RefusedError, match="the last file of queue 0 of topic 'T' has no entry"):
        written.recovered("5.3.3", unclean=True)
    for version in ("5.4.0", "5.5.0"):
        assert entries_of(written.recovered(version, unclean=True)) == [at for at, _, _ in others] + [0]
