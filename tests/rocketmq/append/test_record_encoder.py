"""Message tables written to a commit log, compared with the plain encoder, message by message."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.errors import UsageError
from mqstore.kernels.rocketmq import frames
from mqstore.kernels.rocketmq.encode import LogFileWriter
from mqstore.rocketmq.append import record_encoder as encoding
from mqstore.rocketmq.append.record_encoder import BatchColumns
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.message import Message, property_text
from mqstore.rocketmq.format.record import Record
from mqstore.table.needle import Parts

NOW = 1640995200000
MAP = pa.map_(pa.string(), pa.string())


def log_of(columns: BatchColumns, starts: dict[tuple[str, int], int] | None = None) -> bytes:
    """Return what is written at offset 1000 of a log, in one file as long as needed; store time NOW + 5."""
    columns.stamp(NOW + 5)
    columns.assign_offsets(np.array([(starts or {}).get(group, 0) for group in columns.groups], np.int64))
    size = int(columns.sizes.sum())
    page = np.zeros(size + 8, np.uint8)
    assert columns.write(LogFileWriter(page), 0, size + 8, 1000) == (len(columns), size)
    assert not page[size:].any()
    return page[:size].tobytes()


def records_of(raw: bytes) -> list[Record]:
    """Return the records of a range of log."""
    found, at = [], 0
    while at < len(raw):
        found.append(record.decode(raw[at:]))
        assert found[-1].physical_offset == 1000 + at
        at += int.from_bytes(raw[at : at + 4], "big")
    return found


def of(table: dict[str, Any], **options: Any) -> list[Record]:
    """Return the records of a table given as columns."""
    return records_of(log_of(BatchColumns.from_arrow(pa.RecordBatch.from_pydict(table), **{"version": "4.9.3", "now": NOW, **options})))


TEXT = st.text("abé订😀 =", min_size=1, max_size=8)
INT = st.integers(-(2**31), 2**31 - 1)
HOSTS = st.none() | st.sampled_from(["127.0.0.1:10911", "10.1.2.3:5", "[::1]:124", "[1050::5:600:300c:326b]:123"])
MESSAGES = st.lists(
    st.builds(
        Message,
        topic=st.sampled_from(["orders", "t", "订单", "x" * 127]),
        body=st.binary(max_size=60) | st.integers(1000, 3000).map(lambda n: n * b"z"),
        queue_id=st.integers(0, 3) | st.just(2**31 - 1),
        keys=st.none() | TEXT,
        tags=st.none() | TEXT,
        properties=st.none() | st.dictionaries(st.sampled_from(["a", "CLUSTER", "é"]), TEXT, max_size=3),
        flag=INT,
        sys_flag=st.sampled_from([0, 0x4, 0x8, 0xC, 0x2]),
        born_timestamp=st.none() | st.integers(0, 2**50),
        born_host=HOSTS,
        store_host=HOSTS,
        reconsume_times=INT,
        prepared_transaction_offset=st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=12,
)
TYPES = {
    "plain": lambda kind: kind,
    "large": lambda kind: {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind),
    "dictionary": lambda kind: pa.dictionary(pa.uint8(), kind) if kind in (pa.string(), pa.binary()) else kind,
    "view": lambda kind: {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}.get(kind, kind),
}


def array_of(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Return an array; Arrow makes large, dictionary and view types only from the plain ones."""
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def table_of(messages: list[Message], form: str) -> pa.RecordBatch:
    """Return messages as a message table, in one of the forms that a column can have."""
    shape = TYPES[form]
    kinds: dict[str, tuple[pa.DataType, list[Any]]] = {
        "topic": (pa.string(), [each.topic for each in messages]),
        "body": (pa.binary(), [each.body for each in messages]),
        "born_host": (pa.string(), [each.born_host for each in messages]),
        "store_host": (pa.string(), [each.store_host for each in messages]),
        "born_timestamp": (pa.int64(), [each.born_timestamp for each in messages]),
        "prepared_transaction_offset": (pa.int64(), [each.prepared_transaction_offset for each in messages]),
    }
    for name in ("queue_id", "flag", "sys_flag", "reconsume_times"):
        kinds[name] = (pa.int32(), [getattr(each, name) for each in messages])
    given = [each.property_map() for each in messages]
    kinds["keys"] = (pa.string(), [each.pop("KEYS", None) for each in given])
    kinds["tags"] = (pa.string(), [each.pop("TAGS", None) for each in given])
    kinds["properties"] = (MAP, [list(each.items()) for each in given])
    return pa.RecordBatch.from_pydict({name: array_of(shape(kind), values) for name, (kind, values) in kinds.items()})


