"""Pulled messages as Arrow batches: the kernel's batch is that of the columns made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import PLAIN, GoldenCase, case_id, expected, same_fields
from support.reading import made, started, tagged

from mqstore.errors import UsageError
from mqstore.kernels.rocketmq import pull_batch
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.log_slices import LogFiles
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.format.record import Record, encode, encode_properties
from mqstore.rocketmq.query.pull import PULL_COLUMNS, PullRules, _ipc_template, batch_fast, batch_of_records, get_message
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.table.columns import rocketmq_schema

RULES = PullRules(version="4.9.3", in_memory_bytes=1 << 40)
ODD_PORTS = {0x7EADBEE1: -1, 0x7EADBEE2: -(1 << 31), 0x7EADBEE3: -77}


def laid_out(records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The concatenated bytes of the records, their positions and sizes."""
    raws = [_with_odd_ports(encode(record)) for record in records]
    sizes = np.array([len(raw) for raw in raws], np.int64)
    return np.frombuffer(b"".join(raws), np.uint8), np.cumsum(sizes) - sizes, sizes


def _with_odd_ports(raw: bytes) -> bytes:
    """Replace placeholder ports by values that are not valid ports but that the bytes may hold."""
    for stands, port in ODD_PORTS.items():
        raw = raw.replace(stands.to_bytes(4, "big"), port.to_bytes(4, "big", signed=True))
    return raw


def one_by_one(data: np.ndarray, positions: np.ndarray) -> pa.RecordBatch:
    return RecordColumns(Records(QueueFile("", 0, len(data), ""), data, positions)).batch(PULL_COLUMNS)


def rows_of(positions: np.ndarray, sizes: np.ndarray) -> bytes:
    """Positions and sizes as the kernel wants them."""
    return np.stack([positions, positions, sizes], 1).tobytes()


def at_once(data: np.ndarray, positions: np.ndarray, sizes: np.ndarray) -> pa.RecordBatch | None:
    found = batch_fast(data, 0, rows_of(positions, sizes))
    if found is not None:
        found.validate(full=True)
    return found


ORDINARY = Record(
    "TopicTest",
    b"body",
    queue_id=3,
    flag=-7,
    queue_offset=2**40,
    born_timestamp=1640995200123,
    born_host="255.10.0.1:65535",
    store_timestamp=-5,
    store_host=f"0.0.0.0:{0x7EADBEE1}",
    reconsume_times=2,
    prepared_transaction_offset=-(2**50),
    properties=encode_properties({"KEYS": "k1 k2", "UNIQ_KEY": "0A", "TAGS": "TagA", "a": "b"}),
)

NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "TAG", "KEYSX", "UNIQ_KEX", "a", "b", "é"])
VALUES = st.sampled_from(["v", "k1", "k1 k2", "k1 k2 k33", " k", "k ", "a  b", " ", "Tag é", "x" * 300])
RECORDS = st.builds(
    replace,
    st.just(ORDINARY),
    topic=st.sampled_from(["T", "a-topic_%", "", "é"]),
    body=st.binary(max_size=40),
    sys_flag=st.sampled_from([0, 0, 0, 0x8, 0xC]),
    born_timestamp=st.sampled_from([0, 1640995200123, (2**63 - 1) // 1000, -((2**63 - 1) // 1000), 2**63 - 1]),
    born_host=st.sampled_from(["127.0.0.1:10911", "0.0.0.0:0", f"255.255.255.255:{0x7EADBEE2}", "1.2.3.4:2147483647", "[::1]:5"]),
    version=st.sampled_from([1, 1, 2]),
    properties=st.dictionaries(NAMES, VALUES, max_size=6).map(encode_properties)
    | st.sampled_from(
        [b"", b"\x01\x02", b"TAGS\x01", b"TAGS\x01a\x02TAGS\x01b", b"x\x02TAGS\x01a\x02\x02", b"TAGS\x01\xff", b"\x01v\x02a\x01b"]
    ),
)


@given(st.lists(RECORDS, min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_the_batch_at_once_is_that_of_the_columns_one_by_one(records: list[Record]) -> None:
    data, positions, sizes = laid_out(records)
    truth = one_by_one(data, positions)
    found = at_once(data, positions, sizes)
    assert found is None or found.equals(truth)
    assert batch_of_records(data, positions, sizes).equals(truth)


@pytest.mark.parametrize(
    "change",
    [
        {"properties": b""},
        {"properties": encode_properties({"TAGS": "TagA"})},
        {"properties": encode_properties({"KEYS": "k"}, trailing=True)},
        {"properties": b"odd\x02\x02TAGS\x01a\x02"},
        {"body": b"", "topic": ""},
        {"version": 2, "topic": "long" * 40},
        {"sys_flag": 0xC},
        {"born_timestamp": (2**63 - 1) // 1000},
    ],
)
def test_ordinary_records_are_written_at_once(change: dict[str, Any]) -> None:
    data, positions, sizes = laid_out([ORDINARY, replace(ORDINARY, **change), ORDINARY] * 5)
    assert at_once(data, positions, sizes) == one_by_one(data, positions)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "标"},
        {"properties": encode_properties({"a": "ü"})},
        {"properties": encode_properties({"KEYS": "a  b"})},
        {"properties": encode_properties({"KEYS": " a"})},
        {"properties": encode_properties({"KEYS": "a "})},
        {"properties": b"a\x01b\x02a\x01c"},
        {"properties": encode_properties({f"p{number}": "v" for number in range(60)})},
        {"born_host": "[::1]:5"},
        {"store_host": "[::1]:5"},
        {"born_timestamp": (2**63 - 1) // 1000 + 1},
        {"store_timestamp": -(2**63)},
        {"sys_flag": 1},
    ],
)
def test_other_records_are_left_to_the_columns(change: dict[str, Any]) -> None:
    data, positions, sizes = laid_out([ORDINARY, replace(ORDINARY, **change)])
    assert at_once(data, positions, sizes) is None
    assert batch_of_records(data, positions, sizes) == one_by_one(data, positions)


def test_the_kernel_writes_what_the_columns_say() -> None:
    head = _ipc_template()[0]
    bare = replace(ORDINARY, properties=encode_properties({"a": "b"}))
    records = [ORDINARY, bare, replace(ORDINARY, born_host=f"9.10.200.0:{0x7EADBEE3}"), ORDINARY, replace(ORDINARY, topic="ab" * 20)] * 3
    data, positions, sizes = laid_out(records)
    written = pull_batch.write_batch(data, 0, rows_of(positions, sizes), head)
    assert pa.ipc.read_record_batch(written, rocketmq_schema(PULL_COLUMNS)) == one_by_one(data, positions)
    assert pull_batch.valid_positions(data, positions, sizes, np.empty(len(positions), np.int64)) == len(positions)
    data, positions, sizes = laid_out([ORDINARY, replace(ORDINARY, sys_flag=1)])
    assert pull_batch.write_batch(data, 0, rows_of(positions, sizes), head) is None


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
@settings(max_examples=300, deadline=None)
def test_of_damaged_bytes_the_kernel_believes_what_the_walker_believes(records: list[Record], draw: st.DataObject) -> None:
    data, positions, sizes = laid_out([replace(record, body=b"") for record in records])
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    sizes = sizes + np.array([draw.draw(st.sampled_from([0, 0, 0, -1, 1, 500])) for _ in sizes])
    data = np.frombuffer(bytes(damaged), np.uint8)
    kept = np.empty(len(positions), np.int64)
    kept = kept[: pull_batch.valid_positions(data, positions, sizes, kept)]
    found = at_once(data, positions, sizes)
    truth = one_by_one(data, kept)
    assert found is None or found.equals(truth)
    assert batch_of_records(data, positions, sizes).equals(truth)


def test_more_records_than_there_is_scratch_for_and_none_at_all() -> None:
    for count in (0, 1, 63, 64, 65, 300):
        data, positions, sizes = laid_out([replace(ORDINARY, queue_offset=number) for number in range(count)])
        found = at_once(data, positions, sizes)
        assert found is not None
        assert found.column("queue_offset").to_pylist() == list(range(count))


def test_positions_outside_the_buffer_hold_no_record() -> None:
    data, positions, sizes = laid_out([ORDINARY] * 5)
    positions = positions + np.array([0, -(1 << 40), 1 << 40, 0, 0])
    sizes = sizes + np.array([0, 0, 0, 1 << 40, 0])
    found = at_once(data, positions, sizes)
    assert found is not None
    assert found.num_rows == 2


def test_arrays_and_heads_that_are_too_small_are_refused() -> None:
    data, positions, sizes = laid_out([ORDINARY])
    with pytest.raises(ValueError, match="too small"):
        pull_batch.valid_positions(data, positions, sizes, np.empty(0, np.int64))
    for raw, places in ((np.zeros(1999, np.uint8), (0, 8, 16, 400)), (np.zeros(800, np.uint8), (0, 8, 16, 400))):
        with pytest.raises(ValueError, match="head"):
            pull_batch.BatchHead(raw, *places)


# of pulls


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_whole_queues_of_the_golden_stores_come_out_as_their_brokers_decode_them(case: GoldenCase) -> None:
    broker = started(case)
    messages = {row["physical_offset"]: row for row in expected(case)}
    names = ["topic", "queue_id", "queue_offset", "physical_offset", "size", "tags", "uniq_key", "body_crc", "flag", "sys_flag"]
    names += ["reconsume_times", "prepared_transaction_offset", "born_host", "store_host", "msg_id", "body_len", "body_sha256"]
    seen = 0
    for queue in broker.queues:
        at = queue.min_offset
        while at < queue.max_offset:
            found = get_message(broker.log, queue, at, 900, None, broker.rules)
            batch = found.to_arrow(names)
            assert batch.num_rows == len(found.records())  # fewer than slices where offset 0 has left the log
            for row in batch.to_pylist():
                assert same_fields(row, messages[row["physical_offset"]], names) == []
            usual = found.to_arrow()
            assert usual.schema == rocketmq_schema(PULL_COLUMNS)
            assert usual.equals(found.to_arrow([*PULL_COLUMNS, "body_len"]).select(list(PULL_COLUMNS)))
            seen += batch.num_rows
            assert found.next_begin_offset > at
            at = found.next_begin_offset
    assert seen > 0


def test_records_of_several_log_files_make_one_batch() -> None:
    store = made([tagged("TagA") for _ in range(60)], queue_file=100)
    found = get_message(store.log, store.queue, 30, 32, None, RULES)
    assert found.physical_offsets[0] < 4096 <= found.physical_offsets[-1]
    batch = found.to_arrow()
    assert batch.column("queue_offset").to_pylist() == list(range(30, 60))
    assert batch.column("physical_offset").to_pylist() == found.physical_offsets


def test_a_pull_without_messages_makes_a_batch_without_rows() -> None:
    store = made([tagged("TagA")])
    batch = get_message(store.log, store.queue, 1, 32, None, RULES).to_arrow()
    assert (batch.num_rows, batch.schema) == (0, rocketmq_schema(PULL_COLUMNS))


def test_bytes_that_are_no_record_are_left_out() -> None:
    store = made([tagged("TagA") for _ in range(5)])
    raw = bytearray(store.log.files[0][1])
    raw[store.physicals[1] + 4] ^= 1  # magic
    raw[store.physicals[2] + 3] += 1  # size
    raw[store.physicals[3] + 87] += 1  # body length
    found = get_message(LogFiles([(0, memoryview(raw))], 4096), store.queue, 0, 32, None, RULES)
    assert found.to_arrow().column("queue_offset").to_pylist() == [0, 4] == [record.queue_offset for record in found.records()]


def test_an_entry_that_is_too_short_for_its_record_leads_to_none() -> None:
    store = made([tagged("TagA") for _ in range(3)])
    store.queue.files[0].part(1, 2)["size"] -= 1
    found = get_message(store.log, store.queue, 0, 32, None, RULES)
    assert (len(found.slices), found.to_arrow().num_rows, len(found.records())) == (3, 2, 2)


def test_a_batch_outlives_the_pull_and_owns_its_bytes() -> None:
    raw = bytearray(made([tagged("TagA")]).log.files[0][1])
    store = made([tagged("TagA")])
    batch = get_message(LogFiles([(0, memoryview(raw))], 4096), store.queue, 0, 32, None, RULES).to_arrow()
    raw[:] = bytes(len(raw))
    assert batch.column("body").to_pylist() == [b"body"]


def test_columns_can_be_named_as_far_as_a_record_holds_them() -> None:
    store = made([tagged("TagA") for _ in range(2)])
    found = get_message(store.log, store.queue, 0, 32, None, RULES)
    assert found.to_arrow(["body_crc_ok", "tags"]).to_pylist() == [{"body_crc_ok": True, "tags": "TagA"}] * 2
    for name in ("verdict", "store_file"):
        with pytest.raises(UsageError, match=f"no column '{name}'"):
            found.to_arrow([name])
    with pytest.raises(UsageError, match="no column 'colour'"):
        found.to_arrow(["colour"])
