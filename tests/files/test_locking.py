"""A file that this process has locked."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import LockedFile, LockHeldError


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
