"""Repairs that lengthen and shorten files: undoing gives back every byte and length, also after a crash anywhere in between.

An index file of 8,376 bytes came back with 12,564: a write past its end was recorded without the length that the file had.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.repairs import image_of, repair_with_every_crash

from mqstore.errors import TargetError
from mqstore.rabbitmq.repair.plan import LOCKING as OF_A_NODE
from mqstore.repair.change import Change, Step
from mqstore.repair.journal import StoreLocking, apply, read_journal, undo
from mqstore.rocketmq.repair.plan import LOCKING as OF_A_BROKER

LOCKINGS = {"rocketmq": OF_A_BROKER, "rabbitmq": OF_A_NODE}
NAMES = ("index", "queue", "journal.jif", "new")
SIZES = (8376, 60, 700)


def _step(*changes: Change) -> Step:
    return Step("test", "", 0, 0, "", "", "", changes)


def _store(place: Path) -> Path:
    store = place / "store"
    store.mkdir(parents=True)
    for name, size in zip(NAMES, SIZES, strict=False):
        (store / name).write_bytes(bytes(number % 251 + 1 for number in range(size)))
    (store / "lock").write_bytes(b"lock")
    return store


def _random_steps(seed: int) -> list[Step]:
    """Return changes that write over and past ends, cut and lengthen, and put whole files, in any order and on the same files."""
    at_random = random.Random(seed)
    changes = [Change("put", "new", content=b"made by the repair")]
    for _ in range(at_random.randrange(4, 8)):
        name = at_random.choice(NAMES)
        match at_random.randrange(5):
            case 0 | 1 | 2:
                content = at_random.randbytes(at_random.choice((1, 20, 4188)))
                changes.append(Change("write", name, at_random.choice((0, 13, 50, 695, 8370, 8376, 9000)), content))
            case 3:
                changes.append(Change("resize", name, length=at_random.choice((0, 7, 60, 600, 12564))))
            case _:
                changes.append(Change("put", name, content=at_random.randbytes(at_random.choice((0, 90, 9000)))))
    return [_step(*changes)]


def _undone(store: Path, journal: Path, locking: StoreLocking) -> None:
    found = read_journal(journal)
    assert found is not None
    undo(store, found, locking)


@pytest.mark.parametrize("family", sorted(LOCKINGS))
def test_a_file_that_was_written_past_its_end_has_its_length_again(family: str, tmp_path: Path) -> None:
    store = _store(tmp_path)
    before = image_of(store)
    apply(store, tmp_path / "undo", [_step(Change("write", "index", 8376, b"x" * 4188))], LOCKINGS[family])
    assert (store / "index").stat().st_size == 12564
    _undone(store, tmp_path / "undo", LOCKINGS[family])
    assert image_of(store) == before


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("family", sorted(LOCKINGS))
def test_changes_of_length_in_any_order_are_undone(family: str, seed: int, tmp_path: Path) -> None:
    store = _store(tmp_path)
    before = image_of(store)
    apply(store, tmp_path / "undo", _random_steps(seed), LOCKINGS[family])
    assert image_of(store) != before
    _undone(store, tmp_path / "undo", LOCKINGS[family])
    assert image_of(store) == before


def test_a_file_that_a_broker_lengthened_since_is_not_cut_by_undo(tmp_path: Path) -> None:
    store = _store(tmp_path)
    apply(store, tmp_path / "undo", [_step(Change("write", "index", 8370, b"x" * 20))], OF_A_BROKER)
    with (store / "index").open("ab") as file:
        file.write(b"of a broker")
    before = image_of(store)
    with pytest.raises(TargetError, match="was changed after the repair"):
        _undone(store, tmp_path / "undo", OF_A_BROKER)
    assert image_of(store) == before


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("undoing", [False, True], ids=["apply", "undo"])
@pytest.mark.parametrize("family", sorted(LOCKINGS))
def test_every_crash_among_changes_of_length_ends_in_the_old_store_or_the_new_one(
    family: str, undoing: bool, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = tmp_path / "place"
    store = _store(place)
    wanted = request.config.getoption("crash_states")
    limit = None if wanted == 0 else wanted or (600 if request.config.getoption("all") else 100)
    repair_with_every_crash(place, store, _random_steps(seed), LOCKINGS[family], tmp_path / "base", undoing=undoing, limit=limit)


@pytest.mark.parametrize("undoing", [False, True], ids=["apply", "undo"])
@pytest.mark.parametrize("family", sorted(LOCKINGS))
def test_every_crash_while_something_takes_the_place_of_a_directory_or_a_file(family: str, undoing: bool, tmp_path: Path) -> None:
    place = tmp_path / "place"
    store = _store(place)
    (store / "full").mkdir()
    (store / "full" / "file").write_bytes(b"in a directory")
    steps = [
        _step(Change("remove", "full/file"), Change("rmdir", "full"), Change("put", "full", content=b"a file")),
        _step(Change("remove", "queue"), Change("mkdir", "queue"), Change("put", "queue/0", content=b"in a new directory")),
        _step(Change("remove", "index"), Change("put", "index", content=b"new")),
    ]
    repair_with_every_crash(place, store, steps, LOCKINGS[family], tmp_path / "base", undoing=undoing, limit=400)
