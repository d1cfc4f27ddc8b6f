"""The message store of a vhost in memory, and how it reaches the disk: `msg_store_persistent/<k>.rdq` while queues are written.

A message that several queues hold is stored once and counted. Records are appended to the file with the highest number; when that has
reached the limit (16 MiB) it is synced, and the next number begins. What no queue refers to any more is garbage in its file:

* a file, not the last one, without anything but garbage is deleted;
* when more than half of all bytes is garbage and there are more than two files' worth, the lowest pair of neighbours whose live bytes
  fit into one file is merged: the live records of both stand in the lower one, in order, and the higher one goes.

The broker merges in place, through `<k>.rdt`, and loses records when it dies in the middle and starts again (section 6.7). Here the merged
file is written beside the old one, synced and renamed over it; only then the higher one is deleted. Whatever a crash leaves is a store
that the broker and this engine recover whole, records in two files at worst.

Not on disk are the counts: after a stop they are the live index entries that name the id.

Format: docs/formats/rabbitmq.md, section 6.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from itertools import pairwise

from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rabbitmq import rdq

__all__ = ["FileSummary", "LiveStore", "Location"]

MOST_AT_ONCE = 8 << 20  # bytes of records that are kept back until the next sync
RECORD_EXTRA = 25  # size, id and end mark
DRAFT = ".mqstore-"


@dataclass(slots=True)
class Location:
    """Where a message is, and how many queues hold it. total: bytes of its record."""

    references: int
    file: int
    offset: int
    total: int


@dataclass(slots=True)
class FileSummary:
    """One file. valid: bytes of records that some queue refers to."""

    valid: int
    size: int


class LiveStore:
    """A message store that is written. place: its directory relative to that of the vhost."""

    def __init__(self, directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, limit: int) -> None:
        self.place = place
        self.limit = limit
        self.locations: dict[bytes, Location] = {}
        self.files: dict[int, FileSummary] = {}
        self.current = -1
        self.merged = 0
        self._directory = directory
        self._reading = reading
        self._buffer = bytearray()  # the end of the current file that is not written yet
        self._synced = True

    def name(self, number: int) -> str:
        return f"{self.place}/{number}.rdq"

    # starting

    def adopt(self, locations: dict[bytes, Location], files: dict[int, FileSummary]) -> None:
        """Take over what a start has found; the highest file becomes the current one."""
        self.locations = locations
        self.files = files
        if not files:
            self._open_new(0)
        self.current = max(self.files)

    def _open_new(self, number: int) -> None:
        self._directory.create(self.name(number))
        self._directory.sync_directory(self.place)
        self.files[number] = FileSummary(0, 0)
        self.current = number

    # messages

    def write(self, message_id: bytes, term: bytes, references: int = 1) -> None:
        """Store a message for so many queues, or count them where it is there already."""
        known = self.locations.get(message_id)
        if known is not None:
            known.references += references
            return
        summary = self.files[self.current]
        total = len(term) + RECORD_EXTRA
        self.locations[message_id] = Location(references, self.current, summary.size, total)
        buffer = self._buffer
        buffer += (len(term) + 16).to_bytes(8, "big")
        buffer += message_id
        buffer += term
        buffer.append(255)
        self._synced = False
        summary.size += total
        summary.valid += total
        if summary.size >= self.limit:
            self._roll()
        elif len(buffer) > MOST_AT_ONCE:
            self._write_out()

    def _roll(self) -> None:
        self.sync()
        finished = self.current
        self._open_new(finished + 1)
        self._drop_if_empty(finished)
        self.collect()

    def remove(self, message_id: bytes) -> None:
        """One queue less holds the message. Garbage is collected by `collect`."""
        known = self.locations.get(message_id)
        if known is None:
            return
        known.references -= 1
        if known.references:
            return
        del self.locations[message_id]
        self.files[known.file].valid -= known.total
        self._drop_if_empty(known.file)

    def read(self, message_id: bytes) -> bytes | None:
        """The term of a stored message, or None where there is none."""
        known = self.locations.get(message_id)
        if known is None:
            return None
        start, stop = known.offset + 24, known.offset + known.total - 1
        if known.file == self.current:
            buffered = self.files[self.current].size - len(self._buffer)
            if known.offset >= buffered:
                return bytes(self._buffer[start - buffered : stop - buffered])
        kept = self._reading.kept(self.name(known.file))
        if kept is not None and kept.size < stop:  # mapped while the file was written
            self._reading.forget(self.name(known.file))
        return self._reading.mapped(self.name(known.file)).bytes(start, stop)

    # reaching the disk

    def _write_out(self) -> None:
        if self._buffer:
            start = self.files[self.current].size - len(self._buffer)
            self._directory.pwrite(self.name(self.current), start, self._buffer)
            self._buffer = bytearray()

    def sync(self) -> None:
        """Bring all records to disk."""
        if self._synced:
            return
        self._write_out()
        self._directory.sync(self.name(self.current))
        self._synced = True

    # garbage

    def _drop_if_empty(self, number: int) -> None:
        if number != self.current and not self.files[number].valid:
            self._delete(number)

    def _delete(self, number: int) -> None:
        self._reading.forget(self.name(number))
        self._directory.remove(self.name(number))
        del self.files[number]

    def collect(self) -> None:
        """Merge neighbours while the broker's two conditions hold and a pair fits."""
        while self._worth_it():
            pair = self._pair()
            if pair is None:
                return
            self._merge(*pair)

    def _worth_it(self) -> bool:
        size = sum(summary.size for summary in self.files.values())
        valid = sum(summary.valid for summary in self.files.values())
        return size > 2 * self.limit and (size - valid) / size > 0.5

    def _pair(self) -> tuple[int, int] | None:
        numbers = sorted(self.files)
        for target, source in pairwise(numbers):
            first, second = self.files[target], self.files[source]
            if source != self.current and first.valid and second.valid and first.valid + second.valid <= self.limit:
                return target, source
        return None

    def _merge(self, target: int, source: int) -> None:
        draft = f"{self.name(target)}{DRAFT}{secrets.token_hex(4)}"
        moved: list[tuple[Location, int]] = []
        size = 0
        self._directory.create(draft)
        for number in (target, source):
            data = self._reading.map(self.name(number)).data
            kept = []
            for offset, total in self._records(number, data):
                message_id = data[offset + 8 : offset + 24].tobytes()
                known = self.locations.get(message_id)
                if known is not None and (known.file, known.offset, known.total) == (number, offset, total):
                    kept.append(data[offset : offset + total].tobytes())
                    moved.append((known, size))
                    size += total
            self._directory.append(draft, b"".join(kept))
        self._directory.sync(draft)
        self._reading.forget(self.name(target))
        self._directory.rename(draft, self.name(target))
        self._directory.sync_directory(self.place)
        for known, offset in moved:
            known.file, known.offset = target, offset
        self.files[target] = FileSummary(size, size)
        self._delete(source)
        self.merged += 1

    def _records(self, number: int, data: Bytes) -> list[tuple[int, int]]:
        """(offset, total) of the records of a finished file, garbage included; where its chain is broken, of the live ones."""
        scan = rdq.strict_scan(data)
        if scan.end != len(data):
            return sorted((known.offset, known.total) for known in self.locations.values() if known.file == number)
        return list(zip(scan.at.tolist(), scan.total.tolist(), strict=True))
