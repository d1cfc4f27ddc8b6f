"""Mutants of the formats, of recovery and of the kernels: the tests of the same name notice every one that is not equivalent."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutation.__main__ import ROOT, copied, equivalents, those_entering, tried, what_tests_enter
from mutation.mutants import block_of, lasting

SOURCES = ROOT / "src" / "mqstore"
OF_EACH_KIND = {"rocketmq/recovery": 3, "rocketmq/format": 3, "rabbitmq/format": 3, "kernels": 3}


@pytest.mark.long
def test_sixty_mutants_are_noticed(tmp_path: Path) -> None:
    touched = what_tests_enter(tmp_path, [f"tests/{room}" for room in OF_EACH_KIND])
    copy = copied(tmp_path)
    missed = {}
    for path, edit in [each for room, number in OF_EACH_KIND.items() for each in lasting(SOURCES, room, number)]:
        source, place = path.read_bytes(), path.relative_to(SOURCES)
        if edit.named(place, source) in equivalents():
            continue
        tests = those_entering(touched, place.as_posix(), block_of(source, edit.line))
        outcome = tried(copy, place.as_posix(), edit.applied(source), tests) if tests else "untouched"
        if outcome not in ("failed", "timeout", "refused"):
            missed[edit.named(place, source)] = outcome
    assert missed == {}
