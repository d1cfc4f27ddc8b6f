"""Spans of names and values in property texts: of all pairs, of the well-known ones, and which texts are not as a broker writes them.

A text is `name` NAME_END `value` PAIR_END …; a part without a name, a value or the separator is not a pair. The texts are given by
the spans that `frames.fields` finds in walked records.

    >>> import numpy as np
    >>> text = np.frombuffer(b"TAGS\\x01red\\x02a\\x01b\\x02c", np.uint8)
    >>> starts, lengths = np.array([0]), np.array([len(text)])
    >>> spans = np.empty((PAIR_ROW_COUNT, count_pairs(text, starts, lengths, np.empty(1, np.int32))), np.int64)
    >>> pair_spans(text, starts, lengths, spans), spans[VALUE_START].tolist(), spans[VALUE_LENGTH].tolist()
    (2, [5, 11], [3, 1])

Format: docs/formats/rocketmq.md, section 2.6.
"""

import cython


def known_properties(
    b: cython.const[cython.uchar][::1],
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
    out: cython.longlong[:, ::1],
):
    """Fill out[KNOWN_ROW_COUNT, n] with the spans of TAGS, KEYS and UNIQ_KEY in n property texts: start and length, -1 if absent.

    The last of equal names counts.
    """
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    n: cython.Py_ssize_t = starts.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    name: cython.Py_ssize_t
    row: cython.int
    if lengths.shape[0] < n or out.shape[0] < KNOWN_ROW_COUNT or out.shape[1] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            out[TAGS_LENGTH, k] = -1
            out[KEYS_LENGTH, k] = -1
            out[UNIQ_KEY_LENGTH, k] = -1
            out[TAGS_START, k] = 0
            out[KEYS_START, k] = 0
            out[UNIQ_KEY_START, k] = 0
            i = starts[k]
            stop = i + lengths[k]
            while i < stop:
                j = find(source, i, stop, PAIR_END)
                name = name_end(source, i, j)
                if name >= 0:
                    row = known_row(source, i, name - i)
                    if row >= 0:
                        out[row, k] = name + 1
                        out[row + 1, k] = j - name - 1
                i = j + 1


def count_pairs(b: cython.const[cython.uchar][::1], starts: cython.longlong[::1], lengths: cython.longlong[::1], out: cython.int[::1]):
    """Set out[k] to the number of name/value pairs in span k; return their sum."""
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    n: cython.Py_ssize_t = starts.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    name: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    total: cython.longlong = 0
    pairs: cython.int
    if lengths.shape[0] < n or out.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            pairs = 0
            i = starts[k]
            stop = i + lengths[k]
            while i < stop:
                j = find(source, i, stop, PAIR_END)
                name = name_end(source, i, j)
                if name >= 0:
                    pairs += 1
                i = j + 1
            out[k] = pairs
            total += pairs
    return total


def pair_spans(
    b: cython.const[cython.uchar][::1], starts: cython.longlong[::1], lengths: cython.longlong[::1], out: cython.longlong[:, ::1]
):
    """Fill out[PAIR_ROW_COUNT, ...] with the spans of all pairs, in order. Returns how many were written."""
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    n: cython.Py_ssize_t = starts.shape[0]
    room: cython.Py_ssize_t = out.shape[1]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    name: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    pairs: cython.Py_ssize_t = 0
    if lengths.shape[0] < n or out.shape[0] < PAIR_ROW_COUNT:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            i = starts[k]
            stop = i + lengths[k]
            while i < stop:
                j = find(source, i, stop, PAIR_END)
                name = name_end(source, i, j)
                if name >= 0 and pairs < room:
                    out[NAME_START, pairs] = i
                    out[NAME_LENGTH, pairs] = name - i
                    out[VALUE_START, pairs] = name + 1
                    out[VALUE_LENGTH, pairs] = j - name - 1
                    pairs += 1
                i = j + 1
    return pairs


def checksum_tails(b: cython.const[cython.uchar][::1], ends: cython.longlong[::1], lengths: cython.longlong[::1], out: cython.uchar[::1]):
    """Set out[k] to 1 if property text k ends in the checksum property.

    That is 20 bytes that begin with `__CRC32#` 01, or that consist of eight bytes, 01, ten digits and 02.
    """
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    n: cython.Py_ssize_t = ends.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t
    digit: cython.uint
    if lengths.shape[0] < n or out.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            out[k] = 0
            p = ends[k] - CRC_PROPERTY_SIZE
            if lengths[k] < CRC_PROPERTY_SIZE or u8(b, p + CRC_NAME_SIZE) != NAME_END:
                continue
            if i32(source, p) == WORD_CRC_FIRST and i32(source, p + INT) == WORD_CRC_SECOND:
                out[k] = 1
                continue
            if u8(b, p + CRC_PROPERTY_SIZE - 1) != PAIR_END:
                continue
            out[k] = 1
            for i in range(CRC_NAME_SIZE + 1, CRC_PROPERTY_SIZE - 1):
                digit = u8(b, p + i)
                if digit < ZERO or digit > NINE:
                    out[k] = 0


def has_equal_names(counts: cython.int[::1], hashes: cython.longlong[::1]):
    """Return whether two pairs of one record have the same name hash. counts: pairs per record; hashes: of all pairs, in order."""
    n: cython.Py_ssize_t = counts.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    first: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t
    found: cython.bint = False
    with cython.nogil:
        for k in range(n):
            stop = first + counts[k]
            if stop > hashes.shape[0]:
                break
            for i in range(first, stop):
                for j in range(i + 1, stop):
                    if hashes[i] == hashes[j]:
                        found = True
            if found:
                break
            first = stop
    return found


def irregular_texts(
    b: cython.const[cython.uchar][::1], starts: cython.longlong[::1], lengths: cython.longlong[::1], out: cython.uchar[::1]
):
    """Set out[k] to 1 if a non-empty part of property text k has no name or no separator, or if zeros were written over it."""
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    n: cython.Py_ssize_t = starts.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    name: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    if lengths.shape[0] < n or out.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            i = starts[k]
            stop = i + lengths[k]
            out[k] = 0
            j = find(source, i, stop, 0)
            while j < stop:
                if j + 1 == stop or (j + INT <= stop and i32(source, j) == 0):
                    out[k] = 1
                    break
                j = find(source, j + 1, stop, 0)
            while i < stop:
                j = find(source, i, stop, PAIR_END)
                name = find(source, i, j, NAME_END)
                if j > i and (name == i or name == j):
                    out[k] = 1
                i = j + 1
