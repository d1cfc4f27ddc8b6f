"""`messages` and `get`: the message table, filtered, and one message in full."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mqstore.cli.common.arguments import BodyDisplay, Store, open_store, open_view, verb
from mqstore.cli.common.bodies import PREVIEW, print_body, write_body
from mqstore.cli.common.filters import queue_number
from mqstore.cli.common.grid import Column, display_width
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import GetOptions, MessagesOptions
from mqstore.cli.rabbitmq import messages as rabbitmq_messages
from mqstore.errors import NotFoundError
from mqstore.findings import Kind
from mqstore.table.columns import Selection
from mqstore.table.formatting import count, moment, shorten
from mqstore.table.text import body_text, columns_for

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.findings import Damage
    from mqstore.rocketmq.get import Message
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import View

MAX_NOTES = 20  # damaged ranges of the log that are reported one by one


def _verdict_style(verdict: str) -> str:
    return {"intact": "", "unindexed": "33"}.get(verdict, "31")


GRID = (
    Column("physical offset", right=True, drop=1),
    Column("topic", flexible=True),
    Column("queue", right=True),
    Column("offset", right=True),
    Column("stored (UTC)", flexible=True),
    Column("size", right=True, drop=3),
    Column("tags", flexible=True, drop=2),
    Column("keys", flexible=True),
    Column("verdict", style=_verdict_style),
)
GRID_COLUMNS = ("physical_offset", "topic", "queue_id", "queue_offset", "store_timestamp", "size", "tags", "keys", "uniq_key", "verdict")


def grid_rows(batch: pa.RecordBatch, body: BodyDisplay = BodyDisplay.NONE) -> Iterator[list[str]]:
    """Yield rows for `GRID`, with the body as the last cell if requested."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    for k in range(batch.num_rows):
        row = [
            str(columns["physical_offset"][k]),
            columns["topic"][k],
            str(columns["queue_id"][k]),
            str(columns["queue_offset"][k]),
            moment(columns["store_timestamp"][k]),
            str(columns["size"][k]),
            columns["tags"][k] or "",
            columns["keys"][k] or columns["uniq_key"][k] or "",
            columns["verdict"][k],
        ]
        if body is BodyDisplay.SHA256:
            row.append(columns["body_sha256"][k] or "")
        elif body is BodyDisplay.TEXT:
            row.append(shorten(body_text(columns["body"][k][:PREVIEW]) or "", PREVIEW) if columns["body"][k] is not None else "")
        elif body is BodyDisplay.BASE64:
            from mqstore.table.text import body_base64

            row.append(body_base64(columns["body"][k]) or "")
        yield row


def messages(out: Output, store: Store, options: MessagesOptions) -> int:
    """List all messages, one row each: in log order; RabbitMQ: by vhost, queue, priority and position.

    A row has the fields of the record, the file it is in, and a verdict such as intact, unindexed, duplicate or damaged.
    Exit status 1 if a part of the store is damaged or missing and so has no rows.
    """
    chosen = options.filters.selection()
    opened = open_store(store, options.config)
    view = open_view(out, opened, options.view, options.as_version)
    if opened.log_only:
        out.note(f"{opened.unread_sentence('consume queues', '')}; each verdict is that of the record alone")
    unread = [item for item in opened.log.findings if item.kind is Kind.UNREADABLE]
    if not out.is_text:
        shown = options.body or BodyDisplay.SHA256
        names = columns_for(shown.value)
        lost: list[Damage] = []
        out.batches(names, view.batches(names, chosen, milliseconds=True, on_damage=lost.append), shown.value)
        return _note_unreadable(out, [*unread, *lost])
    shown = options.body or BodyDisplay.NONE
    lost = []
    total = _print_grid(out, view, chosen, shown, lost)
    if not total:
        out.line(_nothing_found(opened, chosen))
    return _note_unreadable(out, [*unread, *lost])


def _nothing_found(store: RocketMQStore, chosen: Selection) -> str:
    if chosen == Selection():
        return f"no messages: the {'file' if store.log_only else 'log'} holds no valid record"
    if store.log_only:
        return "no message matches in this file"
    unknown = store.unknown_topic(chosen.topics)
    return f"no message matches: {unknown}" if unknown else "no message matches"


def _note_unreadable(out: Output, lost: Sequence[Damage]) -> int:
    """Note which ranges of the log have no rows. Returns the exit status: 1 if there are any."""
    for item in lost[:MAX_NOTES]:
        out.note(f"no rows for {item.file} at {item.offset}, {item.length} bytes: {item.detail}")
    if len(lost) > MAX_NOTES:
        out.note(f"nor for {len(lost) - MAX_NOTES} further ranges of the log; `mqstore verify` lists them all")
    return 1 if lost else 0


