"""Key query: what the broker answers when it is asked for the messages with a key.

The broker hashes `topic#key`, goes through the index files from the newest to the oldest, in each down one chain, and
returns every record whose entry has the same 32-bit hash. It compares neither topic nor key. Its rules have edges,
which are kept here to the letter (docs/formats/rocketmq.md, 5.5 and 5.7):

* an entry's time is the file's begin plus whole seconds, so it lies up to a second before the real store time;
* the first entry older than the asked range ends the search of a chain, whoever's key it is;
* the time of the first entry of a follow-up file is too late by the pause between the two files;
* at most 64 offsets are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mqstore.rocketmq.indexfile import IndexEntry, SearchStep
from mqstore.rocketmq.javatext import index_hash

__all__ = ["MAX_RESULTS", "IndexAnswer", "IndexFileLike", "MessageAnswer", "query_messages", "query_offsets", "search", "time_matches"]

MAX_RESULTS = 64
END_OF_TIME = 2**63 - 1


class IndexFileLike(Protocol):
    """What a search needs of an index file, on disk or in memory."""

    @property
    def name(self) -> str: ...
    @property
    def slot_count(self) -> int: ...
    @property
    def begin_timestamp(self) -> int: ...
    @property
    def end_timestamp(self) -> int: ...
    @property
    def begin_physical_offset(self) -> int: ...
    @property
    def end_physical_offset(self) -> int: ...
    @property
    def index_count(self) -> int: ...
    def slot(self, number: int) -> int: ...
    def entry(self, number: int) -> IndexEntry: ...


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """offsets: physical offsets in the broker's order. looping: names of files whose chain was cut because it does not end."""

    offsets: tuple[int, ...]
    last_update_timestamp: int
    last_update_physical_offset: int
    looping: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """What queryMessage returns: offsets ascending, and zeros as last update where nothing was found."""

    offsets: tuple[int, ...]
    last_update_timestamp: int
    last_update_physical_offset: int


def time_matches(file: IndexFileLike, begin: int, end: int) -> bool:
    """Whether the file's range of store times meets [begin, end], as the broker asks it."""
    first, last = file.begin_timestamp, file.end_timestamp
    return (begin < first and end > last) or first <= begin <= last or first <= end <= last


def search(
    file: IndexFileLike, key_hash: int, max_num: int, begin: int, end: int, found: list[int], steps: list[SearchStep] | None = None
) -> bool:
    """Append to `found` what one file holds for a hash. False if its chain was cut because it would not end."""
    slot = key_hash % file.slot_count
    number = file.slot(slot)
    count = file.index_count
    if number <= 0 or number > count or count <= 1:
        if steps is not None:
            outcome = "the slot is empty" if number == 0 else f"the slot holds {number}, beyond the {count - 1} entries of the file"
            steps.append(SearchStep(file.name, slot, 0, None, None, outcome))
        return True
    file_begin = file.begin_timestamp
    visited = 0
    while True:
        if len(found) >= max_num:
            if steps is not None:
                steps.append(SearchStep(file.name, slot, number, None, None, f"not visited: {max_num} offsets are found"))
            return True
        entry_hash, physical, seconds, previous = file.entry(number)
        if seconds < 0:
            if steps is not None:
                steps.append(SearchStep(file.name, slot, number, physical, None, "stops the search: its time is negative"))
            return True
        time = file_begin + seconds * 1000
        matches = entry_hash == key_hash and begin <= time <= end
        if matches:
            found.append(physical)
        if steps is not None:
            outcome = "taken" if matches else "another hash" if entry_hash != key_hash else "outside the time range"
            if previous > 0 and previous <= count and previous != number and time < begin:
                outcome += "; older than the range, so the search of the chain stops here"
            steps.append(SearchStep(file.name, slot, number, physical, time, outcome))
        if previous <= 0 or previous > count or previous == number or time < begin:
            return True
        visited += 1
        if visited > count:
            # more links than entries: a loop, on which the broker would go on until max_num or for ever
            if steps is not None:
                steps.append(SearchStep(file.name, slot, previous, None, None, "the chain loops: cut here"))
            return False
        number = previous


def query_offsets(
    files: Sequence[IndexFileLike],
    topic: str,
    key: str,
    max_num: int = MAX_RESULTS,
    begin: int = 0,
    end: int = END_OF_TIME,
    *,
    cap: int = MAX_RESULTS,
    steps: list[SearchStep] | None = None,
) -> IndexAnswer:
    """What the index service returns: files newest first, at most min(max_num, cap) offsets. files: oldest first."""
    max_num = min(max_num, cap)
    key_hash = index_hash(topic, key)
    found: list[int] = []
    looping: list[str] = []
    for file in reversed(files):
        if time_matches(file, begin, end):
            if not search(file, key_hash, max_num, begin, end, found, steps):
                looping.append(file.name)
        elif steps is not None:
            steps.append(SearchStep(file.name, key_hash % file.slot_count, 0, None, None, "not searched: its times do not meet the range"))
        if file.begin_timestamp < begin or len(found) >= max_num:
            break
    newest = files[-1] if files else None
    return IndexAnswer(
        tuple(found), newest.end_timestamp if newest else 0, newest.end_physical_offset if newest else 0, tuple(looping)
    )


def query_messages(
    files: Sequence[IndexFileLike],
    store_timestamp_at: Callable[[int], int | None],
    topic: str,
    key: str,
    max_num: int = MAX_RESULTS,
    begin: int = 0,
    end: int = END_OF_TIME,
    *,
    cap: int = MAX_RESULTS,
) -> MessageAnswer:
    """What queryMessage returns: the offsets of readable records, ascending; up to three rounds while nothing is readable.

    store_timestamp_at: store time of the record at a physical offset, None where no record can be read.
    """
    last = end
    for _ in range(3):
        answer = query_offsets(files, topic, key, max_num, begin, last, cap=cap)
        if not answer.offsets:
            break
        readable = []
        for number, offset in enumerate(sorted(answer.offsets)):
            stored = store_timestamp_at(offset)
            if number == 0 and stored is not None:
                last = stored
            if stored is not None:
                readable.append(offset)
        if readable:
            return MessageAnswer(tuple(readable), answer.last_update_timestamp, answer.last_update_physical_offset)
        if last < begin:
            break
    return MessageAnswer((), 0, 0)
