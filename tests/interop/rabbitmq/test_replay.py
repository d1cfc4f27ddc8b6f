"""Replay into a real node: messages of both families, killed and resumed; no message arrives twice unless it was in doubt."""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.killing import Killing, by_source
from interop.rabbitmq.adopting import Adopted, Declared, declare, drain_all
from interop.rabbitmq.node import Node, new_node
from support.golden import case_named, opened, run_cli
from support.proxy import Proxy

from mqstore.places import open_rocketmq
from mqstore.replay.sources import DEFAULT_VERDICTS, rocketmq_messages
from mqstore.table.columns import Selection

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

LOG, QUEUES = case_named("4.9.3/f-broker-offsets"), case_named("3.10.8/f-mixed-features")
OWN = {"x-mqstore-from", "x-mqstore-born-timestamp", "x-mqstore-exchange", "x-mqstore-routing-key"}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with new_node() as started:
        started.start()
        yield started


def arrived_at(node: Node, declared: list[Declared]) -> dict[str, list[dict[str, Any]]]:
    """Return the messages of queues, in order."""
    found = Adopted()
    drain_all(node, declared, found)
    assert not found.failed
    arrived = defaultdict(list)
    for row in found.rows:
        arrived[row["queue"]].append(row)
    return arrived


def headers_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, _, value in row["properties"].get("headers", ())}


