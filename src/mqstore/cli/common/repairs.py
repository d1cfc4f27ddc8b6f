"""What `repair` does for both brokers: the plan shown, applied, gone on with, or taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqstore.cli.common.arguments import Config, QueueNames, ReaderThreads, option
from mqstore.cli.common.output import Output
from mqstore.cli.common.progress import BYTES
from mqstore.cli.common.store_kind import RabbitMQOnly, RocketMQOnly
from mqstore.errors import TargetError, UnsupportedError, UsageError
from mqstore.table.formatting import command, count

if TYPE_CHECKING:
    from mqstore.repair.change import Step
    from mqstore.repair.journal import StoreLocking

NAMES = ("number", "step", "file", "offset", "length", "why", "otherwise", "loss", "possible")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """Options of `repair`."""

    plan: Annotated[bool, typer.Option("--plan", help="List the changes and make none; the default.")] = False
    apply: Annotated[bool, typer.Option("--apply", help="Make the changes, after the undo journal is on disk.")] = False
    undo: Annotated[bool, typer.Option("--undo", help="Give back every byte and name, from the journal.")] = False
    journal: Annotated[
        Path | None, option("--journal", metavar="DIR", help="The undo journal, a directory outside the store; default: STORE.undo.")
    ] = None
    only: Annotated[str | None, option("--only", metavar="N,…", help="Only these steps of the plan.")] = None
    threads: RocketMQOnly[ReaderThreads] = None
    config: RocketMQOnly[Config] = None
    names: RabbitMQOnly[QueueNames] = None


@dataclass(frozen=True, slots=True)
class Repairing:
    """One kind of store. root: its directory; broker: how it is called; plan: returns the steps, in the order of their application.

    completed: returns chosen steps with the changes that they need together. unit: of what the plan reports as progress.
    """

    root: Path
    broker: str
    locking: StoreLocking
    plan: Callable[[Callable[[int, int], None] | None], Sequence[Step]]
    completed: Callable[[Sequence[Step]], Sequence[Step]] = lambda steps: steps
    unit: str = BYTES


def check_options(options: RepairOptions) -> None:
    """Raise UsageError for options that contradict each other."""
    if options.plan + options.apply + options.undo > 1:
        raise UsageError("--plan, --apply and --undo exclude each other")
    if options.undo and options.only is not None:
        raise UsageError("--undo takes back the whole repair; --only does not apply to it")
    _numbers(options.only)


def directory_of(store: Path, opened: object) -> None:
    """Raise UnsupportedError if the store is not a directory of this machine."""
    if not isinstance(opened, Path) or not opened.is_dir():
        raise UnsupportedError(f"{store} is not a directory: unpack or copy the store first, and repair that")


def run_repair(out: Output, store: Path, options: RepairOptions, back: Repairing) -> int:
    """Show the plan, apply it, or take the repair back."""
    root = back.root
    journal = options.journal or root.with_name(f"{root.name}.undo") if root.name else options.journal
    if journal is None:
        raise UsageError("give the directory of the undo journal with --journal")
    if options.undo:
        return _undo(out, back, journal)
    if options.apply:
        found = _resumed(out, back, journal)
        if found is not None:
            return found
    from mqstore.repair.change import chosen

    with out.progress("planning", back.unit) as progress:
        steps = list(back.plan(progress))
    if not options.apply:
        return _show(out, back, steps, store)
    return _apply(out, back, journal, chosen(steps, _numbers(options.only)))


def _numbers(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--only {text!r} is not a list of numbers, such as 1,3") from None


def _show(out: Output, back: Repairing, steps: Sequence[Step], store: object) -> int:
    if not out.is_text:
        out.records(NAMES, (step.as_dict(number) for number, step in enumerate(steps, 1)))
        return 1 if steps else 0
    if not steps:
        out.line(f"There is nothing to repair in {back.root}.")
        return 0
    out.line(f"{count(len(steps), 'step')} to repair {back.root}; nothing is changed yet:", style="bold")
    for number, step in enumerate(steps, 1):
        where = step.file if not step.length else f"{step.file} at {step.offset}, {count(step.length, 'byte')}"
        out.line()
        out.line(f"{number:>3}  {step.kind}, {where}" + ("" if step.possible else ": cannot be repaired"))
        out.line(f"     {step.why}.")
        out.line(f"     Otherwise, of a {back.broker}: {step.otherwise}.")
        if step.possible:
            out.line(f"     Lost by it: {step.loss or 'nothing'}.")
    out.line()
    if any(step.possible for step in steps):
        out.next_step("make the changes; `--undo` takes them back.", command("mqstore", "repair", store, "--apply"))
    return 1


def _apply(out: Output, back: Repairing, path: Path, steps: Sequence[Step]) -> int:
    from mqstore.repair.journal import apply, read_journal

    possible = [step for step in steps if step.possible]
    if not possible:
        if not steps and out.is_text:
            out.line(f"There is nothing to repair in {back.root}.")
        return _report(out, back, None, [], steps)
    if read_journal(path) is not None:
        raise TargetError(
            f"{path} is the journal of an earlier repair: take that back with --undo, or give another directory with --journal"
        )
    apply(back.root, path, back.completed(possible), back.locking)
    return _report(out, back, path, possible, steps)


def _report(out: Output, back: Repairing, path: Path | None, done: Sequence[Step], steps: Sequence[Step]) -> int:
    left = [step for step in steps if not step.possible]
    if out.is_text:
        for step in left:
            out.line(f"Not repaired: {step.kind}, {step.file}: {step.why}.", style="red")
        if done:
            out.line(f"Repaired {back.root}: {count(len(done), 'step')}.", style="bold")
            out.next_step(
                f"see what a {back.broker} makes of it now; or take everything back.",
                command("mqstore", "diagnose", back.root),
                command("mqstore", "repair", back.root, "--undo", "--journal", path),
            )
    else:
        report: dict[str, Any] = {
            "repaired": len(done),
            "journal": None if path is None else str(path),
            "not_repaired": [step.as_dict(number) for number, step in enumerate(steps, 1) if not step.possible],
        }
        out.report(report)
    return 1 if left else 0


def _resumed(out: Output, back: Repairing, path: Path) -> int | None:
    """Finish an apply that was interrupted; None if there was none."""
    from mqstore.repair.journal import PREPARED, UNDOING, read_journal, resume

    found = read_journal(path)
    if found is None:
        return None
    if found.state == UNDOING:
        raise TargetError(f"an --undo with {path} was interrupted; run it again")
    if found.state != PREPARED:
        return None
    resume(back.root, found, back.locking)
    if out.is_text:
        out.line(f"Finished the repair of {back.root} that was interrupted: {count(len(found.changes), 'change')}.", style="bold")
    else:
        out.report({"repaired": len({change.step for change in found.changes}), "journal": str(path), "not_repaired": []})
    return 0


def _undo(out: Output, back: Repairing, path: Path) -> int:
    from mqstore.repair.journal import read_journal, undo

    found = read_journal(path)
    if found is None:
        raise TargetError(f"there is no journal {path}: nothing was repaired, or the repair was taken back already")
    number = undo(back.root, found, back.locking)
    if out.is_text:
        out.line(f"Taken back: {count(number, 'change')} of {back.root}; the journal is removed.", style="bold")
    else:
        out.report({"undone": number})
    return 0
