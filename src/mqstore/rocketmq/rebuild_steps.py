"""Rebuilding consume queues and index from the commit log: the steps, as functions that any process or thread can run.

    split of the log --scan_split--> entries written in place, keys, counts      one task per split
    parts of a queue --build_queue-> queue files by the broker's append rules    only for queues that are not plain
    keys             --IndexWriter-> one index file                              one task per file

A record holds its queue offset, so the place of its entry is known without coordination: entry n of a queue is at byte 20 n. A
run of entries whose offsets ascend by one is written at once, into files that have their final length. A repeated step writes the
same bytes, so a retried or duplicated task does no harm; nothing is renamed or made durable before everything is there.

A queue is plain if the runs of all splits join without gap, repetition or jump. All others (a log with lost records, queues that
started again at 0, several dispatches of one record) are built from their entries in log order by
`dispatch.consume_queue_image`, which appends as the broker does. Batch queues are always built that way: their units have no fixed place.

Format: docs/formats/rocketmq.md, sections 4 to 6.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, MappedFile, Url
from mqstore.files.durable import DurableDirectory
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.dispatch.base_queue_image import FileImage
from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage, QueueImage
from mqstore.rocketmq.dispatch.dispatcher import KEY_ROW, Dispatcher, DispatchOutput, DispatchRules, QueueRun
from mqstore.rocketmq.format.batch_consume_queue import UNIT_SIZE
from mqstore.rocketmq.format.commit_log import CommitLog, Records
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY, ENTRY_SIZE, usable_topic
from mqstore.rocketmq.format.dledger_log import open_log
from mqstore.rocketmq.format.index_geometry import DEFAULT, Shape
from mqstore.rocketmq.format.log_file import open_place
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.scan.splits import Split, SplitWalk
from mqstore.rocketmq.store.store import RocketMQStore

DISPATCHED_AT_ONCE = 1 << 17  # records dispatched before their entries are written
MAX_FINDINGS = 1000  # findings of one split that are listed
MAX_OFFSET = 1 << 56  # queue offsets from here on are handled by `build_queue`

DEFAULT_QUEUE_FILE = 300_000 * ENTRY_SIZE
PLAIN = "plain"
EXACT = "exact"
PARTS = "parts"
_OFFSETS = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class RebuildSettings:
    """The broker settings that decide the bytes of derived files. Sizes in bytes."""

    rules: DispatchRules = field(default_factory=DispatchRules)
    queue_file_size: int = DEFAULT_QUEUE_FILE
    batch_file_size: int = 13_800_000
    index: bool = True
    index_slots: int = DEFAULT[0]
    index_positions: int = DEFAULT[1]
    assumed_queue_size: str = ""  # why the size of queue files is the broker's default, if nothing shows another
    assumed_geometry: str = ""  # why the geometry of index files is the broker's default, if nothing shows another


def settings_of(store: RocketMQStore, version: str | None = None) -> RebuildSettings:
    """Return the settings of a store: from its configuration, else from the existing files, else the broker's defaults.

    version: of the broker whose rules are followed; by default the one that wrote the store, as far as its files show.
    """
    config = store.config
    queue_size, assumed_size = queue_file_size(store)
    batch_size = config.batch_queue_file_size or _common(queue.file_size for queue in store.batch_queues()[:64]) or 13_800_000
    shape, assumed = _index_geometry(store)
    return RebuildSettings(
        rules=store.rules(version),
        queue_file_size=queue_size,
        batch_file_size=-(-batch_size // UNIT_SIZE) * UNIT_SIZE,
        index=config.message_index_enable is not False,
        index_slots=shape[0],
        index_positions=shape[1],
        assumed_queue_size=assumed_size,
        assumed_geometry=assumed,
    )


def queue_file_size(store: RocketMQStore) -> tuple[int, str]:
    """Return the size of new queue files: as configured, else that of the files, else as configured beside the store, else the default.

    The sentence says that it is the default; empty if it is known.
    """
    size = store.config.consume_queue_file_size or _common(queue.file_size for queue in store.consume_queues()[:64] if queue.files)
    size = size or store.paths_config.consume_queue_file_size
    if size is not None:
        return -(-size // ENTRY_SIZE) * ENTRY_SIZE, ""
    if store.configured:
        return DEFAULT_QUEUE_FILE, ""
    return DEFAULT_QUEUE_FILE, (
        f"mappedFileSizeConsumeQueue is assumed to be {DEFAULT_QUEUE_FILE}, the broker's default: no queue file shows it, and a broker "
        "that is configured otherwise does not load the new files"
    )


def _index_geometry(store: RocketMQStore) -> tuple[Shape, str]:
    """Return the geometry of new index files: as configured, else that of the newest file that proves one, else as configured beside the
    store, else the broker's default.

    The sentence says why it is the default; empty if it is known.
    """
    slots, positions = store.config.max_hash_slot_num, store.config.max_index_num
    if slots is not None and positions is not None:
        return (slots, positions), ""
    proved = next(((file.slot_count, file.positions) for file in reversed(store.index_files()) if file.proved), None)
    if proved is not None:
        return proved, ""
    beside = store.paths_config
    slots, positions = slots or beside.max_hash_slot_num, positions or beside.max_index_num
    shape = (slots or DEFAULT[0], positions or DEFAULT[1])
    if slots is not None and positions is not None:
        return shape, ""
    there = bool(store.index_files() or store.unread_index)
    why = "no index file shows the geometry" if there else "there is no index file that shows the geometry"
    return shape, (
        f"{why}: the new ones have {shape[0]} slots and {shape[1]} positions, the broker's default; "
        "if the broker has maxHashSlotNum or maxIndexNum in its configuration, give that with --config"
    )


def lines_that_decide(store: RocketMQStore, *, index: bool = True) -> list[str]:
    """Return sentences about new files whose form no file shows: which line of the broker's configuration decides it.

    index: also about index files.
    """
    config = store.paths_config
    sentences = []
    if config.consume_queue_file_size is not None and not any(queue.files for queue in store.consume_queues()):
        size, _ = queue_file_size(store)
        named = next(name for name in ("mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue") if name in dict(config.lines))
        sentences.append(f"new queue files have {size} bytes: {config.where(named)}")
    if index and not any(file.proved for file in store.index_files()):
        for name, what, number in (
            ("maxHashSlotNum", "slots", config.max_hash_slot_num),
            ("maxIndexNum", "positions", config.max_index_num),
        ):
            if number is not None:
                sentences.append(f"new index files have {number} {what}: {config.where(name)}")
    return sentences


def _common(sizes: Iterable[int]) -> int | None:
    """Return the most frequent value other than 0."""
    seen = [size for size in sizes if size > 0]
    return max(set(seen), key=seen.count) if seen else None


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows in a staged file. path: relative to the stage. start: byte of the first row; count: rows."""

    path: str
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class QueuePart:
    """The entries of one split for one queue. first: queue offset of the first entry. plain: the offsets ascend by one from there.

    segments: where rows were staged, in log order; none for a plain part, whose entries are in place.
    """

    topic: str
    queue_id: int
    batch: bool
    first: int
    count: int
    plain: bool
    segments: tuple[StagedRows, ...] = ()


