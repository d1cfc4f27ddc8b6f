"""The documentation is true where that can be checked: links, citations, lists, commands, examples."""

from __future__ import annotations

import doctest
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import transcripts
from support.golden import run_cli
from support.spark_api import needs_streams

from mqstore.findings import Kind, Verdict
from mqstore.rocketmq.lookup.explain import Reason
from mqstore.table.columns import EXTRA_COLUMNS, RABBITMQ_COLUMNS, RABBITMQ_EXTRA_COLUMNS, ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FORMAT = DOCS / "formats" / "rocketmq.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

LOOKUP_ONLY = {Reason.NO_INDEX_ENTRY, Reason.NOT_IN_STORE}  # a query always scans the log before it gives such a reason
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$|^(?: {4}[^\n]*\n)+", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]*`")
_SKIPPED_SUFFIXES = {".xz", ".gz", ".png", ".so", ".jar"}


def _prose(page: Path) -> str:
    return _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))


def _anchors(page: Path) -> set[str]:
    """Anchors as the usual Markdown viewers make them of headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(text)}


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: which files belong to the project is not known")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(_prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        if not other.exists() or (anchor and anchor not in _anchors(other)):
            broken.append(target)
    assert not broken


def test_the_examples_of_the_format_page_are_true() -> None:
    outcome = doctest.testfile(str(FORMAT), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted > 20
    assert outcome.failed == 0


def test_the_examples_of_the_embedding_page_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testfile(str(DOCS / "guide" / "embed.md"), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted > 30
    assert outcome.failed == 0


def test_the_example_of_the_first_page_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    with transcripts.stores() as place:
        monkeypatch.chdir(place)
        outcome = doctest.testfile(str(ROOT / "README.md"), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted == 4
    assert outcome.failed == 0


SENTENCE = 25  # words


def test_the_sentences_of_the_first_page_are_short() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Read on")[0]
    text = re.sub(r"^(?: {4}|\||#|!).*$", "", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE)
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    sentences = [sentence for part in prose.split("\n\n") for sentence in re.split(r"(?<=[.?])\s", part) if sentence]
    assert len(sentences) > 15
    assert [sentence for sentence in sentences if len(sentence.split()) > SENTENCE] == []


def test_the_examples_of_the_page_on_embedded_queues_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testfile(str(DOCS / "guide" / "embed-queues.md"), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted > 12
    assert outcome.failed == 0


def test_every_citation_of_a_page_names_a_section_it_has() -> None:
    sections = set(re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", FORMAT.read_text(encoding="utf-8"), re.MULTILINE))
    missing = []
    for source in sorted((ROOT / "src").rglob("*.py")):
        text = re.sub(r"\s*\n\s*#?\s*", " ", source.read_text(encoding="utf-8"))
        pages = re.findall(r"docs/[\w/-]+\.md", text)
        missing.extend(f"{source.name}: {page}" for page in pages if not (ROOT / page).exists())
        for cited in re.findall(r"docs/formats/rocketmq\.md,? (?:sections? )?((?:\d+(?:\.\d+)?(?:, | and | to )?)+)", text):
            missing.extend(f"{source.name}: {number}" for number in re.findall(r"\d+(?:\.\d+)?", cited) if number not in sections)
    assert not missing


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_damage_is_explained(kind: Kind) -> None:
    assert f"| `{kind}` |" in (DOCS / "guide" / "findings.md").read_text(encoding="utf-8")


def test_no_kind_is_explained_that_does_not_exist() -> None:
    told = re.findall(r"^\| `([a-z-]+)` \|", (DOCS / "guide" / "findings.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(told) == sorted(Kind)


def test_the_reasons_explained_are_exactly_those_there_are() -> None:
    told = re.findall(r"^\| `([a-z-]+)` \|", (DOCS / "guide" / "explain.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(told) == sorted(set(Reason) - LOOKUP_ONLY)


def test_the_columns_and_verdicts_explained_are_exactly_those_there_are() -> None:
    text = (DOCS / "guide" / "message-table.md").read_text(encoding="utf-8")
    told = [name for cell in re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)]
    tables = (ROCKETMQ_COLUMNS, EXTRA_COLUMNS, RABBITMQ_COLUMNS, RABBITMQ_EXTRA_COLUMNS, Verdict)
    assert sorted(told) == sorted(name for table in tables for name in table)


def test_every_module_named_by_the_architecture_exists() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    missing = []
    for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE):
        room = ""
        for name in re.findall(r"`([\w./]+)`", row):
            path = name.removeprefix("mqstore/")
            room = path.rpartition("/")[0] if "/" in path.rstrip("/") else room
            place = ROOT / "src" / "mqstore"
            if not (place / path).exists() and not (place / room / path).exists():
                missing.append(name)
    assert not missing


@cache
def _help(verb: str = "") -> str:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COLUMNS", "100")
        environment.setenv("NO_COLOR", "1")
        return run_cli(*filter(None, [verb]), "--help").stdout


def test_the_commands_of_the_guide_are_those_of_the_program() -> None:
    told = set(re.findall(r"^## `(\w+)", (DOCS / "guide" / "commands.md").read_text(encoding="utf-8"), re.MULTILINE))
    overview = _help()
    assert {name for name in told if not re.search(rf"^\W*{name}\b", overview, re.MULTILINE)} == set()


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((DOCS / "guide").glob("*.md"))], ids=lambda page: page.name)
def test_every_option_shown_with_a_command_exists(page: Path) -> None:
    unknown = []
    for line in re.findall(r"^(?:    |\$ )+(?:\$ )?(mqstore .*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        words = line.split("#")[0].split()
        command = next((word for word in words[1:] if re.fullmatch(r"[a-z]+", word)), None)
        if command is None:
            continue
        known = _help(command) + _help()
        unknown.extend(f"{command} {word}" for word in words if re.fullmatch(r"--[a-z-]+", word) and word not in known)
    assert not unknown


@pytest.mark.parametrize("page", transcripts.PAGES, ids=lambda page: page.name)
def test_the_output_shown_is_what_the_commands_print(page: Path) -> None:
    with transcripts.stores() as place:
        for text, head in transcripts.blocks(page, spark=False):
            assert transcripts.shape(text) == transcripts.shape(transcripts.transcript(text, head, place, page))


@pytest.mark.long
@needs_streams  # `follow` is shown
def test_the_output_shown_of_commands_on_spark_is_what_they_print(spark: SparkSession) -> None:
    shown = [(page, *block) for page in transcripts.PAGES for block in transcripts.blocks(page, spark=True)]
    assert shown
    for page, text, head in shown:
        with transcripts.stores() as place:
            assert transcripts.shape(text) == transcripts.shape(transcripts.transcript(text, head, place, page))


def test_no_file_names_a_package_registry_or_a_place_on_somebodys_machine() -> None:
    registry = re.compile(r"files\.pythonhosted|pypi\.(?:org|python)|repo1?\.maven|index-url|(?:nexus|artifactory)\.")
    place = re.compile(r"(?<![\w.$}])(?<!\+ \")/(?:work|root|tmp|home/\w+)/")
    told = []
    for path in _tracked():
        if path.suffix in _SKIPPED_SUFFIXES or path == Path(__file__) or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        told.extend(f"{path.relative_to(ROOT)}: {match.group()}" for match in (*registry.finditer(text), *place.finditer(text)))
    assert not told


MATRIX_COLUMNS = 5
VERSIONS = ("4.3.0", "4.7.1", "4.9.3", "5.1.4", "5.3.3", "5.5.0", "3.8.9", "3.10.8", "4.0.5", "4.3.6")


def test_each_cell_of_the_matrix_names_tests_that_exist_or_the_page_that_says_no() -> None:
    text = (DOCS / "guide" / "versions.md").read_text(encoding="utf-8")
    table = text.partition("\n| version | read |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert tuple(row[0].split()[-1] for row in rows) == VERSIONS
    for name, *cells in rows:
        assert len(cells) == MATRIX_COLUMNS, name
        for cell in cells:
            if cell == "[no](#brokers)":
                assert "## Brokers" in text
                continue
            named = re.findall(r"`([^`]+)`", cell)
            assert ", ".join(f"`{each}`" for each in named) == cell, (name, cell)
            for each in named:
                path = ROOT / "tests" / each
                assert path.name.startswith("test_"), each
                assert "def test_" in path.read_text(encoding="utf-8"), each
