"""The stores that a console shows: opened once, and reopened when their files change.

A store is addressed by its number; no path comes from a visitor. Derived data of an open store (the recovered view, counts) is cached
with it and dropped with it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mqstore.errors import NotFoundError, UnsupportedError, UsageError
from mqstore.files.archive import is_archive
from mqstore.files.location import Location, Url
from mqstore.rabbitmq.site import absent_queues
from mqstore.stores import open_store
from mqstore.stores.rabbitmq import RabbitMQ
from mqstore.stores.rocketmq import RocketMQ

if TYPE_CHECKING:
    from mqstore.rocketmq.store.view import View

CHECK_INTERVAL = 5.0  # seconds between checks of the files

T = TypeVar("T")


class OpenStore:
    """One state of one store. number: its position in the list; token: changes when the store is reopened."""

    def __init__(self, number: int, name: str, store: RocketMQ | RabbitMQ, token: int) -> None:
        self.number = number
        self.name = name
        self.store = store
        self.token = token
        self.checked_at = time.monotonic()
        self.fingerprint = _fingerprint(store)
        self._cache: dict[Hashable, Any] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    @property
    def family(self) -> str:
        return self.store.family

    @property
    def key(self) -> tuple[int, int]:
        """The key of jobs over this state."""
        return self.number, self.token

    @property
    def rocketmq(self) -> RocketMQ:
        """The RocketMQ store. Raises UnsupportedError for a RabbitMQ store."""
        if not isinstance(self.store, RocketMQ):
            raise UnsupportedError(f"{self.name} is a RabbitMQ message store; this page is about RocketMQ stores")
        return self.store

    @property
    def rabbitmq(self) -> RabbitMQ:
        """The RabbitMQ store. Raises UnsupportedError for a RocketMQ store."""
        if not isinstance(self.store, RabbitMQ):
            raise UnsupportedError(f"{self.name} is a RocketMQ store; this page is about RabbitMQ message stores")
        return self.store

    @property
    def absent(self) -> list[str]:
        """What the definitions of a RabbitMQ node name and the store does not have, a sentence each."""
        return self.cached("absent", lambda: [each.sentence for each in absent_queues(self.rabbitmq) if each.sure])

    def cached(self, what: Hashable, make: Callable[[], T]) -> T:
        """Return a cached value, computing it on first use; concurrent callers wait for one computation."""
        with self._lock:
            lock = self._locks.setdefault(what, threading.Lock())
        with lock:
            if what not in self._cache:
                self._cache[what] = make()
            value: T = self._cache[what]
            return value

    def view(self, name: str) -> View:
        """Return the view `disk` or `recovered`. Raises UsageError, RefusedError, UnsupportedError."""
        if name not in ("disk", "recovered"):
            raise UsageError(f"there is no view {name!r}; the views are disk and recovered")
        store = self.rocketmq
        return self.cached(("view", name), lambda: store.view(name))


def _fingerprint(store: RocketMQ | RabbitMQ) -> int | None:
    """Hash names, sizes and times of all files; None for a store that does not change: an archive or a URL."""
    root = store.directory.root
    if isinstance(store.path, Url) or (store.path != root and is_archive(Path(store.path))):
        return None
    return hash(tuple((name, entry.size, entry.mtime_ms) for name, entry in store.directory.walk()))


class _Slot:
    def __init__(self, place: Location) -> None:
        self.place = place
        self.lock = threading.Lock()
        self.opened: OpenStore | None = None
        self.openings = 0


class StoreList:
    """The given stores, by number from 0. now: microseconds at which messages count as expired; None: the time a store is opened."""

    def __init__(self, places: tuple[Location, ...], now: int | None = None) -> None:
        self._now = now
        self._slots = [_Slot(place) for place in places]
        self.names = _short_names(places)

    def __len__(self) -> int:
        return len(self._slots)

    def place(self, number: int) -> str:
        """Return a store's location for display."""
        place = self._slots[number].place
        return os.path.abspath(place) if isinstance(place, Path) else str(place)

    def get(self, number: int) -> OpenStore:
        """Return the store as it is now. Raises NotFoundError for an unknown number, and what `mqstore.open` raises."""
        if not 0 <= number < len(self._slots):
            raise NotFoundError(f"there is no store {number}; the start page lists the stores")
        slot = self._slots[number]
        with slot.lock:
            opened = slot.opened
            if opened is not None and time.monotonic() - opened.checked_at > CHECK_INTERVAL:
                if opened.fingerprint is not None and _fingerprint(opened.store) != opened.fingerprint:
                    opened = None
                else:
                    opened.checked_at = time.monotonic()
            if opened is None:
                slot.openings += 1
                slot.opened = opened = OpenStore(number, self.names[number], _open(slot.place, self._now), slot.openings)
            return opened

    def reload(self, number: int) -> None:
        """Drop an open store, so that it is read again."""
        if 0 <= number < len(self._slots):
            with self._slots[number].lock:
                self._slots[number].opened = None


def _open(place: Location, now: int | None) -> RocketMQ | RabbitMQ:
    return open_store(place, now=time.time_ns() // 1000 if now is None else now)


def _short_names(places: tuple[Location, ...]) -> tuple[str, ...]:
    """Return the last part of each path, with as many parent names as are needed to distinguish them."""
    parts = [str(place).rstrip("/").split("/") for place in (os.path.abspath(p) if isinstance(p, Path) else p for p in places)]
    names = []
    for mine in parts:
        length = next((n for n in range(1, len(mine) + 1) if sum(other[-n:] == mine[-n:] for other in parts) == 1), len(mine))
        names.append("/".join(mine[-length:]))
    return tuple(names)
