"""Delay levels: messages that wait in SCHEDULE_TOPIC_XXXX until their time has come.

    put         property DELAY = level > 0: topic and queue are saved in REAL_TOPIC and REAL_QID,
                the record goes to SCHEDULE_TOPIC_XXXX, queue level - 1
    dispatch    the queue entry's tags code is the time of delivery: store time + delay of the level
    delivery    the message is put again, into REAL_TOPIC and REAL_QID; its properties still have DELAY, REAL_TOPIC and REAL_QID
    progress    next queue offset per level, in config/delayOffset.json

    >>> waiting = delayed(Message("orders", b"paid", queue_id=2, properties={"DELAY": "99"}), parse_delays("1s 5s 1m"), "4.9.3")
    >>> waiting.topic, waiting.queue_id, waiting.properties
    ('SCHEDULE_TOPIC_XXXX', 2, b'REAL_TOPIC\\x01orders\\x02DELAY\\x013\\x02REAL_QID\\x012')

A queue is delivered in order: a message that is due waits for the messages before it. After a crash messages may be
delivered again, from the progress that was last written. 4.9.3 writes too small a progress after delivering several messages
at once; here it is correct for both versions.

Delay offsets: how far each delay level of SCHEDULE_TOPIC_XXXX was delivered, stored in `config/delayOffset.json`.

    >>> table = DelayOffsetTable("4.9.3")
    >>> table.update(3, 29)
    >>> table.text()
    '{\\n\\t"offsetTable":{3:29\\n\\t}\\n}'

5.3.3 also writes a `dataVersion`, incremented on every 200th update. The file is written every 10 s and at shutdown.

Format: docs/formats/rocketmq.md, sections 1.5, 3.2 and 3.7.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from mqstore.errors import MqstoreError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.findings import Damage
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.config_writer import ConfigWriter, DataVersion, bean, to_text
from mqstore.rocketmq.config.consumer_offsets import DELAY_OFFSETS, load_delay_offsets
from mqstore.rocketmq.config.store_config import StoreConfig, now_ms
from mqstore.rocketmq.dispatch.base_queue_image import Rows
from mqstore.rocketmq.dispatch.dispatcher import parse_delays
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.consume_queue_ext import ConsumeQueueExt, is_address
from mqstore.rocketmq.format.half_message import original
from mqstore.rocketmq.format.java_map import reencode
from mqstore.rocketmq.format.message import Message, PutResult, property_text
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.system_topics import HALF_TOPIC, SCHEDULE_TOPIC

UPDATES_PER_VERSION = 200


class DelayOffsetTable:
    """Delay level -> next queue offset in that level's queue. Thread-safe. findings: invalid parts of the file."""

    def __init__(self, version: str, *, clock: Callable[[], int] = now_ms) -> None:
        self.version = version
        self.findings: tuple[Damage, ...] = ()
        self._rules = version_rules(version)
        self._clock = clock
        self._lock = threading.Lock()
        self._by_level: dict[int, int] = {}
        self._data_version = DataVersion(clock())
        self._updates = 0
        self._others: dict[str, Any] = {}
        self._writer = ConfigWriter(DELAY_OFFSETS, version)

    @classmethod
    def load(cls, reading: ReadOnlyDirectory, version: str, *, clock: Callable[[], int] = now_ms) -> DelayOffsetTable:
        """Load the table of a store; a missing file gives an empty one."""
        made = cls(version, clock=clock)
        table = load_delay_offsets(reading)
        value = fastjson.load(reading, DELAY_OFFSETS).value
        made.findings = table.findings
        made._by_level = dict(table.by_level)
        made._data_version = DataVersion.of(value.get("dataVersion"), clock)
        made._others = {name: part for name, part in value.items() if name not in ("dataVersion", "offsetTable")}
        return made

    def get(self, level: int) -> int | None:
        """Return the next queue offset of a delay level; None if it has delivered nothing yet."""
        with self._lock:
            return self._by_level.get(level)

    def update(self, level: int, offset: int) -> None:
        """Record that the messages before a queue offset have been delivered."""
        with self._lock:
            self._by_level[level] = offset
            self._updates += 1
            if self._updates % UPDATES_PER_VERSION == 0:
                self._data_version.next(self._clock())

    def levels(self) -> dict[int, int]:
        """Return a copy of the table."""
        with self._lock:
            return dict(self._by_level)

    def text(self) -> str:
        """Return the text of the file in the dialect of the version."""
        with self._lock:
            own: dict[str, Any] = {"dataVersion": self._data_version.value(True)} if self._rules.writes_every_field else {}
            return to_text(bean({**self._others, **own, "offsetTable": dict(sorted(self._by_level.items()))}))

    def persist(self, directory: DurableDirectory) -> bool:
        """Write the file unless it already has this content. Returns whether it was written."""
        return self._writer.write(directory, self.text)


