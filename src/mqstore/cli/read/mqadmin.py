"""mqadmin's command names and option letters for what this package reads from the files; hidden from the help.

    mqadmin                                        here
    queryMsgByKey -t T -k K [-m MAX] [-b] [-e]     query -t T -k K -n MAX -b -e
    queryMsgById -i ID                             get --id ID
    queryMsgByUniqueKey -t T -i KEY                get --unique KEY -t T
    queryMsgByOffset -t T -i QUEUE -o OFFSET       get -t T --queue QUEUE --at OFFSET
    printMsg -t T [-b] [-e] [-s TAGS] [-d BOOL]    messages --topic T --since --until --tags --body
    topicList                                      the names of all topics
    topicStatus -t T                               topics -t T
    consumerProgress [-g G] [-t T]                 groups -g G -t T
    queryCq -t T -q QUEUE -i INDEX [-c COUNT]      queue T QUEUE --from INDEX -n COUNT
    sendMessage -t T -p BODY [-k] [-c TAGS] [-i]   put -t T --body BODY -k KEYS --tags TAGS --queue QUEUE

The store takes the place of the name server: -n is accepted and ignored, with a note. -b BROKER, -c CLUSTER and -m TRACE do not apply and
are not accepted.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from mqstore.cli.common.arguments import AsVersion, BodyDisplay, Config, Store, ViewName, ViewOption, option
from mqstore.cli.common.command import open_store, open_view, verb
from mqstore.cli.common.options import GetOptions, MessageFilters, MessagesOptions, QueueOptions, TopicsOptions
from mqstore.cli.common.output import Output
from mqstore.cli.read.messages import get, messages
from mqstore.cli.read.query import END_OF_TIME, ask
from mqstore.cli.read.queues import groups, queue, topics
from mqstore.cli.write.put import put
from mqstore.cli.write.target import AsWriter, WritableStore
from mqstore.table.formatting import parse_time

Topic = Annotated[str, option("--topic", "-t", help="The topic.")]
NameServer = Annotated[str | None, option("--namesrvAddr", "-n", metavar="HOST:PORT", help="Ignored: the store is read without a broker.")]


def _time(text: str | None, option: str) -> str | None:
    """Convert mqadmin's time format, 2024-05-01#12:30:00:000, which is read as UTC here."""
    if text is None or "#" not in text:
        return text
    day, _, hour = text.partition("#")
    head, _, millis = hour.rpartition(":")
    iso = f"{day}T{head}.{millis}" if hour.count(":") == 3 else f"{day}T{hour}"
    return str(parse_time(iso, option))


def query_by_key(
    out: Output,
    store: Store,
    topic: Topic,
    key: Annotated[str, option("--msgKey", "-k", help="The key.")],
    max_num: Annotated[int, typer.Option("--maxNum", "-m", help="Maximum number of messages.")] = 64,
    begin: Annotated[str, typer.Option("--beginTimestamp", "-b", help="Stored at or after.")] = "0",
    end: Annotated[str, typer.Option("--endTimestamp", "-e", help="Stored at or before.")] = str(END_OF_TIME),
    view: ViewOption = ViewName.DISK,
    as_version: AsVersion = None,
    config: Config = None,
) -> int:
    """Same as `query`."""
    low, high = parse_time(_time(begin, "-b") or "0", "-b"), parse_time(_time(end, "-e") or "0", "-e")
    return ask(out, store, topic, key, max_num, low, high, view=view, as_version=as_version, config=config)


def query_by_id(
    out: Output,
    store: Store,
    message_id: Annotated[str, option("--msgId", "-i", help="The offset message id.")],
    view: ViewOption = ViewName.DISK,
    as_version: AsVersion = None,
    config: Config = None,
) -> int:
    """Same as `get --id`."""
    return get(out, store, GetOptions(message_id=message_id, view=view, as_version=as_version, config=config))


def query_by_unique_key(
    out: Output,
    store: Store,
    topic: Topic,
    key: Annotated[str, option("--msgId", "-i", help="The client's message id.")],
    view: ViewOption = ViewName.DISK,
    as_version: AsVersion = None,
    config: Config = None,
) -> int:
    """Same as `get --unique`."""
    return get(out, store, GetOptions(unique=key, topic=topic, view=view, as_version=as_version, config=config))


def query_by_offset(
    out: Output,
    store: Store,
    topic: Topic,
    queue_id: Annotated[int, option("--queueId", "-i", help="The queue id.")],
    offset: Annotated[int, option("--offset", "-o", help="The queue offset.")],
    view: ViewOption = ViewName.DISK,
    as_version: AsVersion = None,
    config: Config = None,
) -> int:
    """Same as `get -t --queue --at`."""
    options = GetOptions(topic=topic, queue_id=str(queue_id), at=offset, view=view, as_version=as_version, config=config)
    return get(out, store, options)