def expected(messages: list[Message], version: str, following: dict[tuple[str, int], int]) -> list[Record]:
    """Return the records of messages that were put one by one."""
    found, at, numbers = [], 1000, dict(following)
    for each in messages:
        queue = each.topic, each.queue_id
        listed = each.sys_flag & 0xC in (0, 8)
        bits = 0x10 if (each.born_host or "").startswith("[") else 0
        bits |= 0x20 if (each.store_host or "").startswith("[") else 0
        made = Record(
            each.topic,
            bytes(each.body),
            each.queue_id,
            each.flag,
            numbers.get(queue, 0) if listed else 0,
            at,
            each.sys_flag | bits,
            NOW if each.born_timestamp is None else each.born_timestamp,
            each.born_host or "127.0.0.1:10911",
            NOW + 5,
            each.store_host or "127.0.0.1:10911",
            each.reconsume_times,
            each.prepared_transaction_offset,
            property_text(each, version),
            record.body_crc(each.body),
        )
        numbers[queue] = numbers.get(queue, 0) + listed
        at += len(record.encode(made))
        found.append(made)
    return found


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
@pytest.mark.parametrize("form", sorted(TYPES))
@given(messages=MESSAGES, cut=st.integers(0, 3))
@settings(deadline=None, max_examples=40)
def test_a_table_becomes_the_records_of_its_messages(form: str, version: str, messages: list[Message], cut: int) -> None:
    starts = {("orders", 0): 100, ("t", 1): 7}
    columns = BatchColumns.from_arrow(table_of(messages, form).slice(cut), version=version, now=NOW)
    raw = log_of(columns, starts)
    assert records_of(raw) == expected(messages[cut:], version, starts)
    assert len(set(columns.groups)) == len(columns.groups)


@given(messages=MESSAGES)
@settings(deadline=None, max_examples=30)
def test_the_table_of_a_store_gives_its_records_again(messages: list[Message]) -> None:
    """keys, tags and uniq_key repeat what the map has: the map counts, and its order."""
    stored = expected(messages, "4.9.3", {})
    table = table_of(messages, "plain").drop_columns(["keys", "tags", "properties"])
    maps = [[*reversed(each.property_map().items()), ("UNIQ_KEY", "u")] for each in stored]
    table = table.append_column("properties", pa.array(maps, MAP))
    table = table.append_column(
        "keys", pa.array([None if not (keys := dict(each).get("KEYS")) else [keys] for each in maps], pa.list_(pa.string()))
    )
    table = table.append_column("tags", pa.array([dict(each).get("TAGS") for each in maps], pa.string()))
    table = table.append_column("uniq_key", pa.array(["u"] * len(maps), pa.string()))
    found = records_of(log_of(BatchColumns.from_arrow(table, version="4.9.3", now=NOW)))
    assert [each.properties for each in found] == [record.encode_properties(dict(each)) for each in maps]


def test_a_topic_alone_is_enough() -> None:
    (made,) = of({"topic": ["T"]})
    assert made == Record("T", b"", 0, 0, 0, 1000, 0, NOW, "127.0.0.1:10911", NOW + 5, "127.0.0.1:10911", 0, 0, b"", 0)
    assert len(BatchColumns.from_arrow(pa.RecordBatch.from_pydict({"topic": pa.array([], pa.string())}))) == 0


def test_columns_of_nulls_are_the_defaults() -> None:
    names = ("body", "keys", "tags", "uniq_key", "properties", "queue_id", "flag", "sys_flag", "born_timestamp", "born_host", "store_host")
    assert of({"topic": ["T", "T"], **{name: pa.nulls(2) for name in names}}) == of({"topic": ["T", "T"]})


