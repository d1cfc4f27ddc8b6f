"""`put`: one message into a store that no broker is using."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import Config, option
from mqstore.cli.common.command import verb
from mqstore.cli.common.output import Output
from mqstore.cli.write.target import AsWriter, Create, Interrupts, StoreTarget, Sync, WritableStore, open_target, refusal
from mqstore.errors import CannotOpenError, UsageError

if TYPE_CHECKING:
    from mqstore.rocketmq.format.message import Message

PUT_NAMES = ("status", "msg_id", "topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp", "store", "created")

_LAST_QUEUE = (1 << 31) - 1


def put(
    out: Output,
    store: WritableStore,
    topic: Annotated[str, option("--topic", "-t", help="The topic.")],
    queue_id: Annotated[int, typer.Option("--queue", metavar="N", min=0, help="The queue id.")] = 0,
    body: Annotated[
        str | None, option("--body", metavar="TEXT", help="The body; without this and --body-file it is read from standard input.")
    ] = None,
    body_file: Annotated[Path | None, option("--body-file", metavar="FILE", help="Read the body from a file.")] = None,
    keys: Annotated[str | None, option("--keys", "-k", help="KEYS; separate several with spaces.")] = None,
    tags: Annotated[str | None, option("--tags", help="TAGS.")] = None,
    properties: Annotated[list[str] | None, option("--property", metavar="NAME=VALUE", help="A further property; may be repeated.")] = None,
    delay: Annotated[int | None, option("--delay", metavar="LEVEL", min=1, help="Deliver after the delay of this level.")] = None,
    create: Create = False,
    sync: Sync = False,
    as_version: AsWriter = None,
    config: Config = None,
) -> int:
    """Put one message into a store, as a broker does.

    The store must not be in use: the command holds the broker's own lock while it runs. When it ends, the message is in the log, the
    queue and the index, and on disk. A message with a delay level stays in SCHEDULE_TOPIC_XXXX until the store is served again.
    """
    target = StoreTarget(store, create, as_version, sync, config)
    message = _message(topic, queue_id, _properties_of(keys, tags, properties, delay), b"")
    message.body = _read_body(body, body_file, target.settings().max_message_size)
    with Interrupts() as interrupts:
        with interrupts.held(until_asked=True):
            opened, new = open_target(out, target)
            with opened:
                result = opened.put(message)
                stored = opened.record_at(result.physical_offset) if result.stored else None
            version = opened.version
            if stored is None:
                raise refusal(result.status, result.detail, version)
            row = {
                "status": result.status.spelled(version),
                "msg_id": result.msg_id,
                "topic": stored.topic,
                "queue_id": stored.queue_id,
                "queue_offset": result.queue_offset,
                "physical_offset": result.physical_offset,
                "size": result.size,
                "store_timestamp": result.store_timestamp,
                "store": str(opened.reading.root),
                "created": new,
            }
            _print_result(out, row, topic)
        interrupts.ask()
    if result.detail:
        out.note(f"the message is stored, but {result.detail}")
    return 1 if result.detail else 0


def _properties_of(keys: str | None, tags: str | None, properties: Sequence[str] | None, delay: int | None) -> dict[str, str]:
    """Return the properties by name. Raises UsageError."""
    given = [("KEYS", keys), ("TAGS", tags), ("DELAY", None if delay is None else str(delay))]
    for pair in properties or ():
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UsageError(f"--property {pair!r} is not NAME=VALUE")
        given.append((name, value))
    values: dict[str, str] = {}
    for name, text in given:
        if text is None:
            continue
        if name in values:
            raise UsageError(f"property {name} is given twice; leave one out")
        if "\x01" in name or "\x02" in name or "\x02" in text:
            raise UsageError(f"property {name!r} holds a byte 01 or 02, which separate properties in the log; leave it out")
        values[name] = text
    return values


def _message(topic: str, queue_id: int, properties: dict[str, str], body: bytes) -> Message:
    from mqstore.rocketmq.format.message import Message

    for text in (topic, *properties, *properties.values()):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{os.fsencode(text)!r} is not UTF-8, as topic and properties must be") from None
    if queue_id > _LAST_QUEUE:
        raise UsageError(f"queue {queue_id} is not valid: queue ids have 31 bits")
    return Message(topic, body, queue_id=queue_id, properties=properties)


def _read_body(text: str | None, file: Path | None, limit: int) -> bytes:
    """Read the body. Raises UsageError, CannotOpenError."""
    if text is not None and file is not None:
        raise UsageError("--body and --body-file both give the body; leave one out")
    if text is not None:
        return os.fsencode(text)
    where = "standard input" if file is None or str(file) == "-" else str(file)
    try:
        if file is None or str(file) == "-":
            body = sys.stdin.buffer.read(limit + 1)
        else:
            with file.open("rb") as opened:
                body = opened.read(limit + 1)
    except OSError as error:
        raise CannotOpenError(f"{where} cannot be read: {error.strerror}") from None
    if len(body) > limit:
        raise UsageError(f"{where} has more than {limit} bytes, the longest body that the store accepts (maxMessageSize)")
    return body


def _print_result(out: Output, row: dict[str, Any], topic: str) -> None:
    if out.format == "csv":
        out.records(PUT_NAMES, [row])
        return
    if not out.is_text:
        out.document(row)
        return
    out.fact("status", row["status"], "green" if row["status"] == "PUT_OK" else "yellow")
    out.fact("message id", row["msg_id"])
    out.fact("queue", f"topic {row['topic']}, queue {row['queue_id']}, queue offset {row['queue_offset']}")
    out.fact("place", f"physical offset {row['physical_offset']}, {row['size']} bytes")
    out.fact("store", row["store"] + (", created" if row["created"] else ""))
    if row["topic"] != topic:
        out.line(f"It stays there until its delay is over and the store is served; then it is delivered to topic {topic}.")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="put /data/store -t orders -k o-17 --body paid --create")(put)
