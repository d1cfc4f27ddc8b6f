"""Times, sizes and counts as text, and text from a store made harmless for a terminal."""

from __future__ import annotations

import time

import pytest

from mqstore.errors import UsageError
from mqstore.table.formatting import clock, count, moment, parse_time, printable, size


def test_control_characters_and_direction_marks_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[31mred\x07\u202eevil\udcff\n") == "a\\x1b[31mred\\x07\\u202eevil\\udcff\\x0a"


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


@pytest.mark.parametrize("text", ["", "tomorrow", "12:30", "2022-13-01", "1.5"])
def test_text_that_is_not_a_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"--since .* is not a time; give milliseconds"):
        parse_time(text, "--since")


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("90m", 5400), ("2h", 7200), ("3d", 259_200), ("1w", 604_800), ("2 H", 7200), ("2h3m", 7380)]
)
def test_a_span_is_a_time_before_now(text: str, seconds: int) -> None:
    now = 1_700_000_000_000
    assert parse_time(text, "--since", now=now) == now - 1000 * seconds
    before, found, after = time.time(), parse_time(text, "--since") / 1000, time.time()
    assert before - seconds - 0.01 <= found <= after - seconds


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("now", "2023-11-14T22:13:20"),
        ("today", "2023-11-14"),
        ("Yesterday", "2023-11-13"),
        ("2 hours ago", "2023-11-14T20:13:20"),
        ("1 day 2h 30 min", "2023-11-13T19:43:20"),
    ],
)
def test_times_as_people_write_them(text: str, found: str) -> None:
    assert parse_time(text, "--since", now=1_700_000_000_000) == parse_time(found, "--since")


@pytest.mark.parametrize("text", ["h", "2y", "1.5h", "-2h", "2h3", "ago", "2h, 3m", "12345678h"])
def test_what_only_looks_like_a_span_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a span before now such as 2h or 3d"):
        parse_time(text, "--since")


def test_times_outside_the_calendar_are_shown_as_numbers() -> None:
    assert moment(2**63 - 1) == "9223372036854775807"
    assert moment(-(2**63)) == "-9223372036854775808"
    assert moment(None) == "-"


def test_sizes_and_counts() -> None:
    assert [size(n) for n in (0, 1023, 1024, 5 << 30, 3 << 40)] == ["0 bytes", "1023 bytes", "1.0 KiB", "5.0 GiB", "3.0 TiB"]
    assert [count(0, "entry"), count(1, "entry"), count(1000, "key")] == ["0 entries", "1 entry", "1,000 keys"]


def test_a_duration_has_the_unit_that_shows_it() -> None:
    assert [clock(seconds) for seconds in (0, 0.9994, 1, 59.94, 60, 61.9, 3600)] == [
        "0 ms", "999 ms", "1.0 s", "59.9 s", "1 min 0 s", "1 min 1 s", "60 min 0 s",
    ]  # fmt: skip
