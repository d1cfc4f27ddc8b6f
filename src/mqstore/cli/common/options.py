"""Options classes of the commands that answer for both brokers; the filters of messages, and the selections that they make."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from mqstore.cli.common.arguments import (
    AsVersion,
    AtTime,
    BodyDisplay,
    BodyOption,
    Columns,
    Config,
    DamageMode,
    GrepOption,
    Master,
    QueueNames,
    ReaderThreads,
    Splits,
    ViewName,
    ViewOption,
    option,
    time_range,
)
from mqstore.cli.common.command import FamilyOptions, family_options
from mqstore.errors import UsageError
from mqstore.table.columns import QueueSelection, Selection
from mqstore.table.formatting import parse_time

if TYPE_CHECKING:
    from mqstore.files.location import Url

Topics = Annotated[list[str] | None, option("--topic", "-t", help="Only this topic; may be repeated.")]
Queues = Annotated[
    list[str] | None, option("--queue", metavar="QUEUE", help="Only this queue, by id (RabbitMQ: by name); may be repeated.")
]
Keys = Annotated[
    list[str] | None, option("--key", "-k", help="Only messages with this key in KEYS or UNIQ_KEY; reads the log; may be repeated.")
]
Tags = Annotated[list[str] | None, option("--tags", help="Only these tags: TagA, or 'TagA || TagB'; may be repeated.")]
FromOffset = Annotated[int | None, option("--from-offset", metavar="PHYSICAL", help="Start at this physical offset; RabbitMQ: of streams.")]
ToOffset = Annotated[int | None, option("--to-offset", metavar="PHYSICAL", help="Stop before this physical offset; RabbitMQ: of streams.")]
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
QueueTypes = Annotated[
    list[str] | None, option("--queue-type", help="RabbitMQ: only queues of this type: classic, quorum or stream; may be repeated.")
]
FromSeq = Annotated[int | None, option("--from-seq", metavar="SEQ", help="RabbitMQ: start at this sequence id.")]
ToSeq = Annotated[int | None, option("--to-seq", metavar="SEQ", help="RabbitMQ: stop before this sequence id.")]
FilterValues = Annotated[
    list[str] | None,
    option(
        "--filter-value",
        help="RabbitMQ: only messages of streams that may have this filter value; chunks whose filter shows that they cannot are not read. "
        "May be repeated.",
    ),
]
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
        help="RabbitMQ: only messages with this verdict: intact, consumed, unindexed, unreachable, damaged, unproved or "
        "duplicate; may be repeated.",
    ),
]


OnlyTopic = Annotated[str | None, option("--topic", "-t", help="Only this topic.")]
To = Annotated[
    Path,
    option("--to", metavar="OUT", help="The directory to create; without --append it must not exist, and appears only when complete."),
]
Threads = Annotated[int | None, option("--threads", min=1, help="Run in this many threads of this process, without Spark.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilters:
    """Options that choose messages; all that are given must hold."""

    family_options: ClassVar[FamilyOptions] = family_options(
        rocketmq=("topic", "tags", "key"),
        rabbitmq=("vhost", "queue_type", "from_seq", "to_seq", "filter_value", "verdict", "everything"),
    )

    topic: Topics = None
    vhost: Vhosts = None
    queue: Queues = None
    queue_type: QueueTypes = None
    tags: Tags = None
    key: Keys = None
    from_offset: FromOffset = None
    to_offset: ToOffset = None
    from_seq: FromSeq = None
    to_seq: ToSeq = None
    filter_value: FilterValues = None
    since: Since = None
    until: Until = None
    between: Between = None
    grep: GrepOption = None
    verdict: Verdicts = None
    everything: Everything = False
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
            queue_types=frozenset(self.queue_type) if self.queue_type else None,
            from_offset=self.from_offset,
            to_offset=self.to_offset,
            filter_values=frozenset(self.filter_value) if self.filter_value else None,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """Options of `inspect`."""

    family_options: ClassVar[FamilyOptions] = family_options(rocketmq=("config",), rabbitmq=("names",))

    config: Config = None
    names: QueueNames = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseOptions:
    """Options of `diagnose`."""

    family_options: ClassVar[FamilyOptions] = family_options(rocketmq=("threads", "config"), rabbitmq=("names",))

    for_version: Annotated[
        str | None,
        option("--for", metavar="VERSION", help="The version of the broker to be started; by default the one that wrote the store."),
    ] = None
    threads: ReaderThreads = None
    config: Config = None
    names: QueueNames = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Options of `verify`."""

    family_options: ClassVar[FamilyOptions] = family_options(rocketmq=("threads", "master", "spark", "config"), rabbitmq=("names",))

    threads: ReaderThreads = None
    master: Master = None
    spark: Annotated[bool, typer.Option("--spark", help="Run on Spark in this process; short for --master 'local[*]'.")] = False
    config: Config = None
    names: QueueNames = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOptions:
    """Options of `usage`."""

    family_options: ClassVar[FamilyOptions] = family_options(rocketmq=("threads", "master", "splits", "config"), rabbitmq=("names",))

    by: Annotated[
        str | None,
        option(
            "--by",
            metavar="GROUP",
            help="Group by topic, queue, day, key-prefix:N (first N characters of the first key) or retained (log file); "
            "RabbitMQ: file (of the message stores), queue, stream, and of quorum queues member or log (files).",
        ),
    ] = None
    threads: ReaderThreads = None
    master: Master = None
    splits: Splits = None
    config: Config = None
    names: QueueNames = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsOptions:
    """Options of `topics`."""

    family_options: ClassVar[FamilyOptions] = family_options(
        rocketmq=("topic", "as_version", "config"), rabbitmq=("vhost", "queue", "at", "names")
    )

    topic: OnlyTopic = None
    vhost: Vhosts = None
    queue: Queues = None
    view: ViewOption = ViewName.DISK
    as_version: AsVersion = None
    at: AtTime = None
    config: Config = None
    names: QueueNames = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Arguments and options of `queue`."""

    family_options: ClassVar[FamilyOptions] = family_options(
        rocketmq=("start", "stop", "as_version", "config"), rabbitmq=("from_seq", "to_seq", "priority", "names")
    )

    topic: Annotated[
        str, typer.Argument(metavar="TOPIC|VHOST", help="The topic, as listed by `topics`; RabbitMQ: the vhost.", show_default=False)
    ]
    queue_id: Annotated[str, typer.Argument(metavar="QUEUE_ID|QUEUE", help="The queue id; RabbitMQ: the queue's name.", show_default=False)]
    start: Annotated[int | None, option("--from", metavar="QUEUE_OFFSET", help="Start at this queue offset.")] = None
    stop: Annotated[int | None, option("--to", metavar="QUEUE_OFFSET", help="Stop before this queue offset.")] = None
    from_seq: FromSeq = None
    to_seq: ToSeq = None
    limit: Limit = None
    priority: Annotated[int | None, option("--priority", metavar="N", help="RabbitMQ: only this level of a priority queue.")] = None
    view: ViewOption = ViewName.DISK
    as_version: AsVersion = None
    config: Config = None
    names: QueueNames = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesOptions:
    """Options of `messages`."""

    family_options: ClassVar[FamilyOptions] = family_options(rocketmq=("as_version", "config"), rabbitmq=("at", "names", "careful"))

    filters: MessageFilters = field(default_factory=MessageFilters)
    body: Annotated[
        BodyDisplay | None, option("--body", help="How to show bodies; default: none for text output, otherwise sha256 (RabbitMQ: base64).")
    ] = None
    view: ViewOption = ViewName.DISK
    as_version: AsVersion = None
    at: AtTime = None
    config: Config = None
    names: QueueNames = None
    careful: Annotated[
        bool, option("--careful", help="RabbitMQ: search message files for records with a destroyed head, by their ids.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOptions:
    """Options of `get`: ways to identify a message, of which one is given, and how to show it."""

    family_options: ClassVar[FamilyOptions] = family_options(
        rocketmq=("offset", "unique", "topic", "view", "as_version", "config"), rabbitmq=("vhost", "seq", "priority", "names")
    )

    offset: Annotated[int | None, option("--offset", metavar="PHYSICAL", help="By physical offset.")] = None
    message_id: Annotated[
        str | None, option("--id", metavar="MESSAGE_ID", help="By message id: 32 hexadecimal digits, or 56 if the host is IPv6.")
    ] = None
    unique: Annotated[str | None, option("--unique", metavar="KEY", help="By the client's message id (UNIQ_KEY); with -t.")] = None
    topic: Annotated[str | None, option("--topic", "-t", help="The topic, for --unique and --at.")] = None
    vhost: Annotated[
        str | None, option("--vhost", help="RabbitMQ: the vhost of --queue; needed only if several vhosts have such a queue.")
    ] = None
    queue_id: Annotated[str | None, option("--queue", metavar="QUEUE", help="The queue's id (RabbitMQ: its name), for --at and --seq.")] = (
        None
    )
    at: Annotated[
        int | None,
        option(
            "--at", metavar="QUEUE_OFFSET", help="By queue offset; with -t and --queue. RabbitMQ: by position, where 0 is delivered next."
        ),
    ] = None
    seq: Annotated[int | None, option("--seq", metavar="SEQ", help="RabbitMQ: by sequence id; with --queue.")] = None
    priority: Annotated[int | None, option("--priority", metavar="N", help="RabbitMQ: the level of a priority queue, for --seq.")] = None
    body: BodyOption = BodyDisplay.BASE64
    raw: Annotated[Path | None, option("--raw", metavar="FILE", help="Write the decompressed body to a new file.")] = None
    view: ViewOption = ViewName.DISK
    as_version: AsVersion = None
    config: Config = None
    names: QueueNames = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindOptions:
    """Options of `find`."""

    family_options: ClassVar[FamilyOptions] = family_options(rocketmq=("whole_key", "config"), rabbitmq=("names",))

    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="The text: an order number, a key, a message id, part of a body.", show_default=False),
    ]
    whole_key: Annotated[
        bool,
        typer.Option("--whole-key", help="Only messages with a key that equals TEXT; reads the index instead of the log where it can."),
    ] = False
    limit: Annotated[int | None, option("--limit", "-n", min=1, help="Maximum number of rows; default: 10000. All are counted.")] = None
    body: Annotated[BodyDisplay | None, option("--body", help="How to show bodies; default: none for text output, otherwise sha256.")] = (
        None
    )
    threads: ReaderThreads = None
    master: Master = None
    config: Config = None
    names: QueueNames = None


class ExportFormat(StrEnum):
    """The kind of files that an export writes."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"
    ICEBERG = "iceberg"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of `export`."""

    family_options: ClassVar[FamilyOptions] = family_options(
        rocketmq=("mode", "append", "append_from", "skip_lost", "config"), rabbitmq=("view", "at", "names")
    )

    to: To
    format: Annotated[ExportFormat, typer.Option("--format", metavar="KIND", help=f"The files to write: {', '.join(ExportFormat)}.")] = (
        ExportFormat.PARQUET
    )
    columns: Columns = None
    partition_by: Annotated[
        str | None, option("--partition-by", metavar="A,B,…", help="Write one directory per value of these columns.")
    ] = None
    filters: MessageFilters = field(default_factory=MessageFilters)
    view: ViewOption = ViewName.DISK
    at: AtTime = None
    mode: Annotated[
        DamageMode,
        typer.Option("--mode", case_sensitive=False, help="FAILFAST: stop at the first damage; PERMISSIVE: skip it and report it."),
    ] = DamageMode.PERMISSIVE
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a killed run of the same export, and let this run be continued if it is killed.")
    ] = False
    append: Annotated[
        bool,
        typer.Option("--append", help="iceberg, delta: add what the log has gained since to the table OUT, or begin one."),
    ] = False
    append_from: Annotated[
        str | None,
        option("--append-from", metavar="WHERE", help="Begin a table that was made by others: earliest, or a physical offset."),
    ] = None
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="With --append: skip what retention removed; by default that is an error.")
    ] = False
    master: Master = None
    threads: Threads = None
    splits: Splits = None
    config: Config = None
    names: QueueNames = None


def check_target(to: Path, root: Path | Url) -> None:
    """Refuse an unusable target before Spark is started. Raises TargetError."""
    from mqstore.files.location import check_outside, exists_already, local_target

    local_target(to)
    if os.path.lexists(to):
        raise exists_already(to)
    check_outside(to, root)
