"""Messages of a store, sent again to a running broker over AMQP 0-9-1, each confirmed by it.

A message goes to the queue that it was in (through the default exchange), or to its original exchange, with its properties unchanged. It
counts when the broker has confirmed it; up to WINDOW messages are in flight. Unroutable messages are returned and counted.

A resume file has the number of messages, from the first one on, that have an answer without a gap, and which of them were not delivered:
returned, because there was no queue or route for them, or refused. A run that resumes sends those again, and the messages after them:
after a crash some of the last WINDOW messages may be sent twice, but none is left out. The file belongs to one store and one selection.

    {"about": "…", "confirmed": 2500, "again": [[17, 17], [40, 61]]}        numbers from 0, first and last of each range

Properties are sent as the broker would deliver them, except for two that a broker acts on: `user_id`, if it is not the user of the
connection, because a broker rejects such a message; and the headers CC and BCC of a message sent to its own queue, because they would
publish it to other queues that have their own copy.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqstore.errors import TargetError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.files.location import without_password
from mqstore.files.state_file import parse, read_state, rows, seal, text, whole
from mqstore.findings import Verdict
from mqstore.rabbitmq.amqp_channel import PATIENCE, TICK, AmqpChannel, connection_parameters
from mqstore.rabbitmq.erlang.terms import text_of
from mqstore.rabbitmq.message.message_term import MessageTerm
from mqstore.rabbitmq.message.properties import PropertiesError, properties_to_bin
from mqstore.rabbitmq.store import message_table
from mqstore.rabbitmq.store.fate import TRANSIENT
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.streams.rows import NOT_AMQP
from mqstore.table.columns import QueueSelection

UNREADABLE = "the bytes are not a message"
UNWRITABLE = "the properties cannot be read"
_REASONS = {
    str(Verdict.DAMAGED): "damaged: not all bytes can be trusted; --verdict damaged sends what can be read",
    str(Verdict.UNREACHABLE): "unreachable: no file has the message",
    NOT_AMQP: NOT_AMQP,
}
_NOT_MISSED = frozenset(map(str, (Verdict.CONSUMED, Verdict.UNINDEXED, Verdict.DUPLICATE)))
_COPIES = (b"CC", b"BCC", "CC", "BCC")


def outgoing_messages(
    store: RabbitMQStore,
    verdicts: frozenset[str],
    *,
    vhosts: frozenset[str] | None = None,
    queues: frozenset[str] | None = None,
    by_exchange: bool = False,
    user: str = "guest",
    into: str | None = None,
    skipped: Counter[str] | None = None,
) -> Iterator[OutgoingMessage]:
    """Yield the messages of these verdicts, in the order of the message table. by_exchange: send to the exchange instead of the queue.

    into: the queue for messages that are in none; by default these go to their exchange. skipped: counts live messages that are not sent,
    by reason; acknowledged messages, those of no queue and further copies are not among them.
    """
    left = Counter[str]() if skipped is None else skipped
    for batch in store.rows(QueueSelection(vhosts=vhosts, queues=queues, everything=True)):
        for row, verdict in enumerate(message_table.verdicts(batch, store.terms(batch))):
            if verdict not in verdicts:
                # what a broker drops at every start is not missed
                if verdict not in _NOT_MISSED and batch.table.fate[row] != TRANSIENT:
                    left[_REASONS.get(verdict, f"{verdict}: not among the verdicts to send")] += 1
                continue
            try:
                message = _message_of(store, batch, row, by_exchange=by_exchange, user=user, into=into)
            except PropertiesError:
                left[UNWRITABLE] += 1
                continue
            if message is None:
                left[UNREADABLE] += 1
            else:
                yield message
    for each in store.replayed_messages(QueueSelection(vhosts=vhosts, queues=queues)):
        if each.verdict not in verdicts:
            left[_REASONS.get(each.verdict, f"{each.verdict}: not among the verdicts to send")] += 1
        elif each.stored is None or each.properties is None:
            left[UNREADABLE if each.stored is None else UNWRITABLE] += 1
        elif each.leaves is not None:
            left[each.leaves] += 1
        else:
            block = properties_to_bin(without_actions(each.properties, user, to_queue=not by_exchange))
            yield _sent(each.stored, None if by_exchange else each.queue, block)


def outgoing_message(store: RabbitMQStore, rows: MessageRows, row: int, user: str) -> OutgoingMessage | None:
    """Return one row of the message table as it is sent again to its queue, None if its message is unreadable."""
    try:
        return _message_of(store, rows, row, by_exchange=False, user=user, into=None)
    except PropertiesError:
        return None


def _message_of(
    store: RabbitMQStore, rows: MessageRows, row: int, *, by_exchange: bool, user: str, into: str | None
) -> OutgoingMessage | None:
    """Return the same. Raises PropertiesError."""
    message = rows.table.message(row, store.directory)
    if message is None:
        return None
    queue = None if by_exchange else rows.queue if rows.indexed else into
    return _sent(message, queue, _property_block(message, user, rows.table.queue_addresses, to_queue=queue is not None))


def _sent(message: MessageTerm, queue: str | None, block: bytes) -> OutgoingMessage:
    if queue is not None:
        return OutgoingMessage("", queue, block, message.body)
    key = message.routing_keys[0] if message.routing_keys else b""
    return OutgoingMessage(text_of(message.exchange), text_of(key), block, message.body)


def _property_block(message: MessageTerm, user: str, queue_addresses: bool, *, to_queue: bool) -> bytes:
    properties = dict(message.delivered(queue_addresses))
    sent = without_actions(properties, user, to_queue=to_queue)
    if message.form == "basic_message" and message.properties_bin is not None and sent == properties:
        return message.properties_bin
    return properties_to_bin(sent)


def without_actions(given: Mapping[str, Any], user: str, *, to_queue: bool = True) -> dict[str, Any]:
    """Return properties without those that a broker acts upon: another user's id; to a queue CC and BCC, whose queues have their copy."""
    properties = {name: value for name, value in given.items() if name != "user_id" or value in (user, user.encode())}
    headers = properties.get("headers")
    if to_queue and isinstance(headers, list):
        properties["headers"] = [field for field in headers if field[0] not in _COPIES]
    return properties


