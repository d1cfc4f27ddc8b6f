"""A text is found in every form in which a message may hold it, and nowhere else."""

from __future__ import annotations

import base64
import gzip
import pickle
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.errors import UsageError
from mqstore.table.needle import BASE64, COMPRESSED, TEXT, Needle, expand


@given(st.binary(max_size=60), st.text(min_size=4, max_size=20), st.binary(max_size=60), st.sampled_from([b"+/", b"-_"]))
@settings(deadline=None, max_examples=300)
def test_a_text_is_found_in_base64_at_every_alignment(before: bytes, text: str, after: bytes, alphabet: bytes) -> None:
    needle = Needle(text)
    encoded = base64.b64encode(before + text.encode() + after, alphabet)
    assert needle.forms_in(b'{"payload":"' + encoded + b'"}') in ((BASE64,), (TEXT, BASE64))
    assert needle.marks_of(pa.array([encoded, None, b""])).tolist() == [True, False, False]


@given(st.binary(max_size=200), st.text(st.characters(codec="utf-8"), min_size=2, max_size=6))
@settings(deadline=None, max_examples=300)
def test_the_plain_form_is_found_where_the_bytes_have_it(raw: bytes, text: str) -> None:
    try:
        needle = Needle(text)
    except UsageError:
        assert len(text.encode()) < 2
        return
    inside = text.encode() in raw
    assert (TEXT in needle.forms_in(raw)) == inside
    assert (not inside) or needle.marks_of(pa.array([raw], pa.binary())).tolist() == [True]


@given(st.lists(st.binary(max_size=30), max_size=8), st.binary(min_size=2, max_size=5))
@settings(deadline=None, max_examples=300)
def test_spans_are_searched_one_by_one(parts: list[bytes], wanted: bytes) -> None:
    needle = Needle(wanted.decode("utf-8", "surrogateescape"))
    data = np.frombuffer(b"".join(parts), np.uint8)
    stops = np.cumsum([len(part) for part in parts]).astype(np.int64)
    marks = needle.marks(data, np.r_[np.int64(0), stops[:-1]].astype(np.int64)[: len(parts)], stops)
    assert all(mark for part, mark in zip(parts, marks, strict=True) if wanted in part)
    if len(wanted) < 4:  # no base64, so that the marks are exact
        assert marks.tolist() == [wanted in part for part in parts]


def test_characters_that_match_by_chance_are_not_a_text_in_base64() -> None:
    # the inner characters of `order` at the second alignment, in a body that is not base64 of it
    needle = Needle("order")
    inner = base64.b64encode(b"\0order")[2:8]
    assert needle.marks_of(pa.array([b"." + inner + b"."])).tolist() == [True]
    assert needle.forms_in(b"." + inner + b".") == ()


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_compressed_stream_is_searched_expanded(pack: object) -> None:
    stream = pack(b"x" * 1000 + b"order-17")  # type: ignore[operator]
    assert Needle("order-17").forms_in(stream) == (COMPRESSED, TEXT)
    assert Needle("order-18").forms_in(stream) == ()
    assert Needle("order-17").forms_in(stream[:-3]) == ()
    assert expand(stream, 100) is None


@pytest.mark.parametrize("text", ["", "a", "x" * 5000])
def test_a_text_of_no_use_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must have 2 to 4096 bytes"):
        Needle(text)


def test_a_needle_goes_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(Needle("order-17"))).forms_in(b"order-17") == (TEXT,)
