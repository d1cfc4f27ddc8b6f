"""Looking up many keys at once: the ways to the records that may have them, and the comparison that decides.

    probe    slot and chain of every asked hash in every sound index file        few keys
    sweep    all entries of the sound index files against the asked hashes       many keys
    scan     the keys that the log itself yields, as dispatch makes them          no sound index, or nearly all of it asked for

All three lead to candidates, (hash, physical offset); a record is a hit when its topic and one of its keys *are* the asked ones.
Rolled back messages have no keys in a broker's index and are no hits in any plan; prepared ones are.

An index file is used as far as it can be believed: its geometry is proved, its header agrees with its first and last entry and with
its slots, every chain followed stays in its slot and descends (probe), all slots, links and offsets are in order (sweep), and every
entry of an asked hash leads to a record with such a key. Of a file that fails, and of what no file covers, the log is scanned instead.
What no check can see is a key that the broker never put, a link or slot that skips entries (probe), or a hash exchanged for another
of the same slot; `scan` alone asks nothing of an index.

    covered by files     (begin … end)   (begin … end)
    scanned          [----]          [---]           [-------)      the records at begin and end included

Format: docs/formats/rocketmq.md, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UsageError
from mqstore.kernels.rocketmq import frames, index_chains
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from mqstore.rocketmq.lookup.key_set import Asked, hash_pairs
from mqstore.rocketmq.scan.columns import RecordColumns

__all__ = [
    "CANDIDATE",
    "EMPTY",
    "Costs",
    "Interval",
    "Plan",
    "Searched",
    "choose",
    "distrust",
    "intervals",
    "matches",
    "newest",
    "probe",
    "sweep",
    "uncovered",
]

CANDIDATE = np.dtype([("hash", "<i4"), ("file", "<i4"), ("physical_offset", "<i8")])

EMPTY = "it has no entries"  # as a broker makes the next file ahead
BLOCK = 250_000  # entries that a sweep holds at once

# seconds a key, an entry and a byte take, measured on one core: they choose the plan, nothing else depends on them
PROBE_SECONDS = 2e-6
SWEEP_SECONDS = 3e-8
SCAN_SECONDS = 1.2e-9

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Plan(StrEnum):
    """How candidates are found."""

    PROBE = "probe"
    SWEEP = "sweep"
    SCAN = "scan"


# comparing


@dataclass(frozen=True, slots=True)
class Matches:
    """Records laid against the asked keys. rows, places: record and asked key of each hit, by record, then by rank in the file.

    near: places of asked keys that share a hash with a record, but not the text. hashes: of all keys of the records; owners: their records.
    """

    rows: Longs
    places: Longs
    near: Longs
    hashes: NDArray[np.int32]
    owners: Longs


def matches(columns: RecordColumns, asked: Asked) -> Matches:
    """Which records have which asked keys, by exact comparison."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wide = pa.large_string()
    uniq, stored = columns.uniq_key, columns.column("keys")
    owners = np.concatenate([np.flatnonzero(uniq.is_valid().to_numpy(zero_copy_only=False)), pc.list_parent_indices(stored).to_numpy()])
    texts = pa.concat_arrays([uniq.drop_null().cast(wide), pc.list_flatten(stored).cast(wide)])
    kept = columns.row(frames.SYS_FLAG)[owners] & TRANSACTION_MASK != TRANSACTION_ROLLBACK
    owners, texts = owners[kept].astype(np.int64), texts.filter(pa.array(kept))
    topics = columns.topic.cast(wide).take(pa.array(owners))
    hashes = hash_pairs(topics, texts)
    rows, places = asked.places(hashes)
    own, other = pa.array(rows), pa.array(places)
    same = pc.and_(pc.equal(topics.take(own), asked.topic.take(other)), pc.equal(texts.take(own), asked.key.take(other)))
    hit = same.to_numpy(zero_copy_only=False).astype(np.bool_)
    # a record may hold one key twice, as UNIQ_KEY and in KEYS
    found = np.unique(np.stack([owners[rows[hit]], asked.number[places[hit]]], axis=1), axis=0)
    return Matches(found[:, 0], asked.in_order[found[:, 1]], np.unique(places[~hit]), hashes, owners)


