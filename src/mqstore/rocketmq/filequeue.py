"""File queue: one run of bytes cut into files of equal size, the shape of commit log, consume queue and extended queue.

    00000000000000000000   a file is named by the offset of its first byte, 20 digits
    00000000001073741824   the next one by that plus the file size

The first file need not be 0: retention deletes from the front. The file size is written nowhere; it is what the names
and lengths agree on. What does not fit (a file of another length, a gap, a name that is no number) is a finding here;
a broker refuses to start on some of it, which `refusals` tells.

Format: docs/formats/rocketmq.md, section 1.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mqstore.files import DirectoryEntry, ReadOnlyDirectory
from mqstore.findings import Damage, Kind

__all__ = ["FileQueue", "QueueFile", "load"]


@dataclass(frozen=True, slots=True)
class QueueFile:
    """One file. start: offset of its first byte in the run; size: its length in bytes; relative: its path in the store."""

    name: str
    start: int
    size: int
    relative: str


@dataclass(frozen=True, slots=True)
class FileQueue:
    """The files of one directory in order. file_size: bytes a file ought to have; 0 without files."""

    relative: str
    files: tuple[QueueFile, ...]
    file_size: int
    findings: tuple[Damage, ...] = ()
    strays: tuple[DirectoryEntry, ...] = ()

    def file_at(self, offset: int) -> QueueFile | None:
        """The file that holds an offset of the run."""
        number = bisect_right([file.start for file in self.files], offset) - 1
        if number < 0 or offset >= self.files[number].start + self.files[number].size:
            return None
        return self.files[number]

    def refusals(self, version: str) -> tuple[str, ...]:
        """Why a broker of this version would refuse to start on the directory, a sentence each; empty if it would not."""
        five = version != "4.9.3"
        told = []
        entries: Sequence[tuple[str, int, bool]] = sorted(
            [(file.name, file.size, False) for file in self.files] + [(entry.name, entry.size, entry.is_directory) for entry in self.strays]
        )
        if five:
            entries = [entry for entry in entries if not entry[2]]
            if entries and entries[-1][1] == 0:
                entries = entries[:-1]
        for name, size, _ in entries:
            if size != self.file_size:
                told.append(f"{self.relative}/{name} has {size} bytes, the broker expects {self.file_size}")
            elif not name.isdecimal():
                told.append(f"{self.relative}/{name} is named like no file of the broker")
        return tuple(told)


def load(directory: ReadOnlyDirectory, relative: str, *, size: int | None = None) -> FileQueue:
    """List a file queue. size: bytes of a file as configured; by default what the directory shows."""
    files: list[QueueFile] = []
    strays: list[DirectoryEntry] = []
    for entry in directory.entries(relative):
        if entry.is_file and entry.name.isascii() and entry.name.isdecimal() and int(entry.name) < 2**63:
            files.append(QueueFile(entry.name, int(entry.name), entry.size, f"{relative}/{entry.name}"))
        else:
            strays.append(entry)
    files.sort(key=lambda file: file.start)
    file_size = size if size is not None else infer_size(files)
    findings = [
        Damage(f"{relative}/{entry.name}", 0, entry.size, Kind.STRAY_FILE, "an entry that is no file of this directory's kind") for entry in strays
    ]
    findings.extend(_misfits(files, file_size))
    return FileQueue(relative, tuple(files), file_size, tuple(findings), tuple(strays))


def infer_size(files: Sequence[QueueFile]) -> int:
    """The file size that lengths and names agree on: a length that most files have and every distance of names is a multiple of."""
    if not files:
        return 0
    distances = [after.start - before.start for before, after in zip(files, files[1:], strict=False)]
    lengths = Counter(file.size for file in files if file.size > 0)
    for length, _ in lengths.most_common():
        if all(distance % length == 0 for distance in distances):
            return length
    if distances:
        return min(distances)
    return files[-1].size


def _misfits(files: Sequence[QueueFile], file_size: int) -> list[Damage]:
    findings = []
    for number, file in enumerate(files):
        if file.size != file_size:
            last = number == len(files) - 1
            if file.size == 0:
                why = "an empty file" + (", made ahead when the disk was full or the broker died; 5.x deletes it, 4.9 refuses to start" if last else "")
            else:
                why = f"{file.size} bytes, the others have {file_size}; a broker refuses to start on it"
            findings.append(Damage(file.relative, min(file.size, file_size), abs(file_size - file.size), Kind.WRONG_SIZE, why))
        if number and file.start != files[number - 1].start + file_size and file.start > files[number - 1].start:
            gap = file.start - files[number - 1].start - file_size
            missing = f"{file.relative.rpartition('/')[0]}/{files[number - 1].start + file_size:020d}"
            if gap > 0:
                findings.append(Damage(missing, 0, gap, Kind.MISSING_FILE, f"{gap} bytes between two files are not there"))
            else:
                findings.append(Damage(file.relative, 0, -gap, Kind.WRONG_SIZE, "the file before reaches into this one"))
    return findings
