"""A broker that speaks AMQP 0-9-1 as a target: messages are published and confirmed on one channel. Needs pika: the extra `amqp`.

A message goes through the default exchange to its queue, or through the exchange that a row of a file names. A broker that has no queue for
a message returns it, and one that finds it too large closes the channel; since that does not say which message it was, a large one is
published alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mqstore.errors import TargetError
from mqstore.files.location import without_password
from mqstore.rabbitmq.amqp_sender import connection_parameters, encoded_properties
from mqstore.replay.outgoing import FROM_HEADER, Outcome, ReplayMessage

PATIENCE = 60.0  # seconds without a confirm after which the broker is given up
OPENED = 30.0  # seconds for a connection
LAST = 2.0  # seconds to wait for the last confirms of a run that has failed
TICK = 0.5
LARGE = 1 << 20  # bytes of a body that may be more than the broker takes
TOO_LARGE = 406  # PRECONDITION_FAILED


class AmqpTarget:
    """A connection with one channel in confirm mode. Raises UsageError, TargetError."""

    can_look = False
    width = 32

    def __init__(self, address: str) -> None:
        parameters = connection_parameters(address, PATIENCE)
        import pika

        self._shown = without_password(address)
        self._user = str(parameters.credentials.username)
        self._errors = (pika.exceptions.AMQPError, OSError)
        self._channel: Any = None
        self._posted: dict[int, ReplayMessage] = {}  # by delivery tag
        self._done: list[Outcome] = []
        self._tag = 0
        self._failure: TargetError | None = None
        self._closed_channel: tuple[int, str] | None = None
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=self._open_channel,
            on_open_error_callback=self._refused,
            on_close_callback=self._closed,
        )
        self._loop = self._connection.ioloop
        self._loop.activate_poller()
        try:
            self._run(lambda: self._channel is not None, OPENED, f"{self._shown} did not answer within {OPENED:.0f} s")
        except BaseException:
            self.close()
            raise

    def _run(self, until: Callable[[], bool], seconds: float, late: str) -> None:
        """Exchange bytes with the broker until something is so. late: the error when that takes too long. Raises TargetError."""
        end = time.monotonic() + seconds
        while not until():
            if self._failure is not None:
                raise self._failure
            left = end - time.monotonic()
            if left <= 0:
                raise TargetError(late)
            self._turn(left)

    def _turn(self, seconds: float) -> None:
        """Exchange bytes with the broker once; return after this time at the latest."""
        timer = self._loop.call_later(min(max(seconds, 0.001), TICK), _nothing)
        self._loop.poll()
        self._loop.process_timeouts()
        self._loop.remove_timeout(timer)

    # what the broker says

    def _open_channel(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._confirming)

    def _confirming(self, channel: Any) -> None:
        channel.add_on_return_callback(self._returned)
        channel.add_on_close_callback(self._channel_closed)
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._ready(channel))

    def _ready(self, channel: Any) -> None:
        self._channel, self._tag = channel, 0

    def _refused(self, _connection: Any, reason: Any) -> None:
        self._fail(f"{self._shown} refused the connection: {_why(reason)}; check address, user, password and vhost")

    def _closed(self, _connection: Any, reason: Any) -> None:
        self._fail(f"{self._shown} did not confirm a message: {_why(reason)}; run again with --resume")

    def _channel_closed(self, _channel: Any, reason: Any) -> None:
        self._closed_channel = (int(getattr(reason, "reply_code", 0) or 0), _why(reason))

    def _returned(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        mark = (getattr(properties, "headers", None) or {}).get(FROM_HEADER)
        mark = mark.decode("utf-8", "replace") if isinstance(mark, bytes) else mark
        for tag in [tag for tag, message in self._posted.items() if message.mark == mark]:
            del self._posted[tag]
        key, exchange = method.routing_key, method.exchange
        queue = f"queue for {key!r} at exchange {exchange!r}" if exchange else f"queue {key!r}"
        self._fail(f"{self._shown} has no {queue}; declare it there, then run again with --resume")

    def _confirmed(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        for each in [posted for posted in self._posted if posted <= tag] if frame.method.multiple else [tag]:
            message = self._posted.pop(each, None)
            if message is None:
                continue
            if type(frame.method).__name__ == "Ack":
                self._done.append(Outcome(message, ""))
            else:
                self._fail(f"{self._shown} rejected a message to queue {message.topic!r}, which may be full; see its log")

    def _fail(self, why: str) -> None:
        self._failure = self._failure or TargetError(why)

    # messages

    def begin(self, message: ReplayMessage) -> str:
        return ""

    def post(self, message: ReplayMessage, where: str) -> None:
        alone = len(message.body) >= LARGE
        if alone and self._posted:
            self._settle(lambda: not self._posted)
        block = message.for_user(self._user).amqp_block()
        exchange, key = message.amqp_address
        try:
            self._channel.basic_publish(exchange, key, message.body, encoded_properties(block), mandatory=True)
        except self._errors as error:
            raise self._failure or TargetError(f"{self._shown} takes no messages: {_why(error)}; run again with --resume") from None
        except (ValueError, AssertionError) as error:
            self._done.append(Outcome(message, where, f"it cannot be published: {_why(error)}"))
            return
        self._tag += 1
        self._posted[self._tag] = message
        if alone:
            self._settle(lambda: not self._posted)

    def finished(self) -> list[Outcome]:
        if not self._done:
            self._settle(lambda: bool(self._done))
        done, self._done = self._done, []
        return done

    def _settle(self, until: Callable[[], bool]) -> None:
        late = f"{self._shown} has not confirmed anything for {PATIENCE:.0f} s; run again with --resume"
        self._run(lambda: until() or self._closed_channel is not None, PATIENCE, late)
        if self._closed_channel is not None:
            self._reopen(*self._closed_channel)

    def _reopen(self, code: int, why: str) -> None:
        """Go on after a message that the broker refused with its channel, if it is known which one. Raises TargetError."""
        if code != TOO_LARGE or len(self._posted) != 1:
            self._fail(f"{self._shown} refused the messages: {why}; run again with --resume")
            raise self._failure or AssertionError
        self._done.append(Outcome(self._posted.popitem()[1], "", why))
        self._closed_channel = self._channel = None
        self._open_channel(self._connection)
        self._run(lambda: self._channel is not None, OPENED, f"{self._shown} opened no second channel within {OPENED:.0f} s")

    def last(self) -> list[Outcome]:
        end = time.monotonic() + LAST
        while self._posted and self._connection.is_open and self._closed_channel is None and time.monotonic() < end:
            self._turn(TICK)
        done, self._done = self._done, []
        return done

    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        return None

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._turn(end - time.monotonic())
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        self._failure = self._failure or TargetError("closed")
        end = time.monotonic() + LAST
        try:
            if self._connection.is_open:
                self._connection.close()
            while not self._connection.is_closed and time.monotonic() < end:
                self._turn(TICK)
            self._loop.deactivate_poller()
            self._loop.close()
        except self._errors:
            return


def _nothing() -> None:
    """Wake the loop."""


def _why(reason: Any) -> str:
    return str(reason).strip() or type(reason).__name__
