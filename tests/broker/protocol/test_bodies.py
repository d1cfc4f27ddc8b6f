"""JSON bodies in both forms, and the parser of client responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqstore.broker.protocol.bodies import BodyError, MessageQueue, encode, parse, takes_strict_json
from mqstore.broker.protocol.frames import Frame

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
KEYS = TEXT | st.integers(-(2**31), 2**31) | st.builds(MessageQueue, TEXT, TEXT, st.integers(0, 100))
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_written_in_the_form_of_fastjson_is_read_back(value: dict[Any, Any]) -> None:
    assert parse(encode(value)) == value or _only_text_keys(value)


def _only_text_keys(value: dict[Any, Any]) -> bool:
    """Return whether strict JSON parses to the same value: number keys of maps become text in it."""
    try:
        return bool(json.loads(encode(value)) == parse(encode(value)))
    except ValueError:
        return False


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_the_strict_form_is_json_for_any_parser(value: dict[Any, Any]) -> None:
    assert isinstance(json.loads(encode(value, strict=True)), dict)


@given(st.binary(max_size=200) | st.text(st.sampled_from('{}[]:,"0a\\ '), max_size=60).map(str.encode))
def test_any_bytes_are_a_body_or_a_body_error(raw: bytes) -> None:
    try:
        parse(raw)
    except BodyError:
        pass


@pytest.mark.parametrize("raw", [b"", b"{", b"{{", b'{"a":}', b"{[]:1}", b'{{"x":1}:2}', b'{"a":1}x', b"[" * 100_000, b'{"a":' * 50_000])
def test_an_invalid_body_is_refused(raw: bytes) -> None:
    with pytest.raises(BodyError):
        parse(raw)


@pytest.mark.parametrize(
    ("request_", "strict"),
    [
        (Frame(105, version=399), False),
        (Frame(105, version=400), False),
        (Frame(105, version=401), True),
        (Frame(105, version=479), True),
        (Frame(105, {"acceptStandardJsonOnly": "true"}, version=399), True),
        (Frame(105, {"acceptStandardJsonOnly": "no"}), False),
    ],
)
def test_strict_json_is_sent_to_clients_that_accept_it(request_: Frame, strict: bool) -> None:
    assert takes_strict_json(request_) is strict
