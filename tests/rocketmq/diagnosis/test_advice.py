"""The advice at the end of `inspect` and `verify`, against the diagnosis of the same store: it never says more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from proofs.advice import walk
from support.golden import CASES, FURTHER, GoldenCase, case_id, case_named, opened, run_cli, unpack
from support.rocketmq_states import STATES, made

from mqstore.files.durable import DurableDirectory
from mqstore.findings import Advice
from mqstore.places import open_rocketmq
from mqstore.rocketmq.diagnosis.diagnosis import START, advise, diagnose
from mqstore.rocketmq.live.store_lock import StoreLock
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.verification import verify

FOUR = case_named("4.9.3/f-broker-offsets")
BEFORE_READING = ("mqstore diagnose ", "mqstore repair ", "mqstore rebuild ", "mqstore verify ", "mqstore topics ", "mqstore inspect ")


def _check(store: RocketMQStore) -> tuple[Advice, Advice]:
    before, after = advise(store), advise(store, verify(store))
    assert before.next.startswith(BEFORE_READING)
    assert before.starts is not True
    if store.dledger is not None:
        assert (before.starts, after.starts) == (None, None)
        return before, after
    found = diagnose(store)
    for advice in (before, after):
        if advice.starts is not None:
            assert advice.starts is found.starts
            assert (advice.next, advice.why) == (found.next, found.why)
        elif not advice.next.startswith("mqstore diagnose "):
            assert (advice.next, advice.why) == (found.next, found.why)
    if after.next == START:
        assert found.status == 0
    return before, after


@pytest.mark.parametrize("case", [case for case in (*CASES, *FURTHER) if "queueType" not in str(case.properties)], ids=case_id)
def test_verify_advises_to_start_a_broker_only_where_a_diagnosis_promises_everything(case: GoldenCase) -> None:
    _check(open_rocketmq(opened(case), config=case.config if case.config.exists() else None))


@pytest.mark.parametrize("state", sorted(STATES))
def test_the_advice_on_a_damaged_store_is_that_of_the_diagnosis_or_leads_to_it(state: str, tmp_path: Path) -> None:
    _, after = _check(open_rocketmq(made(state, FOUR, tmp_path / "store"), config=FOUR.config))
    assert after.next != START or state == "stray_index_file"


def test_a_sound_store_gets_the_advice_to_start_the_broker() -> None:
    case = case_named("4.9.3/d-rolled")
    _, after = _check(open_rocketmq(opened(case), config=case.config))
    assert (after.starts, after.next) == (True, START)


def test_a_store_that_a_broker_has_open_is_to_be_left_alone(tmp_path: Path) -> None:
    store = made("stray_index_file", FOUR, tmp_path / "store")
    with DurableDirectory(store) as directory, StoreLock(directory):
        advice = advise(open_rocketmq(store))
    assert (advice.starts, advice.next) == (False, f"mqstore topics {store}")
    assert "leave its files alone" in advice.why


@pytest.mark.parametrize("name", ["01-body-flip", "05-zero-4k", "16-everything"])
def test_files_with_a_second_name_are_not_repaired_in_place(name: str, tmp_path: Path) -> None:
    case = case_named(f"4.9.3/m-damaged/{name}")
    store = unpack(case, tmp_path / "store")
    before = diagnose(open_rocketmq(store, config=case.config))
    assert before.next == f"mqstore repair {store} --config {case.config}"
    for file in (store / "commitlog").iterdir():
        (tmp_path / file.name).hardlink_to(file)
    linked = open_rocketmq(store, config=case.config)
    _check(linked)
    found = diagnose(linked)
    assert found.next.startswith(f"mqstore rebuild {store} --to ")
    assert [way.next for way in found.ways if "repair" in way.next] == []
    assert found.loses == before.loses


@pytest.mark.parametrize(("name", "target"), [("lock", "checkpoint"), ("consumequeue/s71_orders/1", "3")])
def test_no_repair_is_advised_that_would_be_refused_because_of_a_link(name: str, target: str, tmp_path: Path) -> None:
    """Seeds 578 and 267 of `scripts/prove --kind advice-rocketmq`: of such queues, the repair of one undid that of the other."""
    case = case_named("4.9.3/m-damaged/05-zero-4k")
    store = unpack(case, tmp_path / "store")
    shutil.rmtree(store / name) if (store / name).is_dir() else (store / name).unlink(missing_ok=True)
    (store / name).symlink_to(target)
    found = diagnose(open_rocketmq(store, config=case.config))
    assert found.next.startswith(f"mqstore rebuild {store} --to ")
    assert run_cli("repair", store, "--config", case.config, "--apply").status == 2


def test_a_repair_does_not_take_away_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    """Seed 602 of `scripts/prove --kind advice-rocketmq`: the name of the file is that of no log file, and 46 messages are in it."""
    case = case_named("4.9.3/d-rolled")
    store = unpack(case, tmp_path / "store")
    messages = len(run_cli("messages", store, "-o", "jsonl").rows)
    log = sorted((store / "commitlog").iterdir())[1]
    moved = log.rename(log.with_name(f"{log.name}.real"))
    log.symlink_to(moved.name)
    refused = run_cli("repair", store, "--config", case.config, "--apply")
    assert refused.status == 2
    assert f"{log} leads to {moved}, which a repair would take away" in refused.stderr.replace("\n", " ")
    walked = walk(store, "rocketmq")
    assert not walked.fault, walked
    assert walked.kept[-1].total() == messages
    assert moved.exists()


def test_a_broker_that_would_write_into_a_backup_is_warned_of(tmp_path: Path) -> None:
    case = case_named("4.9.3/d-rolled")
    store = unpack(case, tmp_path / "store")
    *older, last = sorted((store / "commitlog").iterdir())
    for file in older:  # as a rebuild leaves them: no broker writes into these
        (tmp_path / file.name).hardlink_to(file)
    assert not [item for item in diagnose(open_rocketmq(store, config=case.config)).evidence if "second name" in item.detail]
    (tmp_path / last.name).hardlink_to(last)
    found = diagnose(open_rocketmq(store, config=case.config))
    assert found.next == START
    (note,) = [item.detail for item in found.evidence if "second name" in item.detail]
    assert note.startswith(f"commitlog/{last.name} has a second name")


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_the_commands_end_with_the_advice(verb: str, tmp_path: Path) -> None:
    store = made("stray_file", FOUR, tmp_path / "store")
    lines = run_cli(verb, store).stdout.rstrip("\n").split("\n")
    assert lines[-2:] == [
        "Next: list what can be repaired before a broker starts; nothing is changed.",
        f"      mqstore repair {store}",
    ]
    found = run_cli(verb, store, "-o", "json").document
    assert (found["starts"], found["next"]) == (False, f"mqstore repair {store}")
