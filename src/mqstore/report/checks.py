"""What `verify`, `usage` and `diagnose` answer, as parts: of stores of both families, whose reports are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from mqstore.findings import STAND_IN, Kind
from mqstore.report.parts import (
    OF_FINDING,
    OF_GROUP,
    SHOWN,
    Column,
    Field,
    Findings,
    Gap,
    Headline,
    NextStep,
    Parts,
    Sentence,
    Sentences,
    Table,
    Tone,
)
from mqstore.table.formatting import count, moment, pace, size

if TYPE_CHECKING:
    from mqstore.diagnosis import Diagnosis, Evidence
    from mqstore.findings import Advice, Damage, Report


class _Ran(Protocol):
    """A report of a job."""

    @property
    def runs_on(self) -> str: ...

    @property
    def why(self) -> str: ...


class UsageReport(Protocol):
    """What takes the space in a store of either family. parts: names with bytes, whose sum is total_bytes.

    read_bytes: those that were read, for the pace. elsewhere: directories that the total does not contain. runs_on: empty if there was no
    choice where to run.
    """

    @property
    def family(self) -> str: ...

    @property
    def headline(self) -> str: ...

    @property
    def total_bytes(self) -> int: ...

    @property
    def read_bytes(self) -> int: ...

    @property
    def parts(self) -> Sequence[tuple[str, int]]: ...

    @property
    def elsewhere(self) -> Sequence[tuple[str, int]]: ...

    @property
    def shown_by(self) -> tuple[str, ...]: ...

    @property
    def damage(self) -> Sequence[Damage]: ...

    @property
    def notes(self) -> Sequence[str]: ...

    @property
    def runs_on(self) -> str: ...

    @property
    def why(self) -> str: ...

    def rows(self, by: str) -> list[dict[str, Any]]: ...


def ran_on(report: _Ran) -> str:
    """Return where a job ran, and why there."""
    startup = ", not counting its start" if "Spark" in report.runs_on else ""
    return f"{report.runs_on}{startup}: {report.why}"


def outcome(ok: bool) -> Tone:
    """Return the tone of the headline of what was done."""
    return Tone.GOOD if ok else Tone.CAUTION


# verify


def verify_parts(report: Report, seconds: float) -> Parts:
    """Return the outcome of `verify`: what was checked, damage by kind and in detail, notes, what is lost, what to do next."""
    yield Headline(report.headline, Tone.BAD if report.damage else Tone.CAUTION if report.cautions or report.without else Tone.GOOD)
    checked = report.checked
    if report.family == "rocketmq":
        what = (
            f" in {count(checked.records, 'record')} of log, {count(checked.queue_entries, 'queue entry')} and "
            f"{count(checked.index_entries, 'index entry')}"
        )
    else:
        entries = (checked.queue_entries + checked.index_entries, "index entry"), (checked.records, "record")
        what = " and ".join(count(number, noun) for number, noun in entries if number)
        what = f" in {what}" if what else ""
    yield Sentence(
        f"Checked {count(checked.messages, 'message')}{what}: "
        f"{size(checked.bytes)} in {count(checked.files, 'file')}; {pace(checked.bytes, seconds)}."
    )
    if report.damage:
        yield Gap()
        yield Findings(report.damage)
    unread = [skip for skip in report.coverage.skipped if skip.file.startswith("commitlog") and skip.length]
    if unread:
        lost = size(sum(skip.length for skip in unread))
        yield Sentence(f"Not readable as records: {count(len(unread), 'range')} of the log, {lost}.")
    yield from note_parts(report.notes)
    if report.runs_on:
        yield Sentence(f"Ran with {ran_on(report)}.", Tone.FAINT)
    yield Gap()
    yield from _losses(report)
    if report.advice is not None:
        yield advice_part(report.advice)


def _losses(report: Report) -> Parts:
    lost = (item.file.partition("/")[0] for item in report.damage if item.kind.lost and item.kind is not Kind.ABSENT_PART)
    if report.family == "rocketmq" and any("consumequeue" not in part for part in lost):
        yield Sentence("Bytes of the log are lost: look for the same offsets in a replica or a backup. All other messages can be read.")
    if any(item.kind is Kind.TORN_RECORD for item in report.damage):
        yield Sentence("A torn last record is left by a crash; the broker truncates it at startup.")


def note_parts(notes: Iterable[str]) -> Parts:
    """Return notes of a report, a sentence each."""
    for note in notes:
        yield Sentence(f"Note: {note}.")


def advice_part(advice: Advice) -> NextStep:
    """Return the one command to run next, and why."""
    return NextStep(f"{advice.why}.", (advice.next,))


# diagnose


def diagnosis_parts(answer: Diagnosis, *, everything: bool = False) -> Parts:
    """Return the answer of `diagnose`, what to do next, and the evidence. everything: each piece of evidence by itself."""
    yield Headline(answer.headline)
    yield NextStep(f"{answer.why}.", (answer.next,))
    if answer.rules != answer.version:
        yield Sentence(f"Answered by the rules of {answer.rules}.")
    if answer.changes and answer.starts:
        yield Gap()
        what = "broker does to the files" if answer.family == "rocketmq" else "node does"
        yield Sentence(f"What the {what} when it starts:")
        yield Sentences(answer.changes, SHOWN)
    if answer.unknown:
        yield Gap()
        yield Sentence("Not known:")
        yield Sentences(answer.unknown, SHOWN)
    if answer.evidence:
        yield Gap()
        yield Sentence("Evidence:")
        yield Sentences(list(map(_evidence, answer.evidence) if everything else _grouped(answer.evidence)), SHOWN)
    if len({way.keeps for way in answer.ways if way.keeps is not None}) > 1:
        yield Gap()
        yield Sentence("What each way keeps:")
        yield Sentences([f"{'not known' if way.keeps is None else count(way.keeps, 'message')}: {way.next}" for way in answer.ways])


def _evidence(item: Evidence) -> str:
    where = item.file if not item.length and not item.offset else f"{item.file} at {item.offset}"
    detail = f"the file {rest}" if (rest := item.detail.removeprefix(f"{item.file} ")) != item.detail else item.detail
    return f"{item.finding}: {item.detail}" if item.file == "." else f"{item.finding}, {where}: {detail}"


def _grouped(evidence: Sequence[Evidence]) -> Iterator[str]:
    """Yield evidence, of which what is equal in one file is one line after its first ones, and what `repair` left is one line in all.

    Of a finding in many files the first files are shown.
    """
    groups: dict[tuple[str, str], list[Evidence]] = {}
    for item in evidence:
        groups.setdefault(("", STAND_IN) if STAND_IN in item.detail else (item.file, item.finding), []).append(item)
    files = Counter(finding for _, finding in groups)
    shown: Counter[str] = Counter()
    for (file, finding), group in groups.items():
        shown[finding] += 1
        if files[finding] > OF_FINDING + 1 and shown[finding] > OF_FINDING:
            if shown[finding] == files[finding]:
                yield f"{finding}: the same in {count(files[finding] - OF_FINDING, 'further place')}"
            continue
        if finding == STAND_IN and len(group) > 1:
            yield f"{_evidence(group[0])}, and {count(len(group) - 1, 'further place')} like it"
            continue
        listed = group if file in (".", "") or len(group) <= OF_GROUP + 1 else group[:OF_GROUP]
        yield from map(_evidence, listed)
        if others := len(group) - len(listed):
            yield f"{finding}, {file}: {count(others, 'further finding')}"


_USES = {
    "rocketmq": "start a broker with this directory as its storePathRootDir",
    "rabbitmq": "replace the msg_stores of a node that has these queues with it, while the node is stopped, and start the node",
}


def answer_parts(answer: Diagnosis, *, written: bool = True) -> Parts:
    """Return what a broker makes of a store and what to do next, after a command. written: the command has made the store."""
    yield Gap()
    yield Headline(answer.headline)
    why = _USES[answer.family] if written and not answer.next.startswith("mqstore ") else answer.why
    yield NextStep(f"{why}.", (answer.next,))


# usage


def usage_parts(report: UsageReport, by: str | None, seconds: float, *, further: Sequence[str] = (), zone: str = "UTC") -> Parts:
    """Return totals, then a table by the group asked for, or by those that are shown unasked and further ones. zone: of the times."""
    yield Headline(report.headline)
    yield _shares(report)
    for what in (*report.shown_by, *further) if by is None else (by,):
        rows = report.rows(what)
        if rows or report.family == "rocketmq":
            yield Gap()
            yield usage_table(rows, what, zone)
    others = [f"{name} {size(amount)}" for name, amount in report.elsewhere if amount]
    if others and by is None:
        yield Gap()
        yield Sentence(f"Besides the log: {', '.join(others)}, by file length.")
    where = f", with {ran_on(report)}" if report.runs_on else ""
    yield Sentence(f"{pace(report.read_bytes, seconds)}{where}.", Tone.FAINT)
    yield from note_parts(report.notes)
    if report.damage:
        yield Gap()
        yield Findings(report.damage)


def _shares(report: UsageReport) -> Table:
    columns = (Column("what", flexible=True), Column("bytes", right=True, drop=1), Column("", right=True), Column("share", right=True))
    total = report.total_bytes
    rows = [[name, f"{amount:,}", size(amount), f"{100 * amount / total:.1f} %" if total else "-"] for name, amount in report.parts]
    return Table(columns, rows, title="What takes the space")


def usage_table(rows: Sequence[Mapping[str, Any]], by: str, zone: str = "UTC") -> Table:
    """Return a table of the rows that a report has by a group. zone: in which times are shown."""
    if by == "file":
        ranks = {"records": 3, "live": 2, "bytes": 1}
        names = {"live": "live_records", "unreadable": "unreadable_bytes"}
        titles = ("records", "live", "bytes", "live bytes", "garbage bytes", "unreadable")
        fields = [_text("message file", "file", path=True), *(_number(t, names.get(t), ranks.get(t, 0)) for t in titles)]
    elif by == "retained":
        fields = [
            Field(Column("log file", drop=1, leads_to="file"), lambda row: row["file"]),
            Field(Column("topic", flexible=True, leads_to="topic"), lambda row: row["topic"]),
            Field(Column("queue", right=True), lambda row: str(row["queue_id"])),
            _number("messages"),
            _number("bytes"),
            Field(Column("oldest", flexible=True, drop=2), lambda row: moment(row["oldest_store_timestamp"], zone)),
            Field(Column("not consumed by", flexible=True), _waiting),
        ]
    elif by == "member":
        fields = [
            Field(Column("vhost", flexible=True, drop=5), lambda row: row["vhost"] or "?"),
            _text("queue"),
            _number("messages"),
            _number("bytes"),
            _number("of messages", "live_bytes", 4),
            _number("entries", drop=3),
            Field(Column("oldest message", flexible=True, drop=1), _oldest),
            _number("dead entries held", "held_dead", 2),
        ]
    elif by == "log":
        fields = [
            _text("log file", "file", path=True),
            *(_number(title, name, rank) for title, name, rank in (("entries", None, 2), ("live", "live_entries", 1), ("bytes", None, 0))),
            _number("of messages", "live_bytes", 3),
            Field(Column("held by", flexible=True, drop=4), lambda row: _holders(row["queues"])),
        ]
    elif by == "stream":
        vhost = Field(Column("vhost", flexible=True), lambda row: row["vhost"] or "?")
        fields = [vhost, _text("stream"), _number("messages"), _number("segments"), _number("bytes"), _number("index files", "index_bytes")]
        fields += [Field(Column("oldest", flexible=True, drop=1), lambda row: moment(row["first_timestamp"], zone))]
        fields += [Field(Column("limits", flexible=True), _limits)]
    elif rows and "vhost" in rows[0]:
        sizes = {"in the index": "embedded_bytes", "in message files": "shared_bytes", "index files": "index_bytes"}
        vhost = Field(Column("vhost", flexible=True), lambda row: row["vhost"] or "?")
        fields = [vhost, _text("queue"), _number("messages"), _number("bytes"), *(_number(t, name) for t, name in sizes.items())]
    else:
        groups = [name for name in ("topic", "queue_id", "day", "key_prefix") if rows and name in rows[0]]
        fields = [_group(name) for name in groups]
        fields += [_number("messages"), _number("bytes"), _number("bodies", "body_bytes"), _number("properties", "properties_bytes")]
        fields += [Field(Column("share", right=True), lambda row: f"{100 * row['share']:.1f} %")]
    headings = {"retained": "What retains the log files", "member": "Logs of quorum queues", "log": "Files of the logs of quorum queues"}
    shown = Table.of(fields, rows, SHOWN, headings.get(by, f"Usage by {by}"))
    fold = {"retained": "log file", "queue": "topic" if rows and "topic" in rows[0] else ""}.get(by, "")
    return replace(shown, fold=fold if len(rows) > SHOWN else "")


def _oldest(row: Mapping[str, Any]) -> str:
    if row["oldest"] is None:
        return "-"
    hand = f" by {row['consumer']}" if row["consumer"] else ""
    return f"{row['oldest']:,}, {row['state']}{hand}"


def _holders(queues: Mapping[str, int]) -> str:
    most = sorted(queues.items(), key=lambda item: -item[1])
    more = f" and {len(most) - 3} more" if len(most) > 3 else ""
    return ", ".join(f"{name} ({entries:,})" for name, entries in most[:3]) + more or "-"


def _limits(row: Mapping[str, Any]) -> str:
    length, age = row["max_length_bytes"], row["max_age"]
    return ", ".join([*([] if length is None else [size(length)]), *([] if age is None else [age])]) or "-"


def _text(title: str, name: str | None = None, *, path: bool = False) -> Field:
    of = name or title
    return Field(Column(title, flexible=True, path=path, leads_to=of), lambda row: str(row[of]))


def _number(title: str, name: str | None = None, drop: int = 0) -> Field:
    of = name or title.replace(" ", "_")
    return Field(Column(title, right=True, drop=drop), lambda row: f"{row[of]:,}")


def _group(name: str) -> Field:
    number = name == "queue_id"
    column = Column(name.replace("_", " "), right=number, flexible=not number, leads_to="" if number else name)
    return Field(column, lambda row: "-" if row[name] is None else str(row[name]))


def _waiting(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{group} ({behind:,})" for group, behind in row["waiting_groups"].items()) or "-"
