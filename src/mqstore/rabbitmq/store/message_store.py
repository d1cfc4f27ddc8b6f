"""A message store: all files scanned into columns sorted by message id, so that many ids can be looked up at once.

Records that exist and records that the broker finds are distinguished. A record is `seen` if the broker's own scan finds it. The broker
first appends a left-over `<k>.rdt` to `<k>.rdq`, and so loses records after the zeros of a half-merged file; the careful scan finds
those too. Of several copies of an id, which are identical, a copy proved to be complete is preferred, then the one that the broker
takes: the last one in a file, and of several files the one with the lowest number. A record whose head is destroyed is searched for if
the indexes name its message (`named`).

Only the id and the place of a message are kept: 30 bytes.

`search_records` finds the messages whose records have no valid head: the indexes name their ids, and their terms end where they end.

    size | id | 131 … id … | 255        a record, with its id twice
     ??  | ?? | 131 … id … | ??         found by the id in the term
     ??  | id | 131 … ?? … | ??         found by the id in the head: the message itself is damaged

`MessageStore` does this only if it is to read carefully, and only in bytes that no proved record covers. An id that no index names is
not searched for: bytes of a body may look like a message.

Format: docs/formats/rabbitmq.md, sections 6.1, 6.7 to 6.9 and 14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes, MappedFile, ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import message_store, terms
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format import message_file
from mqstore.rabbitmq.format.layout import own_entries
from mqstore.rabbitmq.format.message_file import HEADER
from mqstore.rabbitmq.format.recovery_terms import CLEAN_FILES
from mqstore.rabbitmq.message.message_term import read_message
from mqstore.rabbitmq.store.clean_tables import CleanTables

ROWS_AT_ONCE = 1 << 20
_COLUMNS = {"hi": np.int64, "lo": np.int64, "at": np.uint32, "total": np.uint32, "quality": np.uint8, "seen": np.bool_}
_BLOCK = 1 << 12
_WINDOW = 1 << 22
_TERM = 131
# bytes that failed attempts to read a term may take, for each byte of a gap
_EFFORT = 256


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One file of a store. name: relative to the root. leftover: it is an `.rdt`."""

    name: str
    number: int
    size: int
    leftover: bool


@dataclass(frozen=True, slots=True)
class FileRecords:
    """The records of one file, in its order. seen: found by the broker's scan. at, total: in bytes; quality: bits MARKED, PROVED."""

    hi: NDArray[np.int64]
    lo: NDArray[np.int64]
    at: NDArray[np.int64]
    total: NDArray[np.int64]
    quality: NDArray[np.uint8]
    seen: NDArray[np.bool_]
    findings: tuple[Damage, ...] = ()


class MessagePosition(NamedTuple):
    """Where a stored message is: its term is bytes at … at+length-1 of a file. record: where its record starts."""

    file: str
    record: int
    at: int
    length: int


def store_files(directory: ReadOnlyDirectory, place: str) -> list[StoreFile]:
    """Return the message files of a store by number, a left-over after the file it belongs to."""
    files = []
    for entry in own_entries(directory, place):
        stem, _, ending = entry.name.rpartition(".")
        if entry.is_file and ending in ("rdq", "rdt") and stem.isascii() and stem.isdigit() and len(stem) <= 18:
            files.append(StoreFile(f"{place}/{entry.name}", int(stem), entry.size, ending == "rdt"))
    return sorted(files, key=lambda file: (file.number, file.leftover))


