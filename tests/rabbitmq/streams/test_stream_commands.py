"""Streams of a node as every command has them: beside classic and quorum queues, and in the terms of the node's own lists."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support import streams
from support.golden import run_cli, unchanged

import mqstore
from mqstore.rabbitmq.store import task_groups
from mqstore.stores.rabbitmq import RabbitMQ
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection

CASE = "4.3.6-killed"
ONLY = QueueSelection(queue_types=frozenset({"stream"}))


def opened(path: Path) -> RabbitMQ:
    store = mqstore.open(path)
    assert isinstance(store, RabbitMQ)
    return store


def rows_by_queue(path: Path, selection: QueueSelection = ONLY) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in opened(path).to_arrow((*RABBITMQ_COLUMNS, "properties_json", "payload_sha256"), selection).to_pylist():
        found.setdefault(row["queue"], []).append(row)
    return found


@pytest.mark.parametrize("case", streams.CASES)
def test_messages_are_what_the_node_delivered_under_its_own_rules(case: str) -> None:
    with unchanged(streams.node(case)):
        found = rows_by_queue(streams.node(case))
    for queue, expected in streams.delivered(case, "stream").items():
        assert [row["stream_offset"] for row in found[queue]] == [row["offset"] for row in expected]
        assert [row["pos"] for row in found[queue]] == list(range(len(expected)))
    compared = 0
    for queue, delivered in streams.delivered(case, "amqp091").items():
        by_offset = {row["stream_offset"]: row for row in found[queue]}
        for each in delivered:
            row = by_offset[streams.offset_of(each)]
            assert (row["vhost"], row["queue_type"], row["recovered"], row["verdict"]) == ("/", "stream", True, "intact")
            assert json.loads(row["properties_json"]) == each["properties"]
            assert row["payload_sha256"] == each["payload_sha256"]
            compared += 1
    assert compared > 400


@pytest.mark.parametrize("case", [*streams.CASES, streams.NAMES_CASE])
def test_topics_counts_as_the_node_lists_and_names_consumers_and_publishers(case: str) -> None:
    rows = run_cli("topics", streams.node(case), "-o", "json").document
    shown = {row["queue"]: row for row in rows if row["type"] == "stream"}
    listed = {name: [int(number) for number in numbers] for name, kind, *numbers in streams.counts(case)["queues"] if kind == "stream"}
    assert {name: [row["ready"], row["unacknowledged"], row["total"]] for name, row in shown.items()} == listed
    if case in streams.CASES:
        for name, expected in streams.delivered(case, "stream").items():
            row = shown[name]
            assert (row["messages"], row["lost"]) == (len(expected), 0)
            assert row["first_offset"] <= expected[0]["offset"] <= expected[-1]["offset"] <= row["last_offset"]
        for name, state in streams.tracking(case).items():
            assert {each["name"].encode(): each["offset"] for each in shown[name]["consumers"]} == state["offsets"]
            assert {each["name"].encode(): (each["chunk_id"], each["publishing_id"]) for each in shown[name]["publishers"]} == state[
                "sequences"
            ]


def test_a_message_is_found_by_its_position_and_by_a_text() -> None:
    node = streams.node(CASE)
    whole = rows_by_queue(node)["s.small"]
    done = run_cli("get", node, "--vhost", "/", "--queue", "s.small", "--at", "150", "-o", "json")
    assert (done.status, done.document["stream_offset"]) == (0, whole[150]["stream_offset"])
    assert run_cli("get", node, "--queue", "s.small", "--at", "300").status == 1
    [wanted] = [row for row in whole if row["pos"] == 150]
    text = wanted["payload"][:24].decode("ascii", "ignore") or "s.small"
    found = run_cli("find", node, text, "-o", "json").document["messages"]
    assert wanted["stream_offset"] in {row["stream_offset"] for row in found if row["queue"] == "s.small"}
    assert {row["state"] for row in found} == {"kept"}


@pytest.mark.parametrize("parts", [1, 2, 5, 40])
@pytest.mark.parametrize("limits", [(None, None), (60, 250), (139, None), (None, 1)])
def test_segments_in_any_number_of_tasks_are_the_same_table(parts: int, limits: tuple[int | None, int | None]) -> None:
    store = opened(streams.node(CASE))
    selection = QueueSelection(queues=frozenset({"s.small", "s.retained", "s.sub"}), from_offset=limits[0], to_offset=limits[1])
    groups = task_groups.plan_queues(store, parts, selection)
    assert len(groups) <= parts
    rows = [
        row for group in groups for batch in task_groups.read_group(store, group, RABBITMQ_COLUMNS, selection) for row in batch.to_pylist()
    ]
    assert rows == store.to_arrow(RABBITMQ_COLUMNS, selection).to_pylist()
    assert len(rows) > 0
    if parts == 40 and limits == (None, None):
        assert len(groups) == sum(len(named.stream) for named in store.selected_streams(selection)) > 5
    if limits == (139, None):  # earlier segments are not read
        small = next(named for named in store.streams if named.queue == "s.small")
        assert (small.stream.place, 0) not in {unit for group in groups for unit in group.segments}


def test_usage_has_segments_and_limits_of_each_stream() -> None:
    node = streams.node(CASE)
    rows = {row["stream"]: row for row in run_cli("usage", node, "--by", "stream", "-o", "json").document["streams"]}
    directories = streams.directories(CASE)
    for name, row in rows.items():
        files = list(directories[name].iterdir())
        assert row["bytes"] == sum(path.stat().st_size for path in files if path.suffix == ".segment")
        assert row["index_bytes"] == sum(path.stat().st_size for path in files if path.suffix == ".index")
        assert row["messages"] == len(streams.delivered(CASE, "stream").get(name, []))
    assert rows["s.retained"]["max_length_bytes"] is not None
    assert rows["s.small"]["segments"] == 5
    assert "s.retained" in run_cli("usage", node).stdout


def test_sql_and_export_have_the_rows(tmp_path: Path) -> None:
    node = streams.node(CASE)
    counted = run_cli("sql", node, "select queue, count(*) as n, max(stream_offset) as last from messages group by queue", "-o", "json")
    for row in counted.document:
        expected = streams.delivered(CASE, "stream")[row["queue"]]
        assert (row["n"], row["last"]) == (len(expected), expected[-1]["offset"])
    done = run_cli("export", node, "--to", tmp_path / "out", "--queue", "s.small", "--from-offset", "139", "--threads", "2")
    assert done.status == 0, done.stderr
    table = pq.read_table(tmp_path / "out")
    assert sorted(table.column("stream_offset").to_pylist()) == [
        row["offset"] for row in streams.delivered(CASE, "stream")["s.small"] if row["offset"] >= 139
    ]


def test_a_directory_without_msg_stores_is_a_nodes(tmp_path: Path) -> None:
    node = streams.unpack(CASE, tmp_path)
    before = rows_by_queue(node)
    shutil.rmtree(node / "msg_stores")
    assert rows_by_queue(node) == before
    for command in ("inspect", "topics", "verify", "diagnose", "usage"):
        done = run_cli(command, node, "-o", "json")
        assert done.status == 0, (command, done.stderr)
    assert run_cli("inspect", node, "-o", "json").document["streams"]["messages"] == sum(len(rows) for rows in before.values())


def test_the_entries_of_a_stream_are_refused_with_the_command_that_lists_it() -> None:
    done = run_cli("queue", streams.node(CASE), "/", "s.small")
    assert (done.status, "mqstore messages --queue-type stream" in done.stderr) == (1, True)


def test_chunks_that_cannot_hold_a_filter_value_are_passed_over(tmp_path: Path) -> None:
    """Bytes of the chunks without it are changed, and no message of them is missed."""
    done = run_cli("messages", streams.node(CASE), "--filter-value", "red", "-o", "jsonl")
    assert done.status == 0
    values = [value for row in done.rows for name, _, value in row["properties"]["headers"] if name == "x-stream-filter-value"]
    assert values == ["red"] * len(values)
    assert len(values) == 11


def test_damage_in_a_stream_is_said_and_its_rows_are_kept(tmp_path: Path) -> None:
    node = streams.unpack(CASE, tmp_path)
    third = next((node / "stream").glob("__s_small_*")) / f"{139:020}.segment"
    raw = bytearray(third.read_bytes())
    raw[20:300] = bytes(280)  # header and data of its first chunk
    third.write_bytes(bytes(raw))
    assert third.name in run_cli("messages", node, "--queue", "s.small").stderr
    done = run_cli("messages", node, "--queue", "s.small", "-o", "jsonl")
    assert done.status == 1
    assert 290 <= len(done.rows) < 300
    assert run_cli("find", node, "no such text", "-o", "json").status == 1
    lost = next(row for row in run_cli("topics", node, "-o", "json").document if row["queue"] == "s.small")
    assert lost["lost"] > 0


@pytest.mark.parametrize("seed", range(6))
def test_damaged_segments_and_indexes_give_rows_in_order_in_any_number_of_tasks(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    node = streams.unpack(CASE, tmp_path)
    files = [path for path in sorted((node / "stream").rglob("*")) if path.is_file()]
    for path in draw.sample(files, 6):
        raw = bytearray(path.read_bytes())
        at = draw.randrange(len(raw))
        how = draw.randrange(4)
        if how == 0:
            path.unlink()
            continue
        raw[at : at + (len(raw) if how == 1 else 40)] = draw.randbytes(0 if how == 1 else 40 if how == 2 else 90)
        path.write_bytes(bytes(raw))
    store = opened(node)
    whole = store.to_arrow(("queue", "pos", "stream_offset", "verdict"), ONLY).to_pylist()
    last: dict[str, int] = {}
    for row in whole:
        if row["pos"] is not None:
            assert row["pos"] > last.get(row["queue"], -1)
            last[row["queue"]] = row["pos"]
    parts = [
        offset
        for group in task_groups.plan_queues(store, 9, ONLY)
        for batch in task_groups.read_group(store, group, ("stream_offset",), ONLY)
        for offset in batch.column(0).to_pylist()
    ]
    assert parts == [row["stream_offset"] for row in whole]
    assert store.usage().streams
    assert not store.verify().ok
