"""A RocketMQ store opened for reading: the one place that knows which files make up a store.

Opening reads names, sizes and the small configuration files; logs, queues and index files are mapped when they are
asked for. Nothing in the directory is changed, locked or created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mqstore.errors import NotFoundError, UnsupportedError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.location import Location, Url, as_location
from mqstore.files.remote import open_directory
from mqstore.findings import Damage
from mqstore.rocketmq.config import consumer_offset_file, topic_config
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.dispatch.dispatcher import LMQ_PREFIX, Rules, parse_delays
from mqstore.rocketmq.format import checkpoint as checkpoints
from mqstore.rocketmq.format import consume_queue, index_file
from mqstore.rocketmq.format.batch_consume_queue import BatchQueueReader
from mqstore.rocketmq.format.checkpoint import Checkpoint
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.consume_queue import ConsumeQueueReader
from mqstore.rocketmq.format.consume_queue_ext import ConsumeQueueExt
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.store.message_table import table
from mqstore.rocketmq.store.view import ConsumerOffset, QueueView, View
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, check_columns, rocketmq_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["VERSIONS", "DiskView", "RocketMQStore", "consumer_offsets", "looks_like_rocketmq", "no_queue"]

VERSIONS = ("4.9.3", "5.3.3")

_UNSUPPORTED = (
    ("consumequeue/CURRENT", "consume queues in RocksDB (storeType=defaultRocksDB)"),
    ("timerwheel", "the timer wheel (messages with arbitrary delay wait in topic rmq_sys_wheel_timer)"),
    ("compaction/position-checkpoint", "compaction topics"),
    ("tiered_index_file", "tiered storage"),
    ("config/tieredStoreMetadata.json", "tiered storage"),
    ("kvStore", "state kept in RocksDB (kvStore)"),
    ("config/rdb", "configuration kept in RocksDB"),
    ("config/consumerOffsets", "consumer offsets kept in RocksDB"),
)


class RocketMQStore:
    """One store directory. `view` gives the two ways to look at it; the other members are the files as they lie."""

    family = "rocketmq"

    def __init__(
        self, path: str | Location, *, config: BrokerConfig | None = None, keep: object = None, snapshot: str | None = None
    ) -> None:
        self.path = as_location(path)
        self.config = config if config is not None else BrokerConfig()
        self.directory = open_directory(self.path, snapshot)
        self.log = CommitLog(self.directory, file_size=self.config.commit_log_file_size)
        self.unclean = self.directory.exists("abort")
        self._keep = keep  # an unpacked archive lives as long as the store that reads it

    @property
    def place(self) -> str | Url:
        """Where the store is, for a task: a path from the root, for a task may run in another directory; a URL with its credentials."""
        return self.path if isinstance(self.path, Url) else os.path.abspath(self.path)

    # the files

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return checkpoints.load(self.directory)

    @cached_property
    def topics(self) -> topic_config.TopicsConfig:
        return topic_config.load(self.directory)

    @cached_property
    def offset_table(self) -> consumer_offset_file.OffsetTable:
        return consumer_offset_file.load(self.directory)

    @cached_property
    def _consume_queues(self) -> tuple[ConsumeQueueReader, ...]:
        # a cut file in a queue of one file is known by the length that the other queues' files have
        file_size = self.config.consume_queue_file_size or consume_queue.common_file_size(self.directory)
        return tuple(
            ConsumeQueueReader(self.directory, topic, queue_id, file_size=file_size)
            for topic, queue_id in consume_queue.queues(self.directory)
        )

    def consume_queues(self) -> Sequence[ConsumeQueueReader]:
        """All consume queues on disk, by topic and queue id."""
        return self._consume_queues

    @cached_property
    def _batch_queues(self) -> tuple[BatchQueueReader, ...]:
        return tuple(
            BatchQueueReader(self.directory, topic, queue_id, file_size=self.config.batch_queue_file_size)
            for topic, queue_id in consume_queue.queues(self.directory, "batchconsumequeue")
        )

    def batch_queues(self) -> Sequence[BatchQueueReader]:
        """All batch queues on disk, by topic and queue id."""
        return self._batch_queues

    @cached_property
    def _index(self) -> index_file.IndexDirectory:
        return index_file.load(self.directory, slots=self.config.max_hash_slot_num, positions=self.config.max_index_num)

    def index_files(self) -> Sequence[IndexFile]:
        """The index files, oldest first."""
        return self._index.files

    @cached_property
    def findings(self) -> tuple[Damage, ...]:
        """What listing and reading the small files brought to light."""
        return (
            *self.log.findings,
            *self._index.findings,
            *self.checkpoint.findings,
            *self.offset_table.findings,
            *self.topics.findings,
        )

    @cached_property
    def unsupported(self) -> tuple[str, ...]:
        """Parts of the store that are recognised but not read, by name."""
        found = [name for place, name in _UNSUPPORTED if self.directory.exists(place)]
        found.extend(f"compaction of topic {topic}" for topic in self.topics.compacted)
        return tuple(dict.fromkeys(found))

    @cached_property
    def version_hint(self) -> str:
        """The version whose rules the files suggest: `5.3.3` when anything only 5.x writes is there, else `4.9.3`."""
        point = self.checkpoint
        if point.confirm_physical_offset > 0 or point.master_flushed_offset > 0 or self.topics.five or self.offset_table.five:
            return "5.3.3"
        five_only = (
            "abort.bak",
            "timerwheel",
            "timerlog",
            "compaction",
            "batchconsumequeue",
            "config/timercheck",
            "config/topicQueueMapping.json",
        )
        if any(self.directory.exists(place) for place in five_only) or self.directory.read("abort", 64):
            return "5.3.3"
        return "5.3.3" if self._newest_file_is_of_five() else "4.9.3"

    def _newest_file_is_of_five(self) -> bool:
        """Whether the first record of the newest written log file is of version 2 or ends its properties as 5.x does."""
        number = self.log.last_written()
        if number < 0:
            return False
        file = self.log.files[number]
        message = self.log.record(file.start)
        return message is not None and (message.version == 2 or message.properties.endswith(b"\x02"))

    def rules(self, version: str | None = None) -> Rules:
        """The broker settings that decide what derived files hold: from the configuration, else from the directories there are."""
        lmq = any(queue.topic.startswith(LMQ_PREFIX) for queue in self.consume_queues())
        multi = self.config.enable_multi_dispatch
        batch = {queue.topic for queue in self.batch_queues()} | set(self.topics.batch_topics) | set(self.config.batch_topics)
        return Rules(
            delays=parse_delays(self.config.message_delay_level) if self.config.message_delay_level else parse_delays(),
            multi_dispatch=lmq if multi is None else multi,
            lmq=lmq if self.config.enable_lmq is None else self.config.enable_lmq,
            five=(version or self.version_hint) != "4.9.3",
            batch_topics=frozenset(batch),
        )

    def tags_code_resolver(self, topic: str, queue_id: int) -> Callable[[int], int]:
        """A function from a stored tags code to the tags code itself: addresses lead through the extended queue."""
        ext = ConsumeQueueExt(self.directory, topic, queue_id, file_size=self.config.consume_queue_ext_file_size)
        return ext.tags_code

    # the views

    def view(self, name: str = "disk", as_: str | None = None) -> View:
        """`disk` or `recovered`; as_: whose rules recover, `4.9.3` or `5.3.3`, by default what the files suggest. Raises UsageError."""
        if as_ is not None and as_ not in VERSIONS:
            raise UsageError(f"there are no rules of version {as_!r}; known are {' and '.join(VERSIONS)}")
        if name == "disk":
            return self._disk_view
        if name == "recovered":
            from mqstore.rocketmq.store.recovered_view import recover

            return recover(self, as_ or self.version_hint)
        raise UsageError(f"there is no view {name!r}; the views are disk and recovered")

    @cached_property
    def _disk_view(self) -> DiskView:
        return DiskView(self)

    def to_batches(
        self, columns: Sequence[str] = ROCKETMQ_COLUMNS, selection: Selection = Selection(), *, milliseconds: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The message table of the disk view, batch by batch."""
        return self.view().batches(columns, selection, milliseconds=milliseconds)

    def to_arrow(self, columns: Sequence[str] = ROCKETMQ_COLUMNS, selection: Selection = Selection()) -> pa.Table:
        """The message table of the disk view in memory. For more than memory holds take `to_batches`."""
        import pyarrow as pa

        return pa.Table.from_batches(self.to_batches(columns, selection), rocketmq_schema(columns))

    def to_pandas(self, columns: Sequence[str] = ROCKETMQ_COLUMNS, selection: Selection = Selection()) -> Any:
        """The message table of the disk view as a `pandas.DataFrame`. Raises UnsupportedError where pandas is not installed."""
        check_columns(columns)
        if find_spec("pandas") is None:
            raise UnsupportedError("pandas is not installed: `pip install pandas`, or take to_arrow, which needs nothing more")
        return self.to_arrow(columns, selection).to_pandas()


