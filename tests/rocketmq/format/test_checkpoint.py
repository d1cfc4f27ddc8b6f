"""The checkpoint file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import PLAIN, GoldenCase, boot, case_id, opened

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.format.checkpoint import Checkpoint, decode, encode, load

FOUR = bytes.fromhex("0000017e12ef9c7b0000017e12ef9c7b0000000000000000").ljust(4096, b"\0")
FIVE = bytes.fromhex("0000017e12ef9c7b0000017e12ef9c7b00000000000000000000000000000000000000000000038d").ljust(4096, b"\0")


def test_the_fields_of_both_versions() -> None:
    assert decode(FOUR) == Checkpoint(1640995200123, 1640995200123, exists=True)
    assert decode(FIVE).confirm_physical_offset == 909


def test_the_sixth_field_of_5_5_is_read_and_kept() -> None:
    six = FIVE[:40] + (109669).to_bytes(8, "big") + FIVE[48:]
    found = decode(six)
    assert (found.logics_physical_offset, found.findings) == (109669, ())
    assert encode(found) == six


def test_the_time_known_to_be_safe_lies_three_seconds_before_the_earlier_of_the_two() -> None:
    assert Checkpoint(10_000, 9_000, 4_000).min_timestamp == 6_000
    assert Checkpoint(10_000, 9_000, 4_000).min_timestamp_index == 4_000
    assert Checkpoint(10_000, 2_000, 0).min_timestamp == 0


def test_a_missing_file_is_no_damage(tmp_path: Path) -> None:
    found = load(ReadOnlyDirectory(tmp_path))
    assert (found.exists, found.physic, found.findings) == (False, 0, ())


@pytest.mark.parametrize("length", [0, 7, 20, 4095, 4097, 9000])
def test_a_file_of_another_length_is_read_as_far_as_it_goes(tmp_path: Path, length: int) -> None:
    (tmp_path / "checkpoint").write_bytes(FOUR.ljust(length, b"\0")[:length])
    found = load(ReadOnlyDirectory(tmp_path))
    assert [item.kind for item in found.findings] == [Kind.BAD_CHECKPOINT]
    assert found.physic == (1640995200123 if length >= 8 else int.from_bytes(FOUR[:length].ljust(8, b"\0"), "big"))


def test_values_that_are_no_times_are_findings() -> None:
    found = decode(b"\xff" * 8 + b"\x7f" * 8 + bytes(4080))
    assert [(item.offset, item.kind) for item in found.findings] == [(0, Kind.BAD_CHECKPOINT), (8, Kind.BAD_CHECKPOINT)]


def test_bytes_behind_the_fields_are_a_finding() -> None:
    assert [item.offset for item in decode(FOUR[:-1] + b"x").findings] == [48]


def test_a_directory_in_its_place_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    assert [item.kind for item in load(ReadOnlyDirectory(tmp_path)).findings] == [Kind.BAD_CHECKPOINT]


@given(st.binary(max_size=5000))
def test_any_bytes_are_read(raw: bytes) -> None:
    found = decode(raw)
    assert found.min_timestamp >= 0
    assert found.min_timestamp_index <= found.min_timestamp


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_the_checkpoints_of_real_stores(case: GoldenCase) -> None:
    found = load(ReadOnlyDirectory(opened(case)))
    five = [found.physic, found.logics, found.index, found.master_flushed_offset, found.confirm_physical_offset]
    assert five == boot(case)["before"]["checkpoint"]
    assert found.findings == ()
