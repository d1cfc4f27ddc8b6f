"""Compaction topics: what consumers get of them, the newest message of each key, in place of what the log has.

    compaction/compactionLog/T/Q/N    records of queue Q of topic T, with the physical offsets that they have there
    compaction/compactionCq/T/Q/N     units of 46 bytes for the records of file N, up to the first that is not valid
    compaction/position-checkpoint    up to which queue offset each queue was compacted

A file of either is named by the position of the first record in the compaction log. A broker answers from the units: a queue has the
offsets from the base of the first one to the end of the last one, with gaps, and a record without a unit is cut off at its start.

Format: docs/formats/rocketmq.md, section 12.6.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format import consume_queue
from mqstore.rocketmq.format.batch_consume_queue import UNIT, UNIT_SIZE, Units, valid_units
from mqstore.rocketmq.format.mapped_file_queue import NAME_DIGITS
from mqstore.rocketmq.format.record import body_crc, record_or_none
from mqstore.table.formatting import count

COMPACTED_LOG = "compaction/compactionLog"
_QUEUES, _POSITIONS = "compaction/compactionCq", "compaction/position-checkpoint"
_WORKING = ("compacting", "replicating")  # beside the topics, while a broker compacts
_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class CompactedQueue:
    """One queue as consumers get it. messages: units with a record; without: units whose record is not in a file there.

    min_offset, max_offset: as a broker answers them.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    without: int
    files: tuple[str, ...]

    @property
    def relative(self) -> str:
        """The directory of its records, relative to the store."""
        return f"{COMPACTED_LOG}/{self.topic}/{self.queue_id}"


def compacted_queues(directory: ReadOnlyDirectory) -> Iterator[CompactedQueue]:
    """Yield the queues that a broker loads, by topic and queue id: those with a directory of records, and one of units."""
    for topic, queue_id in consume_queue.queues(directory, COMPACTED_LOG):
        of_units, of_records = (f"{place}/{topic}/{queue_id}" for place in (_QUEUES, COMPACTED_LOG))
        if not directory.is_directory(of_units):
            continue
        sizes = {int(name): size for name, size in _files(directory, of_records)}
        units = [_units(directory, f"{of_units}/{name}") for name, _ in _files(directory, of_units)]
        every = np.concatenate(units) if units else np.empty(0, UNIT)
        starts = np.array(sorted(sizes), np.int64)
        begin, end = every["physical_offset"].astype(np.int64), every["physical_offset"].astype(np.int64) + every["size"]
        file = np.searchsorted(starts, begin, side="right") - 1
        reach = np.array([start + sizes[start] for start in starts.tolist()], np.int64)
        there = (file >= 0) & (end <= reach[file]) if len(starts) else np.zeros(len(every), np.bool_)
        low = int(every["base_offset"][0]) if len(every) else 0
        high = int(every["base_offset"][-1]) + int(every["count"][-1]) if len(every) else 0
        names = tuple(f"{of_records}/{name}" for name, _ in _files(directory, of_records))
        yield CompactedQueue(topic, queue_id, low, high, int(there.sum()), int((~there).sum()), names)


