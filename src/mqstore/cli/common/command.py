"""Commands: `verb`, which makes a function one, and the opening of its store argument.

A command is a function that takes an `Output` and its options and returns the exit status. Options are single parameters, or an options
class, a frozen dataclass each of whose fields is annotated like a parameter; a field that is itself an options class contributes its own.

    @dataclass(frozen=True, kw_only=True)
    class Range:
        family_options: ClassVar[FamilyOptions] = family_options(rocketmq=("start",))

        start: Annotated[int, typer.Option("--start")] = 0
        stop: Annotated[int | None, typer.Option("--stop")] = None

    def show(out, store: Store, options: Range) -> int: ...      parameters: store, start, stop

    verb(app, example="show /backup/store --start 3")(show)

`family_options` has the options that apply to one kind of store only; `open_either` refuses one that is given for the other kind.

`-o`, `--no-color`, `-q`, `-v`, `--progress`, `--wide`, `--columns` and `--escape-formulas` are added to each command, accepted before and
after its name.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from mqstore.cli.common.arguments import (
    COLUMNS_HELP,
    FORMULAS_HELP,
    FS_HELP,
    OUTPUT_HELP,
    PROGRESS_HELP,
    QUIET_HELP,
    VERBOSE_HELP,
    WIDE_HELP,
    CommonOptions,
    Format,
    Store,
    Stores,
    ViewName,
    column_names,
    import_help,
    join_ranges,
    prepared,
)
from mqstore.cli.common.output import Output
from mqstore.errors import UnsupportedError, UsageError
from mqstore.store import Family

if TYPE_CHECKING:
    from mqstore.diagnosis import Diagnosis
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import View
    from mqstore.stores.rabbitmq import RabbitMQ
    from mqstore.stores.rocketmq import RocketMQ

BROKERS: Mapping[str, str] = {"rocketmq": "RocketMQ", "rabbitmq": "RabbitMQ"}
FamilyOptions = Mapping[str, Family]
Command = Callable[..., int]


def family_options(*, rocketmq: Sequence[str] = (), rabbitmq: Sequence[str] = ()) -> FamilyOptions:
    """Return the options that apply to one kind of store only."""
    return {**dict.fromkeys(rocketmq, "rocketmq"), **dict.fromkeys(rabbitmq, "rabbitmq")}


@functools.cache
def _own_parameters(function: Command) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function, eval_str=True).parameters


@functools.cache
def _types_of(options: Any) -> Mapping[str, Any]:
    return get_type_hints(options, include_extras=True)


def _parameters(function: Command) -> list[inspect.Parameter]:
    """Return the parameters of a command line: those of the function except `out`, with options classes flattened."""
    return [
        flat
        for name, parameter in _own_parameters(function).items()
        if name != "out"
        for flat in _flattened(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    ]


def _flattened(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not _is_options_class(parameter.annotation):
        yield parameter
        return
    types = _types_of(parameter.annotation)
    for field in fields(parameter.annotation):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield from _flattened(parameter.replace(name=field.name, annotation=types[field.name], default=default))


def _arguments(function: Command, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function's keyword arguments, with its options classes built from the flat values."""
    own = _own_parameters(function)
    return {name: _built(name, parameter.annotation, given) for name, parameter in own.items() if name != "out"}


def _built(name: str, annotation: Any, given: Mapping[str, Any]) -> Any:
    if not _is_options_class(annotation):
        return given[name]
    types = _types_of(annotation)
    return annotation(**{field.name: _built(field.name, types[field.name], given) for field in fields(annotation)})


def _is_options_class(annotation: Any) -> bool:
    return isinstance(annotation, type) and is_dataclass(annotation)


_GLOBAL = "Output"
_SWITCHES = ("no_color", "quiet", "verbose", "progress", "wide", "escape_formulas")
_DONE_BUT = "something is damaged, different or missing"


