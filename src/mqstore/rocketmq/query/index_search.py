"""Key query: the broker's answer to a query for the messages with a key.

The broker hashes `topic#key`, goes through the index files from the newest to the oldest, walks one chain in each, and
returns every record whose entry has the same 32-bit hash. It compares neither topic nor key. Its rules have special cases,
which are reproduced here exactly (docs/formats/rocketmq.md, 5.5 and 5.7):

* an entry's time is the file's begin plus whole seconds, so it is up to a second before the real store time;
* the first entry older than the requested range ends the search of a chain, even if it belongs to another key;
* the time of the first entry of a later file is too late by the pause between the two files;
* at most 64 offsets are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from mqstore.kernels.rocketmq.index_search import MAX_RESULTS as KERNEL_MAX_RESULTS
from mqstore.kernels.rocketmq.index_search import search_chain
from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, dispatch_positions
from mqstore.rocketmq.dispatch.index_image import IndexImage
from mqstore.rocketmq.format.commit_log import CommitLog, Records
from mqstore.rocketmq.format.index_file import IndexEntry, SearchStep
from mqstore.rocketmq.format.java_text import index_hash

MAX_RESULTS = 64
MAX_STEPS = 100_000  # steps of one search that are recorded
END_OF_TIME = 2**63 - 1

_SMALLEST = -(2**63)
SCANNED_NAME = "made-from-the-log"
SCANNED_SLOTS = 1 << 20
SCANNED_POSITIONS = 2**31 - 1


class IndexFileLike(Protocol):
    """The part of an index file, on disk or in memory, that a search needs."""

    @property
    def name(self) -> str: ...
    @property
    def slot_count(self) -> int: ...
    @property
    def positions(self) -> int: ...
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
    @property
    def octets(self) -> memoryview | None:
        """The file's bytes, if they hold every entry, else None."""
        ...

    def slot(self, number: int) -> int: ...
    def entry(self, number: int) -> IndexEntry: ...


class IndexAnswer(NamedTuple):
    """offsets: physical offsets in the broker's order. looping: names of files whose chain loops."""

    offsets: tuple[int, ...]
    last_update_timestamp: int
    last_update_physical_offset: int
    looping: tuple[str, ...] = ()


class MessageAnswer(NamedTuple):
    """The result of queryMessage: offsets ascending, and zeros as last update if nothing was found."""

    offsets: tuple[int, ...]
    last_update_timestamp: int
    last_update_physical_offset: int


def time_matches(file: IndexFileLike, begin: int, end: int) -> bool:
    """Return whether the file's range of store times meets [begin, end], by the broker's rule."""
    first, last = file.begin_timestamp, file.end_timestamp
    return (begin < first and end > last) or first <= begin <= last or first <= end <= last


def search(
    file: IndexFileLike, key_hash: int, max_num: int, begin: int, end: int, hits: list[int], steps: list[SearchStep] | None = None
) -> bool:
    """Append to `hits` the offsets that one file holds for a hash. Returns False if the chain loops.

    A broker follows a loop until `max_num` is reached, or for ever if nothing on it matches; the latter is cut short here.
    """
    if steps is None:
        offsets = _search_compiled(file, key_hash, max_num - len(hits), begin, end)
        if offsets is not None:
            hits += offsets
            return True
    slot = key_hash % file.slot_count
    number = file.slot(slot)
    count = file.index_count

    def note(at: int, physical: int | None, time: int | None, outcome: str) -> None:
        if steps is not None and len(steps) <= MAX_STEPS:
            rest = "the search continues; its further steps are not listed"
            steps.append(SearchStep(file.name, slot, at, physical, time, outcome if len(steps) < MAX_STEPS else rest))

    if number <= 0 or number > count or count <= 1:
        beyond = f"the slot holds {number}, beyond the {count - 1} entries of the file"
        note(0, None, None, "the slot is empty" if number == 0 else beyond)
        return True
    entry = file.entry
    positions = file.positions
    file_begin = file.begin_timestamp
    rises = 0  # links to newer entries; a chain without any ends by itself
    mark, found_at_mark = -1, 0
    while True:
        if len(hits) >= max_num:
            note(number, None, None, f"not visited: {max_num} offsets are found")
            return True
        if number >= positions:
            note(number, None, None, "stops the search: the file ends before this entry")
            return True
        entry_hash, physical, seconds, previous = entry(number)
        if seconds < 0:
            note(number, physical, None, "stops the search: its time is negative")
            return True
        time = file_begin + seconds * 1000
        if time > END_OF_TIME:
            time -= 1 << 64  # 64-bit overflow, as in the broker
        matches = entry_hash == key_hash and begin <= time <= end
        if matches:
            hits.append(physical)
        if steps is not None:
            outcome = "taken" if matches else "another hash" if entry_hash != key_hash else "outside the time range"
            if 0 < previous <= count and previous != number and time < begin:
                outcome += "; older than the range, so the search of the chain stops here"
            note(number, physical, time, outcome)
        if previous <= 0 or previous > count or previous == number or time < begin:
            return True
        if previous > number:
            # Brent: a loop contains a link to a newer entry; the mark moves at powers of two of these, so it ends up on the loop
            if number == mark:
                note(previous, None, None, "the chain loops: cut here")
                _repeat_loop(hits, found_at_mark, max_num)
                return False
            rises += 1
            if rises & (rises - 1) == 0:
                mark, found_at_mark = number, len(hits)
        number = previous


