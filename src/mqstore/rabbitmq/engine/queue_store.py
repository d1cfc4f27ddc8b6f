"""Classic queues in this process: the storage of one vhost of a RabbitMQ 3.10 node, on the same files.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place, QueueStore.open(f"{place}/msg_stores") as store:
    ...     store.declare("orders")
    ...     store.declare("audit", {"x-queue-version": 2})
    ...     _ = store.publish(["orders", "audit"], b"paid", confirm=True)
    ...     first = store.deliver("orders")[0]
    ...     store.acknowledge([first])
    ...     first.message.body, store.counts("orders").ready, store.counts("audit").ready
    (b'paid', 0, 1)

Nothing is durable before `sync` (or `confirm`), which writes the message store first, then the indexes. `idle` does what a queue does
when it is idle: it flushes journals to segments. `close` stops cleanly; `abandon`, or the end of the process, is like `kill -9` for a
broker. After either, a 3.10 broker whose definitions declare the queues may take over the directory, and vice versa.

There are no exchanges and bindings: the publisher names the queues. Format: docs/formats/rabbitmq.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError, MqstoreError, NotFoundError, TargetError, UnsupportedError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory, make_root
from mqstore.files.locking import LockedDirectory, LockHeldError, bind_to_process, forked_sentence
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
from mqstore.rabbitmq.format.names import (
    parse_queue_name_file,
    priority_name,
    queue_directory,
    queue_name_file,
    split_priority,
    vhost_directory,
)
from mqstore.rabbitmq.format.recovery_terms import CLEAN_FILES, QueueTerms, read_terms, write_clean_dot, write_terms
from mqstore.rabbitmq.message.message_term import PERSISTENT, MessageTemplate, MessageTerm, read_message
from mqstore.rabbitmq.message.properties import properties_to_bin

_MAX_TEMPLATES = 4096
_IDS = 4096
_SUPPORTED_ARGUMENTS = {"x-max-priority", "x-message-ttl", "x-queue-version", "x-queue-type", "x-queue-mode"}


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivered message. level: priority level, None for a queue without priorities. seq: its sequence id. term: as stored."""

    queue: str
    level: int | None
    seq: int
    redelivered: bool
    expiry_us: int
    term: bytes

    @property
    def message(self) -> MessageTerm:
        return read_message(self.term)


class Counts(NamedTuple):
    """Messages of a queue. ready: waiting for delivery; unacked: delivered and not acknowledged."""

    ready: int
    unacked: int


@dataclass(slots=True)
class _DeclaredQueue:
    """A queue. levels: one, or one per priority level from 0 up. ttl: ms, or None. explicit: declared by the caller, not only found."""

    name: str
    levels: list[LiveQueue]
    priorities: bool
    ttl: int | None
    explicit: bool


