"""Start of a writable version 2 queue: every entry of every `.qi` is checked, and invalid ones get status 0.

    header invalid                        the `.qi` and its `.qs` are deleted
    transient, or an unknown location      dropped
    in the message store                  dropped if the id is not in the store
    in the `.qs`                          dropped unless the data exists, with the same size and a correct checksum
    incomplete entry at the end           truncated; the broker's queue process would crash on it

Format: docs/formats/rabbitmq.md, section 12.4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.live_index_v2 import LiveIndexV2, LiveSegmentV2
from mqstore.rabbitmq.engine.message_locations import MessageLocations
from mqstore.rabbitmq.format import queue_store
from mqstore.rabbitmq.format.index_v2 import ENTRY_SIZE, QUEUE_STORE, ROW, SHARED
from mqstore.rabbitmq.format.queue_store import HEADER_SIZE

__all__ = ["drop_missing_v2", "recover_v2"]


def recover_v2(
    directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, config: EngineConfig, locations: MessageLocations
) -> tuple[LiveIndexV2, int, NDArray[np.int64]]:
    """Return the index that the files describe, the size of the bodies in bytes, and the sequence ids to drop in any case.

    locations: counts a reference for each entry whose message is in the message store.
    """
    index = LiveIndexV2(directory, reading, place, config)
    names = {entry.name: entry.size for entry in reading.entries(place) if entry.is_file}
    dropped: list[int] = []
    size = 0
    for number in sorted(int(name[:-3]) for name in names if name.endswith(".qi") and name[:-3].isascii() and name[:-3].isdigit()):
        data = reading.map(f"{place}/{number}.qi").data
        if len(data) < HEADER_SIZE or data[:5].tobytes() != b"RCQI\x02":
            for name in (f"{number}.qi", f"{number}.qs"):
                if name in names:
                    directory.remove(f"{place}/{name}")
            directory.sync_directory(place)
            continue
        end = len(data) - (len(data) - HEADER_SIZE) % ENTRY_SIZE
        rows = data[HEADER_SIZE:end].view(ROW)[: index.entries]
        if end < len(data):
            directory.truncate(f"{place}/{number}.qi", end)
        stored = reading.map(f"{place}/{number}.qs").data if f"{number}.qs" in names else np.empty(0, np.uint8)
        live = rows["status"] == 1
        persistent = live & (rows["flags"] & 1 == 1)
        kept = persistent & (rows["location"] == SHARED)
        embedded = np.flatnonzero(persistent & (rows["location"] == QUEUE_STORE))
        kept[embedded] = queue_store.valid_entries(
            stored, rows["hi"][embedded].astype(np.int64), rows["lo"][embedded].astype(np.int64) >> 32
        )
        base = number * index.entries
        dropped += (np.flatnonzero(live & ~kept) + base).tolist()
        away = kept & (rows["location"] == SHARED)
        locations.count_references(rows["hi"][away].astype(np.int64), rows["lo"][away].astype(np.int64))
        size += int(rows["size"][kept].sum())
        index.segments[number] = LiveSegmentV2(number, end, names.get(f"{number}.qs", 0), int(live.sum()))
    return index, size, np.array(dropped, np.int64)


def drop_missing_v2(index: LiveIndexV2, dropped: NDArray[np.int64], locations: MessageLocations) -> tuple[int, int]:
    """Remove the entries to drop and those whose message is not in the store, delete empty segments, and sync.

    Returns the count of the entries without a message and the size of their bodies in bytes.
    """
    missing, size = 0, 0
    gone_at_all = [dropped]
    for number in sorted(index.segments) if locations.unplaced else ():
        stored = index.store_references(number)
        gone = ~locations.placed(stored.hi, stored.lo) & ~np.isin(stored.seq, dropped)
        gone_at_all.append(stored.seq[gone])
        missing += int(gone.sum())
        size += int(stored.size[gone].sum())
    index.acknowledge(np.concatenate(gone_at_all).tolist())
    for number, segment in list(index.segments.items()):
        if not segment.unacked:
            index.mark_empty(number)
    index.sync()
    return missing, size
