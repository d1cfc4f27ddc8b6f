"""Arguments and options that several commands take, and the parsing of their values.

>>> join_ranges(["messages", "store", "--between", "3h", "2h"])
['messages', 'store', '--between', '3h..2h']
>>> time_range("5..9"), time_range("5,9")
((5, 9), (5, 9))
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mqstore.errors import UsageError
from mqstore.table.formatting import parse_time


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


def join_ranges(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with those of `--between FROM TO` as one: `--between FROM..TO`."""
    joined = list(words)
    for place, word in enumerate(words):
        if word == "--between" and [_is_time(each) for each in words[place + 1 : place + 3]] == [True, True]:
            joined[place + 1 : place + 3] = ["..".join(words[place + 1 : place + 3])]
            break
    return joined


def time_range(text: str) -> tuple[int, int]:
    """Parse FROM..TO or FROM,TO. Raises UsageError."""
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
    try:
        parse_time(text, "--between")
    except UsageError:
        return False
    return True
