"""The basket: messages selected for an export or a replay, stored as places rather than bytes, and read in the order of the basket.

Adjacent messages of the same RabbitMQ queue are read in one pass, in the order of the queue.

>>> kept = Basket()
>>> kept.add([InLog(0, 512), InLog(0, 512), InQueue(1, "/", "orders", None, 7)])
2
>>> [str(place) for place in kept.places]
['0:512', '1:%2F/orders//7']
>>> place_from("1:%2F/orders//7") == kept.places[1]
True
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np

from mqstore.console.stores import StoreList
from mqstore.errors import UsageError
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rocketmq.store.message_pages import batches_at
from mqstore.table.columns import RABBITMQ_COLUMNS, ROCKETMQ_COLUMNS, QueueSelection, rabbitmq_schema, rocketmq_schema
from mqstore.table.text import columns_for, json_rows, rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    import pyarrow as pa

LIMIT = 10_000
LARGEST_PARQUET = 256 << 20

_HIGHEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class InLog:
    """A message of a RocketMQ store. store: the store's number."""

    store: int
    physical_offset: int

    def __str__(self) -> str:
        return f"{self.store}:{self.physical_offset}"


@dataclass(frozen=True, slots=True)
class InQueue:
    """A message of a RabbitMQ store: an entry of a queue's index. level: priority level, None for a queue without priorities."""

    store: int
    vhost: str
    queue: str
    level: int | None
    seq_id: int

    def __str__(self) -> str:
        level = "" if self.level is None else self.level
        return f"{self.store}:{_quoted(self.vhost)}/{_quoted(self.queue)}/{level}/{self.seq_id}"


Place = InLog | InQueue


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


def _unquoted(text: str) -> str:
    return unquote(text, errors="surrogatepass")


def _number_of(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > _HIGHEST:
        raise ValueError(text)
    return int(text)


def place_from(text: str) -> Place:
    """Parse the text form of a place. Raises UsageError."""
    try:
        store, _, rest = text.partition(":")
        parts = rest.split("/")
        if len(parts) == 1:
            return InLog(_number_of(store), _number_of(rest))
        vhost, queue, level, seq_id = parts
        return InQueue(_number_of(store), _unquoted(vhost), _unquoted(queue), _number_of(level) if level else None, _number_of(seq_id))
    except ValueError:
        raise UsageError(f"{text[:80]!r} does not name a message; select messages on a page that lists them") from None


class Basket:
    """Distinct places in the order they were added; at most LIMIT."""

    def __init__(self) -> None:
        self._places: dict[Place, None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, place: Place) -> bool:
        return place in self._places

    @property
    def places(self) -> list[Place]:
        with self._lock:
            return list(self._places)

    def add(self, places: Iterable[Place]) -> int:
        """Add places and return how many are new. Raises UsageError, adding nothing, if there would be too many."""
        with self._lock:
            new = dict.fromkeys(place for place in places if place not in self._places)
            if len(self._places) + len(new) > LIMIT:
                raise UsageError(f"the basket holds {LIMIT:,} messages at most; export these first, or use `mqstore export` for more")
            self._places |= new
            return len(new)

    def remove(self, places: Iterable[Place]) -> None:
        with self._lock:
            for place in places:
                self._places.pop(place, None)

    def clear(self) -> None:
        with self._lock:
            self._places.clear()


# reading


def log_batches(stores: StoreList, places: Sequence[Place], columns: Sequence[str], *, milliseconds: bool) -> Iterator[pa.RecordBatch]:
    """Yield the messages of RocketMQ stores among the places; those that are no longer valid records are left out."""
    for place in places:
        if isinstance(place, InLog):
            view = stores.get(place.store).view("disk")
            yield from batches_at(view, [place.physical_offset], columns, milliseconds=milliseconds)


def _queue_of(place: InQueue) -> tuple[int, str, str, int | None]:
    return place.store, place.vhost, place.queue, place.level


def queue_rows(stores: StoreList, places: Sequence[Place]) -> Iterator[tuple[RabbitMQStore, MessageRows]]:
    """Yield the index entries of RabbitMQ stores among the places."""
    for (number, vhost, queue, level), group in groupby((place for place in places if isinstance(place, InQueue)), _queue_of):
        seq_ids = np.array(sorted({place.seq_id for place in group}), np.int64)
        store = stores.get(number).rabbitmq
        selection = QueueSelection(
            vhosts=frozenset({vhost}),
            queues=frozenset({queue}),
            from_seq=int(seq_ids[0]),
            to_seq=int(seq_ids[-1]) + 1,
            everything=True,
        )
        for rows in store.rows(selection):
            if rows.priority_level == level:
                hits = np.flatnonzero(np.isin(rows.table.entries["seq"], seq_ids))
                if len(hits):
                    yield store, rows.take(hits)


def _queue_batches(stores: StoreList, places: Sequence[Place], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    for store, rows in queue_rows(stores, places):
        batch = store.batch(rows, columns)
        if batch is not None:
            yield batch


def json_lines(stores: StoreList, places: Sequence[Place], family: str) -> Iterator[bytes]:
    """Yield rows as `mqstore messages -o jsonl --body base64` prints them."""
    if family == "rocketmq":
        batches = log_batches(stores, places, columns_for("base64"), milliseconds=True)
    else:
        batches = (rename_properties_json(batch) for batch in _queue_batches(stores, places, rabbitmq_columns_for("base64")))
    for batch in batches:
        for row in json_rows(batch, "base64"):
            yield f"{row}\n".encode("utf-8", "backslashreplace")


def parquet(stores: StoreList, places: Sequence[Place], family: str) -> bytes:
    """Return the message table as a Parquet file. Raises UsageError if it would not fit into memory."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    total = 0
    schema: Any = rocketmq_schema(ROCKETMQ_COLUMNS) if family == "rocketmq" else rabbitmq_schema(RABBITMQ_COLUMNS)
    if family == "rocketmq":
        batches = log_batches(stores, places, ROCKETMQ_COLUMNS, milliseconds=False)
    else:
        batches = _queue_batches(stores, places, RABBITMQ_COLUMNS)
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for group in _combine_batches(batches):
            total += group.nbytes
            if total > LARGEST_PARQUET:
                raise UsageError("the messages are too large for one download; use jsonl, or `mqstore export` for the whole store")
            writer.write_table(group)
    return sink.getvalue()


def _combine_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into tables, one per row group."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if len(held) >= 1000 or sum(each.nbytes for each in held[-8:]) > 32 << 20:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
