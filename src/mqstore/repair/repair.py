"""A repair of one store: the plan, the changes with an undo journal, and the way back.

    repair = mqstore.open("/data/store").repair()
    repair.steps      what is wrong and what would be changed; nothing is changed yet
    repair.apply()    makes the changes, after the undo journal is on disk
    repair.undo()     gives back every byte and name

An `apply` or `undo` that was interrupted goes on when it is called again. Neither takes place while a broker has the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from mqstore.errors import TargetError, UnsupportedError, UsageError
from mqstore.repair import journal as journals
from mqstore.repair.change import Change, Step, chosen
from mqstore.repair.journal import StoreLocking


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What `apply` did. repaired: number of steps; not_repaired: (number in the plan, step) of those without a remedy.

    journal: None if nothing was changed. finished: changes of an earlier apply, which was interrupted; 0 if there was none.
    """

    repaired: int
    journal: Path | None
    not_repaired: tuple[tuple[int, Step], ...] = ()
    finished: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is left to repair."""
        return not self.not_repaired

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `repair --apply -o json` prints."""
        return {
            "repaired": self.repaired,
            "journal": None if self.journal is None else str(self.journal),
            "not_repaired": [step.as_dict(number) for number, step in self.not_repaired],
        }


@dataclass(frozen=True, slots=True)
class UndoReport:
    """What `undo` took back. undone: number of changes."""

    undone: int

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `repair --undo -o json` prints."""
        return {"undone": self.undone}


def ask_for_configuration(assumed: str) -> str:
    """Return the sentence that asks for what is not known of a broker's configuration. assumed: what would be assumed otherwise."""
    return f"{assumed}; give the broker's configuration with --config, or accept the default with --assume-defaults"


class Repair:
    """The repair of the store in a directory. root: the directory; broker: how what reads it is called.

    plan: returns the steps, in the order of their application. completed: returns chosen steps with the changes that they need together.
    journal: the undo journal, by default beside the store. path: of the store as it was given.
    Raises UnsupportedError if the store is not a directory of this machine, UsageError if it needs a journal to be named.
    """

    def __init__(
        self,
        path: object,
        root: Path,
        broker: str,
        locking: StoreLocking,
        plan: Callable[[], Sequence[Step]],
        completed: Callable[[Sequence[Any]], Sequence[Step]],
        journal: Path | None = None,
    ) -> None:
        if not isinstance(path, Path) or not path.is_dir():
            raise UnsupportedError(f"{path} is not a directory: unpack or copy the store first, and repair that")
        beside = journal or root.with_name(f"{root.name}.undo") if root.name else journal
        if beside is None:
            raise UsageError("give the directory of the undo journal with --journal")
        self.root = root
        self.broker = broker
        self.journal = beside
        self._locking = locking
        self._plan = plan
        self._completed = completed

    @cached_property
    def steps(self) -> list[Step]:
        """The plan, in the order of application, which is read from the store when it is asked for."""
        return list(self._plan())

    @property
    def free_journal(self) -> Path | None:
        """Where a further repair can keep its journal; None if the chosen place is free, or an interrupted repair goes on from it."""
        earlier = journals.read_journal(self.journal)
        if earlier is None or earlier.state != journals.APPLIED:
            return None
        numbered = (self.journal.with_name(f"{self.journal.name}{number}") for number in count(2))
        return next(path for path in numbered if not os.path.lexists(path))

    @property
    def refusal(self) -> str:
        """Why the changes of the plan cannot be made; empty if they can."""
        return journals.why_refused(self.root, self._changes, self._locking)

    @property
    def _changes(self) -> list[Change]:
        return [change for step in self.steps for change in step.changes]

    @property
    def needs_copy(self) -> bool:
        """Whether changes of the plan can be made in a real copy of the store only, because files are links."""
        if self.refusal:
            only_links = not journals.why_refused(self.root, self._changes, self._locking, in_copy=True)
        else:
            only_links = any(step.in_copy for step in self.steps)
        return only_links and journals.is_copied(self.root)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan; `repair -o json` prints its `steps`."""
        return {"store": str(self.root), "steps": [step.as_dict(number) for number, step in enumerate(self.steps, 1)]}

    def apply(self, only: Collection[int] | None = None, *, assume_defaults: bool = True) -> RepairReport:
        """Make the changes, or finish an apply that was interrupted. only: numbers of steps, counted from 1; None for all.

        assume_defaults: also changes that rest on a setting of the broker that nothing shows.
        Raises TargetError if a process has the store, or the journal is that of an earlier repair; UsageError; CannotOpenError.
        """
        earlier = journals.read_journal(self.journal)
        if earlier is not None and earlier.state == journals.UNDOING:
            raise TargetError(f"an --undo with {self.journal} was interrupted; run it again")
        if earlier is not None and earlier.state == journals.PREPARED:
            journals.resume(self.root, earlier, self._locking)
            return RepairReport(len({change.step for change in earlier.changes}), self.journal, finished=len(earlier.changes))
        steps = chosen(self.steps, only)
        possible = [step for step in steps if step.possible]
        left = tuple((number, step) for number, step in enumerate(steps, 1) if not step.possible)
        assumed = next((step.assumes for step in possible if step.assumes), "")
        if assumed and not assume_defaults:
            raise UsageError(ask_for_configuration(assumed))
        if not possible:
            return RepairReport(0, None, left)
        if earlier is not None:
            raise TargetError(
                f"{self.journal} is the journal of an earlier repair: take that back with --undo, or give another directory with --journal"
            )
        journals.apply(self.root, self.journal, self._completed(possible), self._locking)
        return RepairReport(len(possible), self.journal, left)

    def undo(self) -> UndoReport:
        """Give back every byte and name from the journal, and remove it. Raises TargetError, with nothing changed, and CannotOpenError."""
        recorded = journals.read_journal(self.journal)
        if recorded is None:
            raise TargetError(f"there is no journal {self.journal}: nothing was repaired, or the repair was taken back already")
        return UndoReport(journals.undo(self.root, recorded, self._locking))
