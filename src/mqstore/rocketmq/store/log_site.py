"""Where the log of a store is: whether all of it is in the directory that was given, and under which names.

A broker may keep its log elsewhere (`storePathCommitLog`), spread over several disks (several paths: file n is in the path n modulo
their number), or read old files from further paths (`readOnlyCommitLogStorePaths`). What is derived from the log, and what consumers
have read, must not be changed after a part of it alone. That a part is missing is known from

    the configuration           it names a path that is not the log directory of the store: the log is elsewhere
    queues, offsets,            they have entries or are above 0, the checkpoint has a time, and there is no log: it is absent, and with it
    index files, checkpoint     the messages that they count
    file names                  of the log files, every second one is missing, every third, …: the log is partly here
    files around the store      they have the records of files that are missing, as a log that was moved out of its place
    compressed files            they have such records, in the directory of the log, too

In a configuration of a store that was copied, `storePathRootDir` is a directory that this machine does not have: paths below it are
then those of the copy.

Files around the store are those one level above it, in a directory beside it, or in a further one inside it; a broker reads none of them.
That they are of this log is known from their records: each states where it is in its log, and the queue that it belongs to leads there.
Directories of other stores are left out.

A log file under another name (`….bak`, `….1`, a name of 8 digits) is known by the physical offsets of its records.

Format: docs/formats/rocketmq.md, sections 1.1 to 1.4.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from mqstore.errors import CannotOpenError, UnsupportedError
from mqstore.files import MappedFile, ReadOnlyDirectory
from mqstore.files.archive import UnpackedArchive, compressed_head
from mqstore.files.directory_views import MountedDirectory
from mqstore.files.location import Url
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.broker_paths import ConfiguredPath, is_another_store, log_paths, unread_beside
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.commit_log import size_in, start_in, status_at
from mqstore.rocketmq.format.log_file import LOG
from mqstore.rocketmq.store.compacted import compacted_topics
from mqstore.rocketmq.store.store_files import StoreFiles, looks_like_rocketmq
from mqstore.table.formatting import count, moment

_NAME = re.compile(r"\d{20}")
_MOST_ENTRIES = 1000  # of a directory
_MOST_FILES = 10_000  # looked for after the end of a log
_MOST_PATHS = 8  # over which a log may be spread
_FARTHEST = 1 << 40  # an offset beyond it does not count messages
_SURELY = 1_000_000  # one up to a thousand times this may be right whatever the others are
_HEAD = 64 << 10  # bytes of a compressed file that are expanded for its first record
_MOST_RECORD = 64 << 20

_LINK = "give a store that has its log in commitlog/, or a configuration whose storePathCommitLog is that directory"
_COPY = "give that store, or for a copy of it a configuration without storePathRootDir"
_CONFIG = "correct that file, or give the broker's configuration with --config"
_RESTORE = "put the log there first"
_MOUNT = "mount the disk that has the log there, or correct that line"
_TOGETHER = "put the files of all paths into one directory first, or give a configuration that names this one path (storePathCommitLog)"


@dataclass(frozen=True, slots=True)
class LogElsewhere:
    """A log that is not, or not all, in the store's directory. place: where it is, as far as known.

    state: elsewhere, where something names another place; partly; absent, where nothing does. why: a clause, how that is known.
    remedy: what to do first, as an order. Of a log that is absent, known_from: the parts that show that there was one; messages: how many
    were in it, as far as known; uncounted: a sentence about what that leaves out, empty if nothing.
    """

    place: str
    state: Literal["elsewhere", "partly", "absent"]
    why: str
    remedy: str
    known_from: str = ""
    messages: int = 0
    uncounted: str = ""

    @property
    def without(self) -> str:
        """The predicate of a sentence about what depends on it, without the reason."""
        return f"cannot be told without the log at {self.place}"

    @property
    def sentence(self) -> str:
        """The predicate of a sentence about what depends on it."""
        return f"{self.without}: {self.why}"

    @property
    def damage(self) -> Damage | None:
        """The finding about a log that is absent; None about one that is elsewhere."""
        if self.state != "absent":
            return None
        many = f"{count(self.messages, 'message')} {'was' if self.messages == 1 else 'were'}" if self.messages else "messages were"
        least, further = ("at least ", f"; {self.uncounted}") if self.uncounted and self.messages else ("", "")
        sentence = f"there is no log; {least}{many} in it, as is known from {self.known_from}{further}"
        return Damage(LOG, 0, 0, Kind.ABSENT_PART, sentence, self.messages)


@dataclass(frozen=True, slots=True)
class RenamedLogFile:
    """A file in the log's directory that holds records of the log under another name. Both paths are relative to the store."""

    relative: str
    to: str
    size: int


