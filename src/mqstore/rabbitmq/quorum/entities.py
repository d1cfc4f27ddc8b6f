"""What a quorum queue's machine keeps: messages, consumers, publishers, the worker of dead letters, the configuration.

    >>> message = message_from(7, ImproperList((5,), 1000))
    >>> message.index, message.size, message.expiry, message.delivery_count
    (7, 5, 1000, None)

Format: docs/formats/rabbitmq-quorum.md, sections 7 and 8.
"""

from __future__ import annotations

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
