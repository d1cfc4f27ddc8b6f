"""Where dispatch puts what it derives: a protocol, and the target that keeps everything in memory.

The target of a store that is open for writing is in `live.derived_files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage, QueueImage
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.dispatch.index_image import IndexService
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.mapped_file_queue import FileQueue, QueueFile

Longs = NDArray[np.int64]
AnyQueueImage = QueueImage | BatchQueueImage


class DispatchTarget(Protocol):
    """Queues and index files that a recovery changes: in memory over files that are only read, or on disk."""

    def open_queue(self, kind: type[AnyQueueImage], topic: str, queue_id: int, file_size: int, loaded: FileQueue | None) -> AnyQueueImage:
        """Return the image of a queue. loaded: its files on disk; None for a queue that dispatch creates."""
        ...

    def open_index(self, recovered: Sequence[IndexFile], dropped: Sequence[IndexFile], *, slots: int, positions: int) -> IndexService:
        """Return the index service over the kept files. slots, positions: geometry of new files."""
        ...

    def on_queues_recovered(self, queues: Sequence[AnyQueueImage]) -> None:
        """Called once all queues have been recovered, before anything is dispatched."""
        ...

    def remove_log_file(self, file: QueueFile) -> None:
        """Remove a log file past the truncation point."""
        ...

    def before_append(self, queue: AnyQueueImage, run: QueueRun, data: Bytes, positions: Longs, physical: Longs) -> QueueRun:
        """Return the run to append in place of `run`. data, positions, physical: a superset of the records it comes from."""
        ...

    def append(self, queue: AnyQueueImage, run: QueueRun) -> None:
        """Append a run to a queue, at the latest at the next `flush`."""
        ...

    def flush(self) -> None:
        """Complete every `append`."""
        ...


class InMemoryTarget:
    """Keeps everything new in memory; no file is touched. Satisfies `DispatchTarget`."""

    def __init__(self, directory: ReadOnlyDirectory) -> None:
        self._directory = directory

    def open_queue(self, kind: type[AnyQueueImage], topic: str, queue_id: int, file_size: int, loaded: FileQueue | None) -> AnyQueueImage:
        files = () if loaded is None else loaded.files
        sources = [(file.start, partial(self._directory.map, file.relative)) for file in files if file.size == file_size]
        return kind(topic, queue_id, file_size, sources)

    def open_index(self, recovered: Sequence[IndexFile], dropped: Sequence[IndexFile], *, slots: int, positions: int) -> IndexService:
        return IndexService(recovered, slots=slots, positions=positions)

    def on_queues_recovered(self, queues: Sequence[AnyQueueImage]) -> None:
        return

    def remove_log_file(self, file: QueueFile) -> None:
        return

    def before_append(self, queue: AnyQueueImage, run: QueueRun, data: Bytes, positions: Longs, physical: Longs) -> QueueRun:
        return run

    def append(self, queue: AnyQueueImage, run: QueueRun) -> None:
        queue.append(run)

    def flush(self) -> None:
        return
