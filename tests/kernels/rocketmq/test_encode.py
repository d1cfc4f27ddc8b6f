"""Records written by the kernels, against the plain encoder of `rocketmq.record`, byte for byte."""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.kernels.rocketmq import encode, frames
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.record import Record

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.sampled_from(["127.0.0.1:10911", "192.168.1.10:50123", "0.0.0.0:-1", "[::1]:124", "[1050::5:600:300c:326b]:123"])
RECORDS = st.builds(
    Record,
    topic=st.text("Aé订😀g_%", max_size=9) | st.integers(0, 300).map(lambda n: n * "g"),
    body=st.binary(max_size=300) | st.integers(0, 1500).map(lambda n: (b"0123456789" * 150)[:n]),
    queue_id=INT,
    flag=INT,
    queue_offset=LONG,
    sys_flag=INT,
    born_timestamp=LONG,
    born_host=HOSTS,
    store_timestamp=LONG,
    store_host=HOSTS,
    reconsume_times=INT,
    prepared_transaction_offset=LONG,
    properties=st.binary(max_size=40) | st.sampled_from([b"TAGS\x01a", b"TAGS\x01a\x02"]),
)


def fitting(given: Record) -> Record:
    """Return the record in the version that its topic needs."""
    return replace(given, version=2 if len(given.topic.encode()) > 127 else 1)


def append(file: Any, position: int, limit: int, wanted: Record, property_crc: int = 0, body: Any = None) -> int:
    """Append a record as the engine does."""
    size: int = file.append(
        position,
        limit,
        wanted.physical_offset,
        wanted.queue_offset,
        wanted.store_timestamp,
        wanted.queue_id,
        wanted.flag,
        wanted.sys_flag,
        wanted.born_timestamp,
        record.parse_host(wanted.born_host),
        record.parse_host(wanted.store_host),
        wanted.reconsume_times,
        wanted.prepared_transaction_offset,
        wanted.version,
        wanted.topic.encode(),
        wanted.properties,
        wanted.body if body is None else body,
        property_crc,
    )
    return size


def written(wanted: Record, property_crc: int = 0) -> bytes:
    """Return the bytes that `append` writes for a record in the middle of a page of 0xAA."""
    page = np.full(40_000, 0xAA, np.uint8)
    size = append(encode.LogFileWriter(page), 100, len(page), wanted, property_crc)
    assert (page[:100] == 0xAA).all()
    assert (page[100 + size :] == 0xAA).all()
    return page[100 : 100 + size].tobytes()


Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def buffer(parts: Sequence[bytes]) -> tuple[np.ndarray, list[int]]:
    """Return the parts one after the other, and where each starts."""
    ends = np.cumsum([0, *map(len, parts)])
    return np.frombuffer(b"".join(parts) or b"\0", np.uint8), ends[:-1].tolist()


def columns(records: Sequence[Record]) -> Columns:
    """Return (fields, hosts, bodies, topics, texts) of records, with values to be computed left at -1."""
    fields = np.full((frames.FIELD_COUNT, len(records)), -1, np.int64)
    born = [record.parse_host(each.born_host) for each in records]
    store = [record.parse_host(each.store_host) for each in records]
    hosts, starts = buffer([*born, *store])
    bodies, body_starts = buffer([each.body for each in records])
    topics, topic_starts = buffer([each.topic.encode() for each in records])
    texts, text_starts = buffer([each.properties for each in records])
    for k, each in enumerate(records):
        bits = (0x10 if len(born[k]) == 20 else 0) | (0x20 if len(store[k]) == 20 else 0)
        fields[:, k] = [
            -1,
            -1,
            each.queue_id,
            each.flag,
            each.queue_offset,
            -1,
            each.sys_flag & ~0x30 | bits,
            each.born_timestamp,
            starts[k],
            each.store_timestamp,
            starts[len(records) + k],
            each.reconsume_times,
            each.prepared_transaction_offset,
            body_starts[k],
            len(each.body),
            topic_starts[k],
            len(each.topic.encode()),
            text_starts[k],
            len(each.properties),
        ]
    return fields, hosts, bodies, topics, texts


