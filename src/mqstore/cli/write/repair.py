"""`repair`: the plan of changes after which a broker starts on a store; the changes, with an undo journal; and the way back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from mqstore.cli.common.arguments import Store, open_store, verb
from mqstore.cli.common.output import Output
from mqstore.cli.common.repairs import Repairing, RepairOptions, check_options, directory_of, run_repair
from mqstore.cli.rabbitmq import repair as rabbitmq_repair

if TYPE_CHECKING:
    from mqstore.repair.change import Step


def repair(out: Output, store: Store, options: RepairOptions) -> int:
    """Repair a store in place: list the changes, make them, or take them back. Without --apply or --undo nothing is changed.

    No broker may have the store. An interrupted --apply or --undo goes on when the same command is run again.
    Exit status 1 if something cannot be repaired; with --plan also if there is anything to repair.
    """
    check_options(options)
    opened = open_store(store, options.config)
    opened.require_directory_for("repair")
    directory_of(store, opened.path)
    from mqstore.rocketmq.repair.plan import LOCKING, plan

    def steps(progress: Callable[[int, int], None] | None) -> Sequence[Step]:
        return plan(opened, threads=options.threads or os.cpu_count() or 1, progress=progress)

    def completed(found: Sequence[Step]) -> Sequence[Step]:
        opened.log.forget_all()
        return found

    return run_repair(out, store, options, Repairing(opened.directory.root, "broker", LOCKING, steps, completed))


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="repair /data/store --plan", panel="Write", rabbitmq=rabbitmq_repair.repair)(repair)