@dataclass(frozen=True, slots=True)
class DispatchTask:
    """Dispatch one split. first: the physical offset of its first record, if known.

    run: identifies the job, so that its tasks in a process share open files.
    only: write just these queues, always as segments. keys_in_memory: return the keys with the result. prove: check each record whole.
    """

    store: str | Url
    log_file_size: int | None
    stage: str
    run: str
    split: Split
    settings: RebuildSettings
    first: int | None = None
    check_crc: bool = False
    prove: bool = False
    keys_in_memory: bool = False
    only: frozenset[tuple[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class DispatchResult:
    """The contents of one split. Offsets are physical; last_offset: of the last record, -1 without any; end: after it, or after
    the record that ends its file.

    keys: one segment of KEY_ROW rows; arrays: the same rows in memory, instead.
    unqueued: topics that cannot be the name of a directory. intact: no record has a contradiction, if each was checked whole.
    """

    split: Split
    begin: int | None
    reach: int
    records: int
    parts: tuple[QueuePart, ...]
    keys: StagedRows | None
    arrays: tuple[NDArray[np.void], ...]
    last_offset: int
    last_store_timestamp: int
    end: int
    damage: tuple[Damage, ...]
    damage_omitted: int
    unqueued: tuple[str, ...]
    intact: bool


def queue_directory(part: QueuePart | QueueBuildTask) -> str:
    """Return the directory of a queue, relative to the store."""
    return f"{'batchconsumequeue' if part.batch else 'consumequeue'}/{part.topic}/{part.queue_id}"


_open_logs: dict[tuple[str, str | Url], CommitLog] = {}


def log_of(store: str | Url, file_size: int | None, run: str) -> CommitLog:
    """Return the log of a store, opened once per job in each process: mapping files is expensive."""
    log = _open_logs.get((run, store))
    if log is None:
        if len(_open_logs) > 3:
            _open_logs.clear()
        log = _open_logs[run, store] = open_log(open_place(store), file_size)
    return log


class _QueueParts:
    """The parts of queues of one split while it is dispatched, and where their entries are written."""

    def __init__(self, stage: DurableDirectory, task: DispatchTask) -> None:
        self._stage = stage
        self._task = task
        self._size = task.settings.queue_file_size
        self._staged: str | None = None
        self._position = 0
        self._found: dict[tuple[str, int, bool], list[QueuePart]] = {}
        self.unqueued: dict[str, None] = {}

    def take(self, run: QueueRun) -> None:
        """Write the entries of a run to their place."""
        if not usable_topic(run.topic):
            self.unqueued.setdefault(run.topic)
            return
        only = self._task.only
        if only is not None and (run.topic, run.queue_id) not in only:
            return
        parts = self._found.setdefault((run.topic, run.queue_id, run.batch), [])
        if only is not None or run.batch:
            segment = self._stage_run(run)
            parts.append(QueuePart(run.topic, run.queue_id, run.batch, run.first, len(run), False, (segment,)))
            return
        plain = run.consecutive and run.first >= 0 and run.first + len(run) < MAX_OFFSET
        if plain:
            self._place(run)
        parts.append(QueuePart(run.topic, run.queue_id, False, run.first, len(run), plain))

    def _place(self, run: QueueRun) -> None:
        directory = f"{PLAIN}/consumequeue/{run.topic}/{run.queue_id}"
        write_entries(self._stage, directory, self._size, run.first * ENTRY_SIZE, run.entries)

    def _stage_run(self, run: QueueRun) -> StagedRows:
        """Write the rows of a segment: all queue offsets, then all entries."""
        if self._staged is None:
            self._staged = new_part(self._stage, self._task.split, "rows")
        start = self._position
        for part in (run.offsets.astype(_OFFSETS).view(np.uint8), run.entries):
            self._stage.pwrite(self._staged, self._position, part)
            self._position += len(part)
        return StagedRows(self._staged, start, len(run))

    def joined(self) -> tuple[QueuePart, ...]:
        """Return one part per queue."""
        joined = []
        for parts in self._found.values():
            first = parts[0]
            plain, end = True, first.first
            for part in parts:
                plain = plain and part.plain and part.first == end
                end = part.first + part.count
            count = sum(part.count for part in parts)
            segments = tuple(segment for part in parts for segment in part.segments)
            joined.append(QueuePart(first.topic, first.queue_id, first.batch, first.first, count, plain, segments))
        return tuple(joined)


def new_part(stage: DurableDirectory, split: Split, kind: str) -> str:
    """Create a staged file of one attempt at one split."""
    path = f"{PARTS}/{split.number:06d}.{secrets.token_hex(6)}.{kind}"
    stage.create(path)
    return path


def write_entries(stage: DurableDirectory, directory: str, file_size: int, position: int, rows: Bytes) -> None:
    """Write rows at a logical byte position of a queue, into all files that they touch."""
    at = 0
    while at < len(rows):
        start = position + at - (position + at) % file_size
        room = start + file_size - position - at
        path = f"{directory}/{start:020d}"
        stage.ensure(path, file_size)
        stage.pwrite(path, position + at - start, rows[at : at + room])
        at += room


def write_blanks(stage: DurableDirectory, directory: str, file_size: int, first: int) -> None:
    """Fill the places before a queue's first entry, back to the beginning of its first file."""
    position = first * ENTRY_SIZE
    start = position - position % file_size
    blanks = np.full((position - start) // ENTRY_SIZE, np.array((0, BLANK_SIZE, 0), ENTRY))
    write_entries(stage, directory, file_size, start, blanks.view(np.uint8))


class _SplitFindings:
    """Damage of one split, listed up to a limit."""

    def __init__(self) -> None:
        self.listed: list[Damage] = []
        self.omitted = 0
        self.intact = True

    def add(self, damage: Damage) -> None:
        if len(self.listed) < MAX_FINDINGS:
            self.listed.append(damage)
        else:
            self.omitted += 1


def _dispatches(walk: SplitWalk, task: DispatchTask, findings: _SplitFindings) -> Iterator[tuple[DispatchOutput, int]]:
    """Dispatch the records of a split in batches; yields each batch with the physical offset of its last record."""
    dispatcher: Dispatcher | None = None
    file_start = 0
    for event in walk:
        if isinstance(event, Damage):
            findings.add(event)
        if not isinstance(event, Records):
            continue
        if task.check_crc or task.prove:
            columns = RecordColumns(event)
            findings.intact &= bool(columns.valid.all())
            if task.check_crc:
                _check_bodies(columns, findings)
        if dispatcher is not None and (event.file.start != file_start or dispatcher.count + len(event) > DISPATCHED_AT_ONCE):
            yield dispatcher.finish(), file_start + int(dispatcher.positions[dispatcher.count - 1])
            dispatcher = None
        if dispatcher is None:
            dispatcher, file_start = Dispatcher(event.data, task.settings.rules, max(DISPATCHED_AT_ONCE, len(event))), event.file.start
        dispatcher.add(event.positions)
    if dispatcher is not None:
        yield dispatcher.finish(), file_start + int(dispatcher.positions[dispatcher.count - 1])


def _check_bodies(columns: RecordColumns, findings: _SplitFindings) -> None:
    records = columns.records
    for k in np.flatnonzero(~columns.crc_ok).tolist():
        position, size = int(records.positions[k]), int(columns.row(frames.SIZE)[k])
        findings.add(
            Damage(
                records.file.relative,
                position,
                size,
                Kind.BAD_CHECKSUM,
                "the body does not match its CRC; the message is dispatched anyway",
                1,
            )
        )


def scan_split(task: DispatchTask) -> DispatchResult:
    """Dispatch the records of one split: write entries to their places, return the keys."""
    walk = SplitWalk(log_of(task.store, task.log_file_size, task.run), task.split, first=task.first)
    findings = _SplitFindings()
    with_keys = task.settings.index and task.only is None
    records = key_count = last_store_timestamp = 0
    last_offset = -1
    arrays: list[NDArray[np.void]] = []
    key_file: str | None = None
    with DurableDirectory(task.stage) as stage:
        parts = _QueueParts(stage, task)
        for dispatched, offset in _dispatches(walk, task, findings):
            records += dispatched.records
            last_offset = offset
            last_store_timestamp = dispatched.last_store_timestamp
            for run in dispatched.runs:
                parts.take(run)
            if not with_keys or not len(dispatched.keys):
                continue
            if task.keys_in_memory:
                arrays.append(dispatched.keys)
            else:
                if key_file is None:
                    key_file = new_part(stage, task.split, "keys")
                stage.pwrite(key_file, key_count * KEY_ROW.itemsize, dispatched.keys.view(np.uint8))
            key_count += len(dispatched.keys)
    return DispatchResult(
        split=task.split,
        begin=walk.begin,
        reach=walk.reach,
        records=records,
        parts=parts.joined(),
        keys=None if key_file is None else StagedRows(key_file, 0, key_count),
        arrays=tuple(arrays),
        last_offset=last_offset,
        last_store_timestamp=last_store_timestamp,
        end=walk.end,
        damage=tuple(findings.listed),
        damage_omitted=findings.omitted,
        unqueued=tuple(parts.unqueued),
        intact=task.prove and findings.intact and not findings.listed and not parts.unqueued,
    )


@dataclass(frozen=True, slots=True)
class QueueBuildTask:
    """Build one queue from its segments, in log order."""

    stage: str
    topic: str
    queue_id: int
    batch: bool
    file_size: int
    segments: tuple[StagedRows, ...]


@dataclass(frozen=True, slots=True)
class QueueBuildResult:
    """A queue built by the append rules: number of entries of 20 bytes, or units of 46."""

    topic: str
    queue_id: int
    batch: bool
    entries: int


def build_queue(task: QueueBuildTask) -> QueueBuildResult:
    """Append the entries of a queue as the broker does, writing each file when it is full. Memory: one file and one segment."""
    image: QueueImage | BatchQueueImage = (BatchQueueImage if task.batch else QueueImage)(task.topic, task.queue_id, task.file_size)
    width = UNIT_SIZE if task.batch else ENTRY_SIZE
    directory = f"{EXACT}/{queue_directory(task)}"
    written = 0
    with DurableDirectory(task.stage) as stage:
        for segment in task.segments:
            offsets, entries = read_rows(Path(task.stage), segment, width)
            plain = not task.batch and bool((np.diff(offsets) == 1).all())
            image.append(QueueRun(task.topic, task.queue_id, offsets, entries, plain, task.batch))
            for file in image.files[:-1]:
                written += _write_image(stage, directory, file, width)
            del image.files[:-1]
        for file in image.files:
            written += _write_image(stage, directory, file, width)
    return QueueBuildResult(task.topic, task.queue_id, task.batch, written)


def _write_image(stage: DurableDirectory, directory: str, file: FileImage, width: int) -> int:
    # a queue offset beyond what a broker can count in bytes wraps to a negative position, where there is no file
    if file.start < 0:
        return 0
    # a file may exist without an entry: the broker creates the next one before it sees that the entry is a duplicate
    path = f"{directory}/{file.start:020d}"
    stage.ensure(path, file.size)
    rows = file.bytes()
    if len(rows):
        stage.pwrite(path, 0, rows)
    return len(rows) // width


def read_rows(stage: Path, segment: StagedRows, width: int) -> tuple[NDArray[np.int64], Bytes]:
    """Return the queue offsets and the entries of a segment. width: bytes of an entry."""
    data = MappedFile(stage / segment.path).data
    middle = segment.start + segment.count * _OFFSETS.itemsize
    return data[segment.start : middle].view(_OFFSETS).astype(np.int64), data[middle : middle + segment.count * width]
