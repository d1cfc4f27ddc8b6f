"""CRC-32 of many spans of a buffer: ISA-L's where its wheel is there, zlib's otherwise. Not compiled: the loop is around C code.

The broker clears the top bit of a CRC (docs/formats/rocketmq.md, 2.3); so do these.

    >>> import numpy as np
    >>> text = np.frombuffer(b"..Hello RocketMQ", np.uint8)
    >>> hex(crc_of_spans(text, np.array([2]), np.array([14]))[0])
    '0x69c865ed'
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32", "crc_of_spans"]


def crc_of_spans(buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """CRC-32 without its top bit of buffer[starts[k] : starts[k] + lengths[k]] for each k; 0 for an empty span."""
    view = buffer.data
    crc = crc32
    ends = starts + lengths
    found = [crc(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array(found, np.int64) & 0x7FFFFFFF
