"""The command-line application: all its commands, and how errors are reported.

status   0  done, nothing wrong
         1  done; something is damaged, different or missing
         2  usage error, or the command could not do its work: one sentence on standard error
         3  `diagnose`: the store cannot be read
       130  interrupted
"""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from mqstore.cli.common.arguments import (
    COLUMNS_HELP,
    FORMULAS_HELP,
    OUTPUT_HELP,
    PROGRESS_HELP,
    QUIET_HELP,
    VERBOSE_HELP,
    WIDE_HELP,
    CommonOptions,
    Format,
    column_names,
    import_help,
    prepared,
)
from mqstore.cli.verbs import VERBS, Verb
from mqstore.errors import MqstoreError, NotFoundError, UsageError
from mqstore.version import __version__

COMPLETE = "_MQSTORE_COMPLETE"  # set by the script of `completion` when the shell asks
# these write a new file or directory, which appears when it is complete
_WRITING_NEW = frozenset({"convert", "rescue", "salvage", "rebuild", "lookup"})
_READING = frozenset(
    {"inspect", "diagnose", "verify", "usage", "messages", "find", "queue", "topics", "timers", "query", "get", "sql"}
)  # they change nothing in the store
CLEAN, FOUND, FAILED, INTERRUPTED = 0, 1, 2, 130


_SIMILAR = re.compile(r"\(Possible options: (.*)\)$")
_NOT_A_NUMBER = re.compile(r"Input should be a valid (integer|number), .*")


class _InterruptionError(BaseException):
    """A command was interrupted."""


class _Loaded(dict[str, Any]):
    """The commands by name, each made when it is first asked for."""

    def __missing__(self, name: str) -> Any:
        verb = next((verb for verb in VERBS if verb.name == name), None)
        if verb is None:
            raise KeyError(name)
        module = typer.Typer(rich_markup_mode="rich")
        import_module(f"mqstore.cli.{verb.module}").register(module)
        for each in module.registered_commands:
            made = typer.main.get_command_from_info(each, pretty_exceptions_short=True, rich_markup_mode="rich")
            self.setdefault(str(made.name), made)
        return self[name]


class _Commands(TyperGroup):
    """The commands. Of a KeyboardInterrupt, Typer would make the status 130 without a word."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = _Loaded()
        self._listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return [verb.name for verb in VERBS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self._listing:
            return _listed(next(verb for verb in VERBS if verb.name == cmd_name))
        try:
            return self.commands[cmd_name]
        except KeyError:
            return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if not name.startswith("-") and all(verb.name != name for verb in VERBS):
            from mqstore.table.formatting import did_you_mean

            meant = did_you_mean(name, self.list_commands(ctx))
            raise UsageError(f"there is no command {name!r}{meant or '; `mqstore help` lists the commands'}")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        return prepared(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        import_help()
        with self._only_listing():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._only_listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _only_listing(self) -> Iterator[None]:
        """While the commands are listed, take what is said of them from the list, without loading them."""
        self._listing = True
        try:
            yield
        finally:
            self._listing = False

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt as error:
            raise _InterruptionError from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _InterruptionError from error


@cache
def _listed(verb: Verb) -> TyperCommand:
    """Return a command that can be listed only."""
    return TyperCommand(verb.name, help=verb.summary, rich_help_panel=verb.panel, hidden=not verb.panel, rich_markup_mode="rich")


app = typer.Typer(
    cls=_Commands,
    name="mqstore",
    help="Read, verify, rebuild and write the on-disk stores of message brokers, without a broker.\n\n"
    "STORE is the data directory of a broker or node (with commitlog/, msg_stores/, quorum/ or stream/), or its archive. "
    "Only put, load, repair, groups --reset and serve change it.",
    epilog="Start with: mqstore diagnose STORE, mqstore inspect STORE, or mqstore demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"mqstore {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    output: Annotated[Format, typer.Option("--output", "-o", help=OUTPUT_HELP)] = Format.TEXT,
    no_color: Annotated[bool, typer.Option("--no-color", help="Do not use colours.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help=QUIET_HELP)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help=VERBOSE_HELP)] = False,
    progress: Annotated[bool, typer.Option("--progress", help=PROGRESS_HELP)] = False,
    wide: Annotated[bool, typer.Option("--wide", help=WIDE_HELP)] = False,
    columns: Annotated[str | None, typer.Option("--columns", metavar="A,B,…", help=COLUMNS_HELP, show_default=False)] = None,
    escape_formulas: Annotated[bool, typer.Option("--escape-formulas", help=FORMULAS_HELP)] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Apply the options given before the command's name."""
    chosen = column_names(columns, "--columns") or ()
    context.obj = CommonOptions(output, not no_color, quiet, verbose, progress, wide, chosen, escape_formulas)


