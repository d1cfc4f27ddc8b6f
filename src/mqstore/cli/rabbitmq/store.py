"""What the commands on RabbitMQ stores share: opening a store, choosing a vhost, reporting findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore.cli.common.output import Output

if TYPE_CHECKING:
    from mqstore.findings import Damage
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.stores.rabbitmq import RabbitMQ

FINDINGS_SHOWN = 20


def open_rabbitmq(store: Path, *, now: int | None = None, names: Path | None = None, careful: bool = False) -> RabbitMQ:
    """Open the store argument of a command. now: microseconds since 1970; names: a file of queue names; careful: as in RabbitMQStore."""
    from mqstore import stores

    return stores.open_rabbitmq(store, now=now, names=() if names is None else read_names(names), careful=careful)


def read_names(file: Path) -> list[tuple[str, str]]:
    """Read the queue names in a file. Raises CannotOpenError, UsageError."""
    from mqstore.rabbitmq.definitions.document import read_queue_names

    return list(read_queue_names(file))


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
