"""Messages that pop consumers have in hand: popped, not acknowledged, and delivered again when their time is over (5.x).

A pop commits the group's offset at once; an offset alone does not prove that a message was consumed. What does is kept in ordinary
records, with JSON bodies:

    checkpoint        tag `ck`: group c, topic t, queue q, first offset so, further ones so + d, popped at pt (ms) for it ms;
                      bit i of bm is set if message i was acknowledged before the checkpoint was stored
    acknowledgement   tag `ack`: offset ao of the checkpoint with the same c, t, q, so and pt; tag `bAck`: offsets aol

They wait in the timer wheel (topic rmq_sys_wheel_timer) until pt + it, and are then delivered to topic rmq_sys_REVIVE_LOG_CLUSTER. There
the broker takes them in order: what a checkpoint has and no acknowledgement, it puts into the retry topic of the group, as a further
message. The offset of group CID_RMQ_SYS_REVIVE_GROUP is that of the last record that was taken.

With popConsumerKVServiceEnable (5.4 and later) each message in hand is a pair of the database `kvStore`, family `popState`, which its
acknowledgement removes. The value is JSON: groupId, topicId, queueId, offset, popTime, invisibleTime.

An ordered pop commits no offset before its messages are acknowledged; config/consumerOrderInfo.json has what it took, by topic@group and
queue: popped at popTime (ms) for i ms, the offsets o (the first, then distances from it), those with an own time ot, bit i of cm set if
message i was acknowledged. Until that time the queue is blocked for the group, then all come again from its offset on.

A message that a committed offset has passed, and that is not in hand, was acknowledged, or is in the retry topic.

    >>> checkpoint = Checkpoint.of({"c": "billing", "t": "orders", "q": 0, "so": 5, "d": [0, 2], "n": 2, "pt": 1000, "it": 500, "bm": 1})
    >>> checkpoint.offsets, checkpoint.acknowledged, checkpoint.until
    ((5, 7), frozenset({5}), 1500)

Format: docs/formats/rocketmq.md, section 12.5.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.store_config import now_ms
from mqstore.rocketmq.format.java_text import java_hash
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.format.system_topics import REVIVE_GROUP, REVIVE_PREFIX, TIMER_TOPIC
from mqstore.rocketmq.format.timer_wheel import TimerLog, read_check
from mqstore.rocketmq.store.databases import KV_PLACE, POP_FAMILY
from mqstore.rocketmq.store.unread_parts import holds

if TYPE_CHECKING:
    from mqstore.rocketmq.store.store_files import StoreFiles

_TAGS = np.array([java_hash(tag) for tag in ("ck", "ack", "bAck")], np.int64)
_CHUNK = 4096
MOST_READ = 1 << 20  # records of checkpoints and acknowledgements; of a store with more it is said that not all were read
_MOST_OFFSETS = 1 << 10  # of one checkpoint; a broker gives at most 32

ORDERS = "config/consumerOrderInfo.json"

_WITHOUT_QUEUES = (
    "what pop consumers have in hand cannot be told without the consume queues, and an offset alone does not prove consumption"
)
_SETTLED = "nothing shows how far the timer wheel was read: settled pops may count as messages in hand"
Popper = tuple[str, str, int]  # group, topic, queue id
Queue = Any  # a QueueView: that module names Pops
ReadRecord = Callable[[int], "Record | None"]


class _Key(NamedTuple):
    """What an acknowledgement and its checkpoint have in common."""

    group: str
    topic: str
    queue_id: int
    start: int
    popped_at: int

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> _Key | None:
        match body:
            case {"c": str(group), "t": str(topic), "q": int(queue_id), "so": int(start), "pt": int(popped_at)}:
                return cls(group, topic, queue_id, start, popped_at)
        return None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What one pop took. until: when the messages come again, ms."""

    key: _Key
    offsets: tuple[int, ...]
    acknowledged: frozenset[int]
    until: int

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Checkpoint | None:
        """Return the checkpoint in a body; None if it is not one."""
        key, invisible, bits = _Key.of(body), body.get("it"), body.get("bm", 0)
        steps = body.get("d") or range(_count(body.get("n")))
        if key is None or not isinstance(invisible, int) or not isinstance(bits, int) or len(steps) > _MOST_OFFSETS:
            return None
        if not all(isinstance(step, int) for step in steps):
            return None
        offsets = tuple(key.start + step for step in steps)
        return cls(key, offsets, frozenset(at for number, at in enumerate(offsets) if bits >> number & 1), key.popped_at + invisible)


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 < value <= _MOST_OFFSETS else 0


