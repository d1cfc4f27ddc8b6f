"""Splits: whatever way a log is cut, every record is read once, also where bodies hold copies of records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.golden import CASES, GoldenCase, case_id, opened
from support.stores import Store, message

from mqstore.errors import UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage
from mqstore.rocketmq.format.commit_log import CommitLog, EndOfFile, Records
from mqstore.rocketmq.format.record import encode
from mqstore.rocketmq.scan.splits import LEAD, Split, SplitWalk, check_seams, log_bytes, plan


class Outcome:
    """What a walk over one split met."""

    def __init__(self, log: CommitLog, split: Split, first: int | None = None, lead: int = 0) -> None:
        walk = SplitWalk(log, split, first=first, lead=lead)
        self.offsets: list[int] = []
        self.damage: list[Damage] = []
        for event in walk:
            if isinstance(event, Records):
                self.offsets += [event.file.start + position for position in event.positions.tolist()]
            elif not isinstance(event, EndOfFile):
                self.damage.append(event)
        self.split, self.begin, self.reach = split, walk.begin, walk.reach


def walked(log: CommitLog, count: int) -> tuple[list[int], list[Damage], int]:
    """Offsets and damage found in `count` splits, and how many had begun in the wrong place."""
    outcomes = (Outcome(log, split) for split in plan(log, count=count))
    found = list(check_seams(log, outcomes, lambda split, first: Outcome(log, split, first)))
    offsets = [offset for outcome, _ in found for offset in outcome.offsets]
    return offsets, [item for outcome, _ in found for item in outcome.damage], sum(wrong is not None for _, wrong in found)


def whole(log: CommitLog) -> tuple[list[int], list[Damage]]:
    offsets: list[int] = []
    damage: list[Damage] = []
    for event in log.scan():
        if isinstance(event, Records):
            offsets += [event.file.start + position for position in event.positions.tolist()]
        elif not isinstance(event, EndOfFile):
            damage.append(event)
    return offsets, damage


@pytest.mark.parametrize("count", [1, 2, 7, 61])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_any_number_of_splits_yields_the_records_and_the_damage_of_one_walk(case: GoldenCase, count: int) -> None:
    log = CommitLog(ReadOnlyDirectory(opened(case)))
    offsets, damage, _ = walked(log, count)
    assert (offsets, damage) == whole(log)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_split_with_a_lead_needs_no_neighbour(case: GoldenCase) -> None:
    log = CommitLog(ReadOnlyDirectory(opened(case)))
    found = [offset for split in plan(log, count=23) for offset in Outcome(log, split, lead=LEAD).offsets]
    assert found == whole(log)[0]


def forged(root: Path) -> CommitLog:
    """A log in which a body holds a chain of records whose physical offsets match their positions."""
    store = Store(root, file_size=1 << 19)
    for number in range(20):
        store.put(message("orders", b"x" * 1000, keys=f"k{number}"))
    base = len(store.files[0])
    # the body starts 88 bytes after its record's start
    copies = b""
    while len(copies) < 200_000:
        copy = message("forged", b"y" * 500, keys="evil", physical_offset=base + 88 + len(copies), queue_offset=5)
        copies += encode(copy)
    store.put(message("orders", copies))
    for number in range(200):
        store.put(message("orders", b"z" * 1000, keys=f"l{number}"))
    store.write()
    return CommitLog(ReadOnlyDirectory(root))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9])
def test_records_copied_into_a_body_are_never_taken_for_records(tmp_path: Path, count: int) -> None:
    log = forged(tmp_path)
    offsets, damage, _ = walked(log, count)
    assert (offsets, damage) == whole(log)
    assert len(offsets) == 221
    assert not damage


def test_a_split_that_begins_inside_a_body_is_walked_again(tmp_path: Path) -> None:
    log = forged(tmp_path)
    _, _, again = walked(log, 4)
    assert again


@pytest.mark.parametrize("count", [4, 9])
def test_a_lead_longer_than_the_body_joins_the_true_chain(tmp_path: Path, count: int) -> None:
    log = forged(tmp_path)
    found = [offset for split in plan(log, count=count) for offset in Outcome(log, split, lead=LEAD).offsets]
    assert found == whole(log)[0]


def test_a_plan_covers_every_written_byte_once_and_leaves_out_files_made_ahead(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=4096, start=40960)
    for number in range(40):
        store.put(message("orders", b"x" * 300, keys=f"k{number}"))
    store.write()
    end = max(store.files) + 4096
    store.write_file(f"commitlog/{end:020d}", bytes(4096))
    log = CommitLog(ReadOnlyDirectory(tmp_path))
    for count in (1, 3, 7):
        splits = plan(log, count=count)
        assert len(splits) == count
        assert [split.start for split in splits] == [40960, *(split.stop for split in splits[:-1])]
        assert splits[-1].stop <= end
        assert log_bytes(log, splits) == splits[-1].stop - 40960


@pytest.mark.real_sizes
def test_small_files_share_a_split_and_large_files_are_cut(tmp_path: Path) -> None:
    small = Store(tmp_path / "small", file_size=4096)
    for _ in range(40):
        small.put(message("orders", b"x" * 300))
    assert len(plan(CommitLog(ReadOnlyDirectory(small.write())), tasks=8)) == 1
    large = tmp_path / "large" / "commitlog"
    large.mkdir(parents=True)
    for base in (0, 1 << 30):
        with (large / f"{base:020d}").open("wb") as file:
            file.write(encode(message("orders", physical_offset=base)))
            file.seek((1 << 30) - 1)
            file.write(b"\1")
    splits = plan(CommitLog(ReadOnlyDirectory(tmp_path / "large")), tasks=8)
    assert len(splits) == 8
    assert {split.stop - split.start for split in splits} == {1 << 28}


def test_a_log_without_records_has_no_splits(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / ("0" * 20)).write_bytes(bytes(4096))
    log = CommitLog(ReadOnlyDirectory(tmp_path))
    assert plan(log, count=7) == ()
    assert log_bytes(log, ()) == 0


@pytest.mark.parametrize("first", [None, 5000])
def test_a_split_whose_files_are_gone_ends_where_it_begins(first: int | None, tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=4096)
    store.put(message("orders"))
    gone = Outcome(CommitLog(ReadOnlyDirectory(store.write())), Split(1, 4096, 8192), first)
    begin = 4096 if first is None else first
    assert (gone.offsets, gone.begin, gone.reach) == ([], begin, begin)


def test_zero_splits_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(replace(message("orders"), queue_id=1))
    with pytest.raises(UsageError, match="must be at least 1"):
        plan(CommitLog(ReadOnlyDirectory(store.write())), count=0)
