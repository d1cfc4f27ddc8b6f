"""CRC-32 of many spans of a buffer: the kernel's own for short spans, ISA-L's, if its wheel is installed, for all others.

Calling ISA-L through the interpreter costs some 150 ns per span and needs the interpreter's lock. Its function is a symbol of the
wheel's extension module, so the kernel gets its address and calls it directly. If there is no such symbol, the library is
called in the ordinary way, for long spans. Time per span in ns, measured side by side:

    bytes                         100    300   1024   4096
    kernel alone                   38     85    250    949
    ISA-L, by the interpreter     199    186    175    238
    ISA-L, by the kernel           10     14     25     80

The broker clears the top bit of a CRC (docs/formats/rocketmq.md, 2.3); so do these.

    >>> import numpy as np
    >>> text = np.frombuffer(b"..Hello RocketMQ", np.uint8)
    >>> hex(crc_of_spans(text, np.array([2]), np.array([14]))[0])
    '0x69c865ed'
"""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from mqstore.kernels.common import crc_spans

try:
    from isal import isal_zlib
    from isal.isal_zlib import crc32

    _LONG = 700
except ImportError:
    from zlib import crc32

    _LONG = sys.maxsize

__all__ = ["LONG_SPAN", "crc32", "crc_of_spans"]

CORES = min(4, os.cpu_count() or 1)
_SHARED = 16384  # spans from which all cores take part
_PROBE = bytes(range(256)) * 5


def _address() -> int:
    """Where ISA-L's function is in this process, if it is there and does what is expected of it; else 0."""
    try:
        function = ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl
    except (NameError, OSError, AttributeError):
        return 0
    function.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
    function.restype = ctypes.c_uint32
    if any(function(before, _PROBE, n) != zlib.crc32(_PROBE[:n], before) for n in (0, 1, 15, 64, 257, 1280) for before in (0, 0x9ABCDEF0)):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _long_span() -> int:
    """Bytes from which the library is called by way of the interpreter."""
    address = _address()
    if address:
        crc_spans.use_library(address)
        return sys.maxsize
    return _LONG


LONG_SPAN = _long_span()


def crc_of_spans(buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """CRC-32 without its top bit of buffer[starts[k] : starts[k] + lengths[k]] for each k; 0 for an empty span.

    Very many are shared among the cores, by the kernel alone: calls of the library would wait for the interpreter's lock.
    """
    found = np.zeros(len(starts), np.int64)
    if len(starts) >= _SHARED and CORES > 1:
        starts, lengths = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
        parts = [slice(len(starts) * k // CORES, len(starts) * (k + 1) // CORES) for k in range(CORES)]
        with ThreadPoolExecutor(CORES) as pool:
            for done in [pool.submit(crc_spans.crc_spans, buffer, starts[part], lengths[part], found[part]) for part in parts]:
                done.result()
        return found
    short = lengths < LONG_SPAN
    if short.any():
        crc_spans.crc_spans(buffer, np.ascontiguousarray(starts), np.where(short, lengths, 0), found)
    rest = np.flatnonzero(~short)
    if len(rest):
        view = buffer.data
        crc = crc32
        ends = starts + lengths
        spans = zip(starts[rest].tolist(), ends[rest].tolist(), strict=True)
        found[rest] = np.array([crc(view[start:end]) for start, end in spans], np.int64) & 0x7FFFFFFF
    return found
