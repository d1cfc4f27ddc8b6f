"""Ports for programs that must be told one before they start."""

from __future__ import annotations

import contextlib
import random
import socket

__all__ = ["free_port"]


def free_port() -> int:
    """Return a port that nothing listens on, below those that the system gives to other programs in the meantime."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
