"""Finding candidates in one index file: entries whose hash is the hash of a wanted key.

    probe    follow the chain of every wanted hash from its slot        few keys
    sweep    compare all entries with the wanted hashes                 many keys

A candidate is (hash, physical offset); whether the record there has the key is decided by comparing texts (`KeySet.match`).

An index file is used only as far as it proves valid: its geometry is known, its header agrees with its first and last entry and with its
slots, every chain that is followed stays in its slot and descends (probe), or all slots, links and offsets are in order (sweep). What
neither check can see is a key that the broker never put, a link or slot that skips entries (probe), and a hash replaced by another of
the same slot.

Format: docs/formats/rocketmq.md, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.kernels.rocketmq import index_chains
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.lookup.key_set import KeySet
from mqstore.table.arrow_spans import distinct_of_sorted

CANDIDATE = np.dtype([("hash", "<i4"), ("file", "<i4"), ("physical_offset", "<i8")])

EMPTY = "it has no entries"  # as a broker creates the next file in advance
BLOCK = 250_000  # entries that a sweep holds at once

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IndexHits:
    """The outcome for one index file. candidates: CANDIDATE rows. fault: why the file is not valid, empty if it is.

    entries: number of entries visited.
    """

    candidates: NDArray[np.void]
    fault: str
    entries: int


def why_unusable(file: IndexFile) -> str:
    """Return why a file cannot be used, judging by its header; empty if it can. Reads the first and the last entry."""
    header = file.header
    if header.index_count <= 1:
        return EMPTY
    if not file.proved:
        return "its geometry is not proved"
    if header.index_count > file.positions:
        return f"its header counts {header.index_count - 1} entries, it has room for {file.positions - 1}"
    first, last = file.entry(1), file.entry(header.index_count - 1)
    if (first.physical_offset, last.physical_offset) != (header.begin_physical_offset, header.end_physical_offset):
        return "its header and its entries have different physical offsets"
    return "" if 0 <= first.physical_offset <= last.physical_offset else "its physical offsets do not ascend"


def probe(file: IndexFile, number: int, keys: KeySet) -> IndexHits:
    """Follow the chains of all wanted hashes, one entry of each at a time. number: of the file, for its candidates."""
    header = file.header
    table = file.slot_table()
    in_use = int(np.count_nonzero(table.view(np.int32)))  # zero is zero in either byte order
    if in_use != header.hash_slot_count:  # in a file of 4.3.0, which counts keys, a lost slot would not be seen
        return _invalid(f"{in_use} of its slots are in use, its header counts {header.hash_slot_count}")
    hashes = distinct_of_sorted(keys.hash)
    slots = hashes % file.slot_count
    entry = table[slots].astype(np.int64)
    entries = file.entries(0, header.index_count)
    parts: list[NDArray[np.void]] = []
    visited = 0
    above = np.full(len(hashes), header.index_count, np.int64)
    while len(hashes):
        if ((entry < 0) | (entry >= above)).any():
            return _invalid("a chain leads to a newer entry or out of the file", visited)
        going = entry > 0
        hashes, slots, entry = hashes[going], slots[going], entry[going]
        rows = entries[entry]
        visited += len(rows)
        own, offsets = rows["key_hash"].astype(np.int32), rows["physical_offset"].astype(np.int64)
        if ((own < 0) | (own % file.slot_count != slots)).any():
            return _invalid("a chain holds an entry of another slot", visited)
        if ((offsets < header.begin_physical_offset) | (offsets > header.end_physical_offset)).any():
            return _invalid("an entry points outside the file's range of physical offsets", visited)
        selected = own == hashes
        parts.append(_candidates(number, hashes[selected], offsets[selected]))
        above, entry = entry, rows["previous"].astype(np.int64)
    return IndexHits(np.concatenate(parts), "", visited)


def sweep(file: IndexFile, number: int, keys: KeySet) -> IndexHits:
    """Read all entries in order and replay their links, which proves slots, hashes and chains. number: as in `probe`."""
    header = file.header
    slots = np.zeros(file.slot_count, np.int32)
    bad = np.empty(0, np.int64)
    parts: list[NDArray[np.void]] = []
    last = header.begin_physical_offset
    for low in range(1, header.index_count, BLOCK):
        raw = file.entry_bytes(low, min(header.index_count, low + BLOCK))
        entries = file.entries(low, min(header.index_count, low + BLOCK))
        offsets = entries["physical_offset"].astype(np.int64)
        if index_chains.check(raw, low, slots, bad):
            return _invalid("its chains do not lead from newer to older entries", low)
        if int(offsets[0]) < last or (np.diff(offsets) < 0).any():
            return _invalid("its physical offsets do not ascend", low)
        last = int(offsets[-1])
        hashes = entries["key_hash"].astype(np.int32)
        selected = np.flatnonzero(keys.has(hashes))
        parts.append(_candidates(number, hashes[selected], offsets[selected]))
    # an entry alone in its slot has no link that would contradict a changed hash: only the slot table does
    if not np.array_equal(slots, file.slot_table()):
        return _invalid("its slots do not lead to the newest entries", header.index_count - 1)
    return IndexHits(np.concatenate(parts), "", header.index_count - 1)


def _invalid(fault: str, visited: int = 0) -> IndexHits:
    return IndexHits(np.empty(0, CANDIDATE), fault, visited)


def _candidates(number: int, hashes: NDArray[np.int32], offsets: Longs) -> NDArray[np.void]:
    rows = np.empty(len(hashes), CANDIDATE)
    rows["hash"], rows["file"], rows["physical_offset"] = hashes, number, offsets
    return rows