def _print_grid(out: Output, view: View, chosen: Selection, body: BodyDisplay, lost: list[Damage]) -> int:
    extra = {BodyDisplay.SHA256: ("body_sha256",), BodyDisplay.TEXT: ("body",), BodyDisplay.BASE64: ("body",)}.get(body, ())
    behind = (Column("sha-256 of the body" if body is BodyDisplay.SHA256 else "body", flexible=True),) if extra else ()
    grid = out.grid((*GRID, *behind))
    for batch in view.batches((*GRID_COLUMNS, *extra), chosen, milliseconds=True, on_damage=lost.append):
        grid.add(grid_rows(batch, body))
    grid.close()
    return grid.rows


# one message


def get(out: Output, store: Store, options: GetOptions) -> int:
    """Show one message in full, by physical offset, message id, unique key, or its position in a queue."""
    from mqstore.rocketmq import get as room

    number = None if options.queue_id is None else queue_number(options.queue_id, "--queue")
    opened = open_store(store, options.config)
    view = open_view(out, opened, options.view, options.as_version)
    with out.progress("scanning the log") as progress:
        found = room.get(
            opened, view, offset=options.offset, id=options.message_id, unique=options.unique, topic=options.topic, queue=number,
            at=options.at, progress=progress,
        )  # fmt: skip
    for note in found.notes:
        out.note(note)
    return show_message(out, found, options.body, options.raw)


def show_message(out: Output, found: Message, body: BodyDisplay, raw: Path | None) -> int:
    """Print a message. Returns the exit status: 1 if it is damaged."""
    row = found.row
    if raw is not None:
        if row["body"] is None:
            raise NotFoundError(f"the body of the message at {row['physical_offset']} cannot be decompressed; nothing was written")
        write_body(base64.b64decode(row["body"]), raw)
        out.note(f"{count(row['body_len'], 'byte')} of body written to {raw}")
    if out.is_text:
        _print_message(out, row, body)
        return 0 if found.ok else 1
    document = found.as_dict(body.value)
    if body is BodyDisplay.TEXT and row["body"] is not None:
        document["body"] = body_text(base64.b64decode(row["body"]))
    if out.format == "csv":
        out.records(columns_for(body.value), [document])
    else:
        out.document(document)
    return 0 if found.ok else 1


def _print_message(out: Output, row: dict[str, Any], body: BodyDisplay) -> None:
    crc = "matches" if row["body_crc_ok"] else "does NOT match the body"
    shown = (
        ("topic", row["topic"]),
        ("queue", f"{row['queue_id']}, queue offset {row['queue_offset']}"),
        ("place", f"{row['store_file']}, physical offset {row['physical_offset']}, {row['size']} bytes"),
        ("verdict", row["verdict"]),
        ("message id", row["msg_id"]),
        ("unique key", row["uniq_key"] or "-"),
        ("keys", row["keys"] or "-"),
        ("tags", row["tags"] or "-"),
        ("stored", f"{moment(row['store_timestamp'])} UTC ({row['store_timestamp']}) at {row['store_host']}"),
        ("born", f"{moment(row['born_timestamp'])} UTC ({row['born_timestamp']}) at {row['born_host']}"),
        ("flags", f"FLAG {row['flag']}, SYSFLAG {row['sys_flag']}, reconsumed {row['reconsume_times']} times"),
        ("prepared", f"prepared transaction offset {row['prepared_transaction_offset']}"),
        ("body", f"{row['body_len']} bytes, CRC {row['body_crc']} {crc}, SHA-256 {row['body_sha256']}"),
    )
    for name, value in shown:
        style = {"intact": "green", "unindexed": "yellow"}.get(value, "red") if name == "verdict" else None
        out.fact(name, value, style)
    properties = row["properties"] or {}
    if properties:
        out.line("properties")
        width = max(display_width(name) for name in properties)
        for name, value in properties.items():
            out.line(f"  {name}{' ' * (width - display_width(name))}  {value}")
    if row["body"] is not None:
        print_body(out, base64.b64decode(row["body"]), body)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(
        app,
        example="messages /backup/store --topic orders --since 2024-05-01T12:00:00Z -o jsonl",
        panel="Read",
        rabbitmq=rabbitmq_messages.messages,
    )(messages)
    verb(app, example="get /backup/store -t orders -q 0 --at 17", panel="Read", short_quiet=False, rabbitmq=rabbitmq_messages.get)(get)
