"""`messages`, `get` and `find`: the message table, filtered; one message in full; the messages that hold a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mqstore.cli.common.arguments import BodyDisplay, Format, Store, at_microseconds
from mqstore.cli.common.command import given, open_either, open_view, verb
from mqstore.cli.common.options import FindOptions, GetOptions, MessagesOptions, queue_number
from mqstore.cli.common.output import Output
from mqstore.errors import NotFoundError
from mqstore.report.messages import PREVIEW, find_parts, message_parts, message_table
from mqstore.table.formatting import count

if TYPE_CHECKING:
    from mqstore.rabbitmq.get import Message as QueuedMessage
    from mqstore.rocketmq.get import Message
    from mqstore.stores.listing import Listing
    from mqstore.stores.rabbitmq import RabbitMQ
    from mqstore.stores.rocketmq import RocketMQ


def messages(out: Output, store: Store, options: MessagesOptions) -> int:
    """List all messages, one row each: in log order; RabbitMQ: by vhost, queue, priority and position.

    A row has the fields of the record, the file it is in, and a verdict such as intact, unindexed, duplicate or damaged.
    Exit status 1 if a part of the store is damaged or missing and so has no rows.
    """
    opened = open_either(store, options, now=at_microseconds(options.at), careful=options.careful)
    listing = _listing(out, opened, options)
    if out.is_text:
        shown = message_table(opened.family, (options.body or BodyDisplay.NONE).value, expired=options.at is not None)
        if not out.show_table(shown.of(listing.batches(shown.reads))):
            out.line(listing.nothing())
    else:
        body = options.body.value if options.body else listing.body
        names = listing.columns(body)
        out.batches(names, listing.batches(names), body)
    damage = listing.damage()
    for sentence in (*damage, *listing.notes()):
        out.note(sentence)
    return 1 if damage else 0


def _listing(out: Output, opened: RocketMQ | RabbitMQ, options: MessagesOptions) -> Listing:
    from mqstore.stores.listing import LogListing, QueueListing

    if opened.family == "rabbitmq":
        return QueueListing(opened, options.filters.queue_selection(options.view), *options.filters.times())
    selection = options.filters.selection()
    view = open_view(out, opened, options.view, options.as_version)
    if opened.log_only:
        out.note(f"{opened.unread_sentence('consume queues', '')}; each verdict is that of the record alone")
    return LogListing(opened, view, selection)


# one message


def get(out: Output, store: Store, options: GetOptions) -> int:
    """Show one message in full, by physical offset, message id, unique key, or its position in a queue."""
    opened = open_either(store, options)
    message: Message | QueuedMessage
    if opened.family == "rocketmq":
        from mqstore.rocketmq.get import get as get_of_log

        number = None if options.queue_id is None else queue_number(options.queue_id, "--queue")
        view = open_view(out, opened, options.view, options.as_version)
        with out.progress("scanning the log") as progress:
            message = get_of_log(
                opened, view, offset=options.offset, id=options.message_id, unique=options.unique, topic=options.topic, queue=number,
                at=options.at, progress=progress,
            )  # fmt: skip
    else:
        message = opened.get(
            id=options.message_id, vhost=options.vhost, queue=options.queue_id, at=options.at, seq=options.seq, priority=options.priority
        )
    for note in message.notes:
        out.note(note)
    _show_message(out, message, options.body, options.raw)
    return 0 if message.ok else 1


def _show_message(out: Output, message: Message | QueuedMessage, body: BodyDisplay, raw: Path | None) -> None:
    content = message.body
    if raw is not None:
        if content is None:
            raise NotFoundError(f"{message.bodiless}; nothing was written")
        _write_body(content, raw)
        out.note(f"{count(len(content), 'byte')} of {message.body_name} written to {raw}")
    if out.is_text:
        out.show(message_parts(message.family, message.row))
        if content is not None:
            _print_body(out, content, body)
        return
    document = message.as_dict(body.value)
    if out.format is Format.CSV:
        out.records(tuple(document), [document])
    else:
        out.document(document)


def _write_body(content: bytes, target: Path) -> None:
    """Write a body to a new file."""
    from mqstore.files.durable import NewFile

    with NewFile(target) as new:
        new.file.write(content)
        new.publish()


def _print_body(out: Output, content: bytes, shown: BodyDisplay) -> None:
    """Print a body as text or as a hex dump, cut short unless `-v` is given; print nothing if `shown` leaves bodies out."""
    if shown is BodyDisplay.NONE or shown is BodyDisplay.SHA256:
        return
    part = content if out.settings.verbose else content[:PREVIEW]
    try:
        text = part.decode("utf-8")
        plain = all(letter.isprintable() or letter in "\n\t\r" for letter in text)
    except UnicodeDecodeError:
        # a character cut off at the end does not make it binary
        text = part[:-3].decode("utf-8", "replace")
        plain = "\ufffd" not in text and all(letter.isprintable() or letter in "\n\t\r" for letter in text)
    out.line()
    if plain or shown is BodyDisplay.TEXT:
        out.line(text.replace("\r\n", "\n").replace("\t", "    "))
    else:
        for start in range(0, min(len(part), PREVIEW), 16):
            line = part[start : start + 16]
            letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
            out.line(f"{start:08x}  {line.hex(' '):<47}  {letters}")
    if len(part) < len(content):
        out.line(f"… {count(len(content) - len(part), 'byte')} more; -v shows all, --raw FILE writes the body to a file", style="dim")


# the messages that hold a text


def find(out: Output, store: Store, options: FindOptions) -> int:
    """Find the messages that hold a text: did this order go through?

    Searches keys, ids, properties and bodies (as they are, as base64, compressed) of all topics or queues, and says of each hit
    whether it is intact, indexed, and consumed: by which groups, or acknowledged. Exit status 1 if nothing is found, or if bytes could not
    be searched.
    """
    opened = open_either(store, options, careful=True)
    body = options.body or (BodyDisplay.NONE if out.is_text else BodyDisplay.SHA256)
    where = given(whole_key=options.whole_key, master=options.master, threads=options.threads)
    with out.progress("searching") as progress:
        report = opened.find(options.text, body=body.value, limit=options.limit, progress=progress, **where)
    if out.format is Format.JSON:
        out.document(report.as_dict() | {"store": str(store)})
    elif out.is_text:
        out.show(find_parts(report, body.value, everything=out.settings.verbose))
    else:
        out.records(report.columns(body.value), report.rows)
    for sentence in report.limits:
        out.note(sentence)
    return 0 if report.hits and report.complete else 1


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="messages /backup/store --topic orders --since 2024-05-01T12:00:00Z -o jsonl")(messages)
    verb(app, example="get /backup/store -t orders --queue 0 --at 17")(get)
    verb(app, example="find /backup/store order-4711")(find)