def newest(places: Longs, limit: int) -> Mask:
    """Which hits, given in log order, are among the last `limit` of their key."""
    order = np.argsort(places, kind="stable")
    by_key = places[order]
    ends = np.searchsorted(by_key, by_key, "right")
    mask = np.empty(len(places), np.bool_)
    mask[order] = ends - np.arange(len(places)) <= limit
    return mask


# the index


@dataclass(frozen=True, slots=True)
class Searched:
    """What one index file yields. candidates: CANDIDATE rows. wrong: why it cannot be believed, empty if it can.

    entries: how many were visited.
    """

    candidates: NDArray[np.void]
    wrong: str
    entries: int


def distrust(file: IndexFile) -> str:
    """Why a file cannot be used, by its header alone; empty if it can. Reads the first and the last entry."""
    header = file.header
    if header.index_count <= 1:
        return EMPTY
    if not (file.inferred == "configured" or file.inferred.endswith("the entries agree")):
        return "its geometry is not proved"
    if header.index_count > file.positions:
        return f"its header counts {header.index_count - 1} entries, it has room for {file.positions - 1}"
    first, last = file.entry(1), file.entry(header.index_count - 1)
    if (first.physical_offset, last.physical_offset) != (header.begin_physical_offset, header.end_physical_offset):
        return "its header and its entries tell different physical offsets"
    return "" if 0 <= first.physical_offset <= last.physical_offset else "its physical offsets do not ascend"


def _nothing(why: str, visited: int = 0) -> Searched:
    return Searched(np.empty(0, CANDIDATE), why, visited)


def _candidates(number: int, hashes: NDArray[np.int32], offsets: Longs) -> NDArray[np.void]:
    found = np.empty(len(hashes), CANDIDATE)
    found["hash"], found["file"], found["physical_offset"] = hashes, number, offsets
    return found


def probe(file: IndexFile, number: int, asked: Asked) -> Searched:
    """Follow the chains of all asked hashes at once, entry by entry."""
    header = file.header
    table = file.slot_table()
    in_use = int(np.count_nonzero(table.view(np.int32)))  # zero is zero in either order of bytes
    if in_use != header.hash_slot_count:
        return _nothing(f"{in_use} of its slots are in use, its header says {header.hash_slot_count}")
    hashes = np.unique(asked.hash)
    slots = hashes % file.slot_count
    entry = table[slots].astype(np.int64)
    entries = file.entries(0, header.index_count)
    found: list[NDArray[np.void]] = []
    visited = 0
    above = np.full(len(hashes), header.index_count, np.int64)
    while len(hashes):
        if ((entry < 0) | (entry >= above)).any():
            return _nothing("a chain leads upwards or out of the file", visited)
        going = entry > 0
        hashes, slots, entry = hashes[going], slots[going], entry[going]
        rows = entries[entry]
        visited += len(rows)
        own, offsets = rows["key_hash"].astype(np.int32), rows["physical_offset"].astype(np.int64)
        if ((own < 0) | (own % file.slot_count != slots)).any():
            return _nothing("a chain holds an entry of another slot", visited)
        if ((offsets < header.begin_physical_offset) | (offsets > header.end_physical_offset)).any():
            return _nothing("an entry leads outside the file's range of physical offsets", visited)
        taken = own == hashes
        found.append(_candidates(number, hashes[taken], offsets[taken]))
        above, entry = entry, rows["previous"].astype(np.int64)
    return Searched(np.concatenate(found), "", visited)


