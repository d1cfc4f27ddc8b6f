"""Golden stores after `mqstore rebuild`, examined with the other commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import PLAIN, GoldenCase, case_id, case_named, expected, keys_of, opened, run_cli, unchanged

import mqstore
from mqstore.rocketmq.lookup import explain

# the broker's own limit on the results of one query
MOST = 64


def rebuild(case: GoldenCase, to: Path) -> Path:
    store = opened(case)
    with unchanged(store):
        outcome = run_cli("rebuild", store, "--to", to, "--threads", 2, "-q", "--assume-defaults")
    assert outcome.status in (0, 1), outcome.stderr
    return to


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_a_rebuilt_store_is_intact_and_has_every_message_in_its_queue(case: GoldenCase, tmp_path: Path) -> None:
    root = rebuild(case, tmp_path / "rebuilt")
    report = run_cli("verify", root, "-o", "json").document
    torn = {finding["kind"] for finding in report["damage"]}
    assert torn <= {"torn-record"}, report["damage"]
    rows = run_cli("messages", root, "-o", "jsonl").rows
    assert [row["physical_offset"] for row in rows] == [message["physical_offset"] for message in expected(case)]
    assert {row["verdict"] for row in rows} == {"intact"}


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_key_of_the_log_is_answered_after_a_rebuild(case: GoldenCase, tmp_path: Path) -> None:
    root = rebuild(case, tmp_path / "rebuilt")
    wanted: dict[tuple[str, str], set[int]] = {}
    for message in expected(case):
        # a rolled back or prepared record has no entry in the index
        if message["sys_flag"] & 12 not in (4, 12):
            for key in keys_of(message):
                wanted.setdefault((message["topic"], key), set()).add(message["physical_offset"])
    store = mqstore.open(root)
    view = store.view("recovered", as_=case.version)
    assert wanted
    for (topic, key), offsets in wanted.items():
        answer = explain.query(store, view, topic, key, scan=False)
        if len(answer.index_hits) < MOST:
            assert offsets <= set(answer.messages), (topic, key)


@pytest.mark.long
def test_a_query_that_came_back_empty_is_answered_by_the_rebuilt_store(tmp_path: Path) -> None:
    case = case_named("4.9.3/b-kill9")
    store = opened(case)
    # the last messages were not indexed when the broker was killed
    for message in reversed(expected(case)):
        if not message["uniq_key"]:
            continue
        question = ("-t", message["topic"], "-k", message["uniq_key"], "-o", "json")
        before = run_cli("query", store, *question).document
        if not before["index_hits"]:
            break
    assert before["messages"] == []
    assert before["reason"]
    root = rebuild(case, tmp_path / "rebuilt")
    after = run_cli("query", root, *question).document
    assert [row["physical_offset"] for row in after["messages"]] == [message["physical_offset"]]
    assert after["reason"] is None
