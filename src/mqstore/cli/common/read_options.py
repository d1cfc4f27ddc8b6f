"""Options of the commands that read a store and answer for both brokers, one class per command."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from mqstore.cli.common.arguments import (
    AsVersion,
    AtTime,
    BodyDisplay,
    BodyOption,
    Config,
    Master,
    QueueNames,
    ReaderThreads,
    Splits,
    ViewName,
    ViewOption,
    option,
)
from mqstore.cli.common.filters import FromSeq, Limit, MessageFilters, Queues, ToSeq, Vhosts
from mqstore.cli.common.store_kind import RabbitMQOnly, RocketMQOnly

OnlyTopic = Annotated[str | None, option("--topic", "-t", help="Only this topic.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """Options of `inspect`."""

    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseOptions:
    """Options of `diagnose`."""

    for_version: Annotated[
        str | None,
        option("--for", metavar="VERSION", help="The version of the broker to be started; by default the one that wrote the store."),
    ] = None
    threads: RocketMQOnly[ReaderThreads] = None
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Options of `verify`."""

    threads: RocketMQOnly[ReaderThreads] = None
    master: RocketMQOnly[Master] = None
    spark: RocketMQOnly[Annotated[bool, typer.Option("--spark", help="Run on Spark in this process; short for --master 'local[*]'.")]] = (
        False
    )
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOptions:
    """Options of `usage`."""

    by: Annotated[
        str | None,
        option(
            "--by",
            metavar="GROUP",
            help="Group by topic, queue, day, key-prefix:N (first N characters of the first key) or retained (log file); "
            "RabbitMQ: file (of the message stores) or queue.",
        ),
    ] = None
    threads: RocketMQOnly[ReaderThreads] = None
    master: RocketMQOnly[Master] = None
    splits: RocketMQOnly[Splits] = None
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsOptions:
    """Options of `topics`."""

    topic: RocketMQOnly[OnlyTopic] = None
    vhost: RabbitMQOnly[Vhosts] = None
    queue: RabbitMQOnly[Queues] = None
    view: ViewOption = ViewName.DISK
    as_version: RocketMQOnly[AsVersion] = None
    at: RabbitMQOnly[AtTime] = None
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Arguments and options of `queue`."""

    topic: Annotated[
        str, typer.Argument(metavar="TOPIC|VHOST", help="The topic, as listed by `topics`; RabbitMQ: the vhost.", show_default=False)
    ]
    queue_id: Annotated[str, typer.Argument(metavar="QUEUE_ID|QUEUE", help="The queue id; RabbitMQ: the queue's name.", show_default=False)]
    start: RocketMQOnly[Annotated[int | None, option("--from", metavar="QUEUE_OFFSET", help="Start at this queue offset.")]] = None
    stop: RocketMQOnly[Annotated[int | None, option("--to", metavar="QUEUE_OFFSET", help="Stop before this queue offset.")]] = None
    from_seq: RabbitMQOnly[FromSeq] = None
    to_seq: RabbitMQOnly[ToSeq] = None
    limit: Limit = None
    priority: RabbitMQOnly[
        Annotated[int | None, option("--priority", metavar="N", help="RabbitMQ: only this level of a priority queue.")]
    ] = None
    view: ViewOption = ViewName.DISK
    as_version: RocketMQOnly[AsVersion] = None
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesOptions:
    """Options of `messages`."""

    filters: MessageFilters = field(default_factory=MessageFilters)
    body: Annotated[
        BodyDisplay | None, option("--body", help="How to show bodies; default: none for text output, otherwise sha256 (RabbitMQ: base64).")
    ] = None
    view: ViewOption = ViewName.DISK
    as_version: RocketMQOnly[AsVersion] = None
    at: RabbitMQOnly[AtTime] = None
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None
    careful: RabbitMQOnly[
        Annotated[bool, option("--careful", help="RabbitMQ: search message files for records with a destroyed head, by their ids.")]
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOptions:
    """Options of `get`: ways to identify a message, of which one is given, and how to show it."""

    offset: RocketMQOnly[Annotated[int | None, option("--offset", metavar="PHYSICAL", help="By physical offset.")]] = None
    message_id: Annotated[
        str | None, option("--id", metavar="MESSAGE_ID", help="By message id: 32 hexadecimal digits, or 56 if the host is IPv6.")
    ] = None
    unique: RocketMQOnly[
        Annotated[str | None, option("--unique", metavar="KEY", help="By the client's message id (UNIQ_KEY); with -t.")]
    ] = None
    topic: RocketMQOnly[Annotated[str | None, option("--topic", "-t", help="The topic, for --unique and --at.")]] = None
    vhost: RabbitMQOnly[
        Annotated[str | None, option("--vhost", help="RabbitMQ: the vhost of --queue; needed only if several vhosts have such a queue.")]
    ] = None
    queue_id: Annotated[
        str | None, option("--queue", "-q", metavar="QUEUE", help="The queue's id (RabbitMQ: its name), for --at and --seq.")
    ] = None
    at: Annotated[
        int | None,
        option("--at", metavar="QUEUE_OFFSET", help="By queue offset; with -t and -q. RabbitMQ: by position, where 0 is delivered next."),
    ] = None
    seq: RabbitMQOnly[Annotated[int | None, option("--seq", metavar="SEQ", help="RabbitMQ: by sequence id; with -q.")]] = None
    priority: RabbitMQOnly[
        Annotated[int | None, option("--priority", metavar="N", help="RabbitMQ: the level of a priority queue, for --seq.")]
    ] = None
    body: BodyOption = BodyDisplay.BASE64
    raw: Annotated[Path | None, option("--raw", metavar="FILE", help="Write the decompressed body to a new file.")] = None
    view: RocketMQOnly[ViewOption] = ViewName.DISK
    as_version: RocketMQOnly[AsVersion] = None
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindOptions:
    """Options of `find`."""

    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="The text: an order number, a key, a message id, part of a body.", show_default=False),
    ]
    whole_key: RocketMQOnly[
        Annotated[
            bool,
            typer.Option("--whole-key", help="Only messages with a key that equals TEXT; reads the index instead of the log where it can."),
        ]
    ] = False
    limit: Annotated[int | None, option("--limit", "-n", min=1, help="Maximum number of rows; default: 10000. All are counted.")] = None
    body: Annotated[BodyDisplay | None, option("--body", help="How to show bodies; default: none for text output, otherwise sha256.")] = (
        None
    )
    threads: ReaderThreads = None
    master: Master = None
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None
