r"""The state of a quorum queue's machine as snapshots have it, in the form of each version, and its conversion to the next.

    message   0, 1: {Num, {Index, {Header, Body | empty}}}; of a message that is only counted: {'$prefix_msg' | '$empty_msg', Header},
              {Header, empty}, Header
              2 to 8: [Index | Header]; 8 also one integer, bits 0 to 43 the index, bits 44 to 58 the size
    Header    Size | [Size | Expiry] | #{size, delivery_count, acquired_count, expiry, anns}

    >>> message = read_message((5 << 44) | 7)
    >>> message.index, message.size
    (7, 5)
    >>> message = read_message(ImproperList((7, 5), 1000))
    >>> message.index, message.size, message.expiry
    (7, 5, 1000)

FIFOs: `lqueue` {Length, In, Out} or {Length, {In, Out}}, `queue` {In, Out}; the items are Out, then In reversed.

Format: docs/formats/rabbitmq-quorum.md, section 8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from mqstore.rabbitmq.erlang.terms import Atom, ImproperList, Pairs, Term
from mqstore.rabbitmq.quorum.commands import key_of, message_facts, pid_of
from mqstore.rabbitmq.quorum.entities import (
    DEFAULT_TIMEOUT,
    Configuration,
    Consumer,
    DeadLetterWorker,
    Enqueuer,
    Message,
    dead_letter_handler,
    message_from,
)
from mqstore.rabbitmq.quorum.machine import DEFAULT_PRIORITY, HIGHEST_PRIORITY, Machine
from mqstore.rabbitmq.quorum.member_config import resource_names
from mqstore.rabbitmq.quorum.rules import NEWEST, RULES

_INDEX_BITS, _SIZE_BITS = 44, 15
_HIGH_BECOMES = 9  # the priority of the upper of two levels, in version 8


class BadStateError(ValueError):
    """A state that is not of the form of its version."""


def load(state: Term, version: int, left: Callable[[Message, str, int], None] | None = None) -> Machine:
    """Return the machine with a state of a snapshot. Raises BadStateError."""
    if not 0 <= version <= NEWEST:
        raise BadStateError(f"a state of version {version} of the machine; versions 0 to {NEWEST} are read")
    machine = Machine(version, left)
    try:
        if type(state) is not tuple or state[0] != "rabbit_fifo":
            raise BadStateError("a state is {rabbit_fifo, …}")
        _configure(machine, state[1], version)
        (_load_old if version < 2 else _load_new)(machine, state)
    except BadStateError:
        raise
    except (TypeError, IndexError, ValueError, KeyError, AttributeError) as error:
        raise BadStateError(f"a state of version {version} has another form than expected ({type(error).__name__})") from None
    machine.timed = any(message.expiry is not None for message in machine.all_messages())
    machine.ready.count = len(machine.ready.returns) + sum(map(len, machine.ready.levels.values()))
    return machine


def queue_of(state: Term) -> tuple[str | None, str | None]:
    """Return the vhost and the queue that a state names; None for what it does not name."""
    with suppress(TypeError, IndexError, KeyError):
        return resource_names(state[1][2])
    return None, None


def convert(machine: Machine, version: int, ts: int) -> None:
    """Bring a machine to a higher version. ts: the machine's time, ms."""
    while machine.version < min(version, NEWEST):
        conversion = _CONVERSIONS.get(machine.version)
        if conversion is not None:
            conversion(machine, ts)
        machine.version += 1
        machine.rules = RULES[machine.version]
        machine.ready.weighted = machine.rules.levels == 2


def _to_2(machine: Machine, ts: int) -> None:
    machine.config.message_ttl = None
    for enqueuer in machine.enqueuers.values():
        for _, index, _, facts in enqueuer.pending:
            machine.ready.add(0, Message(index, facts.body))
        enqueuer.pending.clear()


def _to_3(machine: Machine, ts: int) -> None:
    for consumer in (*machine.consumers.values(), *machine.waiting):
        if consumer.mode == "simple_prefetch" and consumer.stated_prefetch is not None:
            consumer.prefetch = consumer.stated_prefetch


def _to_4(machine: Machine, ts: int) -> None:
    for message in (*machine.ready.returns, *(message for consumer in machine.consumers.values() for message in consumer.in_hand.values())):
        message.acquired_count = message.delivery_count


def _to_8(machine: Machine, ts: int) -> None:
    machine.ready.levels = {_HIGH_BECOMES if level else DEFAULT_PRIORITY: queue for level, queue in machine.ready.levels.items()}
    for consumer in (*machine.consumers.values(), *machine.waiting):
        consumer.timeout = DEFAULT_TIMEOUT
        consumer.deadlines = dict.fromkeys(consumer.in_hand, ts + DEFAULT_TIMEOUT)
        if consumer.status == "suspected_down":
            consumer.status = ("suspected_down", "up")


_CONVERSIONS: dict[int, Callable[[Machine, int], None]] = {1: _to_2, 2: _to_3, 3: _to_4, 7: _to_8}


# messages


