"""The filters of `messages` and `export`: command-line options, and the selections of messages that they make."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from mqstore.cli.common.arguments import GrepOption, ViewName, option
from mqstore.cli.common.store_kind import RabbitMQOnly, RocketMQOnly
from mqstore.cli.common.time_range import time_range
from mqstore.errors import UsageError
from mqstore.table.columns import QueueSelection, Selection
from mqstore.table.formatting import parse_time

Topics = Annotated[list[str] | None, option("--topic", "-t", help="Only this topic; may be repeated.")]
Queues = Annotated[
    list[str] | None, option("--queue", metavar="QUEUE", help="Only this queue, by id (RabbitMQ: by name); may be repeated.")
]
Keys = Annotated[
    list[str] | None, option("--key", "-k", help="Only messages with this key in KEYS or UNIQ_KEY; reads the log; may be repeated.")
]
Tags = Annotated[list[str] | None, option("--tags", help="Only these tags: TagA, or 'TagA || TagB'; may be repeated.")]
FromOffset = Annotated[int | None, option("--from-offset", metavar="PHYSICAL", help="Start at this physical offset.")]
ToOffset = Annotated[int | None, option("--to-offset", metavar="PHYSICAL", help="Stop before this physical offset.")]
Since = Annotated[
    str | None,
    option(
        "--since",
        metavar="TIME",
        help="Only messages stored at or after this time: milliseconds since the epoch, ISO 8601 (UTC if it has no zone), or a span before "
        "now: 90m, 1h30m, 3 days ago, yesterday.",
    ),
]
Until = Annotated[str | None, option("--until", metavar="TIME", help="Only messages stored before this time.")]
Between = Annotated[
    str | None, option("--between", metavar="FROM..TO", help="The same as --since FROM --until TO; also as two words: --between FROM TO.")
]
Limit = Annotated[int | None, option("--limit", "-n", min=0, help="Maximum number of rows.")]
Vhosts = Annotated[list[str] | None, option("--vhost", help="RabbitMQ: only this vhost; may be repeated.")]
FromSeq = Annotated[int | None, option("--from-seq", metavar="SEQ", help="RabbitMQ: start at this sequence id.")]
ToSeq = Annotated[int | None, option("--to-seq", metavar="SEQ", help="RabbitMQ: stop before this sequence id.")]
Everything = Annotated[
    bool,
    typer.Option(
        "--all", help="RabbitMQ: also messages that no queue holds: acknowledged ones still in the files, and those without an index entry."
    ),
]
Verdicts = Annotated[
    list[str] | None,
    option(
        "--verdict",
        help="RabbitMQ: only messages with this verdict: intact, consumed, unindexed, unreachable, damaged or duplicate; may be repeated.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilters:
    """Options that choose messages; all that are given must hold."""

    topic: RocketMQOnly[Topics] = None
    vhost: RabbitMQOnly[Vhosts] = None
    queue: Queues = None
    tags: RocketMQOnly[Tags] = None
    key: RocketMQOnly[Keys] = None
    from_offset: RocketMQOnly[FromOffset] = None
    to_offset: RocketMQOnly[ToOffset] = None
    from_seq: RabbitMQOnly[FromSeq] = None
    to_seq: RabbitMQOnly[ToSeq] = None
    since: Since = None
    until: Until = None
    between: Between = None
    grep: GrepOption = None
    verdict: RabbitMQOnly[Verdicts] = None
    everything: RabbitMQOnly[Everything] = False
    limit: Limit = None

    def selection(self) -> Selection:
        """Return the messages of a RocketMQ store that these options choose. Raises UsageError."""
        tags = [tag.strip() for part in self.tags or () for tag in part.split("||")]
        since, until = self.times()
        return Selection(
            topics=frozenset(self.topic) if self.topic else None,
            queue_ids=frozenset(queue_number(text, "--queue") for text in self.queue) if self.queue else None,
            from_offset=self.from_offset,
            to_offset=self.to_offset,
            since=since,
            until=until,
            tags=None if not tags or "*" in tags else frozenset(tags),
            keys=frozenset(self.key) if self.key else None,
            grep=body_pattern(self.grep),
            limit=self.limit,
        )

    def queue_selection(self, view: ViewName) -> QueueSelection:
        """Return the messages of a RabbitMQ store that these options choose, `times` apart. Raises UsageError."""
        from mqstore.findings import Verdict

        verdicts = frozenset(self.verdict or ())
        known = [str(verdict) for verdict in Verdict]
        for verdict in self.verdict or ():
            if verdict not in known:
                raise UsageError(f"{verdict!r} is not a verdict; --verdict takes {', '.join(known)}")
        return QueueSelection(
            vhosts=frozenset(self.vhost) if self.vhost else None,
            queues=frozenset(self.queue) if self.queue else None,
            from_seq=self.from_seq,
            to_seq=self.to_seq,
            recovered=True if view is ViewName.RECOVERED else None,
            verdicts=verdicts or None,
            grep=body_pattern(self.grep),
            everything=self.everything or bool({"consumed", "unindexed", "duplicate"} & verdicts),
            limit=self.limit,
        )

    def times(self) -> tuple[int | None, int | None]:
        """Return --since and --until, or --between, in milliseconds since the epoch. Raises UsageError."""
        if self.between is not None:
            if self.since is not None or self.until is not None:
                raise UsageError("--between gives both ends; omit --since and --until")
            return time_range(self.between)
        since = None if self.since is None else parse_time(self.since, "--since")
        return since, None if self.until is None else parse_time(self.until, "--until")


def queue_number(text: str | int, option: str) -> int:
    """Return the id of a RocketMQ queue. Raises UsageError."""
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is not a queue id; the queues of a RocketMQ topic are numbered, `mqstore topics` lists them"
        ) from None


def body_pattern(grep: str | None) -> re.Pattern[bytes] | None:
    """Compile the regular expression of --grep. Raises UsageError."""
    if grep is None:
        return None
    try:
        return re.compile(grep.encode("utf-8", "surrogateescape"), re.DOTALL)
    except re.error as error:
        raise UsageError(
            f"--grep {grep!r} is not a regular expression: {error}; write bytes as \\x00, and a backslash before a literal special"
        ) from None
