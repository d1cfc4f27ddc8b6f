"""A step of a RabbitMQ repair, and what the steps of a vhost need together.

The terms of all queues of a vhost are in one file, `recovery.dets`. A step says which terms its queues have afterwards; the file is made
once, for the steps that were chosen. The tables of a clean stop describe files that a repair changes, so that `clean.dot` goes with the
first change of its vhost: a node then reads the files, and keeps numbers and marks from the terms.

Format: docs/formats/rabbitmq.md, sections 7.1, 8 and 15.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.erlang.terms import Term
from mqstore.rabbitmq.format.recovery_terms import QueueTerms, queue_value
from mqstore.repair.change import Change, Step

__all__ = ["QueueStep", "clean_dot", "completed", "recovery_file"]


@dataclass(frozen=True, slots=True)
class QueueStep(Step):
    """A step, with what it changes in the terms of a vhost. vhost: its place; terms: by queue directory; rewrites: the file is damaged."""

    vhost: str = ""
    terms: Mapping[str, QueueTerms] = field(default_factory=dict)
    rewrites: bool = False

    @property
    def possible(self) -> bool:
        return bool(self.changes or self.terms or self.rewrites)


def clean_dot(vhost: str) -> str:
    return f"{vhost}/msg_store_persistent/clean.dot".lstrip("/")


def recovery_file(vhost: str) -> str:
    return f"{vhost}/recovery.dets".lstrip("/")


def completed(directory: ReadOnlyDirectory, steps: Sequence[QueueStep]) -> list[QueueStep]:
    """Return the steps, the last of each vhost with the changes of its `clean.dot` and `recovery.dets`."""
    found = list(steps)
    for vhost in dict.fromkeys(step.vhost for step in steps if step.possible):
        mine = [number for number, step in enumerate(steps) if step.vhost == vhost and step.possible]
        changes: list[Change] = []
        mark = clean_dot(vhost)
        if directory.exists(mark) and not any(change.file == mark for number in mine for change in steps[number].changes):
            changes.append(Change("remove", mark))
        terms = {name: noted for number in mine for name, noted in steps[number].terms.items()}
        if terms or any(steps[number].rewrites for number in mine):
            changes.append(Change("put", recovery_file(vhost), content=_recovery(directory, vhost, terms)))
        last = found[mine[-1]]
        found[mine[-1]] = replace(last, changes=(*changes, *last.changes))
    return found


def _recovery(directory: ReadOnlyDirectory, vhost: str, terms: Mapping[str, QueueTerms]) -> bytes:
    """Return `recovery.dets` with these terms in place of those that it has for the same queues."""
    try:
        content = directory.read(recovery_file(vhost)) or b""
    except CannotOpenError:
        content = b""
    objects: list[tuple[Term, Term]] = []
    for key, value in dets.read_objects(content) if content else []:
        name = bytes(each for each in key if isinstance(each, int) and 0 < each < 256).decode("latin-1") if isinstance(key, list) else ""
        objects.append((key, queue_value(terms[name]) if name in terms else value))
    return dets.write_objects(objects)
