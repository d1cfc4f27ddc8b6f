"""`messages` and `get`: the message table, filtered, and one message in full."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
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
from mqstore.errors import NotFoundError, UsageError
from mqstore.findings import Kind
from mqstore.table.columns import Selection
from mqstore.table.formatting import count, moment, shorten
from mqstore.table.text import body_text, columns_for, python_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.findings import Damage
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import View

__all__ = ["GRID", "grid_rows", "message_rows", "register"]

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


def message_rows(view: View, physical_offsets: Iterable[int], body: BodyDisplay) -> list[dict[str, Any]]:
    """Return the rows of the records at these physical offsets, in order; offsets where no valid record starts are left out."""
    names = columns_for(body.value)
    found: list[dict[str, Any]] = []
    for offset in physical_offsets:
        for batch in view.batches(names, Selection(from_offset=offset, to_offset=offset + 1), milliseconds=True):
            found.extend(python_rows(batch, body.value))
    return found


# one message


def get(out: Output, store: Store, options: GetOptions) -> int:
    """Show one message in full, by physical offset, message id, unique key, or its position in a queue."""
    offset, message_id, unique, at, topic = options.offset, options.message_id, options.unique, options.at, options.topic
    if sum(way is not None for way in (offset, message_id, unique, at)) != 1:
        raise UsageError(
            "name the message with one of --offset PHYSICAL, --id MESSAGE_ID, --unique KEY -t TOPIC, or -t TOPIC -q N --at QUEUE_OFFSET"
        )
    if unique is not None and topic is None:
        raise UsageError("--unique needs the topic: the index keeps keys by topic; add -t TOPIC")
    if at is not None and (topic is None or options.queue_id is None):
        raise UsageError("--at needs the queue: add -t TOPIC and -q N")
    number = queue_number(options.queue_id or 0, "--queue")
    opened = open_store(store, options.config)
    view = open_view(out, opened, options.view, options.as_version)
    if offset is not None:
        place = _at_offset(view, opened, offset)
    elif message_id is not None:
        place = _by_id(out, view, opened, message_id)
    elif unique is not None:
        place = _by_unique_key(out, view, opened, topic or "", unique)
    else:
        place = _at_queue_offset(view, topic or "", number, at or 0)
    return show_message(out, view, place, options.body, options.raw)


def _at_offset(view: View, store: RocketMQStore, offset: int, found_by: str = "physical offset") -> int:
    if view.record(offset) is not None:
        return offset
    low, high = view.log_range()
    if not low <= offset < high:
        raise NotFoundError(f"{found_by} {offset} is outside the log, which goes from {low} to {high} in the {view.name} view")
    before = _record_around(view, store, offset)
    if before is not None:
        raise NotFoundError(f"no record starts at {found_by} {offset}, which is inside the record at {before}; use --offset {before}")
    raise NotFoundError(f"no valid record starts at {found_by} {offset}; `mqstore verify` reports what is there")


def _record_around(view: View, store: RocketMQStore, offset: int) -> int | None:
    """Return the start of the record that contains a byte of the log; searches back by the maximum size of a message."""
    import numpy as np

    from mqstore.rocketmq.format.commit_log import Records

    file = store.log.file_at(offset)
    if file is None:
        return None
    start = store.log.first_record(file, max(0, offset - file.start - (8 << 20)), offset - file.start)
    last: int | None = None
    for event in store.log.scan_file(file, start, offset - file.start) if start is not None else ():
        if isinstance(event, Records):
            last = int(event.positions[np.searchsorted(event.positions, offset - file.start) - 1])
    if last is None:
        return None
    raw = store.log.raw(file.start + last)
    return file.start + last if raw is not None and file.start + last + len(raw) > offset else None


def _by_id(out: Output, view: View, store: RocketMQStore, message_id: str) -> int:
    from mqstore.rocketmq.format.record import parse_message_id

    try:
        host, offset = parse_message_id(message_id.strip())
    except ValueError:
        raise UsageError(
            f"{message_id!r} is not an offset message id, which has 32 hexadecimal digits (56 with an IPv6 host); "
            "for an id made by a client use --unique KEY -t TOPIC"
        ) from None
    low, high = view.log_range()
    if not low <= offset < high:
        raise NotFoundError(
            f"the message id refers to physical offset {offset} of broker {host}, outside this log ({low} to {high}); "
            "if a client made the id, use --unique KEY -t TOPIC"
        )
    place = _at_offset(view, store, offset, f"the message id's physical offset (broker {host})")
    message = view.record(place)
    if message is not None and message.store_host != host:
        out.note(f"the id names broker {host}, the message was stored by {message.store_host}: it may be the message of another broker")
    return place


def _by_unique_key(out: Output, view: View, store: RocketMQStore, topic: str, key: str) -> int:
    from mqstore.rocketmq.lookup import explain

    with out.progress("scanning the log") as progress:
        answer = explain.query(store, view, topic, key, progress=progress)
    for places, how in ((answer.messages, ""), (answer.missing, "not found through the index, so the log was scanned")):
        unique = [
            place for place in places if (message := view.record(place)) is not None and message.property_map().get("UNIQ_KEY") == key
        ]
        if unique:
            if how:
                out.note(f"{how}: {answer.detail}")
            if len(unique) > 1:
                others = ", ".join(str(place) for place in unique[:-1][:8])
                out.note(f"{count(len(unique), 'message')} have this unique key; the newest is shown, the others are at {others}")
            return unique[-1]
    raise NotFoundError(f"no message of topic {topic!r} has the unique key {key!r}: {answer.detail or 'its hits have it among KEYS only'}")


def _at_queue_offset(view: View, topic: str, queue_id: int, at: int) -> int:
    queue = view.queue(topic, queue_id)
    if not queue.min_offset <= at < queue.max_offset:
        raise NotFoundError(
            f"queue {queue_id} of topic {topic!r} holds queue offsets {queue.min_offset} to {queue.max_offset - 1}, not {at}"
        )
    entries = queue.entries(at, at + 1)
    if not len(entries) or int(entries["size"][0]) <= 0:
        raise NotFoundError(
            f"the entry at queue offset {at} of topic {topic!r}, queue {queue_id} is not written; `mqstore verify` reports what is lost"
        )
    place = int(entries["physical_offset"][0])
    if view.record(place) is None:
        raise NotFoundError(f"the entry at queue offset {at} points to physical offset {place}, where no valid record starts")
    return place


def show_message(out: Output, view: View, place: int, body: BodyDisplay, raw: Path | None) -> int:
    """Print the message at a physical offset. Returns the exit status: 1 if it is damaged."""
    row = next(iter(message_rows(view, [place], BodyDisplay.BASE64 if out.is_text or raw is not None else body)), None)
    if row is None:
        raise NotFoundError(f"no valid record starts at physical offset {place}")
    if raw is not None:
        if row["body"] is None:
            raise NotFoundError(f"the body of the message at {row['physical_offset']} cannot be decompressed; nothing was written")
        write_body(base64.b64decode(row["body"]), raw)
        out.note(f"{count(row['body_len'], 'byte')} of body written to {raw}")
    if out.is_text:
        _print_message(out, row, body)
    elif out.format == "csv":
        names = columns_for(body.value)
        out.records(names, [row])
    else:
        out.document({name: value for name, value in row.items() if name in columns_for(body.value)} if raw is not None else row)
    return 1 if row["verdict"] == "damaged" else 0


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
