"""Arguments and options that several commands take, and the parsing of their values.

>>> join_ranges(["messages", "store", "--between", "3h", "2h"])
['messages', 'store', '--between', '3h..2h']
>>> time_range("5..9"), time_range("5,9")
((5, 9), (5, 9))
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

import typer

from mqstore.errors import UnsupportedError, UsageError

_NOT_IN_HELP = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}  # what typer.rich_utils imports of each


def import_help() -> None:
    """Import what renders help, without Rich's Markdown and tracebacks, and Pygments with them: a third of its time, for nothing here."""
    if "typer.rich_utils" in sys.modules:
        return
    left_out = {name: attribute for name, attribute in _NOT_IN_HELP.items() if name not in sys.modules}
    for name, attribute in left_out.items():
        sys.modules[name] = ModuleType(name)
        setattr(sys.modules[name], attribute, type(attribute, (), {}))
    try:
        with contextlib.suppress(ImportError):  # a version that takes more of them: it is imported whole when it renders
            import_module("typer.rich_utils")
    finally:
        for name in left_out:
            del sys.modules[name]


class Format(StrEnum):
    """The format of the results."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """The options that every command has."""

    format: Format = Format.TEXT
    colour: bool = True
    quiet: bool = False
    verbose: bool = False
    progress: bool = False
    wide: bool = False
    columns: tuple[str, ...] = ()
    escape_formulas: bool = False

    def override(self, *, format: Format | None, no_color: bool, columns: tuple[str, ...], **switches: bool) -> CommonOptions:  # noqa: A002
        """Return these settings with those given after the command's name."""
        return replace(
            self,
            format=format or self.format,
            colour=self.colour and not no_color,
            columns=columns or self.columns,
            **{name: getattr(self, name) or given for name, given in switches.items()},
        )


class ViewName(StrEnum):
    """The state of a store that a command shows."""

    DISK = "disk"
    RECOVERED = "recovered"


class Tls(StrEnum):
    """Mode of TLS."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ConsoleTls(StrEnum):
    """Mode of TLS of a console, which has one port."""

    DISABLED = "disabled"
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


def at_time(judged: str) -> Any:
    """Declare `--at`. judged: what of a message."""
    what = f"The time at which to judge whether a message {judged}: milliseconds, or ISO 8601."
    return option("--at", "--now", metavar="TIME", help=what)


OUTPUT_HELP = "Output format. text: for people; json: one document; jsonl, csv: one row per line."
QUIET_HELP = "Print results and errors only."
VERBOSE_HELP = "Verbose: full lists, notes, and tracebacks."
PROGRESS_HELP = "Report progress even if standard error is not a terminal."
COLUMNS_HELP = "Only these columns of the tables, in this order, by their titles; of jsonl and csv, by the names of the fields."
WIDE_HELP = "Print tables in full, also beyond the width of the terminal."
FORMULAS_HELP = "csv: put ' before a text that a spreadsheet would take for a formula (=, +, -, @ at its beginning)."
STORE_HELP = (
    "The store: the data directory of a broker or node, with commitlog/, msg_stores/, quorum/, stream/ or what is left beside them, or "
    "the directory above it; its URL (s3://…); or a .tar, .tar.gz, .tar.xz, .tar.zst or .zip archive of it; - reads an archive from "
    "standard input."
)
FS_HELP = "How to reach a URL: endpoint_url=…, key=…, secret=…; may be repeated."


def path(text: str) -> Path:
    """Parse the store argument: a path, a URL, which `Path` would rob of a slash, or `-`. Raises UsageError, CannotOpenError."""
    if text == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("`-` reads an archive of a store from standard input: ssh HOST tar -c -C /data store | mqstore inspect -")
        from mqstore.files.archive import spooled

        return spooled(sys.stdin.buffer)
    from mqstore.files.location import as_location

    return as_location(text)  # type: ignore[return-value]


def local_path(text: str) -> Path:
    """Parse the argument of a store that is repaired. Raises UnsupportedError for what is not a path, before anything is read."""
    from mqstore.files.location import as_location

    location = as_location(text)
    if text == "-" or not isinstance(location, Path):
        raise UnsupportedError(f"{text} is not a directory: unpack or copy the store first, and repair that")
    return location


Store = Annotated[Path, typer.Argument(metavar="STORE", help=STORE_HELP, show_default=False, parser=path)]
StoreInPlace = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        help="The store, which --apply and --undo change: the data directory of a broker or node, with commitlog/, msg_stores/, quorum/ "
        "or stream/, or the directory above it; not a URL, not an archive.",
        show_default=False,
        parser=local_path,
    ),
]
Stores = Annotated[
    list[Path],
    typer.Argument(
        metavar="STORE",
        help=STORE_HELP + " For several, or a quoted pattern such as '/backup/*/store': one row each.",
        show_default=False,
        parser=path,
    ),
]
AssumeDefaults = Annotated[
    bool,
    typer.Option(
        "--assume-defaults",
        help="Write files of the default size where neither the files nor a configuration shows it (RocketMQ).",
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
        "--for",
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
AtTime = Annotated[str | None, at_time("has expired (RabbitMQ), or is in hand (RocketMQ)")]
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
    from mqstore.table.formatting import parse_time

    return None if at is None else parse_time(at, "--at") * 1000


def column_names(text: str | None, flag: str) -> tuple[str, ...] | None:
    """Split a comma-separated list of column names. Raises UsageError if it names none."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError(f"{flag} does not name a column")
    return names