WORKED = Record(
    "TopicTest",
    b"Hello RocketMQ",
    3,
    queue_offset=7,
    physical_offset=17384,
    born_timestamp=1640995200000,
    born_host="192.168.1.10:50123",
    store_timestamp=1640995200123,
    store_host="127.0.0.1:10911",
    properties=b"UNIQ_KEY\x017F0000010A1B18B4AAC20A5C2B3C0000\x02TAGS\x01TagA\x02KEYS\x01OrderID188 k2",
)
WORKED_HEX = (
    "000000b8daa320a769c865ed0000000300000000000000000000000700000000000043e8000000000000017e12ef9c00c0a8010a0000c3cb0000017e"
    "12ef9c7b7f00000100002a9f0000000000000000000000000000000e48656c6c6f20526f636b65744d5109546f706963546573740046554e49515f4b"
    "455901374630303030303130413142313842344141433230413543324233433030303002544147530154616741024b455953014f7264657249443138"
    "38206b32"
)


def test_the_worked_example_of_a_message() -> None:
    assert written(WORKED).hex() == WORKED_HEX


def test_the_worked_example_with_a_property_crc() -> None:
    raw = written(replace(WORKED, properties=WORKED.properties + b"\x02"), encode.PROPERTY_CRC)
    assert (len(raw), raw[:4].hex(), raw[112:114].hex()) == (205, "000000cd", "005b")
    assert raw[185:].hex() == "5f5f435243333223013238303439333939373102"


def test_the_worked_example_of_ipv6_hosts() -> None:
    wanted = Record(
        "T",
        b"x",
        born_timestamp=1640995200000,
        born_host="[1050::5:600:300c:326b]:123",
        store_timestamp=1640995200123,
        store_host="[::1]:124",
    )
    assert written(wanted).hex() == (
        "00000075daa320a70cdc1683000000000000000000000000000000000000000000000000000000300000017e12ef9c00"
        "105000000000000000050600300c326b0000007b0000017e12ef9c7b000000000000000000000000000000010000007c"
        "000000000000000000000000000000017801540000"
    )


def test_the_worked_example_of_a_long_topic() -> None:
    raw = written(replace(WORKED, topic="%RETRY%" + 121 * "g", body=b"v2", properties=b"", version=2))
    assert (len(raw), raw[:12].hex(), raw[88:92].hex(), raw[-2:].hex()) == (222, "000000dedaa320ab706b9d0f", "76320080", "0000")


def test_the_worked_example_of_a_batch() -> None:
    shared = Record(
        "B", b"b1", born_timestamp=1640995200000, born_host="127.0.0.1:1", store_timestamp=1640995200123, store_host="127.0.0.1:10911"
    )
    records = [
        replace(shared, properties=b"TAGS\x01T\x02CLUSTER\x01c"),
        replace(shared, body=b"b2", flag=5, queue_offset=1, properties=b"CLUSTER\x01c"),
    ]
    page = np.zeros(300, np.uint8)
    assert encode.LogFileWriter(page).append_batch(0, 300, 0, 0, 2, *columns(records)) == (2, 213)
    assert page[:213].tobytes().hex() == (
        "0000006edaa320a747cc1be0000000000000000000000000000000000000000000000000000000000000017e12ef9c007f000001000000010000017e"
        "12ef9c7b7f00000100002a9f0000000000000000000000000000000262310142001054414753015402434c55535445520163"
        "00000067daa320a75ec54a5a00000000000000050000000000000001000000000000006e000000000000017e12ef9c007f000001000000010000017e"
        "12ef9c7b7f00000100002a9f00000000000000000000000000000002623201420009434c55535445520163"
    )


@given(RECORDS.map(fitting), LONG)
@settings(deadline=None, max_examples=150)
def test_a_record_is_that_of_the_plain_encoder(wanted: Record, physical: int) -> None:
    wanted = replace(wanted, physical_offset=physical)
    raw = written(wanted)
    assert raw == record.encode(wanted)
    hosts = record.parse_host(wanted.born_host), record.parse_host(wanted.store_host)
    assert len(raw) == encode.record_size(wanted.topic.encode(), wanted.properties, len(wanted.body), *hosts, wanted.version)


