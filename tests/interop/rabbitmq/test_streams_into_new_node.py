"""Streams of killed nodes and a real 4.3 node: the messages that `rescue` and `replay` bring there are those of the old one."""

from __future__ import annotations

import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq.other_node import OtherNode, missing, other_node
from support import streams
from support.golden import run_cli

from mqstore.rabbitmq.message import amqp10
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.streams.rows import NOT_AMQP

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

CONSUMING = 60  # seconds


def consumed(node: OtherNode, queue: str, count: int) -> list[tuple[bytes, Any]]:
    """Read a stream from its beginning until count messages are there and a second brings no more."""
    connection = node.connect("/")
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    found: list[tuple[bytes, Any]] = []
    end = time.monotonic() + CONSUMING
    for method, properties, body in channel.consume(queue, arguments={"x-stream-offset": "first"}, inactivity_timeout=1):
        if method is not None:
            found.append((body, properties))
            channel.basic_ack(method.delivery_tag)
        elif len(found) >= count or time.monotonic() > end:
            break
    connection.close()
    return found


@pytest.mark.parametrize("case", streams.CASES)
def test_the_streams_of_a_killed_node_come_to_4_3_by_the_steps_of_a_rescue(case: str, tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    data = streams.unpack(case, tmp_path)
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in run_cli("messages", data, "--queue-type", "stream", "-o", "jsonl", "--body", "base64").rows:
        rows.setdefault(row["queue"], []).append(row)
    unsendable = records_without_amqp(data)
    with other_node() as node:
        out = node.base / "out"
        done = run_cli("rescue", data, "--to", out, "--for", "4.3", "-o", "json")
        assert done.status == 0, done.stderr
        assert done.document["not_carried_over"] == []
        promised = {each["queue"]: each["messages"] for each in done.document["to_replay"] if each["messages"]}
        steps = (out / "STEPS.md").read_text()
        assert "--queue-type stream" in steps
        node.run_steps(steps)
        target = f"amqp://guest:guest@127.0.0.1:{node.port}/%2F"
        options = ("--queue-type", "quorum", "--queue-type", "stream", "--vhost", "/", "--to", target, "--resume", tmp_path / "resume")
        sent = run_cli("replay", data, *options)
        again = run_cli("replay", data, *options)  # everything is confirmed: nothing is sent twice
        compared = 0
        with ThreadPoolExecutor(len(promised)) as pool:
            read = list(pool.map(lambda item: consumed(node, *item), promised.items()))
        for (name, count), got in zip(promised.items(), read, strict=True):
            if name == "s.retained":  # its limit of length deletes the oldest here too
                assert 0 < len(got) <= count
            else:
                assert len(got) == count, name
            found = [row for row in rows[name] if row["stream_offset"] not in unsendable[name]][-len(got) :]
            for row, (body, properties) in zip(found, got, strict=True):
                own = row["properties"] or {}
                if own.get("type") == "amqp-1.0":  # values, which the node encodes again
                    assert amqp10.sections(body) == amqp10.sections(base64.b64decode(row["payload_b64"]))
                else:
                    assert sha256(body) == row["payload_sha256"], (name, row["stream_offset"])
                assert (properties.message_id, properties.type) == (own.get("message_id"), own.get("type"))
                headers = {key: value for key, _, value in own.get("headers") or ()}
                assert (properties.headers or {}).get("x-stream-filter-value") == headers.get("x-stream-filter-value")
            compared += len(got)
        assert compared > 400
        assert (sent.status, again.status) == (0, 0), sent.stdout + sent.stderr + again.stdout + again.stderr
        assert {name: len(rows[name]) - len(unsendable[name]) for name in promised} == promised
        filtered = [row for row in rows["s.filter"] if "red" in json.dumps(row["properties"])]
        node.stop()
        at_last = run_cli("messages", node.data, "--queue-type", "stream", "--queue", "s.filter", "--filter-value", "red", "-o", "jsonl")
        assert len(at_last.rows) >= len(filtered)


def records_without_amqp(data: Path) -> dict[str, set[int]]:
    """Return the offsets of records that no consumer of AMQP 0-9-1 can receive, by stream."""
    found: dict[str, set[int]] = {}
    store = RabbitMQStore(data)
    for named in store.streams:
        offsets = found.setdefault(named.queue, set())
        for part in store.stream_rows(named):
            verdicts = [verdict for verdict, _, _ in part.stored()]
            offsets |= {offset for offset, verdict in zip(part.records.offset.tolist(), verdicts, strict=True) if verdict == NOT_AMQP}
    return found


def sha256(body: bytes) -> str:
    import hashlib

    return hashlib.sha256(body).hexdigest()
