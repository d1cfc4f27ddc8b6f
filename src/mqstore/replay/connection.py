"""A client's connection to a name server or a broker: requests and their responses, one after the other.

Requests are signed if there are credentials. Whatever the other side sends, a request ends with a response or a `ClientError`: a frame that
is too long, is not a frame, or answers another request, is an error in one sentence.

Protocol: docs/formats/rocketmq-remoting.md, sections 1.1 to 1.7 and 10.
"""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from mqstore.broker.access.signature import ACCESS_KEY, SIGNATURE, sign
from mqstore.broker.protocol.codes import V4_9_3, ResponseCode
from mqstore.broker.protocol.frames import MAX_FRAME, Frame, FrameError, decode, encode
from mqstore.errors import MqstoreError

__all__ = ["ClientError", "RemotingConnection", "successful"]

LOST = -1  # code of an error without a response
FOREIGN = 100  # frames that are not the response, before the connection is given up


class ClientError(MqstoreError):
    """The broker rejected a request, or there was no response in time. code: of the response, or -1."""

    def __init__(self, sentence: str, code: int = LOST) -> None:
        super().__init__(sentence)
        self.code = code


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
        self._opaques = itertools.count(1)
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

    def request(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"") -> Frame:
        """Send a request and return the response, whatever its code. Raises ClientError without a response."""
        fields = None if ext is None else {name: _field_text(value) for name, value in ext.items() if value is not None}
        asked = Frame(code, fields, body, opaque=next(self._opaques), version=V4_9_3)
        if self._credentials is not None:
            asked.ext = {**(fields or {}), ACCESS_KEY: self._credentials[0]}
            asked.ext[SIGNATURE] = sign(asked, self._credentials[1])
        try:
            self._socket.sendall(encode(asked))
            for _ in range(FOREIGN):
                answered = decode(self._exactly(self._length()))
                if answered.is_response and answered.opaque == asked.opaque:
                    return answered
            raise FrameError(f"it sent {FOREIGN} frames that are not the response")
        except (OSError, FrameError) as error:
            raise ClientError(f"the broker at {self.address} did not respond to request {code}: {error}") from None

    def call(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"") -> Frame:
        """Send a request and return the response. Raises ClientError if it reports an error."""
        return successful(self.request(code, ext, body))

    def _length(self) -> int:
        length = int.from_bytes(self._exactly(4), "big")
        if length + 4 > MAX_FRAME:
            raise FrameError(f"it sent {length} as the length of a frame, so it does not speak RocketMQ's remoting protocol")
        return length

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("it closed the connection")
            parts += part
        return bytes(parts)


def successful(answered: Frame) -> Frame:
    """Return a response, or raise ClientError if it reports an error."""
    if answered.code != ResponseCode.SUCCESS:
        raise ClientError(f"CODE: {answered.code}  DESC: {answered.remark}", answered.code)
    return answered


def _field_text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
