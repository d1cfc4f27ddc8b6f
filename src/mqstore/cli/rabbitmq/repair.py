"""`repair` on a RabbitMQ store: what a node would stumble over, changed in place, with an undo journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mqstore.cli.common.arguments import Store
from mqstore.cli.common.output import Output
from mqstore.cli.common.repairs import Repairing, RepairOptions, check_options, directory_of, run_repair
from mqstore.cli.rabbitmq.store import open_rabbitmq

if TYPE_CHECKING:
    from mqstore.rabbitmq.repair.queue_step import QueueStep


def repair(out: Output, store: Store, options: RepairOptions) -> int:
    """Repair a store in place: list the changes, make them, or take them back."""
    check_options(options)
    opened = open_rabbitmq(store, names=options.names, careful=True)
    directory_of(store, opened.path)
    from mqstore.rabbitmq.repair.plan import LOCKING, plan
    from mqstore.rabbitmq.repair.queue_step import completed

    def steps(progress: Callable[[int, int], None] | None) -> Sequence[QueueStep]:
        return plan(opened, progress=progress)

    def together(found: Sequence[Any]) -> Sequence[QueueStep]:
        return completed(opened.directory, found)

    return run_repair(out, store, options, Repairing(opened.directory.root, "node", LOCKING, steps, together, "queues"))