class MessageStore:
    """The files of `msg_store_persistent` or `msg_store_transient`. place: its directory, relative to the root.

    resynchronising: scan as brokers from 3.13.1 on do. named: returns the ids that the indexes name, to search for those whose records
    have no valid head; None: they are not searched for.
    """

    def __init__(
        self, directory: ReadOnlyDirectory, place: str, *, resynchronising: bool = False, named: Callable[[], MessageIds] | None = None
    ) -> None:
        self.directory = directory
        self.place = place
        self.resynchronising = resynchronising
        self._named = named
        self.files: Sequence[StoreFile] = store_files(directory, place)

    @property
    def has_leftovers(self) -> bool:
        """Whether a merge was interrupted."""
        return any(file.leftover for file in self.files)

    @property
    def has_clean_files(self) -> bool:
        """Whether the three files of a clean stop exist."""
        return all(self.directory.exists(f"{self.place}/{name}") for name in CLEAN_FILES)

    @cached_property
    def tables(self) -> CleanTables:
        """The tables of a clean stop; only for a store whose vhost is clean."""
        return CleanTables(self.directory, self.place)

    def lead_to(self, hi: NDArray[np.int64], lo: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return for each id whether a node finds it after a clean stop, and whether it finds the message. rows: of `find`."""
        if self.tables.given_up:
            seen = self.seen(rows)
            return seen, seen
        return self.tables.lead_to(hi, lo)

    @property
    def crashes(self) -> tuple[str, ...]:
        """Why the broker would not open this store."""
        numbers = {file.number for file in self.files if not file.leftover}
        return tuple(
            f"{file.name} is left over from a merge, but {file.number}.rdq is missing; the broker stops at it"
            for file in self.files
            if file.leftover and file.number not in numbers
        )

    def records(self, file: StoreFile) -> FileRecords:
        """Scan one file."""
        mapped = self._map(file)
        if mapped is None:
            empty = np.empty(0, np.int64)
            lost = Damage(file.name, 0, file.size, Kind.UNREADABLE, "the operating system refuses to read the file")
            return FileRecords(empty, empty, empty, empty, np.empty(0, np.uint8), np.empty(0, np.bool_), (lost,))
        data = mapped.data
        extents = list(mapped.data_extents())
        careful = message_file.careful_scan(data, extents)
        seen_at, seen_total = self._seen(file, mapped)
        findings = message_file.damage(data, careful, file.name, extents)
        at, total, quality = careful.at, careful.total, careful.quality
        extra = ~np.isin(seen_at, at)
        if extra.any():
            at, total = np.concatenate([at, seen_at[extra]]), np.concatenate([total, seen_total[extra]])
            quality = np.concatenate([quality, np.full(int(extra.sum()), message_store.MARKED, np.uint8)])
        hi, lo = message_file.ids(data, at)
        seen = np.isin(at, seen_at)
        columns: tuple[NDArray[Any], ...] = (hi, lo, at, total, quality, seen)
        headless = self._search(mapped, careful, extents)
        if headless is not None:
            # where a message was found, the frame around it has a damaged id
            keep = ~np.isin(at, headless[2])
            columns = tuple(np.concatenate([own[keep], more]) for own, more in zip(columns, headless, strict=True))
            for row_at, row_total in zip(headless[2].tolist(), headless[3].tolist(), strict=True):
                detail = "the head of the record is damaged; the message was found by an id that an index names"
                findings.append(Damage(file.name, row_at, row_total, Kind.BAD_STORE_RECORD, detail, 1))
        if extra.any() or headless is not None:
            order = np.argsort(columns[2], kind="stable")
            columns = tuple(column[order] for column in columns)
        hi, lo, at, total, quality, seen = columns
        return FileRecords(hi, lo, at, total, quality, seen, tuple(findings))

    def _search(
        self, mapped: MappedFile, careful: message_file.CarefulScan, extents: message_file.Extents
    ) -> tuple[NDArray[Any], ...] | None:
        """Return the columns of `FileRecords` of the named messages that only `search_records` finds; None if there are none."""
        if self._named is None:
            return None
        data = mapped.data
        proved = careful.quality & message_store.PROVED != 0
        rest = message_file.CarefulScan(careful.at[proved], careful.total[proved], careful.quality[proved])
        gaps = [gap for gap in message_file.gaps(rest, len(data), extents) if any(data[low:high].any() for low, high in gap[2])]
        hits = search_records(data, gaps, self._named()) if gaps else []
        # a framed record with this id is in the table already
        framed = set(careful.at[~proved].tolist())
        hits = [each for each in hits if each.quality & message_store.PROVED or each.at not in framed]
        if not hits:
            return None
        hi, lo = message_file.halves(b"".join(each.id for each in hits)).T
        at, total, quality = (
            np.array(column, np.int64) for column in zip(*((each.at, each.total, each.quality) for each in hits), strict=True)
        )
        return hi, lo, at, total, quality.astype(np.uint8), np.zeros(len(hits), np.bool_)

    def _map(self, file: StoreFile) -> MappedFile | None:
        try:
            return self.directory.map(file.name)
        except CannotOpenError:
            return None

    def _seen(self, file: StoreFile, mapped: MappedFile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the records of this file that the broker's scan finds, with a left-over appended first."""
        if not file.leftover:
            scanned = self._broker_scan(mapped)
            return scanned.at, scanned.total
        nothing = np.empty(0, np.int64)
        base = next((other for other in self.files if other.number == file.number and not other.leftover), None)
        before = None if base is None else self._map(base)
        if before is None:
            return nothing, nothing
        end = self._broker_scan(before).end
        rest = before.data[end:]
        if len(rest) >= 8 and not rest[:8].any() and not self.resynchronising:
            return nothing, nothing
        scan = message_file.resynchronising_scan if self.resynchronising else message_file.strict_scan
        scanned = scan(np.concatenate([rest, mapped.data]) if len(rest) else mapped.data)
        inside = scanned.at >= len(rest)
        return scanned.at[inside] - len(rest), scanned.total[inside]

    def _broker_scan(self, mapped: MappedFile) -> message_file.Scan:
        if self.resynchronising:
            return message_file.resynchronising_scan(mapped.data, list(mapped.data_extents()))
        return message_file.strict_scan(mapped.data)

    @cached_property
    def _table(self) -> RecordTable:
        narrow = np.uint32 if all(file.size < 1 << 32 for file in self.files) else np.int64
        kinds = _COLUMNS | {"at": narrow, "total": narrow}
        joined: dict[str, NDArray[Any]] = {name: np.empty(0, kind) for name, kind in kinds.items()}
        findings: list[Damage] = []
        counts = []
        rows = 0
        for file in self.files:
            records = self.records(file)
            for name, column in joined.items():
                _write_rows(column, rows, getattr(records, name))
            counts.append(len(records.at))
            rows += len(records.at)
            findings += records.findings
        for column in joined.values():
            column.resize(rows, refcheck=False)
        # one column after the other: two copies of each would take most of the memory of a large store
        order: NDArray[Any] = np.argsort(joined["hi"], kind="stable")
        if rows < 1 << 32:
            order = order.astype(np.uint32)
        for name, column in joined.items():
            joined[name] = _take(column, order)
        joined["file"] = _take(np.repeat(np.arange(len(counts), dtype=np.int32), counts), order)
        del order
        self._sort_copies(joined)
        return RecordTable(**joined, findings=tuple(findings))

    def _sort_copies(self, joined: dict[str, NDArray[Any]]) -> None:
        """Sort further where the upper halves of ids are equal, which is rare except for copies."""
        again = np.zeros(len(joined["hi"]), np.bool_)
        again[1:] = joined["hi"][1:] == joined["hi"][:-1]
        again[:-1] |= again[1:]
        rows = np.flatnonzero(again)
        if not len(rows):
            return
        part = {name: column[rows] for name, column in joined.items()}
        numbers = np.array([entry.number for entry in self.files], np.int64)[part["file"]]
        leftover = np.array([1 << 62 if entry.leftover else 0 for entry in self.files], np.int64)[part["file"]]
        later = part["at"].astype(np.int64) + leftover
        best = part["quality"] == message_store.MARKED | message_store.PROVED
        order = np.lexsort((-later, numbers, ~part["seen"], ~best, part["lo"], part["hi"]))
        for name, column in joined.items():
            column[rows] = part[name][order]

    @property
    def findings(self) -> tuple[Damage, ...]:
        return self._table.findings

    def __len__(self) -> int:
        """Return the number of records, copies included."""
        return len(self._table.at)

    def find(self, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each id the row of its message, or -1."""
        rows = np.full(len(hi), -1, np.int64)
        if not len(hi) or not self.files:
            return rows  # without a scan of the files
        table = self._table
        message_store.find_ids(table.hi, table.lo, np.ascontiguousarray(hi), np.ascontiguousarray(lo), rows)
        return rows

    def seen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each row of `find` whether the broker finds that id; False for -1."""
        known = rows >= 0
        result = np.zeros(len(rows), np.bool_)
        if known.any():
            result[known] = self._seen_ids[rows[known]]
        return result

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """For each row, the first row with the same id."""
        table = self._table
        new = np.ones(len(table.hi), np.bool_)
        new[1:] = (table.hi[1:] != table.hi[:-1]) | (table.lo[1:] != table.lo[:-1])
        starts = np.flatnonzero(new)
        return np.asarray(starts[np.cumsum(new) - 1], np.int64)

    @cached_property
    def _seen_ids(self) -> NDArray[np.bool_]:
        """For each row, whether any copy of its id is seen."""
        table = self._table
        if table.seen.all():
            return table.seen
        result = np.zeros(len(table.seen), np.bool_)
        result[self._first[table.seen]] = True
        return result[self._first] if len(result) else result

    @property
    def copies(self) -> NDArray[np.bool_]:
        """For each row, whether it is a further copy of an id."""
        return np.asarray(self._first != np.arange(len(self._first)))

    def position(self, row: int) -> MessagePosition:
        """Return where the message of a row of `find` is."""
        table = self._table
        at, total = int(table.at[row]), int(table.total[row])
        return MessagePosition(self.files[int(table.file[row])].name, at, at + message_file.HEADER, total - message_file.OVERHEAD)

    def message(self, row: int) -> bytes:
        """Return the term of a row of `find`; no bytes if its file cannot be read."""
        position = self.position(row)
        try:
            data = self.directory.mapped(position.file).data
        except CannotOpenError:
            return b""
        return data[position.at : position.at + position.length].tobytes()

    def locations(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return file, position and length of the terms of these rows."""
        table = self._table
        at, total = (column[rows].astype(np.int64) for column in (table.at, table.total))
        return table.file[rows], at + message_file.HEADER, total - message_file.OVERHEAD

    def halves(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of these rows, as two big-endian halves each."""
        return self._table.hi[rows], self._table.lo[rows]

    def spread(self, of_first: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Copy the value of the first row of each id to all its rows."""
        return of_first[self._first] if len(of_first) else of_first

    def id(self, row: int) -> bytes:
        """Return the 16 bytes of a row's id."""
        table = self._table
        return np.array([table.hi[row], table.lo[row]], ">i8").tobytes()

    def by_place(self) -> NDArray[np.int64]:
        """Return all rows by file and position."""
        table = self._table
        return np.lexsort((table.at, table.file)).astype(np.int64)


def _write_rows(column: NDArray[Any], at: int, part: NDArray[Any]) -> None:
    """Write part at a row of a column, which grows in place: collecting the parts first would take twice the memory."""
    if at + len(part) > len(column):
        column.resize(max(at + len(part), len(column) * 9 // 8), refcheck=False)
    column[at : at + len(part)] = part


def _take(column: NDArray[Any], order: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of a column in this order, in pieces because NumPy widens a 32-bit index."""
    result = np.empty_like(column)
    for start in range(0, len(order), ROWS_AT_ONCE):
        result[start : start + ROWS_AT_ONCE] = column[order[start : start + ROWS_AT_ONCE]]
    return result


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Records by id. file: index into the store's files. at, total: 32 bits if that is enough."""

    hi: NDArray[np.int64]
    lo: NDArray[np.int64]
    at: NDArray[np.int64] | NDArray[np.uint32]
    total: NDArray[np.int64] | NDArray[np.uint32]
    file: NDArray[np.int32]
    quality: NDArray[np.uint8]
    seen: NDArray[np.bool_]
    findings: tuple[Damage, ...]


class MessageIds(NamedTuple):
    """Ids in ascending order, as two big-endian halves each."""

    hi: NDArray[np.int64]
    lo: NDArray[np.int64]

    @classmethod
    def of(cls, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> MessageIds:
        """Return these ids in order."""
        order = np.lexsort((lo, hi))
        return cls(np.ascontiguousarray(hi[order]), np.ascontiguousarray(lo[order]))

    def contain(self, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each id whether it is one of these."""
        rows = np.empty(len(hi), np.int64)
        message_store.find_ids(self.hi, self.lo, np.ascontiguousarray(hi), np.ascontiguousarray(lo), rows)
        return rows >= 0


class FoundRecord(NamedTuple):
    """A message. at: where its record would start; total: bytes from there to the mark; quality: PROVED if the id is in the term."""

    at: int
    total: int
    id: bytes
    quality: int


def search_records(data: Bytes, gaps: Iterable[tuple[int, int, list[tuple[int, int]]]], ids: MessageIds) -> list[FoundRecord]:
    """Return the messages with these ids whose terms are in the gaps of a file, by position. gaps: as `message_file.gaps` gives them."""
    records: dict[int, FoundRecord] = {}
    for _, end, parts in gaps:
        for low, high in parts:
            if data[low:high].any():
                for record in (*_by_term(data, low, high, ids), *_by_head(data, low, high, end, ids)):
                    records.setdefault(record.at, record)
    return [records[at] for at in sorted(records)]


def _record(data: Bytes, start: int, end: int, message_id: bytes, quality: int) -> FoundRecord:
    marked = end < len(data) and data[end] == 255
    return FoundRecord(start - HEADER, end - start + HEADER + 1, message_id, quality | (message_store.MARKED if marked else 0))


def _by_term(data: Bytes, low: int, high: int, ids: MessageIds) -> Iterator[FoundRecord]:
    at, end = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    position = max(low, HEADER)
    while position < high:
        count, position, tried = message_store.stored_messages(data, position, high, at, end)
        for start, stop in zip(at[:count].tolist(), end[:count].tolist(), strict=True):
            try:
                message_id = read_message(data[start:stop].tobytes()).id
            except EtfError:
                continue
            if len(message_id) == 16 and ids.contain(*message_file.halves(message_id).T)[0]:
                yield _record(data, start, stop, message_id, message_store.PROVED)
        if not tried:
            return


def _by_head(data: Bytes, low: int, high: int, limit: int, ids: MessageIds) -> Iterator[FoundRecord]:
    """Yield the terms after a wanted id; each ends before limit."""
    left = _EFFORT * (limit - low)
    position = 0
    for start in range(max(low, HEADER), high, _WINDOW):
        places = np.flatnonzero(data[start : min(start + _WINDOW, high)] == _TERM) + start
        hi, lo = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        message_store.record_ids(data, places - HEADER, hi, lo)
        for term_at in places[ids.contain(hi, lo)].tolist():
            if term_at < position:
                continue
            end = terms.end(data, term_at, limit)
            if end >= 0:
                yield _record(data, term_at, end, data[term_at - 16 : term_at].tobytes(), 0)
                position = end
            else:
                left -= limit - term_at
            if left < 0:
                return
