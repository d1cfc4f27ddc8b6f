"""Search for several byte strings at once, span by span: which spans hold at least one of them.

The bytes are examined from the end of a window as long as the shortest needle. `shifts` says for each pair of bytes how far the window can
move when it ends in that pair; 0: a needle may begin at the start of the window, and is compared.

>>> import numpy as np
>>> def array(raw):
...     return np.frombuffer(raw, np.uint8)
>>> shifts = np.empty(65536, np.uint8)
>>> needles, ends = array(b"orderb3Jk"), np.array([5, 9])
>>> window = shift_table(needles, ends, shifts)
>>> window, int(shifts[ord("d") << 8 | ord("e")]), int(shifts[0])
(4, 0, 3)
>>> marks = np.empty(3, np.uint8)
>>> mark_spans(array(b"an order|b3J k|b3Jk"), np.array([0, 9, 15]), np.array([8, 14, 19]), needles, ends, shifts, window, marks)
2
>>> marks.tolist()
[1, 0, 1]
"""

import cython


def shift_table(needles: cython.const[cython.uchar][::1], ends: cython.longlong[::1], shifts: cython.uchar[::1]):
    """Fill `shifts` for needles that follow each other, each up to its end in `ends`. Return the length of the window."""
    count: cython.Py_ssize_t = ends.shape[0]
    window: cython.Py_ssize_t = 256
    j: cython.Py_ssize_t
    i: cython.Py_ssize_t
    begin: cython.Py_ssize_t = 0
    shift: cython.Py_ssize_t
    pair: cython.Py_ssize_t
    if count < 1 or shifts.shape[0] != 65536:
        raise ValueError("arrays are too small")
    for j in range(count):
        if ends[j] > needles.shape[0] or ends[j] - begin < 2:
            raise ValueError("a needle has at least two bytes")
        window = min(window, ends[j] - begin)
        begin = ends[j]
    for i in range(65536):
        shifts[i] = window - 1
    begin = 0
    for j in range(count):
        for i in range(1, window):
            pair = u8(needles, begin + i - 1) << 8 | u8(needles, begin + i)
            shift = window - 1 - i
            if shift < shifts[pair]:
                shifts[pair] = shift
        begin = ends[j]
    return window


def mark_spans(
    b: cython.const[cython.uchar][::1],
    starts: cython.longlong[::1],
    stops: cython.longlong[::1],
    needles: cython.const[cython.uchar][::1],
    ends: cython.longlong[::1],
    shifts: cython.const[cython.uchar][::1],
    window: cython.Py_ssize_t,
    marks: cython.uchar[::1],
):
    """Set marks[k] to 1 if a needle is in b[starts[k]:stops[k]], else to 0. Return the number of marked spans."""
    n: cython.Py_ssize_t = starts.shape[0]
    count: cython.Py_ssize_t = ends.shape[0]
    limit: cython.Py_ssize_t = b.shape[0]
    k: cython.Py_ssize_t
    j: cython.Py_ssize_t
    p: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    found: cython.Py_ssize_t = 0
    shift: cython.Py_ssize_t
    hit: cython.bint
    if stops.shape[0] < n or marks.shape[0] < n or shifts.shape[0] != 65536 or window < 2:
        raise ValueError("arrays are too small")
    begin = 0
    for j in range(count):
        if ends[j] - begin < window or ends[j] > needles.shape[0]:
            raise ValueError("a needle is shorter than the window")
        begin = ends[j]
    for k in range(n):
        if starts[k] < 0 or stops[k] > limit:
            raise ValueError("a span is outside its buffer")
    with cython.nogil:
        for k in range(n):
            hit = False
            stop = stops[k]
            p = starts[k] + window - 1
            while p < stop and not hit:
                shift = u8(shifts, u8(b, p - 1) << 8 | u8(b, p))
                if shift > 0:
                    p += shift
                    continue
                begin = 0
                for j in range(count):
                    if ends[j] - begin <= stop - (p - window + 1) and same(b, p - window + 1, needles, begin, ends[j] - begin):
                        hit = True
                        break
                    begin = ends[j]
                p += 1
            marks[k] = hit
            found += hit
    return found
