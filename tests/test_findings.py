"""What is known of each kind of finding, and that the guide says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqstore.findings import Kind, Reaction, Remedy, Subject

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "guide" / "findings.md").read_text(encoding="utf-8")
SECTIONS = {
    Subject.BYTES: ("Commit log", "Queues and messages of RabbitMQ"),
    Subject.RECORD: ("Commit log",),
    Subject.FILE: ("Commit log",),
    Subject.QUEUE_ENTRY: ("Consume queue",),
    Subject.QUEUE: ("Consume queue",),
    Subject.INDEX: ("Index",),
    Subject.MESSAGE: ("Queues and messages of RabbitMQ",),
    Subject.NODE: ("Queues and messages of RabbitMQ",),
    Subject.OTHER: ("The rest", "Commit log"),
}


def row(kind: Kind) -> tuple[str, str]:
    """Return the section of the guide that explains a kind, and the last cell of its row."""
    before, _, after = GUIDE.partition(f"| `{kind}` |")
    return re.findall("^## (.*)$", before, re.MULTILINE)[-1], after.partition("\n")[0].rpartition(" | ")[2]


@pytest.mark.parametrize("kind", Kind)
def test_the_guide_explains_a_kind_where_its_subject_is_and_names_its_remedy(kind: Kind) -> None:
    section, what_to_do = row(kind)
    assert section in SECTIONS[kind.subject]
    if kind.remedy in (Remedy.REPAIR, Remedy.REBUILD, Remedy.SALVAGE):
        assert f"`{kind.remedy}`" in what_to_do
    elif kind.remedy is Remedy.BROKER:
        assert "broker" in what_to_do


@pytest.mark.parametrize("kind", Kind)
def test_only_what_a_broker_mends_by_itself_needs_no_remedy(kind: Kind) -> None:
    assert (kind.remedy is Remedy.BROKER) <= (kind.reaction is Reaction.MENDS)


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: path.name)
def test_no_other_module_keeps_a_list_of_kinds(path: Path) -> None:
    if path.name != "findings.py" or path.parent.name != "mqstore":
        text = path.read_text(encoding="utf-8")
        listed = re.findall(r"[({\[]\s*Kind\.\w+,\s*Kind\.\w+", text)
        named = re.findall(rf'"(?:{"|".join(Kind)})",?\s+"(?:{"|".join(Kind)})"', text)
        assert not listed
        assert not named
