"""`rescue` with real nodes: what 3.10.8 and older nodes left is in a node of 4.3 or newer, every message as it was delivered before."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq.adopting import Declared, declare
from interop.rabbitmq.node import new_node
from interop.rabbitmq.other_node import missing, other_node
from support.golden import case_named, expected, opened_node, run_cli

import mqstore
from mqstore.table.columns import QueueSelection

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("rabbitmq")]

Message = tuple[str, str, int, str]
OLD = case_named("3.8.9/a-v1-clean")


def left_by_3_10(target: Path) -> Path:
    """Let a 3.10.8 node write messages of all sizes, also with priorities, and be killed; return its data directory."""
    import pika

    queues = [Declared("/", "ten.small"), Declared("/", "ten.large"), Declared("/", "ten.prio", {"x-max-priority": 3})]
    with new_node() as node:
        node.start()
        declare(node, queues)
        connection = node.connect("/")
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(60):
            queue = queues[number % 3].queue
            body = f"{number} ".encode() * (3000 if queue == "ten.large" else 5)
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, priority=number % 4, headers={"n": number}))
        node.kill()
        shutil.copytree(node.data, target)
    return target


def stored(store: Path) -> list[Message]:
    columns = ("vhost", "queue", "payload_sha256", "properties_json", "pos")
    batches = mqstore.open(store).to_batches(columns, QueueSelection(recovered=True))
    return [(row["vhost"], row["queue"], row["pos"], row["payload_sha256"]) for batch in batches for row in batch.to_pylist()]


def delivered(node: Any, vhost: str, queue: str) -> list[Message]:
    connection = node.connect(vhost)
    channel = connection.channel()
    found: list[Message] = []
    while True:
        method, _, body = channel.basic_get(queue)
        if method is None:
            break
        found.append((vhost, queue, len(found), hashlib.sha256(body).hexdigest()))
    connection.close()
    return found


def test_a_node_of_4_3_has_every_message_that_older_nodes_left(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    sources = {"3.8.9": opened_node(OLD), "3.10.8": left_by_3_10(tmp_path / "ten")}
    for version, data in sources.items():
        out = tmp_path / f"out-{version}"
        done = run_cli("rescue", data, "--to", out, "--for", "4.3", "--users", "-o", "json")
        assert done.status == 0, done.stderr
        want = stored(data)
        assert len(want) == done.document["messages"] == (60 if version == "3.10.8" else len(expected(OLD)))
        with other_node() as node:
            node.start()
            shutil.copy(out / "definitions.json", node.base)
            node.ctl("import_definitions", "/broker/definitions.json")
            vhosts = [vhost["name"] for vhost in json.loads((out / "definitions.json").read_text())["vhosts"]]
            node.stop()
            shutil.rmtree(node.data / "msg_stores")
            shutil.copytree(out / "msg_stores", node.data / "msg_stores")
            node.start()
            counts: dict[tuple[str, str], int] = {}
            for vhost in vhosts:
                for line in node.ctl("list_queues", "-p", vhost, "--no-table-headers", "name", "messages").splitlines():
                    name, count = line.rsplit("\t", 1)
                    counts[vhost, name] = int(count)
            assert sum(counts.values()) == len(want), node.version
            found = [message for vhost, queue in sorted(counts) for message in delivered(node, vhost, queue)]
        assert sorted(found) == sorted(want), node.version