def _help_and_statuses(text: str) -> tuple[str, str]:
    """Return a command's help, each paragraph on one line, and its exit statuses: what it says of status 1 is said there."""
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text))
    if whole := re.search(r"\s*Exit status: [^.]+\.", text):
        return text.replace(whole[0], ""), f"{whole[0].strip().removesuffix('.')}; 130 interrupted."
    one = re.search(r"\s*Exit status 1 if ([^.]+)\.", text)
    reason = one[1] if one else _DONE_BUT
    return (
        text.replace(one[0], "") if one else text,
        f"Exit status: 0 done and clean; 1 done, and {reason}; 2 not done, one sentence says why; 130 interrupted.",
    )


class PlainCommand(TyperCommand):
    """A command whose help names values instead of types."""

    def get_params(self, ctx: Any) -> Any:
        return prepared(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        import_help()
        super().format_help(ctx, formatter)


class VerbCommand(PlainCommand):
    """A command that takes a range of times as two words, too. Its help leaves the options of every command to `help output`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, join_ranges(args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        common: list[Any] = common_options(self)
        for each in common:
            each.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            for each in common:
                each.hidden = False


def common_options(command: Any) -> list[Any]:
    """Return the options of a command that every command has."""
    return [each for each in command.params if getattr(each, "rich_help_panel", None) == _GLOBAL]


def _common_parameters(short_output: bool, short_quiet: bool, reads_store: bool, with_columns: bool) -> list[inspect.Parameter]:
    """Return the options of every command; one that uses -o or -q for itself keeps only the long form, one with --columns its own."""

    def output_option(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - as Typer calls it
        return typer.Option(*names, help=help, rich_help_panel=_GLOBAL, **more)

    output = ("--output", "-o") if short_output else ("--output",)
    quiet = ("--quiet", "-q") if short_quiet else ("--quiet",)
    options: dict[str, tuple[Any, Any, Any]] = {
        "output_": (Format | None, output_option(*output, help=OUTPUT_HELP, show_default=False), None),
        "no_color_": (bool, output_option("--no-color", help="Do not use colours."), False),
        "quiet_": (bool, output_option(*quiet, help=QUIET_HELP), False),
        "verbose_": (bool, output_option("--verbose", "-v", help=VERBOSE_HELP), False),
        "progress_": (bool, output_option("--progress", help=PROGRESS_HELP), False),
        "wide_": (bool, output_option("--wide", help=WIDE_HELP), False),
        "escape_formulas_": (bool, output_option("--escape-formulas", help=FORMULAS_HELP), False),
    }
    if with_columns:
        chosen = output_option("--columns", metavar="A,B,…", help=COLUMNS_HELP, show_default=False)
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
    hidden: bool = False,
    short_output: bool = True,
    short_quiet: bool = True,
    several: Command | None = None,
    is_pattern: Callable[[Path], bool] = lambda _: False,
) -> Callable[[Command], Command]:
    """Make a function a command of the app.

    example: a command line without `mqstore`, shown at the end of the help.
    several: the command for a list of stores, with the same parameters; is_pattern: whether a path leads to it, too.
    """

    def register(function: Command) -> Command:
        own = _parameters(function)
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
                columns=column_names(given.pop("columns_", None), "--columns") or (),
                **{name: given.pop(f"{name}_") for name in _SWITCHES},
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
            _note_standard_input(out, given.get("store"))
            if several is not None:
                if len(given["store"]) > 1 or is_pattern(given["store"][0]):
                    return _checked(out, several(out, **_arguments(several, given)))
                given["store"] = given["store"][0]
            return _checked(out, function(out, **_arguments(function, given)))

        parameters = [context, *own, *common]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        described, statuses = _help_and_statuses(function.__doc__ or "")
        app.command(
            name,
            cls=VerbCommand,
            help=described,
            epilog="\n\n".join(
                (
                    statuses,
                    f"Example: mqstore {example}",
                    "Options of every command, such as -o json: mqstore help output",
                )
            ),
            hidden=hidden,
            no_args_is_help=False,
        )(command)
        return function

    return register


def _note_standard_input(out: Output, store: object) -> None:
    """Print a note if a store argument is the archive on standard input: a command line in the output cannot name it."""
    for each in store if isinstance(store, list) else [store]:
        if isinstance(each, Path) and each.stem.partition(".")[0] == "standard-input" and each.parent.name.startswith("mqstore-"):
            out.note(
                f"{each} is the archive on standard input, and is gone when this command ends: name the archive itself in the next one"
            )


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


# stores


def refuse_rocketmq(store: Path, instead: str) -> None:
    """Refuse a RocketMQ store, before its options are judged, where a command is for RabbitMQ. instead: what to run. Raises UsageError."""
    if any((store / name).is_dir() for name in ("commitlog", "store/commitlog")):
        raise UsageError(f"{store} is a RocketMQ store, and this command is for the queues of RabbitMQ; {instead}")


def open_store(store: Path, config: Path | None, why_not: str = "") -> RocketMQ:
    """Open the store argument of a command that RocketMQ stores alone have. why_not: why a RabbitMQ store has none, and what to do."""
    from mqstore.places import find_store
    from mqstore.stores.rocketmq import RocketMQ

    place = find_store(store, None if why_not else "rocketmq")
    if place.family == "rabbitmq":
        raise UnsupportedError(f"{store} is a RabbitMQ store: {why_not}")
    return RocketMQ.at(place, config=config)


def open_either(store: Path, options: Any, *, now: int | None = None, careful: bool = False) -> RocketMQ | RabbitMQ:
    """Open the store argument of a command that answers for both kinds.

    options: the options class, of which `config` and `names` are taken. now, careful: RabbitMQ. Raises UsageError for an option that does
    not apply to this kind of store.
    """
    from mqstore.places import find_store
    from mqstore.stores import open_at

    place = find_store(store)
    _refuse_foreign(store, place.family, options)
    names: tuple[Any, ...] = ()
    if options.names is not None:
        from mqstore.rabbitmq.definitions.document import read_queue_names

        names = tuple(read_queue_names(options.names))
    opened = open_at(place, config=options.config, names=names, now=now, careful=careful)
    if opened.family == "rabbitmq":
        opened.names_path = options.names
    return opened


def diagnosis_of(out: Output, store: Path, *, version: str | None = None, config: Path | None = None, **known: Any) -> Diagnosis:
    """Return what a broker makes of a store that a command has just written. known: further arguments of `diagnose`."""
    import mqstore

    opened = mqstore.open(store, config=config)
    with out.progress("diagnosing", opened.progress_unit) as progress:
        return opened.diagnose(version, progress=progress, **known)


def show_diagnosis(out: Output, document: Mapping[str, Any], answer: Diagnosis) -> None:
    """Show the diagnosis of a store that a command has written and what to do next, or print the command's document with the diagnosis."""
    from mqstore.report.checks import answer_parts

    if out.is_text:
        out.show(answer_parts(answer))
    else:
        out.report({**document, "diagnosis": answer.as_dict()})


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are given: a verb of one kind of store does not take those of the other."""
    return {name: value for name, value in options.items() if value not in (None, False)}


def _refuse_foreign(store: Path, family: str, options: Any) -> None:
    every = list(_options(options))
    for field, value, options_class, only in every:
        if only not in (None, family) and value != field.default:
            flags = ", ".join(filter(None, (_flag(each, of) for each, _, of, only in every if only in (None, family))))
            raise UsageError(
                f"{_flag(field, options_class)} does not apply to a {BROKERS[family]} store, which {store} is; the options are {flags}"
            )


def _options(options: Any) -> Iterator[tuple[Field[Any], Any, Any, str | None]]:
    """Yield each option with its value, the class that has it, and the only kind of store to which it applies."""
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            yield from _options(value)
        else:
            yield field, value, type(options), options.family_options.get(field.name)


def _flag(field: Field[Any], options: type) -> str:
    """Return the long form of an option; empty for an argument."""
    for part in get_args(get_type_hints(options, include_extras=True)[field.name]):
        # in an Annotated, the parser keeps the first name where a default would be
        names = [str(name) for name in (getattr(part, "default", None), *(getattr(part, "param_decls", None) or ()))]
        for name in names:
            if name.startswith("--"):
                return name
    return ""


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
    result = store.view(view.value, as_=as_version)
    for note in getattr(result, "notes", ()):
        out.note(f"recovery as {recovered_as(result)}: {note}")
    return result
