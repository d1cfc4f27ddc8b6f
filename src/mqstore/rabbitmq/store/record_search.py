"""Search for the messages whose records have no valid head: the indexes name their ids, and their terms end where they end.

    size | id | 131 … id … | 255        a record, with its id twice
     ??  | ?? | 131 … id … | ??         found by the id in the term
     ??  | id | 131 … ?? … | ??         found by the id in the head: the message itself is damaged

`MessageStore` does this only if it is to read carefully, and only in bytes that no proved record covers. An id that no index names is
not searched for: bytes of a body may look like a message.

Format: docs/formats/rabbitmq.md, sections 6.1 and 14.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.kernels.rabbitmq import message_store, terms
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format.message_file import HEADER
from mqstore.rabbitmq.message.message_term import read_message

__all__ = ["FoundRecord", "MessageIds", "search"]

_BLOCK = 1 << 12
_WINDOW = 1 << 22
_TERM = 131
# bytes that failed attempts to read a term may take, for each byte of a gap
_EFFORT = 256


class MessageIds(NamedTuple):
    """Ids in ascending order, as two big-endian halves each."""

    hi: NDArray[np.int64]
    lo: NDArray[np.int64]

    @classmethod
    def of(cls, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> MessageIds:
        """Return these ids in order."""
        order = np.lexsort((lo, hi))
        return cls(np.ascontiguousarray(hi[order]), np.ascontiguousarray(lo[order]))

    def contain(self, hi: NDArray[np.int64], lo: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each id whether it is one of these."""
        found = np.empty(len(hi), np.int64)
        message_store.find_ids(self.hi, self.lo, np.ascontiguousarray(hi), np.ascontiguousarray(lo), found)
        return found >= 0


class FoundRecord(NamedTuple):
    """A message. at: where its record would start; total: bytes from there to the mark; quality: PROVED if the id is in the term."""

    at: int
    total: int
    id: bytes
    quality: int


def search(data: Bytes, gaps: Iterable[tuple[int, int, list[tuple[int, int]]]], wanted: MessageIds) -> list[FoundRecord]:
    """Return the messages with these ids whose terms are in the gaps of a file, by position. gaps: as `message_file.gaps` gives them."""
    found: dict[int, FoundRecord] = {}
    for _, end, parts in gaps:
        for low, high in parts:
            if data[low:high].any():
                for record in (*_by_term(data, low, high, wanted), *_by_head(data, low, high, end, wanted)):
                    found.setdefault(record.at, record)
    return [found[at] for at in sorted(found)]


def _record(data: Bytes, start: int, end: int, message_id: bytes, quality: int) -> FoundRecord:
    marked = end < len(data) and data[end] == 255
    return FoundRecord(start - HEADER, end - start + HEADER + 1, message_id, quality | (message_store.MARKED if marked else 0))


def _by_term(data: Bytes, low: int, high: int, wanted: MessageIds) -> Iterator[FoundRecord]:
    at, end = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    position = max(low, HEADER)
    while position < high:
        count, position, tried = message_store.stored_messages(data, position, high, at, end)
        for start, stop in zip(at[:count].tolist(), end[:count].tolist(), strict=True):
            try:
                message_id = read_message(data[start:stop].tobytes()).id
            except EtfError:
                continue
            if len(message_id) == 16 and wanted.contain(*_halves(message_id))[0]:
                yield _record(data, start, stop, message_id, message_store.PROVED)
        if not tried:
            return


def _halves(message_id: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    halves = np.frombuffer(message_id, ">i8").astype(np.int64)
    return halves[:1], halves[1:]


def _by_head(data: Bytes, low: int, high: int, limit: int, wanted: MessageIds) -> Iterator[FoundRecord]:
    """Yield the terms after a wanted id; each ends before limit."""
    left = _EFFORT * (limit - low)
    position = 0
    for start in range(max(low, HEADER), high, _WINDOW):
        places = np.flatnonzero(data[start : min(start + _WINDOW, high)] == _TERM) + start
        hi, lo = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        message_store.record_ids(data, places - HEADER, hi, lo)
        for place in places[wanted.contain(hi, lo)].tolist():
            if place < position:
                continue
            end = terms.end(data, place, limit)
            if end >= 0:
                yield _record(data, place, end, data[place - 16 : place].tobytes(), 0)
                position = end
            else:
                left -= limit - place
            if left < 0:
                return
