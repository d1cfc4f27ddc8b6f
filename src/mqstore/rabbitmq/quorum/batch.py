"""Publishes and settles applied to a quorum queue's machine many at once, which is nearly all of most logs.

    entries    publish publish settle return publish settle settle purge publish
    applied    |--- at once ---------|        |--- at once --------|

Only what a settle names decides what is delivered next, so a kernel runs the deliveries with numbers alone: of messages that come and go
within a batch no object is made. That holds for a plain queue: consumers with a prefetch that are up, of one priority; messages of one
priority without a time to live; no limit of length, no single active consumer. Any other state, command or message is left to the
machine, which defines what each of them does.

Format: docs/formats/rabbitmq-quorum.md, section 7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.kernels.rabbitmq import raft_commands as raft
from mqstore.rabbitmq.erlang.terms import Term
from mqstore.rabbitmq.quorum.commands import Pid
from mqstore.rabbitmq.quorum.entities import Consumer, Enqueuer, Message
from mqstore.rabbitmq.quorum.machine import DEFAULT_PRIORITY, SERIALS, Machine

Longs = NDArray[np.int64]

MOST_PLACES = 1 << 22  # of message ids, of all consumers
NO_ID = np.iinfo(np.int64).max
WORTH = 16  # messages in hand for each entry, above which it is faster to apply them one by one


def apply_batch(
    machine: Machine,
    index: Longs,
    columns: Longs,
    octets: Sequence[bytes],
    data: Bytes,
    key_of: Callable[[bytes], Term],
    note: Callable[[Longs, Longs], None],
) -> int:
    """Apply the first of some publishes and settles; return how many: none if the queue is not a plain one.

    columns: rows of the kernel; octets: the key of each, empty if it has none; data: what the kernel has read. key_of: returns the term
    of a key. note: called with the indexes of messages that were settled, and those of the settles.
    """
    level = DEFAULT_PRIORITY if machine.rules.levels > 2 else 0
    consumers = list(machine.consumers.values())
    in_hand = sum(len(consumer.in_hand) for consumer in consumers)
    if in_hand > WORTH * len(index) or not _is_plain(machine, consumers, level):
        return 0
    publish = columns[:, raft.KIND] == raft.PUBLISH
    count = min(_plain_rows(machine, columns, publish, level), int(np.searchsorted(np.cumsum(columns[:, raft.IDS_COUNT]), MOST_PLACES)))
    who, numbers = _publishers_and_consumers(machine, columns[:count], publish, octets, consumers, key_of)
    count = len(who)
    if not count:
        return 0
    publish, columns, index = publish[:count], columns[:count], index[:count]

    # the ids of settles
    settled = columns[:, raft.IDS_COUNT].copy()
    first = np.cumsum(settled) - settled
    named = message_ids(data, columns)

    # what is there: in hands, then ready, as many as can be delivered, then what is published
    held = [(consumer, number, message) for consumer in consumers for number, message in consumer.in_hand.items()]
    credit = sum(consumer.credit for consumer in consumers)
    ready = min(machine.ready.count, credit + len(named))
    new = int(publish.sum())
    table = np.zeros((len(consumers), raft.CONSUMER_COLUMNS), np.int64)
    lowest = np.full(len(consumers), NO_ID)
    np.minimum.at(lowest, np.repeat(who, settled), named)
    places = 0
    for row, consumer in enumerate(consumers):
        # a message in hand that no settle names needs no place
        low = min(consumer.next_id, max(min(consumer.in_hand, default=consumer.next_id), int(lowest[row])))
        table[row] = consumer.credit, consumer.next_id, low, places
        places += consumer.next_id - low + ready + new
        if places > MOST_PLACES:
            return 0
    where = np.full(places, raft.NOTHING, np.int64)
    position = {id(consumer): row for row, consumer in enumerate(consumers)}
    for message, (consumer, number, _) in enumerate(held):
        row = position[id(consumer)]
        if number >= table[row, raft.LOW_ID]:
            where[table[row, raft.PLACE] + number - table[row, raft.LOW_ID]] = message
    turns = np.zeros(len(consumers), np.int64)
    service = next(iter(machine.service.values()), ())
    for place, key in enumerate(service):
        turns[place] = position[id(machine.consumers[key])]
    messages = np.full((len(held) + ready + new, raft.MESSAGE_COLUMNS), raft.NOTHING, np.int64)
    before = table.copy()
    head, start, waiting = raft.deliver(
        who, first, settled, named, table, where, turns, len(service), messages, len(held), len(held) + ready
    )

    # publishers
    for key, number in numbers.items():
        pid = key_of(key)
        assert isinstance(pid, Pid)
        machine.enqueuers.setdefault(pid, Enqueuer()).next_seq = number

    # messages that were delivered: those that were ready, then those that were published
    ts = columns[:, raft.TS]
    given = head - len(held)
    of_old = min(given, ready)
    published = np.flatnonzero(publish)
    body = columns[published, raft.BODY]
    sizes = body + columns[published, raft.META] if machine.rules.header_size else body
    machine.ready.bytes += int(sizes[given - of_old :].sum())
    from_returns = min(of_old, len(machine.ready.returns))
    old = [machine.ready.returns.popleft() for _ in range(from_returns)]
    if of_old > from_returns:
        queue = machine.ready.levels[level]
        old += [queue.popleft() for _ in range(of_old - from_returns)]
    machine.ready.bytes -= sum(message.size for message in old)
    machine.ready.turn = (machine.ready.turn + given - from_returns) % 3
    machine.ready.count += new - given
    counts = columns[published, raft.COUNT].tolist() if machine.rules.acquired else [raft.NOTHING] * new
    indexes = index[published]

    def made(number: int) -> Message:
        known = counts[number]
        return Message(int(indexes[number]), int(sizes[number]), None, known if known >= 0 else None)

    waits = [made(number) for number in range(given - of_old, new)]
    if waits:
        machine.ready.levels.setdefault(level, deque()).extend(waits)
    elif level in machine.ready.levels and not machine.ready.levels[level]:
        del machine.ready.levels[level]

    # messages that were settled
    left = messages[:, raft.LEFT]
    gone = np.flatnonzero(left >= 0)
    own = np.array([message.index for _, _, message in held] + [message.index for message in old], np.int64)
    passed = np.concatenate([own, indexes[: given - of_old]])
    note(passed[gone], index[left[gone]])
    for message in gone[gone < len(held)].tolist():
        consumer, number, _ = held[message]
        del consumer.in_hand[number]
        consumer.deadlines.pop(number, None)
    for message in (np.flatnonzero(left[len(held) : head] < 0)).tolist():
        holder, number, moment = messages[len(held) + message, raft.HOLDER : raft.GIVEN + 1].tolist()
        consumer = consumers[holder]
        consumer.in_hand[number] = old[message] if message < of_old else made(message - of_old)
        if machine.rules.delays:
            consumer.deadlines[number] = int(ts[moment]) + consumer.timeout

    # consumers
    for row, consumer in enumerate(consumers):
        consumer.credit, consumer.next_id = table[row, : raft.NEXT_ID + 1].tolist()
        delivered = consumer.delivery_count + consumer.next_id - int(before[row, raft.NEXT_ID])
        consumer.delivery_count = delivered % SERIALS if machine.rules.acquired else delivered
    in_turn = [consumers[turns[(start + place) % len(turns)]] for place in range(waiting)]
    machine.serve_in_turn(in_turn)
    machine.reached(int(index[-1]), int(ts[-1]))
    return count


def message_ids(data: Bytes, columns: Longs) -> Longs:
    """Return the message ids of the settles among rows of the kernel, one after the other."""
    ids = np.empty((int(columns[columns[:, raft.KIND] == raft.SETTLE, raft.IDS_COUNT].sum()), 1), np.int64)
    raft.message_ids(data, np.ascontiguousarray(columns), ids)
    return ids[:, 0]


def _is_plain(machine: Machine, consumers: Sequence[Consumer], level: int) -> bool:
    """Return whether publishes and settles alone decide what is delivered."""
    config, rules = machine.config, machine.rules
    limited = (config.max_length is not None or config.max_bytes is not None) and not config.reject_publish
    if machine.timed or config.message_ttl is not None or limited or config.single_active or machine.held.worker is not None:
        return False
    if not set(machine.ready.levels) <= {level} or len(machine.service) > 1 or (machine.service and machine.ready.count):
        return False
    if len({consumer.priority if rules.own_priority else 0 for consumer in consumers}) > 1:
        return False
    served = {key for queue in machine.service.values() for key in queue}
    return served <= machine.consumers.keys() and all(
        consumer.status == "up"
        and not consumer.once
        and consumer.mode == "simple_prefetch"
        and (consumer.key in served) == (consumer.credit > 0)
        and (not rules.capped_credit or consumer.prefetch <= 0 or consumer.credit + len(consumer.in_hand) <= consumer.prefetch)
        for consumer in consumers
    )


def _plain_rows(machine: Machine, columns: Longs, publish: NDArray[np.bool_], level: int) -> int:
    """Return how many rows come before a message with a time to live or another priority."""
    priority = columns[:, raft.PRIORITY]
    other = (columns[:, raft.TTL] >= 0) & machine.rules.expiry
    if machine.rules.levels == 2:
        other |= priority > DEFAULT_PRIORITY
    elif machine.rules.levels > 2:
        other |= (priority >= 0) & (priority != level)
    other &= publish
    return int(other.argmax()) if other.any() else len(columns)


def _publishers_and_consumers(
    machine: Machine,
    columns: Longs,
    publish: NDArray[np.bool_],
    octets: Sequence[bytes],
    consumers: Sequence[Consumer],
    key_of: Callable[[bytes], Term],
) -> tuple[Longs, dict[bytes, int]]:
    """Return the consumer of each row, NOTHING for a publish, up to a row that is not plain; and the next number of each publisher."""
    following: dict[bytes, int] = {}
    number = {id(consumer): row for row, consumer in enumerate(consumers)}
    known: dict[bytes | int, int] = {}
    who = []
    for is_publish, key, seq in zip(publish.tolist(), octets, columns[:, raft.SEQ].tolist(), strict=False):
        if is_publish:
            if key:
                expected = following.get(key)
                if expected is None:
                    pid = key_of(key)
                    enqueuer = machine.enqueuers.get(pid) if isinstance(pid, Pid) else None
                    if not isinstance(pid, Pid) or (enqueuer is not None and enqueuer.pending):
                        break
                    expected = 1 if enqueuer is None else enqueuer.next_seq
                if seq != expected:
                    break
                following[key] = seq + 1
            who.append(raft.NOTHING)
            continue
        consumer = known.get(key or seq)
        if consumer is None:
            holder = machine.consumer(key_of(key) if key else seq)
            if holder is None:
                break
            consumer = known[key or seq] = number[id(holder)]
        who.append(consumer)
    return np.array(who, np.int64), following
