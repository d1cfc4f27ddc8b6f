"""Transactions: messages that consumers see only once their producer has committed them.

A commit puts the real message, then an op message; a rollback puts only the op message (their forms: `format.half_message`). Every
record is an ordinary one with a queue entry: a half message is undecided as long as no op message names its queue offset.

    half queue    0  1  2  3  4  5          progress 2: everything before it is settled, renewed or put aside
                  .  .  ?  .  ?  ?          `?` undecided
    op queue      0: "0"  1: "3"            progress 1: op 1 names a half message at or after the progress

A check finds a half message that is undecided for too long, puts it again with TRANSACTION_CHECK_TIMES one higher, and asks its producer
about the new one; progress moves past the old one. Progress of both queues is kept in the consumer offsets, under the group
CID_RMQ_SYS_TRANS. After a crash the check continues from the progress that was last written, and may ask again; it also asks again
about a commit that died between its two messages, so consumers may see its message twice.

Format: docs/formats/rocketmq.md, section 3.8.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from mqstore.errors import NotFoundError, RefusedError
from mqstore.rocketmq.append.delay import SystemQueue
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format import half_message, record
from mqstore.rocketmq.format.java_map import reencode
from mqstore.rocketmq.format.message import Message, PutResult, property_text
from mqstore.rocketmq.format.system_topics import CHECK_GROUP, HALF_TOPIC, OP_TOPIC

ENTRIES_AT_ONCE = 512

Decision = Literal["commit", "rollback"] | None


class GroupOffsets(Protocol):
    """What is needed of the consumer offsets."""

    def query(self, group: str, topic: str, queue_id: int, /) -> int: ...

    def commit(self, group: str, topic: str, queue_id: int, offset: int, /) -> object: ...


class TransactionStore(Protocol):
    """What transactions need of a writable store."""

    @property
    def version(self) -> str: ...

    @property
    def release(self) -> str: ...

    @property
    def config(self) -> StoreConfig: ...

    @property
    def offsets(self) -> GroupOffsets: ...

    def put(self, message: Message, /) -> PutResult: ...

    def record_at(self, physical: int, /) -> record.Record | None: ...

    def queue_or_none(self, topic: str, queue_id: int, /) -> SystemQueue | None: ...

    def wait_dispatched(self, timeout: float = ..., /) -> bool: ...


@dataclass(frozen=True, slots=True)
class CheckRun:
    """The outcome of one check. asked: half messages put again, whose producer was asked. committed, rolled_back: by the answers.

    settled: half messages that op messages had named. given_up: put aside. postponed: put again within their immunity time.
    failure: why the check ended early, empty if it did not.
    """

    asked: int = 0
    committed: int = 0
    rolled_back: int = 0
    settled: int = 0
    given_up: int = 0
    postponed: int = 0
    failure: str = ""


class _EndOfCheckError(Exception):
    """The check ends here. The text is the reason; empty if there is simply nothing more to do yet."""


class Transactions:
    """The transactions of a writable store. Thread-safe.

    Op messages are read once and remembered as far as they are after the progress.
    """

    def __init__(self, store: TransactionStore) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._settled: set[int] = set()  # queue offsets of half messages
        self._underway: set[int] = set()  # queue offsets whose commit or rollback is in progress
        self._ops: dict[int, tuple[int, ...]] = {}  # queue offset of an op message -> queue offsets that it names
        self._op_read = -1
        self._renewed: dict[int, int] = {}  # queue offset of a half message -> of the one that replaced it

    def prepare(self, message: Message) -> PutResult:
        """Put a message as a half message. The result is that of the half record: `commit` and `rollback` take its physical offset.

        TRAN_MSG is added if it is missing. A delay is removed, as a producer's client does: the broker would lose the message.
        """
        version = self._store.release
        properties = property_text(message, version)
        named = record.decode_properties(properties)
        if named.get("TRAN_MSG") != "true" or "DELAY" in named:
            properties = reencode(properties, {"TRAN_MSG": "true", "DELAY": None}, version)
        return self._store.put(half_message.half(message.replaced(properties=properties), version))

    def commit(self, physical_offset: int, *, producer_group: str | None = None) -> PutResult:
        """Put the real message of the half record at this offset, and settle it. Returns the result of the real message.

        producer_group: if given, must be the group that prepared the message. Raises NotFoundError, RefusedError.
        """
        with self._settling(physical_offset, producer_group) as (half, queue_offset):
            put = self._store.put(half_message.committed(half, self._store.release))
            if put.stored:
                self._put_op(queue_offset)
            return put

    def rollback(self, physical_offset: int, *, producer_group: str | None = None) -> PutResult:
        """Settle the half record at this offset without its message. Returns the result of the op message.

        Raises NotFoundError, RefusedError.
        """
        with self._settling(physical_offset, producer_group) as (_, queue_offset):
            return self._put_op(queue_offset)

    def pending(self) -> list[record.Record]:
        """Return the undecided half records."""
        with self._lock:
            self._store.wait_dispatched()
            self._read_ops()
            return [half for queue_offset, half in self._halves(self._progress(HALF_TOPIC)) if not self._is_settled(queue_offset, half)]

    def check(
        self,
        now: int | None = None,
        *,
        timeout: int = 6000,
        max_checks: int = 15,
        hook: Callable[[record.Record], Decision] = lambda _: None,
    ) -> CheckRun:
        """Go through the undecided half messages, and ask about those that are older than `timeout` ms.

        hook: called with the renewed half record under its real topic and queue id; None leaves it undecided. A property
        CHECK_IMMUNITY_TIME_IN_SECONDS overrides timeout. max_checks: checks after which a message is put aside.
        """
        with self._lock:
            moment = self._store.config.clock() if now is None else now
            self._store.wait_dispatched()
            self._read_ops()
            started = self._progress(HALF_TOPIC)
            progress = started
            counts = dict.fromkeys(CheckRun.__slots__[:-1], 0)
            failure = ""
            try:
                for queue_offset, half in self._halves(started):
                    what, renewed = self._check_one(queue_offset, half, moment, timeout, max_checks)
                    counts[what] += 1
                    progress = queue_offset + 1
                    if renewed is not None:
                        decision = hook(renewed)
                        if decision == "commit" and self.commit(renewed.physical_offset).stored:
                            counts["committed"] += 1
                        elif decision == "rollback" and self.rollback(renewed.physical_offset).stored:
                            counts["rolled_back"] += 1
            except _EndOfCheckError as stop:
                failure = str(stop)
            finally:
                self._advance(started, progress)
            return CheckRun(**counts, failure=failure)

    def _check_one(
        self, queue_offset: int, half: record.Record, now: int, timeout: int, max_checks: int
    ) -> tuple[str, record.Record | None]:
        """Return (field of `CheckRun` to count, renewed record whose producer is to be asked)."""
        if self._is_settled(queue_offset, half):
            return "settled", None
        if queue_offset in self._underway:
            raise _EndOfCheckError
        version = self._store.release
        properties = half.property_map()
        text = properties.get(half_message.CHECK_TIMES)
        times = 0 if text is None else _int_or_minus_1(text)
        age = now - half.born_timestamp
        if text is not None and times >= max_checks:
            self._put(half_message.given_up(half, version))
            return "given_up", None
        times += 1
        if age > self._store.config.file_reserved_hours * 3_600_000:
            self._put(half_message.given_up(half, version, check_times=times))
            return "given_up", None
        seconds = properties.get(half_message.IMMUNITY)
        if seconds is not None:
            immunity = timeout if _int_or_minus_1(seconds) == -1 else 1000 * _int_or_minus_1(seconds)
            if age < immunity:
                known_by = properties.get(half_message.PREPARED_QUEUE_OFFSET)
                prepared = queue_offset if known_by is None else _int_or_minus_1(known_by)
                put = self._put(half_message.renewed(half, version, check_times=times, prepared_queue_offset=prepared))
                self._renewed[queue_offset] = put.queue_offset
                return "postponed", None
        elif 0 <= age <= timeout:
            raise _EndOfCheckError
        put = self._put(half_message.renewed(half, version, check_times=times))
        self._renewed[queue_offset] = put.queue_offset
        stored = self._store.record_at(put.physical_offset)
        if stored is None:
            raise _EndOfCheckError(f"the half message renewed at {put.physical_offset} cannot be read")
        return "asked", replace(stored, topic=properties.get("REAL_TOPIC", ""), queue_id=_int_or_minus_1(properties.get("REAL_QID", "")))

    def _put(self, message: Message) -> PutResult:
        put = self._store.put(message)
        if not put.stored:
            raise _EndOfCheckError(f"a message for {message.topic} was not stored: {put.status.value}, {put.detail}")
        return put

    @contextlib.contextmanager
    def _settling(self, physical_offset: int, producer_group: str | None) -> Iterator[tuple[record.Record, int]]:
        """Yield (half record, queue offset of its latest renewal), protected from any other decision meanwhile."""
        half = self._store.record_at(physical_offset)
        if half is None or half.topic != HALF_TOPIC:
            what = "no record" if half is None else f"a record of {half.topic}"
            raise NotFoundError(
                f"there is no half message at {physical_offset}, but {what}; give the physical offset that prepare returned"
            )
        group = half.property_map().get("PGROUP")
        if producer_group is not None and group != producer_group:
            raise RefusedError(f"the half message at {physical_offset} was prepared by {group}, not by {producer_group}")
        with self._lock:
            if self._op_read < 0:
                self._read_ops()
            queue_offset = self._latest(half.queue_offset)
            if queue_offset in self._settled or queue_offset in self._underway or queue_offset < self._progress(HALF_TOPIC):
                raise RefusedError(
                    f"the half message at {physical_offset} is no longer undecided: it was committed, rolled back, put aside or renewed; "
                    "`pending` lists those that are"
                )
            self._underway.add(queue_offset)
        try:
            yield half, queue_offset
        finally:
            with self._lock:
                self._underway.discard(queue_offset)

    def _put_op(self, queue_offset: int) -> PutResult:
        store = self._store
        put = store.put(half_message.op_message([queue_offset], store.release, born_host=store.config.store_host))
        if put.stored:
            with self._lock:
                self._note_op(put.queue_offset, (queue_offset,))
        return put

    def _latest(self, queue_offset: int) -> int:
        while queue_offset in self._renewed:
            queue_offset = self._renewed[queue_offset]
        return queue_offset

    def _is_settled(self, queue_offset: int, half: record.Record) -> bool:
        if queue_offset in self._settled:
            return True
        known_by = half.property_map().get(half_message.PREPARED_QUEUE_OFFSET)
        return known_by is not None and _int_or_minus_1(known_by) in self._settled

    def _progress(self, topic: str) -> int:
        """Return the next queue offset to look at."""
        queue = self._store.queue_or_none(topic, 0)
        saved = self._store.offsets.query(CHECK_GROUP, topic, 0)
        return max(saved, 0) if queue is None else min(max(saved, queue.min_offset), queue.max_offset)

    def _advance(self, before: int, progress: int) -> None:
        """Move both progresses, and drop what is before them."""
        offsets = self._store.offsets
        if progress != before:
            offsets.commit(CHECK_GROUP, HALF_TOPIC, 0, progress)
        op_before = op_progress = self._progress(OP_TOPIC)
        while op_progress in self._ops and all(named < progress for named in self._ops[op_progress]):
            for named in self._ops.pop(op_progress):
                self._settled.discard(named)
            op_progress += 1
        if op_progress != op_before:
            offsets.commit(CHECK_GROUP, OP_TOPIC, 0, op_progress)
        self._renewed = {old: latest for old in self._renewed if (latest := self._latest(old)) >= progress}

    def _read_ops(self) -> None:
        """Read the op messages that were added since the last time."""
        if self._op_read < 0:
            self._op_read = self._progress(OP_TOPIC)
        for queue_offset, op in self._records(OP_TOPIC, self._op_read):
            self._note_op(queue_offset, () if op is None else half_message.settled_by(op))
            self._op_read = queue_offset + 1

    def _note_op(self, queue_offset: int, named: tuple[int, ...]) -> None:
        self._ops[queue_offset] = named
        self._settled.update(named)

    def _halves(self, start: int) -> Iterator[tuple[int, record.Record]]:
        return ((at, half) for at, half in self._records(HALF_TOPIC, start) if half is not None)

    def _records(self, topic: str, start: int) -> Iterator[tuple[int, record.Record | None]]:
        """Yield (queue offset, record) from an offset to the current end; None for a lost record."""
        queue = self._store.queue_or_none(topic, 0)
        if queue is None:
            return
        start, stop = max(start, queue.min_offset), queue.max_offset
        while start < stop:
            rows = queue.entries(start, min(start + ENTRIES_AT_ONCE, stop))
            if not len(rows):
                return
            for at, physical in enumerate(rows["physical_offset"].tolist(), start):
                yield at, self._store.record_at(physical)
            start += len(rows)


def _int_or_minus_1(text: str) -> int:
    """Parse a number as the broker does; -1 for anything else."""
    try:
        return int(text)
    except ValueError:
        return -1