def consumer_offsets(store: RocketMQStore, queue_of: Callable[[str, int], QueueView | None]) -> list[ConsumerOffset]:
    """The offset table laid against the queues of a view."""
    found = []
    topics = {queue.topic for queue in store.consume_queues()} | {queue.topic for queue in store.batch_queues()} | set(store.topics.names)
    for (group, topic), by_queue in sorted(store.offset_table.offsets.items()):
        for queue_id, offset in sorted(by_queue.items()):
            queue = queue_of(topic, queue_id)
            if queue is None:
                found.append(
                    ConsumerOffset(group, topic, queue_id, offset, None, None, None, "no-queue" if topic in topics else "no-topic")
                )
                continue
            low, high = queue.min_offset, queue.max_offset
            state = "below-min" if offset < low else "above-max" if offset > high else "ok"
            found.append(ConsumerOffset(group, topic, queue_id, offset, low, high, high - offset, state))
    return found


class DiskView:
    """The files as they lie."""

    name = "disk"

    def __init__(self, store: RocketMQStore) -> None:
        self._store = store
        self.log = store.log

    @cached_property
    def _queues(self) -> dict[tuple[str, int], QueueView]:
        queues: list[QueueView] = [*self._store.consume_queues(), *self._store.batch_queues()]
        return {(queue.topic, queue.queue_id): queue for queue in sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))}

    @cached_property
    def _range(self) -> tuple[int, int]:
        return self.log.start, self.log.end()

    def log_range(self) -> tuple[int, int]:
        return self._range

    def batches(
        self,
        columns: Sequence[str] = ROCKETMQ_COLUMNS,
        selection: Selection = Selection(),
        *,
        milliseconds: bool = False,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        high = self.log.files[-1].start + self.log.files[-1].size if self.log.files else 0
        return table(
            self.log,
            self.log.start,
            high,
            check_columns(columns),
            selection,
            self.queue_or_none,
            milliseconds=milliseconds,
            on_damage=on_damage,
        )

    def queues(self) -> Sequence[QueueView]:
        return list(self._queues.values())

    def queue_or_none(self, topic: str, queue_id: int) -> QueueView | None:
        """The queue, or None where there is none."""
        return self._queues.get((topic, queue_id))

    def queue(self, topic: str, queue_id: int) -> QueueView:
        found = self.queue_or_none(topic, queue_id)
        if found is None:
            raise NotFoundError(no_queue(topic, queue_id, [queue for queue in self.queues() if queue.topic == topic]))
        return found

    def index_files(self) -> Sequence[IndexFile]:
        return self._store.index_files()

    def record(self, physical_offset: int) -> Record | None:
        return self.log.record(physical_offset)

    def consumer_offsets(self) -> Sequence[ConsumerOffset]:
        return consumer_offsets(self._store, self.queue_or_none)

    @property
    def findings(self) -> Sequence[Damage]:
        return self._store.findings


def no_queue(topic: str, queue_id: int, of_topic: Sequence[QueueView]) -> str:
    """The sentence for a queue that is not there."""
    if not of_topic:
        return f"no consume queue of topic {topic!r} is there; `mqstore topics` lists those that are"
    known = ", ".join(str(queue.queue_id) for queue in of_topic)
    return f"topic {topic!r} has no queue {queue_id}; it has {known}"


def looks_like_rocketmq(directory: ReadOnlyDirectory) -> bool:
    """Whether the directory has the mark of a RocketMQ store: a commit log, or what is derived from one."""
    if directory.is_directory("commitlog"):
        return True
    marks = sum(
        directory.exists(name) for name in ("consumequeue", "index", "checkpoint", "config/consumerOffset.json", "config/topics.json")
    )
    return marks >= 2
