"""The golden stores as the read paths see them: log, queues and index of a broker that has loaded and started on one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from support.golden import GoldenCase, opened

import mqstore
from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage, QueueImage
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.dispatch.index_image import IndexImage
from mqstore.rocketmq.format.batch_consume_queue import UNIT
from mqstore.rocketmq.format.consume_queue import ENTRY
from mqstore.rocketmq.format.consume_queue_ext import ConsumeQueueExt
from mqstore.rocketmq.format.java_text import java_hash
from mqstore.rocketmq.format.log_slices import LogFiles
from mqstore.rocketmq.format.record import Record, blank, encode, encode_properties
from mqstore.rocketmq.query.pull import PullRules, TagsCodeOf
from mqstore.rocketmq.recovery.broker_recovery import Recovery
from mqstore.rocketmq.store.store import RocketMQStore


@dataclass(frozen=True, eq=False)
class Started:
    """A broker's state. log: up to the truncation point."""

    case: GoldenCase
    store: RocketMQStore
    recovery: Recovery
    log: LogFiles

    def queue(self, topic: str, queue_id: int) -> QueueImage | BatchQueueImage:
        """Return the queue, empty if the broker has none: it creates one on request."""
        for batch in (False, True):
            found = self.recovery.queues.get((topic, queue_id, batch))
            if found is not None:
                return found
        return QueueImage(topic, queue_id, int(self.case.properties.get("mappedFileSizeConsumeQueue", 6_000_000)))

    @property
    def queues(self) -> list[QueueImage | BatchQueueImage]:
        return [queue for queue in self.recovery.queues.values() if queue.files]

    def tags_code_of(self, topic: str, queue_id: int) -> TagsCodeOf:
        """Return the tags code at an address of the extended queue."""
        size = self.case.properties.get("mappedFileSizeConsumeQueueExt")
        ext = ConsumeQueueExt(self.store.directory, topic, queue_id, file_size=int(size) if size else None)

        def tags_code(address: int) -> int | None:
            unit = ext.unit(address)
            return None if unit is None else unit.tags_code

        return tags_code

    @property
    def index_files(self) -> Sequence[IndexImage]:
        return self.recovery.index.files if self.recovery.index is not None else []

    @property
    def rules(self) -> PullRules:
        return PullRules(version=self.case.version, in_memory_bytes=1 << 40)


@cache
def started(case: GoldenCase) -> Started:
    """Return a broker of the case's version, after load and start on the case's directory."""
    store = mqstore.open(opened(case), config=case.config)
    assert isinstance(store, RocketMQStore)
    rules = store.rules(case.version)
    recovery = Recovery(
        store.directory, store.log, store.index_files(), store.checkpoint, store.config, rules, case.version, unclean=store.unclean
    )
    recovery.load()
    recovery.start()
    files = [(file.start, store.log.mapped(file.file).data.data[: file.written]) for file in recovery.log_files]
    return Started(case, store, recovery, LogFiles(files, store.log.file_size))


@dataclass(frozen=True, eq=False)
class Made:
    """A queue and its log, made from records in memory."""

    log: LogFiles
    queue: QueueImage
    physicals: list[int]
    sizes: list[int]

    def without_log_before(self, physical: int) -> LogFiles:
        """Return the log after retention has deleted the files that end at or before an offset."""
        size = self.log.file_size
        return LogFiles([(start, view) for start, view in self.log.files if start + size > physical], size)


def made(
    records: Sequence[Record], *, first: int = 0, log_file: int = 4096, queue_file: int = 10, codes: Sequence[int] | None = None
) -> Made:
    """Make a queue of those records. first: queue offset of the first. log_file: bytes; queue_file: entries. codes: instead of hashes."""
    files: list[bytearray] = [bytearray()]
    rows = []
    for number, record in enumerate(records):
        raw = encode(record)
        assert len(raw) + 8 <= log_file
        if len(files[-1]) + len(raw) + 8 > log_file:
            files[-1] += blank(log_file - len(files[-1])).ljust(log_file - len(files[-1]), b"\0")
            files.append(bytearray())
        at = (len(files) - 1) * log_file + len(files[-1])
        files[-1] += encode(replace(record, physical_offset=at, queue_offset=first + number))
        tag = record.property_map().get("TAGS")
        rows.append((at, len(raw), codes[number] if codes is not None else java_hash(tag) if tag else 0))
    queue = QueueImage("T", 0, 20 * queue_file)
    entries = np.array(rows, ENTRY)
    queue.append(QueueRun("T", 0, np.arange(first, first + len(rows)), entries.view(np.uint8), consecutive=True))
    log = LogFiles([(number * log_file, memoryview(bytes(raw))) for number, raw in enumerate(files)], log_file)
    return Made(log, queue, [row[0] for row in rows], [row[1] for row in rows])


def tagged(tag: str, **fields: object) -> Record:
    """Return a record with a tag."""
    return Record("T", b"body", properties=encode_properties({"TAGS": tag}), **fields)  # type: ignore[arg-type]


def batch_queue(
    counts: Sequence[int], *, size: int = 100, times: Sequence[int] | None = None, first: int = 0, per_file: int = 20
) -> BatchQueueImage:
    """Return a batch queue with these numbers of messages per unit; the record of unit k is at k * size."""
    numbers = np.arange(len(counts))
    bases = first + np.concatenate([[0], np.cumsum(counts)[:-1]])
    units = np.zeros(len(counts), UNIT)
    units["physical_offset"], units["size"], units["base_offset"], units["count"] = numbers * size, size, bases, counts
    units["store_timestamp"] = numbers if times is None else times
    units["compacted_offset"] = -1
    queue = BatchQueueImage("T", 0, UNIT.itemsize * per_file)
    queue.append(QueueRun("T", 0, bases, units.view(np.uint8), consecutive=True, batch=True))
    return queue
