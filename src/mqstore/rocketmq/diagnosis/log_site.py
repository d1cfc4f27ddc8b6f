"""Where the log of a store is: whether all of it is in the directory that was given, and under which names.

A broker may keep its log elsewhere (`storePathCommitLog`), spread over several disks (several paths: file n is in the path n modulo
their number), or read old files from further paths (`readOnlyCommitLogStorePaths`). What is derived from the log, and what consumers
have read, must not be changed after a part of it alone. That a part is missing is known from

    the configuration    it names a path that is not the log directory of the store
    queues, offsets      they have entries or are above 0, and there is no log
    file names           of the log files, every second one is missing, every third, …

In a configuration of a store that was copied, `storePathRootDir` is a directory that this machine does not have: paths below it are
then those of the copy.

A log file under another name (`….bak`, `….1`, a name of 8 digits) is known by the physical offsets of its records.

Format: docs/formats/rocketmq.md, sections 1.1 to 1.4.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqstore.errors import CannotOpenError
from mqstore.files import MappedFile
from mqstore.files.directory_views import MountedDirectory
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.broker_paths import LOG, ConfiguredPath, is_another_store, log_paths
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.commit_log import size_at, start_in, status_at
from mqstore.rocketmq.store.store import RocketMQStore

_MOST_PATHS = 8  # over which a log may be spread

_LINK = "give a store that has its log in commitlog/, or a configuration whose storePathCommitLog is that directory"
_COPY = "give that store, or for a copy of it a configuration without storePathRootDir"
_RESTORE = "put the log there first"
_TOGETHER = "put the files of all paths into one directory first, or give a configuration that names this one path (storePathCommitLog)"


@dataclass(frozen=True, slots=True)
class LogElsewhere:
    """A log that is not, or not all, in the store's directory. place: where it is, as far as known.

    why: a clause, how that is known. remedy: what to do first, as an order.
    """

    place: str
    why: str
    remedy: str

    @property
    def sentence(self) -> str:
        """The predicate of a sentence about what depends on it."""
        return f"cannot be told without the log at {self.place}: {self.why}"


@dataclass(frozen=True, slots=True)
class RenamedLogFile:
    """A file in the log's directory that holds records of the log under another name. Both paths are relative to the store."""

    relative: str
    to: str
    size: int


def log_elsewhere(store: RocketMQStore) -> LogElsewhere | None:
    """Return what is known of a log that is not, or not all, in the directory; None if nothing points to that."""
    named: tuple[ConfiguredPath, ...] = ()
    if not store.log_only and isinstance(store.directory.root, Path):
        config, root = store.paths_config, store.directory.root
        named = log_paths(config, root)
        if is_another_store(config, root):
            why = f"{config.where('storePathRootDir')} says that the store is there, and not in {store.path}"
            return LogElsewhere(", ".join(each.configured for each in named) or str(config.store_path_root_dir), why, _COPY)
        away = [each for each in named if each.path is None]
        if away:
            settings = " and ".join(dict.fromkeys(each.setting for each in away))
            read = _read_paths(store)
            why = (
                f"{settings} names {'it' if len(away) == 1 else 'these paths'}, and {f'only {read} was read' if read else 'it is not here'}"
            )
            return LogElsewhere(", ".join(each.configured for each in away), why, _LINK)
    if renamed_log_files(store):
        return None  # they come first
    place = str(store.directory.path(store.log.queue.relative))
    if not any(file.size for file in store.log.files):
        left = next(_left_of_log(store), None)
        return None if left is None else LogElsewhere(place, f"there is none, and {left}", _RESTORE)
    every = None if named else _missing_in_turn([file.start for file in store.log.files], store.log.file_size)
    if every is not None:
        which = {2: "every second", 3: "every third"}.get(every, f"some of every {every}")
        why = f"{which} file of {place} is missing, as where a log is spread over {every} paths"
        return LogElsewhere("the other paths", why, _TOGETHER)
    return None


def _read_paths(store: RocketMQStore) -> str:
    """Return the directories of the log that were read, as text; empty if there are none."""
    mounts = store.directory.mounts.get(LOG, ()) if isinstance(store.directory, MountedDirectory) else ()
    own = store.directory.path(store.log.queue.relative)
    return " and ".join(map(str, mounts or ([own] if own.is_dir() else [])))


