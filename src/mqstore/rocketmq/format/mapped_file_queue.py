"""File queue: one long run of bytes cut into files of equal size, as logs and queues are stored.

    consumequeue/orders/0/00000000000000000000    bytes       0 .. 1999 of the run
    consumequeue/orders/0/00000000000000002000    bytes    2000 .. 3999

A file is named by the position of its first byte, in 20 decimal digits. Its size is fixed when it is created and is not
recorded elsewhere: it is inferred from the lengths of the files and the distances between their names. Retention deletes
the first files; a gap in the middle is a loss. Two files may overlap if one has a wrong name: what they contain decides which of them
is read, if that is known (`start_in`). Directories that a broker refuses to load are read anyway;
`FileQueue.refusals` returns the broker's objections.

    >>> infer_size([(0, 2000), (2000, 2000), (4000, 700)])
    2000
    >>> infer_size([(0, 700), (2000, 1300)])
    2000

Format: docs/formats/rocketmq.md, sections 1.2 and 1.3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from mqstore.files import DirectoryEntry, ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format.profile import version_rules
from mqstore.shown import Shown

NAME_DIGITS = 20
_MAX_START = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class QueueFile:
    """One file. start: position of its first byte in the run. size: its own length in bytes. relative: path in the store."""

    name: str
    start: int
    size: int
    relative: str


@dataclass(frozen=True, slots=True)
class FileQueue:
    """The files of a queue in order, without overlaps, and findings about the directory.

    file_size: bytes that every file should have; 0 without files.
    """

    files: tuple[QueueFile, ...]
    file_size: int
    findings: tuple[Damage, ...] = ()
    relative: str = ""
    listing: tuple[DirectoryEntry, ...] = field(default=(), repr=False)

    def file_at(self, position: int) -> QueueFile | None:
        """Return the file that holds a position of the run; None before, between and after the files."""
        number = bisect_right(self.files, position, key=lambda file: file.start) - 1
        if number < 0:
            return None
        file = self.files[number]
        return file if position < file.start + file.size else None

    def refusals(self, version: str) -> tuple[str, ...]:
        """Return why a broker of this version (`4.9.3`, `5.3.3`) would not start on this directory: a sentence each, empty if it would."""
        rules = version_rules(version)
        reasons = []
        for number, entry in enumerate(self.listing):
            where = f"{self.relative}/{entry.name}"
            if entry.is_directory:
                if rules.takes_directories_for_files:
                    reasons.append(f"{where} is a directory, which 4.9.3 treats as a file of the wrong size; move it away")
            elif entry.size == 0 and number == len(self.listing) - 1 and rules.deletes_empty_last_file:
                continue
            elif entry.size != self.file_size:
                what = "is empty" if entry.size == 0 else f"has {entry.size} bytes"
                must = (
                    f"but every file must have {self.file_size}" if self.file_size else "and no other file shows the size that it must have"
                )
                reasons.append(f"{where} {what}, {must}; move it away or give it that size")
            elif _start_of(entry.name) is None:
                reasons.append(f"{where} has the size of the files here, but its name is not a number")
        return tuple(reasons)

    def out_of_place(self) -> Iterator[tuple[str, int]]:
        """Yield the path and the start of each entry that a broker loads although its name has not 20 digits: it sorts files by name."""
        for entry in self.listing:
            start = _start_of(entry.name)
            size = self.file_size or entry.size
            if entry.is_file and entry.size == size > 0 and start is not None and (start < 0 or len(entry.name) != NAME_DIGITS):
                yield f"{self.relative}/{entry.name}", start


def infer_size(files: Sequence[tuple[int, int]]) -> int:
    """Infer the common size of files given as (start, length) in order of start; 0 if nothing indicates it.

    Every length and every distance between neighbours has one vote. In a tie, a size that divides the distances wins,
    then one that no file exceeds, then the larger.
    """
    distances = [b[0] - a[0] for a, b in pairwise(files) if b[0] > a[0]]
    votes = Counter(length for _, length in files if length > 0) + Counter(distances)
    if not votes:
        return 0
    largest = max(length for _, length in files)
    return max(votes, key=lambda size: (votes[size], all(gap % size == 0 for gap in distances), size >= largest, size))


def _start_of(name: str) -> int | None:
    """Parse a file name as a broker does; None if it is not a number."""
    digits = name[1:] if name[:1] in ("+", "-") else name
    if not (digits.isascii() and digits.isdigit()):
        return None
    start = int(name)
    return start if -_MAX_START - 1 <= start <= _MAX_START else None


def _largest_group(files: list[QueueFile], gap: int) -> tuple[list[QueueFile], list[QueueFile]]:
    """Return the largest group of files without a distance beyond gap, the newest in a tie, and the files outside of it."""
    groups: list[list[QueueFile]] = []
    for file in files:
        if groups and file.start - groups[-1][-1].start <= gap:
            groups[-1].append(file)
        else:
            groups.append([file])
    largest = max(reversed(groups), key=len, default=[])
    return largest, [file for group in groups if group is not largest for file in group]


def _split_misnamed(
    files: list[QueueFile], file_size: int, start_in: Callable[[QueueFile], int | None]
) -> tuple[list[QueueFile], list[tuple[QueueFile, QueueFile]]]:
    """Return the files without those that overlap the next one and whose contents belong elsewhere; and these, each with that next one."""
    named: list[QueueFile] = []
    misnamed = []
    for file in files:
        while (
            named
            and _overlap(named[-1], file, file_size)
            and start_in(named[-1]) not in (None, named[-1].start)
            and start_in(file) == file.start
        ):
            misnamed.append((named.pop(), file))
        named.append(file)
    return named, misnamed


def _confirmed_size(files: list[QueueFile], file_size: int, start_in: Callable[[QueueFile], int | None]) -> int:
    """Return the size of the files. If some seem too long, those show it whose records confirm their names; one alone shows nothing."""
    if all(file.size <= file_size for file in files):
        return file_size
    confirmed = [(file.start, file.size) for file in files if start_in(file) == file.start]
    return infer_size(confirmed) if len(confirmed) > 1 else file_size


def _without_surplus(files: list[QueueFile], file_size: int, start_in: Callable[[QueueFile], int | None]) -> int:
    """Return the size of the files. Two that overlap although their records confirm their names are too long: the distance is the size."""
    for before, file in pairwise(files):
        if _overlap(before, file, file_size) and start_in(before) == before.start and start_in(file) == file.start:
            file_size = file.start - before.start
    return file_size


def _overlap(before: QueueFile, file: QueueFile, file_size: int) -> bool:
    return file.start < before.start + min(before.size, file_size)


def load(
    directory: ReadOnlyDirectory,
    relative: str,
    *,
    size: int | None = None,
    max_gap: int | None = None,
    start_in: Callable[[QueueFile], int | None] | None = None,
) -> FileQueue:
    """List a file queue. A missing directory is an empty queue.

    size: bytes of each file as configured; inferred if None. max_gap: files that may be missing in one place within a queue; for
    queues that are read entry by entry and must not be misled by one odd name. start_in: where a file starts according to its contents,
    None if they do not say; it decides which of two overlapping files is read, and which files show the size if some seem too long.
    """
    listing = tuple(directory.entries(relative))
    findings: list[Damage] = []
    files: list[QueueFile] = []
    for entry in listing:
        start = _start_of(entry.name)
        if entry.is_file and start is not None and start >= 0 and len(entry.name) == NAME_DIGITS:
            files.append(QueueFile(entry.name, start, entry.size, f"{relative}/{entry.name}"))
        else:
            findings.append(_not_a_queue_file(f"{relative}/{entry.name}", entry, start, start_in))
    file_size = size or infer_size([(file.start, file.size) for file in files])
    if max_gap is not None:
        files, astray = _largest_group(files, file_size * max_gap)
        sentence = "is far away from the other files of its queue; it is not read"
        findings.extend(_damage(file.relative, file.size, Kind.STRAY_FILE, sentence) for file in astray)
    if start_in is not None:
        if size is None:
            file_size = _confirmed_size(files, file_size, start_in)
            file_size = _without_surplus(_split_misnamed(files, file_size, start_in)[0], file_size, start_in)
        files, misnamed = _split_misnamed(files, file_size, start_in)
        for file, other in misnamed:
            sentence = f"overlaps {other.name}, and its records are those of {start_in(file):020d}: it has the wrong name; it is not read"
            findings.append(_damage(file.relative, file.size, Kind.STRAY_FILE, sentence))
    valid: list[QueueFile] = []
    for file in files:
        before = valid[-1] if valid else None
        if before is not None and _overlap(before, file, file_size):
            start = None if start_in is None else start_in(file)
            hint = f", and its records are those of {start:020d}" if start not in (None, file.start) else ""
            sentence = f"starts inside the previous file {before.name}{hint}; it is not read"
            findings.append(_damage(file.relative, file.size, Kind.STRAY_FILE, sentence))
            continue
        if before is not None and file.start > before.start + file_size:
            gap = file.start - before.start - file_size
            sentence = f"{gap} bytes are missing between the files {before.name} and {file.name}"
            findings.append(_damage(f"{relative}/{before.start + file_size:020d}", gap, Kind.MISSING_FILE, sentence))
        if file.size != file_size:
            what = "is empty" if file.size == 0 else f"has {file.size} bytes"
            sentence = f"the file {what}, but the files of this queue have {file_size}"
            # the damage is at the end: the missing or the surplus bytes
            low, high = sorted((file.size, file_size))
            findings.append(Damage(file.relative, low, high - low, Kind.WRONG_SIZE, sentence))
        valid.append(file)
    return FileQueue(tuple(valid), file_size, tuple(findings), relative, listing)


def _not_a_queue_file(
    relative: str, entry: DirectoryEntry, start: int | None, start_in: Callable[[QueueFile], int | None] | None
) -> Damage:
    inside = start_in(QueueFile(entry.name, -1, entry.size, relative)) if start_in is not None and entry.is_file else None
    if inside is not None:
        sentence = f"its records are those of {inside:020d}, and that is not its name: it is not read"
        return _damage(relative, entry.size, Kind.STRAY_FILE, sentence)
    what = "a directory" if entry.is_directory else "its name is not a position of 20 digits" if entry.is_file else "not a regular file"
    if not entry.is_file and start is not None and start >= 0 and len(entry.name) == NAME_DIGITS:
        return Damage(relative, 0, 0, Kind.UNREADABLE, f"in the place of a file, but {what}: nothing of it is read")
    return _damage(relative, entry.size, Kind.STRAY_FILE, f"does not belong here: {what}")


def _damage(file: str, length: int, kind: Kind, sentence: str) -> Damage:
    return Damage(file, 0, length, kind, sentence)


# What the readers of both kinds of consume queue have in common: the files of one queue directory.


class QueueReader(Shown):
    """The files of one queue on disk. Never writes; a missing file is a gap, not an error."""

    root: str  # the directory of all queues of this kind
    max_gap: int | None = None  # files that may be missing in one place before the files after them count as stray

    def __init__(self, directory: ReadOnlyDirectory, topic: str, queue_id: int, *, file_size: int | None = None) -> None:
        """file_size: bytes of a file as configured; inferred if None."""
        self.topic = topic.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self.queue_id = queue_id
        self.relative = f"{self.root}/{topic}/{queue_id}"
        self._directory = directory
        self._file_size = file_size

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message."""
        raise NotImplementedError

    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get."""
        raise NotImplementedError

    def _title(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic!r}"

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "offsets", f"{self.min_offset} to {self.max_offset}"

    @cached_property
    def _queue(self) -> FileQueue:
        return load(self._directory, self.relative, size=self._file_size, max_gap=self.max_gap)

    @property
    def file_findings(self) -> tuple[Damage, ...]:
        """Findings about names and sizes of the files."""
        return self._queue.findings

    def out_of_place(self) -> Iterator[tuple[str, int]]:
        """See `FileQueue.out_of_place`."""
        return self._queue.out_of_place()

    @property
    def files(self) -> tuple[QueueFile, ...]:
        return self._queue.files

    @property
    def file_size(self) -> int:
        """Bytes of a file of this queue."""
        return self._queue.file_size
