"""Crashes in the middle of a repair and of its undoing: each state is the old store, the new one, or one from which the command goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import case_named, unpack
from support.repairs import repair_with_every_crash
from support.rocketmq_states import STATES

from mqstore.places import open_rocketmq
from mqstore.rocketmq.repair.plan import LOCKING, plan

CASE = case_named("4.9.3/m-damaged/0-clean")
BREAKS = ("body_flip", "stray_file", "missing_queue", "missing_log_file", "shifted_queue_entries", "torn_delay_offsets_and_bak")
SMALL, ALL = 150, 1000  # states


def _broken(place: Path) -> Path:
    store = unpack(CASE, place / "store")
    for name in BREAKS:
        STATES[name](store)
    (store / "commitlog" / "old").mkdir()
    (store / "commitlog" / "old" / "file").write_bytes(b"something")
    with (store / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.truncate(30_000)
    return store


@pytest.mark.parametrize("undoing", [False, True], ids=["apply", "undo"])
def test_every_crash_of_a_repair_leaves_the_old_store_the_new_one_or_a_command_that_goes_on(
    undoing: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = tmp_path / "place"
    store = _broken(place)
    steps = [step for step in plan(open_rocketmq(store, config=CASE.config)) if step.possible]
    assert {"checksum", "take-out", "entries", "stand-in", "blank-file", "length", "config", "offsets"} <= {step.kind for step in steps}
    wanted = request.config.getoption("crash_states")
    limit = None if wanted == 0 else wanted or (ALL if request.config.getoption("all") else SMALL)
    repair_with_every_crash(place, store, steps, LOCKING, tmp_path / "base", undoing=undoing, limit=limit)
