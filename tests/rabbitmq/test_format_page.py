"""The page of the format: its examples are true, and the sections that the sources cite are there."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import mqstore

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "formats" / "rabbitmq.md"


def test_the_examples_of_the_page_are_true() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted >= 8
    assert outcome.failed == 0


def test_every_section_that_a_source_cites_is_on_the_page() -> None:
    sections = set(re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    cited = set()
    for source in (Path(mqstore.__file__).parent / "rabbitmq").rglob("*.py"):
        text = re.sub(r"\s*\n\s*#?\s*", " ", source.read_text(encoding="utf-8"))
        for numbers in re.findall(r"docs/formats/rabbitmq\.md,? (?:sections? )?((?:\d+(?:\.\d+)?(?:, | and | to )?)+)", text):
            cited.update(re.findall(r"\d+(?:\.\d+)?", numbers))
    assert {"9", "10", "11"} <= cited
    assert not cited - sections
