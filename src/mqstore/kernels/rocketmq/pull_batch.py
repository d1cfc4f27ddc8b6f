"""One Arrow record batch of a few messages, written in two passes over their records.

A pull returns a few dozen records, for which making one column after another costs more than the records themselves. Here
one call writes all columns of the batch as one Arrow IPC message: its head, which is given, and the body (`batch_body`).

    valid_positions   which of the positions hold a valid record
    write_batch       the message; it reads the records' fields, sums them up (`measure`), lays out the body and fills it

Only ordinary records are taken: both hosts IPv4, the body not compressed, texts of ASCII, no property twice, keys with
single blanks between them, times that fit into microseconds. `write_batch` returns None if one is not ordinary, and the caller makes
the columns one by one.
"""

import cython
import numpy as np


class Scratch:
    """Scratch arrays for `count` records."""

    def __init__(self, count):
        self.count = count
        self.positions = np.empty((2, count), np.int64)
        self.fields = np.empty((FIELD_COUNT, count), np.int64)
        self.spans = np.empty((SPAN_ROWS, PAIRS_PER_RECORD * count), np.int64)
        self.nodes = np.empty((NODES, 2), np.int64)
        self.buffers = np.empty((BUFFERS, 2), np.int64)
        self.sums = np.empty(SUMS, np.int64)


class BatchHead:
    """The head of an IPC message, and the byte positions of its numbers. free: scratch arrays that are not in use."""

    def __init__(self, raw, rows, body_length, nodes, buffers):
        """raw: uint8. rows, body_length: a number each; nodes, buffers: two numbers for each."""
        if len(raw) % 8 or min(rows, body_length, nodes, buffers) < 0:
            raise ValueError("the head of a message has a multiple of eight bytes")
        if max(rows + 8, body_length + 8, nodes + 16 * NODES, buffers + 16 * BUFFERS) > len(raw):
            raise ValueError("the numbers are not all in the head")
        self.raw = raw
        self.rows = rows
        self.body_length = body_length
        self.nodes = nodes
        self.buffers = buffers
        self.free = []


