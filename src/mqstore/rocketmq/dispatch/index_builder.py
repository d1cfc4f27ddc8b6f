"""Writes index files from keys in log order, byte for byte as the broker does.

A file takes `positions - 1` keys; the next one goes into a new file. A new file inherits the end of the previous one as
its beginning. The seconds of the first key put into it are counted from the *inherited* begin time, and only then does
the header get the key's own time (docs/formats/rocketmq.md, 5.3 and 5.4). So the first entry of every file but the first
has a wrong time, in the broker's files and in these.

An index file exists as soon as one record was dispatched, even one without keys, and a full last file is followed by an
empty one once another record was dispatched.

Chains are built in memory: the slot table takes four bytes per slot. Only blocks of slots in use are written; the rest of
the file stays a hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mqstore.files import MappedFile
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rocketmq import index_chains
from mqstore.rocketmq.dispatch.dispatcher import KEY_ROW
from mqstore.rocketmq.format.checkpoint import LATEST
from mqstore.rocketmq.format.index_geometry import ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT_SIZE
from mqstore.table.formatting import EPOCH
from mqstore.threads import TaskThreads

BLOCK = 1 << 18  # keys chained before they are written
SLOT_BLOCK = 1 << 14  # slots that are written as one block, if any is in use


Keys = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class IndexEnd:
    """The end of an index file, which the next one inherits. keys: entries in it."""

    name: str
    keys: int
    end_timestamp: int
    end_physical_offset: int


def index_name(begin_timestamp: int, previous: str | None) -> str:
    """Return a file name in the broker's form, `yyyyMMddHHmmssSSS`: the first key's time, or the previous file's plus 1 ms.

    >>> index_name(1640995200123, None), index_name(1640995200123, "20220101000000123")
    ('20220101000000123', '20220101000000124')

    A previous name that is not a moment, which no broker gives, is followed by the next number:

    >>> index_name(1640995200123, "20220101257099123")
    '20220101257099124'
    """
    name = _name_of(begin_timestamp)
    return name if previous is None or name > previous else _after(previous)


def _after(name: str) -> str:
    """Return the next file name, which is greater."""
    try:
        moment = datetime.strptime(name[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC) - EPOCH
        return _name_of(moment // timedelta(milliseconds=1) + int(name[14:]) + 1)
    except ValueError:
        number = f"{int(name) + 1:0{len(name)}d}"
        return number if number > name else f"{name}0"


def _name_of(timestamp: int) -> str:
    seconds, rest = divmod(min(max(timestamp, 0), LATEST), 1000)
    return f"{EPOCH + timedelta(seconds=seconds):%Y%m%d%H%M%S}{rest:03d}"


class IndexWriter:
    """One index file under way. Its header is written last, by `finish`."""

    def __init__(
        self,
        stage: DurableDirectory,
        place: str,
        name: str,
        slots: int,
        positions: int,
        before: IndexEnd | None,
        thread: TaskThreads | None = None,
    ) -> None:
        """place: directory of the file in the stage. before: the end of the previous file, if any.

        thread: writes the entries of a block while those of the next one are chained; without it they are written before that.
        """
        self._stage = stage
        self._path = f"{place}/{name}"
        self.name = name
        self._base = HEADER_SIZE + SLOT_SIZE * slots
        stage.ensure(self._path, self._base + ENTRY_SIZE * positions)
        self._slots = np.zeros(slots, np.int32)
        self._room = positions - 1
        self._thread = thread
        self._blocks = [np.empty(min(BLOCK, self._room) * ENTRY_SIZE, np.uint8) for _ in range(1 if thread is None else 2)]
        self._writing: deque[Future[None]] = deque()
        inherited_time = before.end_timestamp if before is not None and before.end_timestamp > 0 else 0
        inherited_offset = before.end_physical_offset if before is not None and before.end_physical_offset > 0 else 0
        self._begin = self._end = (inherited_time, inherited_offset)
        self._count = 0
        self._used_slots = 0

    @property
    def room(self) -> int:
        """Number of keys that still fit."""
        return self._room - self._count

    def put(self, keys: Keys) -> None:
        """Append keys; they must fit into the file."""
        if not len(keys):
            return
        if self._count == 0:
            # the inherited time applies to the first key only
            self._chain(keys[:1], self._begin[0])
            self._begin = (int(keys["store_timestamp"][0]), int(keys["physical_offset"][0]))
            keys = keys[1:]
        for at in range(0, len(keys), BLOCK):
            self._chain(keys[at : at + BLOCK], self._begin[0])

    def _chain(self, keys: Keys, begin: int) -> None:
        rows = keys.view(np.uint8)
        if len(self._writing) == len(self._blocks):
            self._writing.popleft().result()
        block = self._blocks[0]
        self._blocks.reverse()
        self._used_slots += index_chains.build(rows, begin, self._count + 1, self._slots, block)
        position = self._base + ENTRY_SIZE * (self._count + 1)
        if self._thread is None:
            self._stage.pwrite(self._path, position, block[: len(rows)])
        else:
            self._writing.append(self._thread.submit(self._stage.pwrite, self._path, position, block[: len(rows)]))
        self._count += len(keys)
        self._end = (int(keys["store_timestamp"][-1]), int(keys["physical_offset"][-1]))

    def finish(self) -> IndexEnd:
        """Write slots and header, after the last entries."""
        while self._writing:
            self._writing.popleft().result()
        slots = self._slots
        blocks = np.flatnonzero([slots[at : at + SLOT_BLOCK].any() for at in range(0, len(slots), SLOT_BLOCK)])
        for run in np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1):
            if len(run):
                low, high = int(run[0]) * SLOT_BLOCK, (int(run[-1]) + 1) * SLOT_BLOCK
                self._stage.pwrite(self._path, HEADER_SIZE + SLOT_SIZE * low, slots[low:high].astype(">i4"))
        # a broker writes the count of an empty file only on flush
        header = HEADER.pack(
            self._begin[0], self._end[0], self._begin[1], self._end[1], self._used_slots, self._count + 1 if self._count else 0
        )
        self._stage.pwrite(self._path, 0, header)
        return IndexEnd(self.name, self._count, *self._end)


class IndexSequence:
    """Writes all index files of a store, one after the other, from keys in log order."""

    def __init__(self, stage: DurableDirectory, place: str, slots: int, positions: int) -> None:
        self._stage = stage
        self._place = place
        self._geometry = (slots, positions)
        self._writer: IndexWriter | None = None
        self.ends: list[IndexEnd] = []

    def _open(self, timestamp: int) -> IndexWriter:
        before = self.ends[-1] if self.ends else None
        name = index_name(timestamp, None if before is None else before.name)
        return IndexWriter(self._stage, self._place, name, *self._geometry, before)

    def put(self, keys: Keys) -> None:
        """Append keys; files are finished as they fill up."""
        at = 0
        while at < len(keys):
            if self._writer is None:
                self._writer = self._open(int(keys["store_timestamp"][at]))
            count = min(self._writer.room, len(keys) - at)
            self._writer.put(keys[at : at + count])
            at += count
            if not self._writer.room:
                self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self.ends.append(self._writer.finish())
            self._writer = None

    def finish(self, last_record: int, last_store_timestamp: int) -> list[IndexEnd]:
        """Finish the last file and return the end of every file. last_record: physical offset of the last record dispatched, or -1."""
        self._close()
        if needs_empty_file(self.ends[-1] if self.ends else None, self._geometry[1], last_record):
            self._writer = self._open(last_store_timestamp)
            self._close()
        return self.ends


def needs_empty_file(last: IndexEnd | None, positions: int, last_record: int) -> bool:
    """Return whether a broker that has dispatched a record after the last key has created another, empty file for it."""
    if last is None:
        return last_record >= 0
    return last.keys == positions - 1 and last_record > last.end_physical_offset


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows first..first+count-1 of a staged file of KEY_ROW rows; path: relative to the stage."""

    path: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Build one index file from keys in log order. place: its directory in the stage."""

    stage: str
    place: str
    name: str
    slots: int
    positions: int
    keys: tuple[KeyRange, ...]
    before: IndexEnd | None


def build_index(task: IndexTask) -> IndexEnd:
    """Build one index file from staged keys."""
    with DurableDirectory(task.stage) as stage, TaskThreads(1) as thread:
        writer = IndexWriter(stage, task.place, task.name, task.slots, task.positions, task.before, thread)
        for keys in task.keys:
            writer.put(_read_staged(task.stage, keys))
        return writer.finish()


def _read_staged(stage: str, keys: KeyRange) -> Keys:
    data = MappedFile(Path(stage) / keys.path).data
    return data[keys.first * KEY_ROW.itemsize : (keys.first + keys.count) * KEY_ROW.itemsize].view(KEY_ROW)


def plan_index(
    stage: str, place: str, slots: int, positions: int, staged: Sequence[tuple[str, int]], last_record: int, last_store_timestamp: int
) -> list[IndexTask]:
    """Plan one task per index file. staged: (path, rows) of all keys in log order. Each task gets the end of the previous file."""
    tasks: list[IndexTask] = []
    before: IndexEnd | None = None
    for ranges in _partition(staged, positions - 1):
        first = _read_staged(stage, KeyRange(ranges[0].path, ranges[0].first, 1))[0]
        name = index_name(int(first["store_timestamp"]), None if before is None else before.name)
        tasks.append(IndexTask(stage, place, name, slots, positions, tuple(ranges), before))
        last = _read_staged(stage, KeyRange(ranges[-1].path, ranges[-1].first + ranges[-1].count - 1, 1))[0]
        keys = sum(part.count for part in ranges)
        before = IndexEnd(name, keys, int(last["store_timestamp"]), int(last["physical_offset"]))
    if needs_empty_file(before, positions, last_record):
        name = index_name(last_store_timestamp, None if before is None else before.name)
        tasks.append(IndexTask(stage, place, name, slots, positions, (), before))
    return tasks


def _partition(staged: Sequence[tuple[str, int]], room: int) -> list[list[KeyRange]]:
    """Divide the staged keys into groups of `room`; the last one may be shorter."""
    groups: list[list[KeyRange]] = []
    left = 0
    for path, rows in staged:
        at = 0
        while at < rows:
            if not left:
                groups.append([])
                left = room
            count = min(left, rows - at)
            groups[-1].append(KeyRange(path, at, count))
            at += count
            left -= count
    return groups
