"""Limits of this process, for a while."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["files_of_at_most"]


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
