"""Sixty mutants of the formats, of recovery and of the kernels: tests of the same name notice all that are not equivalent."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutation.__main__ import ROOT, copied, equivalents, those_entering, tried, what_tests_enter
from mutation.mutants import block_of, lasting

SOURCES = ROOT / "src" / "mqstore"
OF_EACH_KIND = 3  # of the five kinds, in each room
ROOMS = {
    "rocketmq/recovery": ["tests/rocketmq/recovery"],
    "rocketmq/format": ["tests/rocketmq/format"],
    "rabbitmq/format": ["tests/rabbitmq/format", "tests/rabbitmq/store"],
    "kernels": ["tests/kernels", "tests/rabbitmq/engine/test_message_locations.py"],
}


@pytest.mark.long
@pytest.mark.parametrize("room", ROOMS)
def test_mutants_are_noticed(room: str, tmp_path: Path) -> None:
    touched = what_tests_enter(tmp_path, ROOMS[room])
    copy = copied(tmp_path)
    outcomes = {}
    for path, edit in lasting(SOURCES, room, OF_EACH_KIND):
        source, place = path.read_bytes(), path.relative_to(SOURCES).as_posix()
        tests = those_entering(touched, place, block_of(source, edit.line))
        name = edit.named(Path(place), source)
        if not outcomes:
            assert tried(copy, place, source + b"# unchanged\n", tests) == "survived"
        outcomes[name] = (
            "equivalent" if name in equivalents() else tried(copy, place, edit.applied(source), tests) if tests else "untouched"
        )
    assert {name: outcome for name, outcome in outcomes.items() if outcome in ("survived", "untouched")} == {}
