"""The test catalogue of the format page names tests that exist, and every test that was written for it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "formats" / "rocketmq.md"
CATALOGUE = TESTS / "rocketmq" / "catalogue"


def _section() -> str:
    return PAGE.read_text(encoding="utf-8").partition("\n## 14. Test catalogue\n")[2].partition("\n## ")[0]


def _rows() -> list[tuple[str, str]]:
    """(original, here) of every row of the tables."""
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", _section(), re.MULTILINE)
    return [row for row in rows if row != ("original", "here")]


@cache
def _functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _named() -> set[tuple[str, str]]:
    return set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", _section()))


def test_every_test_that_the_catalogue_names_exists() -> None:
    missing = [f"{file}::{name}" for file, name in sorted(_named()) if not any(name in _functions(path) for path in TESTS.rglob(file))]
    assert len(_named()) > 90
    assert not missing


def test_every_row_has_a_test_or_a_reason() -> None:
    assert len(_rows()) > 90
    assert not [original for original, here in _rows() if "::test_" not in here and not here.startswith("does not apply: ")]


def test_every_test_of_an_original_is_in_the_catalogue() -> None:
    """A test below rocketmq/catalogue whose docstring begins with the name of an original."""
    unnamed = []
    for path in sorted(CATALOGUE.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and re.match(r"[\w/]*\.?test[A-Z_]|\w+Test\b", ast.get_docstring(node) or ""):
                unnamed += [node.name] if (path.name, node.name) not in _named() else []
    assert not unnamed
