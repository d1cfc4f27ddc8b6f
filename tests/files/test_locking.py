"""A file that this process has locked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import LockedDirectory, LockedFile, LockHeldError


def test_a_locked_file_begins_with_what_is_written_into_it(tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as directory:
        file = LockedFile(directory, "lock")
        assert (tmp_path / "lock").read_bytes() == b""
        file.write(b"lock")
        file.write(b"lo")
        assert (tmp_path / "lock").read_bytes() == b"lock"
        file.write(b"LO")
        assert (tmp_path / "lock").read_bytes() == b"LOck"
        file.close()


def test_this_process_locks_a_file_once_at_a_time(tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as directory:
        file = LockedFile(directory, "lock")
        with pytest.raises(LockHeldError, match="is already locked by this process"):
            LockedFile(directory, "lock")
        file.close()
        file.close()
        LockedFile(directory, "lock").close()
    assert (tmp_path / "lock").exists()


def test_a_released_lock_is_free_although_a_forked_child_has_not_closed_its_descriptor_yet(tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as directory:
        directory.make_directory("vhost")
        lock = LockedDirectory(directory, "vhost")
        of_child = os.dup(lock._descriptor)
        lock.forked()  # in a child: its lock is not released
        with pytest.raises(LockHeldError):
            LockedDirectory(directory, "vhost")
        os.close(of_child)
        lock = LockedDirectory(directory, "vhost")
        of_child = os.dup(lock._descriptor)
        lock.close()
        LockedDirectory(directory, "vhost").close()
        os.close(of_child)
        lock.close()
