"""Start of a writable vhost: directories, side files of the last stop, queues, message store, in the broker's order.

    0. the vhost's directory is locked against other users of this engine. A broker ignores this lock, so none must be running
    1. the terms of a clean stop are read from `recovery.dets`; then that file, `clean.dot` and the `.ets` files are deleted
    2. transient messages are discarded: `msg_store_transient`
    3. every directory under `queues/` is read; its live entries count references to the message store
    4. the message store is scanned
    5. entries without a message are dropped, and the queues are repaired on disk

A broker deletes the directories of unknown queues; this engine keeps all of them, even those without a name.

Format: docs/formats/rabbitmq.md, sections 2 and 7.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import TargetError, UnsupportedError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory, make_root
from mqstore.files.locking import LockedDirectory, LockHeldError
from mqstore.rabbitmq.engine.clean_stop import take_terms
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.live_index_v1 import LiveIndexV1
from mqstore.rabbitmq.engine.live_index_v2 import LiveIndexV2
from mqstore.rabbitmq.engine.live_queue import LiveQueue
from mqstore.rabbitmq.engine.message_locations import MessageLocations
from mqstore.rabbitmq.engine.running_vhost import RunningVhost
from mqstore.rabbitmq.engine.start_message_store import start_message_store
from mqstore.rabbitmq.engine.start_queue_v1 import drop_missing_v1, recover_v1
from mqstore.rabbitmq.engine.start_queue_v2 import drop_missing_v2, recover_v2
from mqstore.rabbitmq.format import vhost_config
from mqstore.rabbitmq.format.names import vhost_directory
from mqstore.rabbitmq.format.recovery_terms import QueueTerms

__all__ = ["start_vhost"]

STORE = "msg_store_persistent"
TRANSIENT = "msg_store_transient"


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
    for name in (TRANSIENT,):
        directory.remove_tree(f"{place}/{name}")
    indexes: dict[str, tuple[LiveIndexV1 | LiveIndexV2, int, NDArray[np.int64]]] = {}
    nothing = np.empty(0, np.int64)
    locations = MessageLocations()
    for entry in reading.entries(f"{place}/queues"):
        if not entry.is_directory or reading.path(f"{place}/queues/{entry.name}").is_symlink():
            continue
        at = f"{place}/queues/{entry.name}"
        if _version(reading, at, config) == 2:
            indexes[entry.name] = recover_v2(directory, reading, at, config, locations)
        else:
            index, bodies = recover_v1(directory, reading, at, entries, config, locations)
            indexes[entry.name] = index, bodies, nothing
    store = start_message_store(directory, reading, f"{place}/{STORE}", config.msg_store_file_size_limit, locations)
    started = RunningVhost(directory, reading, vhost, place, entries, config, store, {}, lock)
    for name, (live, size, dropped) in indexes.items():
        missing, bodies = drop_missing_v2(live, dropped, locations) if isinstance(live, LiveIndexV2) else drop_missing_v1(live, locations)
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


def _queue(index: LiveIndexV1 | LiveIndexV2, size: int, terms: QueueTerms | None) -> LiveQueue:
    next_seq = next_deliver = index.bound
    if terms is not None and terms.next_seq is not None and terms.next_seq >= _end_of_entries(index):
        next_seq, next_deliver = terms.next_seq, min(terms.next_deliver or 0, terms.next_seq)
    return LiveQueue(index, ready=index.unacked, next_seq=next_seq, next_deliver=next_deliver, bytes_ready=size)


def _end_of_entries(index: LiveIndexV1 | LiveIndexV2) -> int:
    """Return the sequence id after the last live entry."""
    if not index.segments:
        return 0
    last = index.live_from(max(index.segments) * index.entries)
    return int(last[-1]) + 1 if len(last) else 0
