"""`.config` of a vhost in forms that no broker writes."""

from __future__ import annotations

import pytest

from mqstore.rabbitmq.format.segment import MAX_ENTRIES
from mqstore.rabbitmq.format.vhost_config import (
    ENTRIES_WITHOUT_CONFIG,
    LONGEST,
    config_file,
    lacks_number,
    segment_entry_count,
    stated_entry_count,
)


@pytest.mark.parametrize("count", [1, 2048, MAX_ENTRIES])
def test_a_number_that_a_segment_can_have_is_read_as_written(count: int) -> None:
    assert stated_entry_count(config_file(count)) == segment_entry_count(config_file(count)) == count


@pytest.mark.parametrize("count", [0, MAX_ENTRIES + 1])
def test_another_number_is_neither_written_nor_taken(count: int) -> None:
    with pytest.raises(ValueError, match=f"not {count}$"):
        config_file(count)
    content = b"{segment_entry_count, %d}." % count
    assert stated_entry_count(content) == f"segment_entry_count must be a number from 1 to {MAX_ENTRIES}, not {count}"
    assert segment_entry_count(content) == ENTRIES_WITHOUT_CONFIG


@pytest.mark.parametrize("content", [b"", b"{other, 2048}.", b"{segment_entry_count, 2048, 1}.", b"segment_entry_count."])
def test_a_file_that_states_no_number_says_so(content: bytes) -> None:
    assert stated_entry_count(content) == "it has no segment_entry_count"
    assert lacks_number(content)


def test_the_last_of_several_numbers_counts_as_in_the_map_that_the_broker_makes() -> None:
    assert stated_entry_count(b"{segment_entry_count, many}. {segment_entry_count, 16}.") == 16
    content = b"{segment_entry_count, 16}. {segment_entry_count, many}."
    assert lacks_number(content)
    assert "not Atom" in str(stated_entry_count(content))


def test_a_file_that_is_too_long_is_not_read_as_terms() -> None:
    whole = config_file(2048).ljust(LONGEST)
    assert stated_entry_count(whole) == 2048
    assert str(stated_entry_count(whole + b" ")).startswith(f"it has {LONGEST + 1} bytes: ")
    assert not lacks_number(whole + b" ")


def test_no_file_and_one_without_terms_mean_the_most_entries() -> None:
    assert segment_entry_count(None) == segment_entry_count(b"{segment") == ENTRIES_WITHOUT_CONFIG
    assert str(stated_entry_count(b"{segment")).startswith("it is not a sequence of Erlang terms: ")
