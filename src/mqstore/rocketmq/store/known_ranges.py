"""What reads of ranges of the log have given, for further reads of the same bytes.

A plan of a repair is made of the log again after each round of steps, and so is the diagnosis of what they leave; the steps change a few
bytes of it. What is known of other ranges is taken from here, and only those near a change are read again.

The results are pickled and compressed, some 10 bytes for each message, up to `ROOM`. What finds no room is read again each time.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import zstandard

from mqstore.repair.change import Change
from mqstore.rocketmq.scan.splits import LEAD

ROOM = 256 << 20  # bytes of memory


class _Known(NamedTuple):
    relative: str
    start: int
    stop: int
    packed: bytes


class KnownRanges:
    """Results by key. A result is of bytes start..stop-1 of one file, and of the number and the lengths of all files."""

    def __init__(self, known: dict[Hashable, _Known] | None = None, room: int = ROOM) -> None:
        self._known = {} if known is None else known
        self._room = room
        self._lock = threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def get(self, key: Hashable) -> Any:
        """Return a result, made again from its bytes; None if it is not known."""
        found = self._known.get(key)
        return None if found is None else pickle.loads(zstandard.ZstdDecompressor().decompress(found.packed))

    def keep(self, key: Hashable, result: object, relative: str, start: int, stop: int) -> None:
        """Keep a result, if there is room. relative, start, stop: the bytes that were read for it."""
        packed = zstandard.ZstdCompressor(level=1).compress(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
        with self._lock:
            if len(packed) <= self._room:
                self._room -= len(packed)
                self._known[key] = _Known(relative, start, stop, packed)

    def after(self, changes: Iterable[Change], below: str) -> KnownRanges:
        """Return what is still known after changes. below: the directory of the files, of which none may come, go or get another length."""
        inside = [change for change in changes if not below or any(f"{name}/".startswith(f"{below}/") for name in (change.file, change.to))]
        if any(change.op != "write" for change in inside):
            return KnownRanges(room=self._room + sum(len(item.packed) for item in self._known.values()))
        kept = dict(self._known)
        for change in inside:
            end = change.offset + len(change.made)
            # a place before a record was perhaps refused as one because of bytes that the change has
            near = [
                key for key, item in kept.items() if item.relative == change.file and item.start < end and change.offset < item.stop + LEAD
            ]
            for key in near:
                del kept[key]
        return KnownRanges(kept, self._room)
