"""Which processes of this machine have files below a directory open for writing, according to /proc.

Files are compared by device and inode, so that a process in a container or under another mount is found too.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as place, open(f"{place}/log", "w") as log:
    ...     [writer.process == os.getpid() for writer in writers(place, own=True)]
    [True]
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from mqstore.files.readonly import walk_tree

PROCESSES = "/proc"
WRITING = (os.O_WRONLY, os.O_RDWR)


@dataclass(frozen=True, slots=True)
class Writer:
    """A process, its name, and one of the files that it has open, relative to the directory."""

    process: int
    name: str
    file: str


def can_tell(directory: str | os.PathLike[str]) -> bool:
    """Return whether the open files of the directory's owner can be seen by this process."""
    if not os.path.isdir(f"{PROCESSES}/self/fd"):
        return False
    return os.geteuid() in (0, os.stat(directory).st_uid)


def writers(directory: str | os.PathLike[str], *, own: bool = False) -> list[Writer]:
    """Return the processes that have a file below a directory open for writing, one entry each. own: including this one."""
    found = {(device, inode): process for process, device, inode in _open_for_writing(os.stat(directory).st_dev, own)}
    if not found:
        return []
    seen: dict[int, Writer] = {}
    for above, _, names in walk_tree(directory):
        for name in names:
            path = os.path.join(above, name)
            try:
                known = os.lstat(path)
            except OSError:
                continue
            process = found.get((known.st_dev, known.st_ino))
            if process is not None and process not in seen:
                seen[process] = Writer(process, _name(process), os.path.relpath(path, directory))
    return [seen[process] for process in sorted(seen)]


def _open_for_writing(device: int, own: bool) -> Iterator[tuple[int, int, int]]:
    """Yield process, device and inode of each regular file on a device that is open for writing."""
    try:
        processes = [int(name) for name in os.listdir(PROCESSES) if name.isdecimal()]
    except OSError:
        return
    for process in processes:
        if process == os.getpid() and not own:
            continue
        place = f"{PROCESSES}/{process}"
        try:
            numbers = os.listdir(f"{place}/fd")
        except OSError:  # it has ended, or is another user's
            continue
        for number in numbers:
            try:
                known = os.stat(f"{place}/fd/{number}")
                if known.st_dev == device and stat.S_ISREG(known.st_mode) and _is_writing(f"{place}/fdinfo/{number}"):
                    yield process, known.st_dev, known.st_ino
            except (OSError, ValueError):
                continue


def _is_writing(description: str) -> bool:
    with open(description) as lines:
        flags = next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), 0)
    return flags & os.O_ACCMODE in WRITING


def _name(process: int) -> str:
    try:
        with open(f"{PROCESSES}/{process}/comm", errors="replace") as name:
            return name.read().strip()
    except OSError:
        return "?"
