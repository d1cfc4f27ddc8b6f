"""Comparing an index in RocksDB with the log: entries that a record must have, and entries without such a record.

The index covers the log from its first entry to `lastOffsetPy`. Records before that were written without such an index, or their
entries have expired; those after it get entries when a broker dispatches them. Neither is damage. Where a block of the database cannot be
read, its entries are neither missing nor there.

Format: docs/formats/rocketmq.md, section 5.10.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.rocksdb_index import RocksIndex, index_keys, parse_entry
from mqstore.rocketmq.store.databases import INDEX_PLACE
from mqstore.rocketmq.store.store import RocketMQStore

MAX_FINDINGS = 200


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
            found = parse_entry(key, value)
            if found is None:
                odd += 1
                continue
            self.entries += 1
            if found.physical_offset >= self._log.start:
                self._in_log += 1
                self._first = min(self._first, found.physical_offset)
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
                wanted = index_keys(record) if record is not None else ()
                if record is None or not wanted:
                    continue
                if offset < self._first or offset > self._last:
                    self._before += offset < self._first
                    self._after += offset > self._last
                    continue
                stored = [self._index.stored(key) for key in wanted]
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
            found = parse_entry(key, value)
            if found is None or found.physical_offset < self._log.start:
                continue
            record = self._log.record(found.physical_offset)
            if record is not None and key in index_keys(record) and found.stored == record.store_timestamp:
                continue
            wrong += 1
            if wrong > MAX_FINDINGS:
                continue
            if record is None:
                sentence = f"points at physical offset {found.physical_offset}, where no valid record starts"
            elif key in index_keys(record):
                sentence = f"has store time {found.stored}, its record at {found.physical_offset} has {record.store_timestamp}"
            else:
                sentence = f"points at the record at physical offset {found.physical_offset}, which does not have that key"
            yield self._at(Kind.BAD_INDEX_ENTRY, f"an entry of the index in RocksDB {sentence}")
        if wrong > MAX_FINDINGS:
            yield self._at(Kind.BAD_INDEX_ENTRY, f"{wrong - MAX_FINDINGS} further entries of the index in RocksDB are wrong")
