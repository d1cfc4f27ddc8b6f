"""`replay`: messages of a store, or of an edited file, sent again: to a running broker of either family, or into a store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import QueueNames, ViewName, option, path
from mqstore.cli.common.command import verb
from mqstore.cli.common.options import MessageFilters
from mqstore.cli.common.output import Output
from mqstore.errors import CannotOpenError, NotFoundError, UsageError
from mqstore.files.location import without_password
from mqstore.findings import LOST_VERDICTS, Verdict
from mqstore.table.formatting import clock, count, shorten, size

if TYPE_CHECKING:
    from mqstore.replay.outgoing import ReplayMessage
    from mqstore.replay.running import ReplayCounts

SHOWN = 3
PREVIEW = 60
_ROCKETMQ_ONLY = ("topic", "tags", "key", "from_offset", "to_offset", "since", "until", "grep")
_RABBITMQ_ONLY = ("vhost", "from_seq", "to_seq", "everything")

Source = Annotated[
    Path,
    typer.Argument(
        metavar="STORE|FILE.jsonl",
        help="A store of either broker, or a file of rows (JSON lines or Parquet) as `messages --body base64` prints them, also edited.",
        show_default=False,
        parser=path,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of `replay`."""

    to: Annotated[
        str,
        option(
            "--to",
            metavar="TARGET",
            help="rocketmq://host:port, rocketmq://host:port/topic, amqp://user:password@host:port/vhost, or a store's directory.",
        ),
    ]
    create: Annotated[bool, typer.Option("--create", help="Create the store if TARGET is a directory that does not exist.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the messages and show three; send nothing, connect to nothing.")] = False
    filters: MessageFilters = field(default_factory=MessageFilters)
    not_consumed_by: Annotated[
        str | None, option("--not-consumed-by", metavar="GROUP", help="RocketMQ: only messages that this group has not passed.")
    ] = None
    edits: Annotated[
        list[str] | None,
        option("--set", metavar="NAME=VALUE", help="Change topic, queue, keys, tags, body or property.NAME; empty removes; repeatable."),
    ] = None
    rate: Annotated[float | None, option("--rate", metavar="N", help="At most N messages per second.")] = None
    resume: Annotated[
        Path | None, option("--resume", metavar="FILE", help="Record confirmed messages in FILE, and continue from there.")
    ] = None
    access_key: Annotated[
        str | None, option("--access-key", metavar="KEY", help="RocketMQ: sign requests as this account; with --secret-key-file.")
    ] = None
    secret_key_file: Annotated[
        Path | None, option("--secret-key-file", metavar="FILE", help="RocketMQ: the file that holds the account's secret key.")
    ] = None
    tls: Annotated[bool, typer.Option("--tls", help="RocketMQ: connect with TLS, and check the certificate of the broker.")] = False
    tls_ca: Annotated[
        Path | None, option("--tls-ca", metavar="PEM", help="RocketMQ: the CA that signed the broker's certificate; implies --tls.")
    ] = None
    names: QueueNames = None


def replay(out: Output, store: Source, options: ReplayOptions) -> int:
    """Send messages again, each confirmed before the next: to a RocketMQ or AMQP broker, or into a store.

    Chosen by topic, queue, key, time, verdict or group position, or taken from a file of rows. With --resume a run that was killed goes on
    where it ended; at most one message of each queue is then in doubt, and is looked for at the target. Exit status 1 if a message was
    refused or left out as damaged.
    """
    from mqstore.replay.outgoing import parse_edits
    from mqstore.replay.targets import check_target

    if options.rate is not None and not options.rate > 0:
        raise UsageError("--rate must be above 0 messages per second")
    check_target(options.to, create=options.create)
    edits = parse_edits(options.edits)
    skipped: Counter[str] = Counter()
    messages = _messages(out, store, options, skipped)
    if options.dry_run:
        return _dry_run(out, store, options, (each.edited(edits) for each in messages), skipped)
    credentials, tls = _credentials(options), _tls(options)
    chosen = {name: value for name, value in vars_of(options.filters).items() if value not in (None, False)}
    what = {
        **chosen,
        **({"not_consumed_by": options.not_consumed_by} if options.not_consumed_by else {}),
        **({"set": edits} if edits else {}),
    }
    if _is_rows(store):
        from mqstore.replay.sources import digest_of

        what["digest"] = digest_of(store)
    about = f"{store.absolute()}: {what or 'all'} -> {without_password(options.to)}"
    counts, started = _send(out, messages, options, edits, about, credentials, tls)
    return _report(out, store, options, counts, skipped, time.monotonic() - started)


