"""Messages as rows of a table, and one message in full, for both families; the hits of `find`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mqstore.report.checks import ran_on
from mqstore.report.parts import SHOWN, Column, Fact, Field, Gap, Headline, Others, Parts, Sentence, Table, Tone, verdict_tone
from mqstore.table.formatting import count, display_width, moment, queue_title, shorten
from mqstore.table.text import body_base64, body_text

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.jobs.find_in_queues import FindInQueuesReport
    from mqstore.rocketmq.find import FindReport

PREVIEW = 400  # letters of a body
Row = Mapping[str, Any]

_YES = {True: "yes", False: "no", None: "-"}


class MessageTable(NamedTuple):
    """The columns of the message table that a person is shown. reads: names of the columns of the batches."""

    fields: Sequence[Field]
    reads: tuple[str, ...]

    def of(self, batches: Iterable[pa.RecordBatch], indent: int = 0) -> Table:
        """Return the table of batches."""
        return Table.of(self.fields, rows_of(batches), title="Messages", indent=indent)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield the rows of batches."""
    for batch in batches:
        yield from batch.to_pylist()


def _plain(name: str) -> Callable[[Row], str]:
    return lambda row: "-" if row[name] is None else str(row[name])


# the message table


def message_table(family: str, body: str = "none", *, expired: bool = False) -> MessageTable:
    """Return the columns to show. body: none, sha256, base64 or text. expired: RabbitMQ: whether each message has expired."""
    fields, reads = _LOG if family == "rocketmq" else _QUEUED
    name, base64 = ("body", "body") if family == "rocketmq" else ("payload", "payload_b64")
    if expired:
        fields = (*fields, Field(Column("expired"), lambda row: _YES[row["expired"]]))
        reads = (*reads, "expired")
    if body == "none":
        return MessageTable(fields, reads)
    bodies: dict[str, tuple[str, str, Callable[[Row], str | None]]] = {
        "sha256": (f"sha-256 of the {name}", f"{name}_sha256", lambda row: row[f"{name}_sha256"]),
        "text": (name, name, lambda row: None if row[name] is None else shorten(body_text(row[name][:PREVIEW]) or "", PREVIEW)),
        "base64": (name, base64, lambda row: row[base64] if base64 != name else body_base64(row[name])),
    }
    title, read, cell = bodies[body]
    return MessageTable((*fields, Field(Column(title, flexible=True), lambda row: cell(row) or "")), (*reads, read))


_LOG = MessageTable(
    (
        Field(Column("physical offset", right=True, drop=1), _plain("physical_offset")),
        Field(Column("topic", flexible=True), _plain("topic")),
        Field(Column("queue", right=True), _plain("queue_id")),
        Field(Column("offset", right=True), _plain("queue_offset")),
        Field(Column("stored (UTC)", flexible=True), lambda row: moment(row["store_timestamp"])),
        Field(Column("size", right=True, drop=3), _plain("size")),
        Field(Column("tags", flexible=True, drop=2), lambda row: row["tags"] or ""),
        Field(Column("keys", flexible=True), lambda row: row["keys"] or row["uniq_key"] or ""),
        Field(Column("verdict", tone=verdict_tone), _plain("verdict")),
    ),
    ("physical_offset", "topic", "queue_id", "queue_offset", "store_timestamp", "size", "tags", "keys", "uniq_key", "verdict"),
)
_QUEUED = MessageTable(
    (
        Field(Column("vhost", flexible=True), lambda row: row["vhost"] or "?"),
        Field(Column("queue", flexible=True), lambda row: queue_title(row["queue"] or "-", row["priority_level"])),
        Field(Column("pos", right=True, drop=4), _plain("pos")),
        Field(Column("seq id", right=True), _plain("seq_id")),
        Field(Column("size", right=True, drop=1), _plain("size")),
        Field(Column("routing keys", flexible=True), lambda row: ", ".join(row["routing_keys"] or ())),
        Field(Column("redelivered", drop=2), lambda row: _YES[row["redelivered"]]),
        Field(Column("stored in", drop=3), _plain("location")),
        Field(Column("verdict", tone=verdict_tone), _plain("verdict")),
    ),
    (
        "vhost", "queue", "priority_level", "pos", "seq_id", "size", "persistent", "routing_keys", "redelivered", "location", "recovered",
        "verdict",
    ),
)  # fmt: skip


