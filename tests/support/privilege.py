"""Root reads and writes everywhere; this takes that away for a while, so that missing permissions can be tested as root, too."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator

import pytest

# linux/capability.h
_VERSION = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2


def why_not() -> str | None:
    """Return why missing permissions cannot be tested here; None if they can."""
    if os.geteuid():
        return None
    if sys.platform != "linux":
        return "root may read and write everywhere"
    with tempfile.TemporaryDirectory() as place, without_privilege():
        os.chmod(place, 0)
        allowed = os.access(place, os.R_OK, effective_ids=True)
        os.chmod(place, 0o700)
    return "root may read and write everywhere, and that privilege cannot be taken away here" if allowed else None


@contextlib.contextmanager
def without_privilege() -> Iterator[None]:
    """Take from this thread, and from those it starts, the privilege of root to read and write everything (capabilities(7))."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, lower half, then the upper one
    assert libc.capget(header, held) == 0, os.strerror(ctypes.get_errno())
    fewer = (ctypes.c_uint32 * 6)(*held)
    fewer[0] &= ~(_DAC_OVERRIDE | _DAC_READ_SEARCH)
    assert libc.capset(header, fewer) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0, os.strerror(ctypes.get_errno())


_WHY_NOT = why_not()
needs_permissions = pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))
