"""Accepting connections that may begin with a TLS handshake, which their first byte shows.

    accept -> wait for the first byte, without consuming it -> 0x16: TLS handshake -> Connection
                                                             -> another: Connection, or closed if TLS is enforced

The first byte must come, and a handshake must end, within `handshake_timeout`. There are at most `max_handshakes` at a time, of which
one address may have a part; clients that begin further ones are disconnected. Connections that wait for the first byte count towards
`max_connections`.

The files are looked at every few seconds. When they have changed, the next handshakes use the new ones, unless these are not valid.

Protocol: docs/formats/rocketmq-remoting.md, section 1.7.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from mqstore.broker.runtime.connection import Connection, SharedState
from mqstore.broker.runtime.logs import log
from mqstore.errors import UsageError
from mqstore.tls import HANDSHAKE, TlsFiles

BACKLOG = 4096
ACCEPTED_AT_ONCE = 100  # connections, before other work of the loop
RENEWAL = 5.0  # seconds between looks at the files
PAUSE = 1.0  # seconds without accepting when the process has no more file descriptors
CLOSING = 3.0  # seconds to wait for the client's end of a TLS connection
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PLAIN = "the client does not use TLS, which this port requires; set tls.enable=true in the client"


class TlsAcceptor:
    """Accepts the connections of a bound socket. enforcing: only those with TLS."""

    def __init__(
        self, listener: socket.socket, make: Callable[[], Connection], shared: SharedState, files: TlsFiles, *, enforcing: bool
    ) -> None:
        self._listener = listener
        self._make = make
        self._shared = shared
        self._files = files
        self._state = files.state()
        self._context = files.load()
        self._enforcing = enforcing
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, tuple[str, str, asyncio.TimerHandle]] = {}  # waiting for the first byte: peer, host, timer
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._renewing: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> int:
        """Number of accepted connections without a `Connection`."""
        return len(self._silent) + len(self._tasks)

    def start(self) -> None:
        """Listen."""
        self._listener.listen(BACKLOG)
        self._loop.add_reader(self._listener, self._accept)
        self._renewing = self._loop.call_later(RENEWAL, self._renew_periodically)

    def close(self) -> None:
        """Stop listening, and close the connections that have not finished their handshake."""
        for timer in (self._paused, self._renewing):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for client in list(self._silent):
            self._forget(client)
            client.close()
        for task in self._tasks:
            task.cancel()

    def _renew_periodically(self) -> None:
        self.renew()
        self._renewing = self._loop.call_later(RENEWAL, self._renew_periodically)

    def renew(self) -> bool:
        """Use the files again if they have changed; return whether new ones are in use."""
        state = self._files.state()
        if state == self._state:
            return False
        self._state = state
        try:
            self._context = self._files.load()
        except UsageError as error:
            log("tls-files-broken", logging.ERROR, why=f"{error}; the last good ones remain in use")
            return False
        log("tls-files-loaded", certificate=self._files.certificate)
        return True

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                log("accept-failed", logging.ERROR, why=error.strerror)
                self._loop.remove_reader(self._listener)
                self._paused = self._loop.call_later(PAUSE, self._resume)
                return
            client.setblocking(False)
            host = str(address[0]) if isinstance(address, tuple) else ""
            why = self._shared.quotas.connections.take(host)
            if why:
                self._refuse(client, _name(address), why)
                continue
            timer = self._loop.call_later(self._shared.settings.handshake_timeout / 1000, self._give_up, client)
            self._silent[client] = _name(address), host, timer
            self._loop.add_reader(client, self._look, client)

    def _refuse(self, client: socket.socket, peer: str, why: str) -> None:
        log("connection-closed", logging.WARNING, peer=peer, why=why)
        client.close()

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._listener, self._accept)

    def _forget(self, client: socket.socket) -> tuple[str, str]:
        """Stop waiting for a client's first byte; return its address and host."""
        self._loop.remove_reader(client)
        peer, host, timer = self._silent.pop(client)
        timer.cancel()
        self._shared.quotas.connections.give(host)
        return peer, host

    def _give_up(self, client: socket.socket) -> None:
        peer, _ = self._forget(client)
        log("connection-closed", peer=peer, why="the client sent nothing")
        client.close()

    def _look(self, client: socket.socket) -> None:
        """Look at the first byte and decide."""
        try:
            first = client.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        peer, host = self._forget(client)
        if not first:
            client.close()
        elif first[0] == HANDSHAKE:
            why = self._shared.quotas.handshakes.take(host)
            if why:
                self._refuse(client, peer, why)
            else:
                self._spawn(client, peer, self._context).add_done_callback(lambda _: self._shared.quotas.handshakes.give(host))
        elif self._enforcing:
            self._refuse(client, peer, PLAIN)
        else:
            self._spawn(client, peer, None)

    def _spawn(self, client: socket.socket, peer: str, context: ssl.SSLContext | None) -> asyncio.Task[None]:
        task = self._loop.create_task(self._connect(client, peer, context))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, client: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        """Hand a client over to a `Connection`, after its handshake."""
        limit = self._shared.settings.handshake_timeout / 1000
        try:
            if context is None:
                await self._loop.connect_accepted_socket(self._make, client)
            else:
                await self._loop.connect_accepted_socket(
                    self._make, client, ssl=context, ssl_handshake_timeout=limit, ssl_shutdown_timeout=CLOSING
                )
        except OSError as error:  # ssl.SSLError is one
            log("connection-closed", logging.WARNING, peer=peer, why=f"the TLS handshake failed: {_reason(error)}")
            client.close()
        except BaseException:
            client.close()
            raise


def _name(address: object) -> str:
    if not isinstance(address, tuple):
        return str(address)
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def _reason(error: OSError) -> str:
    """Return why a handshake failed, as a short text."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, ConnectionAbortedError):
        return "it took too long"
    return error.strerror or "the client closed the connection"
