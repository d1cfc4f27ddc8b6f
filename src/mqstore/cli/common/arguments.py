"""What all commands share: the store argument, common options, and `verb`, which makes a function a command.

A command is a function that takes an `Output` and its options and returns the exit status. Options are single parameters, or an options
class (`option_classes`), which is what the RocketMQ and the RabbitMQ back end of a command share:

    verb(app, example="topics /backup/store", rabbitmq=rabbitmq_queues.topics)(topics)

`-o`, `--no-color`, `-q`, `-v`, `--progress`, `--wide`, `--columns` and `--escape-formulas` are added to each command, accepted before and
after its name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from mqstore.cli.common.option_classes import back_end_arguments, command_parameters
from mqstore.cli.common.output import CommonOptions, Format, Output
from mqstore.cli.common.store_kind import BackEnd, back_end_for
from mqstore.cli.common.time_range import join_ranges
from mqstore.errors import UsageError
from mqstore.table.formatting import parse_time

if TYPE_CHECKING:
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import View
    from mqstore.stores.rabbitmq import RabbitMQ
    from mqstore.stores.rocketmq import RocketMQ


class ViewName(StrEnum):
    """The state of a store that a command shows."""

    DISK = "disk"
    RECOVERED = "recovered"


class Tls(StrEnum):
    """Mode of TLS."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class BrokerVersion(StrEnum):
    """A RocketMQ version whose rules a command follows."""

    FOUR = "4.9.3"
    FIVE = "5.3.3"


class BodyDisplay(StrEnum):
    """How a command shows bodies."""

    NONE = "none"
    SHA256 = "sha256"
    BASE64 = "base64"
    TEXT = "text"


def option(*names: str, help: str, metavar: str | None = None, min: int | None = None) -> Any:  # noqa: A002
    """Declare an option whose default is not shown in the help. Paths are checked when they are opened, with a better message."""
    return typer.Option(*names, help=help, metavar=metavar, min=min, show_default=False, readable=False)


OUTPUT_HELP = "Output format. text: for people; json: one document; jsonl, csv: one row per line."
QUIET_HELP = "Print results and errors only."
VERBOSE_HELP = "Verbose: full lists, notes, and tracebacks."
PROGRESS_HELP = "Report progress even if standard error is not a terminal."
COLUMNS_HELP = "Only these columns of the tables, in this order, by their titles; of jsonl and csv, by the names of the fields."
WIDE_HELP = "Print tables in full, also beyond the width of the terminal."
FORMULAS_HELP = "csv: put ' before a text that a spreadsheet would take for a formula (=, +, -, @ at its beginning)."
STORE_HELP = (
    "The store: the directory that contains commitlog/ or msg_stores/, its URL (s3://…), or a .tar, .tar.gz, .tar.xz, .tar.zst or .zip "
    "archive of it."
)
FS_HELP = "How to reach a URL: endpoint_url=…, key=…, secret=…; may be repeated."


def path(text: str) -> Path:
    """Parse the store argument: a path, or a URL, which `Path` would rob of a slash."""
    from mqstore.files.location import as_location

    return as_location(text)  # type: ignore[return-value]


