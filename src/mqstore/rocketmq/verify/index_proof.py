"""Comparing index files with the keys that the commit log yields.

All index files together are one sequence of entries in log order. The keys of a stretch of log are laid against it:
what compares equal is proved, keys without an entry are missing, entries without a key are looked at one by one. Chains
are proved apart, by replaying every link of a file over an empty slot table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import index_chains
from mqstore.rocketmq.dispatch.dispatcher import Rules, request
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.index_file import ENTRY, IndexFile
from mqstore.rocketmq.format.java_text import index_hash

__all__ = ["IndexProof", "check_chains"]

BLOCK = 250_000  # entries a chain check holds at once
MAX_TOLD = 200  # findings per file that are told one by one


@dataclass(slots=True)
class IndexProof:
    """One index file under proof. proved: half-open ranges of entry numbers that equal the log's keys; 1 is the first."""

    file: IndexFile
    inherits: bool  # not the first file: its first entry's time is relative to the file before (docs/formats/rocketmq.md, 5.4)
    proved: list[tuple[int, int]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def stop(self) -> int:
        """Number behind the last entry."""
        return min(self.file.header.index_count, self.file.positions)

    def first_at(self, physical_offset: int) -> int:
        """Number of the first entry whose record lies at or behind a physical offset. Entries ascend in a sound file."""
        low, high = 1, self.stop
        while low < high:
            middle = (low + high) // 2
            if self.file.entry(middle).physical_offset < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def compare(self, keys: NDArray[np.void]) -> NDArray[np.bool_]:
        """Lay the keys of a stretch of log against the file; which of them it holds."""
        held = self._lay(keys, self.first_at(int(keys["physical_offset"][0])))
        if not held.any():
            # a damaged offset may have misled the search: look for the first key's record everywhere
            found = self._number_of(int(keys["physical_offset"][0]))
            if found:
                held = self._lay(keys, found)
        return held

    def _number_of(self, physical_offset: int) -> int:
        """Number of the first entry with a physical offset, 0 if none has it."""
        for low in range(1, self.stop, BLOCK):
            entries = self.file.entries(low, min(self.stop, low + BLOCK))
            found = np.flatnonzero(entries["physical_offset"] == physical_offset)
            if len(found):
                return low + int(found[0])
        return 0

    def _lay(self, keys: NDArray[np.void], number: int) -> NDArray[np.bool_]:
        """Compare keys and entries side by side, beginning with the first key and entry `number`; which keys are held."""
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
                k, number = k + 1, number + 1  # one entry is wrong, the next ones are in step again
            elif physical < int(offsets[k]):
                number += 1
            elif physical > int(offsets[k]):
                k += max(1, int(np.searchsorted(offsets[k:], physical)))
            else:
                k += 1  # another key of the same record: its entry may stand in the file before
        return held

    def _match(self, rows: Bytes, keys: NDArray[np.void], k: int, number: int, begin: int) -> int:
        """How many keys from k on equal the entries from `number` on."""
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

    def _unproved(self) -> Iterator[int]:
        at = 1
        for low, high in sorted(self.proved):
            yield from range(at, low)
            at = max(at, high)
        yield from range(at, self.stop)

    def say(self, number: int, kind: Kind, sentence: str) -> None:
        """One finding about entry `number`."""
        self.damage.append(
            Damage(self.file.relative, self.file.entry_position(number), ENTRY.itemsize, kind, f"entry {number}: {sentence}", 0)
        )

    def settle(self, log: CommitLog, log_end: int, rules: Rules) -> None:
        """Look at every entry that was not proved, and say what is wrong with it."""
        for number in self._unproved():
            entry = self.file.entry(number)
            if 0 <= entry.physical_offset < log.start:
                continue
            if entry.physical_offset < 0 or entry.physical_offset >= log_end:
                self.say(number, Kind.BAD_INDEX_ENTRY, f"leads to physical offset {entry.physical_offset}, outside the log")
                continue
            message = log.record(entry.physical_offset)
            if message is None:
                self.say(number, Kind.BAD_INDEX_ENTRY, f"no believable record starts at physical offset {entry.physical_offset}")
                continue
            hashes = {index_hash(message.topic, key) for key in request(message, rules).keys}
            if entry.key_hash not in hashes:
                self.say(number, Kind.BAD_INDEX_ENTRY, f"the record at {entry.physical_offset} has no key with hash {entry.key_hash}")
            elif not (number == 1 and self.inherits):
                begin = self.file.header.begin_timestamp
                seconds = 0 if begin <= 0 else min(max(0, message.store_timestamp - begin) // 1000, 2**31 - 1)
                if entry.seconds != seconds:
                    self.say(
                        number,
                        Kind.BAD_INDEX_ENTRY,
                        f"says {entry.seconds} s after the file's begin, the record was stored {seconds} s after it",
                    )


def check_chains(file: IndexFile) -> list[Damage]:
    """Replay every link of a file, then compare its slots and header with the outcome."""
    damage: list[Damage] = []
    header = file.header
    if not 0 <= header.index_count <= file.positions:
        return [
            Damage(
                file.relative,
                36,
                4,
                Kind.BAD_INDEX_HEADER,
                f"indexCount {header.index_count} is beyond the {file.positions} positions of the file",
            )
        ]
    slots = np.zeros(file.slot_count, np.int32)
    bad = np.empty(MAX_TOLD, np.int64)
    for low in range(1, header.index_count, BLOCK):
        high = min(header.index_count, low + BLOCK)
        found = index_chains.check(file.entry_bytes(low, high), low, slots, bad)
        for number in bad[: min(found, MAX_TOLD)].tolist():
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
    for slot in np.flatnonzero(stored != slots).tolist()[:MAX_TOLD]:
        sentence = f"slot {slot} holds {int(stored[slot])}, its newest entry is {int(slots[slot])}"
        damage.append(Damage(file.relative, file.slot_position(slot), 4, Kind.BAD_INDEX_CHAIN, sentence))
    return damage + _check_header(file, int(np.count_nonzero(slots)))


def _check_header(file: IndexFile, taken: int) -> list[Damage]:
    header = file.header
    if header.index_count <= 1:
        return []
    told = []
    first, last = file.entry(1), file.entry(header.index_count - 1)
    for position, width, name, stored, expected in (
        (16, 8, "beginPhyOffset", header.begin_physical_offset, first.physical_offset),
        (24, 8, "endPhyOffset", header.end_physical_offset, last.physical_offset),
        (32, 4, "hashSlotCount", header.hash_slot_count, taken),
    ):
        if stored != expected:
            told.append(Damage(file.relative, position, width, Kind.BAD_INDEX_HEADER, f"{name} is {stored}, the entries say {expected}"))
    return told


def missing_ranges(keys: NDArray[np.void], held: NDArray[np.bool_]) -> Sequence[int]:
    """Physical offsets, ascending and without repeats, of the records some key of which no file holds."""
    return [int(offset) for offset in np.unique(keys["physical_offset"][~held].astype(np.int64))]
