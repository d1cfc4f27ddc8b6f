"""Repaired stores on real stores of the version: each starts, keeps what `diagnose` promises, and nothing is left to repair."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.diagnosing import Place, outcomes_of
from interop.realbroker import why_not
from interop.test_diagnose_against_real_store import BASES
from support.golden import DAMAGED, case_named, opened, unpack
from support.rocketmq_states import STATES, made

from mqstore.places import open_rocketmq
from mqstore.repair.journal import apply
from mqstore.rocketmq.repair.plan import LOCKING, plan

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_after_a_repair_the_real_store_starts_and_keeps_what_diagnose_promises(version: str, tmp_path: Path) -> None:
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    places: list[Place] = []
    for base in map(case_named, BASES[version]):
        for state in sorted(STATES.keys() - {"no_log"}):
            if state.startswith("torn_") and state != "torn_tail" and not (opened(base) / "config").exists():
                continue
            name = f"{base.name.replace('/', '-')}-{state}"
            places.append(Place(name, made(state, base, tmp_path / "stores" / name), opened(base), base.properties))
    for case in DAMAGED if version == "4.9.3" else ():
        base = case_named(f"{version}/m-damaged/0-clean")
        places.append(Place(case.name, unpack(case, tmp_path / "stores" / case.name.replace("/", "-")), opened(base), case.properties))
    config = tmp_path / "store.properties"
    for place in places:
        config.write_text("".join(f"{name}={value}\n" for name, value in place.options.items()))
        steps = [step for step in plan(open_rocketmq(place.store, config=config)) if step.possible]
        if steps:
            apply(place.store, tmp_path / f"{place.store.name}.undo", steps, LOCKING)
            assert [step for step in plan(open_rocketmq(place.store, config=config)) if step.possible] == [], place.name
    wrong = {}
    for item in outcomes_of(version, places, tmp_path / "work"):
        if not (item.starts and item.predicted.starts):
            wrong[item.name] = (item.predicted.starts, item.starts, item.error[:300])
        elif item.lost is None or item.lost > item.predicted.loses:
            wrong[item.name] = (item.predicted.loses, str(item.lost), "")
    assert not wrong
    assert len(places) > 40
