"""The brokers of a RocketMQ name server as a target. A message whose connection broke is looked for before it is sent again."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from mqstore.errors import TargetError, UsageError
from mqstore.files.location import without_password
from mqstore.replay.connection import ClientError
from mqstore.replay.outgoing import ReplayMessage
from mqstore.replay.producer import DISPATCHED, Producer, RefusedError, WriteQueue
from mqstore.replay.target import Outcome

LAST = 2.0  # seconds to wait for the last responses of a run that has failed


@dataclass(frozen=True, slots=True)
class _Posted:
    """A message on its way. message: as the caller gave it; named: with the topic that it is sent to; end: the offset before it."""

    message: ReplayMessage
    named: ReplayMessage
    queue: WriteQueue
    end: int

    def outcome(self, after: int, *, doubtful: bool = False) -> Outcome:
        return Outcome(self.message, f"{self.queue.broker}/{self.queue.queue_id}/{after}", doubtful=doubtful)

    def refused(self, why: str) -> Outcome:
        return Outcome(self.message, f"{self.queue.broker}/{self.queue.queue_id}/{self.end}", why)


class RocketMQTarget:
    """The brokers of a RocketMQ name server."""

    can_look = True
    width = 32

    def __init__(self, address: str, *, credentials: tuple[str, str] | None, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(address)
        try:
            host, port = parts.hostname, parts.port or 9876
        except ValueError:
            host, port = None, 0
        if not host or parts.query or parts.fragment or "/" in parts.path.strip("/"):
            raise UsageError(
                f"{without_password(address)} is not the address of a broker; give rocketmq://host:port or rocketmq://host:port/topic"
            )
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._topic = unquote(parts.path.strip("/")) or None
        self._producer = Producer(name, credentials=credentials, tls=tls)
        self._producer.when_dropped = self._dropped
        self._opened = time.monotonic()
        self._posted: dict[tuple[str, int], _Posted] = {}  # by address and number, in the order in which they were sent
        self._done: list[Outcome] = []
        self._lost: list[tuple[_Posted, float, str]] = []  # whose connection broke, when, and why

    def _named(self, message: ReplayMessage) -> ReplayMessage:
        return message.edited({"topic": self._topic or message.rocketmq_topic})

    def _queue(self, message: ReplayMessage, where: str) -> tuple[WriteQueue, int]:
        """Return the queue of a place, and the offset in it."""
        broker, _, rest = where.rpartition("/")[0].rpartition("/")
        end = where.rpartition("/")[2]
        if not end.isascii() or not end.isdigit():
            raise UsageError(f"the resume file names {where!r} as a place in the target, which it is not; give another name")
        for queue in self._producer.queues(message.topic):
            if (queue.broker, str(queue.queue_id)) == (broker, rest):
                return queue, int(end)
        raise TargetError(f"queue {rest} of broker {broker} has gone since the replay began; start again with another resume file")

    def begin(self, message: ReplayMessage) -> str:
        queue = self._producer.queue_for(self._named(message))
        return f"{queue.broker}/{queue.queue_id}/{self._producer.end_of(queue)}"

    def post(self, message: ReplayMessage, where: str) -> None:
        named = self._named(message)
        posted = _Posted(message, named, *self._queue(named, where))
        address = posted.queue.address
        try:
            self._posted[address, self._producer.post(named, posted.queue)] = posted
        except RefusedError as error:
            self._done.append(posted.refused(str(error)))
        except ClientError as error:
            self._lost.append((posted, time.monotonic(), str(error)))
            self._producer.drop(address)

    def _dropped(self, address: str) -> None:
        """A connection is closed: what was on its way through it is in doubt."""
        why = f"the connection to the broker at {address} broke"
        for key in [key for key in self._posted if key[0] == address]:
            self._lost.append((self._posted.pop(key), time.monotonic(), why))

    def finished(self) -> list[Outcome]:
        while self._posted and not self._done and not self._lost:
            address = next(iter(self._posted))[0]
            try:
                number, answered = self._producer.take(address)
            except ClientError:
                self._producer.drop(address)
                break
            posted = self._posted.pop((address, number), None)
            if posted is None:
                continue
            try:
                after = self._producer.offset_after(answered, posted.message, posted.queue)
            except RefusedError as error:
                self._done.append(posted.refused(str(error)))
                break
            if after is None:
                self._send(posted, None, f"CODE {answered.code}, {answered.remark}")
            else:
                self._done.append(posted.outcome(after))
        if not self._done and self._lost:
            self._send(*self._lost.pop(0))
        done, self._done = self._done, []
        return done

    def _send(self, posted: _Posted, since: float | None, why: str) -> None:
        """Send a message again, after a look whether it has arrived if it is in doubt."""
        try:
            after, late = self._producer.send(posted.named, posted.queue, posted.end, in_doubt=since, why=why)
        except RefusedError as refusal:
            self._done.append(posted.refused(str(refusal)))
        else:
            self._done.append(posted.outcome(after, doubtful=late))

    def last(self) -> list[Outcome]:
        until = time.monotonic() + LAST
        while self._posted and time.monotonic() < until:
            address = next(iter(self._posted))[0]
            try:
                number, answered = self._producer.take(address, timeout=max(0.01, until - time.monotonic()))
                posted = self._posted.pop((address, number), None)
                after = None if posted is None else self._producer.offset_after(answered, posted.message, posted.queue)
            except RefusedError:
                continue
            except ClientError:
                self._producer.drop(address)
                continue
            except TargetError:
                continue
            if posted is not None and after is not None:
                self._done.append(posted.outcome(after))
        done, self._done = self._done, []
        return done

    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        message = self._named(message)
        queue, end = self._queue(message, where)
        # the run before may have ended a moment ago: let the broker store what it got
        time.sleep(max(0.0, DISPATCHED - (time.monotonic() - self._opened)))
        try:
            after = self._producer.look(message.mark, queue, end)
        except ClientError as error:
            raise TargetError(f"{error}; whether the message from {message.mark} has arrived is unknown: run again") from None
        return None if after is None else f"{queue.broker}/{queue.queue_id}/{after}"

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self._producer.close()
