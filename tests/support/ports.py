"""Ports for programs that must be told one before they start."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["free_port"]

_FIRST, _BLOCKS, _EACH = 15_000, 80, 200  # all below the ports that the system gives to other programs
_held: list[contextlib.ExitStack] = []


@functools.cache
def _own_ports() -> Iterator[int]:
    """Return the ports of a block that no other process draws from, round and round.

    Two draws at random once met: a node of a cluster was given the port of another, which had not opened it yet.
    """
    for block in random.sample(range(_BLOCKS), _BLOCKS):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            file = stack.enter_context(open(Path(tempfile.gettempdir()) / f"mqstore-ports-{block}", "ab"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _held.append(stack.pop_all())  # the lock is this process's until it ends
            return itertools.cycle(range(_FIRST + block * _EACH, _FIRST + (block + 1) * _EACH))
    raise AssertionError(f"{_BLOCKS} processes draw ports at the same time")


def free_port() -> int:
    """Return a port that nothing listens on, another one at each of the next 200 calls."""
    for port in _own_ports():
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a cycle has no end")
