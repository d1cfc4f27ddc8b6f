"""From a broker that does not start, or loses messages, to one that has them again: only what the commands say to run next is run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import golden as goldenkit
from support import rabbitmq_states
from support.golden import GoldenCase, Outcome, run_cli

COMMANDS = 4  # diagnose, repair, repair --apply, diagnose
INTACT = {"intact", "unindexed"}


@dataclass(frozen=True, slots=True)
class Walk:
    """The command lines in their order, the outcome of the last, and the command line that it names."""

    lines: list[str]
    last: Outcome
    then: str


def next_line(text: str) -> str:
    """Return the first command line that an output names as the next; empty without one."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("Next: "):
            return next((each.strip() for each in lines if each.startswith("      ")), "")
    return ""


def walked(store: Path) -> Walk:
    """Follow the commands from `diagnose` until it is asked again."""
    lines = [f"mqstore diagnose {store}"]
    while True:
        program, *words = shlex.split(lines[-1])
        assert program == "mqstore"
        outcome = run_cli(*words)
        then = next_line(outcome.stdout)
        if (len(lines) > 1 and words[0] == "diagnose") or not then.startswith("mqstore ") or len(lines) > COMMANDS:
            return Walk(lines, outcome, then)
        lines.append(then)


def rows(store: Path, *options: str) -> list[dict[str, object]]:
    return run_cli("messages", store, "-o", "jsonl", "--body", "sha256", *options).rows


def in_log(store: Path, *options: str) -> set[tuple[object, ...]]:
    """Return what identifies each message of a RocketMQ store whose bytes are intact."""
    names = ("topic", "queue_id", "queue_offset", "body_sha256")
    return {tuple(row[name] for name in names) for row in rows(store, *options) if row["verdict"] in INTACT}


def in_queues(store: Path) -> set[tuple[object, ...]]:
    """Return what identifies each message of a RabbitMQ store that is intact, in a queue, and persistent."""
    found = rows(store)
    return {(row["vhost"], row["queue"], row["payload_sha256"]) for row in found if row["verdict"] == "intact" and row["persistent"]}


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", goldenkit.DAMAGED, ids=goldenkit.case_id)
def test_a_rocketmq_store_is_back_after_four_commands(case: GoldenCase, tmp_path: Path) -> None:
    store = goldenkit.unpack(case, tmp_path / "store")
    before = in_log(store)
    assert before
    walk = walked(store)
    assert len(walk.lines) <= COMMANDS, walk.lines
    assert " starts on " in walk.last.stdout.splitlines()[0]
    assert in_log(store, "--view", "recovered") >= before
    [loses] = [run_cli("diagnose", store, "-o", "json").document["loses"]]
    assert loses == 0 or "only the places in their queues are left" in " ".join(
        walk.last.stdout.split()
    )  # what is lost had no bytes before


@pytest.mark.sample(4)
@pytest.mark.parametrize("state", rabbitmq_states.STATES)
def test_a_rabbitmq_store_is_back_after_four_commands(state: str, tmp_path: Path) -> None:
    store = rabbitmq_states.made(state, tmp_path / "store")
    # without its .config a vhost is read with another number of entries, and acknowledged messages come back
    whole = rabbitmq_states.unpacked(rabbitmq_states.STATES[state].case, tmp_path / "whole") if "config" in state else store
    before = in_queues(whole)
    assert before
    walk = walked(store)
    assert len(walk.lines) <= COMMANDS, walk.lines
    assert " starts on " in walk.last.stdout.splitlines()[0]
    after = {(row["vhost"], row["queue"], row["payload_sha256"]) for row in rows(store, "--view", "recovered")}
    assert after >= before
