"""Transfer of message files to a new directory: each file with a needed message is copied, or rewritten if it is damaged.

A file whose records are contiguous from its first to its last byte is copied unchanged, garbage included, or hard-linked on request. (A
broker truncates and merges its files in place, so never link to a store that is still needed.) From other files, and from left-overs
of a merge, only the needed records are written: a broker's scan would stop at the damage and lose the records after it.

Format: docs/formats/rabbitmq.md, sections 6 and 15.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rabbitmq import terms
from mqstore.rabbitmq.format.message_file import HEADER, OVERHEAD, record
from mqstore.rabbitmq.store.message_store import MessageStore

__all__ = ["CopiedFiles", "copy_store"]

END = 255
MARK_AND_SIZE = 9  # what the size field does not count


@dataclass(frozen=True, slots=True)
class CopiedFiles:
    """Counts of a transfer. files: in the new directory; linked: of these, hard links; written: of these, rewritten.

    bytes: of all files; left: bytes left out.
    """

    files: int = 0
    linked: int = 0
    written: int = 0
    bytes: int = 0
    left: int = 0

    def __add__(self, other: CopiedFiles) -> CopiedFiles:
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return CopiedFiles(*(mine + its for mine, its in pairs))


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of one file by position."""

    rows: NDArray[np.int64]
    at: NDArray[np.int64]
    total: NDArray[np.int64]


def copy_store(store: MessageStore, needed: NDArray[np.int64], stage: DurableDirectory, place: str, *, link: bool = False) -> CopiedFiles:
    """Transfer the message files with the needed rows of a store to a directory of the stage."""
    stage.make_directory(place)
    wanted = np.zeros(len(store), np.bool_)
    wanted[needed] = True
    by_file = _by_file(store)
    copied = CopiedFiles()
    numbers = sorted({file.number for file in store.files})
    for number in numbers:
        members = [k for k, file in enumerate(store.files) if file.number == number]
        taken = [k for k in members if wanted[by_file[k].rows].any()]
        size = sum(store.files[k].size for k in members)
        if not taken:
            copied += CopiedFiles(left=size)
            continue
        name = f"{place}/{number}.rdq"
        if len(taken) == 1 and not store.files[taken[0]].leftover and _is_whole(store, taken[0], by_file[taken[0]], wanted):
            file = store.files[taken[0]]
            linked = stage.link_or_copy(store.directory.path(file.name), name, copy=not link)
            copied += CopiedFiles(1, int(linked), 0, file.size, size - file.size)
            continue
        written = sum(_copy_chosen(store, k, by_file[k], wanted, stage, name) for k in taken)
        copied += CopiedFiles(1, 0, 1, written, size - written)
    return copied


def _by_file(store: MessageStore) -> list[_Records]:
    rows = store.by_place()
    file, at, length = store.locations(rows)
    borders = np.searchsorted(file, np.arange(len(store.files) + 1))
    return [
        _Records(rows[low:high], at[low:high] - HEADER, length[low:high] + OVERHEAD)
        for low, high in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)
    ]


def _is_whole(store: MessageStore, number: int, records: _Records, wanted: NDArray[np.bool_]) -> bool:
    """Return whether the scan of any broker finds all records of the file, and no copy that would replace a better one."""
    file = store.files[number]
    ends = records.at + records.total
    if not len(ends) or records.at[0] or ends[-1] != file.size or (records.at[1:] != ends[:-1]).any():
        return False
    data = store.directory.map(file.name).data
    if (data[ends - 1] != END).any() or not _has_heads(store, data, records).all():
        return False
    copies = np.flatnonzero(store.copies[records.rows] & store.spread(wanted)[records.rows])
    if not len(copies):
        return True
    hi, lo = store.halves(records.rows[copies])
    shape = np.zeros(len(copies), np.uint8)
    terms.shapes(data, records.at[copies] + HEADER, records.total[copies] - OVERHEAD, hi, lo, shape)
    return bool((shape & terms.SAME_ID != 0).all())


def _has_heads(store: MessageStore, data: Bytes, records: _Records) -> NDArray[np.bool_]:
    """Return which records start with their size and their id."""
    words = [np.ascontiguousarray(data[records.at[:, None] + np.arange(k, k + 8)]).view(">i8")[:, 0] for k in (0, 8, 16)]
    hi, lo = store.halves(records.rows)
    result: NDArray[np.bool_] = (words[0] == records.total - MARK_AND_SIZE) & (words[1] == hi) & (words[2] == lo)
    return result


def _copy_chosen(store: MessageStore, number: int, records: _Records, wanted: NDArray[np.bool_], stage: DurableDirectory, name: str) -> int:
    """Append the needed records of a file; return their size in bytes. A record with a damaged head or mark gets valid ones."""
    chosen = np.flatnonzero(wanted[records.rows])
    records = _Records(records.rows[chosen], records.at[chosen], records.total[chosen])
    at, ends = records.at, records.at + records.total
    data = store.directory.map(store.files[number].name).data
    sound = _has_heads(store, data, records)
    sound &= data[np.minimum(ends, len(data)) - 1] == END
    sound &= ends <= len(data)
    written = 0
    for run in np.split(np.arange(len(chosen)), np.flatnonzero((at[1:] != ends[:-1]) | ~sound[1:] | ~sound[:-1]) + 1):
        low, high = int(at[run[0]]), int(ends[run[-1]])
        part = data[low:high]
        if not sound[run[0]]:
            part = np.frombuffer(record(store.id(int(records.rows[run[0]])), part[HEADER : high - low - 1].tobytes()), np.uint8)
        stage.append(name, part)
        written += len(part)
    return written
