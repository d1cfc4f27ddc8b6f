"""One Arrow record batch of a few messages, written in two passes over their records.

A pull returns a few dozen records, for which making one column after another costs more than the records themselves. Here
one call writes all columns of the batch as one Arrow IPC message: its head, which is given, and the body, one buffer after the
other, each at a multiple of eight bytes.

    valid_positions   which of the positions hold a valid record
    write_batch       the message; it reads the records' fields, sums them up (`measure`), lays out the body (`lay_out`) and writes it
                      (`fill`)

Only ordinary records are taken: both hosts IPv4, the body not compressed, texts of ASCII, no property twice, keys with
single blanks between them, times that fit into microseconds. `write_batch` returns None if one is not ordinary, and the caller makes
the columns one by one.

The columns, with the number of their first buffer (each begins with a bitmap of the values that are not null):

     0 topic             9 size         22 body         31 reconsume_times     40 store_timestamp
     3 queue_id         11 tags         25 body_crc     33 prepared offset     42 store_host
     5 queue_offset     14 keys         27 flag         35 born_timestamp      45 msg_id
     7 physical_offset  19 uniq_key     29 sys_flag     37 born_host           48 properties
"""

import cython
import numpy as np

if not cython.compiled:
    import sys

    from mqstore.kernels.common.loads import copy, find, first_byte, i32, i64, prefetch, same, u8
    from mqstore.kernels.rocketmq.frames import (
        BODY_CRC,
        BODY_LENGTH,
        BODY_START,
        BORN_HOST,
        BORN_TIMESTAMP,
        FIELD_COUNT,
        FLAG,
        KEYS_LENGTH,
        KEYS_START,
        KNOWN_ROW_COUNT,
        PHYSICAL_OFFSET,
        PREPARED_TRANSACTION_OFFSET,
        PROPERTIES_LENGTH,
        PROPERTIES_START,
        QUEUE_ID,
        QUEUE_OFFSET,
        RECONSUME_TIMES,
        SIZE,
        STORE_HOST,
        STORE_TIMESTAMP,
        SYS_FLAG,
        TAGS_LENGTH,
        TAGS_START,
        TOPIC_LENGTH,
        TOPIC_START,
        UNIQ_KEY_LENGTH,
        UNIQ_KEY_START,
        VALID,
        check,
        known_row,
        read_fields,
    )
    from mqstore.kernels.rocketmq.record_layout import (
        AT_BORN_HOST,
        AT_PHYSICAL_OFFSET,
        BORN_HOST_IPV6,
        COMPRESSED,
        FRAME_SIZE,
        KEY_SEPARATOR,
        NAME_END,
        PAIR_END,
        ROW_BYTES,
        ROW_NUMBERS,
        ROW_PHYSICAL_OFFSET,
        ROW_SIZE,
        STORE_HOST_IPV6,
    )

    # what a column's buffers are, counted from its first
    VALIDITY = 0  # bitmap of the values that are not null
    VALUES = 1
    OFFSETS = 1
    TEXT = 2
    NUMBER_BUFFERS = 2
    TEXT_BUFFERS = 3

    # the first buffer of each column
    BUFFER_TOPIC = 0
    BUFFER_QUEUE_ID = BUFFER_TOPIC + TEXT_BUFFERS
    BUFFER_QUEUE_OFFSET = BUFFER_QUEUE_ID + NUMBER_BUFFERS
    BUFFER_OFFSET = BUFFER_QUEUE_OFFSET + NUMBER_BUFFERS
    BUFFER_SIZE = BUFFER_OFFSET + NUMBER_BUFFERS
    BUFFER_TAGS = BUFFER_SIZE + NUMBER_BUFFERS
    BUFFER_KEYS = BUFFER_TAGS + TEXT_BUFFERS
    BUFFER_KEY_ITEMS = BUFFER_KEYS + NUMBER_BUFFERS
    BUFFER_UNIQ_KEY = BUFFER_KEY_ITEMS + TEXT_BUFFERS
    BUFFER_BODY = BUFFER_UNIQ_KEY + TEXT_BUFFERS
    BUFFER_BODY_CRC = BUFFER_BODY + TEXT_BUFFERS
    BUFFER_FLAG = BUFFER_BODY_CRC + NUMBER_BUFFERS
    BUFFER_SYS_FLAG = BUFFER_FLAG + NUMBER_BUFFERS
    BUFFER_RECONSUME_TIMES = BUFFER_SYS_FLAG + NUMBER_BUFFERS
    BUFFER_PREPARED_OFFSET = BUFFER_RECONSUME_TIMES + NUMBER_BUFFERS
    BUFFER_BORN_TIMESTAMP = BUFFER_PREPARED_OFFSET + NUMBER_BUFFERS
    BUFFER_BORN_HOST = BUFFER_BORN_TIMESTAMP + NUMBER_BUFFERS
    BUFFER_STORE_TIMESTAMP = BUFFER_BORN_HOST + TEXT_BUFFERS
    BUFFER_STORE_HOST = BUFFER_STORE_TIMESTAMP + NUMBER_BUFFERS
    BUFFER_MSG_ID = BUFFER_STORE_HOST + TEXT_BUFFERS
    BUFFER_PROPERTIES = BUFFER_MSG_ID + TEXT_BUFFERS
    BUFFER_PROPERTY_NAMES = BUFFER_PROPERTIES + NUMBER_BUFFERS + 1
    BUFFER_PROPERTY_VALUES = BUFFER_PROPERTY_NAMES + TEXT_BUFFERS

    # numbers of the columns, nested ones included
    NODE_TAGS = 5
    NODE_KEYS = 6
    NODE_KEY_ITEMS = 7
    NODE_UNIQ_KEY = 8
    NODE_PROPERTY_PAIRS = 21
    NODE_PROPERTY_NAMES = 22
    NODE_PROPERTY_VALUES = 23

    # of a node, and of a buffer
    ROWS = 0
    NULLS = 1
    BEGIN = 0
    LENGTH = 1

    # rows of the scratch array `spans`: those of `frames.known_properties` for each record, then those of each pair
    PAIR_NAME_START = KNOWN_ROW_COUNT
    PAIR_NAME_LENGTH = PAIR_NAME_START + 1
    PAIR_VALUE_START = PAIR_NAME_LENGTH + 1
    PAIR_VALUE_LENGTH = PAIR_VALUE_START + 1
    PAIRS_STOP = PAIR_VALUE_LENGTH + 1  # where the pairs of a record end
    SPAN_ROWS = PAIRS_STOP + 1

    PAIRS_PER_RECORD = 16  # properties a record may have on average; records with more are not ordinary
    KEPT_ROWS = 64  # records that scratch arrays are kept for
    HOST_TEXT = 27  # longest text of an IPv4 host
    ID_TEXT = 32  # a message id: store host and physical offset in hexadecimal digits
    HALF_ID = 16
    MAX_TEXT = 2000000000  # bytes of texts that fit 32-bit offsets
    MICROSECONDS = 1000  # in a millisecond
    NOT_ORDINARY = COMPRESSED | BORN_HOST_IPV6 | STORE_HOST_IPV6  # bits of SYS_FLAG
    LINE = 64  # bytes of a cache line
    MINUS = 45
    DOT = 46
    ZERO = 48
    COLON = 58

    BUFFERS = BUFFER_PROPERTY_VALUES + TEXT_BUFFERS
    NODES = NODE_PROPERTY_VALUES + 1

    def announce(b, p, n):
        """Nothing to do: a hint for the processor."""

    def number(rows, k):
        """Return the k-th native 64-bit number of rows."""
        return int.from_bytes(rows[8 * k : 8 * k + 8], sys.byteorder, signed=True)

    def new_buffer(length):
        return np.empty(length, np.uint8)

    def start_of(out):
        return out

    def st32(out, at, value):
        """Store a native 32-bit number."""
        out[at : at + 4] = tuple(int(value).to_bytes(4, sys.byteorder, signed=True))

    def st64(out, at, value):
        """Store a native 64-bit number."""
        out[at : at + 8] = tuple(int(value).to_bytes(8, sys.byteorder, signed=True))

    def put_ints(fields, field, n, at, out):
        """Write a field as a column of 32-bit numbers."""
        for k in range(n):
            st32(out, at + 4 * k, fields[field, k])

    def put_longs(fields, field, factor, n, at, out):
        """Write a field, times factor, as a column of 64-bit numbers."""
        for k in range(n):
            st64(out, at + 8 * k, fields[field, k] * factor)

    def hexadecimal(out, at, b, p):
        """Write eight bytes as sixteen upper-case digits."""
        out[at : at + 16] = tuple(bytes(b[p : p + 8]).hex().upper().encode())

    def ascii_only(b, p, n):
        return bytes(b[p : p + n]).isascii()

    def repeat(out, at, start, n):
        """Copy n bytes within out."""
        out[at : at + n] = out[start : start + n]