class QueueStore:
    """The queues of one vhost, open for writing; create it with `open`. Not safe for use by several threads at the same time.

    notes: what the start dropped or repaired, one sentence each.
    """

    def __init__(self, path: str | os.PathLike[str], vhost: str, config: EngineConfig) -> None:
        self.vhost = vhost
        self.config = config
        self._vhost = vhost.encode()
        self._started: RunningVhost = start_vhost(path, self._vhost, config)
        self.directory = self._started.directory
        self.messages = self._started.store
        self.notes = tuple(self._started.notes)
        self._declared: dict[str, _DeclaredQueue] = {}
        self._templates: dict[tuple[bytes, tuple[bytes, ...], bytes], MessageTemplate] = {}
        self._unsynced: dict[str, LiveQueue] = {}
        self._ids = b""
        self._ids_at = 0
        self._failure = ""
        for name, levels, version in self._started.named():
            arguments: dict[str, Any] = {"x-queue-version": version}
            if levels is not None:
                arguments["x-max-priority"] = levels
            self.declare(name, arguments)
            self._declared[name].explicit = False
        self._process = os.getpid()
        bind_to_process(self)

    def forked(self) -> None:
        """Give the queues up in a forked child: they belong to the parent. Everything is refused, and `close` does nothing."""
        self._started.open = False
        self._failure = forked_sentence("the directory", self._process)

    @classmethod
    def open(cls, path: str | os.PathLike[str], vhost: str = "/", config: EngineConfig = EngineConfig()) -> QueueStore:  # noqa: B008
        """Create the vhost in a `msg_stores` directory, or recover it as a broker does at its start.

        Queues whose directories have a valid `.queue_name` are declared. The directory is locked until the store is closed. A broker
        does not know this lock: do not run one on the directory meanwhile. Raises TargetError, UnsupportedError.
        """
        return cls(path, vhost, config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    # queues

    def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Create a durable classic queue, or attach to its directory. Declaring it again changes only its TTL.

        Raises UnsupportedError for unsupported arguments, and for a directory of the other version that holds messages.
        """
        self._must_be_open()
        given = dict(arguments or {})
        if given.get("x-queue-type", "classic") != "classic" or set(given) - _SUPPORTED_ARGUMENTS:
            unknown = ", ".join(sorted(set(given) - _SUPPORTED_ARGUMENTS)) or f"x-queue-type {given['x-queue-type']}"
            raise UnsupportedError(f"queue {queue!r} cannot be declared: {unknown} is not supported")
        most, ttl = given.get("x-max-priority"), given.get("x-message-ttl")
        known = self._declared.get(queue)
        if known is not None and known.explicit:
            if most is not None and min(int(most), 255) + 1 != len(known.levels):
                raise UsageError(f"queue {queue!r} has {len(known.levels)} levels; redeclare it with the same x-max-priority, not {most}")
            known.ttl = ttl
            return
        version = int(given.get("x-queue-version") or self.config.classic_queue_default_version)
        if version not in (1, 2):
            raise UsageError(f"a classic queue has version 1 or 2, not {version}")
        names = [queue.encode()] if most is None else [priority_name(queue, level) for level in range(min(int(most), 255) + 1)]
        if known is not None and (known.priorities != (most is not None) or len(known.levels) > len(names)):
            raise UsageError(f"queue {queue!r} has {len(known.levels)} levels on disk; declare it with an x-max-priority that has as many")
        levels = [self._level(name, version) for name in names]
        self._declared[queue] = _DeclaredQueue(queue, levels, most is not None, ttl, True)

    def _level(self, name: bytes, version: int) -> LiveQueue:
        directory = queue_directory(self._vhost, name)
        started = self._started
        level = started.queues.get(directory)
        if level is not None and level.index.version == version:
            self._write_name(level.index.place, name, version)
            return level
        if level is not None and level.index.unacked:
            shown, there = name.decode(errors="replace"), level.index.version
            raise UnsupportedError(f"queue {shown!r} has version {there} on disk, not {version}; convert the store first")
        index = started.new_index(directory, version)
        if level is not None:  # it holds no message: replace it
            self.directory.remove_tree(index.place)
        self.directory.make_directory(index.place)
        self._write_name(index.place, name, version)
        self.directory.sync_directory(f"{started.place}/queues")
        made = started.queues[directory] = LiveQueue(index, ready=0, next_seq=0, next_deliver=0, bytes_ready=0)
        return made

    def _write_name(self, path: str, name: bytes, version: int) -> None:
        if not self._started.reading.exists(f"{path}/.queue_name"):
            self.directory.write_small(f"{path}/.queue_name", queue_name_file(self._vhost, name, version == 2))

    @property
    def queues(self) -> list[str]:
        """Names of the declared queues."""
        return sorted(self._declared)

    def counts(self, queue: str) -> Counts:
        levels = self._queue(queue).levels
        return Counts(sum(level.ready for level in levels), sum(len(level.unacked) for level in levels))

    def _queue(self, queue: str) -> _DeclaredQueue:
        declared = self._declared.get(queue)
        if declared is None:
            raise NotFoundError(f"no queue {queue!r} in vhost {self.vhost!r}; declare it first")
        return declared

    # messages

    def publish(
        self,
        queues: str | Sequence[str],
        body: bytes,
        *,
        properties: bytes | Mapping[str, Any] = PERSISTENT,
        exchange: bytes = b"",
        routing_keys: tuple[bytes, ...] | None = None,
        confirm: bool = False,
    ) -> bytes:
        """Publish one message to each of the queues and return its id (16 bytes).

        properties: AMQP properties by name, or an encoded property block; delivery_mode 2 makes the message persistent. routing_keys:
        the key, then CC and BCC; by default the name of the first queue. confirm: return when it is on disk.
        """
        if self._failure:
            self._must_be_open()
        names = (queues,) if isinstance(queues, str) else queues
        if routing_keys is None:
            routing_keys = (names[0].encode(),) if names else ()
        block = properties if isinstance(properties, bytes) else properties_to_bin(dict(properties))
        key = (exchange, routing_keys, block)
        template = self._templates.get(key)
        if template is None:
            template = self._template(key)
        declared = [self._declared.get(name) or self._queue(name) for name in names]
        at = self._ids_at
        if at == len(self._ids):
            self._ids, at = os.urandom(16 * _IDS), 0
        self._ids_at = at + 16
        message_id = self._ids[at : at + 16]
        try:
            self._publish(declared, template, message_id, body)
            if confirm:
                self.sync()
        except MqstoreError as error:
            self._fail(error)
            raise
        return message_id

    def _template(self, key: tuple[bytes, tuple[bytes, ...], bytes]) -> MessageTemplate:
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        template = self._templates[key] = MessageTemplate(self._vhost, *key)
        return template

    def _publish(self, declared: list[_DeclaredQueue], template: MessageTemplate, message_id: bytes, body: bytes) -> None:
        term = template.term(message_id, body)
        size = len(body)
        limit = self.config.queue_index_embed_msgs_below
        embedded = term if size < limit and size + len(template.properties) < limit else b""
        persistent = template.persistent
        if not embedded and persistent and declared:
            self.messages.write(message_id, term, len(declared))
        for queue in declared:
            level = queue.levels[min(template.priority, len(queue.levels) - 1)] if queue.priorities else queue.levels[0]
            expiry = 0
            if template.ttl is not None or queue.ttl is not None:
                expiry = self.config.clock() + 1000 * min(each for each in (template.ttl, queue.ttl) if each is not None)
            level.publish(message_id, embedded if persistent else term, persistent, expiry, size)
            if persistent:
                self._unsynced[level.index.place] = level

    def deliver(self, queue: str, count: int = 1) -> list[Delivery]:
        """Deliver up to `count` messages, in queue order; they stay unacknowledged. Expired messages at the head are dropped."""
        self._must_be_open()
        declared = self._queue(queue)
        deliveries: list[Delivery] = []
        for number in range(len(declared.levels) - 1, -1, -1):
            level = declared.levels[number]
            while len(deliveries) < count:
                taken = level.take()
                if taken is None:
                    break
                seq, entry, redelivered = taken
                if entry.expiry and entry.expiry <= self.config.clock():
                    self._acknowledge(level, [seq])
                    continue
                term = entry.embedded or self.messages.read(entry.id)
                if term is None:
                    level.requeue([seq])
                    raise CannotOpenError(
                        f"message {entry.id.hex()} of queue {queue!r} is missing from the message store; close and verify the store"
                    )
                deliveries.append(Delivery(queue, number if declared.priorities else None, seq, redelivered, entry.expiry, term))
        return deliveries

    def acknowledge(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge delivered messages; durable after the next `sync`. Raises UsageError for one that is not unacknowledged."""
        self._must_be_open()
        with self._writing():
            for level, seqs in self._by_level(deliveries):
                self._acknowledge(level, seqs)
            self.messages.collect()

    def _acknowledge(self, level: LiveQueue, seqs: list[int]) -> None:
        for message_id in level.acknowledge(seqs):
            self.messages.remove(message_id)
        self._unsynced[level.index.place] = level

    def _by_level(self, deliveries: Iterable[Delivery]) -> Iterable[tuple[LiveQueue, list[int]]]:
        levels: dict[str, tuple[LiveQueue, list[int]]] = {}
        for delivery in deliveries:
            level = self._queue(delivery.queue).levels[delivery.level or 0]
            levels.setdefault(level.index.place, (level, []))[1].append(delivery.seq)
        return levels.values()

    def requeue(self, deliveries: Iterable[Delivery]) -> None:
        """Return delivered messages to their old positions. Nothing is written."""
        self._must_be_open()
        for level, seqs in self._by_level(deliveries):
            level.requeue(seqs)

    def purge(self, queue: str) -> int:
        """Purge all ready messages and return their count. Unacknowledged messages are kept."""
        self._must_be_open()
        count = 0
        with self._writing():
            for level in self._queue(queue).levels:
                for dropped, stored in level.purge():
                    count += dropped
                    for message_id in stored:
                        self.messages.remove(message_id)
                self._unsynced[level.index.place] = level
                level.index.flush()
            self.messages.collect()
        return count

    # reaching the disk

    def sync(self) -> None:
        """Make everything done so far durable: first the message store, then the indexes that reference it."""
        self._must_be_open()
        with self._writing():
            self.messages.sync()
            for level in self._unsynced.values():
                level.index.sync()
            self._unsynced.clear()

    def idle(self) -> None:
        """Do what idle queues do: sync, and flush journals to segments."""
        self.sync()
        with self._writing():
            for level in self._started.queues.values():
                level.index.flush()

    def close(self) -> None:
        """Stop cleanly, so that the next start keeps sequence ids and redelivered marks. Unacknowledged messages become ready."""
        if self._started.open and not self._failure:
            self.sync()
            write_side_files(self._started)
        self.abandon()

    def abandon(self) -> None:
        """Close the directory without syncing, as if the process were killed: what was not synced is lost."""
        if self._started.open:
            self._started.close()
            self._failure = "the store is closed"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except UsageError:
            raise
        except MqstoreError as error:
            self._fail(error)
            raise

    def _fail(self, error: MqstoreError) -> None:
        """Refuse further use after a failed write: memory and disk may differ until the next start."""
        self._failure = f"{error}; close the store and open it again"

    def _must_be_open(self) -> None:
        if self._failure:
            raise CannotOpenError(f"the queues of {self.vhost!r} cannot be used any longer: {self._failure}")


# ---- a vhost while this process has it open for writing: its files, lock, queues and message store
#
# `start_vhost` makes one; `write_side_files` leaves what a clean stop leaves.
#
# A start takes, in the broker's order: directories, side files of the last stop, queues, message store.
#
#     0. the vhost's directory is locked against other users of this engine. A broker ignores this lock, so none must be running
#     1. the terms of a clean stop are read from `recovery.dets`; then that file, `clean.dot` and the `.ets` files are deleted
#     2. transient messages are discarded: `msg_store_transient`
#     3. every directory under `queues/` is read; its live entries count references to the message store
#     4. the message store is scanned
#     5. entries without a message are dropped, and the queues are repaired on disk
#
# A broker deletes the directories of unknown queues; this engine keeps all of them, even those without a name.
#
# The side files of a clean stop are as a broker leaves them:
#
#     recovery.dets         for each queue its numbers, counts and reference
#     clean.dot             the references of all queues; if recovery.dets has the same ones, the two tables are trusted
#     msg_store_index.ets   for each stored message its reference count, file, offset and size
#     file_summary.ets      for each message file its size, its referenced bytes and its neighbours
#
# A broker that finds all four starts without checking anything. `recovery.dets` is written last, and removed first at a start, so that a
# crash at any time leaves tables that are either correct or ignored. Without them a broker logs that it rebuilds its indices from
# scratch, and scans the message store.
#
# This engine scans at every start and uses only the terms in `recovery.dets`.
#
# Format: docs/formats/rabbitmq.md, sections 2, 7, 8 and 15.

STORE = "msg_store_persistent"
TRANSIENT = "msg_store_transient"
RECOVERY = "recovery.dets"
MAX_INTEGER = (1 << 31) - 1  # of INTEGER_EXT, which is signed
INTEGER = 98
_TERM = b"\x83h\x06d\x00\x0cmsg_locationm\x00\x00\x00\x10"
_LENGTH = len(_TERM) + 16 + 4 * 5
_HEAD = _LENGTH.to_bytes(4, "big") + ITEM + _TERM
_OBJECT = np.dtype([("head", np.uint8, len(_HEAD)), ("hi", ">u8"), ("lo", ">u8"), ("numbers", [("tag", np.uint8), ("value", ">u4")], 4)])


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
        if _version(reading, at) == 2:
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


def _version(reading: ReadOnlyDirectory, place: str) -> int:
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
    for name in (RECOVERY, *(f"msg_store_persistent/{each}" for each in CLEAN_FILES)):
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
