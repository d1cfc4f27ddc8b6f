"""The page of the format of streams: its examples are true, and the sections that the sources cite are there."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import mqstore

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "formats" / "rabbitmq-streams.md"


def test_the_examples_of_the_page_are_true() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted >= 8
    assert outcome.failed == 0


def test_every_section_that_a_source_cites_is_on_the_page() -> None:
    sections = set(re.findall(r"^## (\d+)\. ", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    cited = set()
    sources = [path for ending in ("*.py", "*.pxd") for path in Path(mqstore.__file__).parent.rglob(ending)]
    for source in sources:
        text = re.sub(r"\s*\n\s*#?\s*", " ", source.read_text(encoding="utf-8"))
        for numbers in re.findall(r"docs/formats/rabbitmq-streams\.md, sections? (\d+(?:(?:, | and | to )\d+)*)", text):
            cited.update(re.findall(r"\d+", numbers))
    assert {"2", "3", "4", "5", "6", "7"} <= cited <= sections
