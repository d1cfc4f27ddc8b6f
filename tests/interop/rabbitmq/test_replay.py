"""Replay into a real node: messages of both families, killed and resumed; at most one message of each queue arrives twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from interop.rabbitmq.adopting import Adopted, Declared, declare, drain_all
from interop.rabbitmq.node import new_node
from support.golden import case_named, opened, run_cli

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

LOG, QUEUES = case_named("4.9.3/f-broker-offsets"), case_named("3.10.8/f-mixed-features")


def test_a_node_has_each_message_after_a_replay_that_was_killed(tmp_path: Path, kills: int) -> None:
    journal = tmp_path / "sent.journal"
    logged = [row for row in run_cli("messages", opened(LOG), "-o", "jsonl").rows if row["topic"].startswith("s62_")]
    queued = [row for row in run_cli("messages", opened(QUEUES), "-o", "jsonl").rows if row["verdict"] == "intact" and row["vhost"] == "/"]
    declared = [Declared("/", name) for name in sorted({row["topic"] for row in logged} | {row["queue"] for row in queued})]
    topics = [part for name in sorted({row["topic"] for row in logged}) for part in ("--topic", name)]
    with new_node() as node:
        node.start()
        declare(node, declared)
        to = f"amqp://guest:guest@127.0.0.1:{node.port}/%2F"
        command = [sys.executable, "-m", "mqstore", "replay", str(opened(LOG)), *topics, "--to", to, "--resume", str(journal)]
        for round_ in range(1, kills + 1):
            running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            goal = len(logged) * round_ // (kills + 1)
            while running.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < goal):
                time.sleep(0.001)
            running.send_signal(signal.SIGKILL)
            running.communicate()
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert b"guest:guest" not in done.stdout + done.stderr + journal.read_bytes()
        sent = run_cli("replay", opened(QUEUES), "--vhost", "/", "--to", to, "-o", "json")
        assert sent.status == 0, sent.stderr
        assert sent.document["sent"] == len(queued)
        unknown = run_cli("replay", opened(LOG), "--limit", "1", "--set", "topic=no-such-queue", "--to", to)
        assert unknown.status == 2
        assert "has no queue 'no-such-queue'" in unknown.stderr
        found = Adopted()
        drain_all(node, declared, found)
    assert not found.failed
    arrived = defaultdict(list)
    for row in found.rows:
        arrived[row["queue"]].append(row)
    twice: Counter[str] = Counter()
    for topic in {row["topic"] for row in logged}:
        wanted = Counter((row["body_sha256"], row["uniq_key"]) for row in logged if row["topic"] == topic)
        got = Counter((row["payload_sha256"], row["properties"].get("message_id")) for row in arrived[topic])
        assert set(got) == set(wanted)
        twice[topic] = sum((got - wanted).values())
        assert twice[topic] <= kills * len({row["queue_id"] for row in logged if row["topic"] == topic})
        for row in logged:
            if row["topic"] == topic:
                match = next(each for each in arrived[topic] if each["properties"].get("message_id") == row["uniq_key"])
                headers = {name: value for name, _, value in match["properties"]["headers"]}
                assert {name: value for name, value in headers.items() if name != "x-mqstore-from"} == row["properties"]
    for queue in {row["queue"] for row in queued}:
        assert [row["payload_sha256"] for row in arrived[queue]] == [row["payload_sha256"] for row in queued if row["queue"] == queue]
