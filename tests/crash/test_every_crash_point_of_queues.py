"""Every crash point of recorded runs of the queue engine: whatever a dying machine leaves of the writes, confirmed messages are there.

The number of states is printed. `--crash-states N` checks N in all instead of the number for CI; 0 checks all there are.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from crash.queuekit import check_state, record_run

from mqstore.testing.crashes import CrashStates, run_states

SEEDS = (2, 5, 12, 13)  # in each of these message store files are merged
CI_STATES = 20_800


@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_crash_the_queues_open_and_keep_what_was_confirmed(seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    wanted = request.config.getoption("crash_states")
    limit = None if wanted == 0 else (wanted or CI_STATES) // len(SEEDS)
    place = tmp_path / "store"
    place.mkdir()
    run = record_run(place, seed)
    assert run.merged, "no merge of message store files is among the crash points"
    states = CrashStates(run.recorded, limit=limit, seed=seed, whole_sectors=True)
    done = run_states(states, lambda directory, state: check_state(directory, state, run), workers=1)
    assert sum(done.checked.values()) == len(states)
    request.node.user_properties.append(("crash_states", len(states)))
