"""The data directory that a rescue reads: whether it is one, and whether a node is writing to it.

A node that runs on the directory has files of it open for writing, which /proc shows for processes on this machine. Any other writer, on
another machine for example, is noticed by what has changed while the directory was read.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from mqstore.errors import NotAStoreError, UsageError
from mqstore.files.confined_directory import ConfinedDirectory
from mqstore.files.open_files import can_tell, writers
from mqstore.files.readonly import walk_tree

__all__ = ["StoppedNode"]


class StoppedNode:
    """The data directory of a node that does not run. Raises NotAStoreError, UsageError, CannotOpenError if it is not one.

    notes: what could not be determined.
    """

    def __init__(self, data: Path) -> None:
        if not data.is_dir():
            raise UsageError(f"{data} is not a directory; give the data directory of a node, which has msg_stores/ and its metadata")
        self.directory = ConfinedDirectory(data)
        if not self.directory.is_directory("msg_stores"):
            raise NotAStoreError(f"{data} has no msg_stores/; give the data directory of a node, not one of its parts")
        self._data = data
        self.notes: tuple[str, ...] = ()
        if not can_tell(data):
            self.notes = (f"whether a node has {data} open cannot be determined by this user: make sure that it is stopped",)
        self._check_closed()
        self._before = self._state()

    def _check_closed(self) -> None:
        if found := writers(self._data):
            first = found[0]
            raise UsageError(
                f"{self._data} is in use: process {first.process} ({first.name}) has {first.file} open for writing; stop the node first"
            )

    def check(self) -> None:
        """Raise UsageError if anything has changed since the directory was opened, or is about to."""
        self._check_closed()
        if self._state() != self._before:
            raise UsageError(f"{self._data} changed while it was read: a node runs on it, perhaps on another machine; stop it first")

    def _state(self) -> bytes:
        """Return a digest of names, sizes and times."""
        digest = hashlib.sha256()
        for above, directories, names in walk_tree(self._data):
            directories.sort()
            for name in sorted(names):
                path = os.path.join(above, name)
                try:
                    known = os.lstat(path)
                except OSError:
                    continue
                digest.update(f"{os.fsencode(path)!r} {known.st_size} {known.st_mtime_ns} {known.st_ino}\n".encode())
        return digest.digest()
