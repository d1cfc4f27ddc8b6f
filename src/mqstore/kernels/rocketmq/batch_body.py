"""The body of an Arrow record batch of messages: one buffer after the other, each at a multiple of eight bytes.

    lay_out   which buffers there are and where each begins, from the sums over the records (`Totals`)
    fill      writes them, from the records' fields and the spans of their properties

The columns, with the number of their first buffer (each begins with a bitmap of the values that are not null):

     0 topic             9 size         22 body         31 reconsume_times     40 store_timestamp
     3 queue_id         11 tags         25 body_crc     33 prepared offset     42 store_host
     5 queue_offset     14 keys         27 flag         35 born_timestamp      45 msg_id
     7 physical_offset  19 uniq_key     29 sys_flag     37 born_host           48 properties
"""

import cython


def lay_out(n, totals, nodes, buffers):
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


def fill(b, fields, n, spans, nodes, buffers, base, out):
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
