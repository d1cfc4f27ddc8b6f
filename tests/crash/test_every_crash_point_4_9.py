"""Every crash point of recorded runs of a 4.9.3 store: whichever writes a dying machine leaves, the store keeps its promises.

The number of states is printed. Without `--all` a small sample of the first 4.9.3 run is checked. `--all --crash-states N`
checks N of both versions instead of the number for CI; 0 checks all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.crash_points import SEEDS, prove


@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[1:])])
def test_after_any_crash_the_store_opens_and_keeps_what_it_acknowledged(seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    prove("4.9.3", seed, tmp_path / "store", request)
