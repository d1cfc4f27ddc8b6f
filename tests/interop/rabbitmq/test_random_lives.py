"""Random lives of queues, run by a real node and by our engine; then each opens the store of the other (`interop.rabbitmq.lives`).

The seed is printed; `--rabbit-scripts N` runs N scripts, `--first-script` gives the first number, `--rabbit-seed` repeats a run.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from interop.rabbitmq.lives import JOURNALS, PER_BATCH, SEGMENTS, Kind, prove_lives
from interop.rabbitmq.node import new_node
from interop.rabbitmq.queuescripts import SETTINGS, scripts

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("rabbitmq")]


@pytest.mark.parametrize("kind", [JOURNALS, SEGMENTS], ids=["journals", "segments"])
def test_a_node_and_the_engine_read_each_others_stores(kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("rabbit_seed")
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    wanted = max(1, (request.config.getoption("rabbit_scripts") + 1) // 2)
    begin = request.config.getoption("first_script") + (0 if kind is JOURNALS else 500_000)
    print(f"seed {seed}, {kind}, scripts from {begin}")
    for first in range(begin, begin + wanted, PER_BATCH):
        count = min(PER_BATCH, begin + wanted - first)
        lives = scripts(seed, first, count, len(kind.ends), kind.versions)
        place = tmp_path / str(first)
        place.mkdir()
        with new_node(SETTINGS) as node:
            prove_lives(node, lives, kind, place)
        request.node.user_properties.append(("rabbit_scripts", count))
