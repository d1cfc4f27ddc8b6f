"""The fused dispatch kernel, against `dispatch.request` record by record."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import PLAIN, GoldenCase, case_id, opened

import mqstore
from mqstore.kernels.rocketmq import dispatch
from mqstore.rocketmq.dispatch import dispatcher
from mqstore.rocketmq.dispatch.dispatcher import Dispatcher, DispatchRules, dispatch_positions, dispatch_request, merge_runs
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.format.record import TRANSACTION_MASK, Record, decode, encode

Entry = tuple[int, bytes]
Key = tuple[int, int, int]

PLAIN_RULES = DispatchRules()


def laid(records: list[Record]) -> tuple[np.ndarray, np.ndarray]:
    data = bytearray()
    positions = []
    for each in records:
        positions.append(len(data))
        data += encode(replace(each, physical_offset=len(data)))
    return np.frombuffer(bytes(data), np.uint8), np.array(positions, np.int64)


def model(data: np.ndarray, positions: np.ndarray, rules: DispatchRules) -> tuple[dict[tuple[str, int], list[Entry]], list[Key]]:
    """Compute queue entries and index keys in plain Python, record by record."""
    queues: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    keys: list[Key] = []
    for at in positions.tolist():
        message = decode(data[at:].tobytes())
        asked = dispatch_request(message, rules)
        size = int.from_bytes(data[at : at + 4].tobytes(), "big")
        entry = struct.pack(">qiq", message.physical_offset, size, asked.tags_code)
        if message.sys_flag & TRANSACTION_MASK in (0, 8):
            queues[message.topic, message.queue_id].append((message.queue_offset, entry))
        tags = dispatch_request(message, DispatchRules(delays=())).tags_code
        for topic, queue_id, offset in asked.further_queues:
            queues[topic, queue_id].append((offset, struct.pack(">qiq", message.physical_offset, size, tags)))
        keys += [(index_hash(message.topic, key), message.physical_offset, message.store_timestamp) for key in asked.keys]
    return queues, keys


def made(outcome: dispatcher.DispatchOutput) -> tuple[dict[tuple[str, int], list[Entry]], list[Key]]:
    queues = {}
    for run in outcome.runs:
        raw = run.entries.tobytes()
        queues[run.topic, run.queue_id] = [(offset, raw[20 * k : 20 * k + 20]) for k, offset in enumerate(run.offsets.tolist())]
        assert run.consecutive == (np.diff(run.offsets) == 1).all()
    return queues, [tuple(row) for row in outcome.keys.tolist()]


def agree(data: np.ndarray, positions: np.ndarray, rules: DispatchRules = PLAIN_RULES) -> dispatcher.DispatchOutput:
    outcome = dispatch_positions(data, positions, rules)
    assert outcome.records == len(positions)
    assert made(outcome) == model(data, positions, rules)
    return outcome


def stretches(case: GoldenCase) -> Iterator[Records]:
    store = mqstore.open(opened(case), config=case.config)
    for event in store.log.scan():
        if isinstance(event, Records):
            yield event


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_golden_log_is_dispatched_as_by_the_plain_function(case: GoldenCase) -> None:
    rules = replace(mqstore.open(opened(case), config=case.config).rules(), batch_topics=frozenset())
    for records in stretches(case):
        agree(records.data, records.positions, rules)


def test_without_records_there_are_no_runs_and_no_keys() -> None:
    outcome = dispatch_positions(np.empty(0, np.uint8), np.empty(0, np.int64), DispatchRules())
    assert (outcome.records, outcome.runs, len(outcome.keys)) == (0, (), 0)


def test_more_queues_than_the_table_has_room_for() -> None:
    records = [Record(f"topic-{k % 700}", b"", queue_id=k % 3, queue_offset=k // 2100, properties=b"KEYS\x01k") for k in range(4200)]
    outcome = agree(*laid(records))
    assert len(outcome.runs) == 2100


def test_groups_keep_their_numbers_in_later_calls() -> None:
    data, positions = laid([Record(f"t{(7 * k) % 611}", b"", queue_offset=k // 611) for k in range(1300)])
    dispatcher = Dispatcher(data, DispatchRules(), len(positions))
    for low in range(0, len(positions), 100):
        dispatcher.add(positions[low : low + 100])
    assert made(dispatcher.finish()) == model(data, positions, DispatchRules())


def test_records_with_many_keys_grow_the_array_of_keys() -> None:
    keys = " ".join(f"key-{k}" for k in range(900))
    records = [Record("T", b"", properties=f"KEYS\x01{keys}\x02UNIQ_KEY\x01u{k}\x02".encode(), queue_offset=k) for k in range(12)]
    outcome = agree(*laid(records))
    assert len(outcome.keys) == 12 * 901


def test_since_5_4_the_tags_are_the_last_key_of_a_record() -> None:
    records = [Record("T", b"", properties=b"TAGS\x01a||b\x02KEYS\x01k\x02", queue_offset=k) for k in range(200)]
    outcome = agree(*laid(records), DispatchRules(index_tags=True))
    assert outcome.keys["hash"][:2].tolist() == [index_hash("T", "k"), index_hash("T", "T#a||b")]
    assert len(outcome.keys) == 400


@pytest.mark.parametrize("sys_flag", [0, 4, 8, 12])
def test_transaction_kinds_decide_about_queue_and_index(sys_flag: int) -> None:
    outcome = agree(*laid([Record("T", b"", sys_flag=sys_flag, properties=b"KEYS\x01a  b \x02UNIQ_KEY\x01u\x02")]))
    assert len(outcome.runs) == (sys_flag in (0, 8))
    assert len(outcome.keys) == (0 if sys_flag == 12 else 3)


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"KEYS\x01   \x02",
        b"KEYS\x01 a\x02",
        b"KEYS\x01a\x02KEYS\x01b c\x02",
        b"UNIQ_KEY\x01u\x02KEYS\x01u\x02",
        b"TAGS\x01Aa\x02TAGS\x01polygenelubricants\x02",
        "TAGS\x01ünïcödé\x02KEYS\x01订单 😀\x02".encode(),
        b"TAGS\x01\xff\x02KEYS\x01\xfe ok \xed\xa0\x80\x02",
        b"DELAY\x013\x02TAGS\x01a\x02",
        b"DELAY\x0199\x02",
        b"DELAY\x01x\x02",
        b"DELAY\x01-1\x02TAGS\x01a\x02",
        b"INNER_MULTI_DISPATCH\x01a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x0110,20\x02TAGS\x01t\x02",
        b"INNER_MULTI_DISPATCH\x01a,b\x02INNER_MULTI_QUEUE_OFFSET\x0110\x02",
        b"INNER_MULTI_DISPATCH\x01a,b\x02INNER_MULTI_QUEUE_OFFSET\x01x,1\x02",
    ],
)
@pytest.mark.parametrize("topic", ["T", "SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXY", "订单"])
def test_odd_properties_are_dispatched_as_by_the_plain_function(properties: bytes, topic: str) -> None:
    records = [Record(topic, b"b", queue_id=k % 2, queue_offset=k, store_timestamp=1000 * k, properties=properties) for k in range(3)]
    for rules in (
        DispatchRules(),
        DispatchRules(delays=()),
        DispatchRules(multi_dispatch=True, lmq=True),
        DispatchRules(multi_dispatch=True, only_light_queues=True),
        DispatchRules(only_light_queues=True, index_tags=True),
    ):
        agree(*laid(records), rules)


WORDS = st.sampled_from(
    [
        b"TAGS",
        b"KEYS",
        b"UNIQ_KEY",
        b"DELAY",
        b"INNER_MULTI_DISPATCH",
        b"INNER_MULTI_QUEUE_OFFSET",
        b"INNER_NUM",
        b"\x01",
        b"\x02",
        b" ",
        b"a",
        b"7",
        b"\xff",
        b",",
    ]
)


@given(
    st.lists(
        st.builds(
            Record,
            topic=st.sampled_from(["T", "U", "SCHEDULE_TOPIC_XXXX", "ö"]),
            body=st.binary(max_size=3),
            queue_id=st.integers(-2, 3),
            queue_offset=st.integers(0, 5),
            sys_flag=st.sampled_from([0, 4, 8, 12, 1]),
            store_timestamp=st.integers(0, 2**50),
            properties=st.lists(WORDS, max_size=14).map(b"".join),
            version=st.sampled_from([1, 2]),
        ),
        max_size=8,
    )
)
@settings(deadline=None, max_examples=150)
def test_any_records_are_dispatched_as_by_the_plain_function(records: list[Record]) -> None:
    data, positions = laid(records)
    for rules in (DispatchRules(), DispatchRules(multi_dispatch=True, lmq=True, only_light_queues=True, index_tags=True)):
        expected = model(data, positions, rules)
        assert made(dispatch_positions(data, positions, rules)) == expected


# gathering


@given(
    st.integers(0, 5).flatmap(
        lambda groups: st.tuples(st.just(groups), st.lists(st.tuples(st.integers(-1, groups - 1), st.integers(-3, 4)), max_size=30))
    )
)
@settings(deadline=None, max_examples=100)
def test_gathering_by_group_keeps_the_order_of_the_log(asked: tuple[int, list[tuple[int, int]]]) -> None:
    groups, rows = asked
    entries = np.arange(20 * len(rows), dtype=np.int64).astype(np.uint8)
    group = np.array([row[0] for row in rows], np.int32)
    offsets = np.array([row[1] for row in rows], np.int64)
    first, count, start = (np.zeros(groups, np.int64) for _ in range(3))
    plain, out = np.zeros(groups, np.uint8), np.zeros(20 * len(rows), np.uint8)
    total = dispatch.sort_by_group(entries, group, offsets, first, count, plain, start, out)
    assert total == (group >= 0).sum()
    at = 0
    for g in range(groups):
        members = np.flatnonzero(group == g)
        assert (count[g], start[g]) == (len(members), at)
        assert out[20 * at : 20 * (at + len(members))].tobytes() == entries.reshape(-1, 20)[members].tobytes()
        assert plain[g] == (np.diff(offsets[members]) == 1).all()
        assert not len(members) or first[g] == offsets[members[0]]
        at += len(members)


def test_arrays_that_are_too_small_are_refused() -> None:
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="too small"):
        dispatch.sort_by_group(
            np.zeros(10, np.uint8), np.zeros(1, np.int32), one, one, one, np.zeros(1, np.uint8), one, np.zeros(20, np.uint8)
        )
    with pytest.raises(ValueError, match="out of range"):
        dispatch.sort_by_group(
            np.zeros(20, np.uint8), np.ones(1, np.int32), one, one, one, np.zeros(1, np.uint8), one, np.zeros(20, np.uint8)
        )
    with pytest.raises(ValueError, match="power of two"):
        dispatch.enter_groups(np.zeros(1, np.uint8), np.full(6, -1, np.int32), one, one, np.zeros(1, np.int32), 1)


def test_registered_groups_are_found_again() -> None:
    topics = [f"topic{k}".encode() for k in range(600)]
    data = np.frombuffer(b"".join(topics), np.uint8)
    lengths = np.array([len(topic) for topic in topics], np.int64)
    starts = np.cumsum(lengths) - lengths
    queues = np.arange(600, dtype=np.int32) % 5
    table = np.full(2048, -1, np.int32)
    dispatch.enter_groups(data, table, starts, lengths, queues, 600)
    assert sorted(table[table >= 0].tolist()) == list(range(600))
    again = np.full(2048, -1, np.int32)
    dispatch.enter_groups(data, again, starts, lengths, queues, 600)
    assert (table == again).all()


# merging runs


def test_runs_of_one_queue_are_merged_in_log_order() -> None:
    def run(*rows: tuple[int, int]) -> dispatcher.QueueRun:
        raw = b"".join(struct.pack(">qiq", physical, 100, 0) for _, physical in rows)
        return dispatcher.QueueRun("T", 0, np.array([offset for offset, _ in rows]), np.frombuffer(raw, np.uint8), True)

    (merged,) = merge_runs([run((0, 10), (1, 30)), run((1, 20)), run((2, 40))])
    assert merged.offsets.tolist() == [0, 1, 1, 2]
    assert merged.entries.reshape(-1, 20)[:, 7].tolist() == [10, 20, 30, 40]
    assert not merged.consecutive
    (merged,) = merge_runs([run((5, 10)), run((6, 20))])
    assert merged.consecutive