# one message


def message_parts(family: str, row: Row) -> Parts:
    """Return the facts of a message, and its properties; not its body."""
    for name, value in _log_facts(row) if family == "rocketmq" else _queue_facts(row):
        yield Fact(name, value, _verdict_mark(value) if name == "verdict" else Tone.PLAIN)
    properties = row["properties"] or {}
    if not properties:
        return
    yield Sentence("properties")
    width = max(map(display_width, properties))
    for name, value in properties.items():
        if name == "headers" and family == "rabbitmq":
            yield Sentence("  headers")
            for header, kind, content in value:
                title = header if isinstance(header, str) else json.dumps(header)
                yield Sentence(f"    {title}  {kind}  {json.dumps(content, ensure_ascii=False)}")
        else:
            yield Sentence(f"  {name}{' ' * (width - display_width(name))}  {value}")


def _verdict_mark(verdict: str) -> Tone:
    return Tone.GOOD if verdict == "intact" else verdict_tone(verdict)


def _log_facts(row: Row) -> Iterator[tuple[str, str]]:
    crc = "matches" if row["body_crc_ok"] else "does NOT match the body"
    yield "topic", row["topic"]
    yield "queue", f"{row['queue_id']}, queue offset {row['queue_offset']}"
    yield "place", f"{row['store_file']}, physical offset {row['physical_offset']}, {row['size']} bytes"
    yield "verdict", row["verdict"]
    yield "message id", row["msg_id"]
    yield "unique key", row["uniq_key"] or "-"
    yield "keys", row["keys"] or "-"
    yield "tags", row["tags"] or "-"
    yield "stored", f"{moment(row['store_timestamp'])} UTC ({row['store_timestamp']}) at {row['store_host']}"
    yield "born", f"{moment(row['born_timestamp'])} UTC ({row['born_timestamp']}) at {row['born_host']}"
    yield "flags", f"FLAG {row['flag']}, SYSFLAG {row['sys_flag']}, reconsumed {row['reconsume_times']} times"
    yield "prepared", f"prepared transaction offset {row['prepared_transaction_offset']}"
    yield "body", f"{row['body_len']} bytes, CRC {row['body_crc']} {crc}, SHA-256 {row['body_sha256']}"


def _queue_facts(row: Row) -> Iterator[tuple[str, str]]:
    version = row["queue_type"] if row["queue_version"] is None else f"version {row['queue_version']}"
    place = "in no queue" if row["queue"] is None else f"{queue_title(row['queue'], row['priority_level'])}, {version}"
    marks = ["persistent" if row["persistent"] else "transient"] if row["persistent"] is not None else []
    marks += ["redelivered"] if row["redelivered"] else []
    yield "vhost", row["vhost"] or "?"
    yield "queue", place
    yield "position", _plain("pos")(row)
    if row["raft_index"] is None:
        yield "sequence id", _plain("seq_id")(row)
    else:
        yield "log entry", str(row["raft_index"])
        yield "state", str(row["state"])
    yield "message id", row["msg_id"] or "-"
    yield "verdict", row["verdict"]
    yield "recovered", "yes" if row["recovered"] else "no: the broker would not have it after startup"
    yield "stored", f"{row['location']}: {row['store_file']} at {row['position']}"
    yield "marks", ", ".join(marks) or "-"
    yield "expires", "never" if row["expiry_us"] is None else f"{moment(row['expiry_us'] // 1000)} UTC"
    yield "exchange", repr(row["exchange"]) if row["exchange"] is not None else "-"
    yield "routing", ", ".join(row["routing_keys"] or ()) or "-"
    yield "payload", "-" if row["payload_len"] is None else f"{row['payload_len']} bytes, SHA-256 {row['payload_sha256']}"


