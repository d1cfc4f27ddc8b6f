"""Repaired stores and a real node: one boot on all of them, each in a vhost of its own; it delivers what the plan and `diagnose` said."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from interop.rabbitmq.adopting import Declared, adopt
from support.rabbitmq_states import STATES, made

from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.repair.plan import LOCKING, plan
from mqstore.rabbitmq.repair.queue_step import completed
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.repair.journal import apply, read_journal, undo
from mqstore.table.columns import QueueSelection

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

SETTINGS = {"msg_store_file_size_limit": 262144}
SAME = ("vhost", "queue", "seq_id", "size", "redelivered", "msg_id")


def opened(path: Path) -> RabbitMQStore:
    return RabbitMQStore(path, careful=True)


def image(store: Path) -> dict[str, bytes | None]:
    return {path.relative_to(store).as_posix(): path.read_bytes() if path.is_file() else None for path in sorted(store.rglob("*"))}


def test_a_node_starts_on_repaired_stores_and_delivers_what_is_promised(tmp_path: Path) -> None:
    together = tmp_path / "together" / "msg_stores" / "vhosts"
    together.mkdir(parents=True)
    queues: list[Declared] = []
    promised: set[tuple[object, ...]] = set()
    before = {}
    for name in sorted(STATES):
        store = made(name, tmp_path / "stores" / name, vhost=name)
        before[name] = image(store)
        steps = [step for step in plan(opened(store)) if step.possible]
        apply(store, tmp_path / f"{name}.undo", completed(opened(store).directory, steps), LOCKING)
        assert plan(opened(store)) == [], name
        found = diagnose(opened(store), "3.10.8")
        assert found.starts, name
        queues += [Declared(name, queue) for queue in sorted({each.name for each in opened(store).queues})]
        rows = opened(store).to_arrow((*SAME, "expiry_us"), QueueSelection(recovered=True)).to_pylist()
        now = time.time_ns() // 1000
        promised |= {tuple(row[each] for each in SAME) for row in rows if row["expiry_us"] is None or row["expiry_us"] > now}
        assert rows, name
        assert found.redelivers == sum(row["redelivered"] for row in rows), name
        place = next((store / "msg_stores" / "vhosts").iterdir())
        shutil.copytree(place, together / place.name)
    adopted = adopt(tmp_path / "together" / "msg_stores", queues, SETTINGS)
    assert adopted.sound, adopted
    delivered = {tuple(row[each] for each in SAME) for row in adopted.rows}
    wrong = {str(row[0]) for row in promised ^ delivered}
    assert not wrong
    assert len(delivered) == len(adopted.rows)
    for name, content in before.items():
        store, journal = tmp_path / "stores" / name, read_journal(tmp_path / f"{name}.undo")
        assert journal is not None
        undo(store, journal, LOCKING)
        assert image(store) == content, name
