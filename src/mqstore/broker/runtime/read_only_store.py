"""A read-only store for a broker: of a dead, damaged, copied or unpacked store, or one without write permission.

`recovered` serves what a broker would after loading the directory. `disk` serves the files as they are: all queues, and every valid record
of the log at any position. It is used if a broker would lose something; then also messages of the log that no queue leads to are served.
Nothing in the directory changes. Topics, groups and offsets are copies in memory: consumers may commit offsets, which last until the
process ends.

    pull, query, view, times, offsets     unchanged
    topics                                those configured or with queues; readable, not writable
    put, create, delete                   refused

Serving the files of a damaged store as they are would leave out messages of its log that none of its consume queues leads to: a crash came
before their dispatch, or their queue is damaged or gone. The log is dispatched again in memory, and what it yields is put where the queue
has no entry, or one that leads to no record. An entry takes 28 bytes.

Protocol: docs/formats/rocketmq-remoting.md, section 3.22.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from mqstore.broker.runtime.served_store import LEAST, NamedQueue
from mqstore.errors import MqstoreError, RefusedError, UnsupportedError
from mqstore.files import ReadOnlyDirectory
from mqstore.kernels.rocketmq import frames
from mqstore.places import open_rocketmq
from mqstore.rocketmq.config.consumer_offsets import ConsumerOffsets
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.config.topic_table import SubscriptionGroups, TopicConfig, Topics
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.batch_consume_queue import UNIT_SIZE
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY, ENTRY_SIZE
from mqstore.rocketmq.format.consume_queue_ext import ConsumeQueueExt
from mqstore.rocketmq.format.log_slices import LogFiles, LogSlices
from mqstore.rocketmq.format.profile import profile
from mqstore.rocketmq.format.queue_page import PagedFile
from mqstore.rocketmq.format.system_topics import TEMPLATE_TOPIC
from mqstore.rocketmq.format.tag_filter import TagFilter
from mqstore.rocketmq.query import pull
from mqstore.rocketmq.query.index_search import IndexFileLike
from mqstore.rocketmq.store.read_side import ReadSide
from mqstore.rocketmq.store.recovered_view import RecoveredView, recover
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.view import QueueView, View
from mqstore.rocketmq.verify.log_proof import check_split, plan
from mqstore.table.formatting import agreeing

ViewName = Literal["auto", "recovered", "disk"]

READ = 4
REFUSAL = "this broker is read-only: its store accepts no messages or changes; its messages can be pulled and queried"


class ReadOnlyStore(ReadSide):
    """A read-only store. view: the state served, `recovered` or `disk`; notes: what that view leaves out."""

    refusal = REFUSAL
    _unlisted = 0
    writable: MessageStore | None = None

    def __init__(self, path: str | os.PathLike[str], config: StoreConfig, version: str | None = None, view: ViewName = "auto") -> None:
        self._store = open_rocketmq(path)
        self._store.require_commit_log("serving a store")
        if not isinstance(self._store.directory, ReadOnlyDirectory):
            raise UnsupportedError(f"{path} is a URL, and a broker serves local files only; copy the store first")
        asked = version or config.version
        self.version = self._store.version_hint if asked is None else profile(asked).rules
        self.config = replace(config, version=self.version)
        recovered, notes = (None, []) if view == "disk" else _recovered(self._store, asked, insist=view == "recovered")
        if view == "auto" and recovered is not None and not _covers(recovered, self._store.view()):
            recovered = None
        if view == "auto" and recovered is not None and not looks_sound(recovered.queues(), recovered.log_range()[1]):
            recovered = None
        self._completes = view == "auto" and recovered is None
        self.view = "disk" if recovered is None else "recovered"
        self._recovered = recovered
        self._rules = pull.PullRules(version=self.version, in_memory_bytes=1 << 62)
        directory = self._store.directory
        self.offsets = ConsumerOffsets.load(directory, self.version, config.enable_lmq)
        self.groups = SubscriptionGroups.load(directory, self.version)
        self.groups.add_built_in()
        self.topics = _readable(Topics.load(directory, self.version), self.queues())
        more = self._unlisted
        notes += [f"{agreeing(more, 'message', 'is', 'are')} served as well that no consume queue leads to"] if more else []
        self.notes = (f"the store is served read-only, {_SENTENCES[self.view]}", *notes)

    # log and queues

    @cached_property
    def log(self) -> LogSlices:
        """The served log."""
        log = self._store.log
        if self._recovered is not None:
            files = [(file.start, _view(log.mapped(file.file).data)[: file.written]) for file in self._recovered.files]
            return LogFiles(files, log.file_size)
        size = max((file.size for file in log.files), default=log.file_size)
        return _ValidRecords([(file.start, _view(log.mapped(file).data)) for file in log.files], size)

    @cached_property
    def _queues(self) -> dict[tuple[str, int], NamedQueue]:
        view = self._store.view() if self._recovered is None else self._recovered
        views = view.queues()
        if self._recovered is not None:
            queues = cast("Sequence[NamedQueue]", views)
            return {(queue.topic, queue.queue_id): queue for queue in queues}
        on_disk = {(queue.topic, queue.queue_id): queue for queue in views}
        merged: dict[tuple[str, int], QueueView] = dict(on_disk)
        if self._completes:
            log = cast("_ValidRecords", self.log)
            more = completed(self._store, on_disk, lambda physical: log.readable(physical) is not None)
            self._unlisted = sum(len(queue) for queue in more.values())
            merged |= more
        return {key: _SingleFileQueue(merged[key]) for key in sorted(merged)}

    def queues(self) -> Sequence[NamedQueue]:
        """Return all consume queues, by topic and queue id."""
        return list(self._queues.values())

    def queue_or_none(self, topic: str, queue_id: int) -> NamedQueue | None:
        """Return a consume queue, or None."""
        return self._queues.get((topic, queue_id))

    @property
    def log_min(self) -> int:
        return self.log.min_offset

    @cached_property
    def log_max(self) -> int:
        return self.log.max_offset if self._recovered is not None else self._store.view().log_range()[1]

    # reading, as MessageStore does

    def get(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        filter: TagFilter | str | None = None,  # noqa: A002 - as in MessageStore
    ) -> pull.GetResult:
        """Pull at most max_count messages of a queue from a queue offset onwards; only valid records of a damaged store."""
        tags = TagFilter.parse(filter) if isinstance(filter, str) else filter
        queue = self.queue_or_none(topic, queue_id)
        if queue is None:
            return pull.GetResult(pull.GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        ext = ConsumeQueueExt(self._store.directory, topic, queue_id, file_size=self.config.consume_queue_ext_file_size)
        return pull.get_message(self.log, queue, offset, max_count, tags, self._rules, ext.tags_code)

    def index_files(self) -> Sequence[IndexFileLike]:
        """Return the index files of the view, oldest first."""
        return self._index

    @cached_property
    def _index(self) -> Sequence[IndexFileLike]:
        return (self._store.view() if self._recovered is None else self._recovered).index_files()

    def close(self) -> None:
        """Close the files."""
        self._store.log.forget_all()


_SENTENCES = {
    "recovered": "as a broker would serve it after loading the directory",
    "disk": "with its files as they are: what the queues list and the log still holds",
}


def _recovered(store: RocketMQStore, version: str | None, *, insist: bool) -> tuple[RecoveredView | None, list[str]]:
    """Return (the recovered view, what it leaves out), or no view if a broker would not start on the store. insist: raise in that case."""
    try:
        recovered = recover(store, version)
    except RefusedError as error:
        if insist:
            raise
        return None, [str(error)]
    except MqstoreError as error:
        if insist:
            raise
        return None, [f"the directory cannot be loaded: {error}"]
    return recovered, list(recovered.notes)


def _covers(recovered: View, disk: View) -> bool:
    """Return whether a broker would keep the whole log."""
    (low, high), (first, last) = recovered.log_range(), disk.log_range()
    return low <= first and last <= high


def _readable(topics: Topics, queues: Sequence[NamedQueue]) -> Topics:
    """Return the topics without write permission and templates, including those that only have queues."""
    topics.delete(TEMPLATE_TOPIC)
    counts: dict[str, int] = {}
    for queue in queues:
        counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
    for name in [*topics.names(), *(name for name in counts if name not in topics)]:
        known = topics.get(name) or TopicConfig(name)
        count = counts.get(name, 0)
        topics.put(replace(known, perm=READ, read_queues=max(known.read_queues, count), write_queues=max(known.write_queues, count)))
    return topics


def _view(data: NDArray[np.uint8]) -> memoryview:
    return data.data.cast("B") if len(data) else memoryview(b"")


class _ValidRecords(LogFiles):
    """A log that may be damaged: only valid records are returned, and others are skipped one by one."""

    def __init__(self, files: Sequence[tuple[int, memoryview]], file_size: int) -> None:
        super().__init__(files, file_size)
        self.file_size = 1  # after an unreadable record the scan continues with the next one

    def readable(self, physical: int) -> tuple[int, memoryview] | None:
        number = int(np.searchsorted(self._starts, physical, "right")) - 1
        if number < 0:
            return None
        start, view = self.files[number]
        believable = frames.status_at(np.frombuffer(view, np.uint8), physical - start, start, True) == frames.STOP
        return (start, view) if believable else None

    def slice(self, physical: int, size: int) -> memoryview | None:
        file = self.readable(physical)
        if file is None or size < 4 or physical - file[0] + size > len(file[1]):
            return None
        at = physical - file[0]
        raw = file[1][at : at + size]
        return raw if size < LEAST or int.from_bytes(raw[:4], "big") == size else None


class _SingleFileQueue:
    """A queue of the disk view in the form that pulling needs: one file from the first entry to the last."""

    def __init__(self, queue: QueueView) -> None:
        self._queue = queue
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self.batch = queue.batch
        self.min_offset = queue.min_offset
        self.max_offset = queue.max_offset
        self.start = 0 if queue.batch else queue.min_offset * ENTRY_SIZE
        self.written = self._length()

    @property
    def file_size(self) -> int:
        return 1 << 62

    @property
    def files(self) -> Sequence[PagedFile]:
        return [self] if self.max_offset > self.min_offset else []

    @cached_property
    def _rows(self) -> NDArray[np.void]:
        return self._queue.entries(self.min_offset, self.max_offset)

    def _length(self) -> int:
        return len(self._rows) * UNIT_SIZE if self.batch else (self.max_offset - self.min_offset) * ENTRY_SIZE

    def part(self, start: int, stop: int) -> NDArray[np.void]:
        """Return rows start..stop-1."""
        return self._rows[start:stop] if self.batch else self._queue.entries(self.min_offset + start, self.min_offset + stop)


# messages that no queue lists


CHECKED = 1 << 23  # 160 MB of entries, some tenths of a second

Place = tuple[str, int]


class CompletedQueue:
    """A consume queue with further entries. queue: as on disk, None if it has no files; offsets: queue offsets of the entries."""

    batch = False

    def __init__(self, key: Place, queue: QueueView | None, offsets: NDArray[np.int64], entries: NDArray[np.void]) -> None:
        self.topic, self.queue_id = key
        self._queue = queue
        order = np.argsort(offsets, kind="stable")
        # of several records with one queue offset, the last one in the log
        last = np.append(np.diff(offsets[order]) != 0, True)
        self._offsets, self._entries = offsets[order][last], entries[order][last]
        low, high = int(self._offsets[0]), int(self._offsets[-1]) + 1
        empty = queue is None or queue.max_offset == queue.min_offset
        self.min_offset = low if queue is None or empty else min(low, queue.min_offset)
        self.max_offset = high if queue is None or empty else max(high, queue.max_offset)

    def __len__(self) -> int:
        """Return how many entries the queue on disk does not have."""
        return len(self._offsets)

    @cached_property
    def max_physical_offset(self) -> int:
        """Physical offset of the newest record with an entry."""
        newest = int(self._entries["physical_offset"].max())
        return newest if self._queue is None else max(newest, self._queue.max_physical_offset)

    def entries(self, start: int, stop: int) -> NDArray[np.void]:
        """Return entries start..stop-1; zeros where there is no message."""
        rows = np.zeros(max(0, stop - start), ENTRY)
        if self._queue is not None:
            low, high = max(start, self._queue.min_offset), min(stop, self._queue.max_offset)
            if low < high:
                rows[low - start : high - start] = self._queue.entries(low, high)
        first, last = np.searchsorted(self._offsets, [start, stop])
        rows[self._offsets[first:last] - start] = self._entries[first:last]
        return rows


def completed(store: RocketMQStore, queues: dict[Place, QueueView], readable: Callable[[int], bool]) -> dict[Place, CompletedQueue]:
    """Return the queues that lack messages of the log, with these messages. Reads the whole log.

    queues: as on disk; readable: whether a valid record is at a physical offset.
    """
    lacking: dict[Place, list[tuple[NDArray[np.int64], NDArray[np.void]]]] = {}
    log, rules = store.log, store.rules()
    file, end = -1, 0
    for split in plan(log):
        known = end if split.file.start == file and end > split.start else None
        check = check_split(log, split, rules, known)
        file, end = split.file.start, max(check.end, end if split.file.start == file else 0)
        for run in () if check.dispatched is None else check.dispatched.runs:
            key = (run.topic, run.queue_id)
            if not run.batch and not (key in queues and queues[key].batch):
                offsets, entries = _lacking(queues.get(key), run, readable)
                if len(offsets):
                    lacking.setdefault(key, []).append((offsets, entries))
    return {
        key: CompletedQueue(key, queues.get(key), np.concatenate([each for each, _ in parts]), np.concatenate([each for _, each in parts]))
        for key, parts in lacking.items()
    }


def looks_sound(queues: Iterable[QueueView], log_end: int) -> bool:
    """Return whether the entries of queues ascend, and lead into the log. Queues of more than CHECKED entries in all are not read."""
    listed = [queue for queue in queues if not queue.batch]
    if sum(queue.max_offset - queue.min_offset for queue in listed) > CHECKED:
        return True
    for queue in listed:
        entries = queue.entries(queue.min_offset, queue.max_offset)
        size, physical = entries["size"].astype(np.int64), entries["physical_offset"].astype(np.int64)
        filled = (size != BLANK_SIZE) | (physical != 0)
        ends = physical[filled] + size[filled]
        if (size[filled] <= 0).any() or (ends > log_end).any() or (physical[filled][1:] < ends[:-1]).any():
            return False
    return True


def _lacking(queue: QueueView | None, run: QueueRun, readable: Callable[[int], bool]) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """Return the offsets and entries of a run that a queue lacks."""
    expected = run.entries.view(ENTRY)
    lacking = np.ones(len(expected), np.bool_)
    if queue is not None and queue.max_offset > queue.min_offset:
        inside = np.flatnonzero((run.offsets >= queue.min_offset) & (run.offsets < queue.max_offset))
        if len(inside):
            low, high = int(run.offsets[inside].min()), int(run.offsets[inside].max()) + 1
            there = queue.entries(low, high)[run.offsets[inside] - low]
            same = there["physical_offset"] == expected["physical_offset"][inside]
            lacking[inside] = ~same | (there["size"] != expected["size"][inside])
            for k in np.flatnonzero(~same).tolist():
                lacking[inside[k]] = int(there["size"][k]) <= 0 or not readable(int(there["physical_offset"][k]))
    return run.offsets[lacking].astype(np.int64), expected[lacking].copy()