def print_messages(
    out: Output,
    store: Store,
    topic: Topic,
    begin: Annotated[str | None, option("--beginTimestamp", "-b", help="Stored at or after.")] = None,
    end: Annotated[str | None, option("--endTimestamp", "-e", help="Stored before.")] = None,
    tags: Annotated[str, typer.Option("--subExpression", "-s", help="Tags: TagA || TagB.")] = "*",
    print_body: Annotated[str, typer.Option("--printBody", "-d", help="Whether to show bodies: true or false.")] = "true",
    view: ViewOption = ViewName.DISK,
    as_version: AsVersion = None,
    config: Config = None,
) -> int:
    """Same as `messages --topic --body text`."""
    shown = BodyDisplay.TEXT if print_body.lower() == "true" else BodyDisplay.NONE
    filters = MessageFilters(topic=[topic], since=_time(begin, "-b"), until=_time(end, "-e"), tags=[tags])
    return messages(out, store, MessagesOptions(filters=filters, body=shown, view=view, as_version=as_version, config=config))


def topic_list(out: Output, store: Store, view: ViewOption = ViewName.DISK, as_version: AsVersion = None, config: Config = None) -> int:
    """List the names of all topics that have a queue or a configuration."""
    opened = open_store(store, config)
    names = sorted({queue.topic for queue in open_view(out, opened, view, as_version).queues()} | set(opened.topics.names))
    if out.is_text:
        for name in names:
            out.line(name)
    else:
        out.records(("topic",), ({"topic": name} for name in names))
    return 0


def topic_status(
    out: Output, store: Store, topic: Topic, view: ViewOption = ViewName.DISK, as_version: AsVersion = None, config: Config = None
) -> int:
    """Same as `topics -t`."""
    return topics(out, store, TopicsOptions(topic=topic, view=view, as_version=as_version, config=config))


def consumer_progress(
    out: Output,
    store: Store,
    group: Annotated[str | None, option("--groupName", "-g", help="The consumer group.")] = None,
    topic: Annotated[str | None, option("--topicName", "-t", help="The topic.")] = None,
    view: ViewOption = ViewName.DISK,
    as_version: AsVersion = None,
    config: Config = None,
) -> int:
    """Same as `groups`."""
    return groups(out, store, group=group, topic=topic, view=view, as_version=as_version, config=config)


def query_consume_queue(
    out: Output,
    store: Store,
    topic: Topic,
    queue_id: Annotated[int, option("--queue", "-q", help="The queue id.")],
    index: Annotated[int, option("--index", "-i", help="The first queue offset.")],
    number: Annotated[int, typer.Option("--count", "-c", min=0, help="Number of entries.")] = 10,
    view: ViewOption = ViewName.DISK,
    as_version: AsVersion = None,
    config: Config = None,
) -> int:
    """Same as `queue --from -n`."""
    entries = QueueOptions(topic=topic, queue_id=str(queue_id), start=index, limit=number, view=view, as_version=as_version, config=config)
    return queue(out, store, entries)


def send_message(
    out: Output,
    store: WritableStore,
    topic: Topic,
    body: Annotated[str, option("--body", "-p", help="The body.")],
    keys: Annotated[str | None, option("--key", "-k", help="KEYS.")] = None,
    tags: Annotated[str | None, option("--tags", "-c", help="TAGS.")] = None,
    queue_id: Annotated[int, typer.Option("--qid", "-i", min=0, help="The queue id.")] = 0,
    as_version: AsWriter = None,
    config: Config = None,
) -> int:
    """Same as `put`."""
    return put(out, store, topic, queue_id, body=body, keys=keys, tags=tags, as_version=as_version, config=config)


def _with_name_server(function: Callable[..., int]) -> Callable[..., int]:
    """Return a command that accepts mqadmin's -n, which an old script or habit gives, and ignores it with a note."""
    signature = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def command(out: Output, *, name_server: str | None = None, **given: Any) -> int:
        if name_server is not None:
            out.note(f"-n {name_server} is ignored: this command reads the store's files and asks no name server")
        return function(out, **given)

    added = inspect.Parameter("name_server", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=NameServer)
    command.__signature__ = signature.replace(parameters=[*signature.parameters.values(), added])  # type: ignore[attr-defined]
    return command


def register(app: typer.Typer) -> None:
    """Add mqadmin's commands."""
    for name, function, example, taken in _COMMANDS:
        command = verb(app, name, example=f"{name} {example}", hidden=True, short_output="o" not in taken, short_quiet="q" not in taken)
        command(_with_name_server(function))


# name, function, arguments of an example, and which of -o and -q the command uses for itself
_COMMANDS: tuple[tuple[str, Callable[..., int], str, str], ...] = (
    ("queryMsgByKey", query_by_key, "/backup/store -t orders -k K57", ""),
    ("queryMsgById", query_by_id, "/backup/store -i 7F00000100002A9F0000000000000115", ""),
    ("queryMsgByUniqueKey", query_by_unique_key, "/backup/store -t orders -i 7F0000010BA018B4AAC2100000000000", ""),
    ("queryMsgByOffset", query_by_offset, "/backup/store -t orders -i 0 -o 17", "o"),
    ("printMsg", print_messages, "/backup/store -t orders", ""),
    ("topicList", topic_list, "/backup/store", ""),
    ("topicStatus", topic_status, "/backup/store -t orders", ""),
    ("consumerProgress", consumer_progress, "/backup/store -g billing", ""),
    ("queryCq", query_consume_queue, "/backup/store -t orders -q 0 -i 17", "q"),
    ("sendMessage", send_message, "/data/store -t orders -p paid", ""),
)
