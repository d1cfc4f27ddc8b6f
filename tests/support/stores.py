"""Hand-made stores: records in plain Python, laid out as by a broker, with queues and index files on request.

    store = Store(tmp_path)                                         # nothing is written yet
    store.put(message("orders", keys="k1"))                         # offsets and times are assigned as by a broker
    store.write()                                                   # commitlog/, consumequeue/, index/, checkpoint

Nothing here uses the kernels or the writers of the package: queue entries and index files come from the format alone.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, dispatch_request
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.checkpoint import Checkpoint
from mqstore.rocketmq.format.checkpoint import encode as encode_checkpoint
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.format.record import Record, blank, encode

BEGIN = 1_640_995_200_000  # 2022-01-01T00:00:00Z
HOST = "10.1.2.3:10911"


def message(topic: str, body: bytes = b"hello", *, keys: str | None = None, tags: str | None = None, **fields: object) -> Record:
    """Return a record as a producer requests it; offsets and times are assigned when it is put."""
    properties = {name: text for name, text in (("KEYS", keys), ("TAGS", tags)) if text is not None}
    made = Record(topic, body, born_host="10.9.8.7:5000", store_host=HOST, properties=record.encode_properties(properties))
    return replace(made, **fields)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Put:
    """A record at its position in the log."""

    record: Record
    raw: bytes

    @property
    def offset(self) -> int:
        return self.record.physical_offset

    @property
    def time(self) -> int:
        return self.record.store_timestamp


@dataclass
class Store:
    """A store in memory. indexed: number of its records that the index covers (all if None); listed: number that the queues contain."""

    root: Path
    file_size: int = 65536
    queue_entries: int = 100  # entries of a consume queue file
    slots: int = 100
    positions: int = 400
    start: int = 0  # physical offset of the first log file
    rules: DispatchRules = field(default_factory=DispatchRules)
    indexed: int | None = None
    listed: int | None = None
    with_index: bool = True
    abort: bool = False
    puts: list[Put] = field(default_factory=list)
    files: dict[int, bytearray] = field(default_factory=dict)
    next_queue_offset: dict[tuple[str, int], int] = field(default_factory=dict)

    def put(self, *messages: Record, at: int | None = None) -> Put:
        """Append messages. at: store time of the first in milliseconds after BEGIN; by default one after the previous message."""
        for number, each in enumerate(messages):
            after = self.puts[-1].time + 1 if self.puts else BEGIN
            time = after if at is None else BEGIN + at + number
            queue = (each.topic, each.queue_id)
            queue_offset = self.next_queue_offset.get(queue, 0)
            self.next_queue_offset[queue] = queue_offset + 1
            base, data = self._room(len(encode(each)))
            made = replace(
                each,
                physical_offset=base + len(data),
                queue_offset=queue_offset,
                store_timestamp=time,
                born_timestamp=max(-(2**63), time - 1),
            )
            raw = encode(made)
            data += raw
            self.puts.append(Put(made, raw))
        return self.puts[-1]

    def _room(self, size: int) -> tuple[int, bytearray]:
        base = max(self.files, default=self.start)
        data = self.files.setdefault(base, bytearray())
        if len(data) + size + 8 > self.file_size:
            room = self.file_size - len(data)
            data += blank(room) + bytes(room - 8)
            base += self.file_size
            data = self.files[base] = bytearray()
        return base, data

    def write(self) -> Path:
        """Write the directory."""
        for base, data in self.files.items():
            self.write_file(f"commitlog/{base:020d}", bytes(data).ljust(self.file_size, b"\0"))
        self._write_queues()
        if self.with_index:
            for name, raw in self.index_files():
                self.write_file(f"index/{name}", raw)
        time = self.puts[-1].time if self.puts else 0
        self.write_file("checkpoint", encode_checkpoint(Checkpoint(time, time, time)))
        if self.abort:
            self.write_file("abort", b"")
        return self.root

    def write_file(self, relative: str, raw: bytes) -> Path:
        """Write one file of the store."""
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        return path

    def patch(self, relative: str, position: int, raw: bytes) -> None:
        """Change bytes of a written file."""
        with (self.root / relative).open("r+b") as file:
            file.seek(position)
            file.write(raw)

    def patch_log(self, physical_offset: int, raw: bytes) -> None:
        """Change bytes of the written log."""
        base = max(base for base in self.files if base <= physical_offset)
        self.patch(f"commitlog/{base:020d}", physical_offset - base, raw)

    def entry(self, put: Put) -> tuple[str, int]:
        """Return (queue file, position in it) of a record's queue entry."""
        at = put.record.queue_offset * 20
        size = self.queue_entries * 20
        return f"consumequeue/{put.record.topic}/{put.record.queue_id}/{at - at % size:020d}", at % size

    def _write_queues(self) -> None:
        queues: dict[tuple[str, int], bytearray] = {}
        for put in self.puts[: self.listed]:
            if put.record.sys_flag & record.TRANSACTION_MASK in (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT):
                run = queues.setdefault((put.record.topic, put.record.queue_id), bytearray())
                at = 20 * put.record.queue_offset
                run[len(run) :] = bytes(max(0, at - len(run)))
                run[at : at + 20] = struct.pack(">qiq", put.offset, len(put.raw), dispatch_request(put.record, self.rules).tags_code)
        size = 20 * self.queue_entries
        for (topic, queue_id), run in queues.items():
            for at in range(0, len(run), size):
                self.write_file(f"consumequeue/{topic}/{queue_id}/{at:020d}", bytes(run[at : at + size]).ljust(size, b"\0"))

    def keys(self) -> Iterator[tuple[int, Put]]:
        """Yield (hash, record) of every index entry, in order."""
        for put in self.puts[: self.indexed]:
            for key in dispatch_request(put.record, self.rules).keys:
                yield index_hash(put.record.topic, key), put

    def index_files(self) -> Iterator[tuple[str, bytes]]:
        """Yield (name, bytes) of the index files that hold `keys`."""
        rows = list(self.keys())
        room = self.positions - 1
        inherited = 0
        for low in range(0, len(rows), room):
            part = rows[low : low + room]
            yield index_name(part[0][1].time), index_file(part, self.slots, self.positions, inherited)
            inherited = part[-1][1].time


