"""Walking frames and reading their fields, against the plain Python codec."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.record import BadRecordError, Record, blank, decode, encode

BASE = 1 << 30
IPV6 = "[2001:db8::1]:9876"


def laid(records: list[Record], base: int = BASE) -> tuple[np.ndarray, list[int]]:
    """Return the records one after the other, each with its own physical offset: their bytes and positions."""
    data = bytearray()
    positions = []
    for each in records:
        positions.append(len(data))
        data += encode(replace(each, physical_offset=base + len(data)))
    return np.frombuffer(bytes(data), np.uint8), positions


def walked(data: np.ndarray, *, room: int = 1 << 14, start: int = 0, base: int = BASE, strict: bool = True) -> tuple[list[int], int, int]:
    """Walk completely, in repeated calls while `positions` is too small: (positions, next position, status)."""
    positions = np.empty(room, np.int64)
    found: list[int] = []
    at, status = start, frames.FULL
    while status == frames.FULL:
        count, at, status = frames.walk(data, at, len(data), base, strict, positions)
        assert count <= room
        found += positions[:count].tolist()
    return found, at, status


def model_walk(data: bytes, base: int) -> list[int]:
    """Do the same with the codec: continue while a record decodes and has its own physical offset."""
    found = []
    at = 0
    while at < len(data):
        try:
            message = decode(data[at:])
        except BadRecordError:
            return found
        if message.physical_offset != base + at:
            return found
        found.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    return found


# statuses


def test_a_walk_ends_with_stop_after_the_last_record() -> None:
    data, positions = laid([Record("T", b"x" * k) for k in range(5)])
    assert walked(data) == (positions, len(data), frames.STOP)


def test_a_walk_stops_at_the_first_record_that_starts_at_or_after_stop() -> None:
    data, positions = laid([Record("T", b"x")] * 5)
    out = np.empty(9, np.int64)
    for stop, expected in ((positions[3], 3), (positions[3] + 1, 4), (positions[3] - 1, 3), (0, 0)):
        count, at, status = frames.walk(data, 0, stop, BASE, True, out)
        assert (count, status, at) == (expected, frames.STOP, positions[expected])


@pytest.mark.parametrize("room", [1, 2, 7, 100])
def test_a_full_array_loses_nothing(room: int) -> None:
    data, positions = laid([Record("T", bytes(k % 40)) for k in range(150)])
    assert walked(data, room=room) == (positions, len(data), frames.STOP)


def test_an_end_of_file_record_is_reported_with_its_position() -> None:
    data, positions = laid([Record("T", b"x")] * 3)
    data = np.concatenate([data, np.frombuffer(blank(40) + bytes(32), np.uint8)])
    assert walked(data) == (positions, len(data) - 40, frames.BLANK)


@pytest.mark.parametrize("tail", [bytes(8), bytes(100), b"\0\0\0", b"\x01\x02\x03\x04\x05\x06\x07"])
def test_zeros_or_fewer_than_eight_bytes_are_unwritten(tail: bytes) -> None:
    data, positions = laid([Record("T", b"x")] * 3)
    data = np.concatenate([data, np.frombuffer(tail, np.uint8)])
    assert walked(data) == (positions, len(data) - len(tail), frames.UNWRITTEN)


def damaged(at: int, raw: bytes, *, wide: bool = False) -> tuple[np.ndarray, list[int]]:
    """Return three records with bytes of the third one replaced."""
    data, positions = laid([Record("T", b"body", properties=b"a\x01b\x02", version=2 if wide else 1)] * 3)
    changed = data.copy()
    changed[positions[2] + at : positions[2] + at + len(raw)] = np.frombuffer(raw, np.uint8)
    return changed, positions


BODY = 84  # position of the body length in a record with IPv4 hosts
TOPIC = BODY + 4 + len(b"body")
PROPERTIES = TOPIC + 1 + len(b"T")


@pytest.mark.parametrize(
    ("at", "raw", "status"),
    [
        (4, b"\0", "BAD_MAGIC"),
        (4, b"\xff\xff\xff\xff", "BAD_MAGIC"),
        (0, struct.pack(">i", 2**31 - 1), "BAD_SIZE"),
        (0, struct.pack(">i", -5), "BAD_SIZE"),
        (0, struct.pack(">i", 0), "BAD_SIZE"),
        (0, struct.pack(">i", 90), "BAD_SIZE"),
        (0, struct.pack(">i", 91), "BAD_LENGTHS"),
        (BODY, struct.pack(">i", 2**31 - 1), "BAD_LENGTHS"),
        (BODY, struct.pack(">i", -1), "BAD_LENGTHS"),
        (BODY, struct.pack(">i", 3), "BAD_LENGTHS"),
        (TOPIC, b"\x80", "BAD_LENGTHS"),
        (TOPIC, b"\x7f", "BAD_LENGTHS"),
        (PROPERTIES, b"\xff\xff", "BAD_LENGTHS"),
        (PROPERTIES, b"\x00\x03", "BAD_LENGTHS"),
        (PROPERTIES, b"\x7f\xff", "BAD_LENGTHS"),
        (36, struct.pack(">i", 0x10), "BAD_LENGTHS"),
        (36, struct.pack(">i", 0x30), "BAD_LENGTHS"),
        (28, struct.pack(">q", 0), "BAD_OFFSET"),
        (28, struct.pack(">q", -1), "BAD_OFFSET"),
    ],
)
def test_each_bad_field_has_its_status(at: int, raw: bytes, status: str) -> None:
    data, positions = damaged(at, raw)
    assert walked(data) == (positions[:2], positions[2], getattr(frames, status))
    assert frames.status_at(data, positions[2], BASE, True) == getattr(frames, status)


def test_a_lax_walk_accepts_what_a_broker_accepts() -> None:
    data, positions = damaged(28, struct.pack(">q", 7))
    assert walked(data, strict=False)[0] == positions
    data, positions = laid([Record("T", b"")] * 3)
    data = data.copy()
    data[positions[2] + BODY : positions[2] + BODY + 4] = 255
    assert walked(data, strict=False)[0] == positions
    assert walked(data, strict=True)[0] == positions[:2]


@pytest.mark.parametrize("length", range(0, 130, 3))
def test_a_truncated_buffer_is_never_read_past_its_end(length: int) -> None:
    data, _ = laid([Record("T", b"x" * 30, born_host=IPV6, store_host=IPV6)])
    found, at, status = walked(np.ascontiguousarray(data[:length]))
    assert (found, at) == ([], 0)
    assert status in (frames.UNWRITTEN, frames.BAD_SIZE) or length == 0


def test_positions_outside_the_buffer_are_refused() -> None:
    data, _ = laid([Record("T", b"x")])
    out = np.empty(4, np.int64)
    for start, stop in ((-1, 5), (0, len(data) + 1)):
        with pytest.raises(ValueError, match="inside the buffer"):
            frames.walk(data, start, stop, BASE, True, out)
    assert frames.status_at(data, -1, BASE, True) == frames.UNWRITTEN
    assert frames.status_at(data, len(data), BASE, True) == frames.UNWRITTEN


def test_many_positions_have_the_status_that_each_has() -> None:
    data, positions = laid([Record("T", b"x" * 30), Record("T", b"")] * 3)
    asked = np.array([-1, *positions, *(at + 1 for at in positions), len(data) - 3, len(data), len(data) + 9], np.int64)
    found = np.full(len(asked) + 1, 7, np.uint8)
    frames.are_valid(data, asked, BASE, found)
    assert found.tolist() == [*(frames.status_at(data, at, BASE, True) == frames.VALID for at in asked.tolist()), 7]
    assert int(found[:-1].sum()) == len(positions)
    frames.are_valid(data[:0], asked, BASE, found)
    assert not found[:-1].any()
    with pytest.raises(ValueError, match="too small"):
        frames.are_valid(data, asked, BASE, found[:2])


# lanes: the walk follows several ranges of a megabyte at once


def mixed(total: int, seed: int) -> list[Record]:
    """Return about `total` bytes of records of many sizes, some larger than a lane."""
    random = np.random.default_rng(seed)
    records = []
    size = 0
    while size < total:
        length = int(random.choice([0, 5, 300, 2000, 9000, 140_000, 300_000], p=[0.1, 0.2, 0.3, 0.25, 0.1, 0.03, 0.02]))
        records.append(
            Record(
                "T" * int(random.integers(1, 100)),
                bytes(length),
                born_host=IPV6 if length % 3 == 0 else "1.2.3.4:5",
                version=1 + length % 2,
            )
        )
        size += length + 100
    return records


@pytest.mark.parametrize("seed", range(4))
def test_lanes_find_what_a_plain_walk_finds(seed: int) -> None:
    data, positions = laid(mixed(3 << 20, seed))
    assert len(data) > 3 << 20
    assert walked(data) == (positions, len(data), frames.STOP)
    assert walked(data, room=97)[0] == positions


def test_more_records_than_a_lane_has_room_for_are_all_found() -> None:
    data, positions = laid([Record("", b"")] * 6000)
    assert walked(data) == (positions, len(data), frames.STOP)


def forged_body(base: int, start: int, length: int) -> bytes:
    """Return a body of `length` bytes at position `start` that is full of records with correct offsets."""
    body = bytearray()
    while length - len(body) > 400:
        body += encode(Record("forged", b"not a record", physical_offset=base + start + len(body)))
    return bytes(body).ljust(length, b"\0")


def with_forged(lengths: list[int]) -> tuple[np.ndarray, list[int]]:
    """Return records whose bodies hold forged records wherever a lane may look for its first one."""
    data = bytearray()
    positions = []
    for length in lengths:
        positions.append(len(data))
        body = forged_body(BASE, len(data) + BODY + 4, length)
        data += encode(Record("real", body, physical_offset=BASE + len(data)))
    return np.frombuffer(bytes(data), np.uint8), positions


@pytest.mark.parametrize("lengths", [[600_000, 500, 700_000, 900, 300_000], [1_200_000, 50], [131_072 - 96] * 9, [140_000] * 10])
def test_a_record_in_a_body_is_never_taken_for_one_of_the_log(lengths: list[int]) -> None:
    data, positions = with_forged(lengths)
    assert walked(data) == (positions, len(data), frames.STOP)
    assert walked(data, room=3)[0] == positions


def test_damage_in_a_later_lane_ends_the_walk_there() -> None:
    data, positions = laid([Record("T", bytes(1000))] * 2000)
    for victim in (0, 1, 119, 120, 500, 960, 1999):
        broken = data.copy()
        broken[positions[victim] + 4] ^= 1
        assert walked(broken) == (positions[:victim], positions[victim], frames.BAD_MAGIC)


def test_the_first_record_after_a_position_is_found() -> None:
    data, positions = laid(mixed(200_000, 9)[:20])
    for start in range(0, min(len(data), 4000), 53):
        expected = next((at for at in positions if at >= start), -1)
        assert frames.first_record(data, start, len(data), BASE) == expected
    assert frames.first_record(data, 1, positions[1], BASE) == -1
    assert frames.first_record(data, 1, positions[1] + 1, BASE) == positions[1]
    with pytest.raises(ValueError, match="inside the buffer"):
        frames.first_record(data, -1, 5, BASE)


# fields and properties

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=12)
HOSTS = st.tuples(st.ip_addresses(), st.integers(-(2**31), 2**31 - 1)).map(
    lambda host: f"[{host[0]}]:{host[1]}" if host[0].version == 6 else f"{host[0]}:{host[1]}"
)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TAG", "KEYS2", "WAIT"]) | TEXT
RECORDS = st.builds(
    Record,
    topic=TEXT,
    body=st.binary(max_size=300),
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
    properties=st.lists(st.tuples(NAMES, TEXT), max_size=6).map(lambda pairs: "\x02".join(f"{a}\x01{b}" for a, b in pairs).encode()),
    version=st.sampled_from([1, 2]),
)


def spelled(data: np.ndarray, start: int, length: int) -> bytes | None:
    return None if length < 0 else data[start : start + length].tobytes()


def check_fields(records: list[Record]) -> None:
    data, positions = laid(records)
    out = np.empty((frames.FIELD_COUNT, len(records)), np.int64)
    frames.fields(data, np.array(positions, np.int64), out)
    for k, at in enumerate(positions):
        stored = decode(data[at:].tobytes())
        column = out[:, k].tolist()
        size = int(column[frames.SIZE])
        assert size == len(encode(stored))
        for row, name in (
            (frames.BODY_CRC, "body_crc"),
            (frames.QUEUE_ID, "queue_id"),
            (frames.FLAG, "flag"),
            (frames.QUEUE_OFFSET, "queue_offset"),
            (frames.PHYSICAL_OFFSET, "physical_offset"),
            (frames.SYS_FLAG, "sys_flag"),
            (frames.BORN_TIMESTAMP, "born_timestamp"),
            (frames.STORE_TIMESTAMP, "store_timestamp"),
            (frames.RECONSUME_TIMES, "reconsume_times"),
            (frames.PREPARED_TRANSACTION_OFFSET, "prepared_transaction_offset"),
        ):
            assert column[row] == getattr(stored, name), name
        for row, host in ((frames.BORN_HOST, stored.born_host), (frames.STORE_HOST, stored.store_host)):
            raw = record.parse_host(host)
            assert spelled(data, column[row], len(raw)) == raw
        assert spelled(data, column[frames.BODY_START], column[frames.BODY_LENGTH]) == stored.body
        assert spelled(data, column[frames.TOPIC_START], column[frames.TOPIC_LENGTH]) == stored.topic.encode()
        assert spelled(data, column[frames.PROPERTIES_START], column[frames.PROPERTIES_LENGTH]) == stored.properties


@given(st.lists(RECORDS, min_size=1, max_size=8))
@settings(deadline=None, max_examples=60)
def test_fields_are_those_of_the_codec(records: list[Record]) -> None:
    check_fields(records)


# arbitrary bytes


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Draw records with other bytes between them and changes in them."""
    data = bytearray()
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.integers(0, 5)):
            data += encode(replace(draw(RECORDS), physical_offset=BASE + len(data)))
        else:
            data += draw(st.binary(max_size=60))
    for _ in range(draw(st.integers(0, 3)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@given(logs() | st.binary(max_size=400))
@settings(deadline=None, max_examples=150)
def test_on_any_bytes_a_walk_hops_as_the_codec_does(raw: bytes) -> None:
    data = np.frombuffer(raw, np.uint8)
    first = walked(data)
    model = model_walk(raw, BASE)
    assert first[0] == model[: len(first[0])]
    if len(model) > len(first[0]):  # the codec treats negative lengths as zero, as a broker does; a strict walk does not
        assert first[2] == frames.BAD_LENGTHS
    for start in range(0, len(raw), 37):
        valid = (at for at in range(start, len(raw)) if frames.status_at(data, at, BASE, True) == frames.VALID)
        assert frames.first_record(data, start, len(raw), BASE) == next(valid, -1)
