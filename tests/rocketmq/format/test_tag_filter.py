"""Tag filters: the broker's half, by hash, and the client's, by text."""

from __future__ import annotations

import pytest

from mqstore.errors import UsageError
from mqstore.rocketmq.format.java_text import java_hash
from mqstore.rocketmq.format.tag_filter import EVERYTHING, TagFilter


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_nothing_and_a_star_stand_for_everything(expression: str | None) -> None:
    found = TagFilter.parse(expression)
    assert found == EVERYTHING
    assert found.matches_code(5)
    assert found.matches_tags(None)
    assert found.matches_tags("TagA")


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", {"TagA"}),
        ("TagA || TagB||\tTagC ", {"TagA", "TagB", "TagC"}),
        ("|| TagA", {"TagA"}),
        ("TagA || ||", {"TagA"}),
        ("TagA | TagB", {"TagA | TagB"}),
        ("TagA || *", {"TagA", "*"}),
        ("标签", {"标签"}),
        ("\u00a0x", {"\u00a0x"}),  # trim() removes only ASCII control characters and blanks
        (" || ", set()),
    ],
)
def test_tags_stand_between_double_bars(expression: str, tags: set[str]) -> None:
    found = TagFilter.parse(expression)
    assert (set(found.tags), set(found.hashes), found.everything) == (tags, {java_hash(tag) for tag in tags}, False)


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_bars_alone_are_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="names no tag"):
        TagFilter.parse(expression)


def test_codes_are_compared_in_their_low_32_bits_with_the_sign_kept() -> None:
    wanted = TagFilter.parse("polygenelubricants")
    assert wanted.hashes == {-(1 << 31)}
    assert wanted.matches_code(-(1 << 31))
    assert wanted.matches_code(1 << 31)  # written without its sign
    assert wanted.matches_code((7 << 32) + (1 << 31))
    assert not wanted.matches_code(0)


def test_equal_hashes_pass_the_broker_and_not_the_client() -> None:
    wanted = TagFilter.parse("Aa")
    assert wanted.matches_code(java_hash("BB"))
    assert not wanted.matches_tags("BB")
    assert not wanted.matches_tags(None)
    assert wanted.matches_tags("Aa")


def test_a_code_that_cannot_be_read_matches() -> None:
    assert TagFilter.parse("TagA").matches_code(None)


def test_a_filter_of_no_tags_passes_nothing_at_the_broker_and_drops_nothing_at_the_client() -> None:
    empty = TagFilter.parse(" || ")
    assert not empty.matches_code(0)
    assert empty.matches_tags("TagA")