def log_elsewhere(store: StoreFiles) -> LogElsewhere | None:
    """Return what is known of a log that is not, or not all, in the directory; None if nothing points to that."""
    named: tuple[ConfiguredPath, ...] = ()
    if not store.log_only and isinstance(store.directory.root, Path):
        config, root = store.paths_config, store.directory.root
        named = log_paths(config, root)
        if is_another_store(config, root):
            top = Path(str(config.store_path_root_dir))
            if root.resolve().is_relative_to(top.resolve()) and not looks_like_rocketmq(ReadOnlyDirectory(top)):
                why = f"{config.where('storePathRootDir')} names {top}, where no store is; this one is below it, in {store.path}"
                return LogElsewhere(f"{top}/{LOG}", "elsewhere", why, f"let that line name {store.path}")
            why = f"{config.where('storePathRootDir')} says that the store is there, and not in {store.path}"
            paths = ", ".join(each.configured for each in named) or str(config.store_path_root_dir)
            return LogElsewhere(paths, "elsewhere", why, _COPY)
        above = next((each for each in named if each.path is not None and _is_above_log(each.path)), None)
        if above is not None and not _is_written(store):
            own = f"{above.path}/{LOG}"
            why = f"{above.setting} names {above.path}, where no file of the log is; they are in the directory {LOG} below"
            return LogElsewhere(own, "elsewhere", why, f"let that line name {own}")
        away = [each for each in named if each.path is None]
        if away:
            settings = " and ".join(dict.fromkeys(each.setting for each in away))
            read = _read_paths(store)
            moved = None if read else _moved_log(store)
            those, are = ("it", "it is") if len(away) == 1 else ("these paths", "they are")
            why = (
                f"{settings} names {those}, and {f'only {read} was read' if read else f'{are} not here'}"
                + ("; a file has that place" if any(each.is_file for each in away) else "")
                + ("" if moved is None else f"; {moved.why}")
            )
            return LogElsewhere(", ".join(each.configured for each in away), "partly" if _is_written(store) else "elsewhere", why, _LINK)
    if renamed_log_files(store):
        return None  # they come first
    directories = log_directories(store)
    paths = store.shown(store.directory.path(store.log.queue.relative))
    if not _is_written(store):
        packed = {start: file for start, file in log_files_beside(store, directories).items() if file.path.parent in directories}
        if packed:
            return _moved_log(store, packed)
        left = tuple(_left_of_log(store))
        if not left:
            return None
        place = os.path.realpath(store.directory.root / LOG) if named else ""
        empty = [each for each in named if os.path.realpath(each.path or "") != place]
        if empty:  # a disk that is not mounted leaves a directory without files
            settings = " and ".join(dict.fromkeys(each.setting for each in empty))
            why = f"{settings} names {'it' if len(empty) == 1 else 'these paths'}, where no file of the log is"
            return LogElsewhere(", ".join(each.configured for each in empty), "elsewhere", why, _MOUNT)
        beside = not store.configured and type(store.directory) is ReadOnlyDirectory
        if beside and (unread := unread_beside(store.directory.root)) is not None:
            return LogElsewhere("the place that the configuration names", "elsewhere", f"{unread}; it may say where the log is", _CONFIG)
        if (moved := _moved_log(store)) is not None:
            return replace(moved, why=f"there is none in the store; {moved.why}")
        parts = " and ".join(dict.fromkeys(each.part for each in left))
        number, uncounted = sum(each.messages for each in left), next((each.sentence for each in left if each.wild), "")
        first = next((each for each in left if not each.wild), left[0])
        return LogElsewhere(paths, "absent", f"there is none, and {first.sentence}", _RESTORE, parts, number, uncounted)
    lacking = _lacking(store)
    elsewhere = {start: file for start, file in log_files_beside(store, directories).items() if start in lacking} if lacking else {}
    if elsewhere:
        start = min(elsewhere)
        path, method = store.shown(elsewhere[start].path), elsewhere[start].method
        more = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
        name = f"{store.log.queue.relative}/{start:020d}"
        records = f"the records{f', compressed with {method}' if method else ''}"
        why = f"{name}{more} {'are' if more else 'is'} missing, and {'these files have' if more else 'it has'} {records}"
        to = store.shown(store.directory.path(name))
        return LogElsewhere(f"{path}{more}", "partly", why, f"{'decompress' if method else 'copy'} {path} to {to} first")
    every = None if named else _missing_in_turn([file.start for file in store.log.files], store.log.file_size)
    if every is not None:
        which = {2: "every second", 3: "every third"}.get(every, f"some of every {every}")
        why = f"{which} file of {paths} is missing, as where a log is spread over {every} paths"
        return LogElsewhere("the other paths", "partly", why, _TOGETHER)
    return None


