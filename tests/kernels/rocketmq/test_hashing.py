"""Java's string hash over UTF-8."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.kernels.rocketmq import hashing
from mqstore.rocketmq.format.java_text import decode_utf8, index_hash, java_hash


def model(text: str) -> int:
    """Compute the hash from its definition, unsigned."""
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        h = (31 * h + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return h


def hashes(texts: list[bytes]) -> list[int]:
    data = np.frombuffer(b"".join(texts) + b"\0", np.uint8)
    lengths = np.array([len(text) for text in texts], np.int64)
    out = np.empty(len(texts), np.int64)
    hashing.hash_spans(data, np.cumsum(lengths) - lengths, lengths, out)
    assert [hashing.hash_bytes(np.frombuffer(text, np.uint8)) for text in texts] == out.tolist()
    return out.tolist()


TEXTS = [
    "",
    "a",
    "Aa",
    "BB",
    "TagA",
    "TopicTest#OrderID188",
    "polygenelubricants",
    "ünïcödé",
    "订单",
    "a😀b",
    "\U0010ffff",
    "\ud7ff\ue000",
    "\0",
    "x" * 1000,
]


def test_texts_hash_as_in_java() -> None:
    assert hashes([text.encode() for text in TEXTS]) == [model(text) for text in TEXTS]


@pytest.mark.parametrize("text", TEXTS)
def test_the_signed_hash_is_the_same_number(text: str) -> None:
    assert java_hash(text) & 0xFFFFFFFF == model(text)


MALFORMED = [
    b"\x80",
    b"abc\xff",
    b"\xc0\xaf",
    b"\xc1\xbf",
    b"\xe0\x80\x80",
    b"\xe0\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xf0\x80\x80\x80",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xe4\xb8",
    b"ab\xe4\xb8\xc3",
    b"\xc3",
    b"\xf0\x9f\x98",
]


@pytest.mark.parametrize("raw", MALFORMED)
def test_bytes_that_are_not_utf8_have_no_hash(raw: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        raw.decode()
    assert hashes([b"fine", raw, b"fine"]) == [model("fine"), hashing.MALFORMED, model("fine")]
    assert hashes([b"abcdefgh" + raw])[0] == hashing.MALFORMED


def test_a_hash_can_be_continued() -> None:
    seed = hashing.hash_bytes(np.frombuffer(b"topic#", np.uint8))
    assert hashing.hash_bytes(np.frombuffer("schlüssel".encode(), np.uint8), seed) == model("topic#schlüssel")


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=40).map(str.encode) | st.binary(max_size=12), max_size=8))
@settings(deadline=None, max_examples=200)
def test_any_bytes_hash_as_the_text_they_are_or_not_at_all(texts: list[bytes]) -> None:
    expected = []
    for raw in texts:
        try:
            expected.append(model(raw.decode()))
        except UnicodeDecodeError:
            expected.append(hashing.MALFORMED)
    assert hashes(texts) == expected


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_key_hash_is_an_absolute_value(topic: str, key: str) -> None:
    signed = java_hash(f"{topic}#{key}")
    assert index_hash(topic, key) == (0 if signed == -(2**31) else abs(signed))


@given(st.binary(max_size=30))
def test_decoding_as_java_never_fails_and_keeps_what_is_utf8(raw: bytes) -> None:
    text = decode_utf8(raw)
    try:
        assert text == raw.decode()
    except UnicodeDecodeError:
        assert "\ufffd" in text
