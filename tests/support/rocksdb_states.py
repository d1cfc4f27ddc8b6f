"""States of the database of queues of a RocketMQ store: each made from a store that a real broker wrote.

`DATABASE_STATES` maps a name to a function that changes the database in the given directory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from support.golden import GoldenCase, unpack
from support.rocketmq_states import STATES
from support.rocksdb import flip, tables

DatabaseState = Callable[[Path], None]


def _manifest(database: Path) -> Path:
    return next(database.glob("MANIFEST-*"))


def no_manifest(database: Path) -> None:
    _manifest(database).unlink()


def damaged_manifest(database: Path) -> None:
    flip(_manifest(database), 60)


def cut_manifest(database: Path) -> None:
    """Cut its last record, as a crash may: what precedes it is an earlier state of the database."""
    path = _manifest(database)
    path.write_bytes(path.read_bytes()[:-20])


def no_current(database: Path) -> None:
    (database / "CURRENT").unlink()


def empty_current(database: Path) -> None:
    (database / "CURRENT").write_bytes(b"")


def current_of_another(database: Path) -> None:
    (database / "CURRENT").write_bytes(b"MANIFEST-000099\n")


def no_table(database: Path) -> None:
    tables(database)[-1].unlink()


def cut_table(database: Path) -> None:
    path = tables(database)[-1]
    path.write_bytes(path.read_bytes()[:-100])


def empty_table(database: Path) -> None:
    tables(database)[-1].write_bytes(b"")


def damaged_bounds(database: Path) -> None:
    flip(tables(database)[0], 60)


def damaged_entries(database: Path) -> None:
    flip(tables(database)[-1], 700)


def no_database(database: Path) -> None:
    shutil.rmtree(database)


def empty_directory(database: Path) -> None:
    no_database(database)
    database.mkdir()


def file_in_its_place(database: Path) -> None:
    no_database(database)
    database.write_bytes(b"a file of somebody else")


def foreign_files(database: Path) -> None:
    (database / "notes.txt").write_bytes(b"a file of somebody else")
    (database / "000099.sst").write_bytes(b"x" * 100)


def damaged_write_ahead_log(database: Path) -> None:
    next(database.glob("*.log")).write_bytes(b"\x11" * 500)


def no_options(database: Path) -> None:
    for path in (*database.glob("OPTIONS-*"), database / "IDENTITY"):
        path.unlink()


DATABASE_STATES: dict[str, DatabaseState] = {
    state.__name__: state
    for state in (
        no_manifest,
        damaged_manifest,
        cut_manifest,
        no_current,
        empty_current,
        current_of_another,
        no_table,
        cut_table,
        empty_table,
        damaged_bounds,
        damaged_entries,
        no_database,
        empty_directory,
        file_in_its_place,
        foreign_files,
        damaged_write_ahead_log,
        no_options,
    )
}
NEEDS_TABLES = frozenset({"no_table", "cut_table", "empty_table", "damaged_bounds", "damaged_entries"})
OF_LOG = (
    "abort",
    "torn_tail",
    "body_flip",
    "body_flip_after_a_kill",
    "zeroed_page",
    "missing_log_file",
    "no_log",
    "stray_file",
    "stray_directory",
    "short_log_file",
    "empty_last_log_file",
    "checkpoint_in_the_future",
    "no_checkpoint",
)


def made(state: str, case: GoldenCase, target: Path, place: str = "consumequeue") -> Path:
    """Unpack a golden store into target, and bring it into states, joined by `+`: those of a database, or of `rocketmq_states`."""
    unpack(case, target)
    for name in state.split("+"):
        if name in DATABASE_STATES:
            DATABASE_STATES[name](target / place)
        elif name != "as_it_is":
            STATES[name](target)
    return target
