"""Files of a log that are not in its directory: one level above the store, in a directory beside it, or in a further one inside it.

A broker reads none of them. That they are of this log is known from their records: each states where it is in its log, and the queue that
it belongs to leads there. Directories of other stores are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from mqstore.errors import CannotOpenError
from mqstore.files import MappedFile, ReadOnlyDirectory
from mqstore.files.archive import UnpackedArchive
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.broker_paths import LOG
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.commit_log import start_in, status_at
from mqstore.rocketmq.store.store_files import StoreFiles, looks_like_rocketmq

_NAME = re.compile(r"\d{20}")  # at the beginning
_MOST_ENTRIES = 1000  # of a directory


def log_files_beside(store: StoreFiles) -> dict[int, Path]:
    """Return the files with records of the log outside its directory, by where they start in it; the first one found of each."""
    root = store.directory.root
    found: dict[int, Path] = {}
    if store.log_only or type(store.directory) is not ReadOnlyDirectory or not isinstance(root, Path):
        return found
    for place in _places(root, inside=isinstance(store.kept, UnpackedArchive) and root.absolute() == store.kept.root):
        for path in sorted(each for each in _entries(place) if _NAME.match(each.name) and each.is_file()):
            with contextlib.suppress(CannotOpenError):
                mapped = ReadOnlyDirectory(place).map(path.name)
                start = start_in(mapped)
                if start is not None and start >= 0 and _belongs(store, mapped, start):
                    found.setdefault(start, path)
    return found


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


def _belongs(store: StoreFiles, mapped: MappedFile, start: int) -> bool:
    """Return whether the queue of the first record of a file leads to it; of a store without queues, whether a group reads its topic."""
    if status_at(mapped, 0, start) != frames.STOP:
        return False
    first = record.decode(mapped.length_prefixed(0))
    queues = [queue for queue in store.all_queues() if queue.max_offset > 0]
    for queue in queues:
        if (queue.topic, queue.queue_id) == (first.topic, first.queue_id):
            entries = queue.entries(first.queue_offset, first.queue_offset + 1)
            return bool(len(entries)) and int(entries["physical_offset"][0]) == start
    return not queues and any(topic == first.topic for _, topic in store.offset_table.offsets)
