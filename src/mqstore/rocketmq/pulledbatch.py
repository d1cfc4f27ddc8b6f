"""Pulled messages as an Arrow record batch.

A pull brings a few dozen records. Making some twenty Arrow columns from Python costs more than those records, so the batch
of ordinary records is written by one kernel as the body of an Arrow IPC message, and read back without a copy. Its head is the
same for every batch but for a few numbers, whose places are looked up once in a batch that Arrow itself has written:

    ffffffff, size of the head | Message: length of the body | RecordBatch: rows, nodes (rows, nulls), buffers (begin, length) | body

Records that are not ordinary (`kernels.messagebatch`), and columns other than the usual ones, go through `columns.RecordColumns`,
which is the truth about every column.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UsageError
from mqstore.files import Bytes
from mqstore.kernels import frames, is_compiled, messagebatch
from mqstore.messages import EXTRA_COLUMNS, ROCKETMQ_COLUMNS, check_columns, rocketmq_schema
from mqstore.rocketmq.columns import RecordColumns
from mqstore.rocketmq.commitlog import Records
from mqstore.rocketmq.filequeue import QueueFile

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ELSEWHERE", "PULL_COLUMNS", "batch_of_records"]

ELSEWHERE = ("store_file", "verdict")  # columns that a record cannot tell by itself
PULL_COLUMNS = tuple(name for name in ROCKETMQ_COLUMNS if name not in (*ELSEWHERE, "body_crc_ok"))

_PAIRS = 16  # properties a record may have on average; records with more are not ordinary

Longs = NDArray[np.int64]


def batch_of_records(data: Bytes, positions: Longs, sizes: Longs, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The records at some positions of a buffer as a batch; what is no record, or longer than its size here, is left out.

    columns: by default those that come at the price of reading the record; `body_crc_ok` and those about bodies can be named.
    Raises UsageError for a column that a record does not hold.
    """
    kept = np.empty(len(positions), np.int64)
    kept = kept[: messagebatch.sound(data, positions, sizes, kept)]
    fields = np.empty((frames.FIELD_COUNT, len(kept)), np.int64)
    frames.fields(data, kept, fields)
    if columns is None or tuple(columns) == PULL_COLUMNS:
        found = _at_once(data, fields) if is_compiled() else None
        if found is not None:
            return found
        columns = PULL_COLUMNS
    for name in check_columns(columns):
        if name in ELSEWHERE:
            known = ", ".join(each for each in ROCKETMQ_COLUMNS + EXTRA_COLUMNS if each not in ELSEWHERE)
            raise UsageError(f"a pulled message has no column {name!r}; its columns are {known}")
    return RecordColumns(Records(QueueFile("", 0, len(data), ""), data, kept), fields).batch(columns)


def _at_once(data: Bytes, fields: Longs) -> pa.RecordBatch | None:
    """The usual columns in one stroke; None where a record is not ordinary."""
    import pyarrow as pa

    count = fields.shape[1]
    head = _head()
    spans = np.empty((messagebatch.SPANS, _PAIRS * count), np.int64)
    nodes = np.empty((messagebatch.NODES, 2), np.int64)
    buffers = np.empty((messagebatch.BUFFERS, 2), np.int64)
    length = messagebatch.measure(data, fields, spans, nodes, buffers)
    if length < 0:
        return None
    base = len(head.raw)
    longs = np.empty((base + length) // 8, np.int64)
    raw = longs.view(np.uint8)
    raw[:base] = head.raw
    longs[head.rows] = count
    longs[head.body_length] = length
    longs[head.nodes : head.nodes + 2 * messagebatch.NODES] = nodes.ravel()
    longs[head.buffers : head.buffers + 2 * messagebatch.BUFFERS] = buffers.ravel()
    messagebatch.fill(data, fields, spans, nodes, buffers, base, raw, longs.view(np.int32), longs)
    return pa.ipc.read_record_batch(pa.py_buffer(longs), head.schema)


class _Head(NamedTuple):
    """The head of an IPC message, and the places of its numbers, in units of eight bytes."""

    raw: Bytes
    schema: pa.Schema
    rows: int
    body_length: int
    nodes: int
    buffers: int


@cache
def _head() -> _Head:
    import pyarrow as pa

    schema = rocketmq_schema(PULL_COLUMNS)
    written = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema).serialize().to_pybytes()
    (size,) = struct.unpack_from("<i", written, 4)
    raw = written[: 8 + size]

    def at(place: int, code: str) -> int:
        found: int = struct.unpack_from("<" + code, raw, place)[0]
        return found

    def field(table: int, number: int) -> int:
        """Place of a field of a flatbuffer table."""
        return table + at(table - at(table, "i") + 4 + 2 * number, "H")

    def target(place: int) -> int:
        return place + at(place, "I")

    message = target(8)
    batch = target(field(message, 2))
    nodes, buffers = target(field(batch, 1)), target(field(batch, 2))
    assert (at(nodes, "I"), at(buffers, "I")) == (messagebatch.NODES, messagebatch.BUFFERS)
    places = (field(batch, 0), field(message, 3), nodes + 4, buffers + 4)
    assert all(place % 8 == 0 for place in places)
    return _Head(np.frombuffer(raw, np.uint8), schema, *(place // 8 for place in places))
