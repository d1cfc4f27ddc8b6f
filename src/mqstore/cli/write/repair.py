"""`repair`: the plan of changes after which a broker starts on a store; the changes, with an undo journal; and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from mqstore.cli.common.arguments import AssumeDefaults, Config, QueueNames, ReaderThreads, StoreInPlace, option
from mqstore.cli.common.command import FamilyOptions, family_options, open_either, verb
from mqstore.cli.common.output import Output
from mqstore.errors import MqstoreError, UsageError
from mqstore.table.formatting import command, count, real_copy

if TYPE_CHECKING:
    from mqstore.repair.repair import Repair, RepairReport

NAMES = ("number", "step", "file", "offset", "length", "why", "otherwise", "loss", "possible")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """Options of `repair`."""

    family_options: ClassVar[FamilyOptions] = family_options(rocketmq=("threads", "config", "assume_defaults"), rabbitmq=("names",))

    plan: Annotated[bool, typer.Option("--plan", help="List the changes and make none; the default.")] = False
    apply: Annotated[bool, typer.Option("--apply", help="Make the changes, after the undo journal is on disk.")] = False
    undo: Annotated[bool, typer.Option("--undo", help="Give back every byte and name, from the journal.")] = False
    journal: Annotated[
        Path | None, option("--journal", metavar="DIR", help="The undo journal, a directory outside the store; default: STORE.undo.")
    ] = None
    only: Annotated[str | None, option("--only", metavar="N,…", help="With --apply: only these steps of the plan.")] = None
    threads: ReaderThreads = None
    config: Config = None
    assume_defaults: AssumeDefaults = False
    names: QueueNames = None

    def numbers(self) -> frozenset[int] | None:
        """Return the numbers of the steps asked for. Raises UsageError, also for options that contradict each other."""
        if self.plan + self.apply + self.undo > 1:
            raise UsageError("--plan, --apply and --undo exclude each other")
        if self.undo and self.only is not None:
            raise UsageError("--undo takes back the whole repair; --only does not apply to it")
        if self.only is not None and not self.apply:
            raise UsageError("--only chooses the steps that --apply takes; add --apply, or leave --only out for the whole plan")
        try:
            return None if self.only is None else frozenset(int(part) for part in self.only.split(","))
        except ValueError:
            raise UsageError(f"--only {self.only!r} is not a list of numbers, such as 1,3") from None


def repair(out: Output, store: StoreInPlace, options: RepairOptions) -> int:
    """Repair a store in place: list the changes, make them, or take them back. Without --apply or --undo nothing is changed.

    No broker may have the store. An interrupted --apply or --undo goes on when the same command is run again.
    Exit status 1 if something cannot be repaired or, without --apply, there is anything to repair.
    """
    only = options.numbers()
    opened = open_either(store, options, careful=True)
    plan = opened.repair(journal=options.journal, threads=options.threads, observer=out)
    if options.undo:
        undone = plan.undo()
        if out.is_text:
            out.line(f"Taken back: {count(undone.undone, 'change')} of {plan.root}; the journal is removed.", style="bold")
        else:
            out.report(undone.as_dict())
        return 0
    if options.apply:
        report = plan.apply(only, assume_defaults=options.assume_defaults)
        _show_report(out, plan, report)
        if out.is_text and report.repaired and not report.finished:
            _show_outcome(out, store, plan, report, options)
        return 0 if report.ok else 1
    if out.is_text:
        _show_plan(out, plan, store, options)
    else:
        out.records(NAMES, plan.as_dict()["steps"])
    return 1 if plan.steps else 0


def _show_plan(out: Output, plan: Repair, store: object, options: RepairOptions) -> None:
    """Show the steps, and the commands that make them."""
    if not plan.steps:
        out.line(f"There is nothing to repair in {plan.root}.")
        return
    out.line(f"{count(len(plan.steps), 'step')} to repair {plan.root}; nothing is changed yet:", style="bold")
    for number, step in enumerate(plan.steps, 1):
        where = step.file if not step.length else f"{step.file} at {step.offset}, {count(step.length, 'byte')}"
        out.line()
        out.line(f"{number:>3}  {step.kind}, {where}" + ("" if step.possible else f": cannot be repaired{' here' if step.in_copy else ''}"))
        out.line(f"     {step.why}.")
        out.line(f"     {_otherwise(plan.broker, step.otherwise)}.")
        if step.possible:
            out.line(f"     Cost: {step.loss or 'nothing'}.")
    out.line()
    journal = plan.free_journal
    names = () if options.names is None else ("--names", options.names)
    given = names if options.config is None else (*names, "--config", options.config)
    apply = ("mqstore", "repair", store, "--apply", *(() if journal is None else ("--journal", journal)), *given)
    if refusal := plan.refusal:
        out.line(f"The changes cannot be made: {refusal}.", style="red")
    if plan.needs_copy:
        copied, copy = real_copy(plan.root)
        out.next_step("make a real copy of the store, and repair that.", copied, command("mqstore", "repair", copy, *given))
    elif refusal:
        return
    elif any(step.possible and step.assumes for step in plan.steps):
        out.next_step(
            "make the changes, with the default that is assumed or with the broker's own configuration; `--undo` takes them back.",
            command(*apply, "--assume-defaults"),
            command(*apply, "--config", "broker.conf"),
        )
    elif any(step.costs for step in plan.steps) and not Path(f"{store}.jsonl").exists():
        salvage = command("mqstore", "salvage", store, "--to", f"{store}.jsonl", *names)
        out.next_step("save first what a step costs, then make the changes; `--undo` takes them back.", salvage, command(*apply))
    elif any(step.possible for step in plan.steps):
        out.next_step("make the changes; `--undo` takes them back.", command(*apply))


def _otherwise(broker: str, what: str) -> str:
    """Return the sentence of what a broker does without a step.

    >>> _otherwise("broker", "it stops here"), _otherwise("node", "the queue is lost")
    ('Without this step the broker stops here', 'Without this step: the queue is lost')
    """
    return f"Without this step the {broker} {what.removeprefix('it ')}" if what.startswith("it ") else f"Without this step: {what}"


def _show_report(out: Output, plan: Repair, report: RepairReport) -> None:
    if not out.is_text:
        out.report(report.as_dict())
    elif report.finished:
        out.line(f"Finished the repair of {plan.root} that was interrupted: {count(report.finished, 'change')}.", style="bold")
    elif not report.repaired and report.ok:
        out.line(f"There is nothing to repair in {plan.root}.")
    else:
        for _, step in report.not_repaired:
            out.line(f"Not repaired: {step.kind}, {step.file}: {step.why}.", style="red")
        if report.repaired:
            out.line(f"Repaired {plan.root}: {count(report.repaired, 'step')}.", style="bold")


def _show_outcome(out: Output, store: Path, plan: Repair, report: RepairReport, options: RepairOptions) -> None:
    """Show what a broker makes of the store now, and what to do next."""
    undo = command("mqstore", "repair", plan.root, "--undo", "--journal", report.journal)
    try:
        repaired = open_either(store, options)
        with out.progress("diagnosing", repaired.progress_unit) as progress:
            answer = repaired.diagnose(threads=options.threads, progress=progress)
    except MqstoreError as error:
        out.line(f"What a {plan.broker} makes of it is not known: {error}.")
        out.next_step("take everything back, if the changes are not wanted.", undo)
        return
    out.line(answer.headline)
    out.next_step(f"{answer.why}; or take everything back.", answer.next, undo)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="repair /data/store --plan")(repair)
