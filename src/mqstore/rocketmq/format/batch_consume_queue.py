"""Batch consume queue of 5.x: where the batches of one topic queue are in the commit log.

Topics with the attribute queue.type=BatchCQ keep each batch in one record. Their queues are in
`batchconsumequeue/<topic>/<queueId>`, in units of 46 bytes, big-endian:

    offset  size  field                               offset  size  field
         0     8  physical offset of the record           28     8  base: queue offset of the first message
         8     4  size of the record in bytes             36     2  messages in the batch
        12     8  tags code                               38     4  compacted offset, -1
        20     8  store time, ms                          42     4  reserved, 0

A file is named by the position of its first byte, which is unrelated to queue offsets; those are found by the bases,
which ascend. A unit is valid if its physical offset and its base are not negative and its size and its number of
messages are positive.

    >>> raw = "00000000000003e8 000000b8 0000000000017862 0000017e12ef9c7b 0000000000000007 0003 ffffffff 00000000"
    >>> [int(value) for value in np.frombuffer(bytes.fromhex(raw), UNIT)[0]]
    [1000, 184, 96354, 1640995200123, 7, 3, -1, 0]

Format: docs/formats/rocketmq.md, section 4.10.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format.mapped_file_queue import QueueFile, QueueReader

UNIT = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("base_offset", ">i8"),
        ("count", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)
UNIT_SIZE = 46
DEFAULT_FILE_SIZE = 13_800_000
MAX_REPORTED = 200  # findings per file that are reported one by one

Units = NDArray[np.void]


def valid_units(units: Units) -> NDArray[np.bool_]:
    """Return which units a broker accepts as valid."""
    mask: NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0) & (units["base_offset"] >= 0) & (units["count"] > 0)
    return mask


class BatchQueueReader(QueueReader):
    """The units of one batch queue, as stored on disk. Satisfies `store.view.QueueView`."""

    root = "batchconsumequeue"
    batch = True

    def rows(self, file: QueueFile) -> Units:
        """Return the units of a file up to the last one that is not all zeros, as a view of the map."""
        mapped = self._directory.mapped(file.relative)
        written = mapped.last_nonzero(0, mapped.size - mapped.size % UNIT_SIZE) // UNIT_SIZE + 1
        return mapped.load(0, written * UNIT_SIZE)[: written * UNIT_SIZE].view(UNIT)

    @cached_property
    def _written(self) -> tuple[tuple[QueueFile, Units], ...]:
        return tuple((file, self.rows(file)) for file in self.files)

    @cached_property
    def _ends(self) -> tuple[int, int, int] | None:
        """Base of the first valid unit, end of the last one's batch, and its physical offset; None if no unit is valid."""
        first: int | None = None
        end, physical = 0, -1
        for _, units in self._written:
            good = units[valid_units(units)]
            if not len(good):
                continue
            if first is None:
                first = int(good["base_offset"][0])
            end = int(good["base_offset"][-1]) + int(good["count"][-1])
            physical = int(good["physical_offset"][-1])
        return None if first is None else (first, end, physical)

    @property
    def unit_count(self) -> int:
        """Number of units written, valid or not."""
        return sum(len(units) for _, units in self._written)

    @property
    def listed(self) -> int:
        """The number of messages in the valid units."""
        return sum(int(units["count"][valid_units(units)].sum(dtype=np.int64)) for _, units in self._written)

    @property
    def written(self) -> Sequence[tuple[QueueFile, Units]]:
        """The files with their written units."""
        return self._written

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message; 0 for an empty queue."""
        return self._ends[0] if self._ends is not None else 0

    @property
    def max_offset(self) -> int:
        """Queue offset after the last message."""
        return self._ends[1] if self._ends is not None else 0

    @property
    def max_physical_offset(self) -> int:
        """Physical offset at which the record of the last unit *starts*, as the broker keeps it; -1 for an empty queue."""
        return self._ends[2] if self._ends is not None else -1

    def entries(self, start: int, stop: int) -> Units:
        """Return the units that hold queue offsets start..stop-1."""
        parts = []
        for _, units in self._written if start < stop else ():
            base, count = units["base_offset"].astype(np.int64), units["count"].astype(np.int64)
            parts.append(units[valid_units(units) & (base < stop) & (base > start - count)])
        return np.concatenate(parts, dtype=UNIT) if parts else np.empty(0, UNIT)

    @cached_property
    def findings(self) -> tuple[Damage, ...]:
        """Findings about the files, invalid units, and bases that are not consecutive."""
        damage: list[Damage] = list(self._queue.findings)
        expected: int | None = None
        for file, units in self._written:
            base, count = units["base_offset"].astype(np.int64), units["count"].astype(np.int64)
            good = valid_units(units)
            for number in np.flatnonzero(~good)[:MAX_REPORTED].tolist():
                empty = not units[number : number + 1].view(np.uint8).any()
                kind, what = (Kind.QUEUE_GAP, "not written") if empty else (Kind.BAD_QUEUE_ENTRY, "not valid")
                damage.append(Damage(file.relative, number * UNIT_SIZE, UNIT_SIZE, kind, f"unit {number} of the file is {what}"))
            valid = np.flatnonzero(good)
            if not len(valid):
                continue
            due = np.concatenate([[base[valid[0]] if expected is None else expected], (base + count)[valid[:-1]]])
            for k in np.flatnonzero(base[valid] != due)[:MAX_REPORTED].tolist():
                number = int(valid[k])
                sentence = f"unit {number} of the file starts at queue offset {base[number]}, but the previous units end at {due[k]}"
                kind = Kind.QUEUE_GAP if base[number] > due[k] else Kind.QUEUE_ORDER
                damage.append(Damage(file.relative, number * UNIT_SIZE, UNIT_SIZE, kind, sentence))
            expected = int(base[valid[-1]] + count[valid[-1]])
        return tuple(damage)