@given(RECORDS.map(fitting))
@settings(deadline=None, max_examples=100)
def test_a_property_crc_is_that_of_the_plain_encoder(wanted: Record) -> None:
    raw = written(wanted, encode.PROPERTY_CRC)
    assert raw == record.encode(record.with_property_crc(wanted))
    assert record.property_crc_fits(raw)
    plain = written(wanted, encode.PROPERTY_CRC_IN_BATCH)
    assert record.property_crc_fits(plain)
    assert record.decode(plain).properties[:-20] == wanted.properties


@given(st.lists(RECORDS.map(fitting), min_size=1, max_size=12), st.integers(0, 2000), st.sampled_from([0, 1, 2]))
@settings(deadline=None, max_examples=100)
def test_a_batch_writes_its_records_in_order_up_to_the_limit(records: list[Record], room: int, property_crc: int) -> None:
    one_by_one, at, wrote = np.zeros(100 + room, np.uint8), 100, 0
    file = encode.LogFileWriter(one_by_one)
    for each in records:
        size = append(file, at, 100 + room, replace(each, physical_offset=5000 + at - 100), property_crc)
        if size < 0:
            break
        at, wrote = at + size, wrote + 1
    page, made = np.zeros(100 + room, np.uint8), columns(records)
    found = encode.LogFileWriter(page).append_batch(100, 100 + room, 5000, 0, len(records), *made, property_crc)
    assert found == (wrote, at)
    assert (page == one_by_one).all()
    assert encode.measure(*made, property_crc) == -1
    assert made[0][frames.SIZE, :wrote].sum() == at - 100


def test_a_batch_continues_where_it_stopped() -> None:
    records = [replace(WORKED, queue_offset=k, body=bytes([k]) * (k * 7)) for k in range(10)]
    made, page = columns(records), np.zeros(700, np.uint8)
    file = encode.LogFileWriter(page)
    first, physical, raw = 0, 0, b""
    while first < len(records):
        first, end = file.append_batch(0, 700, physical, first, len(records), *made)
        raw += page[:end].tobytes()
        physical += end
    expected, at = b"", 0
    for each in records:
        expected += record.encode(replace(each, physical_offset=at))
        at = len(expected)
    assert raw == expected
    assert made[0][frames.PHYSICAL_OFFSET].tolist() == (np.cumsum(made[0][frames.SIZE]) - made[0][frames.SIZE]).tolist()
    assert made[0][frames.BODY_CRC].tolist() == [record.body_crc(each.body) for each in records]


@pytest.mark.parametrize(("room", "fits"), [(191, False), (192, True)])
def test_eight_bytes_remain_after_every_record(room: int, fits: bool) -> None:
    page = np.zeros(1000, np.uint8)
    file = encode.LogFileWriter(page)
    assert append(file, 0, room, WORKED) == (184 if fits else encode.END_OF_FILE)
    assert page.any() == fits
    page[:] = 0
    assert file.append_batch(0, room, 0, 0, 1, *columns([WORKED])) == ((1, 184) if fits else (0, 0))
    assert page.any() == fits


def test_a_blank_is_its_first_eight_bytes() -> None:
    page = np.full(400, 0xAA, np.uint8)
    assert encode.LogFileWriter(page).blank(209, 400) == 191
    assert page[209:217].tobytes() == record.blank(191)
    assert (np.delete(page, np.s_[209:217]) == 0xAA).all()
    for position, limit in ((393, 400), (0, 401), (-1, 400)):
        with pytest.raises(ValueError, match="an end-of-file record cannot"):
            encode.LogFileWriter(page).blank(position, limit)


def test_topics_and_properties_reach_their_limits_and_no_further() -> None:
    for length, version in ((127, 1), (128, 2), (32767, 2)):
        wanted = replace(WORKED, topic=length * "g", version=version, properties=b"")
        assert written(wanted) == record.encode(wanted)
    for length, version in ((128, 1), (32768, 2)):
        with pytest.raises(ValueError, match=f"a topic of {length} bytes does not fit a version {version} record"):
            written(replace(WORKED, topic=length * "g", version=version))
    longest = replace(WORKED, properties=32767 * b"p")
    assert written(longest) == record.encode(longest)
    for length, property_crc in ((32768, 0), (32747, 1), (32748, 2)):
        with pytest.raises(ValueError, match="at most 32767 fit"):
            written(replace(WORKED, properties=length * b"p"), property_crc)
    for length, property_crc in ((32746, 1), (32747, 2)):
        assert record.property_crc_fits(written(replace(WORKED, properties=length * b"p"), property_crc))


