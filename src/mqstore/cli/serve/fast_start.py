"""The body of `serve`, without the machinery of the command line, whose import would delay the start of a broker.

`parse_serve_options` reads the command lines that it knows word for word. All others, those with mistakes and `--help` among them, are
left to the full parser.

    >>> parse_serve_options(["--listen", "127.0.0.1:0", "store", "--read-only"])
    ServeOptions(store='store', listen='127.0.0.1:0', read_only=True)
    >>> parse_serve_options(["store", "--help"]) is None
    True
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from mqstore.broker.server import Broker

FORMATS = ("text", "json", "jsonl", "csv")
VERSIONS = ("4.9.3", "5.3.3")
VIEWS = ("recovered", "disk")
TLS_MODES = ("disabled", "permissive", "enforcing")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `serve`; on the command line they have the same names, with dashes."""

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

    def __repr__(self) -> str:
        given = [f"{each.name}={value!r}" for each in fields(self) if (value := getattr(self, each.name)) != each.default]
        return f"ServeOptions({', '.join(given)})"


_SHORT = {"-o": "--output", "-q": "--quiet", "-v": "--verbose"}
_CHOICES = {"output": FORMATS, "as_version": VERSIONS, "view": VIEWS, "tls": TLS_MODES}


def parse_serve_options(arguments: Sequence[str]) -> ServeOptions | None:
    """Parse the words after `serve`; return None if they need the full parser."""
    known = {f"--{each.name.replace('_', '-')}": each for each in fields(ServeOptions) if each.name != "store"}
    given: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        name, sign, value = word.partition("=")
        found = known.get(_SHORT.get(name, name))
        if found is None:
            if word.startswith("-") or "store" in given or not word:
                return None
            given["store"] = word
            continue
        if found.type == "bool":
            if sign:
                return None
            given[found.name] = True
            continue
        text = value if sign else next(words, None)
        if text is None or text.startswith("-") or text not in _CHOICES.get(found.name, (text,)):
            return None
        given[found.name] = text
    return ServeOptions(**given) if "store" in given else None


def run(options: ServeOptions) -> int:
    """Serve until Ctrl-C or SIGTERM. Raises MqstoreError if the broker cannot start."""
    # no matrices are multiplied here; numpy imports faster if it does not start threads for that
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
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
