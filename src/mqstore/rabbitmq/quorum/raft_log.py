r"""A Ra system on disk, `quorum/<node>` or `coordination/<node>`, and the log of each of its members.

    names.dets     {ClusterName, UID}                                      the members that the node knows
    meta.dets      {UID, CurrentTerm, VotedFor, LastApplied}
    <n>.wal        the latest entries of all members (`wal`)
    <UID>/         one member: config, segments (`segment`), snapshots (`snapshot`)

The log of a member is its segments, then its records of the write-ahead logs; of several entries with one index the later one counts. An
entry of the write-ahead log with the mark of truncation, or with a higher term than the entry it replaces, voids everything above it.
Replay starts after the valid snapshot or checkpoint with the highest index.

Memory is that of the index: a few dozen bytes an entry. The entries stay in their files and are read one by one.

    >>> first, again, replaced = (4, 1, 0), (5, 1, 0), (5, 2, 0)  # index, term, truncates
    >>> combine(*map(np.array, zip(first, again, (6, 1, 0), replaced)), np.ones(4, bool), np.ones(4, bool)).tolist()
    [0, 3]

Format: docs/formats/rabbitmq-quorum.md, section 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes, DirectoryEntry, ReadOnlyDirectory
from mqstore.files.directory_views import AliasDirectory
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.erlang.terms import Atom, Term
from mqstore.rabbitmq.quorum.segment import read_segment
from mqstore.rabbitmq.quorum.snapshot import MAX_SNAPSHOT_BYTES, Snapshot, read_snapshot
from mqstore.rabbitmq.quorum.wal import WalRecords, read_wal

WAL_NAME = re.compile(r"[0-9A-Fa-f]{8,16}\.wal")
SEGMENT_NAME = re.compile(r"([0-9A-Fa-f]{8,16})\.segment")
COMPACTING_NAME = re.compile(r"([0-9A-Fa-f]{8,16})\.compacting")
SNAPSHOT_NAME = re.compile(r"([0-9A-F]{16})_([0-9A-F]{16})")
SNAPSHOT_PLACES = ("snapshots", "checkpoints", "recovery_checkpoint")
MAX_DETS_BYTES = 256 << 20
WAL, SEGMENT = "wal", "segment"
_BLOCK = 1 << 14  # entries that are applied together
_APART = 1 << 20  # bytes between the starts of entries that are not loaded together

Longs = NDArray[np.int64]


class Meta(NamedTuple):
    """What meta.dets says about a member. last_applied: every entry up to it is committed."""

    term: int
    last_applied: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry. valid: its checksum fits. start: position of its record or place, entry: its bytes, empty if it is not in the file."""

    index: int
    term: int
    valid: bool
    file: str
    start: int
    entry: bytes


