"""Spans of properties, against the plain Python codec."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.kernels.rocketmq import property_spans
from mqstore.rocketmq.format import record


def spelled(data: np.ndarray, start: int, length: int) -> bytes | None:
    return None if length < 0 else data[start : start + length].tobytes()


def check(texts: list[bytes]) -> None:
    """Check known_properties, count_pairs, pair_spans and irregular_texts against the codec's parsing of a property text."""
    data = np.frombuffer(b"".join(texts) + b"\0" * 16, np.uint8)
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum(lengths) - lengths
    known = np.empty((6, len(texts)), np.int64)
    property_spans.known_properties(data, starts, lengths, known)
    counts = np.empty(len(texts), np.int32)
    total = property_spans.count_pairs(data, starts, lengths, counts)
    spans = np.empty((4, total), np.int64)
    assert property_spans.pair_spans(data, starts, lengths, spans) == total == counts.sum()
    odd = np.empty(len(texts), np.uint8)
    property_spans.irregular_texts(data, starts, lengths, odd)
    at = 0
    for k, text in enumerate(texts):
        parts = [part.partition(b"\x01") for part in text.split(b"\x02")]
        pairs = [(name, value) for name, separator, value in parts if name and separator and value]
        latest = dict(pairs)
        for row, name in ((0, b"TAGS"), (2, b"KEYS"), (4, b"UNIQ_KEY")):
            assert spelled(data, known[row, k], known[row + 1, k]) == latest.get(name), name
        own = spans[:, at : at + counts[k]]
        assert [(spelled(data, a, b), spelled(data, c, d)) for a, b, c, d in own.T.tolist()] == pairs
        at += counts[k]
        zeros = text.endswith(b"\0") or b"\0\0\0\0" in text
        assert odd[k] == (zeros or any((name or separator) and (not name or not separator) for name, separator, _ in parts))
        assert record.decode_properties(text) == {record.decode_utf8(name): record.decode_utf8(value) for name, value in pairs}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"TAGS\x01a",
        b"TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01u\x02",
        b"TAGS\x01a\x02TAGS\x01b\x02",
        b"TAGS\x01a\x02TAGS\x01\x02",
        b"no separators at all",
        b"\x01\x01\x02\x02\x01",
        b"KEYS\x01a\x01b\x02",
        b"KEYS\x02TAGS",
        b"\xff\xfe\x01\x80\x02",
        b"KEYS\x01k\0\0",
        b"KEYS\x01k\0\0\0\x02",
        b"KEYS\x01k\0\0\0\0\x02",
        b"KEYS\x01k\0\0x\0\0\0\0x\x02",
        b"\0",
    ],
)
def test_property_texts_are_read_as_the_codec_reads_them(text: bytes) -> None:
    check([text])
    check([b"A\x01b\x02", text, text, b"KEYS\x01z"])


@given(
    st.lists(
        st.lists(
            st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"\x01", b"\x02", b"x", b"\xff", b"KEY", b"\0", b"\0\0\0"]), max_size=12
        ).map(b"".join),
        min_size=1,
        max_size=5,
    )
)
@settings(deadline=None, max_examples=100)
def test_any_property_text_is_read_as_the_codec_reads_it(texts: list[bytes]) -> None:
    check(texts)


TWO = np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("kernel", "out"),
    [
        (property_spans.known_properties, np.empty((6, 2), np.int64)),
        (property_spans.count_pairs, np.empty(2, np.int32)),
        (property_spans.pair_spans, np.empty((4, 0), np.int64)),
        (property_spans.irregular_texts, np.empty(2, np.uint8)),
    ],
)
def test_arrays_that_are_too_small_are_refused(kernel: Callable[..., object], out: np.ndarray) -> None:
    octets = np.zeros(1, np.uint8)
    kernel(octets, TWO, TWO, out)
    for lengths, small in ((TWO[:1], out), (TWO, out[1:])):
        with pytest.raises(ValueError, match="too small"):
            kernel(octets, TWO, lengths, small)


def test_columns_for_fewer_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        property_spans.known_properties(np.zeros(1, np.uint8), TWO, TWO, np.empty((6, 1), np.int64))
