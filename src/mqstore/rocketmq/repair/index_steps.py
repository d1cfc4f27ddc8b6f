"""Steps for index files: what differs from the keys of the log is written in place, entry by entry, slot by slot.

An index file has the keys of a range of the log, in its order. The range begins where the file before it ends, or with the file's first
entry, and ends where the next one begins, or with the log. Entries, links, slots and header follow from the keys, so that a file of the
right length can be made again even if nothing in it can be read, if its geometry is known from other files or from the configuration.

The newest file of a store that was not closed is left to the broker, which recovers it. Files with very many keys, and those of which
the beginning of the log was removed, are left to `rebuild`.

Format: docs/formats/rocketmq.md, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import Damage, Kind, Subject
from mqstore.kernels.rocketmq import index_chains
from mqstore.repair.change import Change, Step
from mqstore.rocketmq.dispatch.dispatcher import KEY_ROW
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.index_geometry import ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT_SIZE, file_size
from mqstore.rocketmq.rebuild_steps import settings_of
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.index_proof import out_of_order
from mqstore.rocketmq.verify.log_proof import plan
from mqstore.rocketmq.verify.verification import Verification
from mqstore.table.formatting import count

MOST_KEYS = 2_000_000  # of a file that is repaired in place
_OTHERWISE = "key queries miss messages, or follow links that lead elsewhere"

Keys = NDArray[np.void]


class Begin(NamedTuple):
    """Where a file ends, which the next one continues: last offset, how many of its keys are in the file, and its time."""

    offset: int
    held: int
    timestamp: int


def index_steps(store: RocketMQStore, scan: Verification, damage: list[Damage]) -> Iterator[Step]:
    """Yield one step for each damaged index file. The scan must be complete; damage: its findings."""
    damaged: dict[str, list[Damage]] = {}
    for item in damage:
        if item.kind.subject is Subject.INDEX and item.file.startswith("index/"):
            damaged.setdefault(item.file, []).append(item)
    files = _files(store)
    for item in damage:
        if item.kind is Kind.MISSING_INDEX_ENTRY:  # the file that had them may be one that was overwritten with zeros
            empty = (name for name, file in files if file is not None and file.header.index_count <= 1)
            damaged |= {name: [item] for name in empty if name not in damaged}
    if not damaged:
        return
    moved = out_of_order(store.index_files())
    before: Begin | None = Begin(-1, 0, 0) if store.log.start == 0 else None
    for number, (name, file) in enumerate(files):
        following = files[number + 1] if number + 1 < len(files) else None
        if name not in damaged:
            before = None if file is None else end_of(file)
        elif following is None and store.unclean and name not in moved:
            return
        elif file is None:
            yield _impossible(name, damaged[name], "the geometry is not known: give the broker's settings with --config")
            before = None
        else:
            intact = following[1] if following is not None and following[0] not in damaged else None
            own = name not in moved  # whether its entries are those that it must have
            step, before = _file_step(scan, file, damaged[name], before, intact, own=own, is_last=following is None)
            if step is not None:  # pragma: no branch - as in `_file_step`
                yield step


def _files(store: RocketMQStore) -> list[tuple[str, IndexFile | None]]:
    """Return all index files by name; None for one that cannot be read as the geometry of the others demands."""
    settings = settings_of(store)
    shape = (settings.index_slots, settings.index_positions)
    sure = None if settings.assumed_geometry else shape
    files: list[tuple[str, IndexFile | None]] = [
        (file.relative, file if file.proved or (file.slot_count, file.positions) == sure else None) for file in store.index_files()
    ]
    for unread in store.unread_index:
        mapped = store.directory.map(unread.relative)
        known = not settings.assumed_geometry and mapped.size == file_size(shape)
        files.append((unread.relative, IndexFile(unread.name, unread.relative, mapped, *shape, "") if known else None))
    return sorted(files, key=lambda each: each[0])


def end_of(file: IndexFile) -> Begin | None:
    header = file.header
    if header.index_count <= 1:
        return None
    return Begin(header.end_physical_offset, len(file.numbers_of(header.end_physical_offset)), header.end_timestamp)


def _impossible(name: str, damage: list[Damage], why: str) -> Step:
    return Step("index-file", name, damage[0].offset, damage[0].length, f"{damage[0].detail}; {why}", _OTHERWISE, "", ())


def _file_step(
    scan: Verification,
    file: IndexFile,
    damage: list[Damage],
    before: Begin | None,
    following: IndexFile | None,
    *,
    own: bool,
    is_last: bool,
) -> tuple[Step | None, Begin | None]:
    """Return the step for one file, and where it ends then. own: whether its first entry is what it must begin with."""
    remedy = "`mqstore rebuild` makes the index from the log"
    stop = following.header.begin_physical_offset if following is not None else scan.log_end
    first = file.entry(1)
    low = before.offset if before is not None else first.physical_offset
    if (low < scan.log.start and (before is None or before.offset >= 0)) or (before is None and not own):
        return _impossible(file.relative, damage, f"the log no longer has its first messages: {remedy}"), None
    keys = keys_between(scan, low, stop)
    offsets = keys["physical_offset"].astype(np.int64)
    start = before.held if before is not None and before.offset >= 0 else 0
    begins = np.flatnonzero((offsets == first.physical_offset) & (keys["hash"] == first.key_hash))
    if own and len(begins) and (before is None or begins[0] > start):
        start = int(begins[0])
    end = len(keys)
    if following is not None:
        end -= len(following.numbers_of(stop))
    elif not is_last:
        end = start + file.positions - 1
    if not start < end <= min(len(keys), start + file.positions - 1):
        return _impossible(file.relative, damage, f"the log has {count(max(0, end - start), 'key')} for it: {remedy}"), None
    if end - start > MOST_KEYS:
        return _impossible(file.relative, damage, f"it has {count(end - start, 'key')}: {remedy}"), None
    keys = keys[start:end]
    last = int(keys["physical_offset"][-1])
    ended = Begin(last, int((keys["physical_offset"] == last).sum()), int(keys["store_timestamp"][-1]))
    changes = list(_changes(file, keys, before))
    if not own:
        after = np.asarray(file.entry_bytes(len(keys) + 1, file.positions))
        changes += _writes(file.relative, file.entry_position(len(keys) + 1), after, np.zeros(len(after), np.uint8), ENTRY_SIZE)
    if not changes:  # pragma: no cover - no finding is known of a file that holds what the log demands
        return None, ended
    size = sum(len(change.made) for change in changes)
    more = f" (and {count(len(damage) - 1, 'further finding')})" if len(damage) > 1 else ""
    why = f"{damage[0].detail.partition(';')[0]}{more}; what differs from the {count(len(keys), 'key')} of the log is written"
    return Step("index-file", file.relative, changes[0].offset, size, why, _OTHERWISE, "", tuple(changes)), ended


def keys_between(scan: Verification, low: int, stop: int, most: int | None = None, tags: bool | None = None) -> Keys:
    """Return the keys of the records from one physical offset to another, both included, in log order.

    most: more need not be all. tags: as for `Verification.keys_of`.
    """
    parts = [np.empty(0, KEY_ROW)]
    for split in plan(scan.log):
        begin = split.file.start + split.start
        if begin > stop or split.file.start + split.stop <= low:
            continue
        if most is not None and sum(map(len, parts)) > most:
            break
        keys = scan.keys_of(split, tags)
        if keys is not None and len(keys):
            offsets = keys["physical_offset"].astype(np.int64)
            parts.append(keys[(offsets >= low) & (offsets <= stop)])
    return np.concatenate(parts, dtype=KEY_ROW)


def chained(keys: Keys, inherited: int, slot_count: int) -> tuple[NDArray[np.int32], NDArray[np.uint8], int]:
    """Return slots, entries and the number of slots in use of a file that has these keys. inherited: the end time of the file before."""
    slots = np.zeros(slot_count, np.int32)
    made = np.empty(len(keys) * ENTRY_SIZE, np.uint8)
    rows = np.ascontiguousarray(keys).view(np.uint8)
    taken = index_chains.build(rows[:ENTRY_SIZE], inherited, 1, slots, made[:ENTRY_SIZE])
    if len(keys) > 1:
        taken += index_chains.build(rows[ENTRY_SIZE:], int(keys["store_timestamp"][0]), 2, slots, made[ENTRY_SIZE:])
    return slots.astype(">i4"), made, taken


def _changes(file: IndexFile, keys: Keys, before: Begin | None) -> Iterator[Change]:
    """Yield the writes after which a file has these keys."""
    slots, made, taken = chained(keys, before.timestamp if before is not None else 0, file.slot_count)
    begin = int(keys["store_timestamp"][0])
    stored = np.zeros(len(made), np.uint8)
    there = file.entry_bytes(1, len(keys) + 1)
    stored[: len(there)] = there
    if before is None and (stored[:12] == made[:12]).all():
        made[12:16] = stored[12:16]  # counted from the end of a file that is not there
    yield from _writes(file.relative, file.entry_position(1), stored, made, ENTRY_SIZE)
    yield from _writes(file.relative, HEADER_SIZE, np.ascontiguousarray(file.slot_table()).view(np.uint8), slots.view(np.uint8), SLOT_SIZE)
    counted = file.header.hash_slot_count if file.header.hash_slot_count in (taken, len(keys)) else taken
    last = int(keys["physical_offset"][-1])
    header = HEADER.pack(begin, int(keys["store_timestamp"][-1]), int(keys["physical_offset"][0]), last, counted, len(keys) + 1)
    old = np.frombuffer(HEADER.pack(*_stored_header(file)), np.uint8)
    yield from _writes(file.relative, 0, old, np.frombuffer(header, np.uint8), 4)


def _stored_header(file: IndexFile) -> tuple[int, ...]:
    """Return the header as it is in the file: an IndexFile counts at least 1."""
    return (*file.header[:5], file.header.index_count if file.header.index_count > 1 else 0)


def _writes(name: str, at: int, stored: NDArray[np.uint8], made: NDArray[np.uint8], unit: int) -> Iterator[Change]:
    """Yield a write for each run of units that differ. at: position of the first in the file."""
    differs = np.flatnonzero((stored.reshape(-1, unit) != made.reshape(-1, unit)).any(axis=1))
    for run in np.split(differs, np.flatnonzero(np.diff(differs) != 1) + 1):
        if len(run):
            low, high = int(run[0]) * unit, (int(run[-1]) + 1) * unit
            yield Change("write", name, at + low, made[low:high].tobytes())
