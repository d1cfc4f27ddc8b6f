"""`find` against a search of the message table, row by row, in every golden store."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, opened

from mqstore import pipeline
from mqstore.places import open_rocketmq
from mqstore.rocketmq import Message, MessageStore
from mqstore.table.text import columns_for, python_rows

PLAIN = case_named("4.9.3/f-broker-offsets")


def rows_of(case: GoldenCase) -> list[dict[str, Any]]:
    batches = open_rocketmq(opened(case), config=case.config if case.config.exists() else None).to_batches(
        columns_for("base64"), milliseconds=True
    )
    return [row for batch in batches for row in python_rows(batch, "base64")]


def holds(row: dict[str, Any], text: str) -> bool:
    """Search a row as a person would: its properties, and its body as it is and as base64 of any part."""
    body = base64.b64decode(row["body"]) if row["body"] is not None else b""
    if text.encode() in body or any(text in part for pair in (row["properties"] or {}).items() for part in pair):
        return True
    return any(text.encode() in _decoded(body[shift:]) for shift in range(4))


def _decoded(body: bytes) -> bytes:
    kept = body[: len(body) // 4 * 4]
    try:
        return base64.b64decode(kept, validate=True)
    except ValueError:
        return b""


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_hits_are_those_of_a_search_of_all_rows(case: GoldenCase) -> None:
    rows = rows_of(case)
    config = case.config if case.config.exists() else None
    if not rows:
        pytest.skip("the log of this store holds no record")
    middle = rows[len(rows) // 2]
    texts = {(middle["uniq_key"] or "none")[:40], "OrderID4", "消息", "no such text anywhere"}
    texts |= set((middle["keys"] or "").split()[:1])
    body = base64.b64decode(middle["body"] or "")
    texts |= {body[5:17].decode()} if body[5:17].isascii() and len(body) > 17 else set()
    for text in sorted(each for each in texts if len(each.encode()) >= 2):
        found = pipeline.find(opened(case), text, threads=1, config=config)
        expected = [row["physical_offset"] for row in rows if holds(row, text)]
        assert [row["physical_offset"] for row in found.rows] == expected, text
        assert found.hits == len(expected)
        assert found.records == len(rows)


def test_a_hit_says_which_groups_have_passed_it() -> None:
    offsets = {(each.group, each.topic, each.queue_id): each for each in open_rocketmq(opened(PLAIN)).view().consumer_offsets()}
    found = pipeline.find(opened(PLAIN), "order", threads=1)
    seen = set()
    for row in found.rows:
        for each in row["consumed_by"]:
            assert offsets[each["group"], row["topic"], row["queue_id"]].offset > row["queue_offset"]
        for each in row["not_consumed_by"]:
            known = offsets.get((each["group"], row["topic"], row["queue_id"]))
            assert each["state"] == ("no-offset" if known is None else "above-max" if known.state == "above-max" else "waiting")
            assert known is None or known.state == "above-max" or known.offset <= row["queue_offset"]
        named = {each["group"] for each in (*row["consumed_by"], *row["not_consumed_by"])}
        assert named == {group for group, topic, _ in offsets if topic == row["topic"]}
        seen.add(row["state"])
    assert {"consumed", "waiting"} <= seen


@pytest.mark.parametrize("case", [case for case in CASES if case.kind == "plain"], ids=case_id)
def test_a_whole_key_is_found_through_the_index_and_by_a_scan_alike(case: GoldenCase) -> None:
    rows = rows_of(case)
    config = case.config if case.config.exists() else None
    keys = [key for row in rows for key in (row["keys"] or "").split(" ") if len(key.encode()) > 1][:: max(1, len(rows) // 3)]
    for key in {*keys, "no-such-key"}:
        found = pipeline.find(opened(case), key, whole_key=True, threads=1, config=config)
        expected = [row["physical_offset"] for row in rows if key == row["uniq_key"] or key in (row["keys"] or "").split(" ")]
        assert [row["physical_offset"] for row in found.rows] == expected


def test_the_index_spares_the_log_where_it_is_proved() -> None:
    case = case_named("4.9.3/a-clean-small")
    found = pipeline.find(opened(case), "OrderID336", whole_key=True, threads=1, config=case.config)
    assert found.how.endswith("nothing is scanned")
    assert 0 < found.records < len(rows_of(case))


def _store(path: Path, *messages: Message) -> Path:
    with MessageStore.open(path) as store:
        for message in messages:
            assert store.put(message).stored
    return path


def test_bodies_are_found_as_they_are_as_base64_and_compressed(tmp_path: Path) -> None:
    inner = base64.b64encode(b'{"id":"order-4711"}')
    path = _store(
        tmp_path / "store",
        Message("t", b"about order-4711"),
        Message("t", b'{"payload":"' + inner + b'"}'),
        Message("t", zlib.compress(b"order-4711 " * 50)),
        Message("t", b"x" * 20000 + b"order-4711"),
        Message("t", b"order-4712", keys="order-4711"),
        Message("t", b"", properties={"CORRELATION_ID": "order-4711"}),
        Message("order-4711", b"a topic of that name is not a hit"),
    )
    found = pipeline.find(path, "order-4711", threads=2, body="none")
    assert [(row["matched_in"], row["matched_as"]) for row in found.rows] == [
        (["body"], ["text"]),
        (["body"], ["base64"]),
        (["body"], ["compressed", "text"]),
        (["body"], ["text"]),
        (["keys"], ["text"]),
        (["correlation_id"], ["text"]),
    ]
    assert found.complete
    assert json.dumps(found.as_dict())


def test_a_message_id_leads_to_its_message() -> None:
    case = case_named("4.9.3/a-clean-small")
    row = rows_of(case)[100]
    found = pipeline.find(opened(case), row["msg_id"], threads=1, config=case.config)
    assert [(each["physical_offset"], each["matched_in"]) for each in found.rows] == [(row["physical_offset"], ["msg_id"])]


def test_a_text_in_bytes_that_are_not_a_record_is_reported(tmp_path: Path) -> None:
    path = _store(tmp_path / "store", Message("t", b"one"), Message("t", b"order-4711"), Message("t", b"three"))
    log = next((path / "commitlog").iterdir())
    raw = bytearray(log.read_bytes()[:2000])
    at = raw.index(b"order-4711")
    with log.open("r+b") as file:
        file.seek(raw.rindex(bytes.fromhex("daa320a7"), 0, at))
        file.write(b"\0\0\0\0")
    found = pipeline.find(path, "order-4711", threads=1)
    assert found.hits == 0
    assert found.buried == (("commitlog/00000000000000000000", at),)
    assert not found.complete


def test_the_limit_bounds_the_rows_and_not_the_count(tmp_path: Path) -> None:
    path = _store(tmp_path / "store", *(Message("t", b"order-%d" % number) for number in range(50)))
    found = pipeline.find(path, "order-", limit=7, threads=1)
    assert len(found.rows) == 7
    assert found.hits == 50


@pytest.mark.spark
def test_spark_finds_the_same(spark: Any) -> None:
    codecs, damaged = case_named("5.3.3/i-v2-codecs-crc"), case_named("4.9.3/m-damaged/16-everything")
    key = next(row["keys"] for row in rows_of(PLAIN) if row["keys"]).split()[0]
    for case, text, whole in ((PLAIN, "order1", False), (PLAIN, key, True), (codecs, "user@", False), (damaged, "order", False)):
        config = case.config if case.config.exists() else None
        alone = pipeline.find(opened(case), text, threads=1, whole_key=whole, config=config)
        spread = pipeline.find(opened(case), text, spark=spark, whole_key=whole, config=config)
        assert alone.hits
        for name in ("rows", "hits", "records", "searched", "how", "buried", "unsearched", "damage", "damaged_ranges", "complete"):
            assert getattr(spread, name) == getattr(alone, name), (case.id, name)
