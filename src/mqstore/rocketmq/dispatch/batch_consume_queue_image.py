"""A batch consume queue (5.3.3) as a broker holds it in memory: recovered, cut, appended to, its minimum corrected.

Format: docs/formats/rocketmq.md, sections 4.10 and 8.2 to 8.4.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mqstore.rocketmq.dispatch.base_queue_image import BaseQueueImage, Rows, Source
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.format.batch_consume_queue import UNIT, valid_units
from mqstore.rocketmq.format.profile import DEFAULT_VERSION


class BatchQueueImage(BaseQueueImage):
    """A batch queue of 46-byte units, each standing for several messages. Satisfies `store.view.QueueView`.

    max_physical_offset is the *start* of the last unit's record, as the broker keeps it for this kind of queue.
    """

    row = UNIT
    batch = True

    def __init__(self, topic: str, queue_id: int, file_size: int, files: Iterable[tuple[int, Source]] = ()) -> None:
        super().__init__(topic, queue_id, file_size, files)
        self.min_offset = -1
        self.max_offset = 0

    def _valid(self, rows: Rows) -> NDArray[np.bool_]:
        return valid_units(rows)

    def _max_physical_offset_after(self, row: np.void) -> int:
        return int(row["physical_offset"])

    def _refresh_bounds(self) -> None:
        self._refresh_min()
        self.max_offset = 0
        for file in reversed(self.files[-2:]):
            if file.written:
                unit = file.part(file.written // UNIT.itemsize - 1, file.written // UNIT.itemsize)[0]
                self.max_offset = int(unit["base_offset"]) + int(unit["count"])
                break

    def _refresh_min(self) -> None:
        self.min_offset = int(self.files[0].part(0, 1)["base_offset"][0]) if self.files and self.files[0].written else -1
        if not self.files:
            self.max_offset = 0

    def truncate(self, physical: int) -> None:
        super().truncate(physical)
        if not self.files:
            self.max_physical_offset = physical - 1
        self._refresh_bounds()

    def destroy(self) -> None:
        super().destroy()
        self._refresh_bounds()

    def entries(self, start: int, stop: int) -> Rows:
        """Return the units that hold queue offsets start..stop-1."""
        low, high = max(start, self.min_offset), min(stop, self.max_offset)
        parts = []
        for file in self.files if low < high else ():
            rows = file.written_rows()
            base = rows["base_offset"].astype(np.int64)
            holds = (base < high) & (base + rows["count"] > low)
            parts.append(rows[holds])
        return np.concatenate(parts) if parts else np.empty(0, UNIT)

    def append(self, run: QueueRun) -> None:
        """Append a run of units, in log order. A record at or before that of the last unit is a duplicate."""
        rows = np.ascontiguousarray(run.entries).view(UNIT)
        rows = rows[(rows["base_offset"] >= 0) & (rows["count"] >= 0)]
        physical = rows["physical_offset"].astype(np.int64)
        before = np.maximum.accumulate(np.concatenate([[self.max_physical_offset], physical[:-1]]))[: len(rows)]
        rows = rows[physical > before]
        if not len(rows):
            return
        self._append_rows(rows)
        self.max_offset = int(rows["base_offset"][-1]) + int(rows["count"][-1])
        if self.files[0].first_created and self.min_offset == -1:
            self._refresh_min()

    def correct_min(self, log_min: int, version: str = DEFAULT_VERSION) -> None:
        """Move the minimum past the leading units of the first file whose records have left the log."""
        self._refresh_min()
        if not self.files:
            return
        rows = self.files[0].written_rows()
        kept = rows["physical_offset"] >= log_min
        gone = int(np.argmax(kept)) if kept.any() else len(rows)
        if gone:
            self.min_offset = int(rows["base_offset"][gone - 1]) + int(rows["count"][gone - 1])