def test_measuring_a_batch_finds_the_column_that_makes_no_valid_record() -> None:
    def first_bad(row: int, value: int, property_crc: int = 0) -> int:
        made = columns([WORKED] * 4)
        made[0][row, 2] = value
        bad: int = encode.measure(*made, property_crc)
        if bad >= 0:
            with pytest.raises(ValueError, match=f"column {bad} does not make a valid record"):
                encode.LogFileWriter(np.zeros(2000, np.uint8)).append_batch(0, 2000, 0, 0, 4, *made, property_crc)
        return bad

    assert first_bad(frames.FLAG, 1) == -1
    for row in (frames.BODY_START, frames.TOPIC_START, frames.PROPERTIES_START, frames.BORN_HOST, frames.STORE_HOST):
        for value in (-1, 10_000, 2**62, -(2**63)):
            assert first_bad(row, value) == 2
    for row in (frames.BODY_LENGTH, frames.TOPIC_LENGTH, frames.PROPERTIES_LENGTH):
        for value in (-1, 10_000, 2**62, -(2**63)):
            assert first_bad(row, value) == 2
    assert first_bad(frames.SYS_FLAG, 0x30) == 2  # the 20 bytes of the last but one store host are past the end of the buffer
    made = columns([replace(WORKED, properties=32750 * b"p"), replace(WORKED, topic=33000 * "t")])
    assert encode.measure(*made) == 1
    assert encode.measure(*made, 1) == 0


def test_bodies_may_be_any_bytes() -> None:
    for length in (0, 5, 255, 256, 1000, 65_536, 70_001):
        body = (b"0123456789" * 7001)[:length]
        expected = record.encode(replace(WORKED, body=body))
        for each in (body, bytearray(body), memoryview(body), np.frombuffer(body, np.uint8)):
            page = np.zeros(80_000, np.uint8)
            size = append(encode.LogFileWriter(page), 0, len(page), WORKED, body=each)
            assert page[:size].tobytes() == expected


def test_a_mapped_file_is_written_and_released() -> None:
    page = mmap.mmap(-1, 8192)
    file = encode.LogFileWriter(page)
    size = append(file, 0, 8192, WORKED)
    assert page[:size].hex() == WORKED_HEX
    file.release()
    page.close()
    for call in (lambda: append(file, 0, 8192, WORKED), lambda: file.append_batch(0, 8192, 0, 0, 1, *columns([WORKED]))):
        with pytest.raises(ValueError, match="released"):
            call()


def test_a_read_only_buffer_is_refused() -> None:
    for readonly in (bytes(1000), memoryview(bytes(1000)), np.frombuffer(bytes(1000), np.uint8)):
        with pytest.raises(ValueError, match="read-only"):
            encode.LogFileWriter(readonly)
    with pytest.raises(ValueError, match="no room"):
        encode.LogFileWriter(bytearray(7))


@pytest.mark.parametrize(("position", "limit"), [(-1, 500), (0, 1001), (-(2**40), 500)])
def test_positions_outside_the_file_are_refused(position: int, limit: int) -> None:
    file = encode.LogFileWriter(np.zeros(1000, np.uint8))
    with pytest.raises(ValueError, match="are not inside a file of 1000 bytes"):
        append(file, position, limit, WORKED)
    with pytest.raises(ValueError, match="are not inside a file of 1000 bytes"):
        file.append_batch(position, limit, 0, 0, 1, *columns([WORKED]))
    assert append(file, 990, 500, WORKED) == encode.END_OF_FILE