def _is_rows(source: Path) -> bool:
    return source.is_file() and source.suffix in (".jsonl", ".json", ".parquet")


def vars_of(filters: MessageFilters) -> dict[str, Any]:
    """Return the options of a selection by name."""
    return {name: getattr(filters, name) for name in filters.__slots__}


def _send(
    out: Output, messages: Iterator[ReplayMessage], options: ReplayOptions, edits: dict[str, str], about: str, credentials: Any, tls: Any
) -> tuple[ReplayCounts, float]:
    from mqstore.replay.running import Journal, ReplayCounts
    from mqstore.replay.running import replay as run
    from mqstore.replay.targets import open_target

    counts = ReplayCounts()
    started = time.monotonic()
    with Journal(options.resume, about) as journal:
        target = open_target(options.to, create=options.create, credentials=credentials, tls=tls)
        try:
            with out.progress("replaying", "messages") as progress:
                run(messages, target, journal, counts, edits=edits, rate=options.rate, progress=progress)
        except BaseException:
            if counts.sent:
                more = "" if options.resume else "; without --resume, a second run sends what was confirmed again"
                out.note(f"{count(counts.sent, 'message')} confirmed before the run ended{more}")
            raise
        finally:
            target.close()
    return counts, started


def _messages(out: Output, store: Path, options: ReplayOptions, skipped: Counter[str]) -> Iterator[ReplayMessage]:
    """Return the chosen messages of a source. Raises UsageError, CannotOpenError, NotFoundError."""
    from mqstore.rabbitmq.definitions.document import read_queue_names
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.replay import sources
    from mqstore.stores import open_store

    if _is_rows(store):
        if any(value for value in vars_of(options.filters).values()) or options.not_consumed_by:
            raise UsageError(f"{store} is a file of rows: all of them are sent; choose them by editing the file")
        return sources.rows_of_file(store)
    opened = open_store(store, names=() if options.names is None else read_queue_names(options.names))
    verdicts = frozenset(options.filters.verdict or ())
    unknown = verdicts - {str(verdict) for verdict in Verdict}
    if unknown:
        raise UsageError(f"{min(unknown)!r} is not a verdict; --verdict takes {', '.join(Verdict)}")
    foreign = _ROCKETMQ_ONLY if isinstance(opened, RabbitMQStore) else _RABBITMQ_ONLY
    for name in foreign:
        if getattr(options.filters, name) not in (None, False):
            raise UsageError(f"--{name.replace('_', '-')} does not apply to {store}, which is a store of the other broker")
    if isinstance(opened, RabbitMQStore):
        if options.not_consumed_by:
            raise UsageError("--not-consumed-by names a group of RocketMQ; a RabbitMQ store has messages that wait, which is the default")
        chosen = options.filters.queue_selection(ViewName.DISK)
        if sentence := opened.unknown_name(chosen.vhosts, chosen.queues):
            raise NotFoundError(sentence)
        messages = sources.rabbitmq_messages(opened, chosen, verdicts or sources.RABBITMQ_VERDICTS, skipped)
        return islice(messages, options.filters.limit)
    selection = options.filters.selection()
    if sentence := opened.unknown_topic(selection.topics):
        raise NotFoundError(sentence)
    left = None
    if options.not_consumed_by is not None:
        left = sources.NotConsumed.by(opened.view(), options.not_consumed_by, opened.offset_table.doubt)
        out.notes(left.doubts)
    limit, selection = selection.limit, _unlimited(selection)
    return islice(sources.rocketmq_messages(opened, selection, verdicts or sources.DEFAULT_VERDICTS, left, skipped), limit)


def _unlimited(selection: Any) -> Any:
    from dataclasses import replace

    return replace(selection, limit=None)


