"""What a quorum queue's machine keeps: messages, consumers, publishers, dead letters, the configuration.

    >>> message = message_from(7, ImproperList((5,), 1000))
    >>> message.index, message.size, message.expiry, message.delivery_count
    (7, 5, 1000, None)

Format: docs/formats/rabbitmq-quorum.md, sections 7 and 8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqstore.rabbitmq.erlang.terms import Atom, ImproperList, Pairs, Term
from mqstore.rabbitmq.quorum.commands import MessageFacts, Pid

DEFAULT_TIMEOUT = 1_800_000  # ms in which a consumer must settle


class Message:
    """A message in the queue. index: of its entry, -1 for a placeholder. size: bytes as the machine counts them. expiry: ms, or None."""

    __slots__ = ("acquired_count", "annotations", "delivery_count", "expiry", "index", "size")

    def __init__(
        self,
        index: int,
        size: int,
        expiry: int | None = None,
        delivery_count: int | None = None,
        acquired_count: int | None = None,
        annotations: Term = None,
    ) -> None:
        self.index = index
        self.size = size
        self.expiry = expiry
        self.delivery_count = delivery_count
        self.acquired_count = acquired_count
        self.annotations = annotations


@dataclass(slots=True)
class Consumer:
    """A consumer. in_hand: messages by their number for it; deadlines: ms, by the same number. mode: `simple_prefetch` or `credited`."""

    key: Term
    tag: Term
    pid: Pid | None
    mode: str = "simple_prefetch"
    prefetch: int = 0
    once: bool = False
    priority: int = 0
    timeout: int = DEFAULT_TIMEOUT
    status: Any = "up"
    next_id: int = 0
    credit: int = 0
    delivery_count: int = 0
    in_hand: dict[int, Message] = field(default_factory=dict)
    deadlines: dict[int, int] = field(default_factory=dict)
    timed_out: list[int] = field(default_factory=list)
    stated_prefetch: int | None = None  # what the client asked for; the prefetch from version 3 on


@dataclass(slots=True)
class Enqueuer:
    """A publisher. next_seq: the number of its next message; pending: messages that came early."""

    next_seq: int = 1
    pending: list[tuple[int, int, int, MessageFacts]] = field(default_factory=list)


@dataclass(slots=True)
class DeadLetterWorker:
    """What delivers the held dead letters. in_hand: reason and message, by number."""

    pid: Pid | None
    prefetch: int
    in_hand: dict[int, tuple[str, Message]] = field(default_factory=dict)
    next_id: int = 0


class HeldDeadLetters:
    """Dead letters that are held until their targets have confirmed them, with the reason: those in the worker's hand first.

    bytes: of all.
    """

    __slots__ = ("bytes", "waiting", "worker")

    def __init__(self) -> None:
        self.waiting: deque[tuple[str, Message]] = deque()
        self.worker: DeadLetterWorker | None = None
        self.bytes = 0

    def __iter__(self) -> Iterator[tuple[str, Message]]:
        if self.worker is not None:
            yield from (self.worker.in_hand[number] for number in sorted(self.worker.in_hand))
        yield from self.waiting

    def __len__(self) -> int:
        return len(self.waiting) + (0 if self.worker is None else len(self.worker.in_hand))

    def add(self, reason: str, messages: Sequence[Message]) -> None:
        self.waiting.extend((reason, message) for message in messages)
        self.bytes += sum(message.size for message in messages)

    def serve(self, worker: DeadLetterWorker) -> None:
        """Another worker comes; what the one before it had waits again."""
        if self.worker is not None:
            for number in sorted(self.worker.in_hand, reverse=True):
                self.waiting.appendleft(self.worker.in_hand[number])
        self.worker = worker

    def deliver(self) -> None:
        """Give the worker as many as it takes."""
        worker = self.worker
        while worker is not None and self.waiting and len(worker.in_hand) < worker.prefetch:
            worker.in_hand[worker.next_id] = self.waiting.popleft()
            worker.next_id += 1

    def confirmed(self, numbers: Iterable[Term]) -> list[Message]:
        """Return the messages in the worker's hand with these numbers, which are no longer held."""
        in_hand = {} if self.worker is None else self.worker.in_hand
        gone = [in_hand.pop(number)[1] for number in numbers if type(number) is int and number in in_hand]
        self.bytes -= sum(message.size for message in gone)
        return gone

    def clear(self) -> None:
        """Drop all; the worker stays."""
        self.waiting.clear()
        self.bytes = 0
        if self.worker is not None:
            self.worker.in_hand.clear()


