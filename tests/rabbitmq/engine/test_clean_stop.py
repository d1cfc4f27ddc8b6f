"""The side files of a clean stop of the engine, and the lock of an open vhost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mqstore.errors import TargetError
from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.queue_store import QueueStore
from mqstore.rabbitmq.erlang import disk_log
from mqstore.rabbitmq.format import recovery_terms
from mqstore.rabbitmq.format.names import vhost_directory
from mqstore.rabbitmq.store.vhost import Vhost

CONFIG = EngineConfig(queue_index_embed_msgs_below=50, msg_store_file_size_limit=4000)
OPEN = "import sys; from mqstore.rabbitmq.engine.queue_store import QueueStore; QueueStore.open(sys.argv[1])"


def lived(place: Path) -> QueueStore:
    """Return a store with several message files, some messages in two queues, some gone."""
    store = QueueStore.open(place, config=CONFIG)
    store.declare("one")
    store.declare("two", {"x-queue-version": 2})
    for number in range(60):
        store.publish(["one", "two"] if number % 3 else "one", bytes([number]) * (20 + number * 9))
    store.acknowledge(store.deliver("one", 30)[::2])
    return store


def test_a_clean_stop_records_every_stored_message_and_every_file(tmp_path: Path) -> None:
    store = lived(tmp_path)
    known = store.messages.locations
    store.close()
    place = tmp_path / store.messages.place
    index = disk_log.read_table((place / "msg_store_index.ets").read_bytes())
    assert index.whole
    assert len(index.objects) == len(known) > 40
    for name, message_id, references, file, offset, total in index.objects:
        assert name == "msg_location"
        assert known.get(message_id) == (references, file, offset, total)
    summary = disk_log.read_table((place / "file_summary.ets").read_bytes())
    assert summary.whole
    numbers = [row[1] for row in summary.objects]
    assert numbers == sorted(int(path.stem) for path in place.glob("*.rdq"))
    assert len(numbers) > 3
    for row, left, right in zip(summary.objects, ["undefined", *numbers], [*numbers[1:], "undefined"], strict=False):
        size = (place / f"{row[1]}.rdq").stat().st_size
        valid = sum(total for _, _, _, file, _, total in index.objects if file == row[1])
        assert row[2:] == (valid, left, right, size, "false", 0)
    said = recovery_terms.read_clean_dot((place / "clean.dot").read_bytes())
    assert isinstance(said, recovery_terms.CleanDot)
    assert len(said.references) == 2
    assert Vhost(ReadOnlyDirectory(tmp_path), f"vhosts/{vhost_directory('/')}").clean


def test_a_start_removes_the_side_files_before_it_changes_anything_else(tmp_path: Path) -> None:
    lived(tmp_path).close()
    store = QueueStore.open(tmp_path, config=CONFIG)
    names = {path.name for path in tmp_path.rglob("*") if path.suffix in (".ets", ".dot", ".dets")}
    ready = store.counts("one").ready
    store.abandon()
    assert names == set()
    assert ready == 45


def test_no_tables_are_written_for_files_with_bytes_after_their_records(tmp_path: Path) -> None:
    store = lived(tmp_path)
    store.sync()
    store.abandon()
    with (tmp_path / store.messages.place / "1.rdq").open("ab") as file:
        file.write(b"torn")
    QueueStore.open(tmp_path, config=CONFIG).close()
    assert not list(tmp_path.rglob("clean.dot"))
    assert not list(tmp_path.rglob("*.ets"))
    assert list(tmp_path.rglob("recovery.dets"))


def test_a_vhost_can_be_opened_for_writing_only_once(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path) as store:
        with pytest.raises(TargetError, match="already open for writing; close the queues there"):
            QueueStore.open(tmp_path)
        other = subprocess.run([sys.executable, "-c", OPEN, str(tmp_path)], capture_output=True, text=True, check=False)
        assert "already open for writing" in other.stderr
        QueueStore.open(tmp_path, "another").close()
        store.declare("orders")
        store.publish("orders", b"paid", confirm=True)
    with QueueStore.open(tmp_path) as again:
        assert again.counts("orders").ready == 1
    assert not [path for path in tmp_path.rglob("*") if "lock" in path.name]


def test_the_lock_of_a_process_is_released_when_it_dies(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", OPEN + "; import os; os._exit(9)", str(tmp_path)], check=False)
    QueueStore.open(tmp_path).close()
