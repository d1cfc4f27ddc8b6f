"""Text as Java sees it. Every row was seen on a JVM."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqstore.rocketmq.format import java_text
from mqstore.rocketmq.format.java_text import decode_utf8, index_hash, java_hash, slot_hash

HASHES = [
    ("", 0),
    ("a", 97),
    ("Aa", 2112),
    ("BB", 2112),
    ("TagA", 2598919),
    ("TAG1", 2567159),
    ("TopicTest#OrderID188", -1231271670),
    ("é", 233),
    ("订单", 1129459),
    ("订单号#42", 42445053),
    ("😀", 1772899),
    ("polygenelubricants", -2147483648),
    ("TopicTest#ogaQmc", -2147483648),
]


@pytest.mark.parametrize(("text", "signed"), HASHES)
def test_the_string_hash_is_that_of_a_jvm(text: str, signed: int) -> None:
    assert java_hash(text) == signed


@pytest.mark.parametrize(("signed", "hashed"), [(0, 0), (97, 97), (-1231271670, 1231271670), (-(2**31), 0), (2**31 - 1, 2**31 - 1)])
def test_an_index_file_stores_the_absolute_value_and_0_for_the_smallest_number(signed: int, hashed: int) -> None:
    assert slot_hash(signed) == hashed


def test_a_key_is_hashed_with_its_topic() -> None:
    assert index_hash("TopicTest", "OrderID188") == 1231271670
    assert index_hash("TopicTest", "ogaQmc") == 0


def test_a_lone_surrogate_is_hashed_as_the_code_unit_it_is() -> None:
    assert java_hash("\ud83d\ude00") == java_hash("😀")
    assert java_hash("\ud83d") == 0xD83D


def _slow_hash(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    total = 0
    for at in range(0, len(units), 2):
        total = (31 * total + int.from_bytes(units[at : at + 2], "big")) % 2**32
    return total - 2**32 if total >= 2**31 else total


@given(st.text(st.characters(), max_size=60))
def test_the_hash_follows_its_definition(text: str) -> None:
    assert java_hash(text) == _slow_hash(text)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("61eda0bd62", "a�b"),  # an encoded surrogate is one malformed unit for the JDK
        ("eda0bdedb880", "��"),
        ("eda041", "�A"),  # cut after two bytes: both go
        ("eda0", "�"),
        ("ed41", "�A"),
        ("e282", "�"),
        ("e28241", "�A"),
        ("e08041", "��A"),
        ("f09f98", "�"),
        ("f0808080", "����"),
        ("f4908080", "����"),
        ("c080", "��"),
        ("ff41fe", "�A�"),
        ("f09f9880", "😀"),
    ],
)
def test_malformed_bytes_become_replacement_characters_as_in_a_jvm(raw: str, text: str) -> None:
    assert decode_utf8(bytes.fromhex(raw)) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_sound_text_comes_back(text: str) -> None:
    assert decode_utf8(text.encode()) == text


@given(st.binary())
def test_any_bytes_become_text_without_surrogates(raw: bytes) -> None:
    text = decode_utf8(memoryview(raw))
    assert text.encode().decode() == text


def test_only_what_cannot_be_decoded_is_replaced() -> None:
    with pytest.raises(UnicodeEncodeError):
        "\ud800".encode("utf-8", java_text._ERRORS)
