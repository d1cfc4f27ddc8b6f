"""`console`: a web console over stores."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from mqstore.cli.common.arguments import STORE_HELP, AtTime, at_microseconds, option, path, verb
from mqstore.cli.common.output import Output
from mqstore.errors import CannotOpenError, UsageError
from mqstore.table.formatting import command

__all__ = ["console", "register"]

INTERRUPTED = 130

Stores = Annotated[list[Path], typer.Argument(metavar="STORE", help=STORE_HELP, show_default=False, parser=path)]


def console(
    out: Output,
    stores: Stores,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the pages are; port 0 takes a free one.")
    ] = "127.0.0.1:8082",
    token: Annotated[
        str | None, option("--token", help="What a visitor must give. If there is none and --listen is no loopback address, one is made.")
    ] = None,
    at: AtTime = None,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Let messages be replayed into what --replay-to names; the stores shown are only read.")
    ] = False,
    replay_to: Annotated[
        list[str] | None,
        option("--replay-to", metavar="TARGET", help="A RocketMQ store's directory, or amqp://user:password@host:port/vhost."),
    ] = None,
) -> int:
    """Show stores in a browser, until Ctrl-C: messages by topic and time, key and id, why a query answers so, damage maps, usage, lag.

    Live, dead and copied stores of both brokers; nothing in them is changed. Pages can be read without JavaScript.
    """
    try:
        from mqstore.console.app import create_server, new_token
    except ImportError as error:
        raise UsageError(f"the console needs {error.name}; install it with: pip install 'mqstore[console]'") from None
    from mqstore.console.replay import targets_of
    from mqstore.console.settings import Settings, address_of

    host, port = address_of(listen)
    loopback = Settings(tuple(stores), host, port, token="-").is_loopback
    if token is None and not loopback:
        token = new_token()
    settings = Settings(tuple(stores), host, port, token, allow_writes, tuple(replay_to or ()), at_microseconds(at))
    targets_of(settings.targets, settings.places)
    for place in settings.places:
        if isinstance(place, Path) and not os.path.lexists(place):
            out.note(f"there is nothing at {place} yet; its page tells so until there is")

    def ready(bound: str, number: int) -> None:
        name = f"[{bound}]" if ":" in bound else bound
        way = "" if settings.token is None else f"/enter?token={settings.token}"
        out.line(f"The console answers at http://{name}:{number}{way}", whole=True)
        out.note("Ctrl-C ends it")

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    try:
        create_server(settings, ready).run()
    except (OSError, SystemExit) as error:
        # uvicorn has told why it cannot listen, and leaves by an exit
        raise CannotOpenError(f"{command(listen)} cannot be listened on ({error}); give another address with --listen") from None
    return INTERRUPTED  # nothing else ends it


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="console /backup/store /var/lib/rabbitmq/mnesia/rabbit@a", panel="Serve")(console)