def test_what_the_store_decides_is_not_looked_at() -> None:
    plain = of({"topic": ["T"]})
    assert (
        of({"topic": ["T"], "queue_offset": [9], "physical_offset": [9], "body_crc": [1], "size": ["x"], "verdict": ["damaged"]}) == plain
    )


def test_keys_may_be_a_list() -> None:
    found = of({"topic": ["T"] * 4, "keys": [["a", "b"], ["c"], [], None], "uniq_key": ["u", None, "v", None]})
    assert [each.properties for each in found] == [b"KEYS\x01a b\x02UNIQ_KEY\x01u", b"KEYS\x01c", b"UNIQ_KEY\x01v", b""]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary()])
def test_a_property_text_is_stored_as_it_is(kind: pa.DataType) -> None:
    texts = [b"TAGS\x01a\x02", b"KEYS\x01k", None, b""]
    found = of({"topic": ["T"] * 4, "properties": pa.array(texts, pa.binary()).cast(kind)}, version="5.3.3")
    assert [each.properties for each in found] == [text or b"" for text in texts]


def test_times_may_be_of_any_unit() -> None:
    moment = datetime(2022, 1, 1, 0, 0, 0, 123_000, UTC)
    for unit in ("ms", "us", "ns"):
        (made,) = of({"topic": ["T"], "born_timestamp": pa.array([moment], pa.timestamp(unit, "UTC"))})
        assert made.born_timestamp == NOW + 123
    (made,) = of({"topic": ["T"], "born_timestamp": pa.array([-1.0])})
    assert made.born_timestamp == -1


def test_an_expanded_body_loses_the_compression_bits_and_a_stored_one_keeps_them() -> None:
    table = {"topic": ["T", "T"], "sys_flag": [0x701 | 0x8, 0x30]}
    assert [each.sys_flag for each in of(table)] == [0x8, 0]
    assert [each.sys_flag for each in of(table, expanded=False)] == [0x709, 0]


def test_a_property_crc_is_added_and_an_old_one_goes() -> None:
    old = b"__CRC32#\x010123456789\x02"
    maps = pa.array([[("a", "1"), ("__CRC32#", "0123456789")], []], MAP)
    texts = pa.array([b"a\x011\x02" + old, old])
    for given_properties in (maps, texts):
        table = pa.RecordBatch.from_pydict({"topic": ["T", "T"], "body": [b"x" * 3000, b""], "properties": given_properties})
        raw = log_of(BatchColumns.from_arrow(table, version="5.3.3", now=NOW, property_crc=True))
        found = records_of(raw)
        at = 0
        for each, text in zip(found, (b"a\x011\x02", b""), strict=True):
            assert each == record.with_property_crc(replace(each, properties=text))
            at += len(record.encode(each))
        assert at == len(raw)


def test_long_bodies_have_the_same_crc_however_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"topic": ["T"] * 3, "body": [b"x" * 3000, b"y" * 5000, b""]}
    monkeypatch.setattr(encoding, "_LONG_BODY", 1)
    before = of(table)
    monkeypatch.setattr(encoding, "_LONG_BODY", 2**62)
    assert of(table) == before
    assert [each.body_crc for each in before] == [record.body_crc(body) for body in table["body"]]


def test_a_long_topic_makes_a_record_of_version_two() -> None:
    topics = ["%RETRY%" + 121 * "g", "T", "%RETRY%" + 248 * "g"]
    assert [(each.topic, each.version) for each in of({"topic": topics}, version="5.3.3")] == [(topics[0], 2), ("T", 1), (topics[2], 2)]


def test_equal_topics_under_two_numbers_of_a_dictionary_are_one_queue() -> None:
    twins = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 2], pa.int8()), pa.array(["T", "T", "U"]))
    columns = BatchColumns.from_arrow(pa.RecordBatch.from_pydict({"topic": twins}), now=NOW)
    assert (columns.groups, columns.group.tolist()) == ([("T", 0), ("U", 0)], [0, 0, 0, 1])