POLL = 0.1
ENTRIES_AT_ONCE = 512

_TIMER = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")


class DueMessage(Message):
    """A message whose delay is over: `delayed` ignores the DELAY in its properties, and puts do not wait for its flush."""

    __slots__ = ()


def delay_level(properties: bytes) -> int:
    """Return the delay level in a property text, 0 without one. Raises ValueError if it is not a number."""
    if b"DELAY\x01" not in properties:
        return 0
    text = record.decode_properties(properties).get("DELAY")
    if text is None:
        return 0
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or not -(1 << 31) <= int(text) < 1 << 31:
        raise ValueError(f"DELAY is {text!r}, which is not a delay level; give a number such as 3, or leave the property out")
    return int(text)


def delayed(message: Message, levels: Sequence[int], version: str) -> Message:
    """Return the message as it is stored: itself, or the form in which it waits if it asks for a delay.

    levels: ms of each delay level; a level beyond them is the last one. Prepared and rolled back transactions never wait.
    Raises ValueError for a DELAY that is not a number.
    """
    if isinstance(message, DueMessage) or message.sys_flag & record.TRANSACTION_MASK not in (
        record.TRANSACTION_NONE,
        record.TRANSACTION_COMMIT,
    ):
        return message
    properties = property_text(message, version)
    level = delay_level(properties)
    if level <= 0:
        return message
    changes: dict[str, str | None] = {}
    if version_rules(version).has_timer_wheel:
        changes.update(dict.fromkeys(_TIMER))
    if level > len(levels):
        level = len(levels)
        changes["DELAY"] = str(level)
    changes["REAL_TOPIC"] = message.topic
    changes["REAL_QID"] = str(message.queue_id)
    return message.replaced(topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=reencode(properties, changes, version))


def asks_for_timer(message: Message, version: str) -> bool:
    """Return whether a message needs the timer wheel of 5.x, which is not supported here; a delay level takes precedence."""
    if not version_rules(version).has_timer_wheel or isinstance(message, DueMessage):
        return False
    properties = property_text(message, version)
    if b"TIMER_" not in properties or delay_level(properties) > 0:
        return False
    names = record.decode_properties(properties)
    return "TIMER_OUT_MS" not in names and any(name in names for name in _TIMER)


def deliverable(waiting: record.Record, version: str) -> DueMessage:
    """Return the message to put when the delay of a record of SCHEDULE_TOPIC_XXXX is over. Raises ValueError if it names no queue."""
    message = original(DueMessage, waiting, version)
    if message is None:
        raise ValueError(
            f"the record at {waiting.physical_offset} waits in {SCHEDULE_TOPIC}, but its REAL_TOPIC and REAL_QID do not name a queue; "
            "it cannot be delivered"
        )
    return message


class SystemQueue(Protocol):
    """One queue of a system topic, as `dispatch.consume_queue_image.QueueImage` has it."""

    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    def entries(self, start: int, stop: int) -> Rows: ...


class DelayStore(Protocol):
    """What delivery needs of a writable store."""

    version: str
    release: str
    config: StoreConfig
    directory: DurableDirectory
    reading: ReadOnlyDirectory

    def put(self, message: Message) -> PutResult: ...

    def record_at(self, physical: int, /) -> record.Record | None: ...

    def queue_or_none(self, topic: str, queue_id: int, /) -> SystemQueue | None: ...


