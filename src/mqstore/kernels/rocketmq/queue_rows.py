"""Consume queue entries during recovery: how many in a row are plausible (docs/formats/rocketmq.md, sections 8.2 and 4.9).

>>> import numpy as np
>>> rows = np.array([(0, 100, 7), (100, 50, 8), (0, 0, 0)], np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]))
>>> plausible_until(rows.view(np.uint8), 0, -1), plausible_until(rows.view(np.uint8), 0, 100)
(2, 1)
"""

import cython

if not cython.compiled:
    from mqstore.kernels.common.loads import i32, i64
    from mqstore.kernels.rocketmq.entry_layout import ENTRY_AT_SIZE, ENTRY_SIZE


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
