"""Batch consume queues that are written: the images of `dispatch.batch_consume_queue_image` with their files on disk.

Format: docs/formats/rocketmq.md, sections 4.10 and 7.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqstore.rocketmq.dispatch.base_queue_image import FileImage
from mqstore.rocketmq.dispatch.batch_consume_queue_image import BatchQueueImage
from mqstore.rocketmq.format.mapped_file_queue import FileQueue
from mqstore.rocketmq.live.queue_files import QueueFiles, loaded_files, new_file, remove_files


class StoredBatchQueue(BatchQueueImage):
    """A batch queue on disk. relative: its directory."""

    def __init__(self, queue_files: QueueFiles, topic: str, queue_id: int, file_size: int, loaded: FileQueue | None) -> None:
        super().__init__(topic, queue_id, file_size)
        self.relative = loaded.relative if loaded is not None else f"batchconsumequeue/{topic}/{queue_id}"
        self._queue_files = queue_files
        self.files = loaded_files(queue_files, loaded, file_size, self.row)

    def _new_file(self, start: int, *, first_created: bool) -> FileImage:
        return new_file(self._queue_files, self, start, first_created=first_created)

    def _discard(self, files: Sequence[FileImage]) -> None:
        remove_files(self._queue_files, files)

    def destroy(self) -> None:
        super().destroy()
        self._queue_files.remove_directories(self.relative)