def sweep(file: IndexFile, number: int, asked: Asked) -> Searched:
    """Read all entries in order, and replay their links, which proves slots, hashes and chains."""
    header = file.header
    slots = np.zeros(file.slot_count, np.int32)
    bad = np.empty(0, np.int64)
    found: list[NDArray[np.void]] = []
    last = header.begin_physical_offset
    for low in range(1, header.index_count, BLOCK):
        raw = file.entry_bytes(low, min(header.index_count, low + BLOCK))
        entries = file.entries(low, min(header.index_count, low + BLOCK))
        offsets = entries["physical_offset"].astype(np.int64)
        if index_chains.check(raw, low, slots, bad):
            return _nothing("its chains do not lead from newer to older entries", low)
        if int(offsets[0]) < last or (np.diff(offsets) < 0).any():
            return _nothing("its physical offsets do not ascend", low)
        last = int(offsets[-1])
        hashes = entries["key_hash"].astype(np.int32)
        taken = np.flatnonzero(asked.has(hashes))
        found.append(_candidates(number, hashes[taken], offsets[taken]))
    # an entry alone in its slot has no link that a changed hash would contradict: only its slot does
    if not np.array_equal(slots, file.slot_table()):
        return _nothing("its slots do not lead to the newest entries", header.index_count - 1)
    return Searched(np.concatenate(found), "", header.index_count - 1)


# what the index covers


@dataclass(frozen=True, slots=True)
class Interval:
    """Physical offsets start..stop-1."""

    start: int
    stop: int


def intervals(files: Sequence[IndexFile], log: CommitLog, end: int) -> list[Interval]:
    """The stretches of log that sound files answer for, ascending: between their first and last record, both left out.

    Keys of those two may stand in the file before or behind, which may be lost.
    """
    merged: list[Interval] = []
    for file in sorted(files, key=lambda file: file.begin_physical_offset):
        start = max(file.begin_physical_offset + 1, log.start)
        stop = min(file.end_physical_offset, end)
        if start >= stop:
            continue
        if merged and start < merged[-1].stop:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].stop, stop))
        else:
            merged.append(Interval(start, stop))
    return merged


def uncovered(covered: Sequence[Interval], start: int, end: int) -> list[Interval]:
    """The rest of start..end-1."""
    edges = [start, *(edge for each in covered for edge in (each.start, each.stop)), end]
    return [Interval(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]


# choosing


@dataclass(frozen=True, slots=True)
class Costs:
    """What the choice is made from: keys asked, entries of sound index files, bytes of log, and those that no file covers."""

    keys: int
    files: int
    entries: int
    log_bytes: int
    uncovered_bytes: int

    def seconds(self, plan: Plan) -> float:
        """About how long a plan takes on one core."""
        rest = self.uncovered_bytes * SCAN_SECONDS
        if plan is Plan.PROBE:
            return self.keys * self.files * PROBE_SECONDS + rest
        if plan is Plan.SWEEP:
            return self.entries * SWEEP_SECONDS + rest
        return self.log_bytes * SCAN_SECONDS


def choose(by: str, costs: Costs, distrusted: Sequence[str]) -> tuple[Plan, str]:
    """The plan and the sentence that says why. by: a plan or auto. Raises UsageError."""
    if by != "auto" and by not in tuple(Plan):
        raise UsageError(f"there is no plan {by!r}; the plans are auto, {', '.join(Plan)}")
    if not costs.files and by != Plan.SCAN:
        why = f"{distrusted[0]}{f' (and so {len(distrusted) - 1} more)' if len(distrusted) > 1 else ''}" if distrusted else "there is none"
        return Plan.SCAN, f"no index file can be used: {why}; {costs.log_bytes:,} bytes of log are read"
    figures = (
        f"{_count(costs.keys, 'key')}, {_count(costs.files, 'index file')} of {costs.entries:,} entries, "
        f"{costs.log_bytes:,} bytes of log, {costs.uncovered_bytes:,} of them not covered by the index"
    )
    if by == Plan.SCAN:
        return Plan.SCAN, f"asked for; {costs.log_bytes:,} bytes of log are read for {_count(costs.keys, 'key')}"
    if by != "auto":
        return Plan(by), f"asked for; {figures}"
    chosen = min(Plan, key=costs.seconds)
    estimates = ", ".join(f"{plan} {_clock(costs.seconds(plan))}" for plan in Plan)
    return chosen, f"the least work; {figures}; estimated on one core: {estimates}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _clock(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
