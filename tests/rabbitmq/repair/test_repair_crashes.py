"""Crashes in the middle of the repair of a RabbitMQ store and of its undoing: old store, new store, or the command goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import rabbitmq_states

from mqstore.files.recorder import RecordedWrites
from mqstore.rabbitmq.repair.plan import LOCKING, plan
from mqstore.rabbitmq.repair.queue_step import completed
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.repair.journal import APPLIED, UNDOING, apply, read_journal, resume, undo
from mqstore.testing.crashes import CrashState, CrashStates, run_states

SMALL, ALL = 40, 600  # states


def _image(store: Path) -> dict[str, bytes | None]:
    return {path.relative_to(store).as_posix(): path.read_bytes() if path.is_file() else None for path in sorted(store.rglob("*"))}


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
    old = _image(store)
    read = RabbitMQStore(store)
    steps = completed(read.directory, plan(read))
    assert {change.op for step in steps for change in step.changes} == {"write", "resize", "put", "rename", "remove", "rmdir"}
    base = tmp_path / "base"
    recorded = RecordedWrites()
    if undoing:
        apply(store, place / "undo", steps, LOCKING)
        new = _image(store)
        shutil.copytree(place, base)
        found = read_journal(place / "undo")
        assert found is not None
        undo(store, found, LOCKING, recorder=recorded, within="store")
        assert _image(store) == old
    else:
        shutil.copytree(place, base)
        apply(store, place / "undo", steps, LOCKING, recorder=recorded, within="store")
        new = _image(store)
    goes_on = 0

    def check(directory: Path, state: CrashState) -> None:
        nonlocal goes_on
        left = directory / "store"
        journal = read_journal(directory / "undo")
        if journal is None:
            assert _image(left) == old
            return
        if journal.state == APPLIED:
            assert _image(left) == new
        elif journal.state != UNDOING and len(state.name) % 2:
            goes_on += 1
            resume(left, journal, LOCKING)
            assert _image(left) == new
            return
        goes_on += 1
        undo(left, journal, LOCKING)
        assert _image(left) == old
        assert not (directory / "undo").exists()

    wanted = request.config.getoption("crash_states")
    limit = None if wanted == 0 else wanted or (ALL if request.config.getoption("all") else SMALL)
    run_states(CrashStates(recorded, base, limit=limit, whole_sectors=True), check, workers=1)
    assert goes_on >= 5
