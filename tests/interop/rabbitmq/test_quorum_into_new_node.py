"""Quorum queues of killed nodes and a real 4.3 node: the messages that `rescue` and `replay` bring there are those of the old one."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq.other_node import CONSUMING, SUITES, OtherNode, missing, other_node
from support import quorum
from support.golden import run_cli

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

SHORT = 1000  # milliseconds: a message with less to live is gone when it is consumed


@pytest.mark.parametrize("case", ["3.10.8/a-quorum-mix-kill9", "3.10.8/c-quorum-cursors-kill9"])
def test_the_quorum_queues_of_a_killed_3_10_come_to_4_3_by_the_steps_of_a_rescue(case: str, tmp_path: Path) -> None:
    """On the directory itself 4.3 closes the consumers of eleven queues of the first case; a replay carries all their messages."""
    if reason := missing():
        pytest.skip(reason)
    data = quorum.unpack(case, tmp_path)
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in run_cli("messages", data, "--queue-type", "quorum", "-o", "jsonl", "--body", "base64").rows:
        if row["recovered"] and row["vhost"] == "/":
            rows.setdefault(row["queue"], []).append(row)
    with other_node() as node:
        out = node.base / "out"
        done = run_cli("rescue", data, "--to", out, "--for", "4.3", "-o", "json")
        assert done.status == 0, done.stderr
        promised = {each["queue"]: each["messages"] for each in done.document["to_replay"] if each["messages"]}
        assert promised == {name: len(mine) for name, mine in rows.items()}
        node.run_steps((out / "STEPS.md").read_text())
        target = f"amqp://guest:guest@127.0.0.1:{node.port}/%2F"
        options = ("--queue-type", "quorum", "--vhost", "/", "--to", target, "--resume", tmp_path / "resume")
        sent = run_cli("replay", data, *options)
        assert sent.status == 0, sent.stdout + sent.stderr
        again = run_cli("replay", data, *options)  # everything is confirmed: nothing is sent twice
        assert again.status == 0, again.stdout + again.stderr
        compared = 0
        time.sleep(SHORT / 1000)
        for name, found in rows.items():
            mine = sorted(found, key=priority)  # 4.3 delivers by priority, 3.10 does not
            properties = [row["properties"] or {} for row in mine]
            expected = [
                (row["payload_sha256"], own.get("message_id"))
                for row, own in zip(mine, properties, strict=True)
                if int(own.get("expiration", SHORT)) >= SHORT
            ]
            got = node.consume_all(name, len(expected))
            assert [(sha256(body), message_id) for body, message_id in got] == expected, name
            compared += len(mine)
        assert compared == sum(promised.values()) > 190


@pytest.mark.parametrize("suite", ["sid", "bookworm"])
@pytest.mark.parametrize("case", ["3.10.8/a-quorum-mix-kill9", "4.3.6/b-quorum-mix-clean", "4.0.5/a-quorum-mix-kill9"])
def test_the_quorum_queues_of_a_rescue_are_classic_ones_where_that_is_asked_for(case: str, suite: str, tmp_path: Path) -> None:
    """Their messages come from the files alone, in the order in which the old node would have delivered them, whatever the new version."""
    if reason := missing(suite):
        pytest.skip(reason)
    data = quorum.unpack(case, tmp_path)
    queues: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in run_cli("messages", data, "--queue-type", "quorum", "-o", "jsonl", "--body", "base64").rows:
        if row["recovered"] and row["state"] != "dead-letter-held":
            queues.setdefault((row["vhost"], row["queue"]), []).append(row)
    with other_node(suite) as node:
        out = node.base / "out"
        version = SUITES[suite]
        done = run_cli("rescue", data, "--to", out, "--for", version, "--quorum-as-classic", "-o", "json")
        assert done.status == 0, done.stderr
        assert not any(each["messages"] for each in done.document["to_replay"] if (each["vhost"], each["queue"]) in queues)
        assert done.document["messages"] >= sum(map(len, queues.values())) > 150
        promised = run_cli("diagnose", out, "--for", version, "-o", "json").document
        assert (promised["starts"], promised["loses"]) == (True, 0)
        node.run_steps((out / "STEPS.md").read_text())
        time.sleep(SHORT / 1000)
        large = 0
        for (vhost, name), rows in queues.items():
            alive = [row for row in rows if int((row["properties"] or {}).get("expiration", SHORT)) >= SHORT]
            expected = [(row["payload_sha256"], (row["properties"] or {}).get("message_id")) for row in alive]
            got = node.consume_all(name, len(expected), vhost)
            assert [(sha256(body), message_id) for body, message_id in got] == expected, name
            large += sum(len(body) > 4096 for body, _ in got)
        assert large


def test_a_4_3_on_the_directory_closes_the_consumers_of_the_queues_that_diagnose_names(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    data = quorum.unpack("3.10.8/a-quorum-mix-kill9", tmp_path)
    document = run_cli("diagnose", data, "--for", "4.3", "-o", "json").document
    named = [each["detail"] for each in document["evidence"] if each["finding"] == "redelivery-fails"]
    with other_node() as node:
        shutil.copytree(data, node.data, symlinks=True)
        node.start()
        closed, messages = set(), 0
        for name, kind, *_ in quorum.counts("3.10.8/a-quorum-mix-kill9")["queues"]:
            if kind == "quorum":
                refused = refuses(node, name)
                closed |= {name} if refused else set()
                messages += refused
    assert {name for name in closed if any(f"queue {name!r} of" in detail for detail in named)} == closed
    assert (len(closed), messages) == (len(named), document["loses"])


def refuses(node: OtherNode, queue: str) -> int:
    """Return how many messages a queue has whose consumer's connection is closed with 541; 0 if it gets them all."""
    from pika.exceptions import ConnectionClosedByBroker

    connection = node.connect("/")
    channel = connection.channel()
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    end = time.monotonic() + CONSUMING
    try:
        got = 0
        for method, _, _ in channel.consume(queue, inactivity_timeout=1):
            got += method is not None
            if (method is None and got) or not count or time.monotonic() > end:
                break
        connection.close()
    except ConnectionClosedByBroker as error:
        if error.reply_code != 541:
            raise
        return count
    return 0


def priority(row: dict[str, Any]) -> int:
    own = (row["properties"] or {}).get("priority")
    return -min(31, 4 if own is None else own)


def sha256(body: bytes) -> str:
    import hashlib

    return hashlib.sha256(body).hexdigest()
