"""The index service as a broker holds it in memory: kept files, files that dispatch creates, keys appended to the last one.

For every dispatched record, in this order: a new file is created if there is none or the last one is full; a record
before the last indexed one is skipped; each of its keys is put. A new file inherits times and offsets of the previous,
full one, so the first entry of a later file counts its seconds from that file's end.

    >>> import numpy as np
    >>> from mqstore.rocketmq.dispatch.dispatcher import KEY_ROW
    >>> service = IndexService([], slots=10, positions=3)
    >>> service.add(np.array([0, 100, 200, 300]), np.array([(5, 0, 1000), (15, 100, 3500), (5, 200, 9000)], KEY_ROW))
    >>> [(file.name, file.begin_timestamp, file.index_count) for file in service.files]
    [('recovered-1', 1000, 3), ('recovered-2', 9000, 2)]
    >>> service.files[0].entry(2)
    IndexEntry(key_hash=15, physical_offset=100, seconds=2, previous=1)
    >>> service.files[1].entry(1)
    IndexEntry(key_hash=5, physical_offset=200, seconds=5, previous=0)

The names of new files are placeholders: a broker would name them by the time of their creation.

Format: docs/formats/rocketmq.md, sections 5.3 to 5.6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mqstore.kernels.rocketmq import index_chains
from mqstore.rocketmq.format.index_file import IndexEntry, IndexFile
from mqstore.rocketmq.format.index_geometry import ENTRY

Longs = NDArray[np.int64]
Rows = NDArray[np.void]

_BLOCK = 1 << 16  # entries allocated at once


class IndexImage:
    """An index file in memory: new, or over one on disk that is only read. Satisfies `query.index_search.IndexFileLike`."""

    def __init__(self, name: str, slot_count: int, positions: int, base: IndexFile | None = None, before: IndexImage | None = None) -> None:
        """base: the file on disk. before: the previous, full file of a new one."""
        self.name = name
        self.slot_count = slot_count
        self.positions = positions
        self.begin_timestamp = self.end_timestamp = 0
        self.begin_physical_offset = self.end_physical_offset = 0
        self.hash_slot_count = 0
        self.index_count = 1
        self.octets: memoryview | None = None  # its entries are partly in memory
        self._base = base
        if base is not None:
            header = base.header
            self.begin_timestamp, self.end_timestamp = header.begin_timestamp, header.end_timestamp
            self.begin_physical_offset, self.end_physical_offset = header.begin_physical_offset, header.end_physical_offset
            self.hash_slot_count, self.index_count = header.hash_slot_count, header.index_count
        elif before is not None:
            if before.end_physical_offset > 0:
                self.begin_physical_offset = self.end_physical_offset = before.end_physical_offset
            if before.end_timestamp > 0:
                self.begin_timestamp = self.end_timestamp = before.end_timestamp
        self._own_from = self.index_count
        self._slots: NDArray[np.int32] | None = None
        self._blocks: list[Rows] = []

    @property
    def full(self) -> bool:
        return self.index_count >= self.positions

    def slot(self, number: int) -> int:
        """Return the value of a slot."""
        if self._slots is not None:
            return int(self._slots[number])
        return 0 if self._base is None else self._base.slot(number)

    def entry(self, number: int) -> IndexEntry:
        """Return entry `number`; zeros if none was written."""
        if self._own_from <= number < self.index_count:
            block, at = divmod(number - self._own_from, _BLOCK)
            row = self._blocks[block][at]
            return IndexEntry(int(row["key_hash"]), int(row["physical_offset"]), int(row["seconds"]), int(row["previous"]))
        return IndexEntry(0, 0, 0, 0) if self._base is None else self._base.entry(number)

    def put(self, keys: Rows) -> int:
        """Put as many of the keys as fit and return their number."""
        count = max(0, min(len(keys), self.positions - self.index_count))
        at = 0
        while at < count:
            # the seconds of a file's first key are counted from the time the file has inherited
            used = (self.index_count - self._own_from) % _BLOCK
            part = keys[at : min(count, at + _BLOCK - used)] if self.index_count > 1 else keys[at : at + 1]
            self._put(part, used)
            at += len(part)
        return count

    def _put(self, keys: Rows, used: int) -> None:
        """Put keys into the last block of entries. used: entries of it in use; 0: start a new block."""
        if self._slots is None:
            self._slots = np.zeros(self.slot_count, np.int32) if self._base is None else self._base.slots()
        if not used:
            self._blocks.append(np.empty(_BLOCK, ENTRY))
        out = self._blocks[-1][used : used + len(keys)].view(np.uint8)
        raw = np.ascontiguousarray(keys).view(np.uint8)
        self.hash_slot_count += index_chains.build(raw, self.begin_timestamp, self.index_count, self._slots, out)
        if self.index_count <= 1:
            self.begin_physical_offset = int(keys["physical_offset"][0])
            self.begin_timestamp = int(keys["store_timestamp"][0])
        self.index_count += len(keys)
        self.end_physical_offset = int(keys["physical_offset"][-1])
        self.end_timestamp = int(keys["store_timestamp"][-1])


class IndexService:
    """All index files, oldest first, and the rules for putting keys into the last one."""

    def __init__(self, recovered: Sequence[IndexFile], *, slots: int, positions: int) -> None:
        """slots, positions: of new files."""
        self.files = [self._kept_file(file) for file in recovered]
        self._slots = slots
        self._positions = max(2, positions)
        self._made = 0

    # file storage: in memory here, on disk in `live.index_writer`

    def _kept_file(self, file: IndexFile) -> IndexImage:
        return IndexImage(file.name, file.slot_count, file.positions, file)

    def _new_file(self, last: IndexImage | None) -> IndexImage:
        """Create the file after the last one, which is full or does not exist."""
        self._made += 1
        return IndexImage(f"recovered-{self._made}", self._slots, self._positions, None, last)

    def _last(self) -> IndexImage:
        """Return the file that takes the next key, created if there is none or the last one is full."""
        last = self.files[-1] if self.files else None
        if last is None or last.full:
            last = self._new_file(last)
            self.files.append(last)
        return last

    def add(self, physical: Longs, keys: Rows) -> None:
        """Index dispatched records, in log order. physical: their physical offsets, ascending. keys: their `KEY_ROW` rows."""
        if not len(physical):
            return
        end = self._last().end_physical_offset
        offsets = keys["physical_offset"]
        at = 0 if not len(keys) or int(offsets[0]) >= end else int(np.searchsorted(offsets.astype(np.int64), end))
        while at < len(keys):
            at += self._last().put(keys[at:])
        if len(keys) and int(physical[-1]) > int(offsets[-1]):
            self._last()
