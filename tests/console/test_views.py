"""Bodies and traces: whatever the bytes are, they are shown, bounded and harmless."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mqstore.console import bodies
from mqstore.rocketmq.format.trace_message import steps


@given(st.binary(max_size=300))
def test_any_body_can_be_shown(body: bytes) -> None:
    found = bodies.views(body)
    assert found.size == len(body)
    assert found.likely in ("json", "text", "hex")
    assert all(letter.isprintable() or letter in "\n\t" for letter in found.text or "")
    assert bytes.fromhex("".join(line.bytes for line in bodies.hex_lines(body))) == body


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_json_is_indented_without_a_change_of_meaning(value: object) -> None:
    raw = json.dumps(value).encode()
    pretty = bodies.views(raw).pretty
    if isinstance(value, list | dict):
        assert pretty is not None
        if pretty == json.dumps(value, ensure_ascii=False, indent=2):
            assert json.loads(pretty) == value
    else:
        assert pretty is None


def test_a_character_cut_in_two_at_the_end_does_not_make_a_text_binary() -> None:
    body = "é".encode() * bodies.SHOWN
    for shift in (b"", b"x"):
        found = bodies.views(shift + body)
        assert found.likely == "text"
        assert len(found.text or "") <= bodies.SHOWN


def test_numbers_that_are_not_json_or_too_long_for_it_are_text() -> None:
    assert bodies.views(b"[1" + b"0" * 10_000 + b"]").likely == "text"
    assert bodies.views(b'{"a":').likely == "text"


@given(st.binary(max_size=400))
def test_any_bytes_are_a_trace_with_or_without_steps(raw: bytes) -> None:
    assert steps(raw, "ID") == steps(raw, "ID")


@given(
    st.lists(
        st.lists(st.sampled_from(["Pub", "SubBefore", "SubAfter", "ID", "null", "", "7", "٣", "true", "9" * 30]), max_size=16).map(
            "\x01".join
        ),
        max_size=6,
    )
)
def test_items_of_any_shape_are_accepted_or_skipped(items: list[str]) -> None:
    for step in steps("\x02".join(items).encode(), "ID"):
        assert step.kind in ("sent", "consumed", "begun")
        assert step.time is None or step.time >= 0


def test_json_of_up_to_a_mebibyte_is_indented() -> None:
    for size, indented in ((1 << 20, True), ((1 << 20) + 1, False)):
        assert (bodies.views(b'["' + b"x" * (size - 4) + b'"]').pretty is not None) == indented
