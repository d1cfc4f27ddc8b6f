"""Salvaged messages sent to a running broker over AMQP 0-9-1, each confirmed by it.

A message goes to the queue that it was in (through the default exchange), or to its original exchange, with its properties unchanged. It
counts when the broker has confirmed it; up to WINDOW messages are in flight. Unroutable messages are returned and counted.

A resume file has the number of messages, from the first one on, that are confirmed without a gap. A run that resumes sends the messages
after them: after a crash some of the last WINDOW messages may be sent twice, but none is left out. The file belongs to one store and one
selection.

Needs pika: the extra `amqp`.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqstore.errors import CannotOpenError, TargetError, UsageError
from mqstore.files.durable import DurableDirectory

__all__ = ["WINDOW", "OutgoingMessage", "SendCounts", "Sender", "encoded_properties", "hidden", "read_resume"]

WINDOW = 1000
NOTED = 0.5  # seconds between two writes of the resume file
WINDOW_BYTES = 64 << 20
BATCH = 100
PATIENCE = 60.0  # seconds without a response after which sending is given up


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

    skipped: confirmed by an earlier run.
    """

    sent: int = 0
    confirmed: int = 0
    returned: int = 0
    refused: int = 0
    skipped: int = 0


def read_resume(file: Path, about: str) -> int:
    """Return the number of confirmed messages. about: describes the run. Raises UsageError for a file of another run, CannotOpenError."""
    try:
        raw = file.read_text("utf-8")
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise CannotOpenError(f"{file} cannot be read: {error.strerror}") from None
    try:
        noted = json.loads(raw)
        done = noted["confirmed"]
        if noted["about"] != about:
            raise UsageError(f"{file} is the resume file of another run ({noted['about']}); give another name")
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{file} is not a resume file; give another name") from None
    return int(done)