# what is left of a log


def _left_of_log(store: RocketMQStore) -> Iterator[str]:
    """Yield clauses about what shows that there was a log."""
    for queue in store.all_queues():
        if queue.max_offset > 0:
            yield f"queue {queue.queue_id} of topic {queue.topic!r} has entries up to {queue.max_offset}"
    if store.unread_offsets is None:
        for (group, topic), by_queue in store.offset_table.offsets.items():
            for queue_id, offset in by_queue.items():
                if offset > 0:
                    yield f"group {group!r} is at {offset} in queue {queue_id} of topic {topic!r}"


def _missing_in_turn(starts: Sequence[int], size: int) -> int | None:
    """Return the number of paths over which a log seems to be spread, of which files are missing in turn; None for any other gaps.

    Two files must be missing of two paths, three of each one that is missing of more.

    >>> _missing_in_turn([0, 200, 400], 100), _missing_in_turn([0, 100, 300, 400, 600, 700, 900], 100)
    (2, 3)
    >>> _missing_in_turn([0, 200, 300], 100), _missing_in_turn([0, 100, 500], 100), _missing_in_turn([], 0)
    (None, None, None)
    """
    there = {start // size for start in starts} if size else set()
    if not there or max(there) - min(there) > _MOST_PATHS * len(there):
        return None
    every = range(min(there), max(there) + 1)
    missing = set(every) - there
    for paths in range(2, _MOST_PATHS + 1):
        lacking = Counter(number % paths for number in missing)
        if not lacking or len(lacking) == paths or min(lacking.values()) < (2 if paths == 2 else 3):
            continue
        if all((number % paths in lacking) == (number in missing) for number in every):
            return paths
    return None


# files under other names


def renamed_log_files(store: RocketMQStore) -> list[RenamedLogFile]:
    """Return the files of the log that only lack their name, in log order: with them, the log has fewer gaps or goes further."""
    log = store.log
    found: dict[int, tuple[int, str, int]] = {}  # by start: bytes of whole records from the start, path, size
    read = {file.name for file in log.files}
    for entry in log.queue.listing:
        if not entry.is_file or entry.is_link or entry.name in read:
            continue
        relative = f"{log.queue.relative}/{entry.name}"
        with contextlib.suppress(CannotOpenError):
            mapped = store.directory.map(relative)
            start = start_in(mapped)
            if start is None or start < 0 or (log.files and entry.size != log.file_size) or not _fits_queue(store, mapped, start):
                continue
            reach = _reach(mapped, start)
            if reach and reach > found.get(start, (0,))[0]:
                found[start] = (reach, relative, entry.size)
    size = log.file_size if log.files else max((size for _, _, size in found.values()), default=0)
    kept = {file.start for file in log.files}
    taken: list[int] = []
    waiting = sorted(start for start, (_, _, own) in found.items() if own == size and start % size == 0 and start not in kept)
    while joining := [start for start in waiting if not kept or min(kept) < start < max(kept) or {start - size, start + size} & kept]:
        taken.append(joining[0])
        kept.add(joining[0])
        waiting.remove(joining[0])
    return [RenamedLogFile(found[start][1], f"{log.queue.relative}/{start:020d}", size) for start in sorted(taken)]


def _reach(mapped: MappedFile, base: int) -> int:
    """Return how many bytes from the start of a file are whole records."""
    at = 0
    while at < mapped.size and status_at(mapped, at, base) == frames.STOP:
        at += size_at(mapped.data, at)
    return at


def _fits_queue(store: RocketMQStore, mapped: MappedFile, base: int) -> bool:
    """Return whether the queue of the first record does not have another one in its place: the file may be of another store."""
    if status_at(mapped, 0, base) != frames.STOP:
        return True
    first = record.decode(mapped.length_prefixed(0))
    for queue in store.consume_queues():
        if (queue.topic, queue.queue_id) == (first.topic, first.queue_id):
            entries = queue.entries(first.queue_offset, first.queue_offset + 1)
            return not len(entries) or not entries["size"][0] or int(entries["physical_offset"][0]) == base
    return True
