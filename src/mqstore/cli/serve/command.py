"""`serve`: a broker for RocketMQ clients over a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqstore.cli.common.arguments import BrokerVersion, Config, Tls, ViewName, option
from mqstore.cli.common.command import verb
from mqstore.cli.common.output import Output
from mqstore.cli.serve.running import ServeOptions, run

Served = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        help="The directory that contains commitlog/; created if it does not exist. With --read-only also an archive.",
        show_default=False,
        readable=False,
    ),
]


def serve(
    out: Output,
    store: Served,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address for clients; port 0 picks a free port.")
    ] = "127.0.0.1:9876",
    read_only: Annotated[bool, typer.Option("--read-only", help="Serve pulls and queries, refuse messages, change nothing.")] = False,
    auto_create_topics: Annotated[
        bool, typer.Option("--auto-create-topics", help="Create a topic with four queues when a producer first sends to it.")
    ] = False,
    as_version: Annotated[
        BrokerVersion | None,
        option("--for", "--as-version", help="The broker version that clients see; default: that of the store, 4.9.3 for a new one."),
    ] = None,
    address: Annotated[
        str | None, option("--address", metavar="IP:PORT", help="The address advertised to clients, if it is not --listen.")
    ] = None,
    rewrite_store_host: Annotated[
        bool, typer.Option("--rewrite-store-host", help="Put this broker's address into outgoing messages, so that their ids refer to it.")
    ] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Acknowledge a message only when it is on disk, as with flushDiskType=SYNC_FLUSH.")
    ] = False,
    view: Annotated[
        ViewName | None, option("--view", help="For a read-only store: as a broker would load it, or the files as they are.")
    ] = None,
    metrics: Annotated[
        str | None,
        option("--metrics", metavar="HOST:PORT", help="Serve the metrics of the RocketMQ exporter to Prometheus, under /metrics."),
    ] = None,
    acl: Annotated[
        str | None, option("--acl", metavar="FILE", help="Admit only the accounts of this plain_acl.yml; read again when it changes.")
    ] = None,
    tls: Annotated[
        Tls | None, option("--tls", help="TLS only, or both TLS and plain text; default: enforcing if there is a --tls-cert.")
    ] = None,
    tls_cert: Annotated[str | None, option("--tls-cert", metavar="FILE", help="Certificate of this server, PEM.")] = None,
    tls_key: Annotated[str | None, option("--tls-key", metavar="FILE", help="Its key, PEM; default: in the file of --tls-cert.")] = None,
    tls_client_ca: Annotated[
        str | None, option("--tls-client-ca", metavar="FILE", help="Require of TLS clients a certificate that this CA signed, PEM.")
    ] = None,
    insecure_listen: Annotated[
        bool, typer.Option("--insecure-listen", help="Allow listening beyond loopback without --acl and without enforced TLS.")
    ] = False,
    config: Config = None,
    print_ready: Annotated[
        bool,
        typer.Option("--print-ready", help="Print one line of JSON, and nothing else, on standard output when clients can connect."),
    ] = False,
) -> int:
    """Serve a store to RocketMQ clients: name server and broker at one address, until Ctrl-C.

    Clients use that address as their name server. For tests, replay and reading: there is no replication.

    A store that cannot be written, or that a broker would not start on, is served read-only: pulls and queries, but no messages.

    One line on standard output announces that clients can connect; events go to standard error as JSON lines (-q: none, -v: all).

    With --print-ready that line is JSON, whatever -o and -q say; it has the address and, with --listen HOST:0, the port that was chosen.

    On Ctrl-C or SIGTERM, requests in progress are answered and the store is closed cleanly; a real broker can then use it.
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
            acl=acl,
            tls=None if tls is None else tls.value,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            insecure_listen=insecure_listen,
            config=None if config is None else str(config),
            print_ready=print_ready,
            output=out.format.value,
            quiet=out.settings.quiet,
            verbose=out.settings.verbose,
        )
    )


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="serve /data/store --auto-create-topics")(serve)
