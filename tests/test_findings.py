"""What is known of each kind of finding, and that the guide says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqstore.findings import (
    LOST_VERDICTS,
    CheckCounts,
    Damage,
    Kind,
    Reaction,
    Remedy,
    Report,
    SalvageReport,
    Subject,
    Verdict,
    merge_adjacent,
)

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


def test_adjacent_damage_of_one_file_kind_and_detail_is_one_finding() -> None:
    def of(offset: int, length: int, file: str = "a", kind: Kind = Kind.BAD_CHUNK, detail: str = "d", messages: int = 1) -> Damage:
        return Damage(file, offset, length, kind, detail, messages)

    assert merge_adjacent([of(20, 5, messages=2), of(0, 10), of(10, 10, messages=0)]) == [of(0, 25, messages=3)]
    for apart in (of(11, 5), of(9, 5), of(10, 5, file="b"), of(10, 5, kind=Kind.TORN_RECORD), of(10, 5, detail="e")):
        assert merge_adjacent([apart, of(0, 10)]) == sorted([of(0, 10), apart], key=lambda item: (item.file, item.offset))
    assert merge_adjacent([]) == []


def test_a_report_without_findings_counts_nothing() -> None:
    report = Report("s", "rocketmq", CheckCounts())
    assert repr(report) == "<report on 's': verdict Intact: nothing is damaged., checked 0 messages in 0 files>"
    assert report.as_dict() == {
        "store": "s", "family": "rocketmq", "ok": True,
        "checked": {"files": 0, "bytes": 0, "records": 0, "messages": 0, "queue_entries": 0, "index_entries": 0},
        "messages": {"total": 0, "affected": 0}, "coverage": {"complete": True, "skipped": []}, "damage": [], "notes": [],
    }  # fmt: skip


def test_a_salvage_is_whole_without_findings_and_lost_messages() -> None:
    damage = (Damage("a", 0, 1, Kind.BAD_CHUNK, "d"),)
    lost = min(LOST_VERDICTS)
    for findings, verdicts, ok in ((None, {}, True), ((), {"ok": 3, lost: 0}, True), (damage, {}, False), (None, {lost: 1}, False)):
        report = SalvageReport("s", "t", "jsonl", 3, 70, verdicts, findings, 1.23456)
        assert report.ok == ok
        counts = {str(verdict): verdicts.get(verdict, 0) for verdict in Verdict}
        listed = {} if findings is None else {"damage": [item.as_dict() for item in findings]}
        assert report.as_dict() == {
            "to": "t", "format": "jsonl", "ok": ok, "messages": 3, "bytes": 70, "verdicts": counts,
            "seconds": 1.235, "store": "s", **listed,
        }  # fmt: skip
