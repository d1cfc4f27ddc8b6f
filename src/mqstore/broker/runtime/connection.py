"""One TCP connection: frames in, frames out, in both directions at once.

    incoming bytes      -> complete frames -> `on_request` for each request, in order; responses go to the caller of `call`
    outgoing responses  -> sent as soon as they are ready, in any order

The cost of a client is bounded. If more than `write_high` bytes wait to be sent to a client, or its requests in flight are more than
`max_in_flight` or `max_in_flight_bytes`, no more of its requests are read; above `write_limit` unsent bytes, or after two minutes
without progress, the connection is aborted. It is closed on a malformed frame or a leading 0x16 (TLS). What all connections hold, and
those of one address, is bounded, too: the number of them, unfinished frames, unsent bytes, and requests in flight (`runtime.limits`).

Protocol: docs/formats/rocketmq-remoting.md, sections 1.1, 1.6 and 1.7.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from mqstore.broker.protocol.frames import MAX_FRAME, ONEWAY, RESPONSE, Frame, FrameError, decode, encode
from mqstore.broker.runtime.limits import Quotas
from mqstore.broker.runtime.logs import log
from mqstore.tls import HANDSHAKE

if TYPE_CHECKING:
    from mqstore.broker.runtime.settings import Settings

MAX_JOINED = 64 << 10  # maximum bytes of responses that are joined
UNCOUNTED = 4 << 10  # bytes of an unfinished frame that are accepted even if all others take too much memory


class SharedState:
    """State shared by all connections of a broker.

    opaques: for requests that the broker makes. quotas: what the connections hold.
    """

    def __init__(self, settings: Settings, number: int) -> None:
        self.settings = settings
        self.number = number
        self.connections: set[Connection] = set()
        self.opaques = itertools.count()
        self.quotas = Quotas(settings)

    def recount_unsent(self) -> None:
        """Count again what paused clients have not read: what they read in small pieces is not noticed."""
        for connection in self.connections:
            connection.count_unsent()


class Connection(asyncio.Protocol):
    """A client's connection. peer: `ip:port` of the client; host: its ip.

    on_request: called with each request. on_lost: called once when the connection is lost.
    """

    def __init__(self, shared: SharedState, on_request: Callable[[Connection, Frame], None], on_lost: Callable[[Connection], None]) -> None:
        self.shared = shared
        self.peer = ""
        self.host = ""
        self.port = 0
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.active_at = 0.0
        self.closed = False
        self._on_request = on_request
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._counted_bytes = 0
        self._counted_unsent = 0
        self._calls: dict[int, asyncio.Future[Frame]] = {}
        self._transport: asyncio.Transport | None = None
        self._writing_paused = False
        self._reading_paused = False
        self._draining = False
        self._pumping = False
        self._outbox: list[bytes] = []  # responses to frames that arrived together; sent together
        self._outbox_bytes = 0
        self._waiting_bytes = 0

    def __repr__(self) -> str:
        return f"<Connection {self.peer}>"

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.host, self.port = str(name[0]), int(name[1])
            self.peer = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        self.active_at = self._loop.time()
        why = self.shared.quotas.connections.take(self.host)
        if why:
            self.close(why, logging.WARNING)
            return
        self.shared.connections.add(self)
        high = self.shared.settings.write_high
        self._transport.set_write_buffer_limits(high=high, low=high // 4)

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()
        self._writing_paused = False
        self.count_unsent()
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError(f"the connection to {self.peer} was lost"))
        self._calls.clear()
        if self in self.shared.connections:
            self.shared.connections.discard(self)
            self.shared.quotas.connections.give(self.host)
            self._on_lost(self)

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        self.active_at = self._loop.time()
        if self.closed:
            return
        self._pump(data)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.count_unsent()
        self.active_at = self._loop.time()
        self._update_reading()
        self._loop.call_soon(self._pump)

    # frames in

    @property
    def _is_held_up(self) -> bool:
        settings = self.shared.settings
        return (
            self._writing_paused
            or self._draining
            or self.in_flight >= settings.max_in_flight
            or self.in_flight_bytes >= settings.max_in_flight_bytes
        )

    def _update_reading(self) -> None:
        """Pause or resume reading, as needed."""
        if self._transport is None or self.closed:
            return
        if self._is_held_up != self._reading_paused:
            self._reading_paused = not self._reading_paused
            if self._reading_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _pump(self, data: bytes = b"") -> None:
        """Dispatch the complete frames, until the connection must pause. data: newly received bytes."""
        if self._pumping:
            self._buffer += data
            return
        if self._buffer:
            self._buffer += data
            data = b""
        self._pumping = True
        buffer = data or self._buffer  # most frames arrive alone and can bypass the buffer
        at, size = 0, len(buffer)
        try:
            while size - at >= 4 and not self.closed and not self._is_held_up:
                length = int.from_bytes(buffer[at : at + 4], "big")
                if length + 4 > MAX_FRAME or length < 4:
                    raise FrameError(_why(buffer[at], length))
                if size - at - 4 < length:
                    break
                start = at + 4
                at = start + length
                frame = decode(buffer, start, at)
                if frame.flag & RESPONSE:
                    waiting = self._calls.pop(frame.opaque, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(frame)
                else:
                    self._on_request(self, frame)
        except FrameError as error:
            self.close(str(error), logging.WARNING)
            return
        finally:
            self._pumping = False
            if self._outbox:
                self._flush()
            if not self.closed:
                if data:
                    self._buffer[:0] = data[at:]
                elif at:
                    del self._buffer[:at]
                self._count_incoming()
        if self._buffer and self._buffer[0] == HANDSHAKE and not self.closed:
            self.close(_why(HANDSHAKE, 0), logging.WARNING)

    def _count_incoming(self) -> None:
        """Update the number of unfinished bytes over all connections."""
        more = len(self._buffer) - self._counted_bytes
        if not more:
            return
        if more < 0:
            self.shared.quotas.incoming.give(self.host, -more)
        elif why := self.shared.quotas.incoming.take(self.host, more):
            if len(self._buffer) > UNCOUNTED:
                self.close(why, logging.WARNING)
            return
        self._counted_bytes = len(self._buffer)

    def request_started(self, size: int) -> str:
        """Count a request of size bytes in flight; `request_finished` must follow. Returns why it is refused, if so, and counts nothing."""
        why = self.shared.quotas.working.take(self.host, size)
        if why:
            return why
        self.in_flight += 1
        self.in_flight_bytes += size
        self._update_reading()
        return ""

    def request_finished(self, size: int) -> None:
        """End a request counted by `request_started`."""
        was_held_up = self._is_held_up
        self.in_flight -= 1
        self.in_flight_bytes -= size
        self.shared.quotas.working.give(self.host, size)
        if was_held_up and not self._is_held_up:
            self._update_reading()
            self._loop.call_soon(self._pump)

    # frames out

    @property
    def writable(self) -> bool:
        """Whether data sent now would go out soon, because the client is reading."""
        return not self.closed and not self._writing_paused

    @property
    def unsent(self) -> int:
        """Number of bytes that wait for the client to read them."""
        return 0 if self._transport is None or self.closed else self._transport.get_write_buffer_size() + self._outbox_bytes

    def send(self, frame: Frame) -> None:
        """Send a frame. Dropped if the connection is closed."""
        if self.closed or self._transport is None:
            return
        try:
            raw = encode(frame, self.shared.number)
        except FrameError as error:
            log("answer-too-large", logging.WARNING, peer=self.peer, code=frame.code, why=str(error))
            if not frame.is_response:
                return
            frame = Frame(1, None, b"", str(error), frame.flag, frame.opaque, serialization=frame.serialization)
            raw = encode(frame, self.shared.number)
        if not self._pumping:
            self._write(raw)
            return
        self._outbox.append(raw)
        self._outbox_bytes += len(raw)
        if self._outbox_bytes > MAX_JOINED:
            self._flush()

    def _flush(self) -> None:
        """Send the responses collected while frames were dispatched, in one piece."""
        gathered, self._outbox, self._outbox_bytes = self._outbox, [], 0
        self._write(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def _write(self, raw: bytes) -> None:
        if self.closed or self._transport is None:
            return
        self.active_at = self._loop.time()
        self._transport.write(raw)
        if not self._writing_paused:
            return
        if self._transport.get_write_buffer_size() > self.shared.settings.write_limit:
            self.close("the client does not read its responses", logging.WARNING, now=True)
            return
        why = self.count_unsent()
        if why:
            self.shared.recount_unsent()
            why = self.count_unsent()
        if why:
            self.close(why, logging.WARNING, now=True)

    def count_unsent(self) -> str:
        """Update the number of unsent bytes over all connections whose clients are not reading. Returns why it is too large, if so."""
        waiting = self._transport.get_write_buffer_size() if self._writing_paused and self._transport is not None else 0
        more = waiting - self._counted_unsent
        if more > 0 and (why := self.shared.quotas.unsent.take(self.host, more)):
            return why
        if more < 0:
            self.shared.quotas.unsent.give(self.host, -more)
        self._counted_unsent = waiting
        return ""

    def notify(self, frame: Frame) -> None:
        """Send a oneway request."""
        frame.flag |= ONEWAY
        frame.opaque = next(self.shared.opaques) & 0x7FFFFFFF
        self.send(frame)

    async def call(self, frame: Frame, timeout: float) -> Frame:
        """Send a request and wait for its response, timeout seconds at most. Raises TimeoutError, ConnectionError."""
        if self.closed:
            raise ConnectionResetError(f"the connection to {self.peer} was lost")
        frame.opaque = next(self.shared.opaques) & 0x7FFFFFFF
        waiting: asyncio.Future[Frame] = self._loop.create_future()
        self._calls[frame.opaque] = waiting
        self.send(frame)
        try:
            async with asyncio.timeout(timeout):
                return await waiting
        finally:
            self._calls.pop(frame.opaque, None)

    # closing

    def is_stalled(self, now: float, limit: float) -> bool:
        """Return whether there was no progress for limit seconds."""
        if self._transport is None:
            return False
        waiting = self._transport.get_write_buffer_size()
        if waiting < self._waiting_bytes:
            self.active_at = now
        self._waiting_bytes = waiting
        return now - self.active_at > limit

    def drain(self) -> None:
        """Stop reading requests; those in flight are finished."""
        self._draining = True
        self._update_reading()

    def close(self, why: str = "", level: int = logging.INFO, *, now: bool = False) -> None:
        """Close the connection after sending pending data, or at once if now is true, even if it is being closed."""
        if self._transport is None or (self.closed and not now):
            return
        if why:
            log("connection-closed", level, peer=self.peer, why=why)
        if self._outbox and not now:
            self._flush()
            if self._transport.is_closing():
                return
        self._forget()
        if now:
            self._transport.abort()
        else:
            self._transport.close()

    def _forget(self) -> None:
        """Stop reading and drop unfinished frames."""
        self.closed = True
        self._outbox = []
        self._outbox_bytes = 0
        self.shared.quotas.incoming.give(self.host, self._counted_bytes)
        self._counted_bytes = 0
        self._buffer = bytearray()

    def abort(self) -> None:
        """Abort the connection; unsent data is lost."""
        if self._transport is not None:
            self._forget()
            self._transport.abort()


_HTTP2 = int.from_bytes(b"PRI ")  # the first four bytes of an HTTP/2 connection


def _why(first: int, length: int) -> str:
    if first == HANDSHAKE:
        return "the connection begins with a TLS handshake, but this port has no TLS; configure the client without it, or give --tls-cert"
    if length == _HTTP2:
        return (
            "this is a gRPC client (HTTP/2, the 5.x SDK), and this broker speaks the remoting protocol; use a client that speaks it, "
            "such as rocketmq-client of Java or rocketmq-client-cpp"
        )
    return f"a frame of {length + 4} bytes is not valid; the maximum is {MAX_FRAME}"
