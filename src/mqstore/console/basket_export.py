"""Messages of a basket, read from their stores as rows for an export, in the order of the basket.

Adjacent messages of the same RabbitMQ queue are read in one pass, in the order of the queue.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from mqstore.console.basket import InLog, InQueue, Place
from mqstore.console.stores import StoreList
from mqstore.errors import UsageError
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import RABBITMQ_COLUMNS, ROCKETMQ_COLUMNS, QueueSelection, Selection, rabbitmq_schema, rocketmq_schema
from mqstore.table.text import columns_for, json_rows, rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_PARQUET = 256 << 20


def log_batches(stores: StoreList, places: Sequence[Place], columns: Sequence[str], *, milliseconds: bool) -> Iterator[pa.RecordBatch]:
    """Yield the messages of RocketMQ stores among the places; those that are no longer valid records are left out."""
    for place in places:
        if isinstance(place, InLog):
            view = stores.get(place.store).view("disk")
            yield from view.batches(
                columns, Selection(from_offset=place.physical_offset, to_offset=place.physical_offset + 1), milliseconds=milliseconds
            )


def _queue_of(place: InQueue) -> tuple[int, str, str, int | None]:
    return place.store, place.vhost, place.queue, place.level


def queue_rows(stores: StoreList, places: Sequence[Place]) -> Iterator[tuple[RabbitMQStore, MessageRows]]:
    """Yield the index entries of RabbitMQ stores among the places."""
    for (number, vhost, queue, level), group in groupby((place for place in places if isinstance(place, InQueue)), _queue_of):
        wanted = np.array(sorted({place.seq_id for place in group}), np.int64)
        store = stores.get(number).rabbitmq
        selection = QueueSelection(
            vhosts=frozenset({vhost}),
            queues=frozenset({queue}),
            from_seq=int(wanted[0]),
            to_seq=int(wanted[-1]) + 1,
            everything=True,
        )
        for rows in store.rows(selection):
            if rows.priority_level == level:
                found = np.flatnonzero(np.isin(rows.table.entries["seq"], wanted))
                if len(found):
                    yield store, rows.take(found)


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
