r"""Streams of a node: one directory is one replica, its segments in the order of their names.

    stream/<vhost>_<queue>_<created, ns>/     characters outside A-Z a-z 0-9 - _ = are _
        <first offset, 20 digits>.segment
        <first offset, 20 digits>.index

The listing is all that is kept of a stream: numbers, as arrays. A segment is opened when it is read, one at a time.

Format: docs/formats/rabbitmq-streams.md, section 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.format.layout import STREAM_FILE, bytes_of, own_entries, small_file
from mqstore.rabbitmq.streams.index import RECORD, Index, read_index
from mqstore.rabbitmq.streams.segment import HEADER, Chunks, Longs, chunk, entry, walk_segment
from mqstore.rabbitmq.streams.tracking import Tracking, track

ROOT = "stream"
_LAST_OFFSET = (1 << 63) - 1
SEGMENT_BYTES = 500_000_000  # of a full segment, if nothing else is said
SEGMENT_CHUNKS = 256_000  # of a segment
SMALL = 64 << 10  # bytes of a file up to which it is read; a larger one is mapped
MOST_STRAYS = 100  # names that are kept of files that are not a stream's


class Stream:
    """One replica of a stream, read-only. place: its directory, relative to the root. mends_first: whether its node is a 4.0 or later.

    first, size, index_size: of each segment: first offset, bytes, bytes of its index (-1: there is none). lone: first offsets of indexes
    without a segment. strays: names of what is not a stream's file.
    """

    def __init__(self, directory: ReadOnlyDirectory, place: str, *, mends_first: bool = True) -> None:
        self.directory = directory
        self.mends_first = mends_first
        self.place = place
        self.name = place.rpartition("/")[2] or directory.root.name
        segments: dict[int, int] = {}
        indexes: dict[int, int] = {}
        strays: list[str] = []
        for file in own_entries(directory, place):
            parsed = STREAM_FILE.fullmatch(file.name)
            if parsed is None or not file.is_file or int(parsed[1]) > _LAST_OFFSET:
                strays.append(file.name)
            else:
                (segments if parsed[2] == "segment" else indexes)[int(parsed[1])] = file.size
        self.strays = tuple(sorted(strays)[:MOST_STRAYS])
        self.first: Longs = np.array(sorted(segments), np.int64)
        self.size: Longs = np.array([segments[first] for first in self.first.tolist()], np.int64)
        self.index_size: Longs = np.array([indexes.get(first, -1) for first in self.first.tolist()], np.int64)
        self.lone: Longs = np.array(sorted(indexes.keys() - segments.keys()), np.int64)
        self._last_read: tuple[int, Bytes] | None = None  # the last small segment: number and bytes

    def __len__(self) -> int:
        return len(self.first)

    @property
    def first_offset(self) -> int:
        """The first offset that is held: the name of the first segment."""
        return int(self.first[0]) if len(self) else 0

    @property
    def bytes(self) -> int:
        """Bytes of all segments and their indexes."""
        return int(self.size.sum() + np.maximum(self.index_size, 0).sum())

    def _file(self, first: int, ending: str) -> str:
        return f"{self.place}/{first:020}.{ending}" if self.place else f"{first:020}.{ending}"

    def segment_file(self, number: int) -> str:
        """Return the path of a segment, relative to the root."""
        return self._file(int(self.first[number]), "segment")

    def index_file(self, number: int) -> str:
        """Return the path of the index of a segment."""
        return self._file(int(self.first[number]), "index")

    def lone_index_file(self, first: int) -> str:
        """Return the path of an index without a segment."""
        return self._file(first, "index")

    def open(self, number: int) -> tuple[Bytes, tuple[Damage, ...]]:
        """Return the bytes of a segment; none, and the finding, if it cannot be read. The last small one is not read again."""
        last = self._last_read
        if last is not None and last[0] == number:
            return last[1], ()
        data, findings = self._bytes_of(self.segment_file(number), int(self.size[number]))
        if not findings and len(data) <= SMALL:
            self._last_read = number, data
        return data, findings

    def _bytes_of(self, file: str, size: int) -> tuple[Bytes, tuple[Damage, ...]]:
        """Return the bytes of a file, in memory if it is small, else as a map. size: as it was listed."""
        raw = small_file(self.directory, file, SMALL + 1) if size <= SMALL else None
        if raw is None or len(raw) > SMALL:
            return bytes_of(self.directory, file)
        return np.frombuffer(raw, np.uint8), ()

    def index(self, number: int) -> tuple[Index, tuple[Damage, ...]]:
        """Return the index of a segment; an empty one if there is none."""
        if self.index_size[number] < 0:
            return read_index(np.empty(0, np.uint8)), ()
        data, findings = self._bytes_of(self.index_file(number), int(self.index_size[number]))
        return read_index(data), findings

    def lone_index(self, first: int) -> tuple[Index, tuple[Damage, ...]]:
        """Return an index without a segment. first: of `lone`."""
        data, findings = bytes_of(self.directory, self.lone_index_file(first))
        return read_index(data), findings

    def times(self) -> tuple[int, int] | None:
        """Return the times of the first and the last chunk by its indexes, in milliseconds since 1970; None if these have no chunk."""
        ends = []
        for numbers, row in ((range(len(self)), 0), (range(len(self) - 1, -1, -1), -1)):
            for number in numbers:
                records = self.index(number)[0].records
                if len(records):
                    ends.append(int(records["timestamp"][row]))
                    break
        return (ends[0], ends[1]) if len(ends) == 2 else None

    def after(self, number: int) -> int | None:
        """Return the first offset of the segment after this one; None for the last."""
        return int(self.first[number + 1]) if number + 1 < len(self) else None

    def walk(self, number: int, data: Bytes) -> Iterator[tuple[Chunks, list[Damage]]]:
        """Yield the chunks of a segment. data: its bytes, from `open`."""
        yield from walk_segment(data, int(self.first[number]), self.after(number), file=self.segment_file(number))

    def segment_of(self, offset: int) -> int:
        """Return the number of the segment that holds an offset, if any does; -1 for one before the first."""
        return int(np.searchsorted(self.first, offset, "right")) - 1

    def segments_between(self, start: int | None, stop: int | None) -> range:
        """Return the numbers of the segments that may hold offsets from start up to and without stop; None: no limit."""
        begin = 0 if start is None else max(0, self.segment_of(start))
        return range(begin, max(begin, len(self) if stop is None else int(np.searchsorted(self.first, stop, "left"))))

    def tracking(self) -> Tracking:
        """Return what consumers and publishers have stored: a node has all of it from the last segment."""
        state = Tracking()
        if len(self):
            data, _ = self.open(len(self) - 1)
            for chunks, _ in self.walk(len(self) - 1, data):
                track(state, data, chunks)
        return state

    def is_full(self, most_bytes: int) -> bool:
        """Return whether the next chunk begins a new segment. most_bytes: x-stream-max-segment-size-bytes."""
        return len(self) > 0 and bool(self.size[-1] >= most_bytes or self.index_size[-1] >= len(HEADER) + SEGMENT_CHUNKS * RECORD.itemsize)

    def limited_to(self, most_bytes: int) -> int:
        """Return the number of the first segment that is left when a new one begins. most_bytes: x-max-length-bytes.

        The new one begins with what clients have stored: a node that knows any begins it for the first client, else for the next message.
        """
        begun = len(HEADER + chunk(0, [entry(bytes(self.tracking().size))]))
        return len(self) - int(np.searchsorted(begun + np.cumsum(self.size[::-1]), most_bytes, "right"))

    def end(self) -> int:
        """Return the offset after the last valid chunk. Of the last segment, what its index has is not read, but for the last chunk."""
        for number in range(len(self) - 1, -1, -1):
            data, _ = self.open(number)
            known = self.index(number)[0].records["position"].astype(np.int64)
            for start in (*known[-1:].tolist(), len(HEADER)):
                following = -1
                for chunks, _ in walk_segment(data, int(self.first[number]), self.after(number), start=start):
                    valid = np.flatnonzero(chunks.readable)
                    if len(valid):
                        following = int(chunks.id[valid[-1]] + chunks.records[valid[-1]])
                if following >= 0:
                    return following
            if len(data) <= len(HEADER):  # it was just made
                return int(self.first[number])
        return self.first_offset

    def stray_findings(self) -> list[Damage]:
        """Return a finding for each file that is not a stream's."""
        prefix = f"{self.place}/" if self.place else ""
        return [Damage(prefix + name, 0, 0, Kind.STRAY_FILE, "this is not a file of a stream; it is not read") for name in self.strays]


