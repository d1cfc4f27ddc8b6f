"""The lock of a repair on a RabbitMQ store, whose nodes take none: no node may run on it, and no other mqstore may write to it.

A node is found by what Linux shows of its processes: the directory in its command line (`-mnesia dir "…"`), or a file of the store that
a process has open for writing. A node of another machine, on a shared file system, cannot be seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mqstore.errors import TargetError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import LockedDirectory, LockHeldError
from mqstore.rabbitmq.format.layout import find_vhosts

__all__ = ["NodeLock", "holder"]

PROCESSES = Path("/proc")
_DIRECTORY = re.compile(rb'\x00dir\x00"([^"\x00]+)"\x00')
_WRITING = os.O_WRONLY | os.O_RDWR


class NodeLock:
    """Every vhost directory below a root, locked. Raises TargetError if a node or another process has the store."""

    def __init__(self, directory: DurableDirectory) -> None:
        found = holder(directory.root)
        if found is not None:
            raise TargetError(f"{directory.root} is in use by process {found}; stop the node, and try again")
        self._locks: list[LockedDirectory] = []
        try:
            for place in sorted({"", *find_vhosts(ReadOnlyDirectory(directory.root))}):
                self._locks.append(LockedDirectory(directory, place))
        except LockHeldError:
            self.close()
            raise TargetError(f"{directory.root} is in use by another process that writes to it; end it, and try again") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the locks; does nothing if they are released."""
        for lock in self._locks:
            lock.close()
        self._locks = []


def holder(root: Path) -> str | None:
    """Return the id and name of a process that runs on a directory, or writes to a file in it; None if there is none to be seen."""
    real = os.fsencode(root.resolve())
    for process in _others():
        if _runs_on(process, real) or _writes_below(process, real):
            name = ""
            with suppress(OSError):
                name = (process / "comm").read_text(errors="replace").strip()
            return f"{process.name} ({name})" if name else process.name
    return None


def _others() -> Iterator[Path]:
    own = {str(os.getpid()), str(os.getppid())}
    with suppress(OSError):
        yield from (each for each in PROCESSES.iterdir() if each.name.isdigit() and each.name not in own)


def _runs_on(process: Path, root: bytes) -> bool:
    """Return whether a node was started with a data directory that the root is, holds, or is in."""
    try:
        started = b"\0" + (process / "cmdline").read_bytes()
    except OSError:
        return False
    if b"\0-mnesia\0" not in started:
        return False
    return any(_nested(os.path.realpath(found), root) for found in _DIRECTORY.findall(started))


def _nested(one: bytes, other: bytes) -> bool:
    return one == other or one.startswith(other + b"/") or other.startswith(one + b"/")


def _writes_below(process: Path, root: bytes) -> bool:
    try:
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError, ValueError, IndexError):
                if not os.readlink(os.fsencode(descriptor)).startswith(root + b"/"):
                    continue
                flags = (process / "fdinfo" / descriptor.name).read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & _WRITING:
                    return True
    except OSError:  # it has ended, or is another user's
        return False
    return False
