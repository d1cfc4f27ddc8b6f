"""Changes of a repair: what is done to one file, and the step of the plan that it belongs to.

write     bytes of an existing file            content, offset
resize    the length of an existing file       length
put       a whole small file, new or replaced  content
remove    a file is taken out of the store
mkdir     a new directory
rmdir     a directory is taken out, once it is empty
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from mqstore.errors import UsageError

Operation = Literal["write", "resize", "put", "rename", "remove", "mkdir", "rmdir"]


@dataclass(frozen=True, slots=True)
class Change:
    """One change. file: relative to the store."""

    op: Operation
    file: str
    offset: int = 0
    content: bytes | Callable[[], bytes] = b""
    length: int = 0
    to: str = ""

    @property
    def made(self) -> bytes:
        """The content, which may be made only now."""
        return self.content() if callable(self.content) else self.content


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a plan. why: what is wrong. otherwise: what the broker would do. loss: what the change costs; empty for nothing.

    changes: made together, in this order; empty if there is no remedy, which `why` explains. assumes: a setting that is not known.
    after: how many steps of the plan this one builds on, the first ones; it is of what they leave. costs: messages that can be read before
    the change, and that a broker does not have after it. in_copy: only links prevent the changes, which can be made in a real copy of the
    store.
    """

    kind: str
    file: str
    offset: int
    length: int
    why: str
    otherwise: str
    loss: str
    changes: tuple[Change, ...]
    assumes: str = field(default="", kw_only=True)
    after: int = field(default=0, kw_only=True)
    costs: int = field(default=0, kw_only=True)
    in_copy: bool = field(default=False, kw_only=True)

    @property
    def possible(self) -> bool:
        return bool(self.changes)

    def as_dict(self, number: int) -> dict[str, Any]:
        """Return the row that `repair --plan` prints."""
        return {
            "number": number,
            "step": self.kind,
            "file": self.file,
            "offset": self.offset,
            "length": self.length,
            "why": self.why,
            "otherwise": self.otherwise,
            "loss": self.loss,
            "possible": self.possible,
            "assumes": self.assumes or None,
        }


def renames(named: Mapping[str, str]) -> list[Change]:
    """Return the renames that give files their own names that have each other's. named: the file with it, by each name."""
    left, changes = dict(named), []
    while left:  # each circle begins with one file that is put aside
        last = name = max(left)
        changes.append(Change("rename", last, to=f"{last}.swapped"))
        while (has := left.pop(name)) != last:
            changes.append(Change("rename", has, to=name))
            name = has
        changes.append(Change("rename", f"{last}.swapped", to=name))
    return changes


AnyStep = TypeVar("AnyStep", bound=Step)


def chosen(steps: Sequence[AnyStep], only: Collection[int] | None) -> list[AnyStep]:
    """Return the steps with these numbers, counted from 1. Raises UsageError for a number that is not in the plan."""
    if only is None:
        return list(steps)
    for number in only:
        if not 1 <= number <= len(steps):
            raise UsageError(f"--only {number}: the last step of the plan is {len(steps)}; `mqstore repair STORE` lists the steps")
        left_out = [before for before in range(1, steps[number - 1].after + 1) if before not in only and steps[before - 1].possible]
        if left_out:
            raise UsageError(f"--only {number}: that step is of what the first {steps[number - 1].after} steps leave; add them")
    return [step for number, step in enumerate(steps, 1) if number in only]
