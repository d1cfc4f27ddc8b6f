"""Writing extended consume queues."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broker_records import golden
from support.golden import case_named, opened, queues

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.recorder import RecordedWrites, Recorder, Sync, SyncDirectory
from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, dispatch_request
from mqstore.rocketmq.format.consume_queue_ext import ConsumeQueueExt, ExtUnit, address_of, is_address
from mqstore.rocketmq.live.consume_queue_ext_writer import ExtQueueWriter, pack

CASE = case_named("4.9.3/n-ext-multidispatch")


def writer(root: Path, size: int = 100, recorder: Recorder | None = None) -> ExtQueueWriter:
    return ExtQueueWriter(DurableDirectory(root, recorder=recorder), ReadOnlyDirectory(root), "T", 0, file_size=size)


def units(root: Path, size: int = 100) -> list[ExtUnit]:
    return [found for found in ConsumeQueueExt(ReadOnlyDirectory(root), "T", 0, file_size=size).scan() if isinstance(found, ExtUnit)]


def names(root: Path) -> list[int]:
    return sorted(int(path.name) for path in (root / "consumequeue_ext" / "T" / "0").iterdir())


def ext_queues() -> list[tuple[str, int]]:
    place = opened(CASE) / "consumequeue_ext"
    return sorted((path.parent.name, int(path.name)) for path in place.glob("*/*"))


@pytest.mark.parametrize(("topic", "queue_id"), ext_queues())
def test_the_files_of_a_broker_come_out_byte_for_byte(topic: str, queue_id: int, tmp_path: Path) -> None:
    """From the records alone: tags codes as dispatched, in queue order. The addresses are those in the broker's entries."""
    writing = ExtQueueWriter(DurableDirectory(tmp_path), ReadOnlyDirectory(tmp_path), topic, queue_id, file_size=300)
    rules = DispatchRules(multi_dispatch=True, lmq=True)
    found = [each for each in golden(CASE.id) if (each.topic, each.queue_id) == (topic, queue_id)]
    addresses = [writing.append(dispatch_request(each, rules).tags_code, each.store_timestamp) for each in found]
    (row,) = [row for row in queues(CASE) if (row["topic"], row["queue_id"]) == (topic, queue_id)]
    assert addresses == [tags_code for _, _, tags_code in row["entries"]]
    theirs = opened(CASE) / writing.relative
    assert len(addresses) > 20
    assert {path.name: path.read_bytes() for path in (tmp_path / writing.relative).iterdir()} == {
        path.name: path.read_bytes() for path in theirs.iterdir()
    }


def test_a_unit_that_does_not_fit_with_four_bytes_more_begins_a_file(tmp_path: Path) -> None:
    writing = writer(tmp_path, 68)
    assert [writing.append(n, n, bytes(12)) for n in range(3)] == [address_of(0), address_of(32), address_of(68)]
    first = (tmp_path / writing.files[0]).read_bytes()
    assert first == pack(0, 0, bytes(12)) + pack(1, 1, bytes(12)) + b"\xff\xff\0\0"
    assert writing.end == 100


@pytest.mark.parametrize(("size", "bitmap"), [(100, 77), (1 << 20, 32_748)])
def test_a_unit_larger_than_a_file_or_a_unit_can_be_has_no_place(size: int, bitmap: int, tmp_path: Path) -> None:
    writing = writer(tmp_path, size)
    assert writing.append(1, 2, bytes(bitmap)) is None
    assert not (tmp_path / "consumequeue_ext").exists()
    assert writing.append(1, 2, bytes(bitmap - 1)) == address_of(0)


