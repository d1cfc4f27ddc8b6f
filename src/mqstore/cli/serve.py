"""`serve`: a broker for RocketMQ clients over a store, until Ctrl-C."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.common.arguments import BrokerVersion, CommonOptions, Config, Format, Tls, ViewName, option
from mqstore.cli.common.command import verb
from mqstore.cli.common.output import Output
from mqstore.errors import UsageError

if TYPE_CHECKING:
    import asyncio

    from mqstore.broker.server import Broker

Served = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        help="The directory that contains commitlog/; created if it does not exist. With --read-only also an archive.",
        show_default=False,
        readable=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `serve`."""

    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Address for clients; port 0 picks a free port.")] = (
        "127.0.0.1:9876"
    )
    read_only: Annotated[bool, typer.Option("--read-only", help="Serve pulls and queries, refuse messages, change nothing.")] = False
    auto_create_topics: Annotated[
        bool, typer.Option("--auto-create-topics", help="Create a topic with four queues when a producer first sends to it.")
    ] = False
    as_version: Annotated[
        BrokerVersion | None,
        option("--for", "--as-version", help="The broker version that clients see; default: that of the store, 4.9.3 for a new one."),
    ] = None
    address: Annotated[
        str | None, option("--address", metavar="IP:PORT", help="The address advertised to clients, if it is not --listen.")
    ] = None
    rewrite_store_host: Annotated[
        bool, typer.Option("--rewrite-store-host", help="Put this broker's address into outgoing messages, so that their ids refer to it.")
    ] = False
    sync: Annotated[
        bool, typer.Option("--sync", help="Acknowledge a message only when it is on disk, as with flushDiskType=SYNC_FLUSH.")
    ] = False
    view: Annotated[
        ViewName | None, option("--view", help="For a read-only store: as a broker would load it, or the files as they are.")
    ] = None
    metrics: Annotated[
        str | None,
        option("--metrics", metavar="HOST:PORT", help="Serve the metrics of the RocketMQ exporter to Prometheus, under /metrics."),
    ] = None
    acl: Annotated[
        str | None, option("--acl", metavar="FILE", help="Admit only the accounts of this plain_acl.yml; read again when it changes.")
    ] = None
    tls: Annotated[
        Tls | None, option("--tls", help="TLS only, or both TLS and plain text; default: enforcing if there is a --tls-cert.")
    ] = None
    tls_cert: Annotated[str | None, option("--tls-cert", metavar="FILE", help="Certificate of this server, PEM.")] = None
    tls_key: Annotated[str | None, option("--tls-key", metavar="FILE", help="Its key, PEM; default: in the file of --tls-cert.")] = None
    tls_client_ca: Annotated[
        str | None, option("--tls-client-ca", metavar="FILE", help="Require of TLS clients a certificate that this CA signed, PEM.")
    ] = None
    insecure_listen: Annotated[
        bool, typer.Option("--insecure-listen", help="Allow listening beyond loopback without --acl and without enforced TLS.")
    ] = False
    config: Config = None
    print_ready: Annotated[
        bool,
        typer.Option("--print-ready", help="Print one line of JSON, and nothing else, on standard output when clients can connect."),
    ] = False


def serve(out: Output, store: Served, options: ServeOptions) -> int:
    """Serve a store to RocketMQ clients: name server and broker at one address, until Ctrl-C.

    Clients use that address as their name server. For tests, replay and reading: there is no replication.

    A store that cannot be written, or that a broker would not start on, is served read-only: pulls and queries, but no messages.

    One line on standard output announces that clients can connect; events go to standard error as JSON lines (-q: none, -v: all).

    With --print-ready that line is JSON, whatever -o and -q say; it has the address and, with --listen HOST:0, the port that was chosen.

    On Ctrl-C or SIGTERM, requests in progress are answered and the store is closed cleanly; a real broker can then use it.
    """
    import asyncio  # here, so that a help page does not load it

    _log_to_stderr(out.settings)
    # Allow as many file descriptors as the system does: each client takes one, and a shell often allows 1,024 only.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    broker = _broker(store, options)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(broker, lambda: _print_ready(broker, store, out.settings, as_json=options.print_ready)))
    return 0


def _broker(store: Path, options: ServeOptions) -> Broker:
    """Return the broker that is asked for, not yet started. Raises MqstoreError if it cannot be."""
    from mqstore.broker.runtime.settings import Settings
    from mqstore.broker.server import Broker
    from mqstore.rocketmq.config import broker_config
    from mqstore.rocketmq.config.broker_paths import refuse_second_log
    from mqstore.rocketmq.config.store_config import StoreConfig

    named: dict[str, str] = {}
    if options.config is not None:
        named = broker_config.load_properties(options.config)
        if not options.read_only:
            refuse_second_log(broker_config.load(options.config), store)
    settings = replace(
        Settings(metrics=options.metrics).with_broker(named),
        address=options.address,
        rewrite_store_host=options.rewrite_store_host,
        acl=options.acl,
        tls=None if options.tls is None else options.tls.value,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        tls_client_ca=options.tls_client_ca,
        insecure_listen=options.insecure_listen,
    )
    if options.acl is None and named.get("aclEnable", "").strip().lower() == "true":
        raise UsageError(f"{options.config} has aclEnable=true; give the file of accounts with --acl, or set aclEnable=false")
    stored = StoreConfig().with_broker(named)
    return Broker(
        str(store),
        listen=options.listen,
        read_only=options.read_only,
        view="auto" if options.view is None else "recovered" if options.view is ViewName.RECOVERED else "disk",
        auto_create_topics=options.auto_create_topics,
        version=None if options.as_version is None else options.as_version.value,
        settings=settings,
        config=replace(stored, flush_disk_type="SYNC_FLUSH") if options.sync else stored,
    )


async def _serve(broker: Broker, ready: Callable[[], None]) -> None:
    import asyncio

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await broker.start()
    try:
        ready()
        gc.freeze()  # objects made at startup stay; exclude them from garbage collection
        await ended.wait()
    finally:
        await broker.stop()


def _print_ready(broker: Broker, store: Path, settings: CommonOptions, *, as_json: bool) -> None:
    """Print the line that announces that clients can connect. as_json: the one of --print-ready."""
    version, writable = broker.context.profile.version, broker.context.writable
    what = {"store": str(store), "version": version}
    ready = {"address": broker.address, **what, "writable": writable, "process": os.getpid()}
    if as_json:
        bound = {"ready": True, "address": broker.address, "port": broker.port}
        line = json.dumps({**bound, **what, "read_only": not writable, "pid": os.getpid()})
    elif settings.format in (Format.JSON, Format.JSONL):
        line = json.dumps(ready, indent=2 if settings.format is Format.JSON else None)
    elif settings.format is Format.CSV:
        line = "\n".join(["name,value", *(f'{name},"{value}"' for name, value in ready.items())])
    elif settings.quiet:
        return
    else:
        role = "name server and broker" if writable else "name server and broker, read-only"
        line = f"Serving {store} as RocketMQ {version} on {broker.address} ({role}); Ctrl-C ends it."
    print(line, flush=True)


def _log_to_stderr(settings: CommonOptions) -> None:
    """Send log events to standard error."""
    from mqstore.broker.runtime.logs import LOGGER, JsonLogFormatter

    LOGGER.handlers.clear()
    LOGGER.propagate = False
    handler: logging.Handler = logging.NullHandler() if settings.quiet else logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.CRITICAL if settings.quiet else logging.DEBUG if settings.verbose else logging.INFO)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="serve /data/store --auto-create-topics")(serve)
