"""The process of `serve`: the broker over a store until Ctrl-C, the line that says that it is ready, its log."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import resource
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from mqstore.broker.server import Broker


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `serve`."""

    store: str
    listen: str = "127.0.0.1:9876"
    read_only: bool = False
    auto_create_topics: bool = False
    as_version: str | None = None
    address: str | None = None
    rewrite_store_host: bool = False
    sync: bool = False
    view: str | None = None
    metrics: str | None = None
    acl: str | None = None
    tls: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    insecure_listen: bool = False
    config: str | None = None
    print_ready: bool = False
    output: str = "text"
    quiet: bool = False
    verbose: bool = False


def run(options: ServeOptions) -> int:
    """Serve until Ctrl-C or SIGTERM. Raises MqstoreError if the broker cannot start."""
    from mqstore.broker.runtime.settings import Settings
    from mqstore.broker.server import Broker
    from mqstore.errors import UsageError
    from mqstore.rocketmq.config.store_config import StoreConfig

    _log_to_stderr(options)
    _raise_descriptor_limit()
    named: dict[str, str] = {}
    if options.config is not None:
        from mqstore.rocketmq.config import broker_config

        named = broker_config.load_properties(Path(options.config))
        if not options.read_only:
            from mqstore.rocketmq.config.broker_paths import refuse_second_log

            refuse_second_log(broker_config.load(Path(options.config)), Path(options.store))
    settings = Settings().with_broker(named)
    settings = replace(
        settings,
        address=options.address,
        rewrite_store_host=options.rewrite_store_host,
        acl=options.acl,
        tls=options.tls,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        tls_client_ca=options.tls_client_ca,
        insecure_listen=options.insecure_listen,
    )
    if options.acl is None and named.get("aclEnable", "").strip().lower() == "true":
        raise UsageError(f"{options.config} has aclEnable=true; give the file of accounts with --acl, or set aclEnable=false")
    stored = StoreConfig().with_broker(named)
    if options.metrics is not None:
        settings = replace(settings, metrics=options.metrics)
    broker = Broker(
        options.store,
        listen=options.listen,
        read_only=options.read_only,
        view="recovered" if options.view == "recovered" else "disk" if options.view == "disk" else "auto",
        auto_create_topics=options.auto_create_topics,
        version=options.as_version,
        settings=settings,
        config=replace(stored, flush_disk_type="SYNC_FLUSH") if options.sync else stored,
    )
    import asyncio  # here, so that a help page does not load it

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(broker, options))
    return 0


async def _serve(broker: Broker, options: ServeOptions) -> None:
    import asyncio

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await broker.start()
    try:
        _print_ready(broker, options)
        gc.freeze()  # objects made at startup stay; exclude them from garbage collection
        await ended.wait()
    finally:
        await broker.stop()


def _print_ready(broker: Broker, options: ServeOptions) -> None:
    """Print the line that announces that clients can connect."""
    context = broker.context
    if options.print_ready:
        line = {
            "ready": True,
            "address": broker.address,
            "port": broker.port,
            "store": options.store,
            "version": context.profile.version,
            "read_only": not context.writable,
            "pid": os.getpid(),
        }
        print(json.dumps(line), flush=True)
        return
    ready = {
        "address": broker.address,
        "store": options.store,
        "version": context.profile.version,
        "writable": context.writable,
        "process": os.getpid(),
    }
    if options.output in ("json", "jsonl"):
        print(json.dumps(ready, indent=2 if options.output == "json" else None), flush=True)
    elif options.output == "csv":
        print("\n".join(["name,value", *(f'{name},"{value}"' for name, value in ready.items())]), flush=True)
    elif not options.quiet:
        what = "name server and broker" if context.writable else "name server and broker, read-only"
        place = f"{options.store} as RocketMQ {context.profile.version} on {broker.address}"
        print(f"Serving {place} ({what}); Ctrl-C ends it.", flush=True)


def _raise_descriptor_limit() -> None:
    """Allow as many file descriptors as the system does: each client takes one, and a shell often allows 1,024 only."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _log_to_stderr(options: ServeOptions) -> None:
    """Send log events to standard error."""
    from mqstore.broker.runtime.logs import LOGGER, JsonLogFormatter

    LOGGER.handlers.clear()
    LOGGER.propagate = False
    handler: logging.Handler = logging.NullHandler() if options.quiet else logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.CRITICAL if options.quiet else logging.DEBUG if options.verbose else logging.INFO)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop
