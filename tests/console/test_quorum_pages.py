"""Pages of quorum queues show what the commands print."""

from __future__ import annotations

import base64
import hashlib
import shutil
from pathlib import Path

import pytest
from support import quorum
from support.console import counted, tables, visiting, words
from support.golden import run_cli

CASE = "3.10.8/a-quorum-mix-kill9"


def test_quorum_queues_are_listed_with_the_counts_of_topics() -> None:
    node = quorum.node(CASE)
    told = {row["queue"]: row for row in run_cli("topics", node, "-o", "jsonl").rows if row["type"] == "quorum"}
    with visiting(node) as visitor:
        shown = {row["Queue"]: row for row in tables(visitor.get("/stores/0/queues"))["Queues"]}
    assert {name: (row["Type or version"], int(row["Messages"].replace(",", ""))) for name, row in shown.items()} == {
        name: ("quorum", row["messages"]) for name, row in told.items()
    }
    assert len(told) == 19


def test_dead_letters_that_a_queue_holds_are_counted_as_the_command_counts_them() -> None:
    node = quorum.node("4.3.6/a-quorum-mix-kill9")
    assert "3 dead letters held, or delayed" in run_cli("topics", node).stdout
    with visiting(node) as visitor:
        page = visitor.get("/stores/0/queues")
        (held,) = [row for row in tables(page)["Queues"] if row["Not recovered"]]
        assert held["Not recovered"] == "3 dead letters held, or delayed"
        assert "Not recovered: 3 dead letters held, or delayed." in words(page)


def test_queues_whose_files_are_not_here_are_not_called_empty(tmp_path: Path) -> None:
    node = quorum.unpack("4.3.6/a-quorum-mix-kill9", tmp_path)
    shutil.rmtree(node / "quorum")
    with visiting(node) as visitor:
        home = words(visitor.get("/"))
        assert "messages not counted: a part is not read" in home
        assert "Not all of the store is here: what is in quorum queue" in home
        assert "without a queue" not in home
        for page in ("queues", "messages"):
            text = words(visitor.get(f"/stores/0/{page}"))
            assert "Not all of the store is here: what is in quorum queue 'plain' of vhost '/': that cannot be told without" in text
            assert "; 19 more." in text
        assert "No queue that is here holds a message." in words(visitor.get("/stores/0"))


@pytest.mark.parametrize("queue", ["returns", "purged", "sac"])
def test_the_messages_of_a_quorum_queue_are_those_of_the_command(queue: str) -> None:
    node = quorum.node(CASE)
    told = run_cli("queue", node, "/", queue, "-o", "jsonl").rows
    with visiting(node) as visitor:
        page = visitor.get("/stores/0/queue", params={"vhost": "/", "queue": queue})
        shown = tables(page)[f"Messages of {queue}"]
        assert [(int(row["Index"]), row["State"]) for row in shown] == [(row["raft_index"], row["state"]) for row in told]
        assert counted(page).startswith(f"1 to {len(told)} of {len(told)}, ")
        rows = run_cli("messages", node, "--queue", queue, "--all", "-o", "jsonl").rows
        bodies = {row["raft_index"]: base64.b64decode(row["payload_b64"] or "").decode() for row in rows}
        assert all(bodies[int(row["Index"])].startswith(row["Body"].rstrip("…")) and row["Body"] for row in shown)
        ready = [row for row in told if row["state"] == "ready"]
        some = visitor.get("/stores/0/queue", params={"vhost": "/", "queue": queue, "state": "ready"})
        assert f"of {len(ready)}, " in counted(some) or not ready
        assert visitor.get("/stores/0/queue", params={"vhost": "/", "queue": queue, "state": "odd"}).status_code == 400


