"""Writing a large range of a file past the page cache (O_DIRECT).

Bytes that are written as usual are copied into new pages of the page cache, and a later sync waits until those are on the disk. A whole
log file that is not read soon is better written without: the disk takes the bytes from the writer's memory, which may be a map of
another file, and the sync finds nothing to do.

Offset, address and length have to be multiples of a block, and not every file system can do it. So this writes what it can.
"""

from __future__ import annotations

import errno
import fcntl
import os

import numpy as np

BLOCK = 4096  # bytes: a multiple of what every usual disk and file system asks for

_NOT_HERE = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)


def write_past_cache(descriptor: int, view: memoryview, offset: int) -> int:
    """Write the leading whole blocks of a buffer at an offset. Returns the bytes written: 0 where that is not possible.

    Raises OSError as `os.pwrite` does.
    """
    flag = getattr(os, "O_DIRECT", 0)
    whole = len(view) - len(view) % BLOCK
    if not flag or not whole or offset % BLOCK or np.frombuffer(view, np.uint8).__array_interface__["data"][0] % BLOCK:
        return 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag)
    except OSError as error:
        if error.errno in _NOT_HERE:
            return 0
        raise
    done = 0
    try:
        while done < whole and not done % BLOCK:
            written = os.pwrite(descriptor, view[done:whole], offset + done)
            if not written:
                break
            done += written
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return done
