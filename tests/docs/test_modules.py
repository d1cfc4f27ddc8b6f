"""The list of modules says what the docstrings say, and every module has one."""

from __future__ import annotations

from support.module_list import PACKAGE, PAGE, first_sentence, page

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/support/module_list.py"


def test_every_module_says_what_it_is_for() -> None:
    assert [path for path in MODULES if not first_sentence(path).endswith((".", ":"))] == []
