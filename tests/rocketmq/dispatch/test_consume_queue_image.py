"""Consume queues in memory: append, recovery, truncation and minimum, rule by rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.golden import PLAIN, GoldenCase, case_id, opened, queues

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.dispatch.base_queue_image import Source
from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage, QueueImage
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.format.batch_consume_queue import UNIT
from mqstore.rocketmq.format.consume_queue import ENTRY

Entry = tuple[int, int, int]
Writer = Callable[[int, dict[int, np.ndarray]], list[tuple[int, Source]]]


def run_of(entries: Sequence[Entry], offsets: Sequence[int], *, plain: bool | None = None) -> QueueRun:
    rows = np.array(list(entries), ENTRY)
    found = np.array(offsets, np.int64)
    consecutive = bool((np.diff(found) == 1).all())
    return QueueRun("T", 0, found, rows.view(np.uint8), consecutive if plain is None else plain)


def units_of(units: Sequence[tuple[int, int, int, int]]) -> QueueRun:
    """Units given as (physical offset, size, base offset, count)."""
    rows = np.array([(physical, size, 7, 1000, base, count, -1, 0) for physical, size, base, count in units], UNIT)
    return QueueRun("T", 0, np.array([unit[2] for unit in units], np.int64), rows.view(np.uint8), False, batch=True)


def listed(queue: QueueImage) -> list[Entry]:
    rows = queue.entries(queue.min_offset, queue.max_offset)
    return [(int(row["physical_offset"]), int(row["size"]), int(row["tags_code"])) for row in rows]


def state(queue: QueueImage) -> tuple[int, int, int]:
    return queue.min_offset, queue.max_offset, queue.max_physical_offset


def images(queue: QueueImage | BatchQueueImage) -> list[tuple[int, bytes]]:
    return [(file.start, file.bytes().tobytes()) for file in queue.files]


@pytest.fixture
def on_disk(tmp_path: Path) -> Writer:
    """Writes queue files, each given as its rows, and returns them as a queue takes them."""

    def write(size: int, files: dict[int, np.ndarray]) -> list[tuple[int, Source]]:
        directory = ReadOnlyDirectory(tmp_path)
        for start, rows in files.items():
            (tmp_path / f"{start:020d}").write_bytes(rows.tobytes().ljust(size, b"\0"))
        return [(start, partial(directory.map, f"{start:020d}")) for start in sorted(files)]

    return write


def rows_of(*entries: Entry) -> np.ndarray:
    return np.array(list(entries), ENTRY)


# append


def test_the_first_append_of_a_queue_fills_the_entries_before_it_with_blanks() -> None:
    queue = QueueImage("T", 0, 200)
    queue.append(run_of([(123456, 200, 2598919), (123656, 201, -5)], [13, 14]))
    assert state(queue) == (13, 15, 123857)
    [(start, data)] = images(queue)
    blank = "00000000000000007fffffff0000000000000000"
    assert (start, data.hex()) == (
        200,
        3 * blank + "000000000001e240000000c8000000000027a807000000000001e308000000c9fffffffffffffffb",
    )


def test_a_record_that_is_already_listed_is_not_appended_again() -> None:
    queue = QueueImage("T", 0, 200)
    queue.append(run_of([(0, 100, 1), (100, 100, 2)], [0, 1]))
    queue.append(run_of([(0, 100, 1), (100, 100, 2), (200, 100, 3)], [0, 1, 2]))
    assert listed(queue) == [(0, 100, 1), (100, 100, 2), (200, 100, 3)]


def test_an_entry_below_the_end_of_the_queue_is_a_duplicate() -> None:
    queue = QueueImage("T", 0, 200)
    queue.append(run_of([(0, 100, 1), (100, 100, 2)], [0, 1]))
    queue.append(run_of([(300, 100, 9)], [1]))
    assert state(queue) == (0, 2, 200)


def test_an_entry_beyond_the_end_of_the_queue_is_appended_at_the_end() -> None:
    queue = QueueImage("T", 0, 200)
    queue.append(run_of([(0, 100, 1)], [0]))
    queue.append(run_of([(300, 100, 9), (400, 100, 10)], [5, 6]))
    assert listed(queue) == [(0, 100, 1), (300, 100, 9), (400, 100, 10)]


def test_queue_offset_0_is_appended_wherever_the_queue_ends() -> None:
    queue = QueueImage("T", 0, 200)
    queue.append(run_of([(0, 100, 1), (100, 100, 2)], [0, 1]))
    queue.append(run_of([(300, 100, 9), (400, 100, 10), (500, 100, 11), (600, 100, 12)], [0, 1, 2, 3]))
    assert listed(queue) == [(0, 100, 1), (100, 100, 2), (300, 100, 9), (600, 100, 12)]


def test_a_run_goes_on_in_the_next_file() -> None:
    queue = QueueImage("T", 0, 60)
    queue.append(run_of([(100 * k, 100, k) for k in range(8)], range(8)))
    assert [(start, len(data)) for start, data in images(queue)] == [(0, 60), (60, 60), (120, 40)]
    assert listed(queue) == [(100 * k, 100, k) for k in range(8)]


def test_a_negative_queue_offset_does_no_harm() -> None:
    queue = QueueImage("T", 0, 60)
    queue.append(run_of([(0, 100, 1), (100, 100, 2)], [-4, -(2**63)]))
    assert state(queue) == (0, -2, 200)
    assert [file.start for file in queue.files] == [-60]


def test_runs_are_appended_in_one_piece_as_they_are_entry_by_entry() -> None:
    rng = random.Random(7)
    for _ in range(200):
        whole, single = QueueImage("T", 0, 60), QueueImage("T", 0, 60)
        physical = 0
        for _ in range(rng.randrange(1, 6)):
            physical = max(0, physical - rng.choice([0, 0, 250]))
            count, first = rng.randrange(1, 9), rng.randrange(0, 12)
            entries = [(physical + 100 * k, 100, k) for k in range(count)]
            physical += 100 * count
            whole.append(run_of(entries, range(first, first + count)))
            for number, entry in enumerate(entries):
                single.append(run_of([entry], [first + number], plain=False))
        assert state(whole) == state(single)
        assert images(whole) == images(single)


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_the_entries_of_a_queue_make_the_same_queue_again(case: GoldenCase) -> None:
    for row in queues(case):
        entries = [tuple(entry) for entry in row["entries"]]
        if row.get("batch") or not entries or (0, 0x7FFFFFFF, 0) in entries:
            continue
        queue = QueueImage(row["topic"], row["queue_id"], 2000)
        queue.append(run_of(entries, range(row["min_offset"], row["max_offset"])))
        assert state(queue)[1:] == (row["max_offset"], entries[-1][0] + entries[-1][1])
        assert listed(queue)[-len(entries) :] == entries


# recovery


def test_recovery_ends_at_the_first_row_that_is_no_entry(on_disk: Writer) -> None:
    files = on_disk(80, {0: rows_of((0, 100, 1), (100, 100, 2), (200, 0, 3), (300, 100, 4))})
    queue = QueueImage("T", 0, 80, files)
    queue.recover()
    assert state(queue) == (0, 2, 200)


def test_recovery_looks_at_the_last_three_files_only(on_disk: Writer) -> None:
    whole = {40 * k: rows_of((200 * k, 100, 1), (200 * k + 100, 100, 2)) for k in range(4)}
    whole[0] = rows_of((0, 0, 0), (100, 100, 2))
    queue = QueueImage("T", 0, 40, on_disk(40, whole))
    queue.recover()
    assert state(queue) == (0, 8, 800)


def test_files_behind_a_hole_are_dropped(on_disk: Writer) -> None:
    files = on_disk(40, {0: rows_of((0, 100, 1)), 40: rows_of((200, 100, 3), (300, 100, 4))})
    queue = QueueImage("T", 0, 40, files)
    queue.recover()
    assert [file.start for file in queue.files] == [0]
    assert state(queue) == (0, 1, 100)


def test_a_queue_on_disk_that_is_appended_to_is_not_changed_on_disk(on_disk: Writer, tmp_path: Path) -> None:
    files = on_disk(80, {0: rows_of((0, 100, 1))})
    before = (tmp_path / f"{0:020d}").read_bytes()
    queue = QueueImage("T", 0, 80, files)
    queue.recover()
    queue.append(run_of([(100 * k, 100, k) for k in range(1, 9)], range(1, 9)))
    assert state(queue) == (0, 9, 900)
    assert [start for start, _ in images(queue)] == [0, 80, 160]
    assert (tmp_path / f"{0:020d}").read_bytes() == before


# truncation


def test_truncation_drops_the_entries_of_records_at_or_behind_the_offset() -> None:
    queue = QueueImage("T", 0, 60)
    queue.append(run_of([(100 * k, 100, k) for k in range(8)], range(8)))
    queue.truncate(450)
    assert state(queue) == (0, 5, 500)
    queue.truncate(300)
    assert state(queue) == (0, 3, 300)


def test_truncation_of_everything_leaves_no_file() -> None:
    queue = QueueImage("T", 0, 60)
    queue.append(run_of([(100, 100, 1)], [0]))
    queue.truncate(100)
    assert (queue.files, queue.max_physical_offset) == ([], 100)


def test_truncation_counts_the_first_row_of_an_empty_file(on_disk: Writer) -> None:
    queue = QueueImage("T", 0, 60, on_disk(60, {0: rows_of()}))
    queue.recover()
    assert queue.max_offset == 0
    queue.truncate(1000)
    assert queue.max_offset == 1


def test_a_queue_left_with_blanks_drops_what_is_dispatched_again() -> None:
    queue = QueueImage("T", 0, 200)
    queue.append(run_of([(5000, 100, 1)], [13]))
    queue.truncate(4000)
    assert state(queue) == (13, 13, 0x7FFFFFFF)
    queue.append(run_of([(4000, 100, 1)], [13]))
    assert state(queue) == (13, 13, 0x7FFFFFFF)


def test_truncation_finds_entries_behind_a_hole_that_was_filled_since(on_disk: Writer) -> None:
    rows = rows_of((0, 100, 1), (0, 0, 0), (200, 100, 3), (300, 100, 4))
    queue = QueueImage("T", 0, 80, on_disk(80, {0: rows}))
    queue.recover()
    queue.append(run_of([(100, 100, 2)], [1]))
    assert queue.max_offset == 2
    queue.truncate(300)
    assert state(queue) == (0, 3, 300)


# minimum


@pytest.mark.parametrize(("log_min", "wanted"), [(0, 10), (1, 13), (123656, 14), (200000, 13)])
def test_4_9_moves_the_minimum_to_the_first_entry_that_qualifies(log_min: int, wanted: int) -> None:
    queue = QueueImage("T", 0, 200)
    queue.append(run_of([(123456, 200, 7), (123656, 201, 8)], [13, 14]))
    queue.correct_min(log_min, "4.9.3")
    assert queue.min_offset == wanted


@pytest.mark.parametrize(("log_min", "wanted"), [(0, 13), (123656, 14), (123657, 15), (200000, 15)])
def test_5_3_empties_a_queue_whose_last_record_is_gone(log_min: int, wanted: int) -> None:
    queue = QueueImage("T", 0, 200)
    queue.append(run_of([(123456, 200, 7), (123656, 201, 8)], [13, 14]))
    queue.correct_min(log_min, "5.3.3")
    assert queue.min_offset == wanted


@pytest.mark.parametrize("log_min", [0, 1, 250, 700, 999, 1000, 1999])
def test_5_3_finds_the_minimum_among_many_entries(log_min: int) -> None:
    queue = QueueImage("T", 0, 400)
    queue.append(run_of([(100 * k, 100, k) for k in range(20)], range(20)))
    queue.correct_min(log_min, "5.3.3")
    assert queue.min_offset == (-(-log_min // 100) if log_min <= 1900 else 20)


# batch queues


def test_a_batch_queue_counts_messages_not_units() -> None:
    queue = BatchQueueImage("T", 0, 92)
    queue.append(units_of([(0, 500, 0, 3), (500, 100, 3, 1), (600, 900, 4, 10)]))
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 14, 600)
    assert [int(unit["base_offset"]) for unit in queue.entries(2, 5)] == [0, 3, 4]
    assert [(start, len(data)) for start, data in images(queue)] == [(0, 92), (92, 46)]


def test_a_unit_at_or_before_the_last_record_is_a_duplicate() -> None:
    queue = BatchQueueImage("T", 0, 460)
    queue.append(units_of([(0, 500, 0, 3), (500, 100, 3, 1)]))
    queue.append(units_of([(500, 100, 3, 1), (0, 500, 0, 3), (600, 100, 4, 2)]))
    assert (queue.max_offset, queue.max_physical_offset) == (6, 600)
    assert len(queue.entries(0, 6)) == 3


def test_truncation_of_a_batch_queue() -> None:
    queue = BatchQueueImage("T", 0, 92)
    queue.append(units_of([(100, 500, 0, 3), (600, 100, 3, 1), (700, 900, 4, 10)]))
    queue.truncate(700)
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 4, 600)
    queue.truncate(100)
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset, queue.files) == (-1, 0, 99, [])


def test_the_minimum_of_a_batch_queue_moves_behind_the_units_that_are_gone() -> None:
    queue = BatchQueueImage("T", 0, 460)
    queue.append(units_of([(100, 500, 0, 3), (600, 100, 3, 1), (700, 900, 4, 10)]))
    queue.correct_min(650)
    assert queue.min_offset == 4
    queue.correct_min(5000)
    assert queue.min_offset == 14


def test_a_file_without_room_for_an_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="too small for an entry"):
        QueueImage("T", 0, 19)


def test_a_recovered_queue_reads_across_files() -> None:
    case = next(case for case in PLAIN if case.id == "4.9.3/c-index-collisions")
    view = mqstore.open(opened(case), config=case.config).view("recovered")
    queue = max(view.queues(), key=lambda queue: queue.max_offset)
    assert queue.max_offset > 300, "the files of this case hold 100 entries"
    whole = queue.entries(0, queue.max_offset)
    assert [queue.entries(k, k + 1)[0].tobytes() for k in range(queue.max_offset)] == [row.tobytes() for row in whole]


def test_an_empty_file_made_for_a_duplicate_counts_an_entry_after_truncation() -> None:
    queue = QueueImage("T", 0, 40)
    queue.append(run_of([(0, 100, 1), (100, 100, 2)], [0, 1]))
    queue.append(run_of([(500, 100, 3)], [1]))
    assert [file.start for file in queue.files] == [0, 40]
    queue.truncate(400)
    assert state(queue) == (0, 3, 0)


def test_appending_goes_on_where_truncation_has_cut_the_file_on_disk(on_disk: Writer) -> None:
    queue = QueueImage("T", 0, 200, on_disk(200, {0: rows_of(*((100 * k, 100, k) for k in range(6)))}))
    queue.recover()
    queue.append(run_of([(600, 100, 6), (700, 100, 7)], [6, 7]))
    queue.truncate(300)
    queue.append(run_of([(300, 50, 30)], [3]))
    assert listed(queue) == [(0, 100, 0), (100, 100, 1), (200, 100, 2), (300, 50, 30)]
    queue.truncate(10_000)
    assert [entry[0] for entry in listed(queue)] == [0, 100, 200, 300, 400, 500, 600, 700]
