"""A basket of the console, replayed into a real node: messages of RocketMQ and of RabbitMQ, each once, in order, with their properties."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

import pytest
from interop.rabbitmq.adopting import Adopted, Declared, declare, drain_all
from interop.rabbitmq.node import new_node
from support import golden as goldenkit
from support.console import golden, visiting, words

from mqstore.console.basket import InQueue

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]


def rows(store: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in goldenkit.run_cli("messages", store, "-o", "jsonl").stdout.splitlines()]


def test_a_basket_of_both_families_is_replayed_into_a_node() -> None:
    log, queues = golden("4.9.3/a-clean-small"), golden("3.10.8/f-mixed-features")
    logged = rows(log)[:20]
    queued = [row for row in rows(queues) if row["vhost"] == "/" and row["verdict"] == "intact"]
    declared = [Declared("/", name) for name in sorted({row["topic"] for row in logged} | {row["queue"] for row in queued})]
    with new_node() as node:
        node.start()
        declare(node, declared)
        target = f"amqp://guest:guest@127.0.0.1:{node.port}/%2F"
        with visiting(log, queues, allow_writes=True, targets=(target,)) as visitor:
            visitor.submit("/basket/add", place=[f"0:{row['physical_offset']}" for row in logged])
            places = [InQueue(1, "/", row["queue"], row["priority_level"], row["seq_id"]) for row in queued]
            visitor.submit("/basket/add", place=[str(place) for place in places])
            sure = dict(
                re.findall(
                    r'<input type="hidden" name="(target|fingerprint)" value="([^"]*)"', visitor.submit("/basket/replay", target="0").text
                )
            )
            visitor.submit("/basket/replay/run", sure="yes", **sure)
            (job,) = (job for job in visitor.console.jobs.all() if job.kind == "replay")
            assert job.settled.wait(120)
            assert job.state == "done", job.error
            page = visitor.get(f"/jobs/{job.id}")
            assert f"Stored {len(logged) + len(queued)} messages" in words(page)
            assert "guest:guest" not in page.text
        found = Adopted()
        drain_all(node, declared, found)
    assert not found.failed
    arrived = defaultdict(list)
    for row in found.rows:
        arrived[row["queue"]].append(row)
    wanted = defaultdict(list)
    for row in logged:
        wanted[row["topic"]].append(row["body_sha256"])
    for row in queued:
        wanted[row["queue"]].append(row["payload_sha256"])
    assert {name: [row["payload_sha256"] for row in each] for name, each in arrived.items()} == wanted
    for row in logged:
        (got,) = [each for each in arrived[row["topic"]] if each["payload_sha256"] == row["body_sha256"]]
        assert got["properties"].get("message_id") == row["uniq_key"]
        assert {name: value for name, _, value in got["properties"].get("headers", ())} == dict(row["properties"])
    for row in queued:
        properties = dict(row["properties"])
        if "headers" in properties:
            properties["headers"] = [field for field in properties["headers"] if field[0] not in ("CC", "BCC")]
        (got,) = [each for each in arrived[row["queue"]] if each["payload_sha256"] == row["payload_sha256"]]
        assert got["properties"] == properties
