"""The parser of recovery: records of which a sector never reached the disk."""

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
