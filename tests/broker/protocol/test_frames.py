"""Frames, against those captured between real clients and brokers and against arbitrary bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqstore.broker.protocol.codes import Language
from mqstore.broker.protocol.frames import MAX_FRAME, Frame, FrameError, Serialization, decode, encode, make_response

NUMBERS = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
FRAMES = st.builds(
    Frame,
    st.integers(0, 2**15 - 1),
    st.none() | st.dictionaries(TEXT, TEXT, min_size=1, max_size=5),
    st.binary(max_size=100),
    st.none() | TEXT.filter(bool),
    st.integers(0, 3),
    NUMBERS,
    st.sampled_from(Language),
    st.integers(1, 2**15 - 1),
    st.sampled_from(Serialization),
)

ROUTE_QUERY = (
    "00000087000000837b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f70696354"
    "657374227d2c22666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a382c22736572"
    "69616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3339397d"
)
OFFSET_QUERY = (
    "000000500100004c000e00018f0000004200000000000000000000003700077175657565496400000001330005746f70"
    "696300000009546f70696354657374000d636f6e73756d657247726f7570000000026731"
)
OFFSET_ANSWER = "0000002601000022000000018f0000004200000001000000000000000d00066f66667365740000000130"
VIEW_MISS = (
    "0000009b000000977b22636f6465223a312c22666c6167223a312c226c616e6775616765223a224a415641222c226f70"
    "61717565223a382c2272656d61726b223a2263616e206e6f742066696e64206d65737361676520627920746865206f66"
    "667365742c203939393939393939222c2273657269616c697a655479706543757272656e74525043223a224a534f4e22"
    "2c2276657273696f6e223a3339397d"
)


@pytest.mark.parametrize("captured", [ROUTE_QUERY, OFFSET_QUERY, OFFSET_ANSWER, VIEW_MISS], ids=["route", "offset", "answer", "miss"])
def test_captured_frames_are_read_and_written_again_byte_for_byte(captured: str) -> None:
    raw = bytes.fromhex(captured)
    frame = decode(raw[4:])
    assert encode(frame) == raw


def test_the_fields_of_a_captured_binary_query_are_read() -> None:
    frame = decode(bytes.fromhex(OFFSET_QUERY)[4:])
    assert (frame.code, frame.opaque, frame.version, frame.serialization) == (14, 66, 399, Serialization.ROCKETMQ)
    assert frame.ext == {"queueId": "3", "topic": "TopicTest", "consumerGroup": "g1"}


@given(FRAMES)
def test_what_is_written_is_read_back(frame: Frame) -> None:
    raw = encode(frame)
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    assert decode(raw[4:]) == frame


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_a_frame_error(raw: bytes) -> None:
    try:
        decode(raw)
    except FrameError:
        pass


@given(FRAMES, st.integers(0), st.binary(min_size=1, max_size=4))
def test_a_frame_with_some_bytes_changed_is_a_frame_or_a_frame_error(frame: Frame, at: int, changed: bytes) -> None:
    raw = bytearray(encode(frame)[4:])
    place = at % len(raw)
    raw[place : place + len(changed)] = changed
    try:
        decode(raw)
    except FrameError:
        pass


@pytest.mark.parametrize(
    "header",
    [b"", b"[]", b"{", b'{"code":[]}', b'{"code":1e99}', b'{"opaque":4294967296}', b'{"extFields":[]}', b'{"code":"x"}', b"[" * 100_000],
)
def test_an_invalid_header_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        decode(len(header).to_bytes(4, "big") + header)


def test_a_header_longer_than_its_frame_is_refused() -> None:
    with pytest.raises(FrameError, match="does not fit"):
        decode(bytes.fromhex("00000100") + b"{}")


@pytest.mark.parametrize("kind", [2, 255])
def test_an_unknown_serialization_is_refused(kind: int) -> None:
    with pytest.raises(FrameError, match=f"no serialization of type {kind}"):
        decode(bytes([kind, 0, 0, 2]) + b"{}")


def test_a_minimal_header_has_the_defaults() -> None:
    frame = decode(len(b'{"code":106}').to_bytes(4, "big") + b'{"code":106}')
    assert (frame.code, frame.ext, frame.flag, frame.language, frame.opaque, frame.version) == (106, None, 0, Language.JAVA, 0, 0)


def test_numbers_and_booleans_among_the_fields_become_text_as_in_java() -> None:
    header = b'{"code":11,"extFields":{"queueId":3,"order":true,"ratio":0.5,"none":null,"s":"t"},"language":"KLINGON"}\n'
    frame = decode(len(header).to_bytes(4, "big") + header)
    assert frame.ext == {"queueId": "3", "order": "true", "ratio": "0.5", "s": "t"}
    assert frame.language is Language.OTHER


@pytest.mark.parametrize("serialization", list(Serialization))
def test_a_response_has_the_serialization_and_the_opaque_of_its_request(serialization: Serialization) -> None:
    answered = make_response(Frame(10, opaque=5, serialization=serialization), 1, "no")
    assert (answered.opaque, answered.flag, answered.serialization) == (5, 1, serialization)
    assert decode(encode(answered, 399)[4:]).version == 399


def test_lone_surrogates_cannot_break_a_header() -> None:
    raw = encode(Frame(1, remark="a\udc80b", ext={"\ud800": "\udfff"}))
    assert json.loads(raw[8:])["remark"] == "a?b"


def test_a_frame_that_no_receiver_accepts_is_not_written() -> None:
    assert len(encode(Frame(0, body=bytes(MAX_FRAME - 200)))) <= MAX_FRAME
    with pytest.raises(FrameError, match="larger than any receiver accepts"):
        encode(Frame(0, body=bytes(MAX_FRAME)))