Store = Annotated[Path, typer.Argument(metavar="STORE", help=STORE_HELP, show_default=False, parser=path)]
Stores = Annotated[
    list[Path],
    typer.Argument(
        metavar="STORE",
        help=STORE_HELP + " For several, or a quoted pattern such as '/backup/*/store': one row each.",
        show_default=False,
        parser=path,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        readable=False,
        help="The broker's configuration file (name=value lines); overrides what is inferred from the files.",
    ),
]
ViewOption = Annotated[
    ViewName,
    typer.Option("--view", help="disk: the files as they are. recovered: the state a broker would have after loading this directory."),
]
AsVersion = Annotated[
    str | None,
    option(
        "--as",
        metavar="VERSION",
        help="The broker version whose recovery rules apply, 4.3.0 to 5.5.0; by default the one the files suggest.",
    ),
]
BodyOption = Annotated[BodyDisplay, typer.Option("--body", help="How to show bodies.")]
GrepOption = Annotated[
    str | None,
    option("--grep", metavar="BYTES_REGEX", help="Only messages whose decompressed body matches this pattern."),
]
Master = Annotated[
    str | None, option("--master", metavar="URL", help="Run on Spark, on this master; by default the size of the store decides.")
]
ReaderThreads = Annotated[int | None, option("--threads", min=1, help="Number of threads that read; default: one per core.")]
Splits = Annotated[int | None, option("--splits", min=1, help="Number of splits to read the log in; does not change the result.")]
Columns = Annotated[str | None, option("--columns", metavar="A,B,…", help="Only these columns of the message table.")]
AtTime = Annotated[
    str | None,
    option(
        "--at",
        "--now",
        metavar="TIME",
        help="RabbitMQ: the time at which to judge whether a message has expired: milliseconds, or ISO 8601.",
    ),
]
QueueNames = Annotated[
    Path | None,
    option(
        "--names",
        metavar="FILE",
        help="RabbitMQ: queue names, for directories that do not record theirs: lines `vhost<TAB>queue`, or exported definitions.",
    ),
]


class DamageMode(StrEnum):
    """How a job treats damage in the log."""

    PERMISSIVE = "PERMISSIVE"
    FAILFAST = "FAILFAST"


def at_microseconds(at: str | None) -> int | None:
    """Return the time given with --at, in microseconds since 1970. Raises UsageError."""
    return None if at is None else parse_time(at, "--at") * 1000


def column_names(text: str | None, flag: str) -> tuple[str, ...] | None:
    """Split a comma-separated list of column names. Raises UsageError if it names none."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError(f"{flag} does not name a column")
    return names


class _Command(TyperCommand):
    """A command that takes a range of times as two words, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, join_ranges(args))


_GLOBAL = "Output"


