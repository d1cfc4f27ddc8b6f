"""RabbitMQ: what the index entries of a queue are, counted and mapped.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.rabbitmq.store import fate
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.queue import EntryTable, Queue
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import count

STATES = ("acknowledged", "ready", "unacknowledged", "transient", "waiting", "lost")  # ascending: a map shows the highest of a cell
ACKNOWLEDGED, READY, UNACKNOWLEDGED, TRANSIENT, WAITING, LOST = range(6)
WIDTH = 1000.0
CELLS = 250  # of a map

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
    found = _OF_FATE[table.fate]
    found[(found == READY) & table.redelivered] = UNACKNOWLEDGED
    return found


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
    found: dict[tuple[str, str], NDArray[np.int64]] = {}
    clean: dict[tuple[str, str], bool] = {}
    for vhost in store.vhosts:
        for queue in vhost.queues:
            found.setdefault((queue.vhost or "", queue.name), np.zeros(len(STATES), np.int64))
            clean[queue.vhost or "", queue.name] = queue.start.terms is not None
        for rows in store.rows_of(vhost, QueueSelection(everything=True)):
            found[rows.vhost or "", rows.queue or ""] += np.bincount(state_numbers(rows.table), minlength=len(STATES))
    return tuple(QueueDepth(*key, clean[key], tuple(counts.tolist())) for key, counts in found.items())


def page_of_rows(rows: Iterator[MessageRows], states: frozenset[int] | None, start: int, size: int) -> Iterator[MessageRows]:
    """Yield the rows number start to start+size-1 of those in the given states."""
    skip, left = start, size
    for each in rows:
        numbers = state_numbers(each.table)
        wanted = np.arange(len(each)) if states is None else np.flatnonzero(np.isin(numbers, list(states)))
        taken = wanted[skip : skip + left]
        skip = max(0, skip - len(wanted))
        left -= len(taken)
        if len(taken):
            yield each.take(taken)
        if left <= 0:
            return


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """The entries of one index file in one segment, drawn by sequence id. runs: (x, width, state); counts: in the order of `STATES`."""

    file: str
    low: int
    high: int
    counts: tuple[int, ...]
    runs: tuple[tuple[float, float, str], ...]

    @property
    def summary(self) -> str:
        parts = [f"{number:,} {STATES[state]}" for state, number in reversed(list(enumerate(self.counts))) if number]
        entries = count(sum(self.counts), "entry")
        return f"{entries}, sequence ids {self.low:,} to {self.high:,}: {', '.join(parts)}"


def segment_maps(directories: Sequence[Queue], *, refused: bool, limit: int) -> tuple[list[SegmentMap], int]:
    """Return the maps of the first segments and journals of a queue, and the number of segments that are left out."""
    places = [(queue, version, number) for queue in directories for version, number in queue.segments()]
    maps: list[SegmentMap] = []
    for queue, version, number in places[:limit]:
        table = queue.entry_table(version, number)
        if refused:
            table.refuse()
        names = [name for name, _ in table.sources]
        states = state_numbers(table)
        for file in np.unique(table.index_file).tolist():
            mine = np.flatnonzero(table.index_file == file)
            maps.append(_map_of(names[file], table.entries["seq"][mine].astype(np.int64), states[mine]))
    return maps, max(0, len(places) - limit)


def _map_of(file: str, seq: NDArray[np.int64], states: NDArray[np.uint8]) -> SegmentMap:
    low, high = int(seq.min()), int(seq.max())
    cells = min(CELLS, high - low + 1)
    worst = np.full(cells, -1, np.int16)
    np.maximum.at(worst, (seq - low) * cells // (high - low + 1), states.astype(np.int16))
    edges = np.flatnonzero(np.diff(worst)) + 1
    runs = []
    for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), cells], strict=True):
        if worst[start] >= 0:
            runs.append((round(WIDTH * start / cells, 2), round(WIDTH * (stop - start) / cells, 2), STATES[int(worst[start])]))
    return SegmentMap(file, low, high, tuple(np.bincount(states, minlength=len(STATES)).tolist()), tuple(runs))