def index_name(time: int) -> str:
    """Return a store time as `yyyyMMddHHmmssSSS`."""
    return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time):%Y%m%d%H%M%S}{time % 1000:03d}"


def index_file(rows: Sequence[tuple[int, Put]], slots: int, positions: int, inherited: int = 0) -> bytes:
    """Return the bytes of one index file. inherited: the end time of the previous file, from which the first entry's seconds count."""
    newest: dict[int, int] = {}
    entries = bytearray(20)
    begin = inherited
    for number, (key_hash, put) in enumerate(rows, 1):
        seconds = max(0, put.time - begin) // 1000 if begin > 0 else 0
        entries += struct.pack(">iqii", key_hash, put.offset, seconds, newest.get(key_hash % slots, 0))
        newest[key_hash % slots] = number
        if number == 1:
            begin = put.time
    first, last = rows[0][1], rows[-1][1]
    header = struct.pack(">qqqqii", first.time, last.time, first.offset, last.offset, len(newest), len(rows) + 1)
    table = b"".join(struct.pack(">i", newest.get(slot, 0)) for slot in range(slots))
    return header + table + bytes(entries).ljust(20 * positions, b"\0")


def store_with_random_keys(root: Path, count: int, slots: int, positions: int, seed: int = 1) -> Store:
    """Write a store of `count` messages in three topics with up to three of `count` keys each."""
    chosen = random.Random(seed)
    store = Store(root, file_size=1 << 16, slots=slots, positions=positions)
    for _ in range(count):
        store.put(message(f"t{chosen.randrange(3)}", keys=" ".join(f"k{chosen.randrange(count)}" for _ in range(chosen.randrange(4)))))
    store.write()
    return store


def store_contents(store: Path) -> dict[str, bytes]:
    """Return every file of a store; index files by rank, since their names depend on the clock."""
    found = {}
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        name = path.relative_to(store).as_posix()
        found[f"index/{len(found)}" if name.startswith("index/") else name] = path.read_bytes()
    return found
