"""Message store files: our version of the broker's scan, checked against the broker itself, and the careful scan."""

from __future__ import annotations

import numpy as np
import pytest
from support.golden import RABBITMQ, case_id, opened, rdq_oracle
from support.rabbitmq_index import array, message_id, term

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rabbitmq.format import message_file


def stored(number: int, body: bytes = b"a body") -> bytes:
    return message_file.record(message_id(number), term(message_id(number), body))


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_the_strict_scan_finds_what_the_broker_found(case):
    root = ReadOnlyDirectory(opened(case) / "msg_stores/vhosts")
    wanted = rdq_oracle(case)["rdq"]
    assert wanted
    for name, file in wanted.items():
        data = root.map(name).data
        scan = message_file.strict_scan(data)
        found = [[int(at), int(total), data[at + 8 : at + 24].tobytes().hex()] for at, total in zip(scan.at, scan.total, strict=True)]
        assert (found, scan.end, len(data)) == (file["records"], file["scan_end"], file["file_size"]), name


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_the_careful_scan_proves_every_record_that_the_broker_wrote(case):
    root = ReadOnlyDirectory(opened(case) / "msg_stores/vhosts")
    for name, file in rdq_oracle(case)["rdq"].items():
        scan = message_file.careful_scan(root.map(name).data)
        assert [[int(at), int(total)] for at, total in zip(scan.at, scan.total, strict=True)] == [row[:2] for row in file["records"]]
        assert (scan.quality == 3).all()


def test_the_broker_stops_at_zeros_and_the_careful_scan_continues():
    data = array(stored(0) + bytes(5000) + stored(1))
    assert message_file.strict_scan(data).at.tolist() == [0]
    assert message_file.careful_scan(data).at.tolist() == [0, len(stored(0)) + 5000]
    assert message_file.resynchronising_scan(data).at.tolist() == [0, len(stored(0)) + 5000]
    assert message_file.damage(data, message_file.careful_scan(data), "0.rdq") == []


@pytest.mark.parametrize("byte", range(8))
@pytest.mark.parametrize("change", [1, 0x40, 0x80, 0xFF])
def test_a_record_with_a_changed_size_ends_where_its_message_ends(byte, change):
    whole = stored(0) + stored(1) + stored(2)
    for number in range(3):
        raw = bytearray(whole)
        raw[number * len(stored(0)) + byte] ^= change
        data = array(bytes(raw))
        scan = message_file.careful_scan(data)
        assert [int(at) for at in scan.at] == [0, len(stored(0)), 2 * len(stored(0))]
        assert scan.quality.tolist() == [7 if k == number else 3 for k in range(3)]
        assert set(scan.total.tolist()) == {len(stored(0))}
        (found,) = message_file.damage(data, scan, "0.rdq")
        assert (found.offset, found.length, found.kind) == (number * len(stored(0)), len(stored(0)), Kind.BAD_STORE_RECORD)
        assert "size field" in found.detail


def test_a_size_that_ends_at_a_later_record_hides_none():
    width = len(stored(0))
    raw = bytearray(stored(0) + stored(1) + stored(2) + stored(3))
    raw[:8] = (3 * width - 9).to_bytes(8, "big")
    assert message_file.strict_scan(array(bytes(raw))).at.tolist() == [0, 3 * width]
    assert message_file.careful_scan(array(bytes(raw))).at.tolist() == [k * width for k in range(4)]


def test_holes_of_a_sparse_file_are_not_read(tmp_path):
    """A tebibyte of holes, with records at odd places, one of which starts with zeros in a hole: minutes to read, and no message."""
    file, size = tmp_path / "0.rdq", 1 << 40
    places = [0, (3 << 20) + 77, (1 << 39) - 5, (1 << 39) + (1 << 20), size - len(stored(4)) - 4096]
    with file.open("wb") as out:
        for number, at in enumerate(places):
            out.seek(at)
            out.write(stored(number))
        out.truncate(size)
    mapped = ReadOnlyDirectory(tmp_path).map("0.rdq")
    extents = list(mapped.data_extents())
    if sum(high - low for low, high in extents) == size:
        pytest.skip("this file system does not tell where holes are")
    scan = message_file.careful_scan(mapped.data, extents)
    assert (scan.at.tolist(), set(scan.quality.tolist())) == (places, {3})
    assert message_file.resynchronising_scan(mapped.data, extents).at.tolist() == places
    assert message_file.damage(mapped.data, scan, "0.rdq", extents) == []


