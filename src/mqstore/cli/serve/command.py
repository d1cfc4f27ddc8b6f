"""`serve`: a broker that RocketMQ clients talk to, over a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqstore.cli.common.arguments import BrokerVersion, Config, ViewName, option, verb
from mqstore.cli.common.output import Output
from mqstore.cli.serve.fast_start import ServeOptions, run

__all__ = ["register", "serve"]

Served = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        help="The directory that holds commitlog/; it is made if it is not there. With --read-only also an archive of one.",
        show_default=False,
        readable=False,
    ),
]


def serve(
    out: Output,
    store: Served,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where clients connect; port 0 takes a free one.")
    ] = "127.0.0.1:9876",
    read_only: Annotated[bool, typer.Option("--read-only", help="Change nothing: serve pulls and queries, refuse messages.")] = False,
    auto_create_topics: Annotated[
        bool, typer.Option("--auto-create-topics", help="Make a topic, of four queues, when a producer first sends to it.")
    ] = False,
    as_version: Annotated[
        BrokerVersion | None, option("--as-version", help="Which broker clients see; by default that of the store, 4.9.3 for a new one.")
    ] = None,
    address: Annotated[
        str | None, option("--address", metavar="IP:PORT", help="What clients are told to connect to, where it is not --listen.")
    ] = None,
    rewrite_store_host: Annotated[
        bool, typer.Option("--rewrite-store-host", help="Put this address into the messages that go out, so that their ids lead here.")
    ] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Acknowledge a message when it is on disk, as with flushDiskType=SYNC_FLUSH.")
    ] = False,
    view: Annotated[
        ViewName | None, option("--view", help="Of a store that is only read: as a broker would load it, or the files as they lie.")
    ] = None,
    metrics: Annotated[
        str | None,
        option("--metrics", metavar="HOST:PORT", help="Tell Prometheus, under /metrics, what the RocketMQ exporter would."),
    ] = None,
    config: Config = None,
) -> int:
    """Serve a store to RocketMQ clients: name server and broker at one address, until Ctrl-C.

    Clients take that address as their name server. For tests, replay and reading: no replication, no access control.

    A store that cannot be written, or that a broker would not start on, is only read: pulls and queries are served, messages refused.

    One line on standard output tells when clients may come; events go to standard error, a JSON object each (-q: none, -v: all).

    On Ctrl-C or SIGTERM requests in flight are answered, and the store is closed in order: a real broker can take it over.
    """
    return run(
        ServeOptions(
            str(store),
            listen=listen,
            read_only=read_only,
            auto_create_topics=auto_create_topics,
            as_version=None if as_version is None else as_version.value,
            address=address,
            rewrite_store_host=rewrite_store_host,
            sync=sync,
            view=None if view is None else view.value,
            metrics=metrics,
            config=None if config is None else str(config),
            output=out.format.value,
            quiet=out.settings.quiet,
            verbose=out.settings.verbose,
        )
    )


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="serve /data/store --auto-create-topics", panel="Serve")(serve)
