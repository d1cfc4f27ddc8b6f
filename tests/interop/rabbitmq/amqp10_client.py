"""As much of an AMQP 1.0 client as the tests need: sends bare messages to a queue of a 4.x node, and takes those of a queue as they are.

A message is its sections as bytes: nothing is added or left out on the way, so a test sees what the node itself made of it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from mqstore.rabbitmq.erlang.terms import Term
from mqstore.rabbitmq.message import amqp10

NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"
_OPEN, _BEGIN, _ATTACH, _FLOW, _TRANSFER, _DISPOSITION, _CLOSE = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x18
_ACCEPTED, _SOURCE, _TARGET = 0x24, 0x28, 0x29
_WINDOW = 1 << 16


def uint(number: int) -> bytes:
    return b"\x70" + number.to_bytes(4, "big")


def text(value: str) -> bytes:
    return b"\xb1" + len(value.encode()).to_bytes(4, "big") + value.encode()


def symbol(value: str) -> bytes:
    return b"\xb3" + len(value).to_bytes(4, "big") + value.encode("ascii")


def binary(value: bytes) -> bytes:
    return b"\xb0" + len(value).to_bytes(4, "big") + value


def listed(*items: bytes) -> bytes:
    inner = len(items).to_bytes(4, "big") + b"".join(items)
    return b"\xd0" + len(inner).to_bytes(4, "big") + inner


def mapped(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"\xd1" + listed(*(item for pair in pairs for item in pair))[1:]


def described(code: int, value: bytes) -> bytes:
    return bytes([0, 0x53, code]) + value


class Client:
    """One connection with one session and one link. port: of the node."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._stream = self._socket.makefile("rb")
        self._open(b"AMQP\x03\x01\x00\x00")
        self._receive()
        self._send(0x41, symbol("PLAIN"), binary(b"\0guest\0guest"), kind=1)
        code, outcome, _ = self._receive()
        assert (code, outcome[0]) == (0x44, ("ubyte", 0)), outcome
        self._open(b"AMQP\x00\x01\x00\x00")
        self._send(_OPEN, text("mqstore"), text("vhost:/"))
        self._send(_BEGIN, NULL, uint(0), uint(_WINDOW), uint(_WINDOW))
        code = 0
        while code != _BEGIN:
            code, fields, _ = self._receive()
        self._next: int = fields[1][1]  # the number of the first transfer that comes

    def close(self) -> None:
        self._send(_CLOSE)
        with contextlib.suppress(AssertionError):
            while self._receive()[0] != _CLOSE:
                pass
        self._socket.close()

    def _open(self, protocol: bytes) -> None:
        self._socket.sendall(protocol)
        assert self._stream.read(8) == protocol

    def _send(self, code: int, *fields: bytes, payload: bytes = b"", kind: int = 0) -> None:
        body = described(code, listed(*fields)) + payload
        self._socket.sendall(struct.pack(">IBBH", len(body) + 8, 2, kind, 0) + body)

    def _receive(self) -> tuple[int, list[Any], bytes]:
        """Return code and fields of the next performative, and what follows it."""
        size = 8
        while size == 8:  # a frame without a body keeps the connection alive
            head = self._stream.read(8)
            assert len(head) == 8, "the node has closed the connection"
            size = int.from_bytes(head[:4], "big")
        body = self._stream.read(size - 8)
        (_, (_, code), (_, fields)), end = amqp10.value(body, 0)
        assert code not in (0x16, 0x17, _CLOSE), fields
        return code, fields, body[end:]

    def send(self, queue: str, messages: Iterable[bytes]) -> None:
        """Send messages to a queue, and return when it has accepted them."""
        source, target = described(_SOURCE, listed()), described(_TARGET, listed(text(f"/queues/{queue}")))
        self._send(_ATTACH, text("out"), uint(0), FALSE, NULL, NULL, source, target, NULL, NULL, uint(0))
        sent = accepted = allowed = 0
        for message in messages:
            while sent == allowed:
                allowed, accepted = self._progress(allowed, accepted)
            tag = sent.to_bytes(4, "big")
            self._send(_TRANSFER, uint(0), uint(sent), binary(tag), uint(0), FALSE, payload=message)
            sent += 1
        while accepted < sent:
            allowed, accepted = self._progress(allowed, accepted)

    def _progress(self, allowed: int, accepted: int) -> tuple[int, int]:
        code, fields, _ = self._receive()
        if code == _FLOW and len(fields) > 6 and type(fields[4]) is tuple:
            return fields[5][1] + fields[6][1], accepted
        if code == _DISPOSITION:
            assert fields[4][1] == ("ulong", _ACCEPTED), fields
            last = fields[2][1] if type(fields[2]) is tuple else fields[1][1]
            return allowed, accepted + last - fields[1][1] + 1
        return allowed, accepted

    def take(self, queue: str, count: int) -> Iterator[list[tuple[int, Term]]]:
        """Yield the sections of the next messages of a queue, with their codes, and acknowledge them."""
        source, target = described(_SOURCE, listed(text(f"/queues/{queue}"))), described(_TARGET, listed())
        self._send(_ATTACH, text("in"), uint(0), TRUE, NULL, NULL, source, target)
        self._send(_FLOW, uint(self._next), uint(_WINDOW), uint(0), uint(_WINDOW), uint(0), uint(0), uint(count))
        content = b""
        while count:
            code, fields, part = self._receive()
            if code == _TRANSFER:
                content += part
                if len(fields) > 1 and type(fields[1]) is tuple:
                    delivery = fields[1][1]
                if len(fields) < 6 or str(fields[5]) != "true":
                    yield amqp10.sections(content)
                    self._send(_DISPOSITION, TRUE, uint(delivery), uint(delivery), TRUE, described(_ACCEPTED, listed()))
                    content, count = b"", count - 1
