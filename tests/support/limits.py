"""Limits, for a while: of the size of files that this process writes, and of a disk."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["files_of_at_most", "small_disk"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes: a write fails as on a full disk.

    No bytecode is written meanwhile: Python 3.11 keeps a file that was cut off, and later processes fail on it.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
        sys.dont_write_bytecode = bytecode


@contextmanager
def small_disk(place: Path, kibibytes: int) -> Iterator[Path]:
    """Mount a file system of this size at a new directory, or skip the test where that cannot be done."""
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    command = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
