"""The page docs/modules.md: every package and module with the first sentence of its docstring.

python tests/support/module_list.py        writes the page; tests/docs/test_modules.py fails while it is out of date
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "mqstore"
PAGE = ROOT / "docs" / "modules.md"
HEAD = """# Modules

Generated from the docstrings by `python tests/support/module_list.py`; do not edit. What the packages are for, and
which may import which: [architecture](architecture.md).
"""


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0]


def _entry(name: str, path: Path) -> str:
    return textwrap.fill(f"* `{name}`: {first_sentence(path)}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for init in sorted(PACKAGE.rglob("__init__.py"), key=lambda path: path.parent.relative_to(PACKAGE).parts):
        package = init.parent
        title = "mqstore" if package == PACKAGE else "mqstore/" + package.relative_to(PACKAGE).as_posix()
        modules = [path for path in sorted(package.glob("*.py")) if path.name not in ("__init__.py", "__main__.py")]
        entries = [_entry(path.stem, path) for path in modules]
        about = textwrap.fill(first_sentence(init), 120, break_long_words=False, break_on_hyphens=False)
        parts.append("\n".join([f"## {title}", "", about, *([""] if entries else []), *entries, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
