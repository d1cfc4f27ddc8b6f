"""The blocks of code on the pages of the guide and in README.md, fenced or indented."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md")))


@dataclass(frozen=True, slots=True)
class Block:
    """A block. kind: the words after the fence, `doctest` for one with prompts, `indented` for any other without a fence."""

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} [{self.kind}]"


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     page = Path(place, "page.md")
    ...     _ = page.write_text("Text\\n\\n    mqstore x\\n\\n\\n```python s3\\n1\\n```\\n\\n    >>> 1\\n    1\\n\\n* item\\n  and more\\n")
    ...     [str(block) for block in blocks(page)]
    ['page.md:3 [indented]', 'page.md:6 [python s3]', 'page.md:10 [doctest]']
    """
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        begin = number
        fence = re.match(r" *```(.*)$", lines[number])
        if fence:
            number += 1
            while not re.match(r" *```$", lines[number]):
                number += 1
            found.append(_block(page, begin, fence[1].strip() or "unnamed", lines[begin + 1 : number]))
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            while number + 1 < len(lines) and (lines[number + 1].startswith("    ") or _goes_on(lines, number + 1)):
                number += 1
            found.append(_block(page, begin, "indented", lines[begin : number + 1]))
        number += 1
    return found


def _goes_on(lines: list[str], number: int) -> bool:
    return not lines[number].strip() and number + 1 < len(lines) and lines[number + 1].startswith("    ")


def _block(page: Path, line: int, kind: str, lines: list[str]) -> Block:
    text = "\n".join(lines) + "\n"
    return Block(page.name, line + 1, "doctest" if kind == "indented" and ">>> " in text else kind, text)
