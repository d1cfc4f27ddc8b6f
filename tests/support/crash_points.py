"""The proof that `test_every_crash_point_*` runs: all crash points of some recorded runs of one version."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.crash_engine import check_state, record_run

from mqstore.testing.crashes import CrashStates, run_states

SEEDS = (1, 2, 3, 4)
CI_STATES = 2_400  # of both versions together
SMALL_STATES = 150  # of a run, without --all


def prove(version: str, seed: int, place: Path, request: pytest.FixtureRequest) -> None:
    """Record a run, lay out what a crash at each of its points may leave, and open it. The counts are printed at the end."""
    wanted = request.config.getoption("crash_states")
    limit = None if wanted == 0 else (wanted or CI_STATES) // (2 * len(SEEDS))
    if wanted is None and not request.config.getoption("all"):
        limit = SMALL_STATES
    place.mkdir()
    run = record_run(place, seed, version)
    states = CrashStates(run.recorded, limit=limit, seed=seed, whole_sectors=True)
    done = run_states(states, lambda directory, state: check_state(directory, state, run), workers=1)
    assert sum(done.checked.values()) == len(states)
    request.node.user_properties.append(("crash_states", len(states)))
