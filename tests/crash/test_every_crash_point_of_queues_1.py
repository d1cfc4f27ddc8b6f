"""Every crash point of recorded runs of the queue engine (part 1 of 2): whatever a dying machine leaves opens with everything confirmed.

The number of states is printed. `--crash-states N` checks N of both halves together; 0 checks all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.crash_queues import SEEDS, prove


@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[2::2])])
def test_after_any_crash_the_queues_open_and_keep_what_was_confirmed(seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    prove(seed, tmp_path / "store", request)
