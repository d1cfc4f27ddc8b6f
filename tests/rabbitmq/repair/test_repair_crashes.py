"""Crashes in the middle of the repair of a RabbitMQ store and of its undoing: old store, new store, or the command goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import rabbitmq_states
from support.repairs import repair_with_every_crash

from mqstore.rabbitmq.repair.plan import LOCKING, plan
from mqstore.rabbitmq.repair.queue_step import completed
from mqstore.rabbitmq.store.store import RabbitMQStore

SMALL, ALL = 40, 600  # states


def _broken(place: Path) -> Path:
    """Return a small store of a clean stop with queues of version 2, in which every operation of a journal is called for."""
    store = place / "store"
    rabbitmq_states.unpacked(rabbitmq_states.G1, store)
    vhost = next((store / "msg_stores" / "vhosts").iterdir())
    first, second = sorted(vhost.glob("queues/*/0.qi"))
    first.write_bytes(bytes(16) + first.read_bytes()[16:])
    second.write_bytes(second.read_bytes()[:-8])
    (vhost / "msg_store_persistent" / "0.rdq").rename(vhost / "msg_store_persistent" / "3.rdt")
    (first.parent / "core.idx").write_bytes(b"something")
    (first.parent / "9.idx" / "below").mkdir(parents=True)
    return store


@pytest.mark.parametrize("undoing", [False, True], ids=["apply", "undo"])
def test_every_crash_of_a_repair_leaves_the_old_store_the_new_one_or_a_command_that_goes_on(
    undoing: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = tmp_path / "place"
    store = _broken(place)
    read = RabbitMQStore(store)
    steps = completed(read.directory, plan(read))
    assert {change.op for step in steps for change in step.changes} == {"write", "resize", "put", "rename", "remove", "rmdir"}
    wanted = request.config.getoption("crash_states")
    limit = None if wanted == 0 else wanted or (ALL if request.config.getoption("all") else SMALL)
    repair_with_every_crash(place, store, steps, LOCKING, tmp_path / "base", undoing=undoing, limit=limit)