@cache
def parser() -> Any:
    """Return the parser; a test runs hundreds of command lines in one process."""
    return typer.main.get_command(app)


def _print_error(sentence: str) -> None:
    from mqstore.table.formatting import printable

    try:
        print(f"mqstore: {printable(' '.join(sentence.split()))}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def _print_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    """Print a warning as a sentence, without the place in the code."""
    _print_error(f"warning: {message}")


def _interruption(argv: list[str]) -> str:
    """Return the sentence after an interruption: what was done, and how to go on."""
    from mqstore.cli.common.progress import interrupted_work

    doing = interrupted_work()
    start = f"interrupted{' while ' if doing else ''}{doing}"
    if "--resume" in argv:
        return f"{start}; run the same command again, and it continues"
    verb = next((word for word in argv if not word.startswith("-")), "")
    if verb == "export":
        return f"{start}; nothing half-written is left; run it again: one that has --resume can be continued"
    if verb in _WRITING_NEW:
        return f"{start}; nothing half-written is left; run it again"
    return f"{start}; the store is unchanged; run it again" if verb in _READING else start


def _usage_sentence(error: typer.TyperException) -> str:
    """Format an error of the parser as one sentence that refers to the help."""
    unknown: Any = error
    if getattr(error, "possibilities", None):  # the dashes make `--port` like `--at`
        from difflib import get_close_matches

        given, offered = unknown.option_name.lstrip("-"), {name.lstrip("-"): name for name in unknown.possibilities}
        unknown.possibilities = [offered[name] for name in get_close_matches(given, offered)]
    message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error,", ":")
    message = _NOT_A_NUMBER.sub(lambda match: f"it takes a {'whole ' if match[1] == 'integer' else ''}number", message)
    message = message.replace("Input should be greater", "it takes a number greater")
    message = _SIMILAR.sub(lambda match: f"(did you mean {match[1].replace(', ', ' or ')}?)", message)
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mqstore"
    return f"{message[:1].lower()}{message[1:]}; `{path} --help` lists the options"


def run(argv: Sequence[str]) -> int:
    """Run a command line in this process and return the exit status. Errors are printed, not raised."""
    for stream in (sys.stdout, sys.stderr):
        # escape what the terminal cannot encode instead of failing
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if COMPLETE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    if not argv:
        run(["--help"])
        return FAILED
    python, warnings.showwarning = warnings.showwarning, _print_warning
    try:
        status = parser().main(args=list(argv), prog_name="mqstore", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        _print_error(_usage_sentence(error))
        return FAILED
    except (_InterruptionError, KeyboardInterrupt, typer.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # Typer takes it for the end of what a person typed, and no command asks for input
            return report_failure(error.__cause__, verbose="-v" in argv or "--verbose" in argv)
        _print_error(_interruption(list(argv)))
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # the parser exits if standard output is closed
        _abandon_stdout()
        return CLEAN
    except Exception as error:
        return report_failure(error, verbose="-v" in argv or "--verbose" in argv)
    finally:
        warnings.showwarning = python
    return status if isinstance(status, int) else CLEAN


def report_failure(error: Exception, *, verbose: bool) -> int:
    """Print an error and return the exit status. Re-raises an unexpected error if verbose."""
    if isinstance(error, MqstoreError):
        _print_error(str(error))
        return FOUND if isinstance(error, NotFoundError) else getattr(error, "exit_status", FAILED)
    if isinstance(error, OSError):
        _print_error(f"{error.filename or 'the operating system'}: {error.strerror or error}")
    elif isinstance(error, MemoryError):
        _print_error("out of memory; narrow the request with filters, or give the process more memory")
    elif verbose:
        raise error
    else:
        _print_error(
            f"a bug in mqstore, not in the store: {type(error).__name__}: {error}; please report it with the traceback that -v prints"
        )
    return FAILED


def _abandon_stdout() -> None:
    """Redirect standard output to nowhere after its reader has gone, so that the interpreter does not complain at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run this process's command line and return the exit status."""
    signal.signal(signal.SIGTERM, _terminated)
    return run(sys.argv[1:])
