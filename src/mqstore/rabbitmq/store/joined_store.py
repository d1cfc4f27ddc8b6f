"""A message store whose records were found elsewhere: the input of a task that reads a group of queues after a join by message id.

For its ids it returns what a scan of all message files would return, without scanning. Each id is in it once, with the copy that counts;
`seen` is whether the broker finds any copy.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mqstore.files import ReadOnlyDirectory
from mqstore.kernels.rabbitmq import message_store
from mqstore.rabbitmq.store.message_store import MessageStore, RecordTable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["JoinedStore"]


class JoinedStore(MessageStore):
    """A message store made of these records.

    records: msg_id (hexadecimal), store_file, position, length (of the whole record), seen; None: no record.
    """

    def __init__(self, directory: ReadOnlyDirectory, place: str, records: pa.Table | None) -> None:
        super().__init__(directory, place)
        self._records = records

    @cached_property
    def _table(self) -> RecordTable:
        records = self._records
        if records is None or not records.num_rows:
            empty = np.empty(0, np.int64)
            return RecordTable(empty, empty, empty, empty, np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.bool_), ())
        ids = np.frombuffer(bytes.fromhex("".join(records.column("msg_id").to_pylist())), ">i8").astype(np.int64).reshape(-1, 2)
        numbers = {file.name: number for number, file in enumerate(self.files)}
        file = np.array([numbers.get(name, -1) for name in records.column("store_file").to_pylist()], np.int32)
        at, total, seen = (records.column(name).to_numpy() for name in ("position", "length", "seen"))
        # a file deleted since the scan has no records
        there = np.flatnonzero(file >= 0)
        order = there[np.lexsort((ids[there, 1], ids[there, 0]))]
        quality = np.full(len(order), message_store.MARKED | message_store.PROVED, np.uint8)
        return RecordTable(ids[order, 0], ids[order, 1], at[order], total[order], file[order], quality, seen[order], ())
