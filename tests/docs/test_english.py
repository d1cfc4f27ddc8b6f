"""The English of the project: phrases that a technical writer would not use do not come back.

Docstrings, comments, and string literals of more than one word are checked in `src`, and the prose of the Markdown pages. Code in
backticks, fenced blocks and names are not checked. Each pattern names what to write instead; `ALLOWED` lists the exceptions, each with
its reason.

    python tests/docs/test_english.py                      counts by room
    python tests/docs/test_english.py src/mqstore/broker   every place in these files or directories
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))

# pattern: what to write instead
BANNED = {
    r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|such\b|more\b|less\b|later\b|earlier\b|different\b|one\b)\w+": "is not a",
    r"(?<!there )\b(?:is|are|was|were) (?-i:none)\b": "is not one, is not a ...",
    r"(?<!cannot be )\b(?:tells?|told|telling)\b": "report, return, print, show, say",
    r"\b(?:whoever|whomever|somebody|nobody)\b": "the caller, the user, no process, no one",
    r"\banew\b": "again, reassigned, rewritten",
    r"\bso many\b": "this many, the given number of",
    r"\bso long\b(?! as\b)": "this long, for the given time",
    r"\bat the most\b": "at most",
    r"\bun?believable\b|\bbelieved\b": "valid, intact, trusted",
    r"(?<!checks)\bsound(?:ness)?\b": "valid, intact, consistent",
    r"\bof (?:its|their) own\b": "its, separate, private",
    r"\bgone with\b": "removed with",
    r"(?<!lag )(?<!lags )(?<!lagging )(?<!falls )(?<!fall )(?<!fell )(?<!left )(?<!leave )(?<!leaves )(?<!far )(?<!leaving )"
    r"\bbehind\b(?! (?:a|an|its|the) (?:URL|proxy|firewall|load balancer))": "after, past (behind is for lag)",
    r"\bstands?\b(?! (?:for|by|alone|out|in for)\b)(?<!as it stands)": "is",
    r"\bl(?:ies|ie)\b(?! (?:outside|within|between|above|below)\b)": "is",
    r"\bwho wants to\b|\bfor who\b|\bwho asks\b": "the caller, for callers that",
    r"\bby itself alone\b|\ball the same\b": "anyway, nevertheless",
    r"\bnot to be (?:had|found)\b": "not available, missing",
    r"\bwhat is (?:odd|wrong) (?:with|in) it\b": "its findings, its damage",
}

# (file, words around the phrase): the reason why it may stay
ALLOWED: dict[tuple[str, str], str] = {}


class Phrase(NamedTuple):
    """One banned phrase. text: the words around it."""

    path: Path
    line: int
    found: str
    better: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.found!r} ({self.better}): {self.text}"


def _python(source: str) -> Iterator[tuple[int, str]]:
    """Comments and string literals with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def _markdown(source: str) -> Iterator[tuple[int, str]]:
    """The paragraphs of a page without its fenced and indented blocks."""
    kept = re.sub(r"^```.*?^```$|^ {4}[^\n]*$", lambda block: "\n" * block[0].count("\n"), source, flags=re.MULTILINE | re.DOTALL)
    yield 1, kept


def phrases(path: Path) -> Iterator[Phrase]:
    """The banned phrases of a file that are not allowed there."""
    source = path.read_text(encoding="utf-8")
    name = str(path.relative_to(ROOT))
    for line, text in _python(source) if path.suffix == ".py" else _markdown(source):
        # a phrase may be broken between two lines; code in backticks is not judged
        plain = re.sub(r"`[^`\n]*`", lambda code: "`" * len(code[0]), text)
        words = list(re.finditer(r"\S+", plain))
        starts = [0, *accumulate(len(word[0]) + 1 for word in words)]
        prose = " ".join(word[0] for word in words)
        for pattern, better in BANNED.items():
            for match in re.finditer(pattern, prose, re.IGNORECASE):
                around = prose[max(0, match.start() - 40) : match.end() + 30]
                if not any(name == file and allowed in around for file, allowed in ALLOWED):
                    first = words[bisect_right(starts, match.start()) - 1]
                    yield Phrase(path, line + text.count("\n", 0, first.start()), match[0], better, around)


def files(places: Iterable[Path]) -> Iterator[Path]:
    """The Python files and pages in these places."""
    for place in places:
        found = [place] if place.is_file() else [*place.rglob("*.py"), *place.rglob("*.md")]
        yield from sorted(found)


def test_no_text_has_a_phrase_that_a_technical_writer_would_not_use() -> None:
    found = [str(phrase) for path in (*files([ROOT / "src"]), *PAGES) for phrase in phrases(path)]
    assert not found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""The bytes are no frame."""', ["are no frame"]),
        ('"""The bytes are\n    no frame."""', ["are no frame"]),
        ('"""There is no frame, and `told` is no longer there."""', []),
        ("told = 1  # somebody", ["somebody"]),
        ("x = 'told'", []),
        ("x = f'{told} is none of {x}'", ["is none"]),
        ("# behind the end; the consumer lags behind", ["behind"]),
        ("# as long as; so long as; so long", ["so long"]),
    ],
)
def test_phrases_are_found_in_what_people_read_only(text: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "module.py").write_text(f"{text}\n", encoding="utf-8")
    assert [phrase.found for phrase in phrases(tmp_path / "module.py")] == found


def _room(path: Path) -> str:
    return "/".join(path.relative_to(ROOT).parts[: 4 if path.suffix == ".py" else 2][:-1]) or path.name


if __name__ == "__main__":
    given = [Path(word).resolve() for word in sys.argv[1:]]
    every = [phrase for path in files(given or [ROOT / "src", *PAGES]) for phrase in phrases(path)]
    if given:
        print(*every, sep="\n")
    else:
        for room, number in sorted(Counter(_room(phrase.path) for phrase in every).items()):
            print(f"{number:5}  {room}")
    print(f"{len(every)} phrases")


def test_a_noun_after_a_number_agrees_with_it() -> None:
    """`formatting.count` does that; a plural written out says "1 messages", unless the same line asks whether the number is 1."""
    number = re.compile(r"\{[^{}]*(?::,|\blen\([^{}]*\))\} (?:messages|files|queues|records|entries|ranges|steps|findings|groups)\b")
    asked = re.compile(r"[=!]= 1\b|> 1\b|\bLIMIT\b")
    wrong = [
        f"{path.name}:{place}: {line.strip()}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for place, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if number.search(line) and not asked.search(line)
    ]
    assert not wrong