@dataclass(frozen=True, slots=True)
class Pops:
    """held: by group, topic and queue, the offsets in hand, each with the time (ms) until when. acknowledged: the others of the pops that
    are not settled. notes: what limits the answer. incomplete: whether further messages may be
    in hand, so that no offset proves consumption.
    """

    held: dict[Popper, dict[int, int]] = field(default_factory=dict)
    acknowledged: dict[Popper, set[int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    incomplete: bool = False

    def state(self, popper: Popper, at: int, committed: int | None, *, beyond: bool) -> tuple[str, int | None]:
        """Return what is known of a group and a message of a queue, and until when (ms) the group has it in hand, if it has.

        committed: the group's offset there, None if it has none; beyond: it is past the end of the queue, where no consumption leads.
        States: in-hand, redelivery, no-offset, above-max, waiting, consumed; unproved, where the offset has passed the message and a pop
        whose records are not there may have moved it.
        """
        until = self.held.get(popper, {}).get(at)
        if until is not None:
            return ("in-hand" if until > now_ms() else "redelivery"), until
        if at in self.acknowledged.get(popper, ()):
            return "consumed", None
        if committed is None:
            return "no-offset", None
        if beyond:
            return "above-max", None
        return ("waiting" if committed <= at else "unproved" if self.incomplete else "consumed"), None

    def counts(self, popper: Popper, low: int, now: int | None) -> tuple[int, int] | tuple[None, None]:
        """Return how many messages a group has in hand, and how many it had wait for redelivery; None if no pop of it shows.

        low: the minimum offset of the queue: a message that has expired does not come again. now: ms, by default the time it is.
        """
        if popper not in self.held and popper not in self.acknowledged:
            return None, None
        times = [until for at, until in self.held.get(popper, {}).items() if at >= low]
        waiting = sum(until <= (now_ms() if now is None else now) for until in times)
        return len(times) - waiting, waiting

    @property
    def messages(self) -> int:
        """The number of messages that come again unless they are acknowledged first, each for each group."""
        return sum(map(len, self.held.values()))


def read_pops(files: StoreFiles, queues: Sequence[Queue], record: ReadRecord, log_min: int) -> Pops:
    """Return what pop consumers have in hand. queues, record, log_min: of a view."""
    notes = [_WITHOUT_QUEUES] if _lacks_queues(files, queues) else []
    checkpoints: dict[tuple[_Key, tuple[int, ...]], Checkpoint] = {}
    acknowledged: dict[_Key, set[int]] = defaultdict(set)
    for number, body in enumerate(_bodies(files, queues, partial(_records, record, log_min), notes)):
        if number >= MOST_READ:
            notes.append(f"only {MOST_READ:,} checkpoints and acknowledgements of pop consumers were read: further messages may be in hand")
            break
        checkpoint = Checkpoint.of(body)
        if checkpoint is not None:
            acknowledged[checkpoint.key].update(checkpoint.acknowledged)
            checkpoints[checkpoint.key, checkpoint.offsets] = checkpoint
        elif (key := _Key.of(body)) is not None:
            several = body.get("aol")
            acknowledged[key].update(at for at in (body.get("ao"), *(several if isinstance(several, list) else ())) if isinstance(at, int))
    held: dict[Popper, dict[int, int]] = defaultdict(dict)
    done: dict[Popper, set[int]] = defaultdict(set)
    for checkpoint in checkpoints.values():
        key = checkpoint.key
        popper, acks = (key.group, key.topic, key.queue_id), acknowledged.get(key, set())
        for at in checkpoint.offsets:
            if at in acks:
                done[popper].add(at)
            else:
                held[popper][at] = max(checkpoint.until, held[popper].get(at, 0))
    _add_pairs(files, held, notes)
    _add_orders(files, held, notes)
    for popper, offsets in held.items():  # one that was popped again, or whose time was changed, has two checkpoints
        done[popper] -= offsets.keys()
    return Pops(dict(held), dict(done), tuple(notes), any(note != _SETTLED for note in notes))


def _lacks_queues(files: StoreFiles, queues: Sequence[Queue]) -> bool:
    """Return whether pops may be in the log whose queues are gone: there is none at all, or that of a timer log which has units."""
    if any(queue.topic == TIMER_TOPIC or queue.topic.startswith(REVIVE_PREFIX) for queue in queues) or files.log_only:
        return False
    possible = any(name.startswith(REVIVE_PREFIX) for name in files.topics.names)
    return possible and files.log.last_written() >= 0 and (not queues or TimerLog(files.directory).end > 0)


def _bodies(
    files: StoreFiles, queues: Sequence[Queue], records: Callable[..., Iterator[Record | None]], notes: list[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the bodies of the records that are not settled: those that the broker has not taken, and those in the wheel."""
    unread = unsettled = 0
    for queue in queues:
        if queue.topic.startswith(REVIVE_PREFIX):
            taken = files.offset_table.offsets.get((REVIVE_GROUP, queue.topic), {}).get(queue.queue_id, -1)
            for record in records(queue, max(queue.min_offset, taken + 1)):
                body = None if record is None else _body(record)
                unread += body is None
                yield body or {}
    for wheel in queues:
        if wheel.topic != TIMER_TOPIC:
            continue
        check, timeline = read_check(files.directory), files.timeline
        clock = timeline.read_until if timeline is not None else check.read_until if check is not None else None
        scanned = timeline.scanned if timeline is not None else check.queue_offset if check is not None else 0
        for record in records(wheel, wheel.min_offset, tagged=True):
            properties = {} if record is None else record.property_map()
            if record is not None and not properties.get("REAL_TOPIC", "").startswith(REVIVE_PREFIX):
                continue
            due = properties.get("TIMER_OUT_MS", "")
            if record is not None and clock is not None and due.isdecimal() and int(due) <= clock and record.queue_offset < scanned:
                continue  # delivered: its copy is in the topic
            body = None if record is None else _body(record)
            unread += body is None
            unsettled += body is not None
            yield body or {}
        if unsettled and clock is None:
            notes.append(_SETTLED)
    if unread:
        notes.append(f"{unread} checkpoints or acknowledgements of pop consumers cannot be read: more or fewer messages may be in hand")


def _records(read: ReadRecord, log_min: int, queue: Queue, start: int, *, tagged: bool = False) -> Iterator[Record | None]:
    """Yield the records of a queue, None for one that cannot be read. tagged: only those with a tag of pop consumption."""
    for begin in range(start, queue.max_offset, _CHUNK):
        entries = queue.entries(begin, min(queue.max_offset, begin + _CHUNK))
        chosen = (entries["size"] > 0) & (entries["physical_offset"].astype(np.int64) >= log_min)
        if tagged:
            chosen &= np.isin(entries["tags_code"].astype(np.int64), _TAGS)
        for physical in entries["physical_offset"][chosen].tolist():
            yield read(physical)


def _body(record: Record) -> Mapping[str, Any] | None:
    try:
        document = json.loads(record.body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _add_pairs(files: StoreFiles, held: dict[Popper, dict[int, int]], notes: list[str]) -> None:
    """Add what is in the database."""
    database = files.databases.open(KV_PLACE)
    why = files.databases.why_unread(KV_PLACE)
    if why is not None and holds(files.directory, KV_PLACE, ".sst", ".log"):
        notes.append(f"the messages in hand in RocksDB ({KV_PLACE}) are not read: {why}")
    family = database.family(POP_FAMILY) if database is not None else None
    if family is None:
        return
    faults: list[str] = []
    for _, value in family.items(on_fault=faults.append):  # noqa: PERF102 - a family has no values()
        try:
            pair = json.loads(value)
            popper = (str(pair["groupId"]), str(pair["topicId"]), int(pair["queueId"]))
            held[popper][int(pair["offset"])] = int(pair["popTime"]) + int(pair["invisibleTime"])
        except (ValueError, KeyError, TypeError, RecursionError):
            faults.append("a pair is not that of a popped message")
    if faults:
        notes.append(f"not all of the messages in hand in RocksDB ({KV_PLACE}) can be read: {faults[0]}")


def _add_orders(files: StoreFiles, held: dict[Popper, dict[int, int]], notes: list[str]) -> None:
    """Add what ordered pops took and was not acknowledged."""
    if files.log_only:
        return
    orders = fastjson.load(files.directory, ORDERS)
    table = orders.value.get("table", {})
    unread = int(orders.used is None and bool(orders.findings)) + (not isinstance(table, dict))
    for key, queues in table.items() if isinstance(table, dict) else ():
        topic, _, group = key.partition("@")
        for queue_id, order in queues.items() if isinstance(queues, dict) else ():
            try:
                first, *steps = order["o"]
                times, bits, until = order.get("ot") or {}, int(order.get("cm", 0)), int(order["popTime"]) + int(order["i"])
                own = {int(at): int(time) for at, time in times.items()}
                for number, at in enumerate((first, *(first + step for step in steps[:_MOST_OFFSETS]))):
                    if not bits >> number & 1:
                        held[group, topic, int(queue_id)][int(at)] = own.get(int(at), until)
            except (ValueError, KeyError, TypeError, AttributeError):
                unread += 1
    if unread:
        notes.append(f"{ORDERS} cannot be read, or not all of it: ordered pops may have further messages in hand")