def read_message(term: Term) -> Message:
    """Return a message of version 2 or newer. Raises BadStateError."""
    if type(term) is int:
        return Message(term & ((1 << _INDEX_BITS) - 1), term >> _INDEX_BITS & ((1 << _SIZE_BITS) - 1))
    if isinstance(term, ImproperList) and type(term.items[0]) is int:
        rest = term.items[1:]
        header = ImproperList(rest, term.tail) if rest else term.tail
        return message_from(term.items[0], header)
    raise BadStateError("a message is [Index | Header]")


def _dead_letter(term: Term) -> tuple[str, Message]:
    """Return reason and message of [Reason | Message]."""
    if isinstance(term, ImproperList) and isinstance(term.items[0], Atom):
        rest = term.items[1:]
        return str(term.items[0]), read_message(ImproperList(rest, term.tail) if rest else term.tail)
    raise BadStateError("a dead letter is [Reason | Message]")


def _placeholder(term: Term) -> Message:
    """Return a message of version 0 or 1; -1 is the index of one that is only counted."""
    if type(term) is tuple and len(term) == 2:
        first, second = term
        if first in ("$prefix_msg", "$empty_msg"):
            return message_from(-1, second)
        if second == "empty":
            return message_from(-1, first)
        if type(first) is int and type(second) is tuple and len(second) == 2:
            if type(second[1]) is tuple and len(second[1]) == 2:  # {Num, {Index, {Header, Body}}}
                return message_from(second[0], second[1][0])
            return message_from(first, second[0])  # {Index, {Header, Body}}
    return message_from(-1, term)


# containers


def _items(term: Term) -> list[Term]:
    """Return the items of a FIFO in order: {In, Out}, {Length, In, Out, …} or {Length, {In, Out}}."""
    if type(term) is tuple and len(term) >= 2:
        if type(term[0]) is list:
            into, out = term[0], term[1]
        elif type(term[1]) is tuple:
            into, out = term[1][0], term[1][1]
        else:
            into, out = term[1], term[2]
        if type(into) is list and type(out) is list:
            return [*out, *reversed(into)]
    raise BadStateError("a FIFO is {In, Out} with or without its length")


def _map(term: Term) -> list[tuple[Term, Term]]:
    if isinstance(term, Pairs):
        return list(term)
    if isinstance(term, dict):
        return list(term.items())
    raise BadStateError("a map belongs here")


def _service(machine: Machine, term: Term) -> None:
    """Load a service queue: a FIFO, or {pqueue, [{-Priority, FIFO}]}."""
    if type(term) is tuple and term[0] == "pqueue":
        levels = [(-level if type(level) is int else 0, queue) for level, queue in term[1]]
    else:
        levels = [(0, term)]
    for level, queue in levels:
        fifo = queue[1:3] if type(queue) is tuple and queue and queue[0] == "queue" else queue
        keys = [key_of(key) for key in _items(fifo)]
        if keys:
            machine.service[level] = deque(keys)
            machine.queued.update(keys)


# versions 0 and 1


def _load_old(machine: Machine, state: tuple[Term, ...]) -> None:
    old = machine.version == 0
    shift = 0 if old else -1
    messages = [message for _, message in sorted(_map(state[2]))] if old else _items(state[2])
    returns = _items(state[5 + shift])
    prefix = state[12 + shift]
    if len(prefix) == 2:
        prefix_returns, prefix_messages = prefix
    else:
        prefix_returns, prefix_messages = prefix[1], prefix[3]
    machine.ready.returns.extend(map(_placeholder, (*prefix_returns, *returns)))
    ready = [*map(_placeholder, prefix_messages), *(_placeholder(message) for message in messages)]
    if ready:
        machine.ready.levels[0] = deque(ready)
    for pid, enqueuer in _map(state[7 + shift]):
        sender = Enqueuer(enqueuer[1])
        for item in enqueuer[2] if type(enqueuer[2]) is list else ():
            facts = message_facts(item[2])
            sender.pending.append((item[0], item[1], 0, facts))
        known = pid_of(pid)
        if known is not None:
            machine.enqueuers[known] = sender
    for key, consumer in _map(state[10 + shift]):
        found_key = key_of(key)
        machine.consumers[found_key] = _old_consumer(found_key, consumer)
    _service(machine, state[11 + shift])
    machine.ready.bytes = state[13 + shift]
    machine.waiting = [_old_consumer(key_of(key), consumer) for key, consumer in state[15 + shift]]


def _old_consumer(key: Term, term: tuple[Term, ...]) -> Consumer:
    consumer = Consumer(key, key[0], key[1])
    consumer.in_hand = {number: _placeholder(message) for number, message in _map(term[2])}
    consumer.next_id, consumer.credit, consumer.delivery_count = term[3], term[4], term[5]
    consumer.mode, consumer.once, consumer.status = str(term[6]), term[7] == "once", str(term[8])
    consumer.stated_prefetch = _prefetch(term[1])
    if len(term) > 9 and type(term[9]) is int:
        consumer.priority = term[9]
    return consumer


def _prefetch(meta: Term) -> int | None:
    prefetch = meta.get("prefetch") if isinstance(meta, dict) else None
    return prefetch if type(prefetch) is int else None


# versions 2 to 8


def _load_new(machine: Machine, state: tuple[Term, ...]) -> None:
    version = machine.version
    machine.ready.returns.extend(map(read_message, _items(state[4])))
    _load_ready(machine, state[2])
    for pid, enqueuer in _map(state[6]):
        known = pid_of(pid)
        if known is not None:
            machine.enqueuers[known] = Enqueuer(enqueuer[1])
    for key, consumer in _map(state[9]):
        found_key = key_of(key)
        machine.consumers[found_key] = _new_consumer(found_key, consumer, version)
    _service(machine, state[10])
    _load_dead_letters(machine, state[11])
    machine.ready.bytes = state[12]
    machine.waiting = [_new_consumer(key_of(key), consumer, version) for key, consumer in state[14]]
    if version >= 8 and type(state[17]) is tuple:
        _load_delayed(machine, state[17])


def _load_ready(machine: Machine, term: Term) -> None:
    version = machine.version
    if version < 4:
        levels = {0: _items(term)}
    elif version < 8:
        levels = {1: _items(term[1]), 0: _items(term[2])}
        machine.ready.turn = term[4] if len(term) > 4 and type(term[4]) is int else 0
    else:
        levels = {HIGHEST_PRIORITY - level: _items(queue) for level, queue in _map(term[1])}
    machine.ready.levels = {level: deque(map(read_message, items)) for level, items in levels.items() if items}


def _new_consumer(key: Term, term: tuple[Term, ...], version: int) -> Consumer:
    config = term[1]
    consumer = Consumer(key, config[3], pid_of(config[2]))
    mode = config[4]
    if type(mode) is tuple:
        consumer.mode, number = str(mode[0]), mode[1]
        consumer.prefetch = number if consumer.mode == "simple_prefetch" else 0
    else:
        consumer.mode = str(mode)
    consumer.once, consumer.priority = config[5] == "once", config[6]
    consumer.stated_prefetch = _prefetch(config[1])
    consumer.status = (str(term[2][0]), str(term[2][1])) if type(term[2]) is tuple else str(term[2])
    consumer.next_id, consumer.credit, consumer.delivery_count = term[3], term[5], term[6]
    for number, item in _map(term[4]):
        deadline, message = _with_deadline(item) if version >= 8 else (None, item)
        consumer.in_hand[number] = read_message(message)
        if deadline is not None:
            consumer.deadlines[number] = deadline
    if version >= 8:
        consumer.timeout = config[7] if len(config) > 7 and type(config[7]) is int else DEFAULT_TIMEOUT
        consumer.timed_out = list(term[8]) if len(term) > 8 and type(term[8]) is list else []
    return consumer


def _with_deadline(item: Term) -> tuple[int | None, Term]:
    """Return deadline and message of {Deadline, Message} or [Deadline | Message]."""
    if type(item) is tuple and len(item) == 2:
        return item[0], item[1]
    if isinstance(item, ImproperList) and len(item.items) >= 2:
        return item.items[0], ImproperList(item.items[1:], item.tail)
    if isinstance(item, ImproperList) and type(item.tail) is int:
        return item.items[0], item.tail
    raise BadStateError("a message in hand is {Deadline, Message}")


def _load_dead_letters(machine: Machine, term: Term) -> None:
    worker = term[1]
    if type(worker) is tuple:
        in_hand = {number: _dead_letter(item) for number, item in _map(worker[3])}
        machine.held.worker = DeadLetterWorker(pid_of(worker[1]), worker[2], in_hand, worker[4])
    machine.held.waiting.extend(map(_dead_letter, _items(term[2])))
    machine.held.bytes = sum(message.size for _, message in machine.held)


def _load_delayed(machine: Machine, term: Term) -> None:
    size_and_tree = term[1]
    for key, message in _tree(size_and_tree[1]):
        machine.delayed.append((key.items[0], key.tail, read_message(message)))
    machine.delayed.sort(key=lambda item: item[:2])
    for token, key in _map(term[3]):
        if type(token) is bytes:
            machine.deferred[token] = (key.items[0], key.tail)


def _tree(root: Term) -> Iterator[tuple[Any, Term]]:
    """Yield the keys and values of a gb_tree, in no order."""
    todo = [root]
    while todo:
        node = todo.pop()
        if type(node) is tuple:
            key, value, smaller, larger = node
            yield key, value
            todo += [smaller, larger]


# the configuration in a state


def _configure(machine: Machine, term: tuple[Term, ...], version: int) -> None:
    config = Configuration()
    shift = 0 if version == 0 else 1
    config.dead_letters = dead_letter_handler(term[4])
    config.reject_publish = version > 0 and term[6] == "reject_publish"
    numbers = [value if type(value) is int else None for value in (term[6 + shift], term[7 + shift], term[9 + shift])]
    config.max_length, config.max_bytes, config.delivery_limit = numbers
    config.single_active = term[8 + shift] == "single_active"
    if version >= 2 and type(term[12]) is int:
        config.message_ttl = term[12]
    if version >= 8 and type(term[14]) is tuple and len(term[14]) == 3:
        config.delayed_retry = (str(term[14][0]), term[14][1], term[14][2])
    machine.config = config