def _credentials(options: ReplayOptions) -> tuple[str, str] | None:
    if (options.access_key is None) != (options.secret_key_file is None):
        raise UsageError("--access-key and --secret-key-file belong together")
    if options.access_key is None or options.secret_key_file is None:
        return None
    try:
        return options.access_key, options.secret_key_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotOpenError(f"{options.secret_key_file} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def _tls(options: ReplayOptions) -> Any:
    if not options.tls and options.tls_ca is None:
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=None if options.tls_ca is None else str(options.tls_ca))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{options.tls_ca} does not contain certificates in PEM form: {error}; correct --tls-ca") from None


# what is printed


def _destination(options: ReplayOptions, message: ReplayMessage) -> str:
    """Return the topic or queue to which a message goes."""
    from urllib.parse import unquote, urlsplit

    named = unquote(urlsplit(options.to).path.strip("/")) if options.to.startswith("rocketmq://") else ""
    return named or (message.topic if options.to.startswith("amqp") else message.rocketmq_topic)


def _dry_run(out: Output, store: Path, options: ReplayOptions, messages: Iterator[ReplayMessage], skipped: Counter[str]) -> int:
    totals: Counter[str] = Counter()
    first: list[dict[str, Any]] = []
    octets = 0
    for message in messages:
        to = _destination(options, message)
        totals[to] += 1
        octets += len(message.body)
        if len(first) < SHOWN:
            text = message.body[:PREVIEW].decode("utf-8", "replace")
            first.append({"from": message.mark, "to": to, "properties": message.rocketmq_properties(), "body": text})
    number = sum(totals.values())
    if not out.is_text:
        out.report(
            {
                "store": str(store),
                "to": without_password(options.to),
                "dry_run": True,
                "messages": number,
                "bytes": octets,
                "by_destination": dict(totals),
                "first": first,
                "left_out": dict(skipped),
            }
        )
        return 0
    out.line(f"{count(number, 'message')}, {size(octets)} of bodies would be sent to {without_password(options.to)}.", style="bold")
    for to, each in totals.most_common(20):
        out.line(f"  {each:>9,}  {to}")
    for message_row in first:
        out.line()
        out.fact("from", message_row["from"])
        out.fact("to", message_row["to"])
        out.fact("properties", ", ".join(f"{name}={value}" for name, value in message_row["properties"].items() if name != "MQSTORE_FROM"))
        out.fact("body", shorten(message_row["body"], PREVIEW))
    _print_left_out(out, skipped)
    return 0


def _print_left_out(out: Output, skipped: Counter[str]) -> None:
    if skipped:
        out.line()
    for why, number in sorted(skipped.items()):
        out.line(f"Left out: {count(number, 'message')} {why}.")


def _report(out: Output, store: Path, options: ReplayOptions, counts: ReplayCounts, skipped: Counter[str], seconds: float) -> int:
    ok = not counts.refused and not any(skipped.get(name) for name in (*LOST_VERDICTS, "unreadable"))
    if not out.is_text:
        out.report(
            {
                "store": str(store),
                "to": without_password(options.to),
                "ok": ok,
                "sent": counts.sent,
                "bytes": counts.bytes,
                "skipped": counts.skipped,
                "arrived_before": counts.arrived,
                "in_doubt": counts.doubtful,
                "refused": counts.refused,
                "refusals": [{"from": place, "why": why} for place, why in counts.refusals],
                "left_out": dict(skipped),
                "seconds": round(seconds, 3),
            }
        )
        return 0 if ok else 1
    out.line(f"Sent to {without_password(options.to)}", style="bold green" if ok else "bold yellow")
    out.line(f"{count(counts.sent, 'message')}, {size(counts.bytes)} of bodies, each confirmed, in {clock(seconds)}.")
    if counts.skipped:
        out.line(f"{count(counts.skipped, 'message')} skipped, confirmed in an earlier run.")
    if counts.doubtful:
        out.line(
            f"In doubt, at most one of a queue: {count(counts.doubtful, 'message')}. An earlier run may have sent them, too; "
            "this target cannot be asked."
        )
    for place, why in counts.refusals[:20]:
        out.line(f"Refused: the message from {place}: {why}.")
    _print_left_out(out, skipped)
    return 0 if ok else 1


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="replay /backup/store --to rocketmq://10.0.0.1:9876 --topic orders --resume sent.journal")(replay)
