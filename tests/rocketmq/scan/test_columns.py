"""The message table: every column against the plain codec, selections, and verdicts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.golden import PLAIN, GoldenCase, case_id, opened
from support.stores import BEGIN, Store, message

import mqstore
from mqstore.findings import Verdict
from mqstore.rocketmq.format.compression import decompress
from mqstore.rocketmq.format.java_text import decode_utf8
from mqstore.rocketmq.format.record import Record, body_crc, offset_message_id, parse_host, split_keys
from mqstore.table.columns import EXTRA_COLUMNS, ROCKETMQ_COLUMNS, Selection, rocketmq_schema

Row = dict[str, Any]
COLUMNS = (*ROCKETMQ_COLUMNS, *EXTRA_COLUMNS)


def rows(root: Path, columns: tuple[str, ...] = COLUMNS, selection: Selection = Selection(), config: Path | None = None) -> list[Row]:
    found: list[Row] = []
    for batch in mqstore.open(root, config=config).to_batches(columns, selection):
        assert batch.schema == rocketmq_schema(columns)
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def model(record: Record, size: int) -> Row:
    """A row in plain Python."""
    properties = record.property_map()
    body = decompress(record.body, record.sys_flag)
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": size,
        "tags": properties.get("TAGS"),
        "keys": split_keys(properties["KEYS"]) if "KEYS" in properties else None,
        "uniq_key": properties.get("UNIQ_KEY"),
        "body": body,
        "body_crc": record.body_crc,
        "body_crc_ok": True,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "born_host": record.born_host,
        "store_host": record.store_host,
        "msg_id": offset_message_id(parse_host(record.store_host), record.physical_offset),
        "body_len": len(body),
        "body_sha256": hashlib.sha256(body).hexdigest(),
        "stored_body_len": len(record.body),
    }


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_column_of_every_real_record_is_what_the_codec_says(case: GoldenCase) -> None:
    store = mqstore.open(opened(case), config=case.config)
    found = rows(opened(case), config=case.config)
    assert len(found) > 100
    for row in found:
        record = store.log.record(row["physical_offset"])
        assert record is not None
        wanted = model(record, len(store.log.raw(row["physical_offset"]) or b""))
        assert {name: row[name] for name in wanted} == wanted
        assert dict(row["properties"]) == record.property_map()
        assert round(row["born_timestamp"].timestamp() * 1000) == record.born_timestamp
        assert round(row["store_timestamp"].timestamp() * 1000) == record.store_timestamp


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path, file_size=8192)
    for number in range(80):
        topic = ("orders", "bills", "öre")[number % 3]
        made.put(
            message(topic, b"body %d" % number, keys=f"k{number} k{number % 5}", tags=f"tag{number % 2}", queue_id=number % 4),
            at=1000 * number,
        )
    made.put(message("bare"), at=100_000)
    made.write()
    return made


def chosen(store: Store, fits: Callable[[Record], bool]) -> list[int]:
    return [put.offset for put in store.puts if fits(put.record)]


def key_of(record: Record) -> list[str]:
    return split_keys(record.property_map().get("KEYS", ""))


@pytest.mark.parametrize(
    ("selection", "fits"),
    [
        (Selection(), lambda r: True),
        (Selection(topics=frozenset({"öre", "bare"})), lambda r: r.topic in ("öre", "bare")),
        (Selection(queue_ids=frozenset({1, 3})), lambda r: r.queue_id in (1, 3)),
        (Selection(tags=frozenset({"tag1"})), lambda r: "tag1" in r.property_map().values()),
        (Selection(keys=frozenset({"k3", "k77"})), lambda r: {"k3", "k77"} & set(key_of(r))),
        (Selection(keys=frozenset({"k3 k3"})), lambda r: r.property_map().get("KEYS") == "k3 k3"),
        (Selection(since=BEGIN + 5000, until=BEGIN + 9000), lambda r: BEGIN + 5000 <= r.store_timestamp < BEGIN + 9000),
        (Selection(from_offset=1000, to_offset=9000), lambda r: 1000 <= r.physical_offset < 9000),
        (Selection(from_offset=8191), lambda r: r.physical_offset >= 8191),
        (Selection(from_queue_offset=2, to_queue_offset=4), lambda r: 2 <= r.queue_offset < 4),
        (Selection(grep=re.compile(rb"body \d$")), lambda r: re.search(rb"body \d$", r.body)),
        (
            Selection(topics=frozenset({"orders"}), queue_ids=frozenset({0}), tags=frozenset({"tag0"})),
            lambda r: (r.topic, r.queue_id) == ("orders", 0),
        ),
        (Selection(topics=frozenset({"nobody"})), lambda r: False),
    ],
)
def test_a_selection_keeps_exactly_the_records_that_fit(store: Store, selection: Selection, fits: Callable[[Record], bool]) -> None:
    wanted = chosen(store, fits)
    assert [row["physical_offset"] for row in rows(store.root, ("physical_offset",), selection)] == wanted
    for limit in (0, 1, 3, 1000):
        some = rows(store.root, ("physical_offset",), replace(selection, limit=limit))
        assert [row["physical_offset"] for row in some] == wanted[:limit]


def test_columns_come_in_the_order_in_which_they_are_asked_for(store: Store) -> None:
    assert list(rows(store.root, ("verdict", "topic", "size"))[0]) == ["verdict", "topic", "size"]


def test_times_and_numbers_at_their_bounds_are_told_or_null(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for time in (-(2**63), -1, 0, 2**45, 2**63 - 1):
        store.put(message("T"), at=time - BEGIN)
    store.put(message("T", flag=-(2**31), reconsume_times=2**31 - 1, prepared_transaction_offset=-(2**63)), at=0)
    store.write()
    found = rows(tmp_path, ("store_timestamp", "flag", "reconsume_times", "prepared_transaction_offset"))
    assert [row["store_timestamp"] is None for row in found] == [True, False, False, False, True, False]
    assert found[-1]["flag"] == -(2**31)
    milliseconds = [
        row for batch in mqstore.open(tmp_path).to_batches(("store_timestamp",), milliseconds=True) for row in batch.to_pylist()
    ]
    assert [row["store_timestamp"] for row in milliseconds[:5]] == [-(2**63), -1, 0, 2**45, 2**63 - 1]


def test_the_last_of_equal_properties_counts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(message("T", properties=b"a\x011\x02TAGS\x01x\x02a\x012\x02TAGS\x01y\x02"))
    store.put(message("T", properties=b"Aa\x011\x02BB\x012\x02"))
    store.write()
    found = rows(tmp_path)
    assert [dict(row["properties"]) for row in found] == [{"a": "2", "TAGS": "y"}, {"Aa": "1", "BB": "2"}]
    assert found[0]["tags"] == "y"


def test_text_that_is_not_utf8_is_replaced_as_java_does(tmp_path: Path) -> None:
    raw = b"a\xff\xed\xa0\x80b\xe4\xb8"
    store = Store(tmp_path)
    store.put(message("T", properties=b"TAGS\x01" + raw + b"\x02KEYS\x01" + raw + b" k\x02"))
    store.write()
    (row,) = rows(tmp_path)
    assert row["tags"] == decode_utf8(raw)
    assert row["keys"] == [decode_utf8(raw), "k"]
    assert row["verdict"] == Verdict.DAMAGED


# verdicts


def verdicts(root: Path) -> list[str]:
    return [row["verdict"] for row in rows(root, ("verdict",))]


def test_a_sound_message_in_its_queue_is_intact(store: Store) -> None:
    assert set(verdicts(store.root)) == {Verdict.INTACT}


def test_a_message_that_its_queue_does_not_list_is_unindexed(tmp_path: Path) -> None:
    store = Store(tmp_path, listed=3)
    store.put(*[message("T") for _ in range(5)], message("without a queue"))
    store.write()
    assert verdicts(tmp_path) == ["intact"] * 3 + ["unindexed"] * 3


def test_a_message_whose_entry_leads_elsewhere_is_unindexed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(*[message("T") for _ in range(5)])
    store.write()
    file, at = store.entry(store.puts[2])
    store.patch(file, at, (7).to_bytes(8, "big"))
    assert verdicts(tmp_path) == ["intact", "intact", "unindexed", "intact", "intact"]


def test_a_message_stored_twice_is_a_duplicate_where_its_queue_leads_to_the_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(message("T"), message("T"))
    store.next_queue_offset["T", 0] = 1
    store.put(message("T"))
    store.write()
    assert verdicts(tmp_path) == ["intact", "duplicate", "intact"]


def test_what_no_queue_lists_by_design_is_intact(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(message("T", sys_flag=4), message("T", sys_flag=12))
    store.write()
    assert verdicts(tmp_path) == ["intact", "intact"]


@pytest.mark.parametrize(
    "fields",
    [{"body_crc": 5}, {"sys_flag": 1}, {"properties": b"no pair"}, {"properties": b"a\x01\xff"}, {"properties": b"a\x01b\0"}],
)
def test_a_record_that_contradicts_itself_is_damaged(tmp_path: Path, fields: dict[str, Any]) -> None:
    store = Store(tmp_path)
    store.put(message("T"), message("T", b"body", **fields), message("T", b""))
    store.write()
    assert verdicts(tmp_path) == ["intact", "damaged", "intact"]
    row = rows(tmp_path)[1]
    assert row["body_crc_ok"] == ("body_crc" not in fields)
    assert row["body"] == (None if "sys_flag" in fields else b"body")
    assert row["body_crc"] == fields.get("body_crc", body_crc(b"body"))