def misnamed_log(store: StoreFiles) -> LogElsewhere | None:
    """Return what is known of files of the log that only lack their names; None if there are none."""
    renamed = renamed_log_files(store)
    if not renamed:
        return None
    more = f" and {len(renamed) - 1} more" if len(renamed) > 1 else ""
    why = f"it has the records of {renamed[0].to}, and is not read under that name: `mqstore repair` gives it back"
    place = f"{store.shown(store.directory.path(renamed[0].relative))}{more}"
    return LogElsewhere(place, "partly", why, "give the files their names first")


def lacks_of_log(store: StoreFiles, *, expired: bool = True) -> str:
    """Return what of the log an empty answer does not rest on, as a clause; empty if the log is whole. expired: from its first byte on."""
    elsewhere = log_elsewhere(store) or misnamed_log(store)
    if elsewhere is not None:
        return f"what is in the rest of it {elsewhere.sentence}"
    holes = [item for item in store.log.findings if item.kind is Kind.MISSING_FILE]
    if holes:
        return f"{count(sum(item.length for item in holes), 'byte')} of the log are missing, the first from {holes[0].file} on"
    if expired and store.log.start > 0 and not store.log_only:
        return f"the log begins at {store.log.start}: what was before that has expired, or is not here"
    return ""


def notes_on_rows(store: StoreFiles, of: str = "") -> Iterator[str]:
    """Yield a sentence if rows of the log are not all, and one for each topic of which consumers get others. of: the store to name."""
    if lacks := lacks_of_log(store, expired=False):
        yield f"only what is left of the log{f' of {of}' if of else ''} is read: {lacks}"
    if not store.log_only:
        yield from (f"{of}: {sentence}" if of else sentence for sentence in compacted_topics(store.directory))


def require_whole_log(store: StoreFiles, what: str) -> None:
    """Raise UnsupportedError if the log is not, or not all, in the directory. what: what is then not known, the subject of a sentence."""
    elsewhere = log_elsewhere(store)
    if elsewhere is not None:
        raise UnsupportedError(f"{what} {elsewhere.sentence}; nothing is changed: {elsewhere.remedy}")