class ReadyMessages:
    """Messages that can be delivered, in order: those that came back, then by priority; of two priorities the lower has every third turn.

    returns: those that came back. levels: the others by priority, none empty. count: of all; bytes: of all and of the delayed ones.
    weighted: two priorities take turns.
    """

    __slots__ = ("bytes", "count", "levels", "returns", "turn", "weighted")

    def __init__(self, weighted: bool) -> None:
        self.weighted = weighted
        self.returns: deque[Message] = deque()
        self.levels: dict[int, deque[Message]] = {}
        self.count = self.bytes = self.turn = 0

    def __iter__(self) -> Iterator[Message]:
        yield from self.returns
        if not self.weighted:
            for level in sorted(self.levels, reverse=True):
                yield from self.levels[level]
            return
        high, low = (list(self.levels.get(level, ())) for level in (1, 0))
        above = below = 0
        for turn in range(self.turn, self.turn + len(high) + len(low)):
            if below == len(low) or (above < len(high) and (turn % 3 != 2 or high[above].index < low[below].index)):
                yield high[above]
                above += 1
            else:
                yield low[below]
                below += 1

    def all(self) -> Iterator[Message]:
        """Yield all, in no order."""
        yield from self.returns
        for queue in self.levels.values():
            yield from queue

    def add(self, level: int, message: Message) -> None:
        queue = self.levels.get(level)
        if queue is None:
            queue = self.levels[level] = deque()
        queue.append(message)
        self.count += 1
        self.bytes += message.size

    def take_back(self, message: Message) -> None:
        """Add a message that came back; its bytes are counted."""
        self.returns.append(message)
        self.count += 1

    def first(self) -> Message:
        """Return the next message without taking it."""
        return self.returns[0] if self.returns else self.levels[self._level()][0]

    def _level(self) -> int:
        """Return the level to take the next message from. Of two, the lower one has every third turn, unless the upper one is older."""
        levels = self.levels
        if len(levels) == 1:
            return next(iter(levels))
        if not self.weighted:
            return max(levels)
        return 0 if self.turn == 2 and levels[1][0].index >= levels[0][0].index else 1

    def take(self) -> Message:
        """Take the next message."""
        if self.returns:
            message = self.returns.popleft()
        else:
            level = self._level()
            queue = self.levels[level]
            message = queue.popleft()
            if not queue:
                del self.levels[level]
            self.turn = (self.turn + 1) % 3
        self.count -= 1
        self.bytes -= message.size
        return message

    def expired(self, ts: int) -> list[Message]:
        """Take what has expired at the head of the returns and of every priority."""
        gone = []
        for queue in (self.returns, *(self.levels[level] for level in sorted(self.levels, reverse=True))):
            while queue:
                expiry = queue[0].expiry
                if expiry is None or expiry > ts:
                    break
                gone.append(queue.popleft())
        self.levels = {level: queue for level, queue in self.levels.items() if queue}
        self.count -= len(gone)
        self.bytes -= sum(message.size for message in gone)
        return gone

    def clear(self) -> None:
        self.returns.clear()
        self.levels.clear()
        self.count = self.bytes = self.turn = 0


