"""The table of messages of a clean stop that is damaged in the middle, as a node loads it (seed 41103 of `diagnosis-rabbitmq`, 4.3.6)."""

from __future__ import annotations

import numpy as np
import pytest

from mqstore.rabbitmq.erlang.disk_log import ITEM, write_log
from mqstore.rabbitmq.erlang.terms import Atom
from mqstore.rabbitmq.store.clean_tables import Locations

ROWS = [(Atom("msg_location"), bytes([number]) * 16, 1, 0, 100 * number, 99) for number in range(1, 7)]


@pytest.mark.parametrize(
    ("zeros", "found"),
    [((0, 1), [1, 2, 4, 5, 6]), ((1, 3), [1, 2, 4, 5, 6]), ((1, 40), [1, 2]), ((-4, 8), [1, 2])],
    ids=["a byte", "its mark", "from its mark on", "its head"],
)
def test_eight_zeros_where_a_row_is_looked_for_end_the_table(zeros: tuple[int, int], found: list[int]) -> None:
    raw = bytearray(write_log([(Atom("name"),), *ROWS]))
    mark = -1
    for _ in range(4):  # of the properties, and of three rows
        mark = raw.index(ITEM, mark + 1)
    at, length = mark + zeros[0], zeros[1]
    raw[at : at + length] = bytes(length)
    assert (Locations.of(np.frombuffer(bytes(raw), np.uint8)).at // 100).tolist() == found


def test_the_numbers_of_files_have_no_sign() -> None:
    rows = [(Atom("msg_location"), bytes([number]) * 16, 1, number, 0, 99) for number in (1, 127, 128, 255)]
    table = write_log([(Atom("name"),), *rows, (Atom("msg_location"), bytes(16), 1, 256, 70000, 99)])
    assert sorted(Locations.of(np.frombuffer(table, np.uint8)).file.tolist()) == [1, 127, 128, 255, 256]


def test_terms_that_are_not_rows_are_passed_over() -> None:
    name, of, *numbers = ROWS[0]
    others = [
        (Atom("other"), of, *numbers),
        (name, of[1:], *numbers),
        (name, 7, *numbers),
        (name, of, *numbers[1:]),
        name,
        (name, of, of, 0, 0, 9),
    ]
    table = write_log([(Atom("name"),), *others, *ROWS])
    assert (Locations.of(np.frombuffer(table, np.uint8)).at // 100).tolist() == [1, 2, 3, 4, 5, 6]
