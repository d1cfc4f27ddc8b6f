"""The parser of recovery: where it stops, and records of which a sector never reached the disk."""

from __future__ import annotations

import numpy as np
import pytest

from mqstore.rocketmq.format.record import Record, encode
from mqstore.rocketmq.recovery.broker_parser import SECTOR, ParseStop, RecordParser

BODY_AT = 88  # of a record with IPv4 hosts


def accepted(data: bytes, version: str, *, strict: bool) -> int:
    parser = RecordParser(version, strict=strict)
    return sum(len(run) for run in parser.runs(np.frombuffer(data, np.uint8), 0) if not isinstance(run, ParseStop))


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
@pytest.mark.parametrize("properties", [b"", b"TAGS\x01x", b"note\x01" + b"n" * 600])
@pytest.mark.parametrize("left", range(9))
def test_a_record_whose_last_sector_is_lost_is_rejected_where_the_broker_takes_it(left: int, properties: bytes, version: str) -> None:
    """State 197:642.13: the sector began with the topic, of one byte; the zeros in its place were taken for the topic of a message.

    left: bytes of topic and length of the properties that reached the disk.
    """
    raw = encode(Record("orders", b"g" * (SECTOR - BODY_AT - 1 - left), properties=properties))
    torn = raw[:SECTOR] + bytes(len(raw) - SECTOR)
    assert accepted(raw, version, strict=True) == 1
    if torn != raw:
        assert accepted(torn, version, strict=True) == 0
    framed = not properties or left == 8  # the length of the properties is what it was
    assert accepted(torn, version, strict=False) == framed


@pytest.mark.parametrize("topic_length", [-128, -1, 0, 5, 7, 107, 108, 127])
def test_a_record_whose_lengths_do_not_add_up_is_read_to_its_end_unless_its_topic_exceeds_it(topic_length: int) -> None:
    raw = encode(Record("orders", b"body", properties=b"TAGS\x01x"))
    at = BODY_AT + len(b"body")
    changed = raw[:at] + topic_length.to_bytes(1, "big", signed=True) + bytes(len(raw) + 200)
    [stop] = RecordParser("4.9.3").runs(np.frombuffer(changed, np.uint8), 0)
    fits = 0 <= topic_length <= len(raw)
    assert stop == (ParseStop(0, size=len(raw), read_to=at + 1 + topic_length + 2) if fits else ParseStop(0))


@pytest.mark.parametrize("size", [-1, 7, 8])
def test_a_record_that_claims_less_than_a_host_has_is_not_read(size: int) -> None:
    raw = encode(Record("orders", b"body"))
    [stop] = RecordParser("4.9.3").runs(np.frombuffer(size.to_bytes(4, "big", signed=True) + raw[4:], np.uint8), 0)
    assert (stop == ParseStop(0)) == (size < 8)


@pytest.mark.parametrize(("length", "over"), [(308, 0), (309, 1)])
def test_a_record_whose_properties_exceed_it_is_not_read(length: int, over: int) -> None:
    raw = encode(Record("orders", b"body", properties=b"note\x01" + b"n" * 202))
    changed = raw[:99] + length.to_bytes(2, "big") + bytes(400)
    [stop] = RecordParser("4.9.3").runs(np.frombuffer(changed, np.uint8), 0)
    assert len(raw) == 308
    assert stop == (ParseStop(0) if over else ParseStop(0, size=308, read_to=101 + length))


@pytest.mark.parametrize("left", [8, 40, 87, 90, 92, 98, 99, 106])
def test_a_record_that_the_file_cuts_off_is_not_read(left: int) -> None:
    raw = encode(Record("orders", b"body", properties=b"TAGS\x01x"))
    assert len(raw) > left
    [stop] = RecordParser("4.9.3").runs(np.frombuffer(raw[:left], np.uint8), 0)
    assert stop == ParseStop(0)


@pytest.mark.parametrize(
    ("base", "count", "fits"), [(b"9", b"2", True), (b"x", b"2", False), (b"9", b"32768", False), (b"-9", b"32767", True)]
)
def test_an_inner_batch_whose_numbers_java_does_not_parse_is_rejected(base: bytes, count: bytes, fits: bool) -> None:
    raw = encode(Record("orders", b"body", properties=b"INNER_BASE\x01%b\x02INNER_NUM\x01%b\x02" % (base, count)))
    assert accepted(raw, "5.3.3", strict=False) == fits
    assert accepted(raw, "4.9.3", strict=False) == 1


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_record_of_version_2_whose_lengths_do_not_add_up_is_read_by_who_knows_it_and_no_other_one_is(version: str) -> None:
    raw = bytearray(encode(Record("orders", b"body", version=2)))
    raw[-1] = 1  # the length of the properties
    [stop] = RecordParser(version).runs(np.frombuffer(bytes(raw) + bytes(200), np.uint8), 0)
    assert stop == (ParseStop(0, size=len(raw), read_to=len(raw) + 1) if version == "5.3.3" else ParseStop(0))
    raw[7] ^= 0x40  # the magic
    [stop] = RecordParser(version).runs(np.frombuffer(bytes(raw) + bytes(200), np.uint8), 0)
    assert stop == ParseStop(0)
