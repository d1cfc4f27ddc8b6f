"""The side files of a clean stop, as a broker leaves them.

    recovery.dets         for each queue its numbers, counts and reference
    clean.dot             the references of all queues; if recovery.dets has the same ones, the two tables are trusted
    msg_store_index.ets   for each stored message its reference count, file, offset and size
    file_summary.ets      for each message file its size, its referenced bytes and its neighbours

A broker that finds all four starts without checking anything. `recovery.dets` is written last, and removed first at a start, so that
a crash at any time leaves tables that are either correct or ignored. Without them a broker logs that it rebuilds its indices from
scratch, and scans the message store.

This engine scans at every start and uses only the terms in `recovery.dets`.

Format: docs/formats/rabbitmq.md, sections 8 and 15.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rabbitmq.engine.live_message_store import LiveMessageStore
from mqstore.rabbitmq.engine.live_queue import LiveQueue
from mqstore.rabbitmq.engine.running_vhost import RunningVhost
from mqstore.rabbitmq.erlang.dets import read_objects
from mqstore.rabbitmq.erlang.disk_log import CLOSED, END_OF_TABLE, ITEM, MAGIC, write_log
from mqstore.rabbitmq.erlang.terms import Atom, Term
from mqstore.rabbitmq.format.recovery_terms import QueueTerms, read_terms, write_clean_dot, write_terms

__all__ = ["RECOVERY", "SIDE_FILES", "take_terms", "write_side_files"]

RECOVERY = "recovery.dets"
MAX_INTEGER = (1 << 31) - 1  # of INTEGER_EXT, which is signed
INTEGER = 98
_TERM = b"\x83h\x06d\x00\x0cmsg_locationm\x00\x00\x00\x10"
_LENGTH = len(_TERM) + 16 + 4 * 5
_HEAD = _LENGTH.to_bytes(4, "big") + ITEM + _TERM
_OBJECT = np.dtype([("head", np.uint8, len(_HEAD)), ("hi", ">u8"), ("lo", ">u8"), ("numbers", [("tag", np.uint8), ("value", ">u4")], 4)])
SIDE_FILES = ("clean.dot", "file_summary.ets", "msg_store_index.ets")


def take_terms(directory: DurableDirectory, reading: ReadOnlyDirectory, place: str) -> dict[str, QueueTerms]:
    """Return the terms by queue directory, and remove the side files durably."""
    content = reading.read(f"{place}/{RECOVERY}")
    found = {} if content is None else read_terms(read_objects(content))
    removed = False
    for name in (RECOVERY, *(f"msg_store_persistent/{each}" for each in SIDE_FILES)):
        if reading.exists(f"{place}/{name}"):
            directory.remove(f"{place}/{name}")
            removed = True
    if removed:
        directory.sync_directory(place)
        directory.sync_directory(f"{place}/msg_store_persistent")
    return found


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
    for place, column in enumerate(numbers):
        items["numbers"][:, place]["tag"] = INTEGER
        items["numbers"][:, place]["value"] = column
    return items


def _queue_terms(queue: LiveQueue) -> QueueTerms:
    counts = queue.index.unacked_by_segment()
    v1, v2 = (counts, None) if queue.index.version == 1 else (None, counts)
    return QueueTerms(v1, v2, queue.next_seq, queue.next_deliver, os.urandom(16), queue.persistent, queue.persistent_bytes)
