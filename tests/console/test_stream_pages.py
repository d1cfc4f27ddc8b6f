"""Pages of streams show what the commands print."""

from __future__ import annotations

from support import streams
from support.console import tables, visiting, words
from support.golden import run_cli

CASE = "4.3.6-killed"


def test_streams_are_listed_and_paged_by_offset_as_the_commands_have_them() -> None:
    node = streams.node(CASE)
    listed = {row["queue"]: row for row in run_cli("topics", node, "-o", "jsonl").rows}
    rows = run_cli("messages", node, "--queue", "s.small", "-o", "jsonl").rows
    with visiting(node) as visitor:
        shown = {row["Queue"]: row for row in tables(visitor.get("/stores/0/queues"))["Queues"]}
        assert {name: (row["Type or version"], int(row["Messages"])) for name, row in shown.items()} == {
            name: ("stream", row["messages"]) for name, row in listed.items()
        }
        offsets = []
        start = 0
        for _ in range(2):
            page = visitor.get("/stores/0/queue", params={"vhost": "/", "queue": "s.small", "from": str(start)})
            offsets += [int(row["Offset"]) for row in tables(page)["Messages of s.small"]]
            start = offsets[-1] + 1
        assert offsets == [row["stream_offset"] for row in rows]
        page = words(visitor.get("/stores/0/queue", params={"vhost": "/", "queue": "s.off"}))
        for consumer in listed["s.off"]["consumers"]:
            assert f"Consumer {consumer['name']} has stored offset {consumer['offset']:,}" in page
        assert listed["s.off"]["consumers"]


def test_messages_of_streams_are_below_messages() -> None:
    node = streams.node(CASE)
    told = [(row["queue"], row["stream_offset"]) for row in run_cli("messages", node, "-o", "jsonl").rows]
    with visiting(node) as visitor:
        shown = [
            row
            for start in range(0, len(told), 200)
            for row in tables(visitor.get("/stores/0/messages", params={"others": str(start)}))["Messages of quorum queues and streams"]
        ]
    assert [(row["Queue"].split()[0], int(row["Index or offset"])) for row in shown] == told
