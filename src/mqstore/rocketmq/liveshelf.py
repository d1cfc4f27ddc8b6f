"""Where a store that is open for writing keeps what it derives: the shelf that `broker.Broker` recovers and dispatches onto.

Queues and index files are on disk (`queuewriting`, `indexlive`), log files behind the truncation point go. A topic that cannot
name a directory, which only damaged or hostile records have, gets a queue in memory, so that dispatch goes on.

With extended consume queues on, each entry's unit is written first and its address takes the place of the tags code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.kernels import frames
from mqstore.rocketmq.appending import usable_topic
from mqstore.rocketmq.broker import Image
from mqstore.rocketmq.dispatch import QueueRun
from mqstore.rocketmq.extwriting import ExtQueueWriter
from mqstore.rocketmq.filequeue import FileQueue, QueueFile
from mqstore.rocketmq.indexbuild import IndexService
from mqstore.rocketmq.indexfile import IndexFile
from mqstore.rocketmq.indexlive import IndexPlace, StoredIndex
from mqstore.rocketmq.queuebuild import BatchQueueImage, QueueImage
from mqstore.rocketmq.queuewriting import QueueFiles, StoredBatchQueue, StoredQueue

__all__ = ["LiveShelf"]

Longs = NDArray[np.int64]


class LiveShelf:
    """The shelf of a store on disk. Satisfies `broker.Shelf`."""

    def __init__(
        self,
        queue_files: QueueFiles,
        index_place: IndexPlace,
        reading: ReadOnlyDirectory,
        writing: DurableDirectory,
        *,
        ext_file_size: int | None,
    ) -> None:
        """ext_file_size: bytes of a file of the extended consume queues; None where they are not in use."""
        self._queue_files = queue_files
        self._index_place = index_place
        self._reading = reading
        self._writing = writing
        self._ext_file_size = ext_file_size
        self.ext: dict[tuple[str, int], ExtQueueWriter] = {}

    def queue(self, kind: type[Image], topic: str, queue_id: int, file_size: int, loaded: FileQueue | None) -> Image:
        if loaded is None and not usable_topic(topic):
            return kind(topic, queue_id, file_size)
        if issubclass(kind, BatchQueueImage):
            return StoredBatchQueue(self._queue_files, topic, queue_id, file_size, loaded)
        return StoredQueue(self._queue_files, topic, queue_id, file_size, loaded)

    def index(self, kept: Sequence[IndexFile], dropped: Sequence[IndexFile], *, slots: int, positions: int) -> IndexService:
        for file in dropped:
            self._writing.remove(file.relative)
        return StoredIndex(self._index_place, kept, slots=slots, positions=positions)

    def remove_log(self, file: QueueFile) -> None:
        self._writing.remove(file.relative)

    def extended(self, run: QueueRun, data: Bytes, positions: Longs, physical: Longs) -> QueueRun:
        if self._ext_file_size is None or run.batch:
            return run
        writer = self.ext_of(run.topic, run.queue_id)
        rows = run.entries.reshape(-1, 20).copy()
        listed = rows[:, :8].copy().view(">i8").ravel().astype(np.int64)
        at = positions[np.searchsorted(physical, listed)]
        fields = np.empty((frames.FIELD_COUNT, len(at)), np.int64)
        frames.fields(data, np.ascontiguousarray(at), fields)
        own = fields[frames.QUEUE_ID] == run.queue_id
        topic = run.topic.encode("utf-8", "surrogatepass")
        for number in np.flatnonzero(own).tolist():
            start, length = int(fields[frames.TOPIC_START, number]), int(fields[frames.TOPIC_LENGTH, number])
            if data[start : start + length].tobytes() != topic:
                continue
            code = int.from_bytes(rows[number, 12:].tobytes(), "big", signed=True)
            address = writer.append(code, int(fields[frames.STORE_TIMESTAMP, number]))
            if address is not None:
                rows[number, 12:] = np.frombuffer(address.to_bytes(8, "big", signed=True), np.uint8)
        return QueueRun(run.topic, run.queue_id, run.offsets, rows.ravel(), run.plain)

    def ext_of(self, topic: str, queue_id: int) -> ExtQueueWriter:
        """The extended queue of a queue, made where there is none."""
        found = self.ext.get((topic, queue_id))
        if found is None:
            assert self._ext_file_size is not None
            found = ExtQueueWriter(self._writing, self._reading, topic, queue_id, file_size=self._ext_file_size)
            self.ext[topic, queue_id] = found
        return found

    def recovered(self, queues: Sequence[Image]) -> None:
        """Recover the extended queues and cut them behind the largest address that the recovered queues hold."""
        for queue in queues if self._ext_file_size is not None else ():
            if not isinstance(queue, QueueImage):
                continue
            writer = self.ext_of(queue.topic, queue.queue_id)
            writer.recover()
            codes = np.concatenate([np.empty(0, np.int64), *(file.live()["tags_code"].astype(np.int64) for file in queue.files[-3:])])
            addresses = codes[codes <= -(1 << 31) - 1]
            if len(addresses):
                writer.truncate_by_max(int(addresses.max()))
