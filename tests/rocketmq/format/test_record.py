"""The plain Python codec of one record."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import PLAIN, GoldenCase, address, case_id, expected, opened

import mqstore
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.record import (
    CRC_PROPERTY_SIZE,
    BadRecordError,
    Record,
    blank,
    body_crc,
    decode,
    decode_properties,
    encode,
    encode_properties,
    format_host,
    frame_size,
    offset_message_id,
    parse_host,
    parse_message_id,
    property_crc_fits,
    split_keys,
    with_property_crc,
)

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=20)
HOSTS = st.tuples(st.ip_addresses(), st.integers(-(2**31), 2**31 - 1)).map(
    lambda host: f"[{host[0]}]:{host[1]}" if host[0].version == 6 else f"{host[0]}:{host[1]}"
)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.builds(
    Record,
    topic=TEXT,
    body=st.binary(max_size=200),
    queue_id=I32,
    flag=I32,
    queue_offset=I64,
    physical_offset=I64,
    sys_flag=I32,
    born_timestamp=I64,
    born_host=HOSTS,
    store_timestamp=I64,
    store_host=HOSTS,
    reconsume_times=I32,
    prepared_transaction_offset=I64,
    properties=st.dictionaries(TEXT.filter(bool), TEXT.filter(bool), max_size=5).map(encode_properties) | st.binary(max_size=60),
    body_crc=st.none() | I32,
    version=st.sampled_from([1, 2]),
)


@given(RECORDS)
@settings(deadline=None, max_examples=200)
def test_what_is_encoded_decodes_to_the_same_record(message: Record) -> None:
    raw = encode(message)
    found = decode(raw)
    hosts = 0x10 * (":" in message.born_host[:-1].rpartition(":")[0]) | 0x20 * (":" in message.store_host.rpartition(":")[0])
    crc = body_crc(message.body) if message.body_crc is None else message.body_crc
    assert found == replace(message, sys_flag=message.sys_flag & ~0x30 | hosts, body_crc=crc)
    assert encode(found) == raw
    assert decode(raw + b"what follows") == found


@given(st.dictionaries(TEXT.filter(bool), TEXT.filter(bool), max_size=6), st.booleans())
def test_properties_come_back(properties: dict[str, str], trailing: bool) -> None:
    assert decode_properties(encode_properties(properties, trailing=trailing)) == properties


@given(st.binary(max_size=250) | RECORDS.map(encode))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_a_record_or_the_one_error(raw: bytes) -> None:
    try:
        found = decode(raw)
    except BadRecordError:
        return
    assert decode(encode(found)) == found


@given(RECORDS, st.data())
@settings(deadline=None, max_examples=200)
def test_a_cut_record_is_no_record(message: Record, data: st.DataObject) -> None:
    raw = encode(message)
    with pytest.raises(BadRecordError):
        decode(raw[: data.draw(st.integers(0, len(raw) - 1))])


def golden(case: GoldenCase) -> list[bytes]:
    store = mqstore.open(opened(case), config=case.config)
    return [raw for row in expected(case) if (raw := store.log.raw(row["physical_offset"])) is not None]


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_record_of_a_real_broker_is_written_back_byte_for_byte(case: GoldenCase) -> None:
    found = golden(case)
    assert len(found) > 100
    for raw, row in zip(found, expected(case), strict=True):
        message = decode(raw)
        assert encode(message) == raw
        assert (message.topic, message.queue_id, message.queue_offset) == (row["topic"], row["queue_id"], row["queue_offset"])
        assert message.property_map() == row["properties"]
        assert address(message.born_host) == address(row["born_host"])
        assert offset_message_id(parse_host(message.store_host), message.physical_offset) == row["msg_id"]
        assert parse_message_id(row["msg_id"]) == (message.store_host, message.physical_offset)


def test_the_property_crc_of_a_real_broker_fits_and_is_made_alike() -> None:
    case = next(case for case in PLAIN if case.name == "i-v2-codecs-crc")
    for raw in golden(case):
        assert property_crc_fits(raw) is True
        message = decode(raw)
        bare = replace(message, properties=message.properties[: -record.CRC_PROPERTY_SIZE])
        assert encode(with_property_crc(bare)) == raw
        for at in range(0, len(raw) - record.CRC_PROPERTY_SIZE, 37):
            assert property_crc_fits(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]) is False
        assert property_crc_fits(encode(replace(message, properties=b"KEYS\x01k"))) is None


@pytest.mark.parametrize(
    ("at", "raw", "sentence"),
    [
        (4, b"\0\0\0\0", "magic 00000000"),
        (0, struct.pack(">i", 90), "size 90"),
        (0, struct.pack(">i", 2**31 - 1), "size 2147483647"),
        (84, struct.pack(">i", 50), "a body of 50 bytes does not fit"),
        (90, b"\x7f", "a topic of 127 bytes does not fit"),
        (90, b"\xff", "a topic of -1 bytes does not fit"),
        (92, b"\0\x01", "the parts add up to"),
    ],
)
def test_the_field_at_fault_is_named(at: int, raw: bytes, sentence: str) -> None:
    whole = bytearray(encode(Record("T", b"ab")))
    whole[at : at + len(raw)] = raw
    with pytest.raises(BadRecordError, match=sentence):
        decode(bytes(whole))
    with pytest.raises(BadRecordError, match="fewer than the smallest"):
        decode(bytes(whole[:90]))


def test_negative_lengths_count_as_none_as_for_a_broker() -> None:
    message = Record("T", b"")
    whole = bytearray(encode(message))
    whole[84:88] = b"\xff\xff\xff\xff"
    whole[90:92] = b"\xff\xff"
    assert decode(bytes(whole)) == decode(encode(message))


def test_parts_that_are_too_long_are_refused() -> None:
    for message in (Record("T" * 128, b""), Record("T" * 32768, b"", version=2), Record("T", b"", properties=b"x" * 32768)):
        with pytest.raises(BadRecordError):
            encode(message)
    assert decode(encode(Record("T" * 127, b""))).topic == "T" * 127
    assert decode(encode(Record("T" * 32767, b"", version=2))).topic == "T" * 32767


@pytest.mark.parametrize("text", ["1.2.3.4:0", "255.255.255.255:-1", "[::1]:65535", "[2001:db8::7]:2147483647"])
def test_hosts_come_back(text: str) -> None:
    assert format_host(parse_host(text)) == text


@pytest.mark.parametrize("text", ["", "zz", "00" * 15, "00" * 17, "7F00000100002A9F" + "0" * 15])
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_message_id(text)


def test_keys_are_the_parts_between_blanks() -> None:
    assert split_keys(" a  b\tc ") == ["a", "b\tc"]
    assert split_keys("") == split_keys("   ") == []


def test_an_end_of_file_record_is_its_room_and_its_magic() -> None:
    assert blank(8) == struct.pack(">ii", 8, record.MAGIC_BLANK)


@pytest.mark.parametrize("fields", [{}, {"sys_flag": 0x30, "born_host": "[::1]:1", "store_host": "[::1]:2"}])
def test_the_size_of_a_record_is_taken_if_its_lengths_fit_and_it_is_where_it_says(fields: dict[str, Any]) -> None:
    raw = encode(Record("orders", b"body", physical_offset=4096, properties=b"TAGS\x01x", **fields))

    def size(image: bytes, physical_offset: int | None = None) -> int:
        return frame_size(lambda start, stop: image[start:stop], 0, physical_offset)

    assert size(raw + b"more") == size(raw, 4096) == len(raw)
    assert size(raw, 4095) == 0
    assert size(raw[:28] + (-1).to_bytes(8, "big", signed=True) + raw[36:]) == 0
    assert [size(raw[:4] + bytes([byte]) + raw[5:]) for byte in (0, raw[4] ^ 1)] == [0, 0]
    assert [size(raw[:length]) for length in (0, 87)] == [0, 0]
    assert size(raw[:3] + bytes([raw[3] + 1]) + raw[4:]) == 0


@pytest.mark.parametrize(("at", "content"), [(84, b"\xff" * 4), (92, b"\xff"), (84, b"\0\0\x7f\xff"), (92, b"\x7f")])
def test_a_record_whose_lengths_do_not_fit_has_no_size(at: int, content: bytes) -> None:
    raw = encode(Record("orders", b"body", properties=b"TAGS\x01x"))
    assert frame_size(lambda start, stop: raw[start:stop], 0) == len(raw)
    other = raw[:at] + content + raw[at + len(content) :]
    assert frame_size(lambda start, stop: other[start:stop], 0) == 0


def test_a_record_of_ipv6_hosts_that_is_cut_off_has_no_size() -> None:
    raw = encode(Record("orders", b"body", sys_flag=0x30, born_host="[::1]:1", store_host="[::1]:1"))
    assert frame_size(lambda start, stop: raw[start:stop], 0) == len(raw)
    assert frame_size(lambda start, stop: raw[:100][start:stop], 0) == 0


@pytest.mark.parametrize("properties", [b"", b"TAGS\x01x", b"TAGS\x01x\x02"])
def test_a_checksum_is_appended_to_whatever_properties(properties: bytes) -> None:
    record = with_property_crc(Record("orders", b"body", properties=properties))
    raw = encode(record)
    crc = zlib.crc32(raw[:-CRC_PROPERTY_SIZE]) & 0x7FFFFFFF
    assert record.property_map()["__CRC32#"] == f"{crc:010d}"[::-1]
    assert ("TAGS" in record.property_map()) == bool(properties)