def test_a_node_has_each_message_after_a_replay_that_was_killed(node: Node, tmp_path: Path, kills: int) -> None:
    logged = [row for row in run_cli("messages", opened(LOG), "-o", "jsonl").rows if row["topic"].startswith("s62_")]
    names = sorted({row["topic"] for row in logged})
    declared = [Declared("kills", name) for name in names]
    declare(node, declared)
    store = open_rocketmq(opened(LOG))
    sources = by_source(rocketmq_messages(store, Selection(topics=frozenset(names)), DEFAULT_VERDICTS, None, Counter()))
    journal = tmp_path / "sent.journal"
    topics = [part for name in names for part in ("--topic", name)]
    with Proxy(node.port) as proxy:
        to = f"amqp://guest:guest@127.0.0.1:{proxy.port}/kills"
        argv = ["replay", str(opened(LOG)), *topics, "--to", to, "--resume", str(journal), "-o", "json"]
        killing = Killing(journal, proxy, sources, seed=11)
        killing.lives(argv, kills, sum(row["size"] for row in logged) // 2)
        done = run_cli(*argv)
        assert done.status == 0, done.stderr
        assert "guest:guest" not in done.stdout + done.stderr + journal.read_text()
        assert done.document["in_doubt"] <= len(sources)
        assert killing.killed >= kills // 2
        assert killing.at_bytes >= kills // 5
        again = run_cli(*argv).document
        assert (again["sent"], again["in_doubt"]) == (0, 0)
    arrived = arrived_at(node, declared)
    wanted = {f"{opened(LOG).name}#{row['topic']}/{row['queue_id']}/{row['physical_offset']}": row for row in logged}
    copies = Counter(headers_of(row)["x-mqstore-from"] for rows in arrived.values() for row in rows)
    assert set(copies) == set(wanted)
    assert {mark for mark, number in copies.items() if number > 1} <= killing.doubted
    for topic, rows in arrived.items():
        last: dict[int, int] = {}
        for row in rows:
            source = wanted[headers_of(row)["x-mqstore-from"]]
            assert source["topic"] == topic
            assert last.get(source["queue_id"], -1) <= source["physical_offset"], "the order of a queue has changed"
            last[source["queue_id"]] = source["physical_offset"]
            assert row["payload_sha256"] == source["body_sha256"]
            assert {name: value for name, value in headers_of(row).items() if name not in OWN} == source["properties"]
            assert headers_of(row)["x-mqstore-born-timestamp"] == source["born_timestamp"]
            own = row["properties"]
            assert (own["delivery_mode"], own["timestamp"]) == (2, source["born_timestamp"] // 1000)
            assert own.get("message_id") == source["uniq_key"]


@pytest.mark.versions
def test_queues_of_a_store_and_edited_rows_arrive_with_all_their_properties(node: Node, tmp_path: Path) -> None:
    printed = run_cli("messages", opened(QUEUES), "--body", "base64", "-o", "jsonl").rows
    queued = [row for row in printed if row["verdict"] == "intact" and row["vhost"] == "/"]
    declared = [Declared(vhost, name) for vhost in ("stored", "rows") for name in sorted({row["queue"] for row in queued})]
    declare(node, [*declared, Declared("rows", "routed")])
    connection = node.connect("rows")
    connection.channel().exchange_declare("shop", "topic")
    connection.channel().queue_bind("routed", "shop", "orders.*")
    connection.close()
    edited = [*(dict(row) for row in queued), {"exchange": "shop", "routing_keys": ["orders.eu"], "payload": "routed again"}]
    edited[0] |= {"payload_b64": base64.b64encode(b"corrected").decode(), "properties": {"headers": {"reason": "outage", "attempt": 2}}}
    file = tmp_path / "edited.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in edited))
    to = f"amqp://guest:guest@127.0.0.1:{node.port}"
    for source, vhost, number in ((opened(QUEUES), "stored", len(queued)), (file, "rows", len(edited))):
        only = ["--vhost", "/"] if vhost == "stored" else []
        done = run_cli("replay", source, *only, "--to", f"{to}/{vhost}", "-o", "json")
        assert done.status == 0, done.stderr
        assert done.document["sent"] == number
    for vhost, rows in (("stored", queued), ("rows", queued[1:])):
        arrived = arrived_at(node, [each for each in declared if each.vhost == vhost])
        if vhost == "rows":
            corrected = arrived[queued[0]["queue"]].pop(0)
            assert base64.b64decode(corrected["payload_b64"]) == b"corrected"
            assert {name: value for name, value in headers_of(corrected).items() if name not in OWN} == {"reason": "outage", "attempt": 2}
        for queue in {row["queue"] for row in queued}:
            given = [row for row in rows if row["queue"] == queue]
            assert [row["payload_sha256"] for row in arrived[queue]] == [row["payload_sha256"] for row in given]
            for row, source_row in zip(arrived[queue], given, strict=True):
                kept = {**row["properties"], "headers": [each for each in row["properties"]["headers"] if each[0] not in OWN]}
                wanted = {**source_row["properties"], "headers": source_row["properties"].get("headers", [])}
                wanted["headers"] = [each for each in wanted["headers"] if each[0] not in ("CC", "BCC")]
                assert kept == wanted
                if source_row["exchange"]:
                    assert headers_of(row)["x-mqstore-exchange"] == source_row["exchange"]
    (routed,) = arrived_at(node, [Declared("rows", "routed")])["routed"]
    assert (routed["exchange"], routed["routing_keys"]) == ("shop", ["orders.eu"])
    assert base64.b64decode(routed["payload_b64"]) == b"routed again"


def test_what_a_node_refuses_ends_the_run_in_one_sentence(node: Node, tmp_path: Path) -> None:
    declare(node, [Declared("refused", "s62_bills")])
    to = f"amqp://guest:guest@127.0.0.1:{node.port}/refused"
    asked = ("replay", opened(LOG), "--topic", "s62_bills")
    unknown = run_cli(*asked, "--set", "topic=no-such-queue", "--to", to)
    assert "has no queue 'no-such-queue'" in unknown.stderr
    password = run_cli(*asked, "--to", to.replace("guest@", "wrong@"))
    assert "refused the connection" in password.stderr
    assert ":wrong@" not in password.stderr
    vhost = run_cli(*asked, "--to", to.replace("/refused", "/no-such-vhost"))
    journal = tmp_path / "sent.journal"
    with Proxy(node.port) as proxy:
        proxy.after(40_000)
        cut = run_cli(*asked, "--to", to.replace(str(node.port), str(proxy.port)), "--resume", journal)
    assert "run again with --resume" in cut.stderr
    for each in (unknown, password, vhost, cut):
        assert each.status == 2
        assert "Traceback" not in each.stderr
        assert len(each.stderr.splitlines()) <= 2, each.stderr
