"""`convert`: RabbitMQ classic queues from one version to the other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from mqstore.cli.common.arguments import Master, Store, at_microseconds, at_time, option
from mqstore.cli.common.command import diagnosis_of, refuse_rocketmq, show_diagnosis, verb
from mqstore.cli.common.output import Output
from mqstore.errors import UsageError
from mqstore.report.written import converted_parts

To = Annotated[Path, option("--to", metavar="OUT", help="The directory to create; it must not exist, and appears only when complete.")]
Version = Annotated[
    int | None,
    option("--queue-version", metavar="1|2", min=1, help="The version to convert the queues to; by default the one that --for reads."),
]
Target = Annotated[
    str | None,
    option("--for", metavar="VERSION", help="The RabbitMQ version that will read OUT, for example 3.10 or 4.3."),
]
Queues = Annotated[list[str] | None, option("--queue", metavar="NAME", help="Convert only this queue; may be repeated.")]


def convert(
    out: Output,
    store: Store,
    to: To,
    target: Target = None,
    queue_version: Version = None,
    queue: Queues = None,
    vhost: Annotated[str | None, option("--vhost", metavar="NAME", help="The vhost of --queue; default: /.")] = None,
    entries: Annotated[
        int | None, option("--segment-entries", min=1, help="Entries per version 2 segment, if not 4096 on the node.")
    ] = None,
    drop_expired: Annotated[
        bool, typer.Option("--drop-expired", help="Leave out messages that a broker would drop at once as expired.")
    ] = False,
    at: Annotated[str | None, at_time("has expired")] = None,
    link: Annotated[
        bool, typer.Option("--link", help="Hard-link the message files instead of copying them; the old store must never be used again.")
    ] = False,
    threads: Annotated[int | None, option("--threads", min=1, help="Number of queues converted at the same time, in this process.")] = None,
    master: Master = None,
) -> int:
    """Convert a store's classic queues for another version of RabbitMQ, in a new directory that a broker can start from.

    --for 3.8 to 3.13 also rewrites messages as these versions store them, and refuses to convert if one cannot be. Order, sequence ids,
    properties and redelivered flags are kept. The store is not changed, and its metadata is not copied: the node that reads OUT must
    already have the queues. Replace the node's msg_stores with OUT while the node is stopped. Each priority level counts as a queue. Exit
    status 1 if anything is damaged or missing.
    """
    from mqstore.jobs.convert import convert as run
    from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT

    if isinstance(store, Path):
        refuse_rocketmq(store, "`mqstore rebuild STORE --to OUT --for VERSION` makes a store for another version of RocketMQ")
    if target is None and queue_version is None:
        raise UsageError("say which version of RabbitMQ will read the new directory, for example --for 4.3; or give --queue-version 1 or 2")
    if queue_version not in (1, 2, None):
        raise UsageError(f"there is no queue version {queue_version}; give --queue-version 1 or 2")
    if vhost is not None and not queue:
        raise UsageError("--vhost names the vhost of --queue; name the queues, or omit it to convert those of all vhosts")
    if at is not None and not drop_expired:
        raise UsageError("--at is the time for --drop-expired; give both")
    with out.progress("converting", "queues") as progress:
        given: dict[str, Any] = {
            "target": target,
            "now": None if not drop_expired else time.time_ns() // 1000 if at is None else at_microseconds(at),
            "queues": None if queue is None else [("/" if vhost is None else vhost, name) for name in queue],
            "entries_v2": entries or ENTRY_COUNT,
            "link": link,
            "progress": progress,
        }
        report = run(store, to, queue_version, master=master, threads=threads, **given)
    if out.is_text:
        out.show(converted_parts(report, f"Converted to version {report.version}", everything=out.settings.verbose))
    show_diagnosis(out, report.as_dict() | {"store": str(store)}, diagnosis_of(out, to, version=target))
    return 0 if report.ok else 1


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    verb(app, example="convert /backup/msg_stores --to /data/msg_stores --for 4.3")(convert)
