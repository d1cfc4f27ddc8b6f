"""Crashes in the middle of a repair and of its undoing: each state is the old store, the new one, or one from which the command goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.golden import case_named, unpack
from support.rocketmq_states import STATES

from mqstore.files.recorder import RecordedWrites
from mqstore.opening import open_rocketmq
from mqstore.repair.journal import APPLIED, UNDOING, apply, read_journal, resume, undo
from mqstore.rocketmq.repair.plan import LOCKING, plan
from mqstore.testing.crashes import CrashState, CrashStates, run_states

CASE = case_named("4.9.3/m-damaged/0-clean")
BREAKS = ("body_flip", "stray_file", "missing_queue", "missing_log_file", "shifted_queue_entries", "torn_delay_offsets_and_bak")
SMALL, ALL = 150, 1000  # states


def _image(store: Path) -> dict[str, bytes | None]:
    return {path.relative_to(store).as_posix(): path.read_bytes() if path.is_file() else None for path in sorted(store.rglob("*"))}


def _broken(place: Path) -> Path:
    store = unpack(CASE, place / "store")
    for name in BREAKS:
        STATES[name](store)
    (store / "commitlog" / "old").mkdir()
    (store / "commitlog" / "old" / "file").write_bytes(b"something")
    with (store / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.truncate(30_000)
    return store


def _states(recorded: RecordedWrites, base: Path, request: pytest.FixtureRequest) -> CrashStates:
    wanted = request.config.getoption("crash_states")
    limit = None if wanted == 0 else wanted or (ALL if request.config.getoption("all") else SMALL)
    return CrashStates(recorded, base, limit=limit, whole_sectors=True)


@pytest.mark.parametrize("undoing", [False, True], ids=["apply", "undo"])
def test_every_crash_of_a_repair_leaves_the_old_store_the_new_one_or_a_command_that_goes_on(
    undoing: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = tmp_path / "place"
    store = _broken(place)
    old = _image(store)
    steps = [step for step in plan(open_rocketmq(store, config=CASE.config)) if step.possible]
    assert {"checksum", "take-out", "entries", "stand-in", "blank-file", "length", "config", "offsets"} <= {step.kind for step in steps}
    base = tmp_path / "base"
    recorded = RecordedWrites()
    if undoing:
        apply(store, place / "undo", steps, LOCKING)
        new = _image(store)
        shutil.copytree(place, base)
        found = read_journal(place / "undo")
        assert found is not None
        undo(store, found, LOCKING, recorder=recorded, within="store")
        assert _image(store) == old
    else:
        shutil.copytree(place, base)
        apply(store, place / "undo", steps, LOCKING, recorder=recorded, within="store")
        new = _image(store)
    goes_on = 0

    def check(directory: Path, state: CrashState) -> None:
        nonlocal goes_on
        left = directory / "store"
        journal = read_journal(directory / "undo")
        if journal is None:
            assert _image(left) == old
            return
        if journal.state == APPLIED:
            assert _image(left) == new
        elif journal.state != UNDOING and len(state.name) % 2:
            goes_on += 1
            resume(left, journal, LOCKING)
            assert _image(left) == new
            return
        goes_on += 1
        undo(left, journal, LOCKING)
        assert _image(left) == old
        assert not (directory / "undo").exists()

    states = _states(recorded, base, request)
    run_states(states, check, workers=1)
    assert goes_on >= 5
