"""Reports that the commands print are there for a library user: many stores, listed messages, summaries."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.golden import case_named, opened, run_cli

import mqstore
from mqstore.errors import UsageError
from mqstore.report.html import render
from mqstore.report.messages import message_table
from mqstore.report.queues import topics_table
from mqstore.report.summary import _log_facts, summary_parts
from mqstore.rocketmq.listing import topic_rows
from mqstore.stores.fleet import fleet_rows, matches
from mqstore.stores.listing import LogListing, QueueListing
from mqstore.table import QueueSelection, Selection
from mqstore.table.text import json_rows

LOG = case_named("4.9.3/b-kill9")
QUEUES = case_named("3.10.8/b-dirty-journal")


def test_many_stores_are_the_rows_that_inspect_prints(tmp_path: Path) -> None:
    paths = [opened(LOG), opened(QUEUES), tmp_path]
    assert [asdict(row) for row in fleet_rows(paths)] == run_cli("inspect", *paths, "-o", "jsonl").rows


def test_a_pattern_that_matches_nothing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing matches"):
        matches([tmp_path / "*"])


def test_listed_messages_of_either_family_are_those_that_the_command_prints() -> None:
    log, node = mqstore.open(opened(LOG)), mqstore.open(opened(QUEUES))
    by_log = LogListing(log, log.view(), Selection(limit=5))
    by_queue = QueueListing(node, QueueSelection(limit=5))
    for listing, case in ((by_log, LOG), (by_queue, QUEUES)):
        rows = [row for batch in listing.batches(listing.columns(listing.body)) for row in json_rows(batch, listing.body)]
        printed = run_cli("messages", opened(case), "-n", "5", "-o", "jsonl").stdout
        assert "\n".join(rows) + "\n" == printed


@pytest.mark.parametrize("body", ["none", "sha256", "base64", "text"])
def test_a_page_and_a_terminal_show_the_same_cells(body: str) -> None:
    store = mqstore.open(opened(LOG))
    shown = message_table("rocketmq", body)
    page = render([shown.of(LogListing(store, store.view(), Selection(limit=3)).batches(shown.reads))])
    printed = run_cli("messages", opened(LOG), "-n", "3", *(() if body == "none" else ("--body", body))).stdout
    offsets = [line.split()[0] for line in printed.splitlines()[2:5]]
    assert page.count("<tr>") == 4
    assert all(f'<td class="n">{offset}</td>' in page for offset in offsets)


def test_the_summary_and_the_queues_of_either_family_can_be_shown_on_a_page() -> None:
    log, node = mqstore.open(opened(LOG)), mqstore.open(opened(QUEUES))
    assert "RocketMQ store" in render(summary_parts(log.summary()))
    assert "vhost /" in render(summary_parts(node.summary()))
    assert "orders" in render([topics_table("rocketmq", topic_rows(log.view()))])


def test_what_is_known_of_a_log_is_said_and_what_is_not_is_left_out() -> None:
    known = mqstore.open(opened(case_named("4.9.3/a-clean-small"))).summary()
    assert list(_log_facts(known)) == [
        ("log", "physical offsets 0 to 560962, 547.8 KiB in 9 files"),
        ("time", "2022-01-01 00:00:00.123 to 2022-01-01 00:01:03.554 (UTC)"),
        ("queues", "511 messages in 20 queues of 8 topics"),
        ("index", "1,280 keys in 4 files, up to physical offset 560660"),
        ("checkpoint", "log 2022-01-01 00:00:10.672, queues 2022-01-01 00:01:03.554, index 2022-01-01 00:00:59.444"),
        ("groups", "no committed offsets"),
    ]
    unknown = replace(
        known,
        listed=None,
        first_store_timestamp=None,
        index_end=None,
        checkpoint=None,
        queues_in="a database",
        end=replace(known.end, walked=False),
    )
    assert list(_log_facts(unknown))[1:] == [
        ("queues", "messages in 20 queues of 8 topics, in a database"),
        ("", "further messages in the log were not counted; `mqstore verify` reads all of it"),
        ("index", "1,280 keys in 4 files"),
        ("checkpoint", "none"),
        ("groups", "no committed offsets"),
    ]
    empty = replace(known, queues=0, index_files=0, groups=2, committed=3, end=replace(known.end, unqueued=4, torn=True))
    assert dict(_log_facts(empty)) | {"log": "", "checkpoint": "", "time": ""} == {
        "log": "", "checkpoint": "", "time": "",
        "queues": "none; `mqstore rebuild` builds them from the log",
        "": "4 messages at the end of the log, not yet in a queue",
        "index": "none; key queries find nothing until `mqstore rebuild` builds it",
        "groups": "2 consumer groups with 3 committed offsets",
    }  # fmt: skip
    assert "; the last record is torn" in dict(_log_facts(empty))["log"]
