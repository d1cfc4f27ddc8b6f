"""YAML with bounds: values stay text, mistakes are errors with a line, and nothing of the file is quoted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqstore.broker.access.plain_acl import LIMIT, Items, Mapping, Text, parse_yaml
from mqstore.errors import UsageError

pytestmark = pytest.mark.versions


def test_values_stay_text_and_know_their_lines() -> None:
    root = parse_yaml(b"a: 007\nb: [yes, 1.50]\nc:\n  d: !!python/name:os.system x\n", "f")
    assert root.entries == {
        "a": Text("007", 1),
        "b": Items(2, [Text("yes", 2), Text("1.50", 2)]),
        "c": Mapping(4, {"d": Text("x", 4)}),
    }


def test_an_absent_value_is_left_out_and_a_quoted_one_is_not() -> None:
    assert list(parse_yaml(b"a:\nb: ~\nc: null\nd: ''\ne: 'null'\nf: [~, x]\n", "f").entries) == ["d", "e", "f"]


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_yaml("\ufeffa: b".encode(), "f").entries["a"] == Text("b", 1)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"a: &x [1]\nb: *x\n", "f, line 2: aliases"),
        (b"a: 1\nb: 2\na: 3\n", "f, line 3: a name is given twice"),
        (b"? [a]\n: b\n", "f, line 1: a name must be a text"),
        (b"a: 1\n---\nb: 2\n", "f, line 2: a second document"),
        (b"- a\n- b\n", "no names with values"),
        (b"", "no names with values"),
        (b"# only a remark\n", "no names with values"),
        (b"just text", "no names with values"),
        (b"a: " + b"[" * 9 + b"]" * 9, "nested more than 8 deep"),
        (b"a: " + b"[" * 100_000, "nested more than 8 deep|nesting depth"),  # PyYAML 6.0.4 has a limit of its own
        (b"a: [" + b"1," * 100_001 + b"]", "more than 100000 values"),
        (b"a: \xff\n", "f, line 1: it is not UTF-8"),
        (b"a: 'open\n", "it is not YAML"),
        (b"a: [1\nb: 2\n", "it is not YAML"),
        (b"\ta: 1", "it is not YAML"),
        (b"a: \x01", "not YAML"),
        (b"a: " + b"1" * LIMIT, f"more than {LIMIT} bytes"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(raw: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_yaml(raw, "f")


@pytest.mark.parametrize(
    "raw",
    [
        b"secretKey: hunter22hunter\n- x\n",
        b"secretKey: 'hunter22hunter\n",
        b"secretKey: [hunter22hunter\n",
        b"secretKey: &hunter22hunter *hunter22hunter",
        b"hunter22hunter: 1\nhunter22hunter: 2\n",
        b"secretKey: hunter22hunter: x\n",
        b"secretKey: @hunter22hunter\n",
    ],
)
def test_an_error_does_not_quote_the_file(raw: bytes) -> None:
    with pytest.raises(UsageError) as raised:
        parse_yaml(raw, "f")
    assert "hunter" not in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@given(st.binary(max_size=60) | st.text("{}[]&*!|>'\"-?: \n\tab#%@,", max_size=60).map(str.encode))
def test_any_bytes_are_a_mapping_or_an_error(raw: bytes) -> None:
    try:
        assert isinstance(parse_yaml(raw, "f"), Mapping)
    except UsageError:
        pass
