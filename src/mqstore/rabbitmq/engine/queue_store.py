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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from mqstore.errors import CannotOpenError, MqstoreError, NotFoundError, UnsupportedError, UsageError
from mqstore.files.locking import bind_to_process, forked_sentence
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.live_queue import LiveQueue
from mqstore.rabbitmq.engine.running_vhost import RunningVhost, start_vhost, write_side_files
from mqstore.rabbitmq.format.names import priority_name, queue_directory, queue_name_file
from mqstore.rabbitmq.message.message_term import PERSISTENT, MessageTemplate, MessageTerm, properties_to_bin, read_message

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
        try:
            for level, seqs in self._by_level(deliveries):
                self._acknowledge(level, seqs)
            self.messages.collect()
        except UsageError:
            raise
        except MqstoreError as error:
            self._fail(error)
            raise

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
        try:
            for level in self._queue(queue).levels:
                for dropped, stored in level.purge():
                    count += dropped
                    for message_id in stored:
                        self.messages.remove(message_id)
                self._unsynced[level.index.place] = level
                level.index.flush()
            self.messages.collect()
        except MqstoreError as error:
            self._fail(error)
            raise
        return count

    # reaching the disk

    def sync(self) -> None:
        """Make everything done so far durable: first the message store, then the indexes that reference it."""
        self._must_be_open()
        try:
            self.messages.sync()
            for level in self._unsynced.values():
                level.index.sync()
            self._unsynced.clear()
        except MqstoreError as error:
            self._fail(error)
            raise

    def idle(self) -> None:
        """Do what idle queues do: sync, and flush journals to segments."""
        self.sync()
        try:
            for level in self._started.queues.values():
                level.index.flush()
        except MqstoreError as error:
            self._fail(error)
            raise

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

    def _fail(self, error: MqstoreError) -> None:
        """Refuse further use after a failed write: memory and disk may differ until the next start."""
        self._failure = f"{error}; close the store and open it again"

    def _must_be_open(self) -> None:
        if self._failure:
            raise CannotOpenError(f"the queues of {self.vhost!r} cannot be used any longer: {self._failure}")