# find


def find_parts(report: FindReport | FindInQueuesReport, body: str, *, everything: bool = False) -> Parts:
    """Return the hits of a search, and what was searched. body: none, sha256, base64 or text. everything: show all hits."""
    what = count(report.hits, "message") if report.hits else "no message"
    yield Headline(f"{what} with {report.text!r}.", Tone.GOOD if report.hits else Tone.CAUTION)
    if report.family == "rocketmq":
        yield from _log_hits(report.rows, body, None if everything else SHOWN)
    elif report.rows:
        fields = _QUEUE_HITS if body == "none" else (*_QUEUE_HITS, _HIT_PAYLOAD)
        yield Table.of(fields, report.rows, _HITS_SHOWN, "Hits")
    yield Sentence(f"{report.extent}, with {ran_on(report)}.", Tone.FAINT)


def _log_hits(rows: Sequence[Row], body: str, shown: int | None) -> Parts:
    for row in rows[:shown]:
        yield Gap()
        yield Sentence(f"{row['topic']}, queue {row['queue_id']}, queue offset {row['queue_offset']}", Tone.STRONG)
        yield from _hit_facts(row)
        if body != "none":
            yield Fact("body", shorten(row.get("body") or row.get("body_sha256") or "", PREVIEW))
    if rows:
        yield Gap()
        yield Others(len(rows) - len(rows[:shown]))


def _hit_facts(row: Row) -> Parts:
    forms = "" if row["matched_as"] == ["text"] else f" ({', '.join(row['matched_as'])})"
    yield Fact("found in", ", ".join(row["matched_in"]) + forms)
    indexed = {True: ", the index leads to it", False: ", NOT in the index under all of its keys", None: ""}[row["indexed"]]
    yield Fact("bytes", f"{row['verdict']}{indexed}", _verdict_mark(row["verdict"]))
    yield Fact("state", row["state"])
    for each in row["consumed_by"]:
        how = "which acknowledged it" if each["offset"] is None else f"whose offset is {each['offset']}"
        yield Fact("consumed by", f"{each['group']}, {how}")
    for each in row["not_consumed_by"]:
        yield Fact("not by", f"{each['group']}, {_not_consumed(each)}")
    yield Fact("keys", row["keys"] or row["uniq_key"] or "-")
    yield Fact("stored", f"{moment(row['store_timestamp'])} UTC at physical offset {row['physical_offset']}")


def _not_consumed(group: Row) -> str:
    until = group.get("until")
    return _NOT_CONSUMED[group["state"]].format(group["offset"] if until is None else f"{moment(until)} UTC")


_NOT_CONSUMED = {
    "in-hand": "which popped it, has not acknowledged it, and gets it again after {}",
    "redelivery": "which popped it and did not acknowledge it by {}: it comes again",
    "waiting": "whose offset is {}",
    "no-offset": "which has no offset in this queue",
    "unproved": "unknown: its offset {} is past the message, but further messages may be in hand",
    "above-max": "unknown: its offset {} is past the end of the queue",
}
_HITS_SHOWN = 50
_QUEUE_HITS = (
    Field(Column("vhost", flexible=True), lambda row: row["vhost"] or "?"),
    Field(Column("queue", flexible=True), lambda row: queue_title(row["queue"] or "-", row["priority_level"])),
    Field(Column("seq id", right=True), _plain("seq_id")),
    Field(Column("found in", flexible=True), lambda row: ", ".join(row["matched_in"])),
    Field(Column("state"), _plain("state")),
    Field(Column("verdict"), _plain("verdict")),
    Field(Column("stored in", flexible=True, path=True, drop=1), lambda row: f"{row['store_file']} at {row['position']}"),
)
_HIT_PAYLOAD = Field(
    Column("payload", flexible=True),
    lambda row: shorten(row.get("payload") or row.get("payload_b64") or row.get("payload_sha256") or "", PREVIEW),
)
