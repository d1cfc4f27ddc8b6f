"""What a person sees: tables that fit, and text from a store that cannot command a terminal."""

from __future__ import annotations

import pytest

from mqstore.cli.common.formatting import count, moment, parse_time, printable, size
from mqstore.cli.common.grid import Column, Grid, cells
from mqstore.errors import UsageError


def grid(rows: list[list[str]], *, width: int | None, columns: tuple[Column, ...]) -> list[str]:
    written: list[str] = []
    made = Grid(columns, written.append, width=width, colour=False)
    made.add(rows)
    made.close()
    return "".join(written).splitlines()


NAME_AND_NUMBER = (Column("name", flexible=True), Column("number", right=True))


def test_control_characters_and_direction_marks_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[31mred\x07\u202eevil\udcff\n") == "a\\x1b[31mred\\x07\\u202eevil\\udcff\\x0a"
    assert "\x1b" not in "".join(grid([["\x1b[2J", "1"]], width=40, columns=NAME_AND_NUMBER))


def test_numbers_stand_right_and_names_left() -> None:
    assert grid([["orders", "5"], ["late", "12345678"]], width=80, columns=NAME_AND_NUMBER) == [
        "name      number",
        "──────  ────────",
        "orders         5",
        "late    12345678",
    ]


def test_a_table_on_a_terminal_fits_its_width_by_shortening_names_only() -> None:
    lines = grid([["x" * 100, "12345678"], ["short", "9"]], width=30, columns=NAME_AND_NUMBER)
    assert max(map(len, lines)) <= 30
    assert lines[2].endswith("…  12345678")


def test_a_table_in_a_file_leaves_nothing_out() -> None:
    assert "x" * 100 in grid([["x" * 100, "1"]], width=None, columns=NAME_AND_NUMBER)[2]


def test_wide_letters_take_two_places() -> None:
    assert cells("订单") == 4
    lines = grid([["订单订单订单订单订单", "1"]], width=20, columns=NAME_AND_NUMBER)
    assert max(map(cells, lines)) <= 20


def test_a_table_of_many_rows_keeps_the_widths_of_its_first_ones() -> None:
    lines = grid([[f"n{k}", str(k)] for k in range(2000)], width=80, columns=NAME_AND_NUMBER)
    assert len(lines) == 2002
    assert len({len(line) for line in lines[2:900]}) == 1


def test_a_table_without_rows_prints_nothing() -> None:
    assert grid([], width=80, columns=NAME_AND_NUMBER) == []


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("-5", -5),
        ("1640995200123", 1_640_995_200_123),
        ("2022-01-01T00:00:00.123Z", 1_640_995_200_123),
        ("2022-01-01", 1_640_995_200_000),
        ("2022-01-01 02:00+02:00", 1_640_995_200_000),
        ("1969-12-31T23:59:59.999", -1),
    ],
)
def test_a_time_is_milliseconds_or_iso_in_utc(text: str, milliseconds: int) -> None:
    assert parse_time(text, "--since") == milliseconds


@pytest.mark.parametrize("text", ["", "yesterday", "12:30", "2022-13-01", "1.5"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"--since .* is no time; give milliseconds"):
        parse_time(text, "--since")


def test_times_outside_the_calendar_are_shown_as_numbers() -> None:
    assert moment(2**63 - 1) == "9223372036854775807"
    assert moment(-(2**63)) == "-9223372036854775808"
    assert moment(None) == "-"


def test_sizes_and_counts() -> None:
    assert [size(n) for n in (0, 1023, 1024, 5 << 30, 3 << 40)] == ["0 bytes", "1023 bytes", "1.0 KiB", "5.0 GiB", "3.0 TiB"]
    assert [count(0, "entry"), count(1, "entry"), count(1000, "key")] == ["0 entries", "1 entry", "1,000 keys"]
