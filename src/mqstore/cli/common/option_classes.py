"""Options classes: a command's options as one frozen dataclass, and its fields as the parameters of the command line.

A field is annotated like a parameter of a Typer command; a field that is itself an options class contributes its own fields in its place.

    @dataclass(frozen=True, kw_only=True)
    class Range:
        start: int = 0
        stop: int | None = None

    @dataclass(frozen=True, kw_only=True)
    class PrintOptions:
        to: str
        range: Range = field(default_factory=Range)

    def show(out, store: str, options: PrintOptions) -> int: ...      parameters: store, to, start, stop
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def command_parameters(function: Callable[..., int]) -> list[inspect.Parameter]:
    """Return the parameters of a command line: those of the function except `out`, with options classes flattened."""
    return [flat for parameter in _parameters(function) for flat in _flattened(parameter)]


def back_end_arguments(function: Callable[..., int], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function's keyword arguments, with its options classes built from the flat values."""
    return {parameter.name: _built(parameter.name, parameter.annotation, given) for parameter in _parameters(function)}


def _parameters(function: Callable[..., int]) -> Iterator[inspect.Parameter]:
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if name != "out":
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _flattened(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not _is_options_class(parameter.annotation):
        yield parameter
        return
    types = get_type_hints(parameter.annotation, include_extras=True)
    for field in fields(parameter.annotation):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield from _flattened(parameter.replace(name=field.name, annotation=types[field.name], default=default))


def _built(name: str, annotation: Any, given: Mapping[str, Any]) -> Any:
    if not _is_options_class(annotation):
        return given[name]
    types = get_type_hints(annotation, include_extras=True)
    return annotation(**{field.name: _built(field.name, types[field.name], given) for field in fields(annotation)})


def _is_options_class(annotation: Any) -> bool:
    return isinstance(annotation, type) and is_dataclass(annotation)
