"""Where a store that is open for writing keeps its derived files: the target that `Recovery` recovers and dispatches to.

Queues and index files are on disk (`live.queue_files`, `live.index_writer`); log files after the truncation point are removed.
A topic that cannot name a directory, which only damaged or hostile records have, gets a queue in memory, so that dispatch continues.

With extended consume queues, the unit of each entry is written first, and its address replaces the tags code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage, QueueImage
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.dispatch.index_image import IndexService
from mqstore.rocketmq.dispatch.targets import AnyQueueImage
from mqstore.rocketmq.format.consume_queue import ENTRY, usable_topic
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.mapped_file_queue import FileQueue, QueueFile
from mqstore.rocketmq.format.system_topics import SCHEDULE_TOPIC
from mqstore.rocketmq.live.consume_queue_ext_writer import ExtQueueWriter
from mqstore.rocketmq.live.index_writer import IndexFiles, StoredIndex
from mqstore.rocketmq.live.queue_files import QueueFiles, StoredBatchQueue, StoredQueue

Longs = NDArray[np.int64]
Rows = NDArray[np.void]


class DerivedFiles:
    """The derived files of a store on disk. Implements `dispatch.targets.DispatchTarget`.

    amending: existing entries are compared with what dispatch makes of their records, and corrected. A machine that died may have
    left partial entries on disk; a broker takes those for entries.
    """

    def __init__(
        self,
        queue_files: QueueFiles,
        index_files: IndexFiles,
        reading: ReadOnlyDirectory,
        writing: DurableDirectory,
        *,
        ext_file_size: int | None,
        delays: Sequence[int],
    ) -> None:
        """ext_file_size: bytes of a file of the extended consume queues; None if they are not used. delays: ms of each level."""
        self._queue_files = queue_files
        self._index_files = index_files
        self._reading = reading
        self._writing = writing
        self._ext_file_size = ext_file_size
        self._delays = np.array(delays, np.int64)
        self._waiting: list[tuple[StoredQueue, QueueRun]] = []
        self.amending = False
        self.ext: dict[tuple[str, int], ExtQueueWriter] = {}

    def open_queue(self, kind: type[AnyQueueImage], topic: str, queue_id: int, file_size: int, loaded: FileQueue | None) -> AnyQueueImage:
        if loaded is None and not usable_topic(topic):
            return kind(topic, queue_id, file_size)
        if issubclass(kind, BatchQueueImage):
            return StoredBatchQueue(self._queue_files, topic, queue_id, file_size, loaded)
        stored = StoredQueue(self._queue_files, topic, queue_id, file_size, loaded)
        if self._ext_file_size is not None:
            stored.on_minimum = lambda tags_code: self.ext_of(topic, queue_id).truncate_by_min(tags_code)
        return stored

    def open_index(self, recovered: Sequence[IndexFile], dropped: Sequence[IndexFile], *, slots: int, positions: int) -> IndexService:
        # only full files were synced: after a machine died, no other file can be trusted, whatever its times
        unsynced = [file for file in recovered if file.index_count < file.positions] if self.amending else []
        for file in (*dropped, *unsynced):
            self._writing.remove(file.relative)
        recovered = [file for file in recovered if file not in unsynced]
        return StoredIndex(self._index_files, recovered, slots=slots, positions=positions)

    def remove_log_file(self, file: QueueFile) -> None:
        self._writing.remove(file.relative)

    def close(self) -> None:
        self._writing.close()
        self._index_files.writing.close()

    def before_append(self, queue: AnyQueueImage, run: QueueRun, data: Bytes, positions: Longs, physical: Longs) -> QueueRun:
        """Return the run with addresses of units, if extended queues are used; amend existing entries if `amending`."""
        if self.amending and isinstance(queue, StoredQueue) and self._owned(run, data, positions, physical):
            queue.amend(run, lambda rows: self._may_differ(queue.topic, rows, data, positions, physical))
        if self._ext_file_size is None or run.batch:
            return run
        writer = self.ext_of(run.topic, run.queue_id)
        rows = run.entries.reshape(-1, 20).copy()
        fields = _fields_of(rows.ravel().view(ENTRY)["physical_offset"], data, positions, physical)
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
        return QueueRun(run.topic, run.queue_id, run.offsets, rows.ravel(), run.consecutive)

    def append(self, queue: AnyQueueImage, run: QueueRun) -> None:
        if isinstance(queue, StoredQueue) and queue.takes_at_once(run):
            self._waiting.append((queue, run))
        else:
            self.flush()  # the disk sees the writes in the order of the calls
            queue.append(run)

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        done, error = self._queue_files.write_all([queue.waiting_write(run) for queue, run in waiting])
        for queue, run in waiting[:done]:
            queue.written(run)
        if error is not None:
            raise error

    def _owned(self, run: QueueRun, data: Bytes, positions: Longs, physical: Longs) -> bool:
        """Return whether the run's records belong to its queue. Multi-dispatch numbers the others, not always in order."""
        first = run.entries.reshape(-1, ENTRY.itemsize)[:1].copy().view(ENTRY).ravel()
        fields = _fields_of(first["physical_offset"], data, positions, physical)
        start, length = int(fields[frames.TOPIC_START, 0]), int(fields[frames.TOPIC_LENGTH, 0])
        return data[start : start + length].tobytes() == run.topic.encode("utf-8", "surrogatepass")

    def _may_differ(self, topic: str, rows: Rows, data: Bytes, positions: Longs, physical: Longs) -> NDArray[np.bool_]:
        """Return which entries may differ from dispatch in their tags code, because it is an address or a delivery time."""
        if self._ext_file_size is not None:
            return np.ones(len(rows), np.bool_)
        if topic != SCHEDULE_TOPIC:
            return np.zeros(len(rows), np.bool_)
        stored_at = _fields_of(rows["physical_offset"], data, positions, physical)[frames.STORE_TIMESTAMP]
        return np.isin(rows["tags_code"].astype(np.int64) - stored_at, self._delays)

    def ext_of(self, topic: str, queue_id: int) -> ExtQueueWriter:
        """Return the extended queue of a queue, created if necessary."""
        writer = self.ext.get((topic, queue_id))
        if writer is None:
            assert self._ext_file_size is not None
            writer = ExtQueueWriter(self._writing, self._reading, topic, queue_id, file_size=self._ext_file_size)
            self.ext[topic, queue_id] = writer
        return writer

    def on_queues_recovered(self, queues: Sequence[AnyQueueImage]) -> None:
        """Recover the extended queues, and cut them after the largest address that the recovered queues hold."""
        for queue in queues if self._ext_file_size is not None else ():
            if not isinstance(queue, QueueImage):
                continue
            writer = self.ext_of(queue.topic, queue.queue_id)
            writer.recover()
            codes = np.concatenate(
                [np.empty(0, np.int64), *(file.written_rows()["tags_code"].astype(np.int64) for file in queue.files[-3:])]
            )
            addresses = codes[codes <= -(1 << 31) - 1]
            if len(addresses):
                writer.truncate_by_max(int(addresses.max()))


def _fields_of(listed: NDArray[Any], data: Bytes, positions: Longs, physical: Longs) -> Longs:
    """Return the fields of the records at some physical offsets, which are among `physical`."""
    at = np.ascontiguousarray(positions[np.searchsorted(physical, listed.astype(np.int64))])
    fields = np.empty((frames.FIELD_COUNT, len(at)), np.int64)
    frames.fields(data, at, fields)
    return fields