def test_a_value_that_no_row_has_is_not_judged() -> None:
    unused = pa.DictionaryArray.from_arrays(pa.array([1, 1], pa.int8()), pa.array(["a/b", "T"]))
    hosts = pa.DictionaryArray.from_arrays(pa.array([None, 1], pa.int8()), pa.array(["nowhere", "[::1]:1"]))
    assert [each.born_host for each in of({"topic": unused, "born_host": hosts})] == ["127.0.0.1:10911", "[::1]:1"]


def test_far_queue_ids_are_grouped_as_near_ones() -> None:
    queue_ids = [5, 2**31 - 1, 5, 0, 2**31 - 1]
    columns = BatchColumns.from_arrow(pa.RecordBatch.from_pydict({"topic": list("TTUTT"), "queue_id": queue_ids}), now=NOW)
    assert [columns.groups[group] for group in columns.group] == list(zip("TTUTT", queue_ids, strict=True))
    assert len(columns.groups) == 4


def test_chunks_of_a_table_are_joined() -> None:
    parts = [pa.table({"topic": ["T", "U"], "body": [b"1", b"2"]}), pa.table({"topic": ["T"], "body": [b"3"]})]
    whole = pa.RecordBatch.from_pydict({"topic": ["T", "U", "T"], "body": [b"1", b"2", b"3"]})
    assert log_of(BatchColumns.from_arrow(pa.concat_tables(parts), now=NOW)) == log_of(BatchColumns.from_arrow(whole, now=NOW))
    assert len(BatchColumns.from_arrow(parts[0].slice(0, 0))) == 0


def test_rows_are_recognised_by_their_properties() -> None:
    columns = BatchColumns.from_arrow(
        pa.RecordBatch.from_pydict(
            {"topic": ["T"] * 5, "tags": ["DELAY", "x", None, "DELA", "yDELAYy"], "keys": [None, "Y", "Z", None, "DELAY"]}
        )
    )
    assert columns.holding(Parts(b"DELAY")).tolist() == [True, False, False, False, True]
    assert columns.holding(Parts(b"DELAY\x01", b"TIMER_")).tolist() == [False] * 5
    assert columns.holding(Parts(b"TIMER_", b"KEYS\x01")).tolist() == [False, True, True, False, True]


