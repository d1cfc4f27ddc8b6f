"""A few seeds of `scripts/prove --kind diagnosis-rabbitmq`: what `diagnose` says of damaged stores, and what real nodes deliver."""

from __future__ import annotations

import time

import pytest
from interop.rabbitmq.bench import missing
from proofs.rabbitmq_diagnosis import check_seeds, version_of

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]


@pytest.mark.parametrize(
    "seeds", [range(40, 47), range(92, 97), range(120, 127)], ids=lambda seeds: f"{version_of(seeds.start)}-{seeds.start}"
)
def test_a_node_delivers_what_diagnose_says_of_a_store_with_a_structural_damage(seeds: range) -> None:
    if reason := missing(version_of(seeds.start)):
        pytest.skip(reason)
    states = list(check_seeds(seeds, time.time() + 1e9))
    assert len(states) == len(seeds)
    assert not [(state.seed, state.name, state.error) for state in states if state.error]
    assert any((state.whole - state.promised).total() for state in states)
