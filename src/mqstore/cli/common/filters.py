"""The filters of `messages` and `export`: options of a command line, and the selection of RocketMQ messages that they make."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from mqstore.cli.common.arguments import option
from mqstore.errors import UsageError
from mqstore.table.columns import Selection
from mqstore.table.formatting import parse_time

__all__ = [
    "FromOffset",
    "Keys",
    "Limit",
    "Queues",
    "Since",
    "Tags",
    "ToOffset",
    "Topics",
    "Until",
    "pattern",
    "queue_number",
    "selection",
]

Topics = Annotated[list[str] | None, option("--topic", "-t", help="Only this topic; may be repeated.")]
Queues = Annotated[
    list[str] | None, option("--queue", metavar="QUEUE", help="Only this queue: its id, of a RabbitMQ store its name; may be repeated.")
]
Keys = Annotated[
    list[str] | None, option("--key", "-k", help="Only messages with this key in KEYS or UNIQ_KEY, by reading the log; may be repeated.")
]
Tags = Annotated[list[str] | None, option("--tags", help="Only these tags: TagA, or 'TagA || TagB'; may be repeated.")]
FromOffset = Annotated[int | None, option("--from-offset", metavar="PHYSICAL", help="From this physical offset on.")]
ToOffset = Annotated[int | None, option("--to-offset", metavar="PHYSICAL", help="Up to this physical offset, itself not included.")]
Since = Annotated[
    str | None,
    option(
        "--since", metavar="TIME", help="Stored at or after: milliseconds since the epoch, or an ISO time (UTC unless it says otherwise)."
    ),
]
Until = Annotated[str | None, option("--until", metavar="TIME", help="Stored before.")]
Limit = Annotated[int | None, option("--limit", "-n", min=0, help="At most so many.")]


def queue_number(text: str | int, option: str) -> int:
    """The id of a RocketMQ queue. Raises UsageError."""
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is no queue id; the queues of a RocketMQ topic are numbered, `mqstore topics` lists them"
        ) from None


def pattern(grep: str | None) -> re.Pattern[bytes] | None:
    """The regular expression of --grep. Raises UsageError."""
    if grep is None:
        return None
    try:
        return re.compile(grep.encode("utf-8", "surrogateescape"), re.DOTALL)
    except re.error as error:
        raise UsageError(
            f"--grep {grep!r} is no regular expression: {error}; bytes may be written as \\x00, and a backslash makes a sign plain"
        ) from None


def selection(
    *,
    topics: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
    from_offset: int | None = None,
    to_offset: int | None = None,
    since: str | None = None,
    until: str | None = None,
    grep: str | None = None,
    limit: int | None = None,
) -> Selection:
    """The filters of a command line as a selection. Raises UsageError."""
    wanted_tags = [tag.strip() for part in tags or () for tag in part.split("||")]
    return Selection(
        topics=frozenset(topics) if topics else None,
        queue_ids=frozenset(queue_number(text, "--queue") for text in queues) if queues else None,
        from_offset=from_offset,
        to_offset=to_offset,
        since=None if since is None else parse_time(since, "--since"),
        until=None if until is None else parse_time(until, "--until"),
        tags=None if not wanted_tags or "*" in wanted_tags else frozenset(wanted_tags),
        keys=frozenset(keys) if keys else None,
        grep=pattern(grep),
        limit=limit,
    )
