"""Commands: options classes flattened into the parameters of a command line, and options of the other kind of store refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer
from support.golden import case_named, opened, run_cli
from typer.testing import CliRunner

from mqstore.cli.common.arguments import Store
from mqstore.cli.common.command import open_either, open_store, verb
from mqstore.cli.common.options import TopicsOptions
from mqstore.cli.common.output import Output
from mqstore.errors import UnsupportedError, UsageError

ROCKETMQ = case_named("4.9.3/b-kill9")
RABBITMQ = case_named("3.10.8/a-small-clean")


@dataclass(frozen=True, kw_only=True)
class Range:
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, kw_only=True)
class PrintOptions:
    to: str = "-"
    range: Range = field(default_factory=Range)


def test_options_classes_are_flattened_in_place_and_built_from_their_values() -> None:
    seen: list[tuple[Path, PrintOptions]] = []

    def show(out: Output, store: Store, options: PrintOptions) -> int:
        seen.append((store, options))
        return 0

    app = typer.Typer()
    verb(app, example="show")(show)
    result = CliRunner().invoke(app, ["s", "--to", "f", "--start", "3"])
    assert (result.exit_code, seen) == (0, [(Path("s"), PrintOptions(to="f", range=Range(start=3, stop=None)))])


@pytest.mark.parametrize("place", [opened(RABBITMQ), RABBITMQ.archive], ids=["directory", "archive"])
def test_an_option_of_the_other_kind_is_refused_with_those_that_apply(place: Path) -> None:
    with pytest.raises(UsageError, match=r"--topic does not apply to a RabbitMQ store.* --vhost, --queue, --view, --at, --names$"):
        open_either(place, TopicsOptions(topic="orders"))


def test_an_option_of_the_filters_is_refused_by_the_commands_that_have_them() -> None:
    for command in (("messages",), ("export", "--to", "OUT")):
        refused = run_cli(command[0], opened(ROCKETMQ), *command[1:], "--vhost", "/")
        assert refused.status == 2
        assert "--vhost does not apply to a RocketMQ store" in refused.stderr
        assert "--from-offset" in refused.stderr
        assert "--from-seq" not in refused.stderr


def test_the_store_is_opened_as_what_it_is() -> None:
    assert open_either(opened(ROCKETMQ), TopicsOptions(topic="orders")).family == "rocketmq"
    assert open_either(opened(RABBITMQ), TopicsOptions(vhost=["/"])).family == "rabbitmq"


def test_a_command_for_rocketmq_only_gives_its_reason() -> None:
    with pytest.raises(UnsupportedError, match="is a RabbitMQ store: it has no keys"):
        open_store(opened(RABBITMQ), None, "it has no keys")