class _PlainValues:
    """Takes the values that need no check as they are. Typer builds a validator for each option, given or not, and imports pydantic."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter as a command gets it."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if kind is bool and isinstance(value, bool):
            return value
        kind = get_args(kind)[0] if get_origin(kind) is list else kind
        parse = info.parser or _plain_parser(kind, info)
        if parse is not None:
            try:
                return [parse(each) for each in value] if several else parse(value)
            except ValueError:
                pass  # Typer says what is wrong
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _plain_parser(kind: Any, info: Any) -> Callable[[str], Any] | None:
    """Return what makes a value of that kind from its text, or raises ValueError; None if Typer checks more than that."""
    if kind is int and info.max is None:
        return partial(_at_least, info.min)
    if kind is Path and not (info.exists or info.readable or info.writable or info.resolve_path):
        return Path
    choice = isinstance(kind, type) and issubclass(kind, StrEnum)
    return kind if choice or kind is str else None


def _at_least(least: int | None, text: str) -> int:
    """Return the number that a text is. Raises ValueError for any other text, and for a number below `least`."""
    number = int(text)
    if least is not None and number < least:
        raise ValueError
    return number


def prepared(parameters: Sequence[Any]) -> list[Any]:
    """Return the parameters of a command, light to read, and such that the help names values instead of types of Python."""
    for each in parameters:
        if each.param_type_name == "argument":
            each.display_type_rich = lambda ctx: None
            name = each.display_name_raw + ("..." if each.nargs != 1 else "")
            usage = name if each.required else f"[{name}]"
            each._usage_display_name = lambda usage=usage: usage
        else:
            each._get_number_range_help_str = lambda: None
            if each.metavar is None:
                each.metavar = _value_name(each)
        if getattr(each, "_runtime_param", True) is None:
            each._runtime_param = _PlainValues()
    return list(parameters)


def _value_name(parameter: Any) -> str:
    """Return what the help shows after an option: nothing after a switch, the choices, N for a number, else the end of its name."""
    if parameter.is_flag:
        return ""
    kind = parameter.type_descriptor
    if kind.is_choice and not kind.is_list:
        return "|".join(str(choice) for choice in kind.choices)
    if kind.is_ranged:
        return "N"
    longest: str = max(parameter.opts, key=len)
    return longest.rpartition("-")[2].upper()


def join_ranges(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with those of `--between FROM TO` as one: `--between FROM..TO`."""
    joined = list(words)
    for number, word in enumerate(words):
        if word == "--between" and [_is_time(each) for each in words[number + 1 : number + 3]] == [True, True]:
            joined[number + 1 : number + 3] = ["..".join(words[number + 1 : number + 3])]
            break
    return joined


def time_range(text: str) -> tuple[int, int]:
    """Parse FROM..TO or FROM,TO. Raises UsageError."""
    from mqstore.table.formatting import parse_time

    begin, mark, end = text.partition("..")
    if not mark:
        begin, mark, end = text.partition(",")
    if not begin.strip() or not end.strip():
        raise UsageError(
            f"--between {text!r} does not give two times; write --between FROM..TO or --between FROM TO, such as 3h..2h or "
            "2024-05-01..2024-05-02"
        )
    return parse_time(begin, "--between"), parse_time(end, "--between")


def _is_time(text: str) -> bool:
    from mqstore.table.formatting import parse_time

    try:
        parse_time(text, "--between")
    except UsageError:
        return False
    return True
