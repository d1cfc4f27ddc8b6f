"""Options classes: flattened into the parameters of a command line, and built from its values."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqstore.cli.common.option_classes import back_end_arguments, command_parameters


@dataclass(frozen=True, kw_only=True)
class Range:
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, kw_only=True)
class PrintOptions:
    to: str
    range: Range = field(default_factory=Range)


def show(out: object, store: str, options: PrintOptions) -> int:
    raise AssertionError((out, store, options))


def test_options_classes_are_flattened_in_place_and_the_output_is_left_out() -> None:
    parameters = command_parameters(show)
    assert [parameter.name for parameter in parameters] == ["store", "to", "start", "stop"]
    assert [parameter.default for parameter in parameters[1:]] == [parameters[0].empty, 0, None]
    assert parameters[3].annotation == int | None


def test_options_classes_are_built_from_the_flat_values() -> None:
    built = back_end_arguments(show, {"store": "s", "to": "f", "start": 3, "stop": None})
    assert built == {"store": "s", "options": PrintOptions(to="f", range=Range(start=3, stop=None))}
