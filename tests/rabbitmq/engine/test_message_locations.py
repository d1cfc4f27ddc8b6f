"""The table of message ids behaves as a dictionary."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mqstore.errors import UnsupportedError
from mqstore.rabbitmq.engine.message_locations import MessageLocation, MessageLocations


def halves(ids: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.frombuffer(b"".join(ids), ">i8").astype(np.int64).reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def test_a_table_behaves_as_a_dictionary() -> None:
    chance = random.Random(11)
    steps = 40_000
    ids = [chance.randbytes(16) for _ in range(steps // 10)]
    table, twin = MessageLocations(), dict[bytes, list[int]]()
    for _ in range(steps):
        each = chance.choice(ids)
        if chance.random() < 0.6:
            more = chance.randrange(1, 4)
            assert table.add_references(each, more) == (each in twin)
            if each in twin:
                twin[each][0] += more
            else:
                twin[each] = [more, chance.randrange(3), chance.randrange(1 << 32), chance.randrange(1, 1 << 32)]
                table.add(each, MessageLocation(*twin[each]))
        elif each in twin:
            twin[each][0] -= 1
            assert table.release(each) == MessageLocation(*twin[each])
            if not twin[each][0]:
                del twin[each]
        else:
            assert table.release(each) is None
        assert len(table) == len(twin)
    assert [table.get(each) for each in ids] == [MessageLocation(*twin[each]) if each in twin else None for each in ids]
    for number in range(3):
        mine = sorted((at, total) for _, file, at, total in twin.values() if file == number)
        at, total = table.of_file(number)
        assert list(zip(at.tolist(), total.tolist(), strict=True)) == mine
        assert table.bytes_by_file()[number] == (sum(total for _, total in mine), max(at + total for at, total in mine))


def test_ids_get_the_place_of_their_last_record_in_the_first_file_that_has_one() -> None:
    ids = [bytes([k]) * 16 for k in range(250)]
    table = MessageLocations()
    table.count_references(*halves(ids))
    table.count_references(*halves(ids[:10]))
    assert table.unplaced == 250
    again = [*ids[:100], *ids[:5]]
    at = np.arange(105) * 50
    table.place(3, halves(again), at, np.full(105, 50))
    table.place(4, halves(ids[:200]), np.arange(200) * 40, np.full(200, 40))
    assert table.unplaced == 50
    assert table.get(ids[2]) == MessageLocation(2, 3, 102 * 50, 50)
    assert table.get(ids[99]) == MessageLocation(1, 3, 99 * 50, 50)
    assert table.get(ids[150]) == MessageLocation(1, 4, 150 * 40, 40)
    assert table.placed(*halves(ids)).tolist() == [True] * 200 + [False] * 50
    assert table.are_current(3, halves(again), at).tolist() == [False] * 5 + [True] * 100
    table.drop_unplaced()
    assert (len(table), table.unplaced, table.get(ids[249])) == (200, 0, None)
    assert [table.get(each) is not None for each in ids] == [True] * 200 + [False] * 50


def test_consecutive_and_colliding_ids_are_kept_apart() -> None:
    count = 20_000
    table = MessageLocations()
    ids = [number.to_bytes(16, "big") for number in range(count)] + [
        number.to_bytes(16, "little") for number in range(1 << 100, (1 << 100) + 9)
    ]
    table.count_references(*halves(ids))
    assert len(table) == len(ids)
    assert all(table.get(each) == MessageLocation(1, 0, 0, 0) for each in ids)


def test_a_record_beyond_four_gibibytes_is_refused() -> None:
    table = MessageLocations()
    table.count_references(*halves([bytes(16)]))
    with pytest.raises(UnsupportedError, match="salvage"):
        table.place(0, halves([bytes(16)]), np.array([1 << 32]), np.array([300]))
    with pytest.raises(UnsupportedError, match="4 GiB"):
        table.add(b"0123456789abcdef", MessageLocation(1, 0, 1 << 32, 300))
