"""Extended consume queues: addresses, units, and the tags codes they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import case_named, expected, opened, queues

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format.consume_queue_ext import ConsumeQueueExt, ExtUnit, address_of, is_address, position_of, unpack
from mqstore.rocketmq.format.java_text import java_hash

UNIT = bytes.fromhex("001c000000000027a8070000017e12ef9c7b00080102030405060708")
PLAIN_UNIT = bytes.fromhex("0014000000000000000500000000000000060000")


def ext(root: Path, *files: bytes, size: int = 100) -> ConsumeQueueExt:
    place = root / "consumequeue_ext" / "T" / "0"
    place.mkdir(parents=True)
    for number, raw in enumerate(files):
        (place / f"{number * size:020d}").write_bytes(raw.ljust(size, b"\0"))
    return ConsumeQueueExt(ReadOnlyDirectory(root), "T", 0)


def test_a_unit_holds_tags_code_time_and_bitmap() -> None:
    assert unpack(UNIT, 28) == ExtUnit(-(2**63) + 28, 28, 2598919, 1640995200123, bytes(range(1, 9)))


def test_addresses_lie_below_every_hash() -> None:
    assert address_of(0) == -(2**63)
    assert position_of(address_of(28)) == 28
    assert is_address(-2147483649)
    assert not is_address(-2147483648)


def test_an_address_leads_to_its_unit_in_any_file(tmp_path: Path) -> None:
    found = ext(tmp_path, UNIT + UNIT + b"\xff\xff", PLAIN_UNIT)
    assert [found.tags_code(address_of(position)) for position in (0, 28, 100)] == [2598919, 2598919, 5]


def test_what_is_no_address_or_leads_nowhere_stays_as_it_is(tmp_path: Path) -> None:
    found = ext(tmp_path, UNIT)
    for stored in (0, -5, 1640995201123, address_of(28), address_of(5000), -2147483649):
        assert found.tags_code(stored) == stored


def test_a_store_without_an_extended_queue_has_no_units(tmp_path: Path) -> None:
    found = ConsumeQueueExt(ReadOnlyDirectory(tmp_path), "T", 0)
    assert list(found.scan()) == []
    assert found.unit(address_of(0)) is None


def test_a_scan_goes_over_files_and_says_what_is_no_unit(tmp_path: Path) -> None:
    broken = bytes.fromhex("0016") + bytes(20)
    found = list(ext(tmp_path, UNIT + broken + PLAIN_UNIT + b"\xff\xff", PLAIN_UNIT).scan())
    assert [item.size if isinstance(item, ExtUnit) else (item.kind, item.offset) for item in found] == [
        28,
        (Kind.BAD_QUEUE_ENTRY, 28),
        20,
        20,
    ]


@given(st.binary(max_size=100), st.integers(0, 100))
def test_any_bytes_end_in_units_and_findings(tmp_path_factory: pytest.TempPathFactory, raw: bytes, position: int) -> None:
    found = ext(tmp_path_factory.mktemp("ext"), raw)
    assert all(isinstance(item, ExtUnit | Damage) for item in found.scan())
    assert isinstance(found.tags_code(address_of(position)), int)


def test_the_addresses_of_a_real_store_lead_to_the_tags_of_its_messages() -> None:
    case = case_named("4.9.3/n-ext-multidispatch")
    directory = ReadOnlyDirectory(opened(case))
    tags = {row["physical_offset"]: row["tags"] for row in expected(case)}
    resolved = 0
    for row in queues(case):
        found = ConsumeQueueExt(directory, row["topic"], row["queue_id"])
        for physical, _, stored in row["entries"]:
            resolved += is_address(stored)
            assert found.tags_code(stored) == (java_hash(tags[physical]) if tags[physical] else 0)
    assert resolved > 0
