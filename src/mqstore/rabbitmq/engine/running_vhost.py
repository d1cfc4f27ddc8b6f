"""A vhost while this process has it open for writing: its files, lock, queues and message store.

`start_vhost` makes one; `write_side_files` leaves what a clean stop leaves.

A start takes, in the broker's order: directories, side files of the last stop, queues, message store.

    0. the vhost's directory is locked against other users of this engine. A broker ignores this lock, so none must be running
    1. the terms of a clean stop are read from `recovery.dets`; then that file, `clean.dot` and the `.ets` files are deleted
    2. transient messages are discarded: `msg_store_transient`
    3. every directory under `queues/` is read; its live entries count references to the message store
    4. the message store is scanned
    5. entries without a message are dropped, and the queues are repaired on disk

A broker deletes the directories of unknown queues; this engine keeps all of them, even those without a name.

The side files of a clean stop are as a broker leaves them:

    recovery.dets         for each queue its numbers, counts and reference
    clean.dot             the references of all queues; if recovery.dets has the same ones, the two tables are trusted
    msg_store_index.ets   for each stored message its reference count, file, offset and size
    file_summary.ets      for each message file its size, its referenced bytes and its neighbours

A broker that finds all four starts without checking anything. `recovery.dets` is written last, and removed first at a start, so that
a crash at any time leaves tables that are either correct or ignored. Without them a broker logs that it rebuilds its indices from
scratch, and scans the message store.

This engine scans at every start and uses only the terms in `recovery.dets`.

Format: docs/formats/rabbitmq.md, sections 2, 7, 8 and 15.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import TargetError, UnsupportedError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory, make_root
from mqstore.files.locking import LockedDirectory, LockHeldError
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.live_index_v1 import LiveIndexV1, recover_v1
from mqstore.rabbitmq.engine.live_index_v2 import LiveIndexV2, recover_v2
from mqstore.rabbitmq.engine.live_message_store import LiveMessageStore, start_message_store
from mqstore.rabbitmq.engine.live_queue import LiveIndex, LiveQueue
from mqstore.rabbitmq.engine.message_locations import MessageLocations
from mqstore.rabbitmq.erlang.dets import read_objects
from mqstore.rabbitmq.erlang.disk_log import CLOSED, END_OF_TABLE, ITEM, MAGIC, write_log
from mqstore.rabbitmq.erlang.terms import Atom, Term
from mqstore.rabbitmq.format import vhost_config
from mqstore.rabbitmq.format.names import parse_queue_name_file, split_priority, vhost_directory
from mqstore.rabbitmq.format.recovery_terms import QueueTerms, read_terms, write_clean_dot, write_terms

STORE = "msg_store_persistent"
TRANSIENT = "msg_store_transient"
RECOVERY = "recovery.dets"
MAX_INTEGER = (1 << 31) - 1  # of INTEGER_EXT, which is signed
INTEGER = 98
_TERM = b"\x83h\x06d\x00\x0cmsg_locationm\x00\x00\x00\x10"
_LENGTH = len(_TERM) + 16 + 4 * 5
_HEAD = _LENGTH.to_bytes(4, "big") + ITEM + _TERM
_OBJECT = np.dtype([("head", np.uint8, len(_HEAD)), ("hi", ">u8"), ("lo", ">u8"), ("numbers", [("tag", np.uint8), ("value", ">u4")], 4)])
SIDE_FILES = ("clean.dot", "file_summary.ets", "msg_store_index.ets")


@dataclass(slots=True)
class RunningVhost:
    """A vhost that is open for writing.

    place: its directory, relative to the root. entries: N, the segment entry count of version 1. queues: by directory name.
    notes: what the start dropped or repaired, one sentence each.
    """

    directory: DurableDirectory
    reading: ReadOnlyDirectory
    vhost: bytes
    place: str
    entries: int
    config: EngineConfig
    store: LiveMessageStore
    queues: dict[str, LiveQueue]
    lock: LockedDirectory
    notes: list[str] = field(default_factory=list)
    open: bool = True

    def close(self) -> None:
        """Close the files and release the lock."""
        self.open = False
        self.directory.close()
        self.lock.close()

    def named(self) -> Iterator[tuple[str, int | None, int]]:
        """Yield (name, highest priority level or None, version) of each queue whose `.queue_name` names it."""
        queues: dict[bytes, tuple[int | None, int]] = {}
        for directory, queue in self.queues.items():
            content = self.reading.read(f"{queue.index.place}/.queue_name", 4097)
            split = None if content is None else parse_queue_name_file(content, directory)
            if split is None:
                continue
            name, level = split_priority(split.name)
            before = queues.get(name, (None, 0))[0]
            queues[name] = (None if level is None else max(level, before or 0)), queue.index.version
        for name, (level, version) in sorted(queues.items()):
            yield name.decode("utf-8", "surrogateescape"), level, version

    def new_index(self, directory: str, version: int) -> LiveIndex:
        """Return an empty index for the queue directory of this name, which does not exist yet."""
        place = f"{self.place}/queues/{directory}"
        if version == 2:
            return LiveIndexV2(self.directory, self.reading, place, self.config)
        return LiveIndexV1(self.directory, self.reading, place, self.entries, self.config)


def start_vhost(path: str | os.PathLike[str], vhost: bytes, config: EngineConfig) -> RunningVhost:
    """Create a vhost in a `msg_stores` directory, or recover the existing one."""
    make_root(path)
    directory = DurableDirectory(path, recorder=config.recorder)
    place = f"vhosts/{vhost_directory(vhost)}"
    lock: LockedDirectory | None = None
    try:
        directory.make_directory(place)
        try:
            lock = LockedDirectory(directory, place)
        except LockHeldError:
            raise TargetError(f"{directory.path(place)} is already open for writing; close the queues there and try again") from None
        return _start_vhost(directory, ReadOnlyDirectory(path), vhost, place, config, lock)
    except BaseException:
        if lock is not None:
            lock.close()
        directory.close()
        raise


def _start_vhost(
    directory: DurableDirectory, reading: ReadOnlyDirectory, vhost: bytes, place: str, config: EngineConfig, lock: LockedDirectory
) -> RunningVhost:
    entries = _prepare(directory, reading, place, vhost, config)
    terms = take_terms(directory, reading, place)
    directory.remove_tree(f"{place}/{TRANSIENT}")
    indexes: dict[str, tuple[LiveIndex, int, NDArray[np.int64]]] = {}
    locations = MessageLocations()
    for entry in reading.entries(f"{place}/queues"):
        if not entry.is_directory or reading.path(f"{place}/queues/{entry.name}").is_symlink():
            continue
        at = f"{place}/queues/{entry.name}"
        if _version(reading, at, config) == 2:
            indexes[entry.name] = recover_v2(directory, reading, at, config, locations)
        else:
            indexes[entry.name] = recover_v1(directory, reading, at, entries, config, locations)
    store = start_message_store(directory, reading, f"{place}/{STORE}", config.msg_store_file_size_limit, locations)
    started = RunningVhost(directory, reading, vhost, place, entries, config, store, {}, lock)
    for name, (live, size, dropped) in indexes.items():
        missing, bodies = live.drop(dropped, locations)
        if missing:
            started.notes.append(f"{live.place}: {missing} entries were dropped because their messages are not in the message store")
        started.queues[name] = _queue(live, size - bodies, terms.get(name))
    locations.drop_unplaced()
    return started


def _prepare(directory: DurableDirectory, reading: ReadOnlyDirectory, place: str, vhost: bytes, config: EngineConfig) -> int:
    """Create the directories and files of a vhost and return N."""
    there = bool(reading.entries(f"{place}/queues"))
    text = reading.read(f"{place}/.config")
    if text is not None:
        entries = vhost_config.segment_entry_count(text)
    elif there:
        entries = vhost_config.ENTRIES_WITHOUT_CONFIG
    else:
        entries = config.queue_index_segment_entry_count
    directory.make_directory(f"{place}/queues")
    directory.make_directory(f"{place}/{STORE}")
    if text is None:
        directory.write_small(f"{place}/.config", vhost_config.config_file(entries))
    if not reading.exists(f"{place}/.vhost"):
        directory.write_small(f"{place}/.vhost", vhost)
    for above in ("", "vhosts", place):
        directory.sync_directory(above)
    return entries


def _version(reading: ReadOnlyDirectory, place: str, config: EngineConfig) -> int:
    """Return the version of the files of a queue; without any, the version in `.queue_name`."""
    files = [entry for entry in reading.entries(place) if entry.is_file]
    two = any(entry.name.endswith(".qi") for entry in files)
    one = any(entry.name.endswith(".idx") or (entry.name == "journal.jif" and entry.size) for entry in files)
    if one and two:
        raise UnsupportedError(f"{place} has files of both versions from an interrupted conversion; run `mqstore convert` first")
    name = reading.read(f"{place}/.queue_name", 4097) or b""
    if not one and not two:
        return 2 if name.endswith(b"\nINDEX: v2\n") else 1
    return 2 if two else 1


def _queue(index: LiveIndex, size: int, terms: QueueTerms | None) -> LiveQueue:
    next_seq = next_deliver = index.bound
    if terms is not None and terms.next_seq is not None and terms.next_seq >= _end_of_entries(index):
        next_seq, next_deliver = terms.next_seq, min(terms.next_deliver or 0, terms.next_seq)
    return LiveQueue(index, ready=index.unacked, next_seq=next_seq, next_deliver=next_deliver, bytes_ready=size)


def _end_of_entries(index: LiveIndex) -> int:
    """Return the sequence id after the last live entry."""
    if not index.segments:
        return 0
    last = index.live_from(max(index.segments) * index.entries)
    return int(last[-1]) + 1 if len(last) else 0


def take_terms(directory: DurableDirectory, reading: ReadOnlyDirectory, place: str) -> dict[str, QueueTerms]:
    """Return the terms by queue directory, and remove the side files durably."""
    content = reading.read(f"{place}/{RECOVERY}")
    terms = {} if content is None else read_terms(read_objects(content))
    removed = False
    for name in (RECOVERY, *(f"msg_store_persistent/{each}" for each in SIDE_FILES)):
        if reading.exists(f"{place}/{name}"):
            directory.remove(f"{place}/{name}")
            removed = True
    if removed:
        directory.sync_directory(place)
        directory.sync_directory(f"{place}/msg_store_persistent")
    return terms


def write_side_files(started: RunningVhost) -> None:
    """Write the side files from which the next start continues. Everything else must be on disk already."""
    terms = {name: _queue_terms(queue) for name, queue in started.queues.items()}
    store, directory = started.store, started.directory
    if _sizes_match(store, started.reading):
        directory.write_small(f"{store.place}/file_summary.ets", _file_summary(store))
        _write_index(store, directory)
        references = [noted.reference for noted in terms.values() if noted.reference is not None]
        directory.write_small(f"{store.place}/clean.dot", write_clean_dot(references))
    directory.write_small(f"{started.place}/{RECOVERY}", write_terms(terms))


def _sizes_match(store: LiveMessageStore, reading: ReadOnlyDirectory) -> bool:
    """Return whether the tables can describe the store: no bytes after the records of a file, and no number above four bytes."""
    sizes = {entry.name: entry.size for entry in reading.entries(store.place)}
    return all(
        sizes.get(f"{number}.rdq") == summary.size and number <= MAX_INTEGER and summary.size <= MAX_INTEGER
        for number, summary in store.files.items()
    )


def _table(name: str, kind: str, count: int) -> tuple[list[Term], list[Term]]:
    """Return the first and last items of a saved table, as `ets:file2tab` requires them."""
    properties: dict[str, Term] = {
        "name": Atom(name),
        "type": Atom(kind),
        "protection": Atom("public"),
        "named_table": Atom("false"),
        "keypos": 2,
        "size": count,
        "compressed": Atom("false"),
        "read_concurrency": Atom("false"),
        "write_concurrency": Atom("false"),
        "major_version": 1,
        "minor_version": 0,
        "extended_info": [Atom("object_count")],
    }
    return [tuple((Atom(key), value) for key, value in properties.items())], [[END_OF_TABLE, [(Atom("count"), count)]]]


def _file_summary(store: LiveMessageStore) -> bytes:
    numbers = sorted(store.files)
    undefined = Atom("undefined")
    rows: list[Term] = []
    for left, number, right in zip([undefined, *numbers], numbers, [*numbers[1:], undefined], strict=False):
        summary = store.files[number]
        rows.append((Atom("file_summary"), number, summary.valid, left, right, summary.size, Atom("false"), 0))
    first, last = _table("rabbit_msg_store_file_summary", "ordered_set", len(rows))
    return write_log([*first, *rows, *last])


def _write_index(store: LiveMessageStore, directory: DurableDirectory) -> None:
    """Write the table of all stored messages, block by block, because it may be large."""
    name = f"{store.place}/msg_store_index.ets"
    first, last = _table("rabbit_msg_store_ets_index", "set", len(store.locations))
    directory.create(name)
    directory.append(name, write_log(first))
    for rows in store.locations.rows():
        directory.append(name, _encode_items(rows))
    directory.append(name, write_log(last)[len(MAGIC + CLOSED) :])
    directory.sync(name)


def _encode_items(rows: NDArray[np.uint64]) -> NDArray[np.void]:
    """Return items `{msg_location, Id, References, File, Offset, Size}`, all of one length, because each number has four bytes."""
    items = np.empty(len(rows), _OBJECT)
    items["head"] = np.frombuffer(_HEAD, np.uint8)
    items["hi"], items["lo"] = rows[:, 0], rows[:, 1]
    low = np.uint64((1 << 32) - 1)
    numbers = (rows[:, 2] & low, rows[:, 2] >> np.uint64(32), rows[:, 3] >> np.uint64(32), rows[:, 3] & low)
    for number, column in enumerate(numbers):
        items["numbers"][:, number]["tag"] = INTEGER
        items["numbers"][:, number]["value"] = column
    return items


def _queue_terms(queue: LiveQueue) -> QueueTerms:
    counts = queue.index.unacked_by_segment()
    v1, v2 = (counts, None) if queue.index.version == 1 else (None, counts)
    return QueueTerms(v1, v2, queue.next_seq, queue.next_deliver, os.urandom(16), queue.persistent, queue.persistent_bytes)
