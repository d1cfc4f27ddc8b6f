"""The lag of a position in a growing log, compared with the message table."""

from __future__ import annotations

from pathlib import Path

import pytest

import mqstore
from mqstore.rocketmq import MessageStore
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.scan import log_tail
from mqstore.rocketmq.scan.log_tail import LogLag, LogPosition, LogTail

FILE = 1 << 15
CONFIG = StoreConfig(version="4.9.3", commit_log_file_size=FILE, max_hash_slot_num=100, max_index_num=5000, services=False)


def put(store: MessageStore, count: int) -> None:
    for number in range(count):
        assert store.put(Message("orders", b"x" * (number % 500), keys=f"k{number}")).stored
    store.dispatch_now()


def test_the_lag_is_what_the_message_table_has_after_the_position(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", CONFIG) as store:
        put(store, 400)
        tail, lag = LogTail(str(tmp_path / "store"), FILE), LogLag(str(tmp_path / "store"), FILE)
        position = tail.advance(tail.earliest(), rows=150).end
        for more in (0, 30, 400):
            put(store, more)
            rows = mqstore.open(tmp_path / "store").to_arrow(["physical_offset", "store_timestamp"]).to_pylist()
            end = tail.latest().offset
            assert lag.of(position) == {
                "off": end,
                "behind_bytes": end - position.offset,
                "behind_messages": len(rows) - 150,
                "behind_seconds": (rows[-1]["store_timestamp"] - rows[149]["store_timestamp"]).total_seconds(),
                "lost": 0,
            }
        assert lag.of(tail.latest()) == {"off": end, "behind_bytes": 0, "behind_messages": 0, "behind_seconds": 0.0, "lost": 0}


def test_many_messages_are_estimated_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_tail, "COUNTED", 4096)
    with MessageStore.open(tmp_path / "store", CONFIG) as store:
        put(store, 1000)
        found = LogLag(str(tmp_path / "store"), FILE).of(LogPosition(0))
    assert found is not None
    assert 500 < found["behind_messages_about"] < 3000
    assert "behind_messages" not in found
    assert "behind_seconds" not in found  # nothing was read yet


def test_what_retention_removed_leaves_the_seconds_untold_and_a_log_that_is_gone_leaves_all(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", CONFIG) as store:
        put(store, 400)
        tail, lag = LogTail(str(tmp_path / "store"), FILE), LogLag(str(tmp_path / "store"), FILE)
        position = tail.advance(tail.earliest(), rows=5).end
        store.log.remove_first()
        found = lag.of(position)
        assert found is not None
        assert found["behind_bytes"] == tail.latest().offset - position.offset
        assert "behind_seconds" not in found
    assert LogLag(str(tmp_path / "nothing"), FILE).of(position) is None
