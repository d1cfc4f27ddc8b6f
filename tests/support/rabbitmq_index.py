"""Small queue directories and messages, written byte by byte for the tests of the readers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def array(raw: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8)


def message_id(number: int) -> bytes:
    return struct.pack(">QQ", 0xA5A5_0000_0000_0000 + number, number)


def _binary(value: bytes) -> bytes:
    return b"m" + struct.pack(">I", len(value)) + value


def _atom(name: bytes) -> bytes:
    return b"d" + struct.pack(">H", len(name)) + name


def term(identity: bytes, body: bytes, *, key: bytes = b"q", vhost: bytes = b"/", persistent: bool = True, exchange: bytes = b"") -> bytes:
    """Return a basic_message as 3.10.8 writes it."""
    fragments = b"l" + struct.pack(">I", 1) + _binary(body) + b"j" if body else b"j"
    return b"".join(
        (
            b"\x83h\x06",
            _atom(b"basic_message"),
            b"h\x04" + _atom(b"resource") + _binary(vhost) + _atom(b"exchange") + _binary(exchange),
            b"l" + struct.pack(">I", 1) + _binary(key) + b"j",
            b"h\x06" + _atom(b"content") + b"a\x3c" + _atom(b"none") + _binary(b"\x10\x00\x02" if persistent else b"\x10\x00\x01"),
            _atom(b"rabbit_framing_amqp_0_9_1") + fragments,
            _binary(identity),
            _atom(b"true" if persistent else b"false"),
        )
    )


def write(path: Path, files: dict[str, bytes]) -> Path:
    """Write these files below path, which is created, and return it."""
    for name, content in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return path