def combine(index: Longs, term: Longs, truncates: Longs, by_term: NDArray[np.bool_], valid: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the rows that are the log, by ascending index. Rows are in the order in which they were written, segments first.

    truncates: entries of this and higher indexes before the row are void. by_term: so they are if its term is higher than that of the row
    it replaces. A row that is not valid replaces none that is.
    """
    count = len(index)
    if not count:
        return np.zeros(0, np.intp)
    if not truncates.any() and bool((np.diff(index) > 0).all()):
        return np.arange(count)
    order = np.lexsort((np.arange(count), index))
    repeated = index[order][1:] == index[order][:-1]
    higher = term[order][1:] > term[order][:-1]
    cuts = (truncates != 0) & valid
    cuts[order[1:]] |= repeated & higher & by_term[order[1:]] & valid[order[1:]]
    limit = np.full(count + 1, np.iinfo(np.int64).max)
    limit[:count] = np.where(cuts, index, limit[:count])
    following = np.minimum.accumulate(limit[::-1])[::-1][1:]
    alive = np.flatnonzero(index < following)
    order = alive[np.lexsort((alive, valid[alive], index[alive]))]
    last = np.ones(len(order), np.bool_)
    last[:-1] = index[order][1:] != index[order][:-1]
    return order[last]


@dataclass(frozen=True, slots=True)
class Base:
    """The snapshot or checkpoint that replay starts from. path: its file."""

    snapshot: Snapshot
    path: str


class MemberLog:
    """The log of one member. uid: of the member, the name of its directory. damage: of its segments and snapshots. wal: whether the
    write-ahead logs belong to it: a node that does not know the member skips them. ended: without what follows the end that a node sees.

    index, term: of the entries, ascending by index. valid: whether the checksum fits.
    """

    def __init__(self, system: RaftDirectory, uid: str, *, wal: bool = True, ended: bool = False) -> None:
        self.system = system
        self.uid = uid
        self.wal = wal
        self.ended = ended
        self.place = f"{system.place}/{uid}" if system.place else uid
        self.damage: list[Damage] = []
        self.files: list[str] = []
        self._kinds: list[str] = []
        self._load()

    def _load(self) -> None:
        parts: list[tuple[Longs, ...]] = []
        for path in self._segment_files():
            entries = self._read_segment(path)
            parts.append(self._columns(path, SEGMENT, entries))
        for path, wal in self.system.write_ahead_logs if self.wal else ():
            records = wal.of(self.uid)
            if self.ended and wal.ends_at >= 0:
                records = records[records["start"] < wal.ends_at]
            if len(records):
                parts.append(self._columns(path, WAL, records))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [np.zeros(0, np.int64)] * 8
        index, term, file, start, position, length, truncates, valid = columns
        from_wal = np.array([kind == WAL for kind in self._kinds], np.bool_)
        by_term = from_wal[file] if len(file) else np.zeros(0, np.bool_)
        rows = combine(index, term, truncates, by_term, valid != 0)
        self.index, self.term = index[rows], term[rows]
        self.valid: NDArray[np.bool_] = valid[rows] != 0
        self._lowest = int(self.index[0]) if len(rows) else 0
        self._gapless = len(rows) > 0 and int(self.index[-1]) - self._lowest + 1 == len(rows)
        self._file, self._start, self._position, self._length = file[rows], start[rows], position[rows], length[rows]

    def _columns(self, path: str, kind: str, entries: NDArray[np.void]) -> tuple[Longs, ...]:
        self.files.append(path)
        self._kinds.append(kind)
        file = np.full(len(entries), len(self.files) - 1, np.int64)
        return (
            entries["index"],
            entries["term"],
            file,
            entries["start"],
            entries["position"],
            entries["length"],
            entries["truncates"],
            entries["valid"],
        )

    def _segment_files(self) -> list[str]:
        """Return the files to read as segments, in order: links of a compaction lead to a file that is read anyway."""
        entries = {entry.name: entry for entry in self.system.entries(self.place)}
        links = {name for name, entry in entries.items() if entry.is_link}
        names = {match[1]: name for name in entries if (match := SEGMENT_NAME.fullmatch(name)) and name not in links}
        if links and any(name.endswith(".compaction_group") for name in entries):
            for name in entries:
                match = COMPACTING_NAME.fullmatch(name)
                if match and match[1] not in names:
                    names[match[1]] = name
        return [f"{self.place}/{names[number]}" for number in sorted(names, key=lambda text: int(text, 16))]

    def _read_segment(self, path: str) -> NDArray[np.void]:
        try:
            mapped = self.system.directory.mapped(path)
            segment = read_segment(mapped.load(0, mapped.size), path)
        except CannotOpenError as error:
            self.damage.append(Damage(path, 0, 0, Kind.UNREADABLE, str(error)))
            return read_segment(np.zeros(0, np.uint8), path).entries
        self.damage += segment.damage
        return segment.entries

    def __len__(self) -> int:
        return len(self.index)

    @property
    def size(self) -> int:
        """The bytes of its entries."""
        return int(self._length.sum())

    @property
    def meta(self) -> Meta | None:
        """What meta.dets says about the member."""
        return self.system.meta.get(self.uid)

    @property
    def last(self) -> tuple[int, int]:
        """The term and the index of the last entry, or those of the snapshot; (0, -1) of an empty log."""
        base = self.base
        own = (int(self.term[-1]), int(self.index[-1])) if len(self) else (0, -1)
        return max(own, (base.snapshot.term, base.snapshot.index)) if base else own

    def bases(self) -> Iterator[Base]:
        """Yield the valid snapshots and checkpoints, that with the highest index first. Others are findings."""
        snapshots: list[tuple[int, int, str]] = []
        for kind in SNAPSHOT_PLACES:
            for entry in self.system.entries(f"{self.place}/{kind}"):
                match = SNAPSHOT_NAME.fullmatch(entry.name)
                if match and entry.is_directory:
                    snapshots.append((int(match[2], 16), int(match[1], 16), f"{self.place}/{kind}/{entry.name}/snapshot.dat"))
        for _, _, path in sorted(snapshots, reverse=True):
            data = self.system.read(path, MAX_SNAPSHOT_BYTES, self.damage)
            if data is None:
                self.damage.append(Damage(path, 0, 0, Kind.BAD_SNAPSHOT, "The file is not there."))
                continue
            read = read_snapshot(data, path)
            if isinstance(read, Snapshot):
                yield Base(read, path)
            else:
                self.damage.append(read)

    @cached_property
    def base(self) -> Base | None:
        """The first of `bases`, unless another one is set: what replay starts from."""
        return next(self.bases(), None)

    @property
    def first_replayed(self) -> int:
        """The index of the first entry to replay."""
        return self.base.snapshot.index + 1 if self.base else 0

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """The ranges (first, last) of entries that are missing above the base. A log begins with entry 0 or 1."""
        first = self.first_replayed
        above = self.index[np.searchsorted(self.index, first) :]
        if not len(above):
            return ()
        gaps = []
        if above[0] > max(first, 1):
            gaps.append((max(first, 1), int(above[0]) - 1))
        breaks = np.flatnonzero(np.diff(above) > 1).tolist()
        return (*gaps, *((int(above[row]) + 1, int(above[row + 1]) - 1) for row in breaks))

    def row(self, index: int) -> int:
        """Return the row of an entry, or -1."""
        if self._gapless:
            row = index - self._lowest
            return row if 0 <= row < len(self.index) else -1
        row = int(np.searchsorted(self.index, index))
        return row if row < len(self) and self.index[row] == index else -1

    def location(self, row: int) -> str:
        """Return `wal` or `segment`."""
        return self._kinds[int(self._file[row])]

    @property
    def lengths(self) -> Longs:
        """The bytes of each entry."""
        return self._length

    def by_file(self) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """Yield each file that has entries, with their rows."""
        for number, path in enumerate(self.files):
            rows = np.flatnonzero(self._file == number)
            if len(rows):
                yield path, rows

    def entry(self, row: int) -> LogEntry:
        """Read the entry of a row."""
        path, position, length = self.files[self._file[row]], int(self._position[row]), int(self._length[row])
        mapped = self.system.directory.mapped(path)
        inside = 0 <= position <= mapped.size - length
        data = mapped.bytes(position, position + length) if inside else b""
        return LogEntry(int(self.index[row]), int(self.term[row]), bool(self.valid[row]), path, int(self._start[row]), data)

    def source(self, row: int) -> tuple[str, int]:
        """Return the file of the entry of a row, and the position of its record or place there."""
        return self.files[self._file[row]], int(self._start[row])

    def blocks(self) -> Iterator[tuple[Bytes, int, Longs, Longs]]:
        """Yield the entries to replay, in order, as blocks of one file: its bytes, the first row, position and length of each entry."""
        start = int(np.searchsorted(self.index, self.first_replayed))
        borders = [start, *(np.flatnonzero(np.diff(self._file[start:])) + start + 1).tolist(), len(self)]
        for low, high in pairwise(borders):
            mapped = self.system.directory.mapped(self.files[int(self._file[low])]) if low < high else None
            for first in range(low, high, _BLOCK):
                assert mapped is not None
                rows = slice(first, min(first + _BLOCK, high))
                position, length = self._position[rows], self._length[rows]
                data = mapped.load(int(position.min()), min(mapped.size, int((position + length).max())))
                yield data, first, np.ascontiguousarray(position), np.ascontiguousarray(length)

    def spans(self, rows: NDArray[np.intp]) -> Iterator[tuple[Bytes, NDArray[np.intp], Longs, Longs]]:
        """Yield the entries of these rows as blocks of one file: its bytes, which of the rows, position and length of each entry."""
        order = np.lexsort((self._position[rows], self._file[rows]))
        position, file = self._position[rows[order]], self._file[rows[order]]
        apart = np.flatnonzero((np.diff(file) != 0) | (np.diff(position) > _APART)) + 1
        for low, high in pairwise([0, *apart.tolist(), len(order)]):
            for first in range(low, high, _BLOCK):
                here = order[first : min(first + _BLOCK, high)]
                at, length = self._position[rows[here]], self._length[rows[here]]
                mapped = self.system.directory.mapped(self.files[int(file[low])])
                yield mapped.load(int(at[0]), min(mapped.size, int((at + length).max()))), here, at, length

    def entries(self) -> Iterator[LogEntry]:
        """Yield the entries to replay, in order, past gaps."""
        for row in range(int(np.searchsorted(self.index, self.first_replayed)), len(self)):
            yield self.entry(row)


class RaftDirectory:
    """A Ra system: the members that share write-ahead logs. place: its directory, relative to directory. damage: of shared files."""

    def __init__(self, directory: ReadOnlyDirectory, place: str) -> None:
        self.directory = directory
        self.place = place
        self.damage: list[Damage] = []

    def entries(self, place: str) -> list[DirectoryEntry]:
        """Return the entries of a directory; none if it cannot be listed, which is a finding."""
        try:
            return self.directory.entries(place)
        except CannotOpenError as error:
            self.damage.append(Damage(place, 0, 0, Kind.UNREADABLE, str(error)))
            return []

    def read(self, path: str, limit: int, damage: list[Damage]) -> bytes | None:
        """Read a file; None if it is not there or cannot be read, which is a finding."""
        try:
            return self.directory.read(path, limit)
        except CannotOpenError as error:
            damage.append(Damage(path, 0, 0, Kind.UNREADABLE, str(error)))
            return None

    @cached_property
    def uids(self) -> tuple[str, ...]:
        """The directories of members, known to the node or not; of scattered parts also members that only the logs name."""
        return tuple(sorted({*self._directories, *self.logged()})) if self.scattered else self._directories

    @property
    def scattered(self) -> bool:
        """Whether these are parts of a node's directory, so that others, with acknowledgements, may be missing."""
        return isinstance(self.directory, AliasDirectory)

    @cached_property
    def _directories(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries(self.place) if entry.is_directory)

    def _objects(self, name: str) -> tuple[tuple[Term, ...], ...]:
        path = f"{self.place}/{name}" if self.place else name
        data = self.read(path, MAX_DETS_BYTES, self.damage)
        if data is None:
            return ()
        table = dets.read_table(data, path)
        self.damage += table.damage
        return table.objects

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of the clusters by UID, as names.dets has them: {Name, UID}, and the other way round. A member not in it is unknown to
        the node. Of a UID that several have it is the last one, with a finding."""
        names: dict[str, str] = {}
        for item in self._objects("names.dets"):
            if len(item) == 2:
                name, uid = (item[1], item[0]) if isinstance(item[0], bytes) else item
                if isinstance(name, Atom) and isinstance(uid, bytes):
                    before = names.get(uid.decode("latin-1"), str(name))
                    if before != name:
                        detail = f"Queues {before} and {name} both have the member {uid.decode('latin-1')}: its log is of one of them."
                        self.damage.append(Damage(f"{self.place}/names.dets", 0, 0, Kind.UNKNOWN_MEMBER, detail))
                    names[uid.decode("latin-1")] = str(name)
        return names

    @cached_property
    def meta(self) -> dict[str, Meta]:
        """What meta.dets has, by UID."""
        members: dict[str, Meta] = {}
        for item in self._objects("meta.dets"):
            if len(item) == 4 and isinstance(item[0], bytes):
                numbers = [value if type(value) is int else 0 for value in (item[1], item[3])]
                members[item[0].decode("latin-1")] = Meta(*numbers)
        return members

    @cached_property
    def write_ahead_logs(self) -> tuple[tuple[str, WalRecords], ...]:
        """The write-ahead logs with their paths, in the order in which they were written."""
        logs = []
        names = [entry.name for entry in self.entries(self.place) if not entry.is_directory and WAL_NAME.fullmatch(entry.name)]
        for name in sorted(names, key=lambda name: int(name.partition(".")[0], 16)):
            path = f"{self.place}/{name}" if self.place else name
            try:
                mapped = self.directory.mapped(path)
                read = read_wal(
                    mapped.load(0, mapped.size), path, (uid.encode("latin-1", "replace") for uid in (*self._directories, *self.names))
                )
            except CannotOpenError as error:
                self.damage.append(Damage(path, 0, 0, Kind.UNREADABLE, str(error)))
                continue
            self.damage += read.damage
            logs.append((path, read))
        return tuple(logs)

    def logged(self) -> set[str]:
        """Return the UIDs of which there are records in the write-ahead logs: also those of deleted queues."""
        return {uid.decode("latin-1") for _, wal in self.write_ahead_logs for uid in wal.uids}

    def member(self, uid: str, *, wal: bool = True, ended: bool = False) -> MemberLog:
        """Return the log of a member, with or without what the write-ahead logs have of it, or up to where they end for a node."""
        return MemberLog(self, uid, wal=wal, ended=ended)


def raft_systems(directory: ReadOnlyDirectory, below: str) -> list[RaftDirectory]:
    """Return the Ra systems below a directory such as `quorum`: one for each node that wrote there."""
    try:
        return [RaftDirectory(directory, f"{below}/{entry.name}") for entry in directory.entries(below) if entry.is_directory]
    except CannotOpenError:
        return []
