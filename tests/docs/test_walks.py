"""The walks of docs/architecture.md: how many rooms a question passes, from the command or task to its answer."""

from __future__ import annotations

import re
from pathlib import Path

from support.walks import walks

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
AT_MOST = {"key query": 14, "salvage of RocketMQ": 20, "salvage of RabbitMQ": 20, "split of a DataFrame": 12}


def test_no_question_passes_more_rooms_than_its_limit_and_the_page_names_every_walk(tmp_path: Path) -> None:
    taken = walks(tmp_path)
    assert all("store" in "".join(each.rooms) for each in taken.values()), "a walk that comes into no store is none"
    passed = {name: len(taken[name].passed) for name in AT_MOST}
    assert {name: most for name, most in passed.items() if most > AT_MOST[name]} == {}, {name: taken[name].passed for name in AT_MOST}
    assert set(taken) == {found[1] for found in re.finditer(r"^\| ([^|]+) \|( \d+ \|){5}$", PAGE.read_text(), re.MULTILINE)}
