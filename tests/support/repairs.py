"""Repairs that crash: what every state of the disk must end in, for stores of either broker."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mqstore.repair.journal import APPLIED, UNDOING, StoreLocking, apply, read_journal, resume, undo
from mqstore.testing import CrashState, CrashStates, RecordedWrites, run_states

__all__ = ["image_of", "repair_with_every_crash"]


def image_of(store: Path) -> dict[str, bytes | None]:
    """Return the content of each file of a store, and None for each directory."""
    return {path.relative_to(store).as_posix(): path.read_bytes() if path.is_file() else None for path in sorted(store.rglob("*"))}


def repair_with_every_crash(
    place: Path,
    store: Path,
    steps: Sequence[Any],
    locking: StoreLocking,
    base: Path,
    *,
    undoing: bool,
    limit: int | None,
) -> None:
    """Apply the steps to the store in a place, or undo them, and check each crash: old store, new store, or the command goes on.

    limit: how many states of the disk to check; None for all.
    """
    old = image_of(store)
    recorded = RecordedWrites()
    if undoing:
        apply(store, place / "undo", steps, locking)
        new = image_of(store)
        shutil.copytree(place, base)
        found = read_journal(place / "undo")
        assert found is not None
        undo(store, found, locking, recorder=recorded, within="store")
        assert image_of(store) == old
    else:
        shutil.copytree(place, base)
        apply(store, place / "undo", steps, locking, recorder=recorded, within="store")
        new = image_of(store)
    goes_on = 0

    def check(directory: Path, state: CrashState) -> None:
        nonlocal goes_on
        left = directory / "store"
        journal = read_journal(directory / "undo")
        if journal is None:
            assert image_of(left) == old
            return
        if journal.state == APPLIED:
            assert image_of(left) == new
        elif journal.state != UNDOING and len(state.name) % 2:
            goes_on += 1
            resume(left, journal, locking)
            assert image_of(left) == new
            return
        goes_on += 1
        undo(left, journal, locking)
        assert image_of(left) == old
        assert not (directory / "undo").exists()

    run_states(CrashStates(recorded, base, limit=limit, whole_sectors=True), check, workers=1)
    assert goes_on >= 5
