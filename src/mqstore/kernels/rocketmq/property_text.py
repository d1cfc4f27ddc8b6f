"""Property texts from columns: `name` 01 `value` 02 … for each row, one column of pairs after the other.

Both loops take the value spans of a column (length -1: the row has no such pair). `add_lengths` sums up what the texts will
take, `put_pairs` writes the pairs of a column at each row's cursor, and moves it.

    >>> import numpy as np
    >>> values = np.frombuffer(b"onetwo", np.uint8)
    >>> starts, lengths = np.array([0, 0, 3]), np.array([3, -1, 3])
    >>> room = np.zeros(3, np.int64)
    >>> add_lengths(4, lengths, room)
    >>> ends = np.cumsum(room)
    >>> cursors, text = ends - room, np.zeros(ends[-1], np.uint8)
    >>> put_pairs(np.frombuffer(b"TAGS", np.uint8), values, starts, lengths, cursors, text)
    >>> text.tobytes()
    b'TAGS\\x01one\\x02TAGS\\x01two\\x02'

Format: docs/formats/rocketmq.md, section 2.6.
"""

import cython


def add_lengths(name_length: cython.longlong, lengths: cython.longlong[::1], room: cython.longlong[::1]):
    """room[k] += bytes of the pair of row k."""
    n: cython.Py_ssize_t = lengths.shape[0]
    k: cython.Py_ssize_t
    if room.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            if lengths[k] >= 0:
                room[k] += name_length + lengths[k] + 2


def put_pairs(
    name: cython.const[cython.uchar][::1],
    values: cython.const[cython.uchar][::1],
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
    cursors: cython.longlong[::1],
    out: cython.uchar[::1],
):
    """Write the pair of each row that has one at out[cursors[k]], and move the cursor past it."""
    n: cython.Py_ssize_t = starts.shape[0]
    k: cython.Py_ssize_t
    at: cython.longlong
    name_length: cython.Py_ssize_t = name.shape[0]
    fits: cython.bint = True
    if lengths.shape[0] < n or cursors.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            if lengths[k] < 0:
                continue
            at = cursors[k]
            if starts[k] < 0 or starts[k] > values.shape[0] - lengths[k] or at < 0 or at > out.shape[0] - name_length - lengths[k] - 2:
                fits = False
                break
            copy(out, at, name, 0, name_length)
            at += name_length
            out[at] = 1
            copy(out, at + 1, values, starts[k], lengths[k])
            at += 1 + lengths[k]
            out[at] = 2
            cursors[k] = at + 1
    if not fits:
        raise ValueError("a span lies outside its buffer")


def put_listed_pairs(
    rows: cython.longlong[::1],
    names: cython.const[cython.uchar][::1],
    name_starts: cython.longlong[::1],
    name_lengths: cython.longlong[::1],
    values: cython.const[cython.uchar][::1],
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
    cursors: cython.longlong[::1],
    out: cython.uchar[::1],
):
    """Write pairs in the order given, pair i at the cursor of row rows[i]; those of value length -1 are left out."""
    n: cython.Py_ssize_t = rows.shape[0]
    i: cython.Py_ssize_t
    at: cython.longlong
    name_length: cython.longlong
    fits: cython.bint = True
    if name_starts.shape[0] < n or name_lengths.shape[0] < n or starts.shape[0] < n or lengths.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for i in range(n):
            if lengths[i] < 0:
                continue
            name_length = name_lengths[i]
            if rows[i] < 0 or rows[i] >= cursors.shape[0] or name_length < 0:
                fits = False
                break
            at = cursors[rows[i]]
            if (
                name_starts[i] < 0
                or name_starts[i] > names.shape[0] - name_length
                or starts[i] < 0
                or starts[i] > values.shape[0] - lengths[i]
                or at < 0
                or at > out.shape[0] - name_length - lengths[i] - 2
            ):
                fits = False
                break
            copy(out, at, names, name_starts[i], name_length)
            at += name_length
            out[at] = 1
            copy(out, at + 1, values, starts[i], lengths[i])
            at += 1 + lengths[i]
            out[at] = 2
            cursors[rows[i]] = at + 1
    if not fits:
        raise ValueError("a span lies outside its buffer")
