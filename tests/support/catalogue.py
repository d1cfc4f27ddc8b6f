"""Stores for the cases of the original unit tests: small files, a manual clock, no background threads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from mqstore.files.recorder import Operation
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message

START = 1_795_230_000_000
VERSIONS = pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
IPV6 = "[2001:db8::1]:10911"
SMALL = {
    "commit_log_file_size": 8 << 10,
    "consume_queue_file_size": 200,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "batch_queue_file_size": 46 * 20,
}


class Clock:
    """A clock that moves only when it is set."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def settings(version: str, **fields: Any) -> StoreConfig:
    """Return settings with 8 KiB log files and queue files of ten entries."""
    return StoreConfig(**{"version": version, "services": False, "clock": Clock(), **SMALL, **fields})


def opened(place: Path, version: str, **fields: Any) -> MessageStore:
    """Open a store in `place`, created if necessary."""
    return MessageStore.open(place, settings(version, **fields))


def put_some(store: MessageStore, count: int, topic: str = "FooBar", *, step: int = 0, **fields: Any) -> list[Any]:
    """Put messages with bodies 0, 1, … and dispatch them; the store's clock is moved by step before each. Return the results."""
    clock = store.config.clock
    results = []
    for number in range(count):
        if step:
            assert isinstance(clock, Clock)
            clock.now += step
        results.append(store.put(Message(topic, b"%d" % number, **fields)))
        assert results[-1].stored, results[-1]
    store.dispatch_now()
    return results


def bodies(store: MessageStore, topic: str = "FooBar", queue_id: int = 0) -> list[bytes]:
    """Return the bodies of a queue from its minimum on, in as many pulls as needed."""
    at, found = store.min_offset(topic, queue_id), []
    while at < store.max_offset(topic, queue_id):
        got = store.get("g", topic, queue_id, at)
        assert got.records(), got
        found += [record.body for record in got.records()]
        at = got.next_begin_offset
    return found


class SlowDisk:
    """A recorder that blocks each sync of the commit log while it is `closed`. waiting: set while one is blocked."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def close(self) -> None:
        self.gate.clear()

    def open(self) -> None:
        self.gate.set()

    def attempt(self, operation: str, relative: str) -> None:
        if operation == "sync" and relative.startswith("commitlog/") and not self.gate.is_set():
            self.waiting.set()
            self.gate.wait(10)
            self.waiting.clear()

    def record(self, operation: Operation) -> None:
        """Discard the operation."""


class FailingPlace:
    """A recorder that refuses every change below a path while it is `broken`."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.broken = False

    def attempt(self, operation: str, relative: str) -> None:
        if self.broken and relative.startswith(self.place):
            raise OSError(5, "Input/output error", relative)

    def record(self, operation: Operation) -> None:
        """Discard the operation."""