class Sender:
    """Sends messages over one connection. url: `amqp://user:password@host:port/vhost`. rate: messages a second, None: no limit."""

    def __init__(self, url: str, *, rate: float | None = None, resume: Path | None = None, about: str = "") -> None:
        try:
            import pika
        except ImportError:
            raise UsageError("sending needs pika; install it with: pip install 'mqstore[amqp]'") from None
        try:
            self._parameters = pika.URLParameters(url)
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{hidden(url)} is not the address of a broker: {error}; give amqp://user:password@host:port/vhost") from None
        self._parameters.blocked_connection_timeout = 600
        self._parameters.socket_timeout = 10
        self._url = url
        self._rate = rate
        self._resume = resume
        self._about = about
        self._messages: Iterator[OutgoingMessage] = iter(())
        self._open: deque[tuple[int, int]] = deque()  # delivery tag and size of unconfirmed messages, ascending
        self._settled: set[int] = set()
        self._bytes = 0
        self._tag = 0
        self._stuck: int | None = None  # the first message that was refused
        self._before = 0
        self._exhausted = False
        self._error: Exception | None = None
        self._started = self._noted = self._heard = 0.0
        self._pending = False
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
        import pika

        if self._resume is not None:
            self._before = read_resume(self._resume, self._about)
        self._messages = messages
        for _ in range(self._before):
            if next(messages, None) is None:
                break
            self.counts.skipped += 1
        connection = pika.SelectConnection(
            self._parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._channel_opened),
            on_open_error_callback=self._failed,
            on_close_callback=self._closed,
        )
        self._connection = connection
        try:
            connection.ioloop.start()
        finally:
            self._note()
            if not connection.is_closed:
                self._end()
        if self._error is not None:
            raise self._error
        return self.counts

    def _end(self) -> None:
        """Close the connection, and run the loop until it is closed."""
        if not (self._connection.is_closing or self._connection.is_closed):
            self._connection.close()
        if not self._connection.is_closed:
            self._connection.ioloop.start()

    def _failed(self, connection: Any, reason: Any) -> None:
        why = str(reason).strip() or type(reason).__name__
        self._give_up(TargetError(f"{hidden(self._url)} refused the connection: {why}; check address, user, password and vhost"))

    def _closed(self, connection: Any, reason: Any) -> None:
        if not self._exhausted or self._open:
            why = f"{hidden(self._url)} closed the connection: {reason}"
            self._error = self._error or TargetError(f"{why}; {self.counts.confirmed} messages were confirmed, run again with --resume")
        connection.ioloop.stop()

    def _give_up(self, error: Exception) -> None:
        self._error = self._error or error
        self._connection.ioloop.stop()

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_return_callback(self._returned)
        channel.add_on_close_callback(self._channel_closed)
        channel.confirm_delivery(self._answered, callback=self._ready)

    def _channel_closed(self, channel: Any, reason: Any) -> None:
        if not self._exhausted or self._open:
            self._give_up(TargetError(f"{hidden(self._url)} refused the messages: {reason}; {self.counts.confirmed} were confirmed"))

    def _ready(self, _frame: Any) -> None:
        self._started = self._noted = self._heard = time.monotonic()
        self._pump()
        self._watch()

    def _watch(self) -> None:
        """Check every second that the broker still responds."""
        if self._open and time.monotonic() - self._heard > PATIENCE:
            self._give_up(TargetError(f"{hidden(self._url)} has not confirmed anything for {PATIENCE:.0f} s; run again with --resume"))
        elif not self._exhausted or self._open:
            self._connection.ioloop.call_later(1.0, self._watch)

    def _pump(self) -> None:
        self._pending = False
        try:
            wait = self._publish_some()
        except Exception as error:
            self._give_up(error)
            return
        if self._exhausted and not self._open:
            self._connection.ioloop.stop()
        elif wait is not None and not self._pending:
            self._pending = True
            self._connection.ioloop.call_later(wait, self._pump)

    def _publish_some(self) -> float | None:
        """Publish what window and rate allow; return the seconds until the next attempt, None to wait for a confirm."""
        for _ in range(BATCH):
            if self._exhausted or len(self._open) >= WINDOW or self._bytes > WINDOW_BYTES:
                return None
            if self._rate is not None:
                early = self.counts.sent / self._rate - (time.monotonic() - self._started)
                if early > 0:
                    return early
            message = next(self._messages, None)
            if message is None:
                self._exhausted = True
                return None
            self._tag += 1
            self._open.append((self._tag, len(message.body)))
            self._bytes += len(message.body)
            self.counts.sent += 1
            self._channel.basic_publish(
                message.exchange, message.routing_key, message.body, encoded_properties(message.properties), mandatory=True
            )
        return 0.0

    def _returned(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.counts.returned += 1

    def _answered(self, frame: Any) -> None:
        self._heard = time.monotonic()
        tag, good = frame.method.delivery_tag, type(frame.method).__name__ == "Ack"
        tags = [item for item, _ in self._open if item <= tag and item not in self._settled] if frame.method.multiple else [tag]
        if good:
            self.counts.confirmed += len(tags)
        else:
            self.counts.refused += len(tags)
            self._stuck = min([*tags, *([] if self._stuck is None else [self._stuck])])
        self._settled.update(tags)
        while self._open and self._open[0][0] in self._settled:
            item, size = self._open.popleft()
            self._settled.discard(item)
            self._bytes -= size
        if self._heard - self._noted > NOTED:
            self._note()
        if not self._pending:
            self._pump()

    def _note(self) -> None:
        """Write the number of messages that are confirmed without a gap to the resume file."""
        self._noted = time.monotonic()
        if self._resume is None:
            return
        pending = [self._tag + 1, *([self._open[0][0]] if self._open else []), *([self._stuck] if self._stuck is not None else [])]
        noted = {"about": self._about, "confirmed": self._before + min(pending) - 1}
        with DurableDirectory(self._resume.absolute().parent) as directory:
            directory.write_small(self._resume.name, json.dumps(noted).encode())


def hidden(url: str) -> str:
    """Return an address without its password."""
    return re.sub(r"(//[^:@/]*):[^@]*@", r"\1:***@", url)


def encoded_properties(block: bytes) -> Any:
    """Return a property block as pika's properties, unchanged."""
    import pika

    class EncodedProperties(pika.BasicProperties):  # type: ignore[misc]
        """Properties that are encoded already."""

        def encode(self) -> list[bytes]:
            return [block]

    return EncodedProperties()