def _moved_log(store: StoreFiles, files: dict[int, FileBeside] | None = None) -> LogElsewhere | None:
    """Return the log that is around a store that has none, or in its place in compressed files; None if there is none."""
    files = log_files_beside(store, log_directories(store)) if files is None else files
    if not files:
        return None
    first = files[min(files)]
    places = list(dict.fromkeys(store.shown(files[start].path.parent) for start in sorted(files)))
    to = store.shown(store.directory.path(LOG))
    has, them = ("has", "it") if len(places) == 1 else ("have", "the files")
    packed = f", compressed with {first.method}" if first.method else ""
    why = f"{' and '.join(places)} {has} {count(len(files), 'file')} with records of it{packed}"
    if first.method:
        return LogElsewhere(", ".join(places), "elsewhere", why, f"decompress {'it' if len(files) == 1 else 'them'} to {to} first")
    remedy = f"give a configuration with storePathCommitLog={','.join(places)}, or move {them} to {to}"
    return LogElsewhere(", ".join(places), "elsewhere", why, remedy)


def _lacking(store: StoreFiles) -> set[int]:
    """Return where files would begin that are missing: between others of the log, or after the last one, as far as queues have entries."""
    size = store.log.file_size
    holes = [(int(item.file.rpartition("/")[2]), item.length) for item in store.log.findings if item.kind is Kind.MISSING_FILE]
    missing = {start for begin, length in holes for start in range(begin, begin + length, size)}
    end = store.log.files[-1].start + size
    reach = max((queue.max_physical_offset for queue in store.all_queues()), default=-1)
    return missing | set(range(end, min(reach, end + _MOST_FILES * size), size))


def _is_above_log(path: Path) -> bool:
    """Return whether a directory has no file of a log, and its directory `commitlog` has."""
    return _named_files(path) == 0 < _named_files(path / LOG)


def _named_files(path: Path) -> int:
    """Return how many files in a directory are named as those of a log."""
    with contextlib.suppress(OSError):
        return sum(_NAME.fullmatch(entry.name) is not None and entry.is_file() for entry in os.scandir(path))
    return 0


def _is_written(store: StoreFiles) -> bool:
    return any(file.size for file in store.log.files)


def _read_paths(store: StoreFiles) -> str:
    """Return the directories of the log that were read, as text; empty if there are none."""
    own = store.log.queue.relative
    there = [store.directory.path(own)] if store.directory.is_directory(own) else []
    return " and ".join(map(str, mounted_log(store.directory) or there))


def mounted_log(directory: ReadOnlyDirectory) -> Sequence[Path]:
    """Return the directories elsewhere that have the log; empty if it is in the store."""
    return directory.mounts.get(LOG, ()) if isinstance(directory, MountedDirectory) else ()


def log_directories(store: StoreFiles) -> Sequence[Path]:
    mounts = mounted_log(store.directory)
    own: Path | Url = store.directory.path(store.log.queue.relative)  # what is beside a store by URL is not looked for
    return mounts or ([own] if isinstance(own, Path) and own.is_dir() else [])


# what is left of a log


@dataclass(frozen=True, slots=True)
class _Left:
    """What shows that there was a log: a part, and a clause about it. messages: how many it shows that no other clause does.

    wild: it is about a number that cannot be right.
    """

    part: str
    sentence: str
    messages: int = 0
    wild: bool = False


def _left_of_log(store: StoreFiles) -> Iterator[_Left]:
    """Yield what shows that there was a log.

    The entries of queues count; if no queue has any, the offset of the group that has come furthest in each. Beside queues with entries, a
    queue without files is one of a topic that was deleted.
    """
    listed = False
    for queue in store.all_queues():
        if queue.max_offset > 0:
            listed = True
            sentence = f"queue {queue.queue_id} of topic {queue.topic!r} has entries up to {queue.max_offset}"
            yield _Left("queue files", sentence, queue.listed)
    offsets = _offsets_above_0(store)
    limit = _farthest(offset for offset, *_ in offsets)
    furthest: dict[tuple[str, int], tuple[int, str]] = {}
    for offset, group, topic, queue_id in offsets:
        sentence = f"group {group!r} is at {offset} in queue {queue_id} of topic {topic!r}"
        if offset <= limit:
            furthest[topic, queue_id] = offset, sentence
        else:
            yield _Left("consumerOffset.json", f"{sentence}, which cannot be right and is not counted", wild=True)
    for offset, sentence in furthest.values():
        yield _Left("consumerOffset.json", sentence, 0 if listed else offset)
    for file in store.index_files():
        if file.index_count > 1:
            yield _Left("index files", f"{file.relative} has keys of messages up to physical offset {file.end_physical_offset}")
    if store.checkpoint.physic > 0:
        yield _Left("checkpoint", f"the checkpoint has the time of a message in it, {moment(store.checkpoint.physic)}")


