"""What the commands on RabbitMQ stores share: opening a store, choosing a vhost, reporting findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore.cli.common.output import Output
from mqstore.errors import NotFoundError, UsageError
from mqstore.table.spelling import did_you_mean

if TYPE_CHECKING:
    from mqstore.findings import Damage
    from mqstore.rabbitmq.store.store import RabbitMQStore

__all__ = ["note_damage", "note_findings", "only_vhost", "open_rabbitmq", "queue_title", "read_names"]

FINDINGS_SHOWN = 20


def open_rabbitmq(store: Path, *, now: int | None = None, names: Path | None = None, careful: bool = False) -> RabbitMQStore:
    """Open the store argument of a command. now: microseconds since 1970; names: a file of queue names; careful: as in RabbitMQStore."""
    from mqstore import places

    return places.open_rabbitmq(store, now=now, names=() if names is None else read_names(names), careful=careful)


def read_names(file: Path) -> list[tuple[str, str]]:
    """Read the queue names in a file. Raises CannotOpenError, UsageError."""
    from mqstore.rabbitmq.definitions.queue_names import read

    return list(read(file))


def only_vhost(store: RabbitMQStore, vhost: str | None, queue: str) -> str:
    """Return the vhost of a queue: the one given, or the only one that has such a queue. Raises NotFoundError, UsageError."""
    if vhost is not None:
        store.queue(vhost, queue)
        return vhost
    having = sorted({each.vhost or "" for each in store.queues if each.name == queue})
    if not having:
        meant = did_you_mean(queue, {each.name for each in store.queues})
        raise NotFoundError(f"no vhost has a queue {queue!r}{meant or '; `mqstore topics` lists all queues'}")
    if len(having) > 1:
        raise UsageError(f"{', '.join(having)} have a queue {queue!r}; add --vhost")
    return having[0]


def queue_title(queue: str, priority: int | None) -> str:
    """Return a queue's name for a person, with its priority level.

    >>> queue_title("tasks", None), queue_title("tasks", 4)
    ('tasks', 'tasks (priority 4)')
    """
    return queue if priority is None else f"{queue} (priority {priority})"


def note_findings(out: Output, store: RabbitMQStore) -> Sequence[Damage]:
    """Print the findings made while reading as notes, and return them."""
    return note_damage(out, store.findings)


def note_damage(out: Output, found: Sequence[Damage]) -> Sequence[Damage]:
    """Print findings as notes, and return them."""
    for item in found[:FINDINGS_SHOWN]:
        out.note(f"{item.file} at {item.offset}: {item.detail}")
    if len(found) > FINDINGS_SHOWN:
        out.note(f"and {len(found) - FINDINGS_SHOWN} further findings; `mqstore verify` lists them all")
    return found