@dataclass(frozen=True, slots=True)
class NamedStream:
    """A stream of a node. vhost: None if no definition names its directory; then queue is the name of the directory."""

    vhost: str | None
    queue: str
    stream: Stream

    def __str__(self) -> str:
        if self.vhost is None:
            return f"the stream in directory {self.queue!r}"
        return f"stream {self.queue!r} of vhost {self.vhost!r}"


def named_streams(directory: ReadOnlyDirectory, names: Mapping[str, tuple[str, str]], *, mends_first: bool = True) -> list[NamedStream]:
    """Return the streams of a node's data directory by vhost and queue. names: vhost and queue by the name of the directory."""
    streams = []
    for stream in find_streams(directory, mends_first=mends_first):
        vhost, queue = names.get(stream.name, (None, stream.name))
        if stream.place:  # not the directory itself
            streams.append(NamedStream(vhost, queue, stream))
    return sorted(streams, key=lambda named: (named.vhost or "", named.queue, named.stream.name))


def find_streams(directory: ReadOnlyDirectory, *, mends_first: bool = True) -> list[Stream]:
    """Return the streams of a node's data directory, by the name of their directories, or that of a directory that is one."""
    if directory.is_directory(ROOT):
        places = [f"{ROOT}/{entry.name}" for entry in own_entries(directory, ROOT) if entry.is_directory]
        return [Stream(directory, place, mends_first=mends_first) for place in places]
    try:
        names = [entry.name for entry in directory.entries() if entry.is_file]
    except CannotOpenError:
        return []
    return [Stream(directory, "")] if any(STREAM_FILE.fullmatch(name) for name in names) else []
