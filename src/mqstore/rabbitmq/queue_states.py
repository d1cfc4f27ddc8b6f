"""What the index entries of a queue are: counts by state, and pages of messages in some states.

    ready            the broker would recover it, and consumers have not had it
    unacknowledged   the broker would recover it, and marks it as redelivered: consumers had it
    lost             persistent, not acknowledged, and the broker would start without it
    waiting          intact, in a queue or vhost that the broker would not start
    transient        dropped at every start
    acknowledged     consumed; still in the files

Ready and unacknowledged messages together are those of `topics`, and the unacknowledged ones those that `diagnose` counts as delivered
again. After an unclean stop a node marks all messages as redelivered, as nothing says which of them were. Only indexes are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqstore.rabbitmq import listing
from mqstore.rabbitmq.listing import entry_rows
from mqstore.rabbitmq.store import fate
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.queue import EntryTable
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import QueueSelection

STATES = ("acknowledged", "ready", "unacknowledged", "transient", "waiting", "lost")  # ascending: a map shows the highest of a cell
ACKNOWLEDGED, READY, UNACKNOWLEDGED, TRANSIENT, WAITING, LOST = range(6)

_OF_FATE = np.full(len(fate.FATES), LOST, np.uint8)
for _fate, _state in (
    (fate.RECOVERED, READY),
    (fate.ACKNOWLEDGED, ACKNOWLEDGED),
    (fate.UNLISTED, ACKNOWLEDGED),
    (fate.TRANSIENT, TRANSIENT),
    (fate.REFUSED, WAITING),
):
    _OF_FATE[_fate] = _state


def state_numbers(table: EntryTable) -> NDArray[np.uint8]:
    """Return the state of each entry, as a number of `STATES`."""
    numbers = _OF_FATE[table.fate]
    numbers[(numbers == READY) & table.redelivered] = UNACKNOWLEDGED
    return numbers


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The entries of one queue by state, the levels of a priority queue combined. counts: in the order of `STATES`.

    clean: after a clean stop, so that it is known which messages consumers had.
    """

    vhost: str
    queue: str
    clean: bool
    counts: tuple[int, ...]

    def of(self, state: str) -> int:
        return self.counts[STATES.index(state)]

    @property
    def messages(self) -> int:
        """Messages that are not acknowledged."""
        return sum(self.counts) - self.counts[ACKNOWLEDGED]


def queue_depths(store: RabbitMQStore) -> tuple[QueueDepth, ...]:
    """Return the depth of every queue with a directory, by vhost and name."""
    depths: dict[tuple[str, str], NDArray[np.int64]] = {}
    clean: dict[tuple[str, str], bool] = {}
    for vhost in store.vhosts:
        for queue in vhost.queues:
            depths.setdefault((queue.vhost or "", queue.name), np.zeros(len(STATES), np.int64))
            clean[queue.vhost or "", queue.name] = queue.start.terms is not None
        for rows in store.rows_of(vhost, QueueSelection(everything=True)):
            depths[rows.vhost or "", rows.queue or ""] += np.bincount(state_numbers(rows.table), minlength=len(STATES))
    return tuple(QueueDepth(*key, clean[key], tuple(counts.tolist())) for key, counts in depths.items())


def depths_beside(store: RabbitMQStore) -> Iterator[QueueDepth]:
    """Yield the depths of quorum queues and streams: what the restarted node delivers or keeps as `ready`, and what is lost or waiting."""
    for row in chain(listing.quorum_rows(store), listing.stream_rows(store)):
        counts = {"ready": row["messages"], "waiting": row["waiting"], "lost": row["lost"]}
        yield QueueDepth(row["vhost"] or "", row["queue"], True, tuple(counts.get(state, 0) for state in STATES))


def page_of_rows(rows: Iterator[MessageRows], states: frozenset[int] | None, start: int, size: int) -> Iterator[MessageRows]:
    """Yield the rows number start to start+size-1 of those in the given states."""
    skip, left = start, size
    for each in rows:
        numbers = state_numbers(each.table)
        selected = np.arange(len(each)) if states is None else np.flatnonzero(np.isin(numbers, list(states)))
        taken = selected[skip : skip + left]
        skip = max(0, skip - len(selected))
        left -= len(taken)
        if len(taken):
            yield each.take(taken)
        if left <= 0:
            return


# the entries of one queue, with the states of `queue`


@dataclass(frozen=True, slots=True)
class EntryPage:
    """A page of index entries, as `listing.entry_rows` has them. following: (level, sequence id) of the next one, None at the end."""

    rows: list[dict[str, Any]]
    following: tuple[int | None, int] | None


def count_entries(store: RabbitMQStore, vhost: str, queue: str) -> Counter[str]:
    """Count the entries of a queue by their state in `listing`. The whole index is read."""
    states: Counter[str] = Counter()
    for rows in store.rows(_one_queue(vhost, queue)):
        states.update(row["state"] for row in entry_rows(rows))
    return states


def entry_page(store: RabbitMQStore, vhost: str, queue: str, state: str, size: int, level: int | None = None, start: int = 0) -> EntryPage:
    """Return entries from a position onwards, those of high priority first. state: of `listing.STATES`; empty for all of them."""
    page: list[dict[str, Any]] = []
    for rows in store.rows(_one_queue(vhost, queue)):
        if rows.priority_level is not None and level is not None and rows.priority_level > level:
            continue
        if start and (level is None or rows.priority_level == level):
            rows = rows.take(np.flatnonzero(rows.table.entries["seq"] >= start))
        for row in entry_rows(rows):
            if state in ("", row["state"]):
                if len(page) == size:
                    return EntryPage(page, (row["priority_level"], row["seq_id"]))
                page.append(row)
    return EntryPage(page, None)


def _one_queue(vhost: str, queue: str) -> QueueSelection:
    return QueueSelection(vhosts=frozenset({vhost}), queues=frozenset({queue}), everything=True)