def test_no_address_reads_as_a_hash(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    last = -(1 << 31) - 1 + (1 << 63)
    writing.end = last - 19
    assert writing.append(1, 2) is None
    assert is_address(address_of(last))
    assert not is_address(address_of(last + 1))


def test_recovery_finds_the_end_of_the_last_unit_and_goes_on_there(tmp_path: Path) -> None:
    before = writer(tmp_path)
    for n in range(6):
        before.append(n, n)
    after = writer(tmp_path)
    after.recover()
    assert (after.end, after.files) == (before.end, before.files)
    assert after.append(6, 6) == address_of(before.end)
    assert [unit.tags_code for unit in units(tmp_path)] == list(range(7))


def test_recovery_of_a_queue_without_files_begins_at_zero(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    writing.recover()
    assert (writing.end, writing.files) == (0, ())


def test_a_full_file_without_its_mark_is_ended_again(tmp_path: Path) -> None:
    before = writer(tmp_path, 44)
    before.append(0, 0)
    before.append(1, 1)
    after = writer(tmp_path, 44)
    after.recover()
    assert after.end == 40
    assert after.append(2, 2) == address_of(44)
    assert [unit.tags_code for unit in units(tmp_path, 44)] == [0, 1, 2]


def test_units_after_the_last_valid_address_are_overwritten(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    addresses = [writing.append(n, n) for n in range(10)]
    assert names(tmp_path) == [0, 100, 200]
    assert addresses[3] == address_of(60)
    writing.truncate_by_max(address_of(20))
    assert (names(tmp_path), writing.end) == ([0], 40)
    assert writing.append(99, 99) == address_of(40)
    assert [unit.tags_code for unit in units(tmp_path)] == [0, 1, 99, 3]


@pytest.mark.parametrize("tags_code", [0, 2598919, -(1 << 31), address_of(30), address_of(5000)])
def test_what_leads_to_no_unit_truncates_nothing(tags_code: int, tmp_path: Path) -> None:
    writing = writer(tmp_path)
    for n in range(10):
        writing.append(n, n)
    end = writing.end
    writing.truncate_by_max(tags_code)
    assert (names(tmp_path), writing.end) == ([0, 100, 200], end)


def test_files_before_the_first_address_that_counts_are_removed_but_for_the_one_next_to_it(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    for n in range(10):
        writing.append(n, n)
    assert writing.truncate_by_min(2598919) == 0
    assert writing.truncate_by_min(address_of(100)) == 0
    assert writing.truncate_by_min(address_of(200)) == 1
    assert names(tmp_path) == [100, 200]
    assert writing.append(10, 10) == address_of(240)


def test_a_queue_that_was_destroyed_begins_at_zero_again(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    for n in range(6):
        writing.append(n, n)
    assert len(units(tmp_path)) == 6
    writing.destroy()
    assert names(tmp_path) == []
    assert writing.append(7, 7) == address_of(0)
    assert [unit.tags_code for unit in units(tmp_path)] == [7]


def test_a_flush_syncs_what_was_written_or_made_since_the_last_one(tmp_path: Path) -> None:
    recorder = RecordedWrites()
    writing = writer(tmp_path, recorder=recorder)

    def synced() -> list[str]:
        found = [operation.path for operation in recorder.operations if isinstance(operation, Sync | SyncDirectory)]
        recorder.operations.clear()
        return found

    place = "consumequeue_ext/T/0"
    for n in range(5):
        writing.append(n, n)
    writing.flush()
    assert synced() == [f"{place}/{0:020d}", f"{place}/{100:020d}", place, "consumequeue_ext/T", "consumequeue_ext", ""]
    writing.append(5, 5)
    writing.flush()
    writing.flush()
    assert synced() == [f"{place}/{100:020d}"]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30), st.integers(85, 300))
@settings(max_examples=60, deadline=None)
def test_every_address_leads_to_its_unit(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], file_size: int) -> None:
    root = tmp_path_factory.mktemp("ext")
    writing = writer(root, file_size)
    addresses = [writing.append(n, 1000 + n, bytes(size)) for n, size in enumerate(sizes)]
    reading = ConsumeQueueExt(ReadOnlyDirectory(root), "T", 0, file_size=file_size)
    for n, (address, size) in enumerate(zip(addresses, sizes, strict=True)):
        assert address is not None
        assert reading.unit(address) == ExtUnit(address, 20 + size, n, 1000 + n, bytes(size))
    again = writer(root, file_size)
    again.recover()
    assert again.end == writing.end