def _common_parameters(short_output: bool, short_quiet: bool, reads_store: bool, with_columns: bool) -> list[inspect.Parameter]:
    """Return the options of every command; one that uses -o or -q for itself keeps only the long form, one with --columns its own."""
    output = ("--output", "-o") if short_output else ("--output",)
    quiet = ("--quiet", "-q") if short_quiet else ("--quiet",)
    options: dict[str, tuple[Any, Any, Any]] = {
        "output_": (
            Format | None,
            typer.Option(*output, help=OUTPUT_HELP, rich_help_panel=_GLOBAL, show_default=False),
            None,
        ),
        "no_color_": (bool, typer.Option("--no-color", help="Do not use colours.", rich_help_panel=_GLOBAL), False),
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
        "wide_": (
            bool,
            typer.Option("--wide", help=WIDE_HELP, rich_help_panel=_GLOBAL),
            False,
        ),
        "escape_formulas_": (
            bool,
            typer.Option("--escape-formulas", help=FORMULAS_HELP, rich_help_panel=_GLOBAL),
            False,
        ),
    }
    if with_columns:
        chosen = typer.Option("--columns", metavar="A,B,…", help=COLUMNS_HELP, rich_help_panel=_GLOBAL, show_default=False)
        options["columns_"] = (str | None, chosen, None)
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
    rabbitmq: BackEnd | str | bool = False,
    several: BackEnd | None = None,
    is_pattern: Callable[[Path], bool] = lambda _: False,
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a function a command of the app.

    example: a command line without `mqstore`, shown at the end of the help.
    rabbitmq: True if the command answers for both kinds of store, the back end for RabbitMQ stores, with the same parameters, or the reason
    why there is none.
    several: the back end for a list of stores of either kind, with the same parameters; is_pattern: whether a path leads to it, too.
    """

    def register(function: Callable[..., int]) -> Callable[..., int]:
        own = command_parameters(function)
        if several is not None:
            own = [each.replace(annotation=Stores) if each.annotation == Store else each for each in own]
        reads_store = any(parameter.annotation in (Store, Stores) for parameter in own)
        common = _common_parameters(short_output, short_quiet, reads_store, all(parameter.name != "columns" for parameter in own))
        context = inspect.Parameter("context_", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

        @functools.wraps(function)
        def command(context_: typer.Context, **given: Any) -> int:
            settings = context_.find_object(CommonOptions) or CommonOptions()
            chosen = settings.override(
                format=given.pop("output_"),
                no_color=given.pop("no_color_"),
                quiet=given.pop("quiet_"),
                verbose=given.pop("verbose_"),
                progress=given.pop("progress_"),
                wide=given.pop("wide_"),
                columns=column_names(given.pop("columns_", None), "--columns") or (),
                escape_formulas=given.pop("escape_formulas_"),
            )
            if chosen.escape_formulas and chosen.format is not Format.CSV:
                raise UsageError("--escape-formulas is for cells of CSV; give it with -o csv")
            out = Output(chosen)
            reached = given.pop("fs_option_", None)
            if reached:
                stores = given["store"]
                given["store"] = (
                    _with_fs_options(stores, reached) if several is None else [_with_fs_options(each, reached) for each in stores]
                )
            if several is not None:
                if len(given["store"]) > 1 or is_pattern(given["store"][0]):
                    return _checked(out, several(out, **back_end_arguments(several, given)))
                given["store"] = given["store"][0]
            back_end = back_end_for(function, rabbitmq, own, given)
            return _checked(out, back_end(out, **back_end_arguments(function, given)))

        parameters = [context, *own, *common]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(
            name,
            cls=_Command,
            epilog=f"Example: mqstore {example}",
            rich_help_panel=panel,
            hidden=hidden,
            no_args_is_help=False,
        )(command)
        return function

    return register


def _checked(out: Output, status: int) -> int:
    """Return the status of a command whose tables had all columns of --columns. Raises UsageError."""
    out.check_columns()
    return status


def _with_fs_options(store: object, named: Sequence[str]) -> object:
    """Return the store argument with the options of --fs-option. Raises UsageError."""
    from mqstore.files.location import Url

    if not isinstance(store, Url):
        raise UsageError(f"--fs-option applies to URLs, and {store} is a path; leave it out")
    pairs = [option.partition("=") for option in named]
    if not all(name and sign for name, sign, _ in pairs):
        raise UsageError("--fs-option takes NAME=VALUE, such as endpoint_url=http://127.0.0.1:9000")
    return store.with_options({name: value for name, _, value in pairs})


def open_store(store: Path, config: Path | None) -> RocketMQ:
    """Open the store argument of a command."""
    from mqstore.stores import open_rocketmq

    return open_rocketmq(store, config=config)


def open_either(
    store: Path, *, config: Path | None = None, names: Path | None = None, now: int | None = None, careful: bool = False
) -> RocketMQ | RabbitMQ:
    """Open the store argument of a command that answers for both kinds. config: RocketMQ; the others: RabbitMQ."""
    from mqstore.rabbitmq.definitions.document import read_queue_names
    from mqstore.stores import open_store as open_any

    return open_any(store, config=config, names=() if names is None else tuple(read_queue_names(names)), now=now, careful=careful)


def recovered_as(view: View) -> str:
    """Return the version of the broker whose recovery a view shows."""
    of = getattr(view, "profile", None)
    return "" if of is None else str(of.version)


def open_view(out: Output, store: RocketMQStore, view: ViewName, as_version: str | None) -> View:
    """Return a view of an open store; print what a recovery discards as notes."""
    from mqstore.rocketmq.format.profile import profile

    if as_version is not None:
        profile(as_version)
    if as_version is not None and view is ViewName.DISK:
        out.note("--as chooses whose rules recover the store; it has no effect on --view disk")
    if view is ViewName.DISK and not store.log_only and (unread := store.unread_queues) is not None:
        out.note(f"{store.unread_sentence('consume queues', unread)}; --view recovered derives them from the log")
    found = store.view(view.value, as_=as_version)
    for note in getattr(found, "notes", ()):
        out.note(f"recovery as {recovered_as(found)}: {note}")
    return found
