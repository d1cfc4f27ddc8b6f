"""The figures of the console's pages are those of the commands, for every golden store: messages, damaged, lost, notes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.console import Visitor, visiting, words
from support.golden import CASES, FURTHER, OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, opened, run_cli


def document(command: str, case: GoldenCase) -> Any:
    return run_cli(command, opened(case), "-o", "json").document


def number(pattern: str, text: str) -> int:
    found = re.search(pattern.replace("#", r"([\d,]+)"), text)
    assert found is not None, (pattern, text)
    return int(found[1].replace(",", ""))


def verified(visitor: Visitor) -> str:
    visitor.submit("/stores/0/verify")
    (job,) = (job for job in visitor.console.jobs.all() if job.kind == "verify")
    job.settled.wait(60)
    return words(visitor.get("/stores/0/verify"))


def assert_verify_agrees(visitor: Visitor, case: GoldenCase) -> None:
    report, text = document("verify", case), verified(visitor)
    said = run_cli("verify", opened(case)).stdout.splitlines()[0]
    assert said in text
    assert said in words(visitor.get("/stores/0"))
    assert said[1:] in words(visitor.get("/"))
    if report["ok"]:
        assert said.startswith(("Intact", "Nothing is damaged, but"))
    else:
        affected, total = report["messages"]["affected"], report["messages"]["total"]
        some = f"{affected:,} of {total:,} message" if affected else "no message is known to be affected"
        assert some in said
        assert number(r"; # finding", said) == len(report["damage"])
    assert number(r"Checked # message", text) == report["checked"]["messages"]
    assert number(r"# records?, ", text) == report["checked"]["records"]
    assert number(r", # queue entr", text) == report["checked"]["queue_entries"]
    if report["notes"]:
        assert number(r"# notes?:", text) == len(report["notes"])
    for note in report["notes"]:
        assert note[1:].replace("`", "") in text.replace("`", "")


@pytest.mark.sample(10)
@pytest.mark.parametrize("case", [*CASES, *FURTHER], ids=case_id)
def test_a_rocketmq_store_has_the_same_figures_in_the_console_and_in_the_commands(case: GoldenCase) -> None:
    inspected = document("inspect", case)
    by_topic: dict[str, int] = {}
    if inspected["messages"] is not None:
        for row in run_cli("topics", opened(case), "-o", "jsonl").rows:
            by_topic[row["topic"]] = by_topic.get(row["topic"], 0) + row["messages"]
        assert sum(by_topic.values()) == inspected["messages"]
    with visiting(opened(case)) as visitor:
        if inspected["messages"] is None:
            assert "messages not counted" in words(visitor.get("/"))
            assert "Messages unknown" in words(visitor.get("/stores/0"))
            assert_verify_agrees(visitor, case)
            return
        assert number("· # messages? in queues", words(visitor.get("/"))) == inspected["messages"]
        assert number("Messages # in queues", words(visitor.get("/stores/0"))) == inspected["messages"]
        topics = visitor.get("/stores/0/topics").text
        shown = dict(
            re.findall(r'<th scope="row"><a[^>]*>([^<]*)</a></th><td>[^<]*</td><td class="n">\d+</td><td class="n">([\d,]+)', topics)
        )
        assert {name: int(count.replace(",", "")) for name, count in shown.items() if count != "0"} == {
            name: count for name, count in by_topic.items() if count
        }
        assert_verify_agrees(visitor, case)


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", [*RABBITMQ, *OTHER_RABBITMQ], ids=case_id)
def test_a_rabbitmq_store_has_the_same_figures_in_the_console_and_in_the_commands(case: GoldenCase) -> None:
    inspected, rows = document("inspect", case), run_cli("topics", opened(case), "-o", "jsonl").rows
    with visiting(opened(case)) as visitor:
        assert number("· # messages? in queues", words(visitor.get("/"))) == inspected["messages"]
        overview, queues = words(visitor.get("/stores/0")), visitor.get("/stores/0/queues")
        assert number("Messages # that the broker would recover", overview) == inspected["messages"]
        assert number("Not recovered #:", overview) == inspected["not_recovered"]
        for name in ("lost", "waiting", "transient"):
            assert number(rf"[:,] # {name}", overview[overview.index("Not recovered") :]) == inspected[name]
            assert number(rf"[:,] # {name}", words(queues)) == inspected[name]
        assert number("Acknowledged, still on disk #", overview) == inspected["acknowledged"]
        assert number("# messages? that the broker would recover in", words(queues)) == sum(row["messages"] for row in rows)
        assert_verify_agrees(visitor, case)