def test_false_beginnings_of_records_cannot_make_a_scan_slow():
    """Each of these starts a list that continues to the end of the file: read from every one of them, the time grows with the square."""
    start = b"\x83h\x06d\x00\x0dbasic_message" + b"l\x00\x00\x40\x00"
    data = array(stored(0) + (b"m\x00\x00\x00\x33" + bytes(24) + start + b"j" * 3) * 200_000)
    scan = message_file.careful_scan(data)
    assert (scan.at.tolist(), scan.complete) == ([0], False)
    assert "false beginnings" in message_file.damage(data, scan, "0.rdq")[-1].detail


def test_a_missing_mark_is_reported_and_the_message_kept():
    raw = bytearray(stored(0) + stored(1))
    raw[len(stored(0)) - 1] = 0
    scan = message_file.careful_scan(array(bytes(raw)))
    assert (scan.at.tolist(), scan.quality.tolist()) == ([0, len(stored(0))], [2, 3])
    assert message_file.strict_scan(array(bytes(raw))).at.tolist() == [len(stored(0))]
    assert "mark" in message_file.damage(array(bytes(raw)), scan, "0.rdq")[0].detail


def test_a_record_inside_a_body_is_not_a_record():
    inner = stored(1)
    data = array(stored(0, b"x" + inner + b"y") + stored(2))
    assert len(message_file.careful_scan(data).at) == 2
    assert len(message_file.strict_scan(data).at) == 2


def test_a_record_that_holds_another_id_is_not_proved():
    data = array(stored(0) + message_file.record(message_id(5), term(message_id(6), b"x")) + stored(1))
    scan = message_file.careful_scan(data)
    assert scan.quality.tolist() == [3, 1, 3]
    assert [item.messages for item in message_file.damage(data, scan, "0.rdq")] == [1]


def test_a_torn_record_ends_a_file():
    whole = stored(0)
    for cut in (8, 23, 24, len(whole) // 2, len(whole) - 2):
        data = array(whole + stored(1)[:cut])
        assert message_file.careful_scan(data).at.tolist() == [0]
        assert [item.kind for item in message_file.damage(data, message_file.careful_scan(data), "0.rdq")] == [Kind.TORN_RECORD]


def test_client_death_marks_of_old_stores_are_not_messages():
    data = array(stored(0) + message_file.record(message_id(9), b"\x83m\x00\x00\x00\x00") + stored(1))
    assert len(message_file.strict_scan(data).at) == 3
    assert message_file.careful_scan(data).at.tolist() == [0, len(stored(0)) + 31]


def test_hostile_sizes_end_a_scan():
    for size in (2**63, 2**64 - 1, 2**62, 15, 1):
        data = array(stored(0) + size.to_bytes(8, "big") + bytes(100))
        assert message_file.strict_scan(data).at.tolist() == [0]
        assert message_file.careful_scan(data).at.tolist() == [0]


def test_ids_outside_the_file_are_refused():
    with pytest.raises(ValueError, match="outside"):
        message_file.ids(array(stored(0)), np.array([len(stored(0)) - 3], np.int64))


def test_the_careful_scan_goes_on_after_each_block_of_records(monkeypatch):
    data = array(b"".join(stored(number) for number in range(5)))
    whole = message_file.careful_scan(data)
    monkeypatch.setattr(message_file, "_BLOCK", 2)
    assert message_file.careful_scan(data).at.tolist() == whole.at.tolist()
    assert len(whole.at) == 5
