"""The real node accepts a clean stop of the engine: it trusts the tables, does not scan or warn, and delivers the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from interop.rabbitmq.adopting import Declared, adopt_in, declare
from interop.rabbitmq.node import new_node

from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.queue_store import QueueStore

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.xdist_group("interop")]

LIMIT = 100_000
QUEUES = {"one": {}, "two": {"x-queue-version": 2}, "levels": {"x-max-priority": 2}}


def persistent(log: str) -> list[str]:
    """Return the lines of a log without those of the store of transient messages, which a node creates at every start."""
    transient = set(re.findall(r"(<[\d.]+>) Message store \S*_transient", log))
    assert transient
    return [line for line in log.splitlines() if "_transient" not in line and not transient & set(line.split()[:5])]


def test_a_node_accepts_our_clean_stop(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "msg_stores", config=EngineConfig(msg_store_file_size_limit=LIMIT)) as store:
        for name, arguments in QUEUES.items():
            store.declare(name, arguments)
        for number in range(300):
            body = number.to_bytes(2, "big") * (50 if number % 2 else 2500)
            store.publish(["one", "two", "levels"][: 1 + number % 3], body, properties={"delivery_mode": 2, "priority": number % 4})
        for name in QUEUES:
            store.acknowledge(store.deliver(name, 60)[::-2])
        expected = {name: sum(store.counts(name)) for name in QUEUES}
    declared = [Declared("/", name, arguments) for name, arguments in QUEUES.items()]
    with new_node({"msg_store_file_size_limit": LIMIT}) as node:
        node.start()
        declare(node, declared)
        node.stop()
        before = len(node.log())
        adopted = adopt_in(node, tmp_path / "msg_stores", declared, save=tmp_path / "after")
        log = persistent(node.log()[before:])
    assert adopted.sound, adopted
    assert [line for line in log if "Rebuilding message location index after clean shutdown" in line]
    assert not [line for line in log if "from scratch" in line or "[warning]" in line or "[error]" in line or "refcount" in line]
    assert {name: sum(1 for row in adopted.rows if row["queue"] == name) for name in QUEUES} == expected
    assert {row["redelivered"] for row in adopted.rows} == {True, False}
    with QueueStore.open(tmp_path / "after" / "msg_stores", config=EngineConfig(msg_store_file_size_limit=LIMIT)) as again:
        assert {name: again.counts(name).ready for name in QUEUES} == expected
