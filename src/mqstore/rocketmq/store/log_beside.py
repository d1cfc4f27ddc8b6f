"""Files of a log that are not read as a part of it: compressed ones in its directory, and any one level above the store, in a directory
beside it, or in a further one inside it.

A broker reads none of them. That they are of this log is known from their records: each states where it is in its log, and the queue that
it belongs to leads there. Directories of other stores are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.archive import UnpackedArchive, compressed_head
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.broker_paths import LOG
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.commit_log import start_in, status_at
from mqstore.rocketmq.store.store_files import StoreFiles, looks_like_rocketmq

_NAME = re.compile(r"\d{20}")  # at the beginning
_MOST_ENTRIES = 1000  # of a directory
_HEAD = 64 << 10  # bytes of a compressed file that are expanded for its first record
_MOST_RECORD = 64 << 20


@dataclass(frozen=True, slots=True)
class FileBeside:
    """A file with records of a log that is not read as one of it. method: how it is compressed; empty if it is not."""

    path: Path
    method: str = ""


def log_files_beside(store: StoreFiles, own: Sequence[Path]) -> dict[int, FileBeside]:
    """Return the files with records of the log that are not in it as they are, by where they start in it; the first one found of each.

    own: the directories of the log; in them, compressed files are looked for, whatever their names.
    """
    root = store.directory.root
    files: dict[int, FileBeside] = {}
    if store.log_only or not isinstance(root, Path):
        return files
    for place in own:
        for path in sorted(each for each in _entries(place) if each.is_file() and not each.is_symlink()):
            head = _head_of(path)
            if head is not None and queue_leads_to(store, head[1], head[2]) is not False:
                files.setdefault(head[2], FileBeside(path, head[0]))
    if type(store.directory) is not ReadOnlyDirectory:
        return files
    for place in _places(root, inside=isinstance(store.kept, UnpackedArchive) and root.absolute() == store.kept.root):
        for path in sorted(each for each in _entries(place) if _NAME.match(each.name) and each.is_file()):
            head = _head_of(path)
            if head is None:
                with contextlib.suppress(CannotOpenError):
                    mapped = ReadOnlyDirectory(place).map(path.name)
                    start = start_in(mapped)
                    if start is not None and start >= 0 and status_at(mapped, 0, start) == frames.STOP:
                        head = "", mapped.length_prefixed(0), start
            if head is not None and _belongs(store, head[1], head[2]):
                files.setdefault(head[2], FileBeside(path, head[0]))
    return files


def _head_of(path: Path) -> tuple[str, bytes, int] | None:
    """Return of a compressed file that begins with a record: how it is compressed, that record, and where it is in its log."""
    length = _HEAD
    while True:
        unpacked = compressed_head(path, length)
        if unpacked is None or len(unpacked[1]) < record.MIN_RECORD_SIZE:
            return None
        method, head = unpacked
        size, start = (int.from_bytes(head[at : at + width], "big", signed=True) for at, width in ((0, 4), (record.PHYSICAL_OFFSET_AT, 8)))
        if length < size <= _MOST_RECORD:
            length = size
            continue
        if start < 0 or frames.status_at(np.frombuffer(head, np.uint8), 0, start, True) != frames.STOP:
            return None
        return method, head[:size], start


def _places(root: Path, *, inside: bool) -> Iterator[Path]:
    """Yield the directories in which a log may be. inside: nothing around the store belongs to it."""
    above = root.absolute().parent
    yield root
    around = [each for each in _entries(root) if each.name != LOG]
    if not inside:
        yield above
        around += [each for each in _entries(above) if each != root.absolute() and not _is_store(each)]
    for each in sorted(around):
        if each.is_dir() and not each.is_symlink():
            yield each
            yield each / LOG


def _entries(place: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(place) as scan:
        return [Path(entry) for entry in islice(scan, _MOST_ENTRIES)]
    return []


def _is_store(path: Path) -> bool:
    """Return whether a directory is another store, or has one in `store`; a log alone is not one."""
    for place in (path, path / "store"):
        with contextlib.suppress(CannotOpenError):
            if place.is_dir() and looks_like_rocketmq(ReadOnlyDirectory(place), log=False):
                return True
    return False


def queue_leads_to(store: StoreFiles, raw: bytes, start: int) -> bool | None:
    """Return whether the queue of a record leads to it; None if the queue does not say."""
    first = record.decode(raw)
    for queue in store.all_queues():
        if (queue.topic, queue.queue_id) == (first.topic, first.queue_id):
            entries = queue.entries(first.queue_offset, first.queue_offset + 1)
            return int(entries["physical_offset"][0]) == start if len(entries) and entries["size"][0] else None
    return None


def _belongs(store: StoreFiles, raw: bytes, start: int) -> bool:
    """Return whether the queue of the first record of a file leads to it; of a store without queues, whether a group reads its topic."""
    leads = queue_leads_to(store, raw, start)
    if leads is None and not any(queue.max_offset > 0 for queue in store.all_queues()):
        return any(topic == record.decode(raw).topic for _, topic in store.offset_table.offsets)
    return leads is True
