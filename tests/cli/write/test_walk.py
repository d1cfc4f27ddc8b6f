"""From a broker that does not start, or loses messages, to one that has them again: only what the commands say to run next is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from proofs.advice import delivered, intact, walk
from support import golden as goldenkit
from support import rabbitmq_states
from support.golden import GoldenCase, run_cli

COMMANDS = 3  # diagnose, repair, repair --apply


@pytest.mark.parametrize("case", goldenkit.DAMAGED, ids=goldenkit.case_id)
def test_a_rocketmq_store_is_back_after_three_commands(case: GoldenCase, tmp_path: Path) -> None:
    store = goldenkit.unpack(case, tmp_path / "store")
    walked = walk(store, "rocketmq")
    assert (walked.fault, walked.end) == ("", "sh bin/mqbroker -c conf/broker.conf")
    assert len(walked.lines) <= COMMANDS, walked.lines
    assert walked.kept[0]
    assert walked.kept[-1] >= walked.kept[0]
    told = run_cli("diagnose", store)
    [loses] = [run_cli("diagnose", store, "-o", "json").document["loses"]]
    # what is lost had no bytes before
    assert loses == 0 or "only the places in their queues are left" in " ".join(told.stdout.split())


@pytest.mark.parametrize("state", rabbitmq_states.STATES)
def test_a_rabbitmq_store_is_back_after_four_commands(state: str, tmp_path: Path) -> None:
    store = rabbitmq_states.made(state, tmp_path / "store")
    # without its .config a vhost is read with another number of entries, and acknowledged messages come back
    whole = rabbitmq_states.unpacked(rabbitmq_states.STATES[state].case, tmp_path / "whole") if "config" in state else store
    before = intact(whole, "rabbitmq")
    assert before
    walked = walk(store, "rabbitmq")
    end = walked.end
    if "if it is gone" in walked.why:  # a person looks for the file first
        assert end == f"mqstore repair {store}"
        assert run_cli("repair", store, "--apply").status == 0
        end = run_cli("diagnose", store, "-o", "json").document["next"]
    assert (walked.fault, end) == ("", "rabbitmq-server"), walked.lines
    assert set(delivered(store, "rabbitmq")) >= set(before)