MOST_AGAIN = 1 << 20  # messages to send again: at most a window of them is without an answer
WINDOW = 1000
NOTED = 0.5  # seconds between two writes of the resume file, at least
WINDOW_BYTES = 64 << 20
BATCH = 100
BLOCKED = 600.0  # seconds that a broker may block the connection


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message: its destination, encoded property block and body."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


@dataclass(slots=True)
class SendCounts:
    """Counts of a run. sent: published; confirmed: acknowledged by the broker; returned: of these, unroutable; refused: rejected.

    skipped: delivered by an earlier run.
    """

    sent: int = 0
    confirmed: int = 0
    returned: int = 0
    refused: int = 0
    skipped: int = 0


@dataclass(slots=True)
class _InFlight:
    """A published message without an answer. number: among all of the run and those before; body: a hash of it."""

    number: int
    size: int
    exchange: str
    routing_key: str
    properties: bytes
    body: int
    returned: bool = False


def _read_resume(file: Path, about: str) -> tuple[int, set[int]]:
    """Return how many messages have an answer, and which are to be sent again. about: describes the run.

    Raises UsageError for a file of another run, TargetError.
    """
    try:
        raw = read_state(file)
        if raw is None:
            return 0, set()
        noted = parse(raw, fields=("about", "confirmed", "again"))
        done, run = whole(noted, "confirmed"), text(noted, "about")
        ranges = [_range(each, done) for each in rows(noted, "again")] if "again" in noted else []
        if sum(last - first + 1 for first, last in ranges) > MOST_AGAIN:
            raise ValueError(f"it names more than {MOST_AGAIN} messages to send again")
    except ValueError as error:
        raise UsageError(f"{file} is not a resume file: {error}; give another name") from None
    if run != about:
        raise UsageError(f"{file} is the resume file of another run ({run}); give another name")
    return done, {number for first, last in ranges for number in range(first, last + 1)}