def check_compacted(directory: ReadOnlyDirectory) -> tuple[int, list[Damage]]:
    """Check the record of each unit of the queues that a broker loads. Returns how many there are, and those that are not whole.

    The queue of a record, its place in it and its body are compared with the unit and the checksum.
    """
    checked, damage = 0, list[Damage]()
    for queue in compacted_queues(directory):
        of_units = f"{_QUEUES}/{queue.topic}/{queue.queue_id}"
        records = [directory.map(file) for file in queue.files]
        starts = [int(file.rpartition("/")[2]) for file in queue.files]
        for name, _ in _files(directory, of_units):
            for number, unit in enumerate(_units(directory, f"{of_units}/{name}").tolist()):
                of = dict(zip(UNIT.names or (), unit, strict=True))
                checked += 1
                file = bisect_right(starts, of["physical_offset"]) - 1
                begin = of["physical_offset"] - starts[file] if file >= 0 else 0
                if file < 0 or begin + of["size"] > records[file].size:
                    sentence = f"the record of queue offset {of['base_offset']} is in no file there"
                    damage.append(Damage(f"{of_units}/{name}", number * UNIT_SIZE, UNIT_SIZE, Kind.BAD_COMPACTION, sentence, 1))
                    continue
                record = record_or_none(records[file].bytes(begin, begin + of["size"]))
                position = None if record is None else (record.topic, record.queue_id, record.queue_offset)
                if record is None or position != (queue.topic, queue.queue_id, of["base_offset"]):
                    sentence = f"no record of queue offset {of['base_offset']} is here, where a unit leads: consumers get what is"
                    damage.append(Damage(queue.files[file], begin, of["size"], Kind.BAD_COMPACTION, sentence, 1))
                elif record.body_crc is not None and body_crc(record.body) != record.body_crc:
                    sentence = f"the body does not match its CRC (topic {queue.topic!r}, queue {queue.queue_id}, compaction log)"
                    damage.append(Damage(queue.files[file], begin, of["size"], Kind.BAD_COMPACTION, sentence, 1))
    return checked, damage


def _files(directory: ReadOnlyDirectory, place: str) -> list[tuple[str, int]]:
    """Return the names and sizes of the files of a queue, in order."""
    return [
        (entry.name, entry.size)
        for entry in directory.entries(place)
        if entry.is_file and len(entry.name) == NAME_DIGITS and entry.name.isascii() and entry.name.isdigit()
    ]


def _units(directory: ReadOnlyDirectory, relative: str) -> Units:
    """Return the units of a file up to the first that is not valid."""
    mapped = directory.map(relative)
    whole = mapped.size - mapped.size % UNIT_SIZE
    units = np.frombuffer(mapped.bytes(0, whole), UNIT)
    invalid = np.flatnonzero(~valid_units(units))
    return units[: invalid[0]] if len(invalid) else units


def compacted_topics(directory: ReadOnlyDirectory) -> Iterator[str]:
    """Yield a sentence for each topic that consumers get from its compaction log, in place of the log."""
    numbers: dict[str, int] = {}
    for topic in directory.entries(COMPACTED_LOG):
        if topic.is_directory and topic.name not in _WORKING:
            numbers[topic.name] = sum(entry.is_directory for entry in directory.entries(f"{COMPACTED_LOG}/{topic.name}"))
    state: object = None
    with contextlib.suppress(CannotOpenError, ValueError, RecursionError):
        raw = directory.read(_POSITIONS, _LIMIT)
        state = {} if raw is None else json.loads(raw)
    positions = state.get("queueOffsetMap") if isinstance(state, dict) else None
    if not isinstance(state, dict):
        yield f"compaction topics: which queues were compacted is not known, {_POSITIONS} cannot be read"
    for name in positions if isinstance(positions, dict) else ():
        numbers.setdefault(str(name).rpartition("_")[0], 0)
    read: dict[str, list[CompactedQueue]] = {}
    try:
        for queue in compacted_queues(directory):
            read.setdefault(queue.topic, []).append(queue)
    except CannotOpenError as error:
        yield f"compaction topics: not all of them can be read: {error}"
    for name, number in sorted(numbers.items()):
        queues = read.get(name, [])
        if queues:
            lacking = sum(queue.without for queue in queues)
            further = f", and {count(lacking, 'record')} listed there cannot be found" if lacking else ""
            yield (
                f"compaction topics: of topic {name!r}, consumers get {count(sum(queue.messages for queue in queues), 'message')} of "
                f"{count(len(queues), 'queue')} in {COMPACTED_LOG}, and not those of the log; which of them the next compaction drops "
                f"is not known{further}"
            )
        if number > len(queues) or not queues:
            has = f"{number - len(queues)} queues are in {COMPACTED_LOG}" if number - len(queues) != 1 else f"1 queue is in {COMPACTED_LOG}"
            yield f"compaction topics: what consumers get of topic {name!r}, the newest message of each key; {has}, which is not read"