# sums over the records of a batch; ordinary: whether all of them are
Totals = cython.struct(
    ordinary=cython.bint,
    pairs=cython.longlong,
    key_items=cython.longlong,
    topics=cython.longlong,
    bodies=cython.longlong,
    names=cython.longlong,
    values=cython.longlong,
    tags=cython.longlong,
    keys=cython.longlong,
    unique_keys=cython.longlong,
    without_tags=cython.longlong,
    without_keys=cython.longlong,
    without_unique_key=cython.longlong,
)


class Scratch:
    """Scratch arrays for `count` records."""

    def __init__(self, count):
        self.count = count
        self.positions = np.empty((2, count), np.int64)
        self.fields = np.empty((FIELD_COUNT, count), np.int64)
        self.spans = np.empty((SPAN_ROWS, PAIRS_PER_RECORD * count), np.int64)
        self.nodes = np.empty((NODES, 2), np.int64)
        self.buffers = np.empty((BUFFERS, 2), np.int64)


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
        name = find(b, i, j, NAME_END)
        if name > i and name < j - 1:
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
@cython.nogil
@cython.exceptval(check=False)
def measure(
    b: cython.pointer[cython.const[cython.uchar]],
    fields: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
    spans: cython.longlong[:, ::1],
    room: cython.Py_ssize_t,
) -> Totals:
    """Fill the spans of n records, which have room for this many pairs, and sum up what they take."""
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    pairs: cython.Py_ssize_t = 0
    key_items: cython.longlong = 0
    topics: cython.longlong = 0
    bodies: cython.longlong = 0
    names: cython.longlong = 0
    values: cython.longlong = 0
    tags: cython.longlong = 0
    keys: cython.longlong = 0
    unique_keys: cython.longlong = 0
    without_tags: cython.longlong = 0
    without_keys: cython.longlong = 0
    without_unique_key: cython.longlong = 0
    ordinary: cython.bint = True
    latest: cython.longlong = (2**63 - 1) // 1000  # milliseconds
    for k in range(n):
        ordinary = (
            not fields[SYS_FLAG, k] & NOT_ORDINARY
            and -latest <= fields[BORN_TIMESTAMP, k] <= latest
            and -latest <= fields[STORE_TIMESTAMP, k] <= latest
            and ascii_only(b, fields[TOPIC_START, k], fields[TOPIC_LENGTH, k])
            and ascii_only(b, fields[PROPERTIES_START, k], fields[PROPERTIES_LENGTH, k])
        )
        if not ordinary:
            break
        topics += fields[TOPIC_LENGTH, k]
        bodies += fields[BODY_LENGTH, k]
        i = fields[PROPERTIES_START, k]
        pairs = read_pairs(b, i, i + fields[PROPERTIES_LENGTH, k], k, pairs, spans, room)
        if pairs < 0:
            ordinary = False
            break
        if spans[TAGS_LENGTH, k] < 0:
            without_tags += 1
        else:
            tags += spans[TAGS_LENGTH, k]
        if spans[UNIQ_KEY_LENGTH, k] < 0:
            without_unique_key += 1
        else:
            unique_keys += spans[UNIQ_KEY_LENGTH, k]
        if spans[KEYS_LENGTH, k] < 0:
            without_keys += 1
        else:
            i = spans[KEYS_START, k]
            stop = i + spans[KEYS_LENGTH, k]
            while i <= stop:
                j = find(b, i, stop, KEY_SEPARATOR)
                if j == i:
                    ordinary = False
                key_items += 1
                keys += j - i
                i = j + 1
        if not ordinary:
            break
    for k in range(pairs):
        names += spans[PAIR_NAME_LENGTH, k]
        values += spans[PAIR_VALUE_LENGTH, k]
    return Totals(
        ordinary=ordinary and topics + bodies + names + values < MAX_TEXT,
        pairs=pairs,
        key_items=key_items,
        topics=topics,
        bodies=bodies,
        names=names,
        values=values,
        tags=tags,
        keys=keys,
        unique_keys=unique_keys,
        without_tags=without_tags,
        without_keys=without_keys,
        without_unique_key=without_unique_key,
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def lay_out(n: cython.longlong, totals: Totals, nodes: cython.longlong[:, ::1], buffers: cython.longlong[:, ::1]) -> cython.longlong:
    """Lay out the body of a batch of n records; return its bytes.

    nodes: filled with rows and nulls of each column. buffers: filled with begin and length of each buffer.
    """
    k: cython.Py_ssize_t
    at: cython.longlong = 0
    bitmap: cython.longlong = (n + 7) // 8
    offsets: cython.longlong = 4 * (n + 1)
    for k in range(NODES):
        nodes[k, ROWS] = n
        nodes[k, NULLS] = 0
    nodes[NODE_TAGS, NULLS] = totals.without_tags
    nodes[NODE_KEYS, NULLS] = totals.without_keys
    nodes[NODE_KEY_ITEMS, ROWS] = totals.key_items
    nodes[NODE_UNIQ_KEY, NULLS] = totals.without_unique_key
    nodes[NODE_PROPERTY_PAIRS, ROWS] = totals.pairs
    nodes[NODE_PROPERTY_NAMES, ROWS] = totals.pairs
    nodes[NODE_PROPERTY_VALUES, ROWS] = totals.pairs
    for k in range(BUFFERS):
        buffers[k, LENGTH] = 0
    buffers[BUFFER_TOPIC + OFFSETS, LENGTH] = offsets
    buffers[BUFFER_TOPIC + TEXT, LENGTH] = totals.topics
    buffers[BUFFER_QUEUE_ID + VALUES, LENGTH] = 4 * n
    buffers[BUFFER_QUEUE_OFFSET + VALUES, LENGTH] = 8 * n
    buffers[BUFFER_OFFSET + VALUES, LENGTH] = 8 * n
    buffers[BUFFER_SIZE + VALUES, LENGTH] = 4 * n
    buffers[BUFFER_TAGS + VALIDITY, LENGTH] = bitmap if totals.without_tags else 0
    buffers[BUFFER_TAGS + OFFSETS, LENGTH] = offsets
    buffers[BUFFER_TAGS + TEXT, LENGTH] = totals.tags
    buffers[BUFFER_KEYS + VALIDITY, LENGTH] = bitmap if totals.without_keys else 0
    buffers[BUFFER_KEYS + OFFSETS, LENGTH] = offsets
    buffers[BUFFER_KEY_ITEMS + OFFSETS, LENGTH] = 4 * (totals.key_items + 1)
    buffers[BUFFER_KEY_ITEMS + TEXT, LENGTH] = totals.keys
    buffers[BUFFER_UNIQ_KEY + VALIDITY, LENGTH] = bitmap if totals.without_unique_key else 0
    buffers[BUFFER_UNIQ_KEY + OFFSETS, LENGTH] = offsets
    buffers[BUFFER_UNIQ_KEY + TEXT, LENGTH] = totals.unique_keys
    buffers[BUFFER_BODY + OFFSETS, LENGTH] = offsets
    buffers[BUFFER_BODY + TEXT, LENGTH] = totals.bodies
    buffers[BUFFER_BODY_CRC + VALUES, LENGTH] = 4 * n
    buffers[BUFFER_FLAG + VALUES, LENGTH] = 4 * n
    buffers[BUFFER_SYS_FLAG + VALUES, LENGTH] = 4 * n
    buffers[BUFFER_RECONSUME_TIMES + VALUES, LENGTH] = 4 * n
    buffers[BUFFER_PREPARED_OFFSET + VALUES, LENGTH] = 8 * n
    buffers[BUFFER_BORN_TIMESTAMP + VALUES, LENGTH] = 8 * n
    buffers[BUFFER_BORN_HOST + OFFSETS, LENGTH] = offsets
    buffers[BUFFER_BORN_HOST + TEXT, LENGTH] = HOST_TEXT * n
    buffers[BUFFER_STORE_TIMESTAMP + VALUES, LENGTH] = 8 * n
    buffers[BUFFER_STORE_HOST + OFFSETS, LENGTH] = offsets
    buffers[BUFFER_STORE_HOST + TEXT, LENGTH] = HOST_TEXT * n
    buffers[BUFFER_MSG_ID + OFFSETS, LENGTH] = offsets
    buffers[BUFFER_MSG_ID + TEXT, LENGTH] = ID_TEXT * n
    buffers[BUFFER_PROPERTIES + OFFSETS, LENGTH] = offsets
    buffers[BUFFER_PROPERTY_NAMES + OFFSETS, LENGTH] = 4 * (totals.pairs + 1)
    buffers[BUFFER_PROPERTY_NAMES + TEXT, LENGTH] = totals.names
    buffers[BUFFER_PROPERTY_VALUES + OFFSETS, LENGTH] = 4 * (totals.pairs + 1)
    buffers[BUFFER_PROPERTY_VALUES + TEXT, LENGTH] = totals.values
    for k in range(BUFFERS):
        buffers[k, BEGIN] = at
        at += (buffers[k, LENGTH] + 7) & -8
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def decimal(out: cython.pointer[cython.uchar], at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a number of at most 32 bits in decimal digits; return where they end."""
    rest: cython.uint
    stop: cython.Py_ssize_t
    k: cython.Py_ssize_t
    if value < 0:
        out[at] = MINUS
        at += 1
        value = -value
    rest = value
    stop = at + 1
    while value >= 10:
        value = value // 10
        stop += 1
    k = stop
    while k > at:
        k -= 1
        out[k] = ZERO + rest % 10
        rest = rest // 10
    return stop


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_texts(
    b: cython.pointer[cython.const[cython.uchar]],
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
    n: cython.Py_ssize_t,
    offsets: cython.Py_ssize_t,
    text: cython.Py_ssize_t,
    bitmap: cython.Py_ssize_t,
    out: cython.pointer[cython.uchar],
) -> cython.void:
    """Write spans as a column of texts; a negative length is null. bitmap: -1 if nothing is null."""
    k: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    st32(out, offsets, 0)
    for k in range(n):
        if lengths[k] > 0:
            copy(out, text + at, b, starts[k], lengths[k])
            at += lengths[k]
        st32(out, offsets + 4 * (k + 1), at)
        if bitmap >= 0:
            if k & 7 == 0:
                out[bitmap + (k >> 3)] = 0
            if lengths[k] >= 0:
                out[bitmap + (k >> 3)] |= 1 << (k & 7)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_keys(
    b: cython.pointer[cython.const[cython.uchar]],
    spans: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
    bitmap: cython.Py_ssize_t,
    offsets: cython.Py_ssize_t,
    item_offsets: cython.Py_ssize_t,
    text: cython.Py_ssize_t,
    out: cython.pointer[cython.uchar],
) -> cython.void:
    """Write the lists of keys. bitmap: -1 if nothing is null."""
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    item: cython.Py_ssize_t = 0
    st32(out, offsets, 0)
    st32(out, item_offsets, 0)
    for k in range(n):
        if bitmap >= 0:
            j = bitmap + (k >> 3)
            if k & 7 == 0:
                out[j] = 0
            if spans[KEYS_LENGTH, k] >= 0:
                out[j] |= 1 << (k & 7)
        if spans[KEYS_LENGTH, k] >= 0:
            i = spans[KEYS_START, k]
            stop = i + spans[KEYS_LENGTH, k]
            while i <= stop:
                j = find(b, i, stop, KEY_SEPARATOR)
                copy(out, text + at, b, i, j - i)
                at += j - i
                item += 1
                st32(out, item_offsets + 4 * item, at)
                i = j + 1
        st32(out, offsets + 4 * (k + 1), item)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_hosts(
    b: cython.pointer[cython.const[cython.uchar]],
    fields: cython.longlong[:, ::1],
    field: cython.int,
    n: cython.Py_ssize_t,
    offsets: cython.Py_ssize_t,
    text: cython.Py_ssize_t,
    out: cython.pointer[cython.uchar],
) -> cython.void:
    """Write IPv4 hosts as `address:port`; most are that of the record before."""
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t = text
    first: cython.Py_ssize_t = text
    length: cython.Py_ssize_t = 0
    host: cython.longlong = 0
    st32(out, offsets, 0)
    for k in range(n):
        i = fields[field, k]
        if k > 0 and i64(b, i) == host:
            repeat(out, at, first, length)
            at += length
        else:
            host = i64(b, i)
            first = at
            for j in range(4):
                at = decimal(out, at, u8(b, i + j))
                out[at] = DOT if j < 3 else COLON
                at += 1
            at = decimal(out, at, i32(b, i + 4))
            length = at - first
        st32(out, offsets + 4 * (k + 1), at - text)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill(
    b: cython.pointer[cython.const[cython.uchar]],
    fields: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
    spans: cython.longlong[:, ::1],
    nodes: cython.longlong[:, ::1],
    buffers: cython.longlong[:, ::1],
    base: cython.Py_ssize_t,
    out: cython.pointer[cython.uchar],
) -> cython.void:
    """Write the body that `lay_out` has laid out, from byte `base` of the output on, a multiple of eight."""
    k: cython.Py_ssize_t
    bitmap: cython.Py_ssize_t
    offsets: cython.Py_ssize_t
    text: cython.Py_ssize_t
    put_texts(
        b, fields[TOPIC_START], fields[TOPIC_LENGTH], n,
        base + buffers[BUFFER_TOPIC + OFFSETS, BEGIN], base + buffers[BUFFER_TOPIC + TEXT, BEGIN], -1, out,
    )  # fmt: skip
    put_texts(
        b, fields[BODY_START], fields[BODY_LENGTH], n,
        base + buffers[BUFFER_BODY + OFFSETS, BEGIN], base + buffers[BUFFER_BODY + TEXT, BEGIN], -1, out,
    )  # fmt: skip
    bitmap = base + buffers[BUFFER_TAGS, BEGIN] if nodes[NODE_TAGS, NULLS] else -1
    put_texts(
        b, spans[TAGS_START], spans[TAGS_LENGTH], n,
        base + buffers[BUFFER_TAGS + OFFSETS, BEGIN], base + buffers[BUFFER_TAGS + TEXT, BEGIN], bitmap, out,
    )  # fmt: skip
    bitmap = base + buffers[BUFFER_UNIQ_KEY, BEGIN] if nodes[NODE_UNIQ_KEY, NULLS] else -1
    put_texts(
        b, spans[UNIQ_KEY_START], spans[UNIQ_KEY_LENGTH], n,
        base + buffers[BUFFER_UNIQ_KEY + OFFSETS, BEGIN], base + buffers[BUFFER_UNIQ_KEY + TEXT, BEGIN], bitmap, out,
    )  # fmt: skip
    put_texts(
        b, spans[PAIR_NAME_START], spans[PAIR_NAME_LENGTH], nodes[NODE_PROPERTY_NAMES, ROWS],
        base + buffers[BUFFER_PROPERTY_NAMES + OFFSETS, BEGIN], base + buffers[BUFFER_PROPERTY_NAMES + TEXT, BEGIN], -1, out,
    )  # fmt: skip
    put_texts(
        b, spans[PAIR_VALUE_START], spans[PAIR_VALUE_LENGTH], nodes[NODE_PROPERTY_VALUES, ROWS],
        base + buffers[BUFFER_PROPERTY_VALUES + OFFSETS, BEGIN], base + buffers[BUFFER_PROPERTY_VALUES + TEXT, BEGIN], -1, out,
    )  # fmt: skip
    put_ints(fields, QUEUE_ID, n, base + buffers[BUFFER_QUEUE_ID + VALUES, BEGIN], out)
    put_ints(fields, SIZE, n, base + buffers[BUFFER_SIZE + VALUES, BEGIN], out)
    put_ints(fields, BODY_CRC, n, base + buffers[BUFFER_BODY_CRC + VALUES, BEGIN], out)
    put_ints(fields, FLAG, n, base + buffers[BUFFER_FLAG + VALUES, BEGIN], out)
    put_ints(fields, SYS_FLAG, n, base + buffers[BUFFER_SYS_FLAG + VALUES, BEGIN], out)
    put_ints(fields, RECONSUME_TIMES, n, base + buffers[BUFFER_RECONSUME_TIMES + VALUES, BEGIN], out)
    put_longs(fields, QUEUE_OFFSET, 1, n, base + buffers[BUFFER_QUEUE_OFFSET + VALUES, BEGIN], out)
    put_longs(fields, PHYSICAL_OFFSET, 1, n, base + buffers[BUFFER_OFFSET + VALUES, BEGIN], out)
    put_longs(fields, PREPARED_TRANSACTION_OFFSET, 1, n, base + buffers[BUFFER_PREPARED_OFFSET + VALUES, BEGIN], out)
    put_longs(fields, BORN_TIMESTAMP, MICROSECONDS, n, base + buffers[BUFFER_BORN_TIMESTAMP + VALUES, BEGIN], out)
    put_longs(fields, STORE_TIMESTAMP, MICROSECONDS, n, base + buffers[BUFFER_STORE_TIMESTAMP + VALUES, BEGIN], out)
    bitmap = base + buffers[BUFFER_KEYS, BEGIN] if nodes[NODE_KEYS, NULLS] else -1
    put_keys(
        b, spans, n, bitmap, base + buffers[BUFFER_KEYS + OFFSETS, BEGIN],
        base + buffers[BUFFER_KEY_ITEMS + OFFSETS, BEGIN], base + buffers[BUFFER_KEY_ITEMS + TEXT, BEGIN], out,
    )  # fmt: skip
    put_hosts(
        b, fields, BORN_HOST, n, base + buffers[BUFFER_BORN_HOST + OFFSETS, BEGIN], base + buffers[BUFFER_BORN_HOST + TEXT, BEGIN], out
    )
    put_hosts(
        b, fields, STORE_HOST, n, base + buffers[BUFFER_STORE_HOST + OFFSETS, BEGIN], base + buffers[BUFFER_STORE_HOST + TEXT, BEGIN], out
    )
    # message ids: store host, physical offset
    offsets = base + buffers[BUFFER_MSG_ID + OFFSETS, BEGIN]
    text = base + buffers[BUFFER_MSG_ID + TEXT, BEGIN]
    st32(out, offsets, 0)
    for k in range(n):
        hexadecimal(out, text + ID_TEXT * k, b, fields[STORE_HOST, k])
        hexadecimal(out, text + ID_TEXT * k + HALF_ID, b, fields[BORN_HOST, k] - AT_BORN_HOST + AT_PHYSICAL_OFFSET)
        st32(out, offsets + 4 * (k + 1), ID_TEXT * (k + 1))
    offsets = base + buffers[BUFFER_PROPERTIES + OFFSETS, BEGIN]
    st32(out, offsets, 0)
    for k in range(n):
        st32(out, offsets + 4 * (k + 1), spans[PAIRS_STOP, k])


def write_batch(b: cython.const[cython.uchar][::1], start: cython.longlong, rows: bytes, head: BatchHead):
    """Return the IPC message of some records as a buffer; None if one of them is not ordinary.

    rows: for each record three native 64-bit numbers: queue offset, physical offset, size. start: physical offset of the first byte of b.
    Bytes that are not a record are left out.
    """
    count: cython.Py_ssize_t = len(rows) // ROW_BYTES
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
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
    with cython.nogil:
        for k in range(count):
            p = positions[0, k]
            size = positions[1, k]
            if p >= 0 and size >= FRAME_SIZE and size <= b.shape[0] - p:
                prefetch(b, p)
                prefetch(b, p + LINE if size > LINE else p)
                prefetch(b, p + size - 1)
                prefetch(b, p + size - LINE if size > LINE else p)
        for k in range(count):
            p = positions[0, k]
            size = positions[1, k]
            if p >= 0 and size >= FRAME_SIZE and size <= b.shape[0] - p and check(first_byte(b), p, p + size, 0, False) == VALID:
                positions[0, n] = p
                n += 1
        read_fields(b, positions[0], n, fields)
        for k in range(n):
            announce(b, fields[BODY_START, k], fields[BODY_LENGTH, k])  # it is copied much later
        totals = measure(first_byte(b), fields, n, spans, PAIRS_PER_RECORD * n)
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
