"""Queues of a node: empty ones, quorum queues and streams are listed with their messages."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.golden import OTHER_RABBITMQ, GoldenCase, case_id, case_named, expected, opened, opened_node, run_cli, unpack_node

import mqstore
from mqstore.rabbitmq.amqp_sender import outgoing_messages
from mqstore.rabbitmq.store.store import RabbitMQStore

# as many were published
STREAMS = {"4.0.5/a-v2-kill9": {"the.stream": 10}}
QUORUM = {"4.0.5/a-v2-kill9": {"the.quorum": 10}}
WITH_DEFINITIONS = [case for case in OTHER_RABBITMQ if (case.path / "definitions.json").exists()]


@pytest.mark.parametrize("case", WITH_DEFINITIONS, ids=case_id)
def test_every_queue_of_the_node_is_listed_with_its_messages(case: GoldenCase) -> None:
    done = run_cli("topics", opened_node(case), "-o", "jsonl")
    assert done.status == 0, done.stderr
    rows = {(row["vhost"], row["queue"]): row for row in done.rows}
    exported = {(queue["vhost"], queue["name"]): queue for queue in json.loads((case.path / "definitions.json").read_text())["queues"]}
    assert set(rows) == set(exported)
    delivered = Counter((row["vhost"], row["queue"]) for row in expected(case))
    for name, row in rows.items():
        assert row["type"] == exported[name]["type"]
        if row["type"] == "classic":
            assert (row["messages"], row["queue_version"]) == (delivered[name], 1 if case.version == "3.8.9" else 2)
        else:
            published = (QUORUM if row["type"] == "quorum" else STREAMS)[case.id]
            assert (row["messages"], row["total"], row["lost"]) == (published[row["queue"]], row["messages"], 0)
    for kind, published in (("stream", STREAMS), ("quorum", QUORUM)):
        assert {row["queue"] for row in rows.values() if row["type"] == kind} == set(published.get(case.id, {}))


@pytest.mark.parametrize("case", OTHER_RABBITMQ, ids=case_id)
def test_every_type_is_read_and_sizes_are_those_of_the_message_stores(case: GoldenCase) -> None:
    found = run_cli("inspect", opened_node(case), "-o", "json").document
    assert (found["unsupported"], found["lost"], found["findings"]) == ([], 0, [])
    assert found["streams"]["messages"] == sum(STREAMS.get(case.id, {}).values())
    alone = run_cli("inspect", opened(case), "-o", "json").document
    assert (found["bytes"], found["files"], found["messages"]) == (alone["bytes"], alone["files"], alone["messages"])
    assert "not read" not in run_cli("topics", opened_node(case)).stdout


def test_a_stream_that_is_defined_and_has_no_files_is_named_as_not_read(tmp_path: Path) -> None:
    node = unpack_node(case_named("4.0.5/a-v2-kill9"), tmp_path / "node")
    shutil.rmtree(node / "stream")
    [part] = run_cli("inspect", node, "-o", "json").document["unsupported"]
    assert part == "stream 'the.stream' of vhost '/': streams without files here are not read"
    assert "1 queue not read" in run_cli("topics", node).stdout


def test_without_metadata_queues_of_other_types_are_read_under_the_names_of_their_directories(tmp_path: Path) -> None:
    node = unpack_node(case_named("4.0.5/a-v2-kill9"), tmp_path / "node")
    for path in [node / "LATEST.LOG", node / "schema.DAT", *node.glob("*.DCD")]:
        path.unlink()
    shutil.rmtree(node / "coordination")
    found = run_cli("inspect", node, "-o", "json").document
    assert found["unsupported"] == []
    assert (found["quorum"]["messages"], found["streams"]["messages"]) == (10, 10)
    assert [row["vhost"] for row in run_cli("topics", node, "-o", "json").document if row["type"] == "stream"] == [None]


def test_an_index_of_an_empty_queue_or_of_another_type_is_refused_by_name() -> None:
    empty = run_cli("queue", opened_node(case_named("3.8.9/a-v1-clean")), "/", "empty")
    assert (empty.status, "queue 'empty' of vhost '/' is empty" in empty.stderr) == (1, True)
    stream = run_cli("queue", opened_node(case_named("4.0.5/a-v2-kill9")), "/", "the.stream")
    assert (stream.status, "'the.stream' of vhost '/' is a stream" in stream.stderr) == (1, True)


def test_a_damaged_log_of_khepri_is_a_finding_of_inspect_and_topics(tmp_path: Path) -> None:
    node = unpack_node(case_named("4.3.6/a-v2-clean"), tmp_path / "node")
    (log,) = node.glob("coordination/*/*.wal")
    log.write_bytes(log.read_bytes()[:100_001])
    found = run_cli("inspect", node, "-o", "json")
    assert (found.status, [item["file"] for item in found.document["findings"]]) == (1, [str(log.relative_to(node))])
    topics = run_cli("topics", node, "-o", "jsonl")
    assert topics.status == 1
    assert "The last record is incomplete or damaged" in " ".join(run_cli("topics", node).stderr.split())
    assert sum(row["messages"] for row in topics.rows) == 211


def test_messages_that_are_not_sent_are_counted_with_the_reason() -> None:
    skipped: Counter[str] = Counter()
    store = mqstore.open(opened(case_named("3.10.8/e2-gc-interrupted")))
    assert isinstance(store, RabbitMQStore)
    sent = sum(1 for _ in outgoing_messages(store, frozenset({"intact"}), skipped=skipped))
    assert skipped == {"unreachable: no file has the message": 3}
    assert sent == 97
    whole: Counter[str] = Counter()
    store = mqstore.open(opened(case_named("4.0.5/a-v2-kill9")))
    assert isinstance(store, RabbitMQStore)
    for message in outgoing_messages(store, frozenset({"intact"}), skipped=whole):
        assert b"x-mqtt-publish-qos" not in message.properties
    assert whole == {}
