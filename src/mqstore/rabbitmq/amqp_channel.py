"""A channel to a broker that speaks AMQP 0-9-1, on a separate connection, in confirm mode: the broker answers each message.

Bytes are exchanged in `turn` only, and what the broker says is passed on there. Needs pika: the extra `amqp`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, TypeVar

from mqstore.errors import TargetError, UsageError
from mqstore.files.location import without_password

Published = TypeVar("Published")

OPENED = 30.0  # seconds for a connection
LAST = 2.0  # seconds for its end
TICK = 0.5
PATIENCE = 60.0  # seconds without a confirm after which the broker is given up


def connection_parameters(url: str, patience: float) -> Any:
    """Return pika's parameters. patience: seconds that the broker may block the connection. Raises UsageError, also without pika."""
    try:
        import pika
    except ImportError:
        raise UsageError("sending needs pika; install it with: pip install 'mqstore[amqp]'") from None
    try:
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError, AttributeError) as error:
        what = f"{without_password(url)} is not the address of a broker"
        raise UsageError(f"{what}: {error}; give amqp://user:password@host:port/vhost") from None
    parameters.blocked_connection_timeout = patience
    parameters.socket_timeout = 10
    return parameters


class AmqpChannel(Generic[Published]):
    """A channel. open: what was published and has no answer, by delivery tag, ascending. Raises TargetError if it cannot be opened.

    answered: called with each of these, and whether the broker took it. returned: called with method, properties and body of a message
    without a route, before its answer. closed: why the broker closed the connection; refused: its code and words for closing the channel.
    """

    def __init__(
        self, shown: str, parameters: Any, answered: Callable[[Published, bool], None], returned: Callable[[Any, Any, bytes], None]
    ) -> None:
        import pika

        self._shown, self._answered, self._returned = shown, answered, returned
        self.open: dict[int, Published] = {}
        self.closed: str | None = None
        self._not_opened: str | None = None
        self.refused: tuple[int, str] | None = None
        self._errors = (pika.exceptions.AMQPError, OSError)
        self._channel: Any = None
        self._tag = 0
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=self._open_channel,
            on_open_error_callback=self._connection_failed,
            on_close_callback=self._connection_closed,
        )
        self._loop = self._connection.ioloop
        self._loop.activate_poller()
        try:
            self._wait("did not answer")
        except BaseException:
            self.close()
            raise

    def _wait(self, late: str) -> None:
        """Wait until the channel is open. late: what the broker has failed to do when that takes too long."""
        end = time.monotonic() + OPENED
        while self._channel is None:
            if self._not_opened is not None:
                raise TargetError(f"{self._shown} refused the connection: {self._not_opened}; check address, user, password and vhost")
            if self.closed is not None:
                raise TargetError(f"{self._shown} closed the connection: {self.closed}; run again with --resume")
            if time.monotonic() >= end:
                raise TargetError(f"{self._shown} {late} within {OPENED:.0f} s")
            self.turn(TICK)

    def turn(self, seconds: float) -> None:
        """Exchange bytes with the broker once; return after this time, or TICK, at the latest."""
        timer = self._loop.call_later(min(max(seconds, 0.0), TICK), _nothing)
        self._loop.poll()
        self._loop.process_timeouts()
        self._loop.remove_timeout(timer)

    def publish(self, message: Published, exchange: str, routing_key: str, properties: bytes, body: bytes) -> None:
        """Publish a message with an encoded property block. Raises TargetError; ValueError for one that AMQP has no form for."""
        try:
            self._channel.basic_publish(exchange, routing_key, body, _encoded_properties()(properties), mandatory=True)
        except self._errors as error:
            raise TargetError(f"{self._shown} takes no messages: {why(error)}; run again with --resume") from None
        except AssertionError as error:
            raise ValueError(why(error)) from None
        self._tag += 1
        self.open[self._tag] = message

    def reopen(self) -> None:
        """Open another channel after the broker has closed this one. Raises TargetError."""
        self.refused = self._channel = None
        self._open_channel(self._connection)
        self._wait("opened no second channel")

    def silent(self) -> TargetError:
        """Return the error for a broker that has not answered for PATIENCE."""
        return TargetError(f"{self._shown} has not confirmed anything for {PATIENCE:.0f} s; run again with --resume")

    @property
    def is_open(self) -> bool:
        return bool(self._connection.is_open) and self.refused is None

    def close(self) -> None:
        """Close the connection."""
        end = time.monotonic() + LAST
        try:
            if self._connection.is_open:
                self._connection.close()
            while not self._connection.is_closed and time.monotonic() < end:
                self.turn(TICK)
            self._loop.deactivate_poller()
            self._loop.close()
        except self._errors:
            return

    # what the broker says

    def _open_channel(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._confirming)

    def _confirming(self, channel: Any) -> None:
        channel.add_on_return_callback(lambda _, method, properties, body: self._returned(method, properties, body))
        channel.add_on_close_callback(self._channel_closed)
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._ready(channel))

    def _ready(self, channel: Any) -> None:
        self._channel, self._tag = channel, 0

    def _connection_failed(self, _connection: Any, reason: Any) -> None:
        self._not_opened = why(reason)

    def _connection_closed(self, _connection: Any, reason: Any) -> None:
        self.closed = why(reason)

    def _channel_closed(self, _channel: Any, reason: Any) -> None:
        self.refused = int(getattr(reason, "reply_code", 0) or 0), why(reason)

    def _confirmed(self, frame: Any) -> None:
        tag, taken = frame.method.delivery_tag, type(frame.method).__name__ == "Ack"
        for each in [published for published in self.open if published <= tag] if frame.method.multiple else [tag]:
            if each in self.open:
                self._answered(self.open.pop(each), taken)


def why(reason: Any) -> str:
    """Return the words of an error of pika."""
    return str(reason).strip() or type(reason).__name__


def _nothing() -> None:
    """Wake the loop."""


@cache
def _encoded_properties() -> Any:
    """Return a class of pika's properties that are encoded already; it takes their block. pika may not be installed."""
    import pika

    class EncodedProperties(pika.BasicProperties):  # type: ignore[misc]
        """Properties that are encoded already."""

        def __init__(self, block: bytes) -> None:
            super().__init__()
            self._block = block

        def encode(self) -> list[bytes]:
            return [self._block]

    return EncodedProperties