@dataclass(slots=True)
class Configuration:
    """The configuration of a queue, as its declaration and policies have it. None: not set. Times in ms."""

    max_length: int | None = None
    max_bytes: int | None = None
    reject_publish: bool = False
    delivery_limit: int | None = None
    message_ttl: int | None = None
    single_active: bool = False
    dead_letters: str = ""  # `at_least_once`, `at_most_once`, or empty: none
    delayed_retry: tuple[str, int, int] | None = None

    def update(self, config: Term, version: int) -> None:
        """Take a configuration as Erlang has it; absent keys become their defaults."""
        items = named(config)
        self.max_length, self.max_bytes = integer(items.get("max_length")), integer(items.get("max_bytes"))
        self.delivery_limit, self.message_ttl = integer(items.get("delivery_limit")), integer(items.get("msg_ttl"))
        if self.delivery_limit is not None and self.delivery_limit < 0:
            self.delivery_limit = None  # no limit
        self.reject_publish = items.get("overflow_strategy") == "reject_publish"
        self.single_active = items.get("single_active_consumer_on") == "true"
        if "dead_letter_handler" in items or version < 2:
            self.dead_letters = dead_letter_handler(items.get("dead_letter_handler"))
        retry = items.get("delayed_retry")
        self.delayed_retry = None
        if type(retry) is tuple and len(retry) == 3 and type(retry[1]) is int and type(retry[2]) is int:
            self.delayed_retry = (str(retry[0]), retry[1], retry[2])


def dead_letter_handler(handler: Term) -> str:
    """Return `at_least_once`, `at_most_once` or an empty text. Before 3.10 a handler is {Module, Function, Arguments}."""
    if handler == "at_least_once":
        return "at_least_once"
    if type(handler) is tuple and len(handler) == 2 and handler[0] == "at_most_once":
        return "at_most_once"
    if type(handler) is tuple and len(handler) == 3:
        arguments = handler[2]
        return "" if type(arguments) is list and arguments and arguments[0] == "undefined" else "at_most_once"
    return ""


def named(term: Term) -> dict[str, Term]:
    items = term.items() if isinstance(term, dict) else term if isinstance(term, Pairs) else ()
    return {str(key): value for key, value in items if isinstance(key, Atom)}


def integer(term: Term) -> int | None:
    return term if type(term) is int else None


def message_from(index: int, header: Term) -> Message:
    """Return a message with a header as states and `requeue` have it: Size, [Size | Expiry], or a map."""
    if type(header) is int:
        return Message(index, header)
    if isinstance(header, ImproperList) and len(header.items) == 1:
        return Message(index, integer(header.items[0]) or 0, integer(header.tail))
    items = named(header)
    expiry, delivered, acquired = (integer(items.get(name)) for name in ("expiry", "delivery_count", "acquired_count"))
    return Message(index, integer(items.get("size")) or 0, expiry, delivered, acquired, items.get("anns"))


def count_delivery(message: Message, failed: bool, annotations: Term) -> None:
    """Count a delivery that ended without a settle."""
    message.acquired_count = (message.acquired_count or 0) + 1
    if isinstance(annotations, dict) and annotations:
        message.annotations = {**(message.annotations or {}), **annotations}
    if failed:
        message.delivery_count = (message.delivery_count or 0) + 1


def without(numbers: list[int], settled: list[int]) -> list[int]:
    left = list(numbers)
    for number in settled:
        if number in left:
            left.remove(number)
    return left


def consumer_mode(spec: tuple[Term, ...]) -> tuple[bool, str, int]:
    """Return whether a consumer goes when it is done, its mode, and the prefetch or the initial count of deliveries."""
    once = spec[0] == "once"
    if len(spec) == 3:
        return once, "credited" if spec[2] == "credited" else "simple_prefetch", integer(spec[1]) or 0
    if type(spec[1]) is tuple and len(spec[1]) == 2:
        return once, "credited" if spec[1][0] == "credited" else "simple_prefetch", integer(spec[1][1]) or 0
    return once, "credited", 0


def consumer_priority(settings: dict[str, Term], stated: bool) -> int:
    priority = settings.get("priority")
    if stated and type(priority) is int:
        return priority
    arguments = settings.get("args")
    for argument in arguments if type(arguments) is list else ():
        if type(argument) is tuple and len(argument) == 3 and argument[0] == b"x-priority" and type(argument[2]) is int:
            return argument[2]
    return 0


def status_after(target: str, consumer: Consumer) -> Any:
    """Return the status of a consumer of version 8 after an event: what it was is kept inside."""
    status = consumer.status
    if type(status) is not tuple:
        return (target, status) if target in ("suspected_down", "timeout") else target
    if target == "suspected_down" and status[0] == "timeout":
        return ("suspected_down", status[1])
    if target == "up":
        return ("timeout", status[1]) if consumer.timed_out else status[1]
    return status
