"""A publisher of the stream protocol of RabbitMQ: what it sends are entries and sub-batches, which the node stores as they are.

frame       u32 bytes that follow, u16 command, u16 version, content; an answer has bit 15 of the command set
entry       u64 publishing id, u32 length, bytes
sub-batch   u64 publishing id, 0x80 + 16 * codec, u16 records, u32 bytes uncompressed, u32 length, bytes
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

_PUBLISHER, _PUBLISH, _CONFIRM, _PROPERTIES, _HANDSHAKE, _AUTHENTICATE, _TUNE, _OPEN = 1, 2, 3, 17, 18, 19, 20, 21
_OK = 1


def _text(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


class StreamPublisher:
    """A connection that publishes to one stream."""

    def __init__(self, port: int, stream: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._asked = self._published = 0
        self._ask(_PROPERTIES, struct.pack(">I", 0))
        self._ask(_HANDSHAKE)
        self._ask(_AUTHENTICATE, _text(b"PLAIN") + struct.pack(">I", 12) + b"\0guest\0guest")
        while (frame := self._receive())[0] != _TUNE:
            pass
        self._send(0x8000 | _TUNE, frame[1])
        self._ask(_OPEN, _text(b"/"))
        self._ask(_PUBLISHER, struct.pack(">BH", 0, 0) + _text(stream.encode()))

    def publish(self, entries: Sequence[bytes]) -> None:
        """Send entries, as chunks have them, in one frame, and wait until the node has confirmed them."""
        numbered = (struct.pack(">Q", self._published + number) + each for number, each in enumerate(entries))
        self._send(_PUBLISH, struct.pack(">BI", 0, len(entries)) + b"".join(numbered))
        self._published += len(entries)
        confirmed = 0
        while confirmed < len(entries):
            command, content = self._receive()
            assert command in (_CONFIRM, 0x8000 | _CONFIRM), command
            confirmed += int.from_bytes(content[1:5], "big")

    def close(self) -> None:
        self._socket.close()

    def _ask(self, command: int, content: bytes = b"") -> None:
        self._asked += 1
        self._send(command, struct.pack(">I", self._asked) + content)
        while True:
            answer, content = self._receive()
            if answer == 0x8000 | command:
                assert int.from_bytes(content[4:6], "big") == _OK, (command, content)
                return

    def _send(self, command: int, content: bytes) -> None:
        self._socket.sendall(struct.pack(">IHH", 4 + len(content), command, 1) + content)

    def _receive(self) -> tuple[int, bytes]:
        length = int.from_bytes(self._exactly(4), "big")
        frame = self._exactly(length)
        return int.from_bytes(frame[:2], "big"), frame[4:]

    def _exactly(self, length: int) -> bytes:
        got = b""
        while len(got) < length:
            part = self._socket.recv(length - len(got))
            assert part, "the node closed the connection"
            got += part
        return got
