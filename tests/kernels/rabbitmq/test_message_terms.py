"""The fast path of message terms agrees with the decoder, or leaves the term to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden as goldenkit
from support import rabbitmq_terms as rabbitterms
from support.golden import GoldenCase, case_id

from mqstore.kernels.rabbitmq import message_terms
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.message.message_term import MessageTerm, read_message, write_message
from mqstore.rabbitmq.message.properties import PropertiesError, properties_from_bin
from mqstore.table.columns import RABBITMQ_PROPERTIES

# one message: vhost, exchange, keys, properties, frames, id, persistent, end
Parts = tuple[Any, ...]


def parts_of(message: MessageTerm) -> Parts:
    return message.vhost, message.exchange, message.routing_keys, message.properties_bin, message.fragments, message.id, message.persistent


def taken_apart(data: bytes, starts: list[int], lengths: list[int]) -> Iterator[Parts | None]:
    b = np.frombuffer(data, np.uint8)
    rows = np.full((len(starts), message_terms.FIELD_COUNT), -7, np.int64)
    slow = message_terms.fields(b, np.array(starts, np.int64), np.array(lengths, np.int64), rows)
    assert slow == rows[:, message_terms.STATUS].sum()

    def listed(at: int, count: int, backwards: bool) -> list[tuple[bytes, ...]]:
        counts = np.ascontiguousarray(rows[:, count])
        total = int(counts.sum())
        found, sizes = np.zeros((2, total), np.int64)
        assert message_terms.listed(b, np.ascontiguousarray(rows[:, at]), counts, backwards, found, sizes) == total
        pieces = [data[start : start + size] for start, size in zip(found.tolist(), sizes.tolist(), strict=True)]
        ends = np.cumsum(counts).tolist()
        return [tuple(pieces[end - n : end]) for end, n in zip(ends, counts.tolist(), strict=True)]

    keys = listed(message_terms.KEYS_START, message_terms.KEYS_COUNT, False)
    frames = listed(message_terms.PAYLOAD_START, message_terms.PAYLOAD_COUNT, True)
    for row, key, frame in zip(rows.tolist(), keys, frames, strict=True):
        if row[message_terms.STATUS]:
            assert not any(row[1:])
            yield None
            continue

        def span(at: int, row: list[int] = row) -> bytes:
            return data[row[at] : row[at] + row[at + 1]]

        assert row[message_terms.BODY_LENGTH] == sum(map(len, frame))
        message_id = data[row[message_terms.ID_START] : row[message_terms.ID_START] + 16]
        yield (
            span(message_terms.VHOST_START),
            span(message_terms.EXCHANGE_START),
            key,
            span(message_terms.PROPERTIES_START),
            frame,
            message_id,
            bool(row[message_terms.PERSISTENT]),
        )


@pytest.mark.parametrize("case", goldenkit.RABBITMQ, ids=case_id)
def test_every_golden_term_is_parsed_as_the_decoder_does(case: GoldenCase) -> None:
    left = 0
    for path, spans in rabbitterms.files(case):
        data = path.read_bytes()
        found = taken_apart(data, [start for start, _ in spans], [length for _, length in spans])
        for (start, length), parts in zip(spans, found, strict=True):
            message = read_message(data[start : start + length])
            if parts is None:
                left += 1
                assert message.properties_bin is None
            else:
                assert parts == parts_of(message)
    assert bool(left) == (case.name == "f-mixed-features")


messages = st.builds(
    MessageTerm,
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=4),
    st.binary(max_size=4),
    st.lists(st.binary(max_size=4), max_size=3).map(tuple),
    st.booleans(),
    st.lists(st.binary(max_size=4), max_size=3).map(tuple),
    st.binary(max_size=4),
)


@settings(deadline=None)
@given(st.lists(st.tuples(messages, st.sampled_from(["latin1", "utf8"])), max_size=4))
def test_any_message_of_a_client_takes_the_fast_path(written: list[tuple[MessageTerm, str]]) -> None:
    terms = [write_message(message, atoms) for message, atoms in written]
    starts = [sum(map(len, terms[:k])) for k in range(len(terms))]
    found = list(taken_apart(b"".join(terms), starts, [len(term) for term in terms]))
    assert found == [parts_of(message) for message, _ in written]


@settings(deadline=None, max_examples=300)
@given(messages, st.data())
def test_on_changed_bytes_the_fast_path_agrees_with_the_decoder(message: MessageTerm, data: st.DataObject) -> None:
    term = bytearray(write_message(message))
    for _ in range(data.draw(st.integers(1, 3))):
        term[data.draw(st.integers(0, len(term) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(term)))
    for whole in (bytes(term), bytes(term[:cut])):
        (found,) = taken_apart(whole, [0], [len(whole)])
        if found is not None:
            assert found == parts_of(read_message(whole))


def test_every_truncated_term_is_left_to_the_decoder() -> None:
    term = write_message(MessageTerm(bytes(range(16)), b"/", b"ex", (b"k", b"cc"), True, (b"ab", b"c"), b"\x10\x00\x02"))
    lengths = list(range(len(term) + 1))
    found = list(taken_apart(term, [0] * len(lengths), lengths))
    assert found[:-1] == [None] * len(term)
    assert found[-1] is not None


def test_spans_outside_the_buffer_are_left_to_the_decoder() -> None:
    term = write_message(MessageTerm(bytes(16), b"/", b"", (), True, (), b""))
    huge = (1 << 63) - 1
    assert list(taken_apart(term, [-1, 0, huge, 1, 0, len(term)], [5, huge, huge, len(term), -1, 1])) == [None] * 6


HOSTILE = [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x01\x00\x00"]


@pytest.mark.parametrize("count", HOSTILE, ids=bytes.hex)
def test_huge_lengths_are_left_to_the_decoder(count: bytes) -> None:
    term = write_message(MessageTerm(bytes(16), b"/", b"ex", (b"k",), True, (b"b",), b"\x00\x00"))
    lengths = [at + 1 for at in range(len(term) - 5) if term[at] in (108, 109) and term[at + 1 : at + 4] == b"\0\0\0"]
    assert len(lengths) >= 8
    for at in lengths:
        whole = term[:at] + count + term[at + 4 :]
        assert list(taken_apart(whole, [0], [len(whole)])) == [None]
        with pytest.raises(EtfError):
            read_message(whole)


def blocks_apart(block: bytes) -> dict[str, Any] | None:
    rows = np.zeros((1, message_terms.PROPERTY_COLUMNS), np.int64)
    slow = message_terms.properties(np.frombuffer(b"x" + block, np.uint8), np.array([1]), np.array([len(block)]), rows)
    status, *rest = rows[0].tolist()
    assert slow == status
    if status:
        return None
    found: dict[str, Any] = {}
    for name, start, length in zip(RABBITMQ_PROPERTIES, rest[::2], rest[1::2], strict=True):
        if length >= 0:
            found[name] = start if name in ("delivery_mode", "priority", "timestamp") else block[start - 1 : start - 1 + length]
    return found


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 0xFFFE))
def test_property_blocks_are_parsed_as_the_decoder_does(rest: bytes, flags: int) -> None:
    # as many bytes as the flags require, so that some blocks are valid
    block = flags.to_bytes(2, "big") + rest
    found = blocks_apart(block)
    try:
        wanted = properties_from_bin(block)
    except PropertiesError:
        assert found is None or "headers" in found
        return
    if found is None:
        assert wanted.get("timestamp", 0) >= 1 << 63
    else:
        assert list(found) == list(wanted)
        assert all(found[name] == wanted[name] for name in found if name != "headers")


@pytest.mark.parametrize("case", goldenkit.RABBITMQ, ids=case_id)
def test_golden_property_blocks_are_parsed_as_the_decoder_does(case: GoldenCase) -> None:
    seen = {read_message(term).properties_bin for term in rabbitterms.terms(case)[::7]}
    for block in sorted(block for block in seen if block is not None)[:200]:
        found, wanted = blocks_apart(block), properties_from_bin(block)
        assert found is not None
        assert list(found) == list(wanted)
        for name in found:
            if name == "headers":
                framed = b"\x20\x00" + len(found[name]).to_bytes(4, "big") + found[name]
                assert properties_from_bin(framed)["headers"] == wanted["headers"]
            else:
                assert found[name] == wanted[name]


def test_columns_too_short_are_refused() -> None:
    b, one, two = np.zeros(8, np.uint8), np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="differ in length"):
        message_terms.fields(b, two, one, np.zeros((2, message_terms.FIELD_COUNT), np.int64))
    with pytest.raises(ValueError, match="differ in length"):
        message_terms.fields(b, two, two, np.zeros((2, 3), np.int64))
    with pytest.raises(ValueError, match="differ in length"):
        message_terms.properties(b, two, two, np.zeros((1, message_terms.PROPERTY_COLUMNS), np.int64))
    with pytest.raises(ValueError, match="differ in length"):
        message_terms.listed(b, two, one, False, one, one)
    assert message_terms.listed(b, two, two + 5, False, one, one) == 0
