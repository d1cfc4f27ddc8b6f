"""`find` in RabbitMQ stores, against a search of the message table, row by row."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.golden import RABBITMQ, GoldenCase, case_id, case_named, opened, run_cli

from mqstore.rabbitmq import QueueStore
from mqstore.rabbitmq.find import FoundInQueues, find
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.stores import open_store
from mqstore.table.columns import QueueSelection
from mqstore.table.needle import Needle
from mqstore.table.text import json_rows, rabbitmq_columns_for, rename_properties_json


def store_of(case: GoldenCase) -> RabbitMQStore:
    store = open_store(opened(case))
    assert isinstance(store, RabbitMQStore)
    return store


def rows_of(store: RabbitMQStore) -> list[dict[str, Any]]:
    batches = store.to_batches(rabbitmq_columns_for("base64"), QueueSelection(everything=True))
    return [json.loads(row) for batch in batches for row in json_rows(rename_properties_json(batch), "base64")]


def place(row: dict[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("vhost", "queue", "priority_level", "seq_id", "store_file", "position"))


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_the_hits_are_those_of_a_search_of_all_rows(case: GoldenCase) -> None:
    store = store_of(case)
    rows = rows_of(store)
    bodies = [base64.b64decode(row["payload_b64"] or "") for row in rows]
    texts = {body[2:9].decode() for body in bodies[:: max(1, len(bodies) // 3)] if len(body) > 9 and body[2:9].isascii()}
    texts |= {rows[len(rows) // 2]["msg_id"] or "none", "delivery", "no such text", "消息"}
    for text in sorted(texts):
        counts = FoundInQueues()
        found = list(find(store, Needle(text), counts))
        expected = [
            place(row)
            for row, body in zip(rows, bodies, strict=True)
            if text.encode() in body or text == row["msg_id"] or any(text in part for part in values(row["properties"]))
        ]
        assert [place(row) for row in found if "base64" not in row["matched_as"]] == expected, text
        assert counts.messages == len(rows)
        assert counts.hits == len(found)


def values(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [part for name, inner in value.items() for part in ([name] if name != "headers" else []) + values(inner)]
    if isinstance(value, list):
        return [part for inner in value for part in values(inner)]
    return [] if value is None or isinstance(value, bool) else [str(value)]


def test_an_acknowledged_message_and_its_dead_letter_have_different_states() -> None:
    document = run_cli("find", opened(case_named("3.10.8/f-mixed-features")), "dead-2", "-o", "json").document
    assert [(row["queue"], row["state"], row["matched_in"]) for row in document["messages"]] == [
        ("dead.letters", "waiting", ["payload"]),
        ("dl.source", "acknowledged", ["payload"]),
    ]


def test_compressed_payloads_and_ids_are_found(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "msg_stores") as store:
        store.declare("orders")
        store.publish("orders", gzip.compress(b"paid: order-4711"))
        store.publish("orders", b"1", properties={"correlation_id": b"order-4711", "delivery_mode": 2})
        store.publish("orders", b"2", properties={"message_id": b'order-4711 "quoted"', "delivery_mode": 2})
    opened_store = open_store(tmp_path / "msg_stores")
    assert isinstance(opened_store, RabbitMQStore)
    found = list(find(opened_store, Needle("order-4711"), FoundInQueues()))
    assert [(row["matched_in"], row["matched_as"]) for row in found] == [
        (["payload"], ["compressed", "text"]),
        (["correlation_id"], ["text"]),
        (["message_id"], ["text"]),
    ]
    assert [row["matched_in"] for row in find(opened_store, Needle('4711 "quoted"'), FoundInQueues())] == [["message_id"]]
