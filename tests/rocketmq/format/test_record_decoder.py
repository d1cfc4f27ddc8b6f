"""Records as objects, made the compiled way: each is what `record.decode` says."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import PLAIN, GoldenCase, case_id
from support.reading import started

from mqstore.kernels.rocketmq import record_decode
from mqstore.rocketmq.format.java_text import decode_utf8
from mqstore.rocketmq.format.record import BadRecordError, Record, decode, encode, format_host, record_or_none, records_in, records_of


def plainly(raw: bytes | memoryview) -> Record | None:
    try:
        return decode(raw)
    except BadRecordError:
        return None


def check(raw: bytes | memoryview) -> Record | None:
    """That both ways agree; what they say."""
    truth = plainly(raw)
    found = record_or_none(raw)
    assert found == truth
    if truth is not None:
        for field in fields(Record):
            assert type(getattr(found, field.name)) is type(getattr(truth, field.name))
    return truth


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_record_of_the_golden_stores_is_the_one_that_decode_makes(case: GoldenCase) -> None:
    broker = started(case)
    seen = 0
    for start, view in broker.log.files:
        at = 0
        while at + 8 <= len(view):
            size = int.from_bytes(view[at : at + 4], "big")
            if size <= 8 or check(view[at : at + size]) is None:
                break
            at += size
            seen += 1
        assert start >= 0
    assert seen > 0


RECORDS = st.builds(
    Record,
    topic=st.sampled_from(["T", "a-topic_%", "", "é", "标" * 30]),
    body=st.binary(max_size=20),
    queue_id=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    queue_offset=st.integers(-(2**63), 2**63 - 1),
    sys_flag=st.sampled_from([0, 1, 0x8, 0xC, -256]),
    born_timestamp=st.integers(-(2**63), 2**63 - 1),
    born_host=st.sampled_from(["127.0.0.1:10911", "[::1]:5", "1.2.3.4:7"]),
    store_host=st.sampled_from(["127.0.0.1:10911", "[1050::5:600:300c:326b]:9"]),
    prepared_transaction_offset=st.integers(-(2**63), 2**63 - 1),
    properties=st.binary(max_size=12),
    body_crc=st.integers(-(2**31), 2**31 - 1),
    version=st.sampled_from([1, 2]),
).filter(lambda record: record.version == 2 or len(record.topic.encode()) < 128)


@given(RECORDS, st.data())
@settings(max_examples=400, deadline=None)
def test_whole_and_damaged_records_are_those_that_decode_makes(record: Record, draw: st.DataObject) -> None:
    raw = encode(replace(record, body_crc=record.body_crc))
    assert check(raw) is not None
    assert check(raw + b"more") is not None
    damaged = bytearray(raw)
    for _ in range(draw.draw(st.integers(1, 3))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.sampled_from([0, 1, 2, 0x10, 0x7F, 0x80, 0xFF]))
    check(bytes(damaged[: draw.draw(st.integers(0, len(damaged)))]))
    check(bytes(damaged))


def test_records_made_past_their_constructor_are_like_all_others() -> None:
    made = record_or_none(encode(Record("T", b"body", born_host="1.2.3.4:5")))
    assert made is not None
    assert (hash(made), repr(made), pickle.loads(pickle.dumps(made)), replace(made, queue_id=7).queue_id) == (
        hash(made), repr(decode(encode(made))), made, 7,
    )  # fmt: skip
    with pytest.raises(FrozenInstanceError):
        made.queue_id = 3  # type: ignore[misc]


def test_texts_are_kept_up_to_a_number() -> None:
    asked: list[bytes] = []

    def topic(raw: bytes) -> str:
        asked.append(raw)
        return decode_utf8(raw)

    decoder = record_decode.Decoder(Record, topic, format_host)
    raws = [encode(Record(f"topic-{number}", b"")) for number in range(4100)]
    for raw in [raws[0], raws[0], *raws, raws[4099], raws[1]]:
        assert decoder.record(memoryview(raw)) == decode(raw)
    assert len(asked) == 4101  # the first thousands were forgotten, the last was not


def test_rows_of_a_pull_lead_to_their_records_and_those_that_lead_nowhere_are_left_out() -> None:
    raws = [encode(Record("T", bytes(number), queue_offset=number)) for number in range(5)]
    view = memoryview(b"".join(raws))
    ends = np.cumsum([len(raw) for raw in raws])
    rows = [(number, 1000 + int(end) - len(raw), len(raw)) for number, (raw, end) in enumerate(zip(raws, ends, strict=True))]
    rows += [(5, 900, 100), (6, 1000, 1 << 20), (7, 1000, -1), (8, 1001, 95), (9, 1000, len(raws[0]) - 1)]
    packed = np.array(rows, np.int64).tobytes()
    truth = [decode(raw) for raw in raws]
    assert records_in(view, 1000, packed) == records_of([view[end - len(raw) : end] for raw, end in zip(raws, ends, strict=True)]) == truth


def test_a_class_without_slots_is_refused() -> None:
    class Loose:
        pass

    for name in record_decode.FIELDS:
        setattr(Loose, name, None)
    with pytest.raises(TypeError, match="slot"):
        record_decode.Decoder(Loose, decode_utf8, format_host)
