"""Repaired stores on real stores of the version: each starts, keeps what `diagnose` promises, and nothing is left to repair."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.realbroker import Job, run, why_not
from interop.test_diagnose_against_real_store import BASES, _lines, _lost, _messages
from support.golden import DAMAGED, GoldenCase, case_named, opened, unpack
from support.rocketmq_states import STATES, made

from mqstore.opening import open_rocketmq
from mqstore.repair.journal import apply
from mqstore.rocketmq.diagnosis.diagnosis import diagnose
from mqstore.rocketmq.repair.plan import LOCKING, plan

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_after_a_repair_the_real_store_starts_and_keeps_what_diagnose_promises(version: str, tmp_path: Path) -> None:
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    places: dict[str, tuple[GoldenCase, GoldenCase, Path]] = {}
    for base in map(case_named, BASES[version]):
        for state in sorted(STATES):
            if state.startswith("torn_") and state != "torn_tail" and not (opened(base) / "config").exists():
                continue
            name = f"{base.name.replace('/', '-')}-{state}"
            places[name] = (base, base, made(state, base, tmp_path / "stores" / name))
    for case in DAMAGED if version == "4.9.3" else ():
        base = case_named(f"{version}/m-damaged/0-clean")
        places[case.name] = (case, base, unpack(case, tmp_path / "stores" / case.name.replace("/", "-")))
    jobs, promised = [], {}
    for name, (case, _, store) in places.items():
        config = case.config
        steps = [step for step in plan(open_rocketmq(store, config=config)) if step.possible]
        if steps:
            apply(store, tmp_path / f"{store.name}.undo", steps, LOCKING)
            assert [step for step in plan(open_rocketmq(store, config=config)) if step.possible] == [], name
        promised[name] = diagnose(open_rocketmq(store, config=config), version)
        out = tmp_path / "out" / store.name
        out.mkdir(parents=True)
        jobs.append(Job(name, ("report", str(store), "--tmp", str(out), "--out", str(out / "report")), case.properties))
    done = run(version, jobs, tmp_path / "work", threads=32)
    wrong = {}
    for name, (case, base, store) in places.items():
        report = tmp_path / "out" / store.name / "report"
        boot = _lines(report / "boot.json")[0] if (report / "boot.json").exists() else {}
        if not boot.get("load_ok") or done[name].error is not None:
            wrong[name] = (promised[name].starts, str(boot.get("load_error") or done[name].error)[:300])
            continue
        lost = _lost(_messages(opened(base), base.config), store, case.config, report, boot["max_phy_offset"])
        if lost > promised[name].loses or not promised[name].starts:
            wrong[name] = (promised[name].loses, str(lost))
    assert not wrong
    assert len(places) > 40
