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
