"""A TCP proxy for tests: it forwards bytes, cuts all connections at a chosen byte, and changes or delays bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

CHUNK = 1 << 14


class Proxy:
    """Forwards connections to a port of 127.0.0.1. answers: changes the pieces that the server sends; delay: of each piece, in seconds."""

    def __init__(self, target: int, *, answers: Callable[[bytes], bytes] | None = None, delay: float = 0.0) -> None:
        self.target = target
        self.answers = answers
        self.delay = delay
        self.cut = 0
        self._left: int | None = None
        self._then: Callable[[], None] = lambda: None
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.close()
        self._hang_up()

    def after(self, count: int | None, then: Callable[[], None] = lambda: None) -> None:
        """After so many more bytes, in both directions together, cut all connections and call `then`; None: never."""
        with self._guard:
            self._left, self._then = count, then

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            with self._guard:
                self._open |= {client, server}
            for each in (client, server):
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for one, other, change in ((client, server, None), (server, client, self.answers)):
                threading.Thread(target=self._forward, args=(one, other, change), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket, change: Callable[[bytes], bytes] | None) -> None:
        with contextlib.suppress(OSError):
            while piece := one.recv(CHUNK):
                if self.delay:
                    time.sleep(self.delay)
                other.sendall(self._allowed(piece if change is None else change(piece)))
                if self._is_cut():
                    self._hang_up()
        for each in (one, other):
            with self._guard:
                self._open.discard(each)
            _close(each)

    def _allowed(self, piece: bytes) -> bytes:
        with self._guard:
            if self._left is None:
                return piece
            piece = piece[: self._left]
            self._left -= len(piece)
            return piece

    def _is_cut(self) -> bool:
        with self._guard:
            if self._left != 0:
                return False
            self._left = None
            self.cut += 1
        self._then()
        return True

    def _hang_up(self) -> None:
        with self._guard:
            ends, self._open = self._open, set()
        for each in ends:
            _close(each)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