def test_a_message_of_a_quorum_queue_has_its_body_and_its_place() -> None:
    node = quorum.node(CASE)
    for row in [row for row in run_cli("messages", node, "-o", "jsonl").rows if row["queue"] in ("returns", "plain")][:12]:
        params = {"vhost": "/", "queue": row["queue"], "index": str(row["raft_index"])}
        with visiting(node) as visitor:
            text = words(visitor.get("/stores/0/message", params=params))
            assert f"the node delivers it at position {row['pos']}" in text
            assert row["store_file"] in text
            body = visitor.get("/stores/0/body", params=params).content
            assert hashlib.sha256(body).hexdigest() == row["payload_sha256"]
            assert visitor.get("/stores/0/message", params=params | {"index": "99999"}).status_code == 404


def test_what_is_uncertain_is_on_the_page_of_the_queue(tmp_path: Path) -> None:
    node = quorum.unpack("4.3.6/c-quorum-snapshots-kill9", tmp_path)
    for path in (node / "quorum").glob("*/*.wal"):
        path.unlink()
    with visiting(node) as visitor:
        text = words(visitor.get("/stores/0/queue", params={"vhost": "/", "queue": "snap.fifo"}))
    assert "A write-ahead log is missing" in text
    shutil.rmtree(node)


def test_the_page_of_a_queue_says_that_its_node_does_not_start(tmp_path: Path) -> None:
    node = quorum.unpack(CASE, tmp_path)
    [path] = (node / "quorum").glob("*/*.wal")
    raw = bytearray(path.read_bytes())
    raw[len(raw.rstrip(b"\0")) // 2] ^= 0x40
    path.write_bytes(bytes(raw))
    with visiting(node) as visitor:
        text = words(visitor.get("/stores/0/queue", params={"vhost": "/", "queue": "plain"}))
    assert "could replay this log would list 22 ready" in text
    assert "the node does not start" in text
    assert " quorum queues; no classic queue." in run_cli("inspect", node).stdout


def test_messages_of_quorum_queues_are_below_messages_page_by_page() -> None:
    node = quorum.node(CASE)
    told = [row for row in run_cli("messages", node, "-o", "jsonl").rows if row["queue_type"] == "quorum"]
    with visiting(node) as visitor:
        shown = []
        for start in range(0, len(told), 200):
            page = visitor.get("/stores/0/messages", params={"others": str(start)})
            shown += tables(page)["Messages of quorum queues and streams"]
        assert ", the last, by vhost" in words(page)
        one = tables(visitor.get("/stores/0/messages", params={"name": "RETURNS"}))["Messages of quorum queues and streams"]
        assert "have other states" in words(visitor.get("/stores/0/messages", params={"state": "ready"}))
    known = [(row["queue"], row["raft_index"], row["state"]) for row in told]
    assert [(row["Queue"].split()[0], int(row["Index or offset"]), row["State"].split()[0]) for row in shown] == known
    assert len(one) == sum(row["queue"] == "returns" for row in told) > 0


def test_the_first_page_of_a_node_counts_its_quorum_queues() -> None:
    node = quorum.node(CASE)
    told = {row["queue"]: row["messages"] for row in run_cli("topics", node, "-o", "jsonl").rows if row["messages"]}
    used = {row["queue"]: row["messages"] for row in run_cli("usage", node, "-o", "json").document["members"]}
    with visiting(node) as visitor:
        visitor.get("/stores/0")
        for job in visitor.console.jobs.all():
            assert job.settled.wait(60)
        page = visitor.get("/stores/0")
        card = words(visitor.get("/"))
    depths = {row["Queue"]: int(row["Ready"]) for row in tables(page)["Depth of the queues"]}
    assert len(depths) == 10
    assert depths.items() <= told.items()
    disk = {row["Queue"].removesuffix(" of /"): int(row["Messages"]) for row in tables(page)["Disk"]}
    assert disk.items() <= used.items()
    assert "RabbitMQ quorum queues" in card
    assert "No queue holds a message" not in words(page)
    assert f"{sum(told.values()):,} messages in queues" in card