def test_a_body_in_the_file_is_copied_unless_the_record_would_cover_it() -> None:
    page = np.zeros(1000, np.uint8)
    file = encode.LogFileWriter(page)
    append(file, 0, 1000, WORKED)
    body = page[88:102]
    size = append(file, 184, 1000, WORKED, body=body)
    assert page[:size].tobytes() == page[184 : 184 + size].tobytes()
    for position in (0, 89, 101):
        with pytest.raises(ValueError, match="is where the record would be written"):
            append(file, position, 1000, WORKED, body=body)
    made = columns([WORKED])
    for place in (1, 2, 3, 4):
        args = [*made[:place], page[400:500], *made[place + 1 :]]
        with pytest.raises(ValueError, match="are where the records would be written"):
            file.append_batch(400, 1000, 0, 0, 1, *args)


def test_wrong_versions_and_hosts_are_refused() -> None:
    with pytest.raises(ValueError, match="record version 3 does not exist"):
        written(replace(WORKED, version=3))
    file = encode.LogFileWriter(np.zeros(1000, np.uint8))
    for born, store in ((b"1234", 8 * b"h"), (8 * b"h", 19 * b"h")):
        with pytest.raises(ValueError, match="host bytes are 8 or 20"):
            file.append(0, 1000, 0, 0, 0, 0, 0, 0, 0, born, store, 0, 0, 1, b"T", b"", b"")


def test_arrays_that_are_too_small_are_refused() -> None:
    file, made = encode.LogFileWriter(np.zeros(1000, np.uint8)), columns([WORKED])
    for first, stop, fields in ((-1, 1, made[0]), (0, 2, made[0]), (0, 1, made[0][:18].copy())):
        with pytest.raises(ValueError, match="too small"):
            file.append_batch(0, 1000, 0, first, stop, fields, *made[1:])
    with pytest.raises(ValueError, match="too small"):
        encode.measure(made[0][:18].copy(), *made[1:])


def test_queue_offsets_count_up_in_each_group_and_skip_transactions() -> None:
    fields = np.full((frames.FIELD_COUNT, 8), 77, np.int64)
    fields[frames.SYS_FLAG] = [0, 0x4, 0x8, 0xC, 0, 0x31, 0, 0]
    following = np.array([100, 5], np.int64)
    group = np.array([0, 0, 0, 0, 1, 0, 1, 1], np.int32)
    encode.assign_queue_offsets(fields, 0, 6, group, following)
    assert fields[frames.QUEUE_OFFSET].tolist() == [100, 0, 101, 0, 5, 102, 77, 77]
    encode.assign_queue_offsets(fields, 6, 8, group, following)
    assert fields[frames.QUEUE_OFFSET, 6:].tolist() == [6, 7]
    assert following.tolist() == [103, 8]
    for number in (2, -1):
        group[7] = number
        with pytest.raises(ValueError, match="out of range"):
            encode.assign_queue_offsets(fields, 0, 8, group, following)


def test_a_concurrent_reader_sees_whole_records_or_nothing() -> None:
    """The reader walks the file while it is written: it always finds a run of whole records with matching CRCs."""
    page = np.zeros(4 << 20, np.uint8)
    file = encode.LogFileWriter(page)
    stop, bad, seen = threading.Event(), [], 0

    def follow() -> None:
        nonlocal seen
        at = 0
        positions = np.empty(4000, np.int64)
        while not (stop.is_set() and not page[at : at + 8].any()):
            found, end, status = frames.walk(page, at, len(page), 0, True, positions)
            if status not in (frames.STOP, frames.FULL, frames.UNWRITTEN):
                bad.append((end, status))
                return
            for p in positions[:found].tolist():
                size, stored = struct.unpack(">i4xi", page[p : p + 12].tobytes())
                assert record.body_crc(record.decode(page[p : p + size]).body) == stored
            seen, at = seen + found, end

    reader = threading.Thread(target=follow)
    reader.start()
    at = wrote = 0
    while at + 3000 < len(page):
        # sizes are multiples of eight: a processor may show a store that crosses a cache line in two steps
        size = append(file, at, len(page), replace(WORKED, physical_offset=at, body=bytes(6 + 8 * (wrote % 200))))
        at, wrote = at + size, wrote + 1
    stop.set()
    reader.join()
    assert (bad, seen) == ([], wrote)
