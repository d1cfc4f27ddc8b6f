"""What is known of ranges of a log: kept as long as their bytes are the same, and as there is room."""

from __future__ import annotations

from mqstore.repair.change import Change
from mqstore.rocketmq.scan.splits import LEAD
from mqstore.rocketmq.store.known_ranges import KnownRanges

RANGE = 2 * LEAD


def _filled() -> KnownRanges:
    known = KnownRanges()
    for number in range(4):
        known.keep(number, [number], "commitlog/a", number * RANGE, (number + 1) * RANGE)
    known.keep("other", ["other"], "commitlog/b", 0, RANGE)
    return known


def _left(*changes: Change) -> list[object]:
    known = _filled().after(changes, "commitlog")
    return [key for key in (0, 1, 2, 3, "other") if known.get(key) is not None]


def test_a_write_makes_the_ranges_near_it_unknown() -> None:
    assert _filled().get(2) == [2]
    assert _left(Change("write", "commitlog/a", RANGE, b"x")) == [2, 3, "other"]  # a place in the range before it may have reached there
    assert _left(Change("write", "commitlog/a", RANGE + LEAD, b"x")) == [0, 2, 3, "other"]
    assert _left(Change("write", "commitlog/a", 3 * RANGE - 1, b"xy")) == [0, 1, "other"]
    assert _left(Change("write", "consumequeue/t/0/a", 0, b"x")) == [0, 1, 2, 3, "other"]


def test_nothing_is_known_where_a_file_comes_goes_or_gets_another_length() -> None:
    for change in (
        Change("put", "commitlog/c", content=b"x"),
        Change("remove", "commitlog/b"),
        Change("resize", "commitlog/a", length=1),
        Change("rename", "lost/c", to="commitlog/c"),
        Change("rmdir", "commitlog"),
    ):
        assert _left(change) == []
    assert _left(Change("put", "config/topics.json", content=b"{}")) == [0, 1, 2, 3, "other"]


def test_what_finds_no_room_is_not_kept() -> None:
    known = KnownRanges(room=100)
    known.keep(1, 1, "commitlog/a", 0, 1)
    known.keep(2, bytes(range(256)), "commitlog/a", 1, 2)
    assert (known.get(1), known.get(2)) == (1, None)
    room = known.after([Change("remove", "commitlog/a")], "commitlog")
    room.keep(3, bytes(20), "commitlog/a", 0, 1)
    assert room.get(3) == bytes(20)
