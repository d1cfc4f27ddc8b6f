"""The stored message terms of the golden RabbitMQ stores, found by a minimal walk: no states, no order, only bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support import golden as goldenkit
from support.golden import GoldenCase

Spans = list[tuple[int, int]]


def _journal(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + 40 <= len(data):
        if data[at] >> 7:
            at += 8
            continue
        (size,) = struct.unpack_from(">I", data, at + 36)
        yield at + 40, size
        at += 40 + size


def _segment(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(data):
        if not data[at] & 0x80:
            at += 2
            continue
        (size,) = struct.unpack_from(">I", data, at + 30)
        yield at + 34, size
        at += 34 + size


def _message_store(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + 25 <= len(data):
        (size,) = struct.unpack_from(">Q", data, at)
        if not 16 < size <= len(data) - at - 9 or data[at + 24] != 131 or data[at + 8 + size] != 255:
            at += 1
            continue
        yield at + 24, size - 16
        at += size + 9


def _queue_store(data: bytes) -> Iterator[tuple[int, int]]:
    at = 64
    while at + 8 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        yield at + 8, size
        at += 8 + size


_WALKS = {".jif": _journal, ".idx": _segment, ".rdq": _message_store, ".rdt": _message_store, ".qs": _queue_store}


@cache
def files(case: GoldenCase) -> list[tuple[Path, Spans]]:
    """Return each file with terms, and (start, length) of each term."""
    found = []
    for path in sorted(goldenkit.opened(case).rglob("*")):
        if path.suffix in _WALKS:
            spans = [(start, length) for start, length in _WALKS[path.suffix](path.read_bytes()) if length]
            found.append((path, spans))
    return found


@cache
def terms(case: GoldenCase) -> list[bytes]:
    """Return every stored term, copies included."""
    found = []
    for path, spans in files(case):
        data = path.read_bytes()
        found += [data[start : start + length] for start, length in spans]
    return found
