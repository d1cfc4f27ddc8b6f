"""Consume queue entries: how many in a row are plausible, or stored already (docs/formats/rocketmq.md, sections 4.1, 4.9 and 8.2).

>>> import numpy as np
>>> rows = np.array([(0, 100, 7), (100, 50, 8), (0, 0, 0)], np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]))
>>> plausible_until(rows.view(np.uint8), 0, -1), plausible_until(rows.view(np.uint8), 0, 100)
(2, 1)
>>> count_stored(rows[:2].view(np.uint8), 120), count_stored(rows.view(np.uint8), 120)
(1, -1)
"""

import cython


def plausible_until(b: cython.const[cython.uchar][::1], first: cython.Py_ssize_t, below: cython.longlong):
    """Return the first row from `first` on with a negative offset, no size, or an offset not below `below` (< 0: no limit)."""
    n: cython.Py_ssize_t = b.shape[0] // ENTRY_SIZE
    k: cython.Py_ssize_t = first
    offset: cython.longlong
    if first < 0:
        raise ValueError("rows are counted from 0")
    with cython.nogil:
        while k < n:
            offset = i64(b, ENTRY_SIZE * k)
            if offset < 0 or i32(b, ENTRY_SIZE * k + ENTRY_AT_SIZE) <= 0 or (below >= 0 and offset >= below):
                break
            k += 1
    return k if k < n else max(n, first)


def count_stored(b: cython.const[cython.uchar][::1], highest: cython.longlong):
    """Return how many leading rows refer to records that end at or before `highest`; -1 unless the ends ascend, from 0 or more.

    The interpreter's lock is kept: dispatch calls this for every queue that a round touches.
    """
    n: cython.Py_ssize_t = b.shape[0] // ENTRY_SIZE
    k: cython.Py_ssize_t
    end: cython.longlong
    last: cython.longlong = -1
    stored: cython.Py_ssize_t = 0
    for k in range(n):
        end = end_of(i64(b, ENTRY_SIZE * k), i32(b, ENTRY_SIZE * k + ENTRY_AT_SIZE))
        if end <= last:
            stored = -1
            break
        if end <= highest:
            stored += 1
        last = end
    return stored
