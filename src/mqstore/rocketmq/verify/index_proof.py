"""Comparing index files with the keys of the commit log.

All index files together are one sequence of entries in log order. The keys of a range of log are compared with it: what is equal is
proved, keys without an entry are missing, entries without a key are checked one by one. Chains are proved separately, by replaying
every link of a file over an empty slot table.

Format: docs/formats/rocketmq.md, section 5.10.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import index_chains
from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, dispatch_request, tags_hash
from mqstore.rocketmq.format.commit_log import CommitLog, Records
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.index_geometry import ENTRY
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.format.rocksdb_store import RocksIndex, index_keys, parse_entry
from mqstore.rocketmq.store.databases import INDEX_PLACE
from mqstore.rocketmq.store.store import RocketMQStore

BLOCK = 250_000  # entries a chain check holds at once
MAX_FINDINGS = 200  # findings per file that are listed
_END_OFFSET, _SLOT_COUNT = 24, 32  # positions in the header


@dataclass(slots=True)
class IndexProof:
    """An index file that is being proved. proved: half-open ranges of entry numbers that equal the log's keys; 1 is the first."""

    file: IndexFile
    # the file before this one is there, or retention removed it: the first entry's time is relative to it (docs/formats/rocketmq.md, 5.4)
    inherits: bool
    proved: list[tuple[int, int]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def stop(self) -> int:
        """Number after the last entry."""
        return self.file.stop

    def compare(self, keys: NDArray[np.void]) -> NDArray[np.bool_]:
        """Compare the keys of a range of log with the file. Returns which of them it holds."""
        held = self._align(keys, self.file.first_at(int(keys["physical_offset"][0])))
        if not held.any():
            # a damaged offset may have misled the bisection: search the whole file for the record of the first key
            number = self._number_of(int(keys["physical_offset"][0]))
            if number:
                held = self._align(keys, number)
        return held

    def _number_of(self, physical_offset: int) -> int:
        """Return the number of the first entry with a physical offset, 0 if there is none."""
        for low in range(1, self.stop, BLOCK):
            entries = self.file.entries(low, min(self.stop, low + BLOCK))
            hits = np.flatnonzero(entries["physical_offset"] == physical_offset)
            if len(hits):
                return low + int(hits[0])
        return 0

    def _align(self, keys: NDArray[np.void], number: int) -> NDArray[np.bool_]:
        """Compare keys and entries in step, from the first key and entry `number` on. Returns which keys are held."""
        held = np.zeros(len(keys), np.bool_)
        offsets = keys["physical_offset"].astype(np.int64)
        rows = keys.view(np.uint8)
        begin = self.file.header.begin_timestamp
        k = 0
        while k < len(keys) and number < self.stop:
            matched = self._match(rows, keys, k, number, begin)
            if matched:
                held[k : k + matched] = True
                self._prove(number, number + matched)
                k, number = k + matched, number + matched
                continue
            physical = self.file.entry(number).physical_offset
            if k + 1 < len(keys) and number + 1 < self.stop and self._match(rows, keys, k + 1, number + 1, begin):
                k, number = k + 1, number + 1  # one entry is wrong, the next ones match again
            elif physical < int(offsets[k]):
                number += 1
            elif physical > int(offsets[k]):
                k += max(1, int(np.searchsorted(offsets[k:], physical)))
            else:
                k += 1  # another key of the same record: its entry may be in the file before
        return held

    def _match(self, rows: Bytes, keys: NDArray[np.void], k: int, number: int, begin: int) -> int:
        """Return how many keys from k on equal the entries from `number` on."""
        run = min(len(keys) - k, self.stop - number)
        matched = index_chains.match(rows[20 * k : 20 * (k + run)], self.file.entry_bytes(number, number + run), begin)
        if not matched and number == 1 and self.inherits:
            entry = self.file.entry(1)
            matched = int(entry.key_hash == int(keys["hash"][k]) and entry.physical_offset == int(keys["physical_offset"][k]))
        return matched

    def _prove(self, low: int, high: int) -> None:
        if self.proved and self.proved[-1][1] == low:
            low = self.proved.pop()[0]
        self.proved.append((low, high))

    def _unproved(self, log_start: int) -> Iterator[int]:
        """Yield the entries that the log has not proved, but for those of expired messages."""
        proved = [*sorted(self.proved), (self.stop, self.stop)]
        at = 1
        for low, high in proved:
            for start in range(at, low, BLOCK):
                stop = min(low, start + BLOCK)
                physical = self.file.entries(start, stop)["physical_offset"]
                yield from (start + np.flatnonzero((physical < 0) | (physical >= log_start))).tolist()
                yield from range(start + len(physical), stop)  # past the end of the file
            at = max(at, high)

    def report(self, number: int, kind: Kind, sentence: str) -> None:
        """Add a finding about entry `number`."""
        self.damage.append(
            Damage(self.file.relative, self.file.entry_position(number), ENTRY.itemsize, kind, f"entry {number}: {sentence}", 0)
        )

    def finish(self, log: CommitLog, log_end: int, rules: DispatchRules) -> None:
        """Check every entry that was not proved, and report its faults."""
        for number in self._unproved(log.start):
            entry = self.file.entry(number)
            if entry.physical_offset < 0 or entry.physical_offset >= log_end:
                self.report(number, Kind.BAD_INDEX_ENTRY, f"points at physical offset {entry.physical_offset}, outside the log")
                continue
            message = log.record(entry.physical_offset)
            if message is None:
                self.report(number, Kind.BAD_INDEX_ENTRY, f"no valid record starts at physical offset {entry.physical_offset}")
                continue
            hashes = {index_hash(message.topic, key) for key in dispatch_request(message, rules).keys} | {tags_hash(message)}
            if entry.key_hash not in hashes:
                self.report(number, Kind.BAD_INDEX_ENTRY, f"the record at {entry.physical_offset} has no key with hash {entry.key_hash}")
            elif not (number == 1 and self.inherits):
                begin = self.file.header.begin_timestamp
                seconds = 0 if begin <= 0 else min(max(0, message.store_timestamp - begin) // 1000, 2**31 - 1)
                if entry.seconds != seconds:
                    self.report(
                        number,
                        Kind.BAD_INDEX_ENTRY,
                        f"has {entry.seconds} s after the file's begin, the record was stored {seconds} s after it",
                    )


def check_chains(file: IndexFile, before: IndexFile | None = None) -> list[Damage]:
    """Replay every link of a file, then compare its slots and header with the result. before: the previous file."""
    damage: list[Damage] = []
    header = file.header
    if not 0 <= header.index_count <= file.positions:
        return [
            Damage(
                file.relative,
                36,
                4,
                Kind.BAD_INDEX_HEADER,
                f"indexCount {header.index_count} exceeds the {file.positions} positions of the file",
            )
        ]
    slots = np.zeros(file.slot_count, np.int32)
    bad = np.empty(MAX_FINDINGS, np.int64)
    for low in range(1, header.index_count, BLOCK):
        high = min(header.index_count, low + BLOCK)
        total = index_chains.check(file.entry_bytes(low, high), low, slots, bad)
        for number in bad[: min(total, MAX_FINDINGS)].tolist():
            entry = file.entry(number)
            position = file.entry_position(number)
            if entry.key_hash < 0:
                sentence = f"entry {number}: its hash {entry.key_hash} is negative"
            elif entry.previous >= number:
                sentence = f"entry {number} links to {entry.previous}: a link must lead to an older entry, this chain would not end"
            else:
                sentence = f"entry {number} links to {entry.previous}, which is not the entry before it in its slot"
            damage.append(Damage(file.relative, position, ENTRY.itemsize, Kind.BAD_INDEX_CHAIN, sentence))
        file.drop()
    stored = file.slots()
    for slot in np.flatnonzero(stored != slots).tolist()[:MAX_FINDINGS]:
        sentence = f"slot {slot} holds {int(stored[slot])}, its newest entry is {int(slots[slot])}"
        damage.append(Damage(file.relative, file.slot_position(slot), 4, Kind.BAD_INDEX_CHAIN, sentence))
    return damage + _check_header(file, int(np.count_nonzero(slots)), before)


def _check_header(file: IndexFile, taken: int, before: IndexFile | None) -> list[Damage]:
    header = file.header
    if header.index_count <= 1:
        return []
    damage = []
    first, last = file.entry(1), file.entry(header.index_count - 1)
    for position, name, stored, expected in (
        (16, "beginPhyOffset", header.begin_physical_offset, first.physical_offset),
        (24, "endPhyOffset", header.end_physical_offset, last.physical_offset),
    ):
        if stored != expected:
            damage.append(Damage(file.relative, position, 8, Kind.BAD_INDEX_HEADER, f"{name} is {stored}, the entries give {expected}"))
    stored, keys = header.hash_slot_count, header.index_count - 1
    # an upgraded broker continues the file in which the old one counted keys, and no other
    mixed = file.header.may_use(taken) and (before is None or before.header.hash_slot_count == before.header.index_count - 1)
    if stored not in (taken, keys) and not mixed:
        sentence = f"hashSlotCount is {stored}, the entries give {taken}"
        damage.append(Damage(file.relative, 32, 4, Kind.BAD_INDEX_HEADER, sentence))
    return damage


def out_of_order(files: Sequence[IndexFile]) -> dict[str, str]:
    """Return the files that have each other's names, and the name of each: a broker begins a file where the one before it ends."""
    named = [file for file in files if file.header.index_count > 1 and file.header.begin_physical_offset == file.entry(1).physical_offset]
    sound = sorted(named, key=lambda file: file.header.begin_physical_offset)
    return {
        file.relative: own.relative
        for own, file in zip(named, sound, strict=True)
        if file.header.begin_physical_offset != own.header.begin_physical_offset
    }


def unfinished_put(file: IndexFile) -> frozenset[int]:
    """Return the positions in a file that do not agree because a broker was killed while it added one entry; none if it was not.

    A broker writes the entry, its slot, the count of slots, the count of entries, and the last offset and time, in this order.
    """
    number = file.header.index_count
    entry = file.entry(number)
    slot = entry.key_hash % file.slot_count
    if number < file.positions and entry.key_hash >= 0 and 0 <= entry.previous < number and file.slot(slot) == number:
        counted = file.header.hash_slot_count == np.count_nonzero(file.slots())
        return frozenset([file.slot_position(slot), *([_SLOT_COUNT] if counted else ())])
    if number > 2 and file.header.end_physical_offset == file.entry(number - 2).physical_offset < file.entry(number - 1).physical_offset:
        return frozenset([_END_OFFSET])
    return frozenset()


def keys_without_entry(proofs: Sequence[IndexProof], keys: NDArray[np.void], held: NDArray[np.bool_]) -> list[tuple[int, set[int]]]:
    """Return (physical offset, hashes) of the records of which not every key has an entry, whichever file it is in.

    keys: those of a range of log; held: which of them a comparison in step has found. A record's keys may be in two files, or one key
    twice among them, which only counting settles.
    """
    offsets = keys["physical_offset"].astype(np.int64)
    lacking: list[tuple[int, set[int]]] = []
    places, hashes = np.unique(offsets[~held]), keys["hash"].tolist()
    ranges = zip(*(np.searchsorted(offsets, places, side=side).tolist() for side in ("left", "right")), strict=True)
    headers = [proof.file.header for proof in proofs]
    for offset, (low, high) in zip(places.tolist(), ranges, strict=True):
        rest = set(hashes[low:high])
        around = [
            proof.file
            for proof, header in zip(proofs, headers, strict=True)
            if header.index_count > 1 and header.begin_physical_offset <= offset <= header.end_physical_offset
        ]
        if around:
            missing = Counter(hashes[low:high])
            for file in around:
                missing.subtract(file.entry(number).key_hash for number in file.numbers_of(offset))
            rest = {key_hash for key_hash, count in missing.items() if count > 0}
        if rest:
            lacking.append((offset, rest))
    return lacking


# Comparing an index in RocksDB with the log: entries that a record must have, and entries without such a record.
#
# The index covers the log from its first entry to `lastOffsetPy`. Records before that were written without such an index, or their
# entries have expired; those after it get entries when a broker dispatches them. Neither is damage. Where a block of the database cannot be
# read, its entries are neither missing nor there.


class DatabaseIndexProof:
    """The proof of one index. Call `damage`, then `notes`. entries: how many were checked."""

    def __init__(self, store: RocketMQStore, index: RocksIndex) -> None:
        self._store = store
        self._log = store.log
        self._index = index
        self._last = index.last_offset or 0
        self._first = self._last + 1  # physical offset of the oldest entry
        self._faults: list[str] = []
        self._held = 0  # entries of the log, as they must be
        self._in_log = 0  # entries that point into the log
        self._before = self._after = 0  # records with keys outside the range that the index covers
        self.entries = 0

    def damage(self) -> Iterator[Damage]:
        """Yield what is wrong; at most `MAX_FINDINGS` findings of each kind one by one."""
        yield from self._odd_entries()
        yield from self._missing()
        if self._held < self._in_log:
            yield from self._wrong_entries()

    def notes(self) -> Iterator[str]:
        """Yield what the index does not cover, and what could not be compared."""
        if self._faults:
            yield f"not all of the index in RocksDB ({INDEX_PLACE}) can be read: whether it has the keys of every message is not known"
        if self._before:
            yield (
                f"the index in RocksDB ({INDEX_PLACE}) begins after the log: "
                f"{self._before} messages with unique keys are before its first entry"
            )
        if self._after:
            yield f"{self._after} messages with unique keys are after the newest entry of the index in RocksDB ({INDEX_PLACE})"

    def _at(self, kind: Kind, sentence: str, messages: int = 0) -> Damage:
        return Damage(INDEX_PLACE, 0, 0, kind, sentence, messages)

    def _odd_entries(self) -> Iterator[Damage]:
        """Read all entries once; yield the keys that are not those of entries."""
        odd = 0
        for key, value in self._index.items(self._faults.append):
            entry = parse_entry(key, value)
            if entry is None:
                odd += 1
                continue
            self.entries += 1
            if entry.physical_offset >= self._log.start:
                self._in_log += 1
                self._first = min(self._first, entry.physical_offset)
        if odd:
            yield self._at(Kind.BAD_INDEX_ENTRY, f"{odd} pairs of the index in RocksDB are not entries")

    def _missing(self) -> Iterator[Damage]:
        lacking = 0
        example = ""
        for event in self._log.scan():
            if not isinstance(event, Records):
                continue
            for position in event.positions.tolist():
                offset = event.file.start + position
                record = self._log.record(offset)
                expected = index_keys(record) if record is not None else ()
                if record is None or not expected:
                    continue
                if offset < self._first or offset > self._last:
                    self._before += offset < self._first
                    self._after += offset > self._last
                    continue
                stored = [self._index.stored(key) for key in expected]
                self._held += stored.count(record.store_timestamp)
                if None in stored and not self._faults:
                    lacking += 1
                    example = example or f"the first at physical offset {offset}"
        if lacking:
            sentence = f"{lacking} messages have a key without an entry in the index in RocksDB, {example}; key queries miss them"
            yield self._at(Kind.MISSING_INDEX_ENTRY, sentence, lacking)

    def _wrong_entries(self) -> Iterator[Damage]:
        """Yield the entries that no record of the log has."""
        wrong = 0
        for key, value in self._index.items():
            entry = parse_entry(key, value)
            if entry is None or entry.physical_offset < self._log.start:
                continue
            record = self._log.record(entry.physical_offset)
            if record is not None and key in index_keys(record) and entry.stored == record.store_timestamp:
                continue
            wrong += 1
            if wrong > MAX_FINDINGS:
                continue
            if record is None:
                sentence = f"points at physical offset {entry.physical_offset}, where no valid record starts"
            elif key in index_keys(record):
                sentence = f"has store time {entry.stored}, its record at {entry.physical_offset} has {record.store_timestamp}"
            else:
                sentence = f"points at the record at physical offset {entry.physical_offset}, which does not have that key"
            yield self._at(Kind.BAD_INDEX_ENTRY, f"an entry of the index in RocksDB {sentence}")
        if wrong > MAX_FINDINGS:
            yield self._at(Kind.BAD_INDEX_ENTRY, f"{wrong - MAX_FINDINGS} further entries of the index in RocksDB are wrong")
