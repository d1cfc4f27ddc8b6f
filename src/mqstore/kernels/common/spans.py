"""Spans of a buffer copied one after the other, as an Arrow column of texts holds them.

>>> import numpy as np
>>> text, offsets = np.empty(5, np.uint8), np.empty(3, np.int32)
>>> copy_spans(np.frombuffer(b"one two", np.uint8), np.array([4, 0]), np.array([3, 2]), offsets, text)
False
>>> text.tobytes(), offsets.tolist()
(b'twoon', [0, 3, 5])
"""

import cython


def copy_spans(
    b: cython.const[cython.uchar][::1],
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
    offsets: cython.int[::1],
    out: cython.uchar[::1],
):
    """Copy spans one after the other (length -1 counts as 0); offsets[n + 1] are Arrow's. Return whether a byte is above 0x7f."""
    n: cython.Py_ssize_t = starts.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    length: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    high: cython.uint = 0
    room: cython.Py_ssize_t = out.shape[0]
    limit: cython.Py_ssize_t = b.shape[0]
    fits: cython.bint = True
    if lengths.shape[0] < n or offsets.shape[0] < n + 1:
        raise ValueError("arrays are too small")
    with cython.nogil:
        offsets[0] = 0
        for k in range(n):
            length = lengths[k]
            if length > 0:
                if length > room - at or starts[k] < 0 or length > limit - starts[k]:
                    fits = False
                    break
                copy(out, at, b, starts[k], length)
                at += length
            offsets[k + 1] = at
        for i in range(at):
            high |= u8(out, i)
    if not fits:
        raise ValueError("a span is outside its buffer")
    return high >= 128
