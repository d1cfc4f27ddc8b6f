"""`find` by key, id and part of a body, for random messages of every golden store: the hits are those in the brokers' own lists."""

from __future__ import annotations

import base64
import hashlib
import random
from pathlib import Path
from typing import Any

import pytest
from support.golden import FURTHER, OTHER_RABBITMQ, PLAIN, RABBITMQ, GoldenCase, case_id, expected, has, opened, opened_node

from mqstore import pipeline
from mqstore.places import open_rocketmq
from mqstore.rabbitmq.find import FoundInQueues, find
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.stores import open_store
from mqstore.table.columns import QueueSelection
from mqstore.table.needle import Needle
from mqstore.table.text import columns_for, python_rows

MESSAGES = 3
PART = 9  # characters of a body


def part_of(body: bytes, pick: random.Random) -> str | None:
    """Return a random part of a body that is text."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    at = pick.randrange(max(1, len(text) - PART))
    part = text[at : at + PART]
    return part if len(part.encode()) >= 2 else None


def as_text(row: dict[str, Any]) -> bool:
    """Whether a hit holds the text itself, and not only its base64."""
    return row["matched_as"] != ["base64"]


@pytest.mark.parametrize("case", [*PLAIN, *FURTHER], ids=case_id)
def test_messages_of_rocketmq_are_found_as_the_broker_lists_them(case: GoldenCase) -> None:
    config: Path | None = case.config if case.config.exists() else None
    batches = open_rocketmq(opened(case), config=config).to_batches(columns_for("base64"), milliseconds=True)
    own = {row["physical_offset"]: row for batch in batches for row in python_rows(batch, "base64")}
    bodies = {offset: base64.b64decode(row["body"] or "") for offset, row in own.items()}
    listed = expected(case) if has(case, "expected.jsonl") else list(own.values())
    for row in listed:  # the bodies are those that the broker read
        assert hashlib.sha256(bodies[row["physical_offset"]]).hexdigest() == row["body_sha256"]
    if not listed:
        pytest.skip("the log of this store holds no record")
    pick = random.Random(case.id)
    for chosen in pick.sample(listed, min(MESSAGES, len(listed))):
        keys = (chosen["keys"] or "").split(" ")
        texts = {chosen["uniq_key"], pick.choice(keys), chosen["msg_id"], part_of(bodies[chosen["physical_offset"]], pick)}
        for text in sorted(each for each in texts if each and len(each.encode()) >= 2):
            found = pipeline.find(opened(case), text, threads=1, config=config, body="none")
            wanted = [
                row["physical_offset"]
                for row in listed
                if any(text in part for pair in (row["properties"] or {}).items() for part in pair)
                or text.encode() in bodies[row["physical_offset"]]
                or text == row["msg_id"]
            ]
            assert [row["physical_offset"] for row in found.rows if as_text(row)] == wanted, text
            if text in (chosen["uniq_key"], *keys):
                whole = pipeline.find(opened(case), text, whole_key=True, threads=1, config=config, body="none")
                wanted = [row["physical_offset"] for row in listed if text == row["uniq_key"] or text in (row["keys"] or "").split(" ")]
                assert [row["physical_offset"] for row in whole.rows] == wanted, text


def texts_in(value: Any) -> list[str]:
    """Return the texts and numbers inside properties as a row prints them, without the names of AMQP's properties and types."""
    found: list[str] = []
    for name, each in (value or {}).items():
        if name == "headers":
            for header in each:
                found += [str(header[0]), *inside(header[2])]
        elif each is not None:
            found.append(str(each))
    return found


def inside(value: Any) -> list[str]:
    if isinstance(value, list):
        return [part for each in value for part in inside(each)]
    return [] if value is None or isinstance(value, bool | dict) else [str(value)]


@pytest.mark.parametrize("case", [*RABBITMQ, *OTHER_RABBITMQ], ids=case_id)
def test_messages_of_rabbitmq_are_found_as_the_node_delivers_them(case: GoldenCase) -> None:
    store = open_store(opened_node(case) if case in OTHER_RABBITMQ else opened(case))
    assert isinstance(store, RabbitMQStore)
    payloads = {
        hashlib.sha256(body).hexdigest(): body
        for batch in store.to_batches(("payload",), QueueSelection(everything=True))
        for body in batch.column(0).to_pylist()
        if body is not None
    }
    listed = [row for row in expected(case) if row.get("recovered", True)]

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] if row[name] is not None else -1 for name in ("vhost", "queue", "priority_level", "seq_id"))

    pick = random.Random(case.id)
    for chosen in pick.sample(listed, min(MESSAGES, len(listed))):
        properties = chosen["properties"] or {}
        texts = {chosen["msg_id"], part_of(payloads[chosen["payload_sha256"]], pick)}
        texts |= {value for name, value in properties.items() if name in ("message_id", "correlation_id")}
        for text in sorted(each for each in texts if isinstance(each, str) and len(each.encode()) >= 2):
            counts = FoundInQueues()
            rows = [row for row in find(store, Needle(text), counts, body="none") if row["state"] == "waiting" and as_text(row)]
            wanted = [
                row
                for row in listed
                if text == row["msg_id"]
                or text.encode() in payloads[row["payload_sha256"]]
                or any(text in part for part in texts_in(row["properties"]))
            ]
            assert sorted(map(place, rows)) == sorted(map(place, wanted)), text
            assert all(row["matched_in"] for row in rows)
