"""The basket: messages selected for an export or a replay, stored as places rather than bytes.

>>> kept = Basket()
>>> kept.add([InLog(0, 512), InLog(0, 512), InQueue(1, "/", "orders", None, 7)])
2
>>> [str(place) for place in kept.places]
['0:512', '1:%2F/orders//7']
>>> place_from("1:%2F/orders//7") == kept.places[1]
True
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from mqstore.errors import UsageError

LIMIT = 10_000

_HIGHEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class InLog:
    """A message of a RocketMQ store. store: the store's number."""

    store: int
    physical_offset: int

    def __str__(self) -> str:
        return f"{self.store}:{self.physical_offset}"


@dataclass(frozen=True, slots=True)
class InQueue:
    """A message of a RabbitMQ store: an entry of a queue's index. level: priority level, None for a queue without priorities."""

    store: int
    vhost: str
    queue: str
    level: int | None
    seq_id: int

    def __str__(self) -> str:
        level = "" if self.level is None else self.level
        return f"{self.store}:{_quoted(self.vhost)}/{_quoted(self.queue)}/{level}/{self.seq_id}"


Place = InLog | InQueue


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


def _unquoted(text: str) -> str:
    return unquote(text, errors="surrogatepass")


def _number_of(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > _HIGHEST:
        raise ValueError(text)
    return int(text)


def place_from(text: str) -> Place:
    """Parse the text form of a place. Raises UsageError."""
    try:
        store, _, rest = text.partition(":")
        parts = rest.split("/")
        if len(parts) == 1:
            return InLog(_number_of(store), _number_of(rest))
        vhost, queue, level, seq_id = parts
        return InQueue(_number_of(store), _unquoted(vhost), _unquoted(queue), _number_of(level) if level else None, _number_of(seq_id))
    except ValueError:
        raise UsageError(f"{text[:80]!r} does not name a message; select messages on a page that lists them") from None


class Basket:
    """Distinct places in the order they were added; at most LIMIT."""

    def __init__(self) -> None:
        self._places: dict[Place, None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, place: Place) -> bool:
        return place in self._places

    @property
    def places(self) -> list[Place]:
        with self._lock:
            return list(self._places)

    def add(self, places: Iterable[Place]) -> int:
        """Add places and return how many are new. Raises UsageError, adding nothing, if there would be too many."""
        with self._lock:
            new = dict.fromkeys(place for place in places if place not in self._places)
            if len(self._places) + len(new) > LIMIT:
                raise UsageError(f"the basket holds {LIMIT:,} messages at most; export these first, or use `mqstore export` for more")
            self._places |= new
            return len(new)

    def remove(self, places: Iterable[Place]) -> None:
        with self._lock:
            for place in places:
                self._places.pop(place, None)

    def clear(self) -> None:
        with self._lock:
            self._places.clear()
