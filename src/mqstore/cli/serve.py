"""`serve`: a broker that RocketMQ clients talk to, over a store."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.options import Broker as Version
from mqstore.cli.options import Config, ViewName, option, verb
from mqstore.cli.output import Format, Output

if TYPE_CHECKING:
    from mqstore.broker.server import Broker

__all__ = ["register", "serve"]

ServedStore = Annotated[
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
    store: ServedStore,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where clients connect; port 0: any.")] = "127.0.0.1:9876",
    read_only: Annotated[bool, typer.Option("--read-only", help="Change nothing: pulls and queries are served, writes refused.")] = False,
    auto_create_topics: Annotated[
        bool, typer.Option("--auto-create-topics", help="Make a topic when a producer first sends to it.")
    ] = False,
    as_version: Annotated[
        Version | None, option("--as-version", help="Which broker clients see; by default that of the store, 4.9.3 for a new one.")
    ] = None,
    address: Annotated[
        str | None, option("--address", metavar="IP:PORT", help="What clients are told to connect to, where it is not --listen.")
    ] = None,
    rewrite_store_host: Annotated[
        bool, typer.Option("--rewrite-store-host", help="Put this address into the messages that go out, so that their ids lead here.")
    ] = False,
    sync: Annotated[bool, typer.Option("--sync", help="As a broker with SYNC_FLUSH: wait for the disk with each message.")] = False,
    view: Annotated[
        ViewName | None, option("--view", help="Of a store that is only read: as a broker would load it, or the files as they lie.")
    ] = None,
    config: Config = None,
) -> int:
    """Serve a store to RocketMQ clients: name server and broker at one address, until Ctrl-C.

    For tests, replay and reading: there is no replication and no access control. A store that cannot be written, or that a broker would not
    start on, is served for pulls and queries. One line on standard output tells when clients may come; events go to standard error,
    a JSON object each (-q: none, -v: all). On Ctrl-C or SIGTERM requests in flight are answered and the store is closed in order.
    """
    from dataclasses import replace

    from mqstore.broker.server import Broker
    from mqstore.broker.settings import Settings
    from mqstore.rocketmq import brokerconfig
    from mqstore.rocketmq.storeconfig import StoreConfig

    _log_lines(out)
    named = {} if config is None else brokerconfig.load_properties(config)
    settings = replace(Settings().with_broker(named), address=address, rewrite_store_host=rewrite_store_host)
    stored = StoreConfig().with_broker(named)
    broker = Broker(
        store,
        listen=listen,
        read_only=read_only,
        view="auto" if view is None else "recovered" if view is ViewName.RECOVERED else "disk",
        auto_create_topics=auto_create_topics,
        version=None if as_version is None else as_version.value,
        settings=settings,
        config=replace(stored, flush_disk_type="SYNC_FLUSH") if sync else stored,
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(out, broker, store))
    return 0


async def _run(out: Output, broker: Broker, store: Path) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await broker.start()
    try:
        _tell(out, broker, store)
        gc.freeze()  # what the start made stays; no collection need look at it again
        await ended.wait()
    finally:
        await broker.stop()


def _tell(out: Output, broker: Broker, store: Path) -> None:
    """The one line that says that clients may come."""
    context = broker.context
    ready = {
        "address": broker.address,
        "store": str(store),
        "version": context.profile.version,
        "writable": context.writable,
        "process": os.getpid(),
    }
    if out.format is Format.JSON or out.format is Format.JSONL:
        out.document(ready)
    elif out.format is Format.CSV:
        out.pairs(ready)
    elif not out.settings.quiet:
        how = "" if context.writable else ", read-only"
        text = f"Serving {store}{how} as RocketMQ {context.profile.version} on {broker.address} (name server and broker); Ctrl-C ends it."
        out.write(text + "\n")
    sys.stdout.flush()


def _log_lines(out: Output) -> None:
    """Let events go to standard error."""
    from mqstore.broker.logs import LOGGER, Lines

    LOGGER.handlers.clear()
    LOGGER.propagate = False
    if out.settings.quiet:
        LOGGER.addHandler(logging.NullHandler())
        LOGGER.setLevel(logging.CRITICAL)
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG if out.settings.verbose else logging.INFO)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="serve /data/store --auto-create-topics", panel="Serve")(serve)
