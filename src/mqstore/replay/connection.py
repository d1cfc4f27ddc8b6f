"""A client's connection to a name server or a broker: requests, several of them in flight, and their responses.

Requests are signed if there are credentials. Whatever the other side sends, and however slowly, a request ends with a response or a
`ClientError`: a frame that is too long, is not a frame, or answers another request, is an error in one sentence.

Protocol: docs/formats/rocketmq-remoting.md, sections 1.1 to 1.7 and 10.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from mqstore.broker.protocol.codes import V4_9_3, ResponseCode
from mqstore.broker.protocol.frames import MAX_FRAME, Frame, FrameError, decode, encode
from mqstore.broker.protocol.headers import ACCESS_KEY, SIGNATURE, sign
from mqstore.errors import MqstoreError

LOST = -1  # code of an error without a response
TOO_LARGE = -2  # code of a request that no receiver accepts
FOREIGN = 100  # frames that are not the response, before the connection is given up
CHUNK = 1 << 16


class ClientError(MqstoreError):
    """The broker rejected a request, or there was no response in time. code: of the response, -1 without one, -2 if it cannot be sent.

    late: the connection exists, and no response came in time, so that the request may still be carried out.
    """

    def __init__(self, sentence: str, code: int = LOST, *, late: bool = False) -> None:
        super().__init__(sentence)
        self.code = code
        self.late = late


class RemotingConnection:
    """A connection to one address. Not thread-safe. address: `ip:port`. timeout: seconds to wait for a response.

    credentials: (access key, secret key) to sign requests with. tls: the context of a connection with TLS.
    """

    def __init__(
        self, address: str, *, timeout: float = 10.0, credentials: tuple[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self._credentials = credentials
        self._timeout = timeout
        self._opaques = itertools.count(1)
        self._asked: dict[int, int] = {}  # opaque -> code of the requests without a response yet
        self._answered: dict[int, Frame] = {}  # responses that came while another one was waited for
        self._buffer = bytearray()
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host.strip("[]"))
        except (OSError, ValueError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ClientError(f"cannot connect to a broker at {address}: {why}; start one first") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def post(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"") -> int:
        """Send a request and return the number by which `take` knows its response. Raises ClientError."""
        fields = None if ext is None else {name: _field_text(value) for name, value in ext.items() if value is not None}
        asked = Frame(code, fields, body, opaque=next(self._opaques), version=V4_9_3)
        if self._credentials is not None:
            asked.ext = {**(fields or {}), ACCESS_KEY: self._credentials[0]}
            asked.ext[SIGNATURE] = sign(asked, self._credentials[1])
        try:
            raw = encode(asked)
        except FrameError as error:
            raise ClientError(str(error), TOO_LARGE) from None
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(raw)
        except OSError as error:
            raise self._lost(code, error) from None
        self._asked[asked.opaque] = code
        return asked.opaque

    def take(self, opaque: int | None = None, *, timeout: float | None = None) -> tuple[int, Frame]:
        """Return the response to a request that was posted, to any if opaque is None, with its number. Raises ClientError."""
        for known in self._answered if opaque is None else (opaque,):
            if known in self._answered:
                return known, self._answered.pop(known)
        code = self._asked[opaque] if opaque is not None else next(iter(self._asked.values()), 0)
        until = time.monotonic() + (self._timeout if timeout is None else timeout)
        try:
            for _ in range(FOREIGN + len(self._asked)):
                found = decode(self._frame(until))
                if not found.is_response or self._asked.pop(found.opaque, None) is None:
                    continue
                if opaque is None or found.opaque == opaque:
                    return found.opaque, found
                self._answered[found.opaque] = found
            raise FrameError(f"it sent {FOREIGN} frames that are not the response")
        except (OSError, FrameError) as error:
            raise self._lost(code, error) from None

    def request(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"") -> Frame:
        """Send a request and return the response, whatever its code. Raises ClientError without a response."""
        return self.take(self.post(code, ext, body))[1]

    def call(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"") -> Frame:
        """Send a request and return the response. Raises ClientError if it reports an error."""
        return successful(self.request(code, ext, body))

    def _lost(self, code: int, error: Exception) -> ClientError:
        return ClientError(f"the broker at {self.address} did not respond to request {code}: {error}", late=isinstance(error, TimeoutError))

    def _frame(self, until: float) -> bytes:
        """Return the next frame without its length."""
        self._fill(4, until)
        length = int.from_bytes(self._buffer[:4], "big")
        if length + 4 > MAX_FRAME:
            raise FrameError(f"it sent {length} as the length of a frame, so it does not speak RocketMQ's remoting protocol")
        self._fill(4 + length, until)
        found = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        return found

    def _fill(self, count: int, until: float) -> None:
        while len(self._buffer) < count:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
            part = self._socket.recv(CHUNK)
            if not part:
                raise ConnectionResetError("it closed the connection")
            self._buffer += part


def successful(answered: Frame) -> Frame:
    """Return a response, or raise ClientError if it reports an error."""
    if answered.code != ResponseCode.SUCCESS:
        raise ClientError(f"CODE: {answered.code}  DESC: {answered.remark}", answered.code)
    return answered


def _field_text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
