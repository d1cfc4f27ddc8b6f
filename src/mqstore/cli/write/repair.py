"""`repair`: the plan of changes after which a broker starts on a RocketMQ store; the changes, with an undo journal; and the way back."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.common.arguments import Config, ReaderThreads, Store, open_store, option, verb
from mqstore.cli.common.output import Output
from mqstore.errors import TargetError, UnsupportedError, UsageError
from mqstore.table.formatting import command, count

if TYPE_CHECKING:
    from mqstore.rocketmq.repair.change import Step

__all__ = ["register"]

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
    threads: ReaderThreads = None
    config: Config = None


def repair(out: Output, store: Store, options: RepairOptions) -> int:
    """Repair a store in place: list the changes, make them, or take them back. Without --apply or --undo nothing is changed.

    No broker may have the store. An interrupted --apply or --undo goes on when the same command is run again.
    Exit status 1 if something cannot be repaired; with --plan also if there is anything to repair.
    """
    if options.plan + options.apply + options.undo > 1:
        raise UsageError("--plan, --apply and --undo exclude each other")
    if options.undo and options.only is not None:
        raise UsageError("--undo takes back the whole repair; --only does not apply to it")
    only = _numbers(options.only)
    opened = open_store(store, options.config)
    root = opened.path
    if not isinstance(root, Path) or not root.is_dir():
        raise UnsupportedError(f"{store} is not a directory: unpack or copy the store first, and repair that")
    root = opened.directory.root
    journal = options.journal or root.with_name(f"{root.name}.undo") if root.name else options.journal
    if journal is None:
        raise UsageError("give the directory of the undo journal with --journal")
    if options.undo:
        return _undo(out, root, journal)
    if options.apply:
        found = _resumed(out, root, journal)
        if found is not None:
            return found
    from mqstore.rocketmq.repair.plan import chosen, plan

    with out.progress("planning") as progress:
        steps = plan(opened, threads=options.threads or os.cpu_count() or 1, progress=progress)
    if not options.apply:
        return _show(out, root, steps, store)
    opened.log.forget_all()
    return _apply(out, root, journal, chosen(steps, only))


def _numbers(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--only {text!r} is not a list of numbers, such as 1,3") from None


def _show(out: Output, root: Path, steps: list[Step], store: object) -> int:
    if not out.is_text:
        out.records(NAMES, (step.as_dict(number) for number, step in enumerate(steps, 1)))
        return 1 if steps else 0
    if not steps:
        out.line(f"There is nothing to repair in {root}.")
        return 0
    out.line(f"{count(len(steps), 'step')} to repair {root}; nothing is changed yet:", style="bold")
    for number, step in enumerate(steps, 1):
        where = step.file if not step.length else f"{step.file} at {step.offset}, {count(step.length, 'byte')}"
        out.line()
        out.line(f"{number:>3}  {step.kind}, {where}" + ("" if step.possible else ": cannot be repaired"))
        out.line(f"     {step.why}.")
        out.line(f"     Otherwise, of a broker: {step.otherwise}.")
        if step.possible:
            out.line(f"     Lost by it: {step.loss or 'nothing'}.")
    out.line()
    if any(step.possible for step in steps):
        out.next_step("make the changes; `--undo` takes them back.", command("mqstore", "repair", store, "--apply"))
    return 1


def _apply(out: Output, root: Path, path: Path, steps: list[Step]) -> int:
    from mqstore.rocketmq.repair.journal import apply, read_journal

    possible = [step for step in steps if step.possible]
    if not possible:
        if not steps and out.is_text:
            out.line(f"There is nothing to repair in {root}.")
        return _report(out, root, None, [], steps)
    if read_journal(path) is not None:
        raise TargetError(
            f"{path} is the journal of an earlier repair: take that back with --undo, or give another directory with --journal"
        )
    apply(root, path, possible)
    return _report(out, root, path, possible, steps)


def _report(out: Output, root: Path, path: Path | None, done: list[Step], steps: list[Step]) -> int:
    left = [step for step in steps if not step.possible]
    if out.is_text:
        for step in left:
            out.line(f"Not repaired: {step.kind}, {step.file}: {step.why}.", style="red")
        if done:
            out.line(f"Repaired {root}: {count(len(done), 'step')}.", style="bold")
            out.next_step(
                "see what a broker makes of it now; or take everything back.",
                command("mqstore", "diagnose", root),
                command("mqstore", "repair", root, "--undo", "--journal", path),
            )
    else:
        out.report(
            {
                "repaired": len(done),
                "journal": None if path is None else str(path),
                "not_repaired": [step.as_dict(number) for number, step in enumerate(steps, 1) if not step.possible],
            }
        )
    return 1 if left else 0


def _resumed(out: Output, root: Path, path: Path) -> int | None:
    """Finish an apply that was interrupted; None if there was none."""
    from mqstore.rocketmq.repair.journal import PREPARED, UNDOING, read_journal, resume

    found = read_journal(path)
    if found is None:
        return None
    if found.state == UNDOING:
        raise TargetError(f"an --undo with {path} was interrupted; run it again")
    if found.state != PREPARED:
        return None
    resume(root, found)
    if out.is_text:
        out.line(f"Finished the repair of {root} that was interrupted: {count(len(found.changes), 'change')}.", style="bold")
    else:
        out.report({"repaired": len({change["step"] for change in found.changes}), "journal": str(path), "not_repaired": []})
    return 0


def _undo(out: Output, root: Path, path: Path) -> int:
    from mqstore.rocketmq.repair.journal import read_journal, undo

    found = read_journal(path)
    if found is None:
        raise TargetError(f"there is no journal {path}: nothing was repaired, or the repair was taken back already")
    number = undo(root, found)
    if out.is_text:
        out.line(f"Taken back: {count(number, 'change')} of {root}; the journal is removed.", style="bold")
    else:
        out.report({"undone": number})
    return 0


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(
        app,
        example="repair /data/store --plan",
        panel="Write",
        rabbitmq="repair changes RocketMQ stores; `salvage` and `convert` write a new one",
    )(repair)
