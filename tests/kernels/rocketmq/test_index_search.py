"""The compiled search of chains: it finds what the entry-by-entry search finds, or declines."""

from __future__ import annotations

import random
import struct

import pytest
from support.golden import PLAIN, GoldenCase, case_id
from support.reading import started

from mqstore.kernels.rocketmq import index_search
from mqstore.rocketmq.format.index_file import IndexEntry
from mqstore.rocketmq.query.index_search import END_OF_TIME, search


class File:
    """An index file in memory, possibly damaged. octets: None hides the bytes from the compiled search."""

    name = "file"
    begin_physical_offset = end_physical_offset = end_timestamp = 0

    def __init__(self, raw: bytes, slots: int, positions: int, count: int, begin: int, *, hidden: bool) -> None:
        self.raw = raw
        self.slot_count, self.positions, self.index_count, self.begin_timestamp = slots, positions, count, begin
        self.octets = None if hidden else memoryview(raw)

    def slot(self, number: int) -> int:
        return int(struct.unpack_from(">i", self.raw, 40 + 4 * number)[0])

    def entry(self, number: int) -> IndexEntry:
        at = 40 + 4 * self.slot_count + 20 * number
        return IndexEntry(*struct.unpack_from(">iqii", self.raw, at)) if at + 20 <= len(self.raw) else IndexEntry(0, 0, 0, 0)


def made(dice: random.Random) -> tuple[bytes, int, int, int, int]:
    """Return bytes, slots, positions, count and start of a file of few hashes; in one of three some links are wrong."""
    slots, positions = dice.choice([1, 3, 7]), dice.randrange(2, 40)
    count = dice.randrange(1, positions + 1)
    newest = [0] * slots
    entries = [(0, 0, 0, 0)]
    odd = dice.random() < 0.35
    for number in range(1, count):
        key_hash = dice.randrange(12)
        link = newest[key_hash % slots] if not odd or dice.random() < 0.8 else dice.randrange(-1, positions + 2)
        entries.append((key_hash, 1000 + number, number // 2 if not odd or dice.random() < 0.9 else -1, link))
        newest[key_hash % slots] = number
    if odd and dice.random() < 0.3:
        newest[0] = dice.randrange(-1, positions + 3)
    entries += [(0, 0, 0, 0)] * (positions - count)
    raw = bytes(40) + struct.pack(f">{slots}i", *newest) + b"".join(struct.pack(">iqii", *entry) for entry in entries)
    return (
        raw if dice.random() < 0.9 else raw[: 40 + 4 * slots + 20 * count - 5],
        slots,
        positions,
        count,
        dice.choice([0, 10_000, 1 << 62]),
    )


def test_random_and_damaged_chains_are_searched_alike() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(1500):
        raw, *facts = made(dice)
        begin, end = dice.choice([(0, END_OF_TIME), (-1, 5), (10_000, 18_000), (14_000, END_OF_TIME), (-(1 << 70), 1 << 70)])
        most, key_hash = dice.choice([0, 1, 3, 64, 100, -2, -(1 << 70), 1 << 70]), dice.randrange(12)
        before = [7] * dice.randrange(3)
        found, truth = list(before), list(before)
        ends = search(File(raw, *facts, hidden=False), key_hash, most, begin, end, found)
        assert ends == search(File(raw, *facts, hidden=True), key_hash, most, begin, end, truth), (seed, facts)
        assert found == truth, (seed, facts, begin, end, most, key_hash)


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_chains_of_the_golden_stores_are_all_found_the_compiled_way(case: GoldenCase) -> None:
    for file in started(case).store.index_files():
        hashes = {file.entry(number).key_hash for number in range(1, file.index_count)}
        for key_hash in hashes:
            truth: list[int] = []
            search(file, key_hash, 64, 0, END_OF_TIME, truth, [])
            found = index_search.search_chain(
                file.octets, file.slot_count, file.positions, file.index_count, file.begin_timestamp, key_hash, 0, END_OF_TIME, 64
            )
            assert found == truth


def test_a_file_too_small_for_its_slots_is_refused() -> None:
    for slots, key_hash in ((0, 1), (10, -1), (100, 1)):
        with pytest.raises(ValueError, match="no such slot"):
            index_search.search_chain(memoryview(bytes(100)), slots, 2, 2, 0, key_hash, 0, 1, 1)
