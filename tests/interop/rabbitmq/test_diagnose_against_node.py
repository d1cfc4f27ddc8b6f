"""What `diagnose` predicts of a damaged RabbitMQ store, against a node that starts on a copy of it and delivers what it has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from interop.rabbitmq.adopting import Declared, adopt
from interop.rabbitmq.node import BootError, new_node
from support.golden import case_named, opened, unpack_node_site
from support.rabbitmq_states import made

from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.listing import queue_rows
from mqstore.rabbitmq.store.store import RabbitMQStore

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]


def _torn_journal(store: Path) -> None:
    """Overwrite a record in the middle of the largest journal with bytes that are not one."""
    journal = max(store.rglob("journal.jif"), key=lambda path: path.stat().st_size)
    raw = bytearray(journal.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 64] = bytes(64)
    journal.write_bytes(raw)


@pytest.mark.parametrize("damage", [None, _torn_journal], ids=["interrupted-merge", "torn-journal"])
def test_a_node_delivers_all_but_the_messages_that_diagnose_says_it_loses(damage: object, tmp_path: Path) -> None:
    case = case_named("3.10.8/e3-gc-interrupted-zero-extended" if damage is None else "3.10.8/b-dirty-journal")
    shutil.copytree(opened(case), tmp_path / "store", copy_function=shutil.copyfile)
    for path in (tmp_path / "store", *(tmp_path / "store").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if callable(damage):
        damage(tmp_path / "store")
    store = RabbitMQStore(tmp_path / "store")
    found = diagnose(store, "3.10.8")
    rows = list(queue_rows(store))
    adopted = adopt(tmp_path / "store" / "msg_stores", [Declared(row["vhost"], row["queue"]) for row in rows], {})
    assert adopted.sound is found.starts
    if found.starts:
        assert len(adopted.rows) == sum(row["messages"] + row["lost"] + row["waiting"] for row in rows) - found.loses
        assert sum(bool(row["redelivered"]) for row in adopted.rows) == found.redelivers
        assert found.loses


@pytest.mark.parametrize("name", [pytest.param("empty_config", marks=pytest.mark.slow), "lost_store", "lost_index", "garbage_config"])
def test_a_missing_part_of_a_queue_or_a_damaged_config_does_to_a_node_what_diagnose_says(name: str, tmp_path: Path) -> None:
    """A text without a number keeps the node from starting, a .qi without its .qs the queue; the others it passes over without a word."""
    store = RabbitMQStore(made(name, tmp_path / "store"))
    found = diagnose(store, "3.10.8")
    rows = list(queue_rows(store))
    adopted = adopt(tmp_path / "store" / "msg_stores", [Declared(row["vhost"], row["queue"]) for row in rows], {})
    assert adopted.booted is found.starts is (name != "empty_config")
    assert found.next.startswith("mqstore repair")
    if adopted.booted:
        assert {queue for _, queue in adopted.failed} == {row["queue"] for row in rows if row["waiting"]}
        assert bool(adopted.failed) is (name == "lost_store")
        assert len(adopted.rows) == sum(row["messages"] for row in rows)
        assert found.loses or found.unknown


@pytest.mark.parametrize("serial", [b"5/\n", b"a.\n"])
def test_a_serial_number_that_is_none_keeps_a_node_from_starting(serial: bytes, tmp_path: Path) -> None:
    with new_node() as node:
        node.start()
        node.stop()
        (node.data / "rabbit_serial").write_bytes(serial)
        found = diagnose(RabbitMQStore(node.data), "3.10.8")
        assert [item.file for item in found.evidence if item.finding == "empty-file"] == ["rabbit_serial"]
        with pytest.raises(BootError):
            node.start()
        (node.data / "rabbit_serial").unlink()
        assert diagnose(RabbitMQStore(node.data), "3.10.8").starts
        node.start()


def test_a_node_of_another_name_does_not_start_as_diagnose_says(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    place = unpack_node_site("plain", tmp_path / "site")
    with new_node() as node:
        shutil.copytree(place, node.data)
        with pytest.raises(BootError):
            node.start()
        assert "failed_to_cluster_with" in (node.base / "out.txt").read_text(errors="replace")
    found = diagnose(RabbitMQStore(place.rename(place.with_name("rabbit@other"))))
    assert (found.starts, found.loses) == (False, 0)
    assert "failed_to_cluster_with" in found.evidence[0].detail
