"""Batch consume queues of 5.x."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import case_named, opened, queues

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.format.batch_consume_queue import BatchQueueReader
from mqstore.rocketmq.format.consume_queue import queues as queue_directories


def unit(physical: int, base: int, count: int, size: int = 100) -> bytes:
    return struct.pack(">qiqqqhii", physical, size, 0, 1640995200000, base, count, -1, 0)


def reader(root: Path, *files: bytes) -> BatchQueueReader:
    place = root / "batchconsumequeue" / "T" / "0"
    place.mkdir(parents=True)
    for number, raw in enumerate(files):
        (place / f"{number * 184:020d}").write_bytes(raw.ljust(184, b"\0"))
    return BatchQueueReader(ReadOnlyDirectory(root), "T", 0)


def test_bounds_come_from_the_bases(tmp_path: Path) -> None:
    found = reader(tmp_path, unit(0, 5, 3) + unit(100, 8, 1) + unit(200, 9, 4) + unit(300, 13, 2), unit(400, 15, 5))
    assert (found.min_offset, found.max_offset, found.max_physical_offset, found.unit_count) == (5, 20, 400, 5)
    assert found.findings == ()


@pytest.mark.parametrize(
    ("start", "stop", "bases"), [(0, 5, []), (5, 6, [5]), (7, 9, [5, 8]), (12, 16, [9, 13, 15]), (19, 20, [15]), (20, 30, [])]
)
def test_the_units_that_hold_a_range_are_found(tmp_path: Path, start: int, stop: int, bases: list[int]) -> None:
    found = reader(tmp_path, unit(0, 5, 3) + unit(100, 8, 1) + unit(200, 9, 4) + unit(300, 13, 2), unit(400, 15, 5))
    assert found.entries(start, stop)["base_offset"].tolist() == bases


def test_an_empty_queue_has_no_units(tmp_path: Path) -> None:
    found = reader(tmp_path, b"")
    assert (found.min_offset, found.max_offset, found.max_physical_offset, found.unit_count) == (0, 0, -1, 0)


def test_gaps_repeats_and_impossible_units_are_findings(tmp_path: Path) -> None:
    found = reader(tmp_path, unit(0, 0, 2) + unit(100, 3, 1) + unit(200, 3, 1) + unit(300, 4, -1), bytes(46) + unit(400, 4, 1))
    assert [(item.kind, item.offset) for item in found.findings] == [
        (Kind.BAD_QUEUE_ENTRY, 138),
        (Kind.QUEUE_GAP, 46),
        (Kind.QUEUE_ORDER, 92),
        (Kind.QUEUE_GAP, 0),
    ]


@given(st.binary(max_size=368), st.integers(-(2**63), 2**63 - 1))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, raw: bytes, at: int) -> None:
    found = reader(tmp_path_factory.mktemp("b"), raw[:184], raw[184:])
    assert isinstance(found.findings, tuple)
    assert len(found.entries(at, at + 5)) <= found.unit_count


def test_the_batch_queues_of_a_real_store() -> None:
    case = case_named("5.3.3/o-batch-queue")
    directory = ReadOnlyDirectory(opened(case))
    wanted = {(row["topic"], row["queue_id"]): row for row in queues(case) if row.get("batch")}
    assert set(queue_directories(directory, "batchconsumequeue")) == set(wanted)
    for (topic, queue_id), row in wanted.items():
        found = BatchQueueReader(directory, topic, queue_id)
        assert (found.min_offset, found.max_offset, found.max_physical_offset) == (
            row["min_offset"],
            row["max_offset"],
            row["max_physic_offset"],
        )
        names = ["physical_offset", "size", "tags_code", "base_offset", "count"]
        assert [list(entry) for entry in found.entries(found.min_offset, found.max_offset)[names].tolist()] == row["entries"]
        assert found.findings == ()


def test_the_messages_of_the_valid_units_are_counted() -> None:
    case = case_named("5.3.3/o-batch-queue")
    store = mqstore.open(opened(case), config=case.config)
    counted = {(queue.topic, queue.queue_id): queue.listed for queue in store.all_queues() if queue.batch}
    assert counted
    for row in queues(case):
        if row["max_physic_offset"] >= 0 and (row["topic"], row["queue_id"]) in counted:
            assert counted[row["topic"], row["queue_id"]] == row["max_offset"] - row["min_offset"]
    written = {(queue.topic, queue.queue_id): sum(len(units) for _, units in queue.written) for queue in store.all_queues() if queue.batch}
    assert all(written[name] > 0 for name, count in counted.items() if count)
