"""Every crash point of recorded runs of the engine: whatever a dying machine leaves of the writes, the store keeps its promises.

The number of states is printed. `--crash-states N` checks N instead of the number for CI; 0 checks all there are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from crash.enginekit import check_state, record_run
from mqstore.testing.crashes import CrashStates, run_states

RUNS = [(version, seed) for version in ("4.9.3", "5.3.3") for seed in (1, 2, 3, 4)]
CI_STATES = 20_800


@pytest.mark.parametrize(("version", "seed"), RUNS, ids=[f"{version}-seed{seed}" for version, seed in RUNS])
def test_after_any_crash_the_store_opens_and_keeps_what_it_acknowledged(
    version: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = request.config.getoption("crash_states")
    limit = None if wanted == 0 else (wanted or CI_STATES) // len(RUNS)
    place = tmp_path / "store"
    place.mkdir()
    run = record_run(place, seed, version)
    states = CrashStates(run.recorded, limit=limit, seed=seed)
    told: list[str] = []
    run_states(states, lambda directory, state: check_state(directory, state, run), workers=1, tell=told.append)
    with capfd.disabled():
        print(f"\ncrash states of {version}, seed {seed}: {told[0]}", file=sys.stderr)