def _offsets_above_0(store: StoreFiles) -> list[tuple[int, str, str, int]]:
    """Return (offset, group, topic, queue id) of the groups, the smallest offset first."""
    if store.unread_offsets is not None:
        return []
    table = store.offset_table.offsets.items()
    return sorted(
        (offset, group, topic, queue_id) for (group, topic), offsets in table for queue_id, offset in offsets.items() if offset > 0
    )


def _farthest(offsets: Iterable[int]) -> int:
    """Return the largest of ascending offsets that may be right: one that dwarfs all before it together is a number of something else.

    >>> _farthest([300, 387, 5_000_000_000, 1 << 62]), _farthest([5 * 10**6, 5 * 10**9]), _farthest([])
    (387, 5000000000, 0)
    """
    largest = total = 0
    for offset in offsets:
        if offset > min(_FARTHEST, 1000 * max(_SURELY, total)):
            break
        largest = offset
        total += offset
    return largest


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


def renamed_log_files(store: StoreFiles) -> list[RenamedLogFile]:
    """Return the files of the log that only lack their name, in log order: with them, the log has fewer gaps or goes further."""
    log = store.log
    parts: dict[int, tuple[int, str, int]] = {}  # by start: bytes of whole records from the start, path, size
    read = {file.name for file in log.files}
    for entry in log.queue.listing:
        if not entry.is_file or entry.is_link or entry.name in read:
            continue
        relative = f"{log.queue.relative}/{entry.name}"
        with contextlib.suppress(CannotOpenError):
            mapped = store.directory.map(relative)
            start = start_in(mapped)
            if start is None or start < 0 or (log.files and entry.size != log.file_size):
                continue
            if status_at(mapped, 0, start) == frames.STOP and queue_leads_to(store, mapped.length_prefixed(0), start) is False:
                continue  # it may be of another store
            reach = _reach(mapped, start)
            if reach and reach > parts.get(start, (0,))[0]:
                parts[start] = (reach, relative, entry.size)
    size = log.file_size if log.files else max((size for _, _, size in parts.values()), default=0)
    starts = {file.start for file in log.files}
    taken: list[int] = []
    waiting = sorted(start for start, (_, _, own) in parts.items() if own == size and start % size == 0 and start not in starts)
    while joining := [
        start for start in waiting if not starts or min(starts) < start < max(starts) or {start - size, start + size} & starts
    ]:
        taken.append(joining[0])
        starts.add(joining[0])
        waiting.remove(joining[0])
    return [RenamedLogFile(parts[start][1], f"{log.queue.relative}/{start:020d}", size) for start in sorted(taken)]


def swapped_log_files(store: StoreFiles) -> list[tuple[str, str]]:
    """Return the log files whose records are those of other ones, and each of these, relative to the store: each has another one's name."""
    log = store.log
    owners: dict[str, int] = {}
    for file in log.files:
        mapped = log.mapped(file)
        start = start_in(mapped)
        if start is not None and start != file.start and status_at(mapped, 0, start) == frames.STOP:
            owners[file.relative] = start
    names = {file.start: file.relative for file in log.files}
    if not owners or {names.get(start) for start in owners.values()} != owners.keys():
        return []
    return [(relative, names[start]) for relative, start in owners.items()]


def _reach(mapped: MappedFile, base: int) -> int:
    """Return how many bytes from the start of a file are whole records."""
    at = 0
    while at < mapped.size and status_at(mapped, at, base) == frames.STOP:
        at += size_in(mapped, at)
    return at


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