def _range(value: object, done: int) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("its again is not a list of first and last numbers")
    numbers = {"first": value[0], "last": value[1]}
    first = whole(numbers, "first", 0, done - 1)
    return first, whole(numbers, "last", first, done - 1)


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return ascending ranges of numbers, each as its first and last one.

    >>> _ranges({3, 1, 2, 7})
    [[1, 3], [7, 7]]
    """
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


class Sender:
    """Sends messages over one connection. url: `amqp://user:password@host:port/vhost`. rate: messages a second, None: no limit."""

    def __init__(self, url: str, *, rate: float | None = None, resume: Path | None = None, about: str = "") -> None:
        self._shown = without_password(url)
        self._parameters = connection_parameters(url, BLOCKED)
        self._rate = rate
        self._resume = resume
        self._about = about
        self._messages: Iterator[OutgoingMessage] = iter(())
        self._bytes = 0  # on their way
        self._before = 0  # messages with an answer in an earlier run
        self._next = 0  # number of the next message
        self._again: set[int] = set()  # answered, and not delivered
        self._exhausted = False
        self._started = self._noted = self._heard = 0.0
        self._interval = NOTED
        self.counts = SendCounts()

    @property
    def user(self) -> str:
        """The user of the connection: a broker rejects messages that name another user."""
        return str(self._parameters.credentials.username)

    @property
    def vhost(self) -> str:
        return str(self._parameters.virtual_host)

    def send(self, messages: Iterator[OutgoingMessage]) -> SendCounts:
        """Send all messages and wait for their confirms. Raises TargetError; the resume file is correct even then."""
        if self._resume is not None:
            self._before, self._again = _read_resume(self._resume, self._about)
        self._messages = messages
        while self._next < min(self._again, default=self._before) and next(messages, None) is not None:
            self._next += 1
            self.counts.skipped += 1
        channel = AmqpChannel(self._shown, self._parameters, self._answered, self._returned)
        self._channel: AmqpChannel[_InFlight] = channel
        self._started = self._noted = self._heard = time.monotonic()
        try:
            while True:
                wait = self._publish_some()
                if self._exhausted and not channel.open:
                    return self.counts
                channel.turn(TICK if wait is None else wait)
                self._check()
        finally:
            self._note()
            channel.close()

    def _check(self) -> None:
        """Raise TargetError if the broker answers no more."""
        channel, confirmed = self._channel, self.counts.confirmed
        if channel.refused is not None:
            raise TargetError(f"{self._shown} refused the messages: {channel.refused[1]}; {confirmed} were confirmed")
        if channel.closed is not None:
            ended = f"{self._shown} closed the connection: {channel.closed}"
            raise TargetError(f"{ended}; {confirmed} messages were confirmed, run again with --resume")
        if channel.open and time.monotonic() - self._heard > PATIENCE:
            raise channel.silent()

    def _publish_some(self) -> float | None:
        """Publish what window and rate allow; return the seconds until the next attempt, None to wait for a confirm."""
        for _ in range(BATCH):
            if self._exhausted or len(self._channel.open) >= WINDOW or self._bytes > WINDOW_BYTES:
                return None
            if self._rate is not None:
                early = self.counts.sent / self._rate - (time.monotonic() - self._started)
                if early > 0:
                    return early
            message = next(self._messages, None)
            if message is None:
                self._exhausted = True
                return None
            if self._next < self._before and self._next not in self._again:
                self.counts.skipped += 1
            else:
                exchange, key, properties, body = message.exchange, message.routing_key, message.properties, message.body
                sent = _InFlight(self._next, len(body), exchange, key, properties, hash(body))
                self._channel.publish(sent, exchange, key, properties, body)
                self._bytes += len(body)
                self.counts.sent += 1
            self._next += 1  # a message that could not be published is not done
        return 0.0

    def _returned(self, method: Any, properties: Any, body: bytes) -> None:
        self.counts.returned += 1
        # a return has no delivery tag; it comes before the confirm, and returns come in the order of publishing
        expected = (method.exchange, method.routing_key, hash(body))
        same = [
            each for each in self._channel.open.values() if not each.returned and (each.exchange, each.routing_key, each.body) == expected
        ]
        if same:
            first = same[0] if len(same) == 1 else next((each for each in same if _decodes_to(each.properties, properties)), same[0])
            first.returned = True

    def _answered(self, message: _InFlight, taken: bool) -> None:
        self._heard = time.monotonic()
        self._bytes -= message.size
        if taken:
            self.counts.confirmed += 1
        else:
            self.counts.refused += 1
        if taken and not message.returned:
            self._again.discard(message.number)
        else:
            self._again.add(message.number)
        if self._heard - self._noted > self._interval:
            self._note()

    def _note(self) -> None:
        """Write to the resume file how many messages have an answer without a gap, and which of them were not delivered."""
        self._noted = time.monotonic()
        if self._resume is None:
            return
        new = (message.number for message in self._channel.open.values() if message.number >= self._before)
        done = max(self._before, min(new, default=self._next))
        noted = {"about": self._about, "confirmed": done, "again": _ranges(number for number in self._again if number < done)}
        with DurableDirectory(self._resume.absolute().parent) as directory:
            directory.write_small(self._resume.name, seal(noted))
        self._interval = max(NOTED, 20 * (time.monotonic() - self._noted))


def _decodes_to(block: bytes, properties: Any) -> bool:
    """Return whether a property block is the one that pika decoded to these properties."""
    import pika

    try:
        return bool(pika.BasicProperties().decode(block) == properties)
    except (pika.exceptions.AMQPError, ValueError, struct.error):
        return False