class DelayService:
    """Delivers messages that are due, and keeps the progress of each level. One thread at a time; `start` runs it in a thread.

    dropped: number of records that were not delivered: half messages, records that do not name a queue, and lost ones.
    failure: why the last delivery stopped.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store
        self._clock = store.config.clock
        self.levels = parse_delays(store.config.message_delay_level)
        self.dropped = 0
        self.failure = ""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # a separate one: a durable directory serves one thread
        self._directory = DurableDirectory(store.directory.root, recorder=store.config.recorder)
        self._table = DelayOffsetTable.load(store.reading, store.version, clock=self._clock)
        self._persisted = self._table.levels()

    def offsets(self) -> dict[int, int]:
        """Return delay level -> next queue offset to deliver, for levels that have delivered something."""
        return self._table.levels()

    def run_once(self) -> int:
        """Deliver everything due by the store's clock. Returns the number of messages put."""
        with self._lock:
            now = self._clock()
            return sum(self._run_level(level, now) for level in range(1, len(self.levels) + 1) if not self._stop.is_set())

    def persist(self) -> bool:
        """Write config/delayOffset.json if anything has changed. Returns whether it was written."""
        with self._lock:
            levels = self._table.levels()
            if levels == self._persisted:
                return False
            self._table.persist(self._directory)
            self._persisted = levels
            return True

    def start(self) -> None:
        """Start delivering in a thread, and persist the progress every flush_delay_offset_interval."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._serve, name="mqstore-delay", daemon=True)
            self._thread.start()

    def stop(self, *, persist: bool = True) -> None:
        """Stop the thread. persist: write the progress, as a clean shutdown does."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        try:
            if persist:
                self.persist()
        finally:
            self._directory.close()
            self._stop.clear()

    def _serve(self) -> None:
        interval = self._store.config.flush_delay_offset_interval
        persisted = self._clock()
        while not self._stop.wait(POLL):
            with self._noting():
                self.run_once()
                self.failure = ""
            now = self._clock()
            if not 0 <= now - persisted < interval:
                persisted = now
                with self._noting():
                    self.persist()

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Keep an error as `failure` and continue: a disk that is full or broken may recover."""
        try:
            yield
        except (MqstoreError, OSError) as error:
            self.failure = str(error)

    def _clamp(self, level: int) -> int:
        """Return the saved progress of a level, clamped to its queue."""
        saved = self._table.get(level)
        queue = self._store.queue_or_none(SCHEDULE_TOPIC, level - 1)
        inside = 0 if queue is None else min(max(saved or 0, queue.min_offset), queue.max_offset)
        if saved is not None and inside != saved:
            self._table.update(level, inside)
        return inside

    def _run_level(self, level: int, now: int) -> int:
        """Deliver the head of one level's queue. Returns the number of messages put."""
        queue = self._store.queue_or_none(SCHEDULE_TOPIC, level - 1)
        at = self._clamp(level)
        if queue is None:
            return 0
        delivered = 0
        while at < queue.max_offset:
            rows = queue.entries(at, at + ENTRIES_AT_ONCE)
            for physical, tags_code in zip(rows["physical_offset"].tolist(), rows["tags_code"].tolist(), strict=True):
                if self._stop.is_set() or self._due_at(level, physical, tags_code, now) > now:
                    return delivered
                message = self._message(physical)
                if message is not None:
                    put = self._store.put(message)
                    if not put.stored:
                        self.failure = f"level {level} is blocked at its message {at}: {put.status.value}, {put.detail}"
                        return delivered
                    delivered += 1
                at += 1
                self._table.update(level, at)
        return delivered

    def _due_at(self, level: int, physical: int, tags_code: int, now: int) -> int:
        """Return when an entry is due, ms; a time later than any put by this clock could have assigned counts as now."""
        delay = self.levels[level - 1]
        if is_address(tags_code):
            tags_code = ConsumeQueueExt(self._store.reading, SCHEDULE_TOPIC, level - 1).tags_code(tags_code)
            if is_address(tags_code):
                stored = self._store.record_at(physical)
                tags_code = now if stored is None else stored.store_timestamp + delay
        return now if tags_code > now + delay else tags_code

    def _message(self, physical: int) -> DueMessage | None:
        """Return the message to put for an entry, or None."""
        stored = self._store.record_at(physical)
        if stored is not None:
            try:
                message = deliverable(stored, self._store.release)
            except ValueError as error:
                self.failure = str(error)
            else:
                if message.topic != HALF_TOPIC:
                    return message
        self.dropped += 1
        return None
