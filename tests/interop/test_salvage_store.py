"""Real brokers start on a store that was carved out of pieces, serve its messages, and take new ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.clientoracle import why_not
from interop.test_replay import real_brokers
from support.golden import case_named, opened, run_cli

from mqstore.places import open_rocketmq
from mqstore.table.text import columns_for, python_rows
from mqstore.testing import Client

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-clients")]

KILLED = case_named("4.9.3/b-kill9")


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_real_broker_serves_what_was_carved(version: str, tmp_path: Path) -> None:
    if reason := why_not(version):
        pytest.skip(reason)
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    for number, path in enumerate(sorted((opened(KILLED) / "commitlog").iterdir(), reverse=True)):
        (pieces / f"recovered.{number}").write_bytes(path.read_bytes())
    done = run_cli("salvage", pieces, "--to", tmp_path / "store", "--as", "rocketmq", "--for", version, "-o", "json")
    assert done.status in (0, 1), done.stderr
    batches = open_rocketmq(opened(KILLED)).to_batches(columns_for("sha256"), milliseconds=True)
    wanted = [row for batch in batches for row in python_rows(batch, "sha256")]
    topic = "TopicTest"
    count = sum(row["topic"] == topic for row in wanted)
    assert done.document["messages"] == len(wanted)
    assert count > 100
    with real_brokers(version, tmp_path, "--sizes", "default") as (names, broker):
        with Client(names) as client:
            assert client.queues(topic) == 1 + max(row["queue_id"] for row in wanted if row["topic"] == topic)
        with Client(broker) as client:
            queues = {row["queue_id"] for row in wanted if row["topic"] == topic}
            for queue_id in queues:
                offset = client.call(30, {"topic": topic, "queueId": queue_id}).ext or {}
                assert int(offset["offset"]) == sum(row["topic"] == topic and row["queue_id"] == queue_id for row in wanted)
            found = client.call(
                11,
                {
                    "consumerGroup": "after-salvage", "topic": topic, "queueId": min(queues), "queueOffset": 0, "maxMsgNums": 32,
                    "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*",
                    "expressionType": "TAG",
                },
            )  # fmt: skip
            assert len(found.body) > 0
        # and a running broker takes what is carved out of the pieces
        resume = tmp_path / "sent.json"
        sent = run_cli("salvage", pieces, "--to", f"rocketmq://{names}", "--resume", resume, "-o", "json")
        assert sent.status in (0, 1), sent.stderr
        # a broker of 5.x fails on a message without a body, so none is sent to it
        taken = [row for row in wanted if row["body_len"] or version == "4.9.3"]
        assert sent.document["refused"] == len(wanted) - len(taken), sent.document["refusals"][:3]
        assert sent.document["confirmed"] == len(taken) - sum(sent.document["left_out"].values())
        with Client(broker) as client:
            for queue_id in queues:
                offset = client.call(30, {"topic": topic, "queueId": queue_id}).ext or {}
                assert int(offset["offset"]) == sum((row["topic"], row["queue_id"]) == (topic, queue_id) for row in (*wanted, *taken))
        again = run_cli("salvage", pieces, "--to", f"rocketmq://{names}", "--resume", resume, "-o", "json")
        assert again.document["confirmed"] == 0
        assert (again.document["skipped"], again.document["refused"]) == (sent.document["confirmed"], sent.document["refused"])
