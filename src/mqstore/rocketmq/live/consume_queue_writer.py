"""Consume queues that are written: the images of `dispatch.consume_queue_image` with their files on disk.

Format: docs/formats/rocketmq.md, sections 4.2 and 7.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.kernels.rocketmq import queue_rows
from mqstore.rocketmq.dispatch.base_queue_image import FileImage
from mqstore.rocketmq.dispatch.consume_queue_image import PLAIN_LIMIT, QueueImage
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY
from mqstore.rocketmq.format.mapped_file_queue import FileQueue
from mqstore.rocketmq.live.queue_files import QueueFiles, StoredFile, loaded_files, new_file, remove_files

Rows = NDArray[np.void]


class StoredQueue(QueueImage):
    """A consume queue on disk. relative: its directory. on_minimum: called with the tags code of an entry that becomes the first."""

    def __init__(self, queue_files: QueueFiles, topic: str, queue_id: int, file_size: int, loaded: FileQueue | None) -> None:
        super().__init__(topic, queue_id, file_size)
        self.relative = loaded.relative if loaded is not None else f"consumequeue/{topic}/{queue_id}"
        self.on_minimum: Callable[[int], object] | None = None
        self._queue_files = queue_files
        self.files = loaded_files(queue_files, loaded, file_size, self.row)

    def _new_file(self, start: int, *, first_created: bool) -> FileImage:
        return new_file(self._queue_files, self, start, first_created=first_created)

    def _discard(self, files: Sequence[FileImage]) -> None:
        remove_files(self._queue_files, files)

    def destroy(self) -> None:
        super().destroy()
        self._queue_files.remove_directories(self.relative)

    def _set_first_entry(self, position: int, tags_code: int) -> None:
        super()._set_first_entry(position, tags_code)
        if self.on_minimum is not None:
            self.on_minimum(tags_code)

    def takes_at_once(self, run: QueueRun) -> bool:
        """Return whether `append` would write the whole run at the end of the last file, so that `waiting_write` may do that instead."""
        files = self.files
        return (
            bool(files)
            and run.consecutive
            and 0 <= run.first < PLAIN_LIMIT
            and run.first * ENTRY.itemsize >= files[-1].end
            and len(run.entries) <= files[-1].size - files[-1].written
            and queue_rows.count_stored(run.entries, self.max_physical_offset) == 0
        )

    def waiting_write(self, run: QueueRun) -> tuple[StoredFile, int, Bytes]:
        """Return the write that stores a run which is taken at once: file, position, bytes. It counts after `written`."""
        file = self.files[-1]
        assert isinstance(file, StoredFile)
        return file, file.written, run.entries

    def written(self, run: QueueRun) -> None:
        """Count a run whose `waiting_write` is done."""
        self.files[-1].written += len(run.entries)
        self.max_physical_offset = self._max_physical_offset_after(run.entries[-ENTRY.itemsize :].view(ENTRY)[0])

    def amend(self, run: QueueRun, may_stay: Callable[[Rows], NDArray[np.bool_]]) -> None:
        """Correct entries that exist already but differ from the run.

        may_stay: returns which entries that differ only in the tags code are correct. Blank entries are not changed.
        """
        wanted = np.ascontiguousarray(run.entries).view(ENTRY)
        for file in self.files:
            assert isinstance(file, StoredFile)
            first = file.start // ENTRY.itemsize
            inside = np.flatnonzero((run.offsets >= first) & (run.offsets < first + file.written // ENTRY.itemsize))
            if not len(inside):
                continue
            rows = file.written_rows()[run.offsets[inside] - first]
            new = wanted[inside]
            same = (rows["physical_offset"] == new["physical_offset"]) & (rows["size"] == new["size"])
            differs = ~same | (rows["tags_code"] != new["tags_code"])
            differs &= rows["size"] != BLANK_SIZE
            if (rows["physical_offset"] > new["physical_offset"])[differs].any():
                return  # a torn entry has a smaller offset than the complete one: this queue is not torn but shifted, by an older hole
            suspect = np.flatnonzero(differs & same)
            differs[suspect] = ~may_stay(rows[suspect])
            for number in inside[differs].tolist():
                self._queue_files.write(file, (int(run.offsets[number]) - first) * ENTRY.itemsize, wanted[number : number + 1])
            last = int(inside[-1])
            if differs.any() and int(run.offsets[last]) == self.max_offset - 1:
                self.max_physical_offset = max(self.max_physical_offset, self._max_physical_offset_after(wanted[last]))
