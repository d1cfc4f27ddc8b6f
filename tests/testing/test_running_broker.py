"""A broker in the process of a test, over stores that others wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import case_named, run_cli, unpack

import mqstore
from mqstore.rocketmq import MessageStore, StoreConfig
from mqstore.testing import RunningBroker


def sent(path: Path) -> list[str]:
    """Send a message to the store and return what a consumer then gets of its topic."""
    with RunningBroker(path) as rocketmq:
        assert rocketmq.broker.context.writable
        rocketmq.produce("of-this-test", "body")
        return [message.text for message in rocketmq.consume("of-this-test", group="readers")]


@pytest.mark.parametrize("case", ["4.9.3/a-clean-small", "5.3.3/g-clean-small"])
def test_a_store_with_files_of_other_sizes_is_written_to_and_keeps_them(case: str, tmp_path: Path) -> None:
    """It was served read-only without a word, because a small store was expected."""
    store = unpack(case_named(case), tmp_path / "store")
    assert sent(store) == ["body"]
    assert mqstore.open(store).verify().ok
    assert [
        row["group"] for row in mqstore.open(store).sql("select \"group\" from groups where topic = 'of-this-test'").to_arrow().to_pylist()
    ]


def test_a_rebuilt_store_is_written_to(tmp_path: Path) -> None:
    store = unpack(case_named("4.9.3/b3-kill9-torn"), tmp_path / "store")
    assert run_cli("rebuild", store, "--to", tmp_path / "rebuilt", "--copy", "--threads", "2").status == 1  # the last record is torn
    assert sent(tmp_path / "rebuilt") == ["body"]


def test_an_empty_directory_becomes_a_small_store_that_can_be_opened_again(tmp_path: Path) -> None:
    for bodies in (1, 2):
        with RunningBroker(tmp_path / "store") as rocketmq:
            rocketmq.produce("orders", "body", queue_id=0)
            assert len(rocketmq.consume("orders", bodies, group=f"readers-{bodies}")) == bodies
    assert {file.stat().st_size for file in (tmp_path / "store" / "commitlog").iterdir()} == {16 << 20}


def test_a_store_of_the_sizes_that_a_broker_has_is_not_made_smaller(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", StoreConfig(version="4.9.3", services=False)):
        pass
    assert sent(tmp_path / "store") == ["body"]
