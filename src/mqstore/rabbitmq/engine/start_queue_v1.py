"""Start of a writable version 1 queue: read journal and segments, repair them, and flush everything to segments.

    1. the journal is replayed over the segments (section 7.2), one sequence id at a time
    2. invalid entries are dropped: an embedded message that is transient or has another id, a transient entry, an entry whose
       message is not in the store
    3. an entry without a delivery gets one: since 3.10 every publish has one, and it has no meaning
    4. flush: segments hold everything, the journal is empty

Between 1 and 2 the message store is scanned, for which the ids that all queues reference must be known. A damaged segment is rewritten
with its valid entries; a broker would not read what is appended after a torn entry.

Format: docs/formats/rabbitmq.md, section 7.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rabbitmq import terms
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.live_index_v1 import LiveIndexV1, LiveSegmentV1
from mqstore.rabbitmq.engine.message_locations import MessageLocations
from mqstore.rabbitmq.format.index_v1 import IN_JOURNAL, IN_SEGMENT, IN_STORE, PERSISTENT, REPEATED, QueueIndexV1
from mqstore.rabbitmq.format.journal import acknowledge, deliver
from mqstore.rabbitmq.format.segment import mark

__all__ = ["drop_missing_v1", "recover_v1"]

P, D, A = 1, 2, 4


def recover_v1(
    directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, entries: int, config: EngineConfig, locations: MessageLocations
) -> tuple[LiveIndexV1, int]:
    """Return the index that the files describe, without invalid entries, and the size of the bodies in bytes.

    locations: counts a reference for each entry whose message is in the message store.
    """
    found = QueueIndexV1(reading, place, entries, lenient=True)
    index = LiveIndexV1(directory, reading, place, entries, config)
    size = 0
    words: list[bytes] = []
    _take_journal(index, found, directory)
    for number in found.numbers:
        segment, live = _segment(index, found, number, words)
        if segment is None:
            continue
        index.segments[number] = segment
        away = live[live["place"] == IN_STORE]
        locations.count_references(np.ascontiguousarray(away["hi"]), np.ascontiguousarray(away["lo"]))
        size += int(live["size"].sum())
    if words and not found.journal.findings:
        index.journal += b"".join(words)
    index.dirty = len(found.journal.seq) + 1
    return index, size


def _take_journal(index: LiveIndexV1, found: QueueIndexV1, directory: DurableDirectory) -> None:
    """Adopt the journal file as the written part of the index; a tail that is not a record is truncated."""
    if not found.has_journal:
        return
    journal = found.journal
    index.journal = bytearray(journal.data)
    index.written = len(index.journal)
    if journal.seen == len(journal.seq) and journal.end < len(journal.data):
        del index.journal[journal.end :]
        index.written = journal.end
        directory.truncate(found.journal_file, journal.end)
        directory.sync(found.journal_file)


def _segment(index: LiveIndexV1, found: QueueIndexV1, number: int, words: list[bytes]) -> tuple[LiveSegmentV1 | None, NDArray[np.void]]:
    """Return one segment, with the actions its file lacks, and its live entries. words: receives the records to add to the journal."""
    combined = found.segment(number, dirty=True)
    rows = combined.entries[(combined.entries["flags"] & REPEATED) == 0]
    exists = number in found.segment_numbers
    data = combined.data[0]
    file = combined.file
    assert file is not None
    sound = not file.findings and file.exists
    segment = LiveSegmentV1(number, len(data) if exists else -1)
    base = number * index.entries
    on_file = file.state & 7
    published = rows[rows["state"] & P != 0]
    live = published[(published["state"] & A == 0)]
    kept = _recoverable(live, combined.data)
    rel = (live["seq"] - base).astype(np.int64)
    wanted = np.zeros(index.entries, np.uint8)
    wanted[(published["seq"] - base).astype(np.int64)] = published["state"] & 7
    dropped = rel[~kept]
    wanted[dropped] = P | D | A
    undelivered = rel[live["state"] & D == 0]
    wanted[undelivered] |= D
    words += [deliver(base + each) for each in undelivered.tolist()]
    words += [acknowledge(base + each) for each in dropped.tolist()]
    segment.unacked = int(kept.sum())
    if exists and not sound:
        _rewrite_segment(index, found, segment, file.state, file.at, data)
        on_file = np.where(on_file & P, on_file, 0).astype(np.uint8)
    added = np.where(on_file & P, wanted & ~on_file & 7, np.where(wanted & A, 0, wanted)).astype(np.uint8)
    if added.any():
        state = segment.open_map(index.entries)
        state[:] = added.tobytes()
        at = np.zeros(index.entries, np.int64)
        in_journal = rows["from_journal"]
        at[(rows["seq"][in_journal] - base).astype(np.int64)] = rows["record"][in_journal]
        segment.at = array("q", at.tobytes())
    if not exists and not segment.unacked and segment.state is None:
        return None, live[:0]
    return segment, live[kept]


def _recoverable(live: NDArray[np.void], data: tuple[Bytes, ...]) -> NDArray[np.bool_]:
    kept = np.ones(len(live), np.bool_)
    for place in (IN_SEGMENT, IN_JOURNAL):
        mine = np.flatnonzero(live["place"] == place)
        if len(mine):
            rows = live[mine]
            shape = np.empty(len(mine), np.uint8)
            at, length, hi, lo = (np.ascontiguousarray(rows[name]) for name in ("at", "length", "hi", "lo"))
            terms.shapes(data[place], at, length, hi, lo, shape)
            own = (shape & (terms.MESSAGE | terms.SAME_ID) == terms.MESSAGE | terms.SAME_ID) | (shape & terms.PACKED != 0)
            kept[mine] = own & (shape & (terms.PERSISTENT | terms.CONTAINER | terms.PACKED) != 0)
    kept &= live["flags"] & PERSISTENT != 0
    return kept


def _rewrite_segment(
    index: LiveIndexV1, found: QueueIndexV1, segment: LiveSegmentV1, state: NDArray[np.uint8], at: NDArray[np.int64], data: Bytes
) -> None:
    """Replace a damaged segment file by one with its valid entries."""
    parts = []
    for rel in np.flatnonzero(state & P)[::-1].tolist():
        start = int(at[rel])
        parts.append(data[start : start + 34 + int.from_bytes(data[start + 30 : start + 34].tobytes(), "big")].tobytes())
        parts += [mark(rel)] * (int(state[rel] & D != 0) + int(state[rel] & A != 0))
    content = b"".join(parts)
    index.replace_file(segment, content)


def drop_missing_v1(index: LiveIndexV1, locations: MessageLocations) -> tuple[int, int]:
    """Drop the entries whose message is not in the store, then flush. Returns their count and the size of their bodies in bytes."""
    missing: list[int] = []
    size = 0
    for number in sorted(index.segments) if locations.unplaced else ():
        stored = index.store_references(number)
        gone = ~locations.placed(stored.hi, stored.lo)
        missing += stored.seq[gone].tolist()
        size += int(stored.size[gone].sum())
    index.acknowledge(missing)
    index.flush()
    return len(missing), size
