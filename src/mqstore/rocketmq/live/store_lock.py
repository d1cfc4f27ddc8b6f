"""`lock` and `abort`: which process has the store, and whether the last one closed it cleanly.

    lock        4 bytes, `lock`. The process that has the store holds an exclusive lock on the byte range [0, 1). The file stays.
    abort       exists while a process has the store, removed when it is closed cleanly. A broker that finds it at load
                recovers as after a crash. Empty in 4.9.3; the process id in decimal digits in 5.3.3
    abort.bak   5.3.3 only: what was in `abort` before; empty after a clean exit, else the old process id. Never removed

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place, DurableDirectory(place) as directory, StoreLock(directory):
    ...     create_abort(directory, "5.3.3", 586)
    ...     sorted((path.name, path.read_text()) for path in directory.root.iterdir())
    [('abort', '586'), ('abort.bak', ''), ('lock', 'lock')]

While a StoreLock is held, this process must not open ROOT/lock in any other way, not even for reading: closing that file
would release the lock (see `mqstore.files.locking`).

Format: docs/formats/rocketmq.md, sections 7.4 and 7.5.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from mqstore.errors import TargetError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import LockedFile, LockHeldError
from mqstore.rocketmq.format.profile import version_rules

LOCK = "lock"
ABORT = "abort"
_CONTENT = b"lock"


class StoreInUseError(TargetError):
    """Another process, or another part of this process, has the store."""


class StoreLock:
    """The broker's lock on a store's directory, held until `close`. Raises StoreInUseError if it is held already.

    A broker takes it after it has loaded and recovered; mqstore takes it before it changes a store. as_it_is: what a file that is there
    has stays, so that a repair can be undone to the last byte.
    """

    def __init__(self, directory: DurableDirectory, *, as_it_is: bool = False) -> None:
        stays = as_it_is and directory.exists(LOCK)
        try:
            self._file = LockedFile(directory, LOCK)
        except LockHeldError as error:
            holder = "another process" if error.elsewhere else "this process, which has it open already"
            raise StoreInUseError(f"{directory.root} is in use by {holder}; stop the broker, or close the store, and try again") from None
        try:
            if not stays:
                self._file.write(_CONTENT)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Release the lock; does nothing if it is released."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def create_abort(directory: DurableDirectory, version: str, pid: int) -> None:
    """Mark the store as in use; when this returns, a crash cannot undo it. pid: written by 5.3.3 only."""
    if not directory.exists(ABORT):
        directory.create(ABORT)
        directory.sync_directory()
    if not version_rules(version).writes_pid:
        return
    before = ReadOnlyDirectory(directory.root).read(ABORT) or b""
    _put(directory, f"{ABORT}.bak", before)
    _put(directory, ABORT, str(pid).encode())
    directory.sync_directory()


def _put(directory: DurableDirectory, relative: str, content: bytes) -> None:
    if not directory.exists(relative):
        directory.create(relative)
    with directory.open(relative) as file:
        file.truncate(0)
        file.write(content)
        file.sync()


def remove_abort(directory: DurableDirectory) -> None:
    """Mark the store as cleanly closed. To be called last, when everything else is synced."""
    if directory.exists(ABORT):
        directory.remove(ABORT)
        directory.sync_directory()
