"""From "it does not start" to "the messages are back" by nothing but what the commands print: at most four commands.

Each walk begins with `diagnose STORE`, and runs the command below `Next:` of what is printed, as a person would copy it into a shell.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from support import rabbitmq_states, rocketmq_states
from support.golden import DAMAGED, OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, case_named, run_cli, unpack

BROKER = {"rocketmq": "sh bin/mqbroker -c conf/broker.conf", "rabbitmq": "rabbitmq-server"}
MOST = 4
_FOUND = re.compile(r"^kind +findings +bytes", re.MULTILINE)
_NEXT = re.compile(r"^Next: .*\n {6}(\S.*)$", re.MULTILINE)


def walk(store: Path, family: str, *options: object) -> tuple[list[str], Path]:
    """Return the commands until a broker is to be started, and the store that it is to be started on."""
    commands = [shlex.join(["mqstore", "diagnose", str(store)])]
    while len(commands) <= MOST:
        words = shlex.split(commands[-1])
        done = run_cli(*words[1:], *options)
        following = _NEXT.findall(done.stdout)
        assert following, (commands, done.stdout, done.stderr)
        if "--to" in words:
            store = Path(words[words.index("--to") + 1])
        if following[-1] == BROKER[family]:
            # a rebuild of a damaged log ends with 1, and names what it found
            assert done.status == 0 or words[1] == "diagnose" or (done.status == 1 and _FOUND.search(done.stdout)), (commands, done.stdout)
            return commands, store
        commands.append(following[-1])
    raise AssertionError(commands)


def intact_rocketmq(store: Path, *options: object) -> Counter[str]:
    rows = run_cli("messages", store, "-o", "jsonl", "--body", "none", *options).rows
    return Counter(row["msg_id"] for row in rows if row["verdict"] in ("intact", "unindexed"))


def delivered_rabbitmq(store: Path) -> Counter[tuple[str, str, str]]:
    rows = run_cli("messages", store, "-o", "jsonl").rows
    return Counter((row["vhost"], row["queue"], row["payload_sha256"]) for row in rows if row["recovered"] and row["persistent"])


def check_rocketmq(case: GoldenCase, store: Path) -> list[str]:
    config = ("--config", case.config) if case.config.exists() else ()
    before = intact_rocketmq(store, *config)
    commands, made = walk(store, "rocketmq", *config)
    assert intact_rocketmq(made, "--view", "recovered", *config) >= before
    return commands


@pytest.mark.parametrize("case", DAMAGED, ids=case_id)
def test_a_damaged_golden_store_of_rocketmq_has_its_messages_back(case: GoldenCase, tmp_path: Path) -> None:
    store = tmp_path / "a broker's store"
    unpack(case, store)
    assert len(check_rocketmq(case, store)) == 3


@pytest.mark.parametrize("state", sorted(rocketmq_states.STATES.keys() - {"no_log"}))  # without its log nothing can come back
@pytest.mark.sample(4)
def test_a_store_of_rocketmq_that_was_damaged_has_its_messages_back(state: str, tmp_path: Path) -> None:
    case, store = case_named("4.9.3/f-broker-offsets"), tmp_path / "a broker's store"
    unpack(case, store)
    rocketmq_states.STATES[state](store)
    check_rocketmq(case, store)


@pytest.mark.parametrize("case", [*RABBITMQ, *OTHER_RABBITMQ], ids=case_id)
@pytest.mark.sample(4)
def test_a_golden_store_of_rabbitmq_has_its_messages_back(case: GoldenCase, tmp_path: Path) -> None:
    store = tmp_path / "a node's store"
    unpack(case, store)
    before = delivered_rabbitmq(store)
    commands, made = walk(store, "rabbitmq")
    assert len(commands) == (3 if case.name.startswith("e3") else 1)
    assert delivered_rabbitmq(made) >= before


@pytest.mark.parametrize("state", sorted(rabbitmq_states.STATES))
@pytest.mark.sample(6)
def test_a_store_of_rabbitmq_that_was_damaged_has_its_messages_back(state: str, tmp_path: Path) -> None:
    unpack(case_named(f"3.10.8/{rabbitmq_states.STATES[state].case}"), tmp_path / "golden")
    golden = delivered_rabbitmq(tmp_path / "golden")
    commands, made = walk(rabbitmq_states.made(state, tmp_path / "a node's store"), "rabbitmq")
    assert len(commands) <= 3
    assert golden.total() - delivered_rabbitmq(made).total() <= rabbitmq_states.STATES[state].lost
