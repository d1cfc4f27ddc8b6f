"""Pulled messages as an Arrow record batch.

A pull returns a few dozen records. Creating some twenty Arrow columns from Python costs more than reading those records, so
the batch of ordinary records is written by one kernel as the body of an Arrow IPC message, and read back without a copy. Its
header is the same for every batch except for a few numbers, whose positions are looked up once in a batch that Arrow wrote:

    ffffffff, size of the head | Message: length of the body | RecordBatch: rows, nodes (rows, nulls), buffers (begin, length) | body

Records that are not ordinary (`kernels.rocketmq.pull_batch`), and columns other than the default ones, go through
`scan.columns.RecordColumns`, the reference implementation of every column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UsageError
from mqstore.files import Bytes
from mqstore.kernels.rocketmq import batch_body, frames, pull_batch
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.table.columns import EXTRA_COLUMNS, ROCKETMQ_COLUMNS, check_columns, rocketmq_schema

if TYPE_CHECKING:
    import pyarrow as pa

NOT_IN_RECORD = ("store_file", "verdict")  # columns that cannot be computed from a record alone
PULL_COLUMNS = tuple(name for name in ROCKETMQ_COLUMNS if name not in (*NOT_IN_RECORD, "body_crc_ok"))


Longs = NDArray[np.int64]


def batch_of_records(data: Bytes, positions: Longs, sizes: Longs, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """Return the records at some positions of a buffer as a batch; bytes that are not a record of at most that size are left out.

    columns: by default those that cost no more than reading the record; `body_crc_ok` and columns about bodies can be requested.
    Raises UsageError for a column that a record does not hold.
    """
    if columns is None or tuple(columns) == PULL_COLUMNS:
        found = batch_fast(data, 0, np.stack([positions, positions, sizes], 1).tobytes())
        if found is not None:
            return found
        columns = PULL_COLUMNS
    for name in check_columns(columns):
        if name in NOT_IN_RECORD:
            known = ", ".join(each for each in ROCKETMQ_COLUMNS + EXTRA_COLUMNS if each not in NOT_IN_RECORD)
            raise UsageError(f"a pulled message has no column {name!r}; its columns are {known}")
    kept = np.empty(len(positions), np.int64)
    kept = kept[: pull_batch.valid_positions(data, positions, sizes, kept)]
    fields = np.empty((frames.FIELD_COUNT, len(kept)), np.int64)
    frames.fields(data, kept, fields)
    return RecordColumns(Records(QueueFile("", 0, len(data), ""), data, kept), fields).batch(columns)


def batch_fast(data: Bytes | memoryview, start: int, rows: bytes) -> pa.RecordBatch | None:
    """Return the default columns of records by one kernel call; None if a record is not ordinary. start, rows: as the kernel takes them."""
    head, schema, read = _ipc_template()
    found = pull_batch.write_batch(data, start, rows, head)
    batch: pa.RecordBatch | None = None if found is None else read(found, schema)
    return batch


@cache
def _ipc_template() -> tuple[pull_batch.BatchHead, pa.Schema, Callable[..., pa.RecordBatch]]:
    """Return the header of a message, its schema, and the function that reads a message."""
    import pyarrow as pa

    schema = rocketmq_schema(PULL_COLUMNS)
    written = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema).serialize().to_pybytes()
    (size,) = struct.unpack_from("<i", written, 4)
    raw = written[: 8 + size]

    def at(place: int, code: str) -> int:
        found: int = struct.unpack_from("<" + code, raw, place)[0]
        return found

    def field(table: int, number: int) -> int:
        """Return the position of a field of a flatbuffer table."""
        return table + at(table - at(table, "i") + 4 + 2 * number, "H")

    def target(place: int) -> int:
        return place + at(place, "I")

    message = target(8)
    batch = target(field(message, 2))
    nodes, buffers = target(field(batch, 1)), target(field(batch, 2))
    assert (at(nodes, "I"), at(buffers, "I")) == (batch_body.NODES, batch_body.BUFFERS)
    head = pull_batch.BatchHead(np.frombuffer(raw, np.uint8), field(batch, 0), field(message, 3), nodes + 4, buffers + 4)
    return head, schema, pa.ipc.read_record_batch
