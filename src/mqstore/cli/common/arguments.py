"""What all commands share: the store argument, the options of every verb, and the decorator that makes a function one.

A command is a function of an `Output` and its own options that returns its exit status:

    @verb(app, example="topics /backup/store")
    def topics(out: Output, store: Store, view: View = "disk") -> int: ...

`-o`, `--no-color`, `-q`, `-v` and `--progress` are added to each, so that they may stand before the verb and behind it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.output import Format, Output, Settings
from mqstore.cli.common.store_kind import Face, accepted, answer, together
from mqstore.errors import UsageError

if TYPE_CHECKING:
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import View

__all__ = [
    "AsVersion",
    "BodyOption",
    "Broker",
    "Config",
    "GrepOption",
    "Master",
    "Shown",
    "Store",
    "ViewName",
    "ViewOption",
    "open_store",
    "open_view",
    "option",
    "verb",
]


class ViewName(StrEnum):
    """Which state of the store is meant."""

    DISK = "disk"
    RECOVERED = "recovered"


class Broker(StrEnum):
    """Whose rules recover a store."""

    FOUR = "4.9.3"
    FIVE = "5.3.3"


class Shown(StrEnum):
    """How a body is shown."""

    NONE = "none"
    SHA256 = "sha256"
    BASE64 = "base64"
    TEXT = "text"


def option(*names: str, help: str, metavar: str | None = None, min: int | None = None) -> Any:  # noqa: A002
    """An option without a default that would be worth showing. Paths are checked where they are opened, with a sentence."""
    return typer.Option(*names, help=help, metavar=metavar, min=min, show_default=False, readable=False)


OUTPUT_HELP = "text for a person; json: one document; jsonl, csv: one row a line."
QUIET_HELP = "Results and errors only."
VERBOSE_HELP = "Tell more: long lists in full, remarks, and the trace of a bug."
PROGRESS_HELP = "Tell the progress also where standard error is no terminal."
STORE_HELP = (
    "The store: the directory that holds commitlog/ or msg_stores/, its URL (s3://…), or a .tar, .tar.gz, .tar.xz, .tar.zst or .zip of one."
)
FS_HELP = "How a URL is reached: endpoint_url=…, key=…, secret=…; may be given more than once."


def path(text: str) -> Path:
    """The store argument: a path, or a URL, from which a path would take a slash."""
    from mqstore.files.location import as_location

    return as_location(text)  # type: ignore[return-value]


Store = Annotated[Path, typer.Argument(metavar="STORE", help=STORE_HELP, show_default=False, parser=path)]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", readable=False, help="The broker's own name=value file; overrides what is inferred from the files."
    ),
]
ViewOption = Annotated[
    ViewName,
    typer.Option("--view", help="disk: the files as they lie. recovered: what the broker would answer after loading this directory."),
]
AsVersion = Annotated[Broker | None, option("--as", help="Whose rules recover the store; by default those that the files suggest.")]
BodyOption = Annotated[Shown, typer.Option("--body", help="How bodies are shown.")]
GrepOption = Annotated[
    str | None,
    option("--grep", metavar="BYTES_REGEX", help="Only messages in whose decompressed body the pattern is found."),
]
Master = Annotated[str, typer.Option("--master", metavar="URL", help="Where Spark runs.")]

_GLOBAL = "Output"


def _common(short_output: bool, short_quiet: bool, reads_store: bool) -> list[inspect.Parameter]:
    """The options of every verb; a verb that needs -o or -q for itself keeps the long forms."""
    output = ("--output", "-o") if short_output else ("--output",)
    quiet = ("--quiet", "-q") if short_quiet else ("--quiet",)
    options: dict[str, tuple[Any, Any, Any]] = {
        "output_": (
            Format | None,
            typer.Option(*output, help=OUTPUT_HELP, rich_help_panel=_GLOBAL, show_default=False),
            None,
        ),
        "no_color_": (bool, typer.Option("--no-color", help="No colours.", rich_help_panel=_GLOBAL), False),
        "quiet_": (bool, typer.Option(*quiet, help=QUIET_HELP, rich_help_panel=_GLOBAL), False),
        "verbose_": (
            bool,
            typer.Option("--verbose", "-v", help=VERBOSE_HELP, rich_help_panel=_GLOBAL),
            False,
        ),
        "progress_": (
            bool,
            typer.Option("--progress", help=PROGRESS_HELP, rich_help_panel=_GLOBAL),
            False,
        ),
    }
    if reads_store:
        reached = typer.Option("--fs-option", metavar="NAME=VALUE", help=FS_HELP, rich_help_panel="Stores by URL", show_default=False)
        options = {"fs_option_": (list[str] | None, reached, None), **options}
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
        for name, (kind, option, default) in options.items()
    ]


def verb(
    app: typer.Typer,
    name: str | None = None,
    *,
    example: str,
    panel: str | None = None,
    hidden: bool = False,
    short_output: bool = True,
    short_quiet: bool = True,
    rabbitmq: Face | None = None,
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a function a command of the app. example: a command line without `mqstore`, shown at the end of the help.

    rabbitmq: the function that answers for a RabbitMQ store, or a sentence why none does.
    """

    def register(function: Callable[..., int]) -> Callable[..., int]:
        own = together(function, rabbitmq)
        common = _common(short_output, short_quiet, any(parameter.annotation == Store for parameter in own))
        context = inspect.Parameter("context_", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

        @functools.wraps(function)
        def command(context_: typer.Context, **given: Any) -> int:
            settings = context_.find_object(Settings) or Settings()
            chosen = settings.override(
                format=given.pop("output_"),
                no_color=given.pop("no_color_"),
                quiet=given.pop("quiet_"),
                verbose=given.pop("verbose_"),
                progress=given.pop("progress_"),
            )
            reached = given.pop("fs_option_", None)
            if reached:
                given["store"] = _reached(given["store"], reached)
            face = answer(function, rabbitmq, given)
            return face(Output(chosen), **accepted(face, given))

        parameters = [context, *own, *common]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(
            name,
            epilog=f"Example: mqstore {example}",
            rich_help_panel=panel,
            hidden=hidden,
            no_args_is_help=False,
        )(command)
        return function

    return register


def _reached(store: object, named: Sequence[str]) -> object:
    """The store argument with what --fs-option says of how to reach it. Raises UsageError."""
    from mqstore.files.location import Url

    if not isinstance(store, Url):
        raise UsageError(f"--fs-option tells how a URL is reached, and {store} is a path; leave it out")
    pairs = [option.partition("=") for option in named]
    if not all(name and sign for name, sign, _ in pairs):
        raise UsageError("--fs-option takes NAME=VALUE, such as endpoint_url=http://127.0.0.1:9000")
    return store.with_options({name: value for name, _, value in pairs})


def open_store(store: Path, config: Path | None) -> RocketMQStore:
    """Open the store argument of a command."""
    from mqstore.opening import open_rocketmq

    return open_rocketmq(store, config=config)


def open_view(out: Output, store: RocketMQStore, view: ViewName, as_version: Broker | None) -> View:
    """The view of an opened store; what a recovery gives up is noted."""
    if as_version is not None and view is ViewName.DISK:
        out.note("--as chooses whose rules recover the store; it has no effect on --view disk")
    found = store.view(view.value, as_=None if as_version is None else as_version.value)
    for note in getattr(found, "notes", ()):
        out.note(f"recovery as {getattr(found, 'version', '')}: {note}")
    return found