def valid_positions(
    b: cython.const[cython.uchar][::1], positions: cython.longlong[::1], sizes: cython.longlong[::1], out: cython.longlong[::1]
):
    """Copy to `out` the positions of valid records that fit into their given size; return their number."""
    n: cython.Py_ssize_t = positions.shape[0]
    k: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    p: cython.longlong
    if sizes.shape[0] < n or out.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            p = positions[k]
            if p < 0 or sizes[k] < FRAME_SIZE or sizes[k] > b.shape[0] - p:
                continue
            if check(first_byte(b), p, p + sizes[k], 0, False) == VALID:
                out[count] = p
                count += 1
    return count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def read_pairs(
    b: cython.pointer[cython.const[cython.uchar]],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    k: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    spans: cython.longlong[:, ::1],
    room: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write the pairs of record k to columns from `first` on; return the column after the last, -1 if a name is there twice."""
    i: cython.Py_ssize_t = start
    j: cython.Py_ssize_t
    m: cython.Py_ssize_t
    name: cython.Py_ssize_t
    row: cython.int
    pairs: cython.Py_ssize_t = first
    spans[TAGS_LENGTH, k] = -1
    spans[KEYS_LENGTH, k] = -1
    spans[UNIQ_KEY_LENGTH, k] = -1
    while i < stop:
        j = find(b, i, stop, PAIR_END)
        name = name_end(b, i, j)
        if name >= 0:
            if pairs >= room:
                return -1
            spans[PAIR_NAME_START, pairs] = i
            spans[PAIR_NAME_LENGTH, pairs] = name - i
            spans[PAIR_VALUE_START, pairs] = name + 1
            spans[PAIR_VALUE_LENGTH, pairs] = j - name - 1
            for m in range(first, pairs):
                if spans[PAIR_NAME_LENGTH, m] == name - i and same(b, spans[PAIR_NAME_START, m], b, i, name - i):
                    return -1
            pairs += 1
            row = known_row(b, i, name - i)
            if row >= 0:
                spans[row, k] = name + 1
                spans[row + 1, k] = j - name - 1
        i = j + 1
    spans[PAIRS_STOP, k] = pairs
    return pairs


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def measure(
    b: cython.pointer[cython.const[cython.uchar]],
    fields: cython.longlong[:, ::1],
    k: cython.Py_ssize_t,
    spans: cython.longlong[:, ::1],
    pairs: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
    sums: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """Fill the spans of record k and add what it takes to the sums; return the pairs of all records so far, -1 if it is not ordinary.

    pairs: those of the records before. room: for pairs.
    """
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    ordinary: cython.bint
    latest: cython.longlong = (2**63 - 1) // 1000  # milliseconds
    ordinary = (
        not fields[SYS_FLAG, k] & NOT_ORDINARY
        and -latest <= fields[BORN_TIMESTAMP, k] <= latest
        and -latest <= fields[STORE_TIMESTAMP, k] <= latest
        and ascii_only(b, fields[TOPIC_START, k], fields[TOPIC_LENGTH, k])
        and ascii_only(b, fields[PROPERTIES_START, k], fields[PROPERTIES_LENGTH, k])
    )
    if not ordinary:
        return -1
    sums[SUM_TOPICS] += fields[TOPIC_LENGTH, k]
    sums[SUM_BODIES] += fields[BODY_LENGTH, k]
    i = fields[PROPERTIES_START, k]
    pairs = read_pairs(b, i, i + fields[PROPERTIES_LENGTH, k], k, pairs, spans, room)
    if pairs < 0:
        return -1
    if spans[TAGS_LENGTH, k] < 0:
        sums[SUM_WITHOUT_TAGS] += 1
    else:
        sums[SUM_TAGS] += spans[TAGS_LENGTH, k]
    if spans[UNIQ_KEY_LENGTH, k] < 0:
        sums[SUM_WITHOUT_UNIQUE_KEY] += 1
    else:
        sums[SUM_UNIQUE_KEYS] += spans[UNIQ_KEY_LENGTH, k]
    if spans[KEYS_LENGTH, k] < 0:
        sums[SUM_WITHOUT_KEYS] += 1
    else:
        i = spans[KEYS_START, k]
        stop = i + spans[KEYS_LENGTH, k]
        while i <= stop:
            j = find(b, i, stop, KEY_SEPARATOR)
            if j == i:
                return -1
            sums[SUM_KEY_ITEMS] += 1
            sums[SUM_KEYS] += j - i
            i = j + 1
    return pairs


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def totals_of(sums: cython.longlong[::1], spans: cython.longlong[:, ::1], pairs: cython.Py_ssize_t) -> Totals:
    """Sum up what all records take. pairs: of all of them, -1 if one is not ordinary."""
    k: cython.Py_ssize_t
    names: cython.longlong = 0
    values: cython.longlong = 0
    for k in range(pairs):
        names += spans[PAIR_NAME_LENGTH, k]
        values += spans[PAIR_VALUE_LENGTH, k]
    return Totals(
        ordinary=pairs >= 0 and sums[SUM_TOPICS] + sums[SUM_BODIES] + names + values < MAX_TEXT,
        pairs=pairs,
        key_items=sums[SUM_KEY_ITEMS],
        topics=sums[SUM_TOPICS],
        bodies=sums[SUM_BODIES],
        names=names,
        values=values,
        tags=sums[SUM_TAGS],
        keys=sums[SUM_KEYS],
        unique_keys=sums[SUM_UNIQUE_KEYS],
        without_tags=sums[SUM_WITHOUT_TAGS],
        without_keys=sums[SUM_WITHOUT_KEYS],
        without_unique_key=sums[SUM_WITHOUT_UNIQUE_KEY],
    )


def write_batch(b: cython.const[cython.uchar][::1], start: cython.longlong, rows: bytes, head: BatchHead):
    """Return the IPC message of some records as a buffer; None if one of them is not ordinary.

    rows: for each record three native 64-bit numbers: queue offset, physical offset, size. start: physical offset of the first byte of b.
    Bytes that are not a record are left out.
    """
    count: cython.Py_ssize_t = len(rows) // ROW_BYTES
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    pairs: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = PAIRS_PER_RECORD * count
    p: cython.longlong
    size: cython.longlong
    base: cython.Py_ssize_t = head.raw.shape[0]
    length: cython.longlong = -1
    totals: Totals
    scratch: Scratch
    if head.free and count <= KEPT_ROWS:
        scratch = head.free.pop()
    else:
        scratch = Scratch(count if count > KEPT_ROWS else KEPT_ROWS)
    positions: cython.longlong[:, ::1] = scratch.positions
    fields: cython.longlong[:, ::1] = scratch.fields
    spans: cython.longlong[:, ::1] = scratch.spans
    nodes: cython.longlong[:, ::1] = scratch.nodes
    buffers: cython.longlong[:, ::1] = scratch.buffers
    for k in range(count):
        positions[0, k] = number(rows, ROW_NUMBERS * k + ROW_PHYSICAL_OFFSET) - start
        positions[1, k] = number(rows, ROW_NUMBERS * k + ROW_SIZE)
    sums: cython.longlong[::1] = scratch.sums
    with cython.nogil:
        for k in range(SUMS):
            sums[k] = 0
        for k in range(count):
            if k + 1 < count:
                # memory is slow: its lines come while this record is read
                p = positions[0, k + 1]
                size = positions[1, k + 1]
                if p >= 0 and 0 < size <= b.shape[0] - p:
                    announce(b, p, size)
            p = positions[0, k]
            size = positions[1, k]
            if p >= 0 and size >= FRAME_SIZE and size <= b.shape[0] - p and check(first_byte(b), p, p + size, 0, False) == VALID:
                positions[0, n] = p
                read_fields(b, positions[0], n, n + 1, fields)
                pairs = measure(first_byte(b), fields, n, spans, pairs, room, sums)
                if pairs < 0:
                    break
                n += 1
        totals = totals_of(sums, spans, pairs)
        if totals.ordinary:
            length = lay_out(n, totals, nodes, buffers)
    out = None
    if length >= 0:
        out = new_buffer(base + length)
        to: cython.uchar[::1] = out
        message: cython.pointer[cython.uchar] = start_of(to)
        with cython.nogil:
            copy(message, 0, first_byte(head.raw), 0, base)
            st64(message, head.rows, n)
            st64(message, head.body_length, length)
            for k in range(NODES):
                st64(message, head.nodes + 16 * k, nodes[k, ROWS])
                st64(message, head.nodes + 16 * k + 8, nodes[k, NULLS])
            for k in range(BUFFERS):
                st64(message, head.buffers + 16 * k, buffers[k, BEGIN])
                st64(message, head.buffers + 16 * k + 8, buffers[k, LENGTH])
            fill(first_byte(b), fields, n, spans, nodes, buffers, base, message)
    if scratch.count == KEPT_ROWS:
        head.free.append(scratch)
    return out