def _search_compiled(file: IndexFileLike, key_hash: int, max_results: int, begin: int, end: int) -> list[int] | None:
    """Return the offsets that one file holds for a hash, by the compiled search; None if it cannot handle the chain."""
    octets = file.octets
    if octets is None or not 0 < max_results <= KERNEL_MAX_RESULTS or not _SMALLEST <= begin <= END_OF_TIME >= end >= _SMALLEST:
        return None
    return search_chain(octets, file.slot_count, file.positions, file.index_count, file.begin_timestamp, key_hash, begin, end, max_results)


def _repeat_loop(hits: list[int], found_at_mark: int, max_num: int) -> None:
    """Repeat the offsets of one round of a loop until there are max_num, as a broker does. Does nothing if a round finds none."""
    per_round = hits[found_at_mark:]
    missing = min(max_num - len(hits), MAX_STEPS)
    if per_round and missing > 0:
        rounds = -(-missing // len(per_round))
        hits.extend((per_round * rounds)[:missing])


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
    """Query the index service: files newest first, at most min(max_num, cap) offsets. files: oldest first."""
    max_num = min(max_num, cap)
    key_hash = index_hash(topic, key)
    hits: list[int] = []
    looping: list[str] = []
    for file in reversed(files):
        if time_matches(file, begin, end):
            if not search(file, key_hash, max_num, begin, end, hits, steps):
                looping.append(file.name)
        elif steps is not None:
            steps.append(SearchStep(file.name, key_hash % file.slot_count, 0, None, None, "not searched: its times do not meet the range"))
        if file.begin_timestamp < begin or len(hits) >= max_num:
            break
    newest = files[-1] if files else None
    return IndexAnswer(tuple(hits), newest.end_timestamp if newest else 0, newest.end_physical_offset if newest else 0, tuple(looping))


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
    """Answer queryMessage: the offsets of readable records, ascending; up to three rounds while nothing is readable.

    store_timestamp_at: returns the store time of the record at a physical offset, None if no record can be read.
    """
    last = end
    updated = (0, 0)
    for _ in range(3):
        answer = query_offsets(files, topic, key, max_num, begin, last, cap=cap)
        if not answer.offsets:
            break
        updated = answer.last_update_timestamp, answer.last_update_physical_offset
        readable = []
        for number, offset in enumerate(sorted(answer.offsets)):
            stored = store_timestamp_at(offset)
            if number == 0 and stored is not None:
                last = stored
            if stored is not None:
                readable.append(offset)
        if readable:
            return MessageAnswer(tuple(readable), *updated)
        if last < begin:
            break
    return MessageAnswer((), *updated)


# An index made in memory from the log, in place of index files that cannot be read.
#
# It answers as the broker's own files would if they were complete: the same chains, in one file without an end.


def scanned_index(log: CommitLog, low: int, high: int, rules: DispatchRules) -> list[IndexImage]:
    """Return an index file with the keys of all valid records in [low, high). It takes 20 bytes of memory for each key."""
    image = IndexImage(SCANNED_NAME, SCANNED_SLOTS, SCANNED_POSITIONS)
    for event in log.scan(low, high):
        if isinstance(event, Records):
            image.put(np.ascontiguousarray(dispatch_positions(event.data, event.positions, rules).keys))
    return [image]
