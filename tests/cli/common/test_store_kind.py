"""Recognizing a store by the names in it, and refusing options of the other kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import case_named, opened

from mqstore.cli.common.option_classes import command_parameters
from mqstore.cli.common.read_options import TopicsOptions
from mqstore.cli.common.store_kind import StoreKind, back_end_for, kind_of
from mqstore.errors import UnsupportedError, UsageError

ROCKETMQ = case_named("4.9.3/b-kill9")
RABBITMQ = case_named("3.10.8/a-small-clean")


def on_rocketmq(store: Path, options: TopicsOptions) -> int:
    raise AssertionError((store, options))


def on_rabbitmq(store: Path, options: TopicsOptions) -> int:
    raise AssertionError((store, options))


def given(store: Path, **options: object) -> dict[str, object]:
    return dict.fromkeys(("topic", "vhost", "queue", "as_version", "at", "config", "names")) | {
        "view": "disk",
        "store": store,
        **options,
    }


def test_a_store_is_recognized_as_a_directory_and_as_an_archive() -> None:
    assert kind_of(opened(ROCKETMQ)) is kind_of(ROCKETMQ.archive) is StoreKind.ROCKETMQ
    assert kind_of(opened(RABBITMQ)) is kind_of(RABBITMQ.archive) is StoreKind.RABBITMQ


def test_anything_else_is_left_to_the_rocketmq_back_end(tmp_path: Path) -> None:
    assert kind_of(tmp_path) is kind_of(tmp_path / "missing") is StoreKind.ROCKETMQ


def test_the_back_end_is_that_of_the_store() -> None:
    parameters = command_parameters(on_rocketmq)
    assert back_end_for(on_rocketmq, on_rabbitmq, parameters, given(opened(ROCKETMQ), topic="orders")) is on_rocketmq
    assert back_end_for(on_rocketmq, on_rabbitmq, parameters, given(opened(RABBITMQ), vhost=["/"])) is on_rabbitmq
    assert back_end_for(on_rocketmq, None, parameters, given(opened(RABBITMQ))) is on_rocketmq


def test_an_option_of_the_other_kind_is_refused_with_those_that_apply() -> None:
    parameters = command_parameters(on_rocketmq)
    with pytest.raises(UsageError, match=r"--topic .* --vhost, --queue, --view, --at, --names") as refused:
        back_end_for(on_rocketmq, on_rabbitmq, parameters, given(opened(RABBITMQ), topic="orders"))
    assert "--config" not in str(refused.value)


def test_a_command_for_rocketmq_only_gives_its_reason() -> None:
    with pytest.raises(UnsupportedError, match="is a RabbitMQ store: it has no keys"):
        back_end_for(on_rocketmq, "it has no keys", command_parameters(on_rocketmq), given(opened(RABBITMQ)))
