"""FIFOs, sockets, directories, devices and links in the place of a file, and a time limit for what reads them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

KINDS = ("fifo", "socket", "directory", "device", "loop", "nowhere")


class TookTooLongError(BaseException):
    """The time limit is over. Not an Exception, so that nothing that is tested takes it for an error of a file."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLongError in the main thread after this many seconds, also if it is blocked in a system call."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TookTooLongError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def make(path: Path, kind: str) -> None:
    """Create an entry of this kind at a path that does not exist."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        # the path of a socket may have some 100 bytes only
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "loop": path.name, "nowhere": "no-such-file"}[kind])


@contextlib.contextmanager
def in_place_of(path: Path, kind: str, kept: Path) -> Iterator[None]:
    """Replace a file by an entry of this kind for a while. kept: where the file is meanwhile, outside of the store."""
    path.rename(kept)
    make(path, kind)
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        kept.rename(path)


def files_of(root: Path) -> list[Path]:
    """Return every file below root, by path."""
    return sorted(path for path in root.rglob("*") if path.is_file())
