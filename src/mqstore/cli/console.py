"""`console`: a web console over stores."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.common.arguments import STORE_HELP, AtTime, ConsoleTls, at_microseconds, option, path
from mqstore.cli.common.command import verb
from mqstore.cli.common.output import Output
from mqstore.errors import UsageError
from mqstore.tls import tls_mode

if TYPE_CHECKING:
    from mqstore.console.settings import Settings

INTERRUPTED = 130

Stores = Annotated[list[Path], typer.Argument(metavar="STORE", help=STORE_HELP, show_default=False, parser=path)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """The options of `console`."""

    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Address of the console; port 0 picks a free port.")] = (
        "127.0.0.1:8082"
    )
    token: Annotated[
        str | None, option("--token", help="Token that visitors must give; generated if --listen is not a loopback address.")
    ] = None
    at: AtTime = None
    allow_writes: Annotated[
        bool,
        typer.Option("--allow-writes", help="Allow replaying messages to the targets of --replay-to; the stores shown stay read-only."),
    ] = False
    tls: Annotated[ConsoleTls | None, option("--tls", help="Default: enforcing if there is a --tls-cert.")] = None
    tls_cert: Annotated[str | None, option("--tls-cert", metavar="FILE", help="Serve https with this certificate, PEM.")] = None
    tls_key: Annotated[str | None, option("--tls-key", metavar="FILE", help="Its key, PEM; default: in the file of --tls-cert.")] = None
    tls_client_ca: Annotated[
        str | None, option("--tls-client-ca", metavar="FILE", help="Require of browsers a certificate that this CA signed, PEM.")
    ] = None
    replay_to: Annotated[
        list[str] | None,
        option(
            "--replay-to",
            metavar="TARGET",
            help="A target for replay: the directory of a RocketMQ store, or amqp://user:password@host:port/vhost.",
        ),
    ] = None


def console(out: Output, stores: Stores, options: ConsoleOptions) -> int:
    """Show stores in a browser until Ctrl-C: messages by topic, time, key and id, explained queries, damage maps, usage, lag.

    Works on stores of both brokers, live, stopped or copied; they are not changed. Pages work without JavaScript.
    """
    try:
        from mqstore.console.app import create_server
    except ImportError as error:
        raise UsageError(f"the console needs {error.name}; install it with: pip install 'mqstore[console]'") from None
    from mqstore.broker.runtime.address import bind_listener
    from mqstore.console.replay import targets_of

    settings = _settings(stores, options)
    targets_of(settings.targets, settings.places)
    for place in settings.places:
        if isinstance(place, Path) and not os.path.lexists(place):
            out.note(f"{place} does not exist yet; its page says so until it does")

    def ready(bound: str, number: int) -> None:
        name = f"[{bound}]" if ":" in bound else bound
        scheme = "http" if settings.tls_cert is None else "https"
        way = "" if settings.token is None else f"/enter?token={settings.token}"
        out.line(f"The console answers at {scheme}://{name}:{number}{way}", whole=True)
        out.note("Ctrl-C ends it")

    listener = bind_listener(f"[{settings.host}]:{settings.port}" if ":" in settings.host else f"{settings.host}:{settings.port}")
    if not settings.is_loopback and settings.tls_cert is None:
        out.note("the token and all pages cross the network in plain text; --tls-cert and --tls-key encrypt them")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    create_server(settings, ready).run(sockets=[listener])
    return INTERRUPTED  # nothing else ends it


def _settings(stores: list[Path], options: ConsoleOptions) -> Settings:
    """Return the settings; a token is made for an address that others reach, unless there is one. Raises UsageError."""
    from mqstore.console.app import new_token
    from mqstore.console.settings import Settings, address_of

    host, port = address_of(options.listen)
    loopback = Settings(tuple(stores), host, port, token="-").is_loopback
    files = (options.tls_cert, options.tls_key, options.tls_client_ca)
    if tls_mode(None if options.tls is None else options.tls.value, *files) == "disabled":
        files = (None, None, None)
    return Settings(
        tuple(stores),
        host,
        port,
        new_token() if options.token is None and not loopback else options.token,
        options.allow_writes,
        tuple(options.replay_to or ()),
        at_microseconds(options.at),
        *files,
    )


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="console /backup/store /var/lib/rabbitmq/mnesia/rabbit@a")(console)