def test_writing_goes_on_in_the_next_file() -> None:
    columns = BatchColumns.from_arrow(pa.RecordBatch.from_pydict({"topic": ["T"] * 5, "body": [b"x" * 10] * 5}), now=NOW)
    page = np.zeros(250, np.uint8)
    assert columns.sizes.tolist() == [102] * 5
    assert columns.write(LogFileWriter(page), 0, 250, 0) == (2, 204)
    assert columns.write(LogFileWriter(page), 20, 250, 270, 2) == (4, 224)
    assert columns.fields[frames.PHYSICAL_OFFSET, :4].tolist() == [0, 102, 270, 372]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"body": [b"x"]}, "there is no column 'topic'"),
        ({"topic": ["T"], "toppic": ["T"]}, "there is no column 'toppic'; the columns are topic, queue_id"),
        ({"topic": ["T", None]}, "column topic, row 11: it is null"),
        ({"topic": ["T", ""]}, "column topic, row 11: it is empty"),
        ({"topic": ["T", "U", "a/b"]}, "column topic, row 12: 'a/b' cannot be the name of a directory"),
        ({"topic": [".."]}, "column topic, row 10: '..' cannot be the name of a directory"),
        ({"topic": ["T", 128 * "x"]}, "column topic, row 11: a topic of 128 bytes is longer than the 127 that fit"),
        ({"topic": ["T", 43 * "订"]}, "column topic, row 11: a topic of 129 bytes is longer than the 127 that fit"),
        ({"topic": [1]}, "column topic is of type int64, it must be text"),
        ({"topic": ["T"], "keys": pa.array([[b"\xff"]], pa.list_(pa.binary()))}, "column keys is not UTF-8 text"),
        ({"topic": [b"\xff"]}, "column topic is not UTF-8 text"),
        ({"topic": ["T"], "body": ["x" * 5000]}, "column body, row 10: its record takes 5092 bytes, the store accepts 4096"),
        ({"topic": ["T"], "body": [1]}, "column body is of type int64, it must be text or bytes"),
        ({"topic": ["T", "T"], "tags": ["x", "y" * 32762]}, "column body, row 11: its record takes"),
        ({"topic": ["T", "T"], "queue_id": [0, -1]}, "column queue_id, row 11: a queue id is not negative"),
        ({"topic": ["T", "T"], "queue_id": [0, 2**31]}, "column queue_id, row 11: 2147483648 does not fit 32 bits"),
        ({"topic": ["T"], "flag": ["1"]}, "column flag is of type string, it must be whole numbers"),
        ({"topic": ["T"], "flag": [1.5]}, "column flag has a value that is not a 64-bit integer"),
        ({"topic": ["T"], "born_timestamp": ["now"]}, "column born_timestamp is of type string, it must be whole numbers"),
        ({"topic": ["T", "T"], "born_host": [None, "nowhere:1"]}, "column born_host, row 11: 'nowhere:1' is not ip:port"),
        ({"topic": ["T"], "store_host": ["1.2.3.4:99999999999"]}, "column store_host, row 10: '1.2.3.4:99999999999' is not ip:port"),
        ({"topic": ["T", "T"], "tags": ["a", "x\x02y"]}, "column tags, row 11: a byte 02 would end the property"),
        ({"topic": ["T", "T"], "keys": [["a"], ["a", None]]}, "column keys, row 11: one of the keys is null"),
        ({"topic": ["T"], "keys": [[1]]}, "column keys is of type list"),
        ({"topic": ["T", "T"], "properties": pa.array([[], [("a", "x\x02")]], MAP)}, "column properties, row 11: a byte 02"),
        ({"topic": ["T", "T"], "properties": pa.array([[], [("a\x01", "x")]], MAP)}, "column properties, row 11: a byte 01"),
        (
            {"topic": ["T", "T"], "properties": [b"", b"a\x01b"], "tags": ["t", "t"]},
            "column tags, row 10: it cannot be added to a property text",
        ),
        ({"topic": ["T", "T"], "properties": [None, b"a\x01b"], "tags": ["t", None]}, "given as text in some rows"),
        ({"topic": ["T"], "properties": [["a"]]}, "column properties is of type list"),
    ],
)
def test_a_bad_row_is_named(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        BatchColumns.from_arrow(pa.RecordBatch.from_pydict(table), version="4.9.3", max_message_size=4096, first_row=10)


def test_limits_are_inclusive() -> None:
    for version, most, over in (("4.9.3", 4096 - 92, "its record takes 4097 bytes"), ("5.3.3", 4096, "it takes 4097 bytes")):
        assert of({"topic": ["T"], "body": ["x" * most]}, version=version, max_message_size=4096)[0].body == most * b"x"
        with pytest.raises(UsageError, match=over):
            of({"topic": ["T"], "body": ["x" * (most + 1)]}, version=version, max_message_size=4096)
    assert of({"topic": [127 * "é" + "x"]}, version="5.3.3")[0].topic == 127 * "é" + "x"
    with pytest.raises(UsageError, match="a topic of 254 bytes is longer than the 127 that fit"):
        of({"topic": [127 * "é"]}, version="5.3.3")
    tags = [32767 - 5 - 1]
    assert len(of({"topic": ["T"], "tags": ["y" * tags[0]]}, version="5.3.3")[0].properties) == 32767
    for excess, crc in ((1, False), (-19, True)):
        with pytest.raises(UsageError, match=r"column properties, row 0: a text of \d+ bytes.* is longer than the 32767 that fit"):
            of({"topic": ["T"], "tags": ["y" * (tags[0] + excess)]}, version="5.3.3", property_crc=crc)
    assert len(of({"topic": ["T"], "tags": ["y" * (tags[0] - 20)]}, version="5.3.3", property_crc=True)[0].properties) == 32767


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array(["T"]), pa.array(["U"])], ["topic", "topic"])
    with pytest.raises(UsageError, match="the same name"):
        BatchColumns.from_arrow(twice)


def test_the_default_host_is_judged() -> None:
    with pytest.raises(UsageError, match="store_host 'here' is not ip:port"):
        BatchColumns.from_arrow(pa.RecordBatch.from_pydict({"topic": ["T"]}), born_host="1.2.3.4:5", store_host="here")
