"""`messages` and `get` on a RabbitMQ store: the message table, filtered, and one message in full.

These stores do not record when a message arrived. `--since` and `--until` apply to the AMQP property `timestamp`, which a publisher may
set, in seconds.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.cli.common.arguments import BodyDisplay, Store, at_microseconds
from mqstore.cli.common.bodies import PREVIEW, print_body, write_body
from mqstore.cli.common.grid import Column, display_width
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import GetOptions, MessagesOptions
from mqstore.cli.rabbitmq.store import note_findings, open_rabbitmq
from mqstore.errors import NotFoundError
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import count, moment, queue_title, shorten
from mqstore.table.text import body_text, rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.rabbitmq.get import Message
    from mqstore.rabbitmq.store.store import RabbitMQStore

_LOST = ("damaged", "unreachable")
_GRID_COLUMNS = (
    "vhost",
    "queue",
    "priority_level",
    "pos",
    "seq_id",
    "size",
    "persistent",
    "routing_keys",
    "redelivered",
    "location",
    "recovered",
    "verdict",
)


def messages(out: Output, store: Store, options: MessagesOptions) -> int:
    """List all messages, one row each, by vhost, queue, priority (high first) and position.

    Exit status 1 if a message is damaged or missing, or anything else in the store is damaged.
    """
    from mqstore.rabbitmq.store import task_groups

    chosen = options.filters.queue_selection(options.view)
    low, high = options.filters.times()
    timed = low is not None or high is not None
    opened = open_rabbitmq(store, now=at_microseconds(options.at), names=options.names, careful=options.careful)
    shown = options.body or (BodyDisplay.NONE if out.is_text else BodyDisplay.BASE64)
    columns = _grid_columns(shown) if out.is_text else rabbitmq_columns_for(shown.value)
    if options.at is not None:
        columns = (*columns, "expired")
    if timed:
        found = opened.to_batches((*columns, "properties"), replace(chosen, limit=None))
        found = task_groups.filter_by_time(found, low, high, chosen.limit)
    else:
        found = opened.to_batches(columns, chosen)
    lost: Counter[str] = Counter()
    watched = _counting_lost(found, lost)
    if out.is_text:
        total = _print_grid(out, watched, shown, expired=options.at is not None)
        if not total:
            out.line(_nothing_found(opened, chosen, timed=timed))
    else:
        named = tuple("properties" if name == "properties_json" else name for name in columns)
        out.batches(named, (rename_properties_json(batch) for batch in watched), shown.value)
    for what, number in sorted(lost.items()):
        more = ", --careful searches for its bytes" if what == "unreachable" and not options.careful else ""
        out.note(f"{count(number, 'message')} {what}; `mqstore verify` reports what is wrong with each{more}")
    return 1 if note_findings(out, opened) or lost else 0


def _counting_lost(batches: Iterator[pa.RecordBatch], lost: Counter[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        pairs = zip(batch.column("verdict").to_pylist(), batch.column("persistent").to_pylist(), strict=True)
        for verdict, persistent in pairs:
            # a broker drops transient messages at every start; what is wrong with one is a finding only after a clean stop
            if verdict in _LOST and persistent is not False:
                lost[verdict] += 1
        yield batch


def _grid_columns(shown: BodyDisplay) -> tuple[str, ...]:
    extra = {BodyDisplay.SHA256: ("payload_sha256",), BodyDisplay.TEXT: ("payload",), BodyDisplay.BASE64: ("payload_b64",)}.get(shown, ())
    return (*_GRID_COLUMNS, *extra)


def _verdict_style(verdict: str) -> str:
    return {"intact": "", "consumed": "2", "unindexed": "33", "duplicate": "33"}.get(verdict, "31")


def _nothing_found(store: RabbitMQStore, chosen: QueueSelection, *, timed: bool) -> str:
    if not timed and chosen == QueueSelection():
        return "no messages: the queues of this store are empty"
    unknown = store.unknown_name(chosen.vhosts, chosen.queues)
    return f"no message matches: {unknown}" if unknown else "no message matches"


def _print_grid(out: Output, batches: Iterator[pa.RecordBatch], shown: BodyDisplay, *, expired: bool) -> int:
    columns = [
        Column("vhost", flexible=True),
        Column("queue", flexible=True),
        Column("pos", right=True, drop=4),
        Column("seq id", right=True),
        Column("size", right=True, drop=1),
        Column("routing keys", flexible=True),
        Column("redelivered", drop=2),
        Column("stored in", drop=3),
        Column("verdict", style=_verdict_style),
    ]
    if expired:
        columns.append(Column("expired"))
    if shown is not BodyDisplay.NONE:
        columns.append(Column("sha-256 of the payload" if shown is BodyDisplay.SHA256 else "payload", flexible=True))
    grid = out.grid(columns)
    for batch in batches:
        grid.add(_grid_row(row, shown, expired=expired) for row in batch.to_pylist())
    grid.close()
    return grid.rows


def _grid_row(row: dict[str, Any], shown: BodyDisplay, *, expired: bool) -> list[str]:
    told = [
        row["vhost"] or "?",
        queue_title(row["queue"] or "-", row["priority_level"]),
        "-" if row["pos"] is None else str(row["pos"]),
        "-" if row["seq_id"] is None else str(row["seq_id"]),
        "-" if row["size"] is None else str(row["size"]),
        ", ".join(row["routing_keys"] or ()),
        {True: "yes", False: "no", None: "-"}[row["redelivered"]],
        row["location"],
        row["verdict"],
    ]
    if expired:
        told.append({True: "yes", False: "no", None: "-"}[row["expired"]])
    if shown is BodyDisplay.SHA256:
        told.append(row["payload_sha256"] or "")
    elif shown is BodyDisplay.BASE64:
        told.append(row["payload_b64"] or "")
    elif shown is BodyDisplay.TEXT:
        told.append(shorten(body_text((row["payload"] or b"")[:PREVIEW]) or "", PREVIEW))
    return told


# one message


def get(out: Output, store: Store, options: GetOptions) -> int:
    """Show one message in full, by message id, position in a queue, or sequence id."""
    from mqstore.rabbitmq import get as room

    opened = open_rabbitmq(store, names=options.names)
    found = room.get(
        opened, id=options.message_id, vhost=options.vhost, queue=options.queue_id, at=options.at, seq=options.seq,
        priority=options.priority,
    )  # fmt: skip
    for note in found.notes:
        out.note(note)
    return _show_message(out, found, options.body, options.raw)


def _show_message(out: Output, found: Message, body: BodyDisplay, raw: Path | None) -> int:
    row = found.row
    payload = None if row["payload_b64"] is None else base64.b64decode(row["payload_b64"])
    if raw is not None:
        if payload is None:
            raise NotFoundError(f"the payload of message {row['msg_id']} was not found; nothing was written")
        write_body(payload, raw)
        out.note(f"{count(len(payload), 'byte')} of payload written to {raw}")
    if out.is_text:
        _print_message(out, row)
        if payload is not None:
            print_body(out, payload, body)
        return 0 if found.ok else 1
    if body is BodyDisplay.TEXT:
        row["payload"] = body_text(payload)
    document = found.as_dict(body.value)
    if out.format == "csv":
        out.records(tuple(document), [document])
    else:
        out.document(document)
    return 0 if found.ok else 1


def _print_message(out: Output, row: dict[str, Any]) -> None:
    place = "in no queue" if row["queue"] is None else f"{queue_title(row['queue'], row['priority_level'])}, version {row['queue_version']}"
    marks = ["persistent" if row["persistent"] else "transient"] if row["persistent"] is not None else []
    marks += ["redelivered"] if row["redelivered"] else []
    shown = (
        ("vhost", row["vhost"] or "?"),
        ("queue", place),
        ("position", "-" if row["pos"] is None else str(row["pos"])),
        ("sequence id", "-" if row["seq_id"] is None else str(row["seq_id"])),
        ("message id", row["msg_id"] or "-"),
        ("verdict", row["verdict"]),
        ("recovered", "yes" if row["recovered"] else "no: the broker would not have it after startup"),
        ("stored", f"{row['location']}: {row['store_file']} at {row['position']}"),
        ("marks", ", ".join(marks) or "-"),
        ("expires", "never" if row["expiry_us"] is None else f"{moment(row['expiry_us'] // 1000)} UTC"),
        ("exchange", repr(row["exchange"]) if row["exchange"] is not None else "-"),
        ("routing", ", ".join(row["routing_keys"] or ()) or "-"),
        ("payload", "-" if row["payload_len"] is None else f"{row['payload_len']} bytes, SHA-256 {row['payload_sha256']}"),
    )
    for name, value in shown:
        style = {"intact": "green", "consumed": "dim", "unindexed": "yellow"}.get(value, "red") if name == "verdict" else None
        out.fact(name, value, style)
    properties = row["properties"] or {}
    if properties:
        out.line("properties")
        width = max(display_width(name) for name in properties)
        for name, value in properties.items():
            if name == "headers":
                out.line("  headers")
                for header, kind, content in value:
                    told = header if isinstance(header, str) else json.dumps(header)
                    out.line(f"    {told}  {kind}  {json.dumps(content, ensure_ascii=False)}")
            else:
                out.line(f"  {name}{' ' * (width - display_width(name))}  {value}")
