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
    "rabbitmq/format": ["tests/rabbitmq/format", "tests/rabbitmq/store", "tests/rabbitmq/diagnosis/test_linked_files.py"],
    "kernels": [
        "tests/kernels",
        "tests/rabbitmq/format",
        "tests/rabbitmq/engine/test_message_locations.py",
        "tests/rocketmq/query/test_pull_batch.py",
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("room", ROOMS)
def test_mutants_are_noticed(room: str, tmp_path: Path) -> None:
    touched = what_tests_enter(tmp_path, ROOMS[room])
    copy = copied(tmp_path)
    outcomes, missed = [], {}
    for path, edit in lasting(SOURCES, room, OF_EACH_KIND):
        source, place = path.read_bytes(), path.relative_to(SOURCES).as_posix()
        name = edit.named(Path(place), source)
        tests = those_entering(touched, place, block_of(source, edit.line))
        if name in equivalents():
            continue
        if not outcomes and tests:
            assert tried(copy, place, source + b"# no change\n", tests) == "survived"
        outcomes.append(tried(copy, place, edit.applied(source), tests) if tests else "untouched")
        if outcomes[-1] in ("survived", "untouched"):
            missed[name] = outcomes[-1]
    assert missed == {}
    assert outcomes.count("failed") > OF_EACH_KIND
