"""One Arrow record batch of a handful of messages, written in two passes over their records.

A pull returns a few dozen records, for which making a column at a time costs more than the records themselves. Here
all columns of the batch come out of one loop, as the body of one Arrow IPC message: one buffer behind the other, each at
a multiple of eight bytes.

    sound      which of the positions hold a record that can be believed
    measure    where each buffer of the body begins and how long it is
    fill       the buffers

Only ordinary records are taken: both hosts IPv4, the body not compressed, texts of ASCII, no property twice, keys with
single blanks between them, times that fit into microseconds. `measure` answers -1 where one is not, and the caller makes the columns
one by one.

The columns, with the number of their first buffer (each begins with a bitmap of what is not null):

     0 topic             9 size         22 body         31 reconsume_times     40 store_timestamp
     3 queue_id         11 tags         25 body_crc     33 prepared offset     42 store_host
     5 queue_offset     14 keys         27 flag         35 born_timestamp      45 msg_id
     7 physical_offset  19 uniq_key     29 sys_flag     37 born_host           48 properties
"""

import cython

if not cython.compiled:
    from mqstore.kernels.frames import check
    from mqstore.kernels.loads import UNIQ_KEY, copy, find, i32, i64, same, u8

BUFFERS = 57
NODES = 24
SPANS = 11  # rows of the scratch array: spans of TAGS, KEYS, UNIQ_KEY, of the name and the value of each pair; where a record's pairs end


def sound(b: cython.const[cython.uchar][::1], positions: cython.longlong[::1], sizes: cython.longlong[::1], out: cython.longlong[::1]):
    """Copy to `out` the positions at which a record stands that can be believed and fits into its size; return how many."""
    n: cython.Py_ssize_t = positions.shape[0]
    k: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    p: cython.longlong
    if sizes.shape[0] < n or out.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            p = positions[k]
            if p < 0 or sizes[k] < 8 or sizes[k] > b.shape[0] - p:
                continue
            if check(b, p, p + sizes[k], 0, False) == 0:
                out[count] = p
                count += 1
    return count


def measure(
    b: cython.const[cython.uchar][::1],
    fields: cython.longlong[:, ::1],
    spans: cython.longlong[:, ::1],
    nodes: cython.longlong[:, ::1],
    buffers: cython.longlong[:, ::1],
):
    """Lay out the body of a batch; return its bytes, -1 if a record is not ordinary.

    fields: of the records, by `frames.fields`. spans: scratch of SPANS rows, with room for all pairs of all records.
    nodes: filled with rows and nulls of each column. buffers: filled with begin and length of each buffer.
    """
    n: cython.Py_ssize_t = fields.shape[1]
    room: cython.Py_ssize_t = spans.shape[1]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    m: cython.Py_ssize_t
    name: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    first: cython.Py_ssize_t
    row: cython.int
    pairs: cython.Py_ssize_t = 0
    items: cython.longlong = 0
    high: cython.uint = 0
    topics: cython.longlong = 0
    bodies: cython.longlong = 0
    names: cython.longlong = 0
    values: cython.longlong = 0
    tags: cython.longlong = 0
    keys: cython.longlong = 0
    ids: cython.longlong = 0
    no_tags: cython.longlong = 0
    no_keys: cython.longlong = 0
    no_ids: cython.longlong = 0
    at: cython.longlong = 0
    length: cython.longlong
    ordinary: cython.bint = True
    most: cython.longlong = (2**63 - 1) // 1000
    if fields.shape[0] < 19 or spans.shape[0] < 11 or nodes.shape[0] < 24 or buffers.shape[0] < 57 or room < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            if fields[6, k] & 0x31 or fields[7, k] > most or fields[7, k] < -most or fields[9, k] > most or fields[9, k] < -most:
                ordinary = False
                break
            topics += fields[16, k]
            bodies += fields[14, k]
            for i in range(fields[15, k], fields[15, k] + fields[16, k]):
                high |= u8(b, i)
            i = fields[17, k]
            stop = i + fields[18, k]
            for j in range(i, stop):
                high |= u8(b, j)
            spans[1, k] = -1
            spans[3, k] = -1
            spans[5, k] = -1
            first = pairs
            while i < stop:
                j = find(b, i, stop, 2)
                name = find(b, i, j, 1)
                if name > i and name < j - 1:
                    if pairs >= room:
                        ordinary = False
                        break
                    spans[6, pairs] = i
                    spans[7, pairs] = name - i
                    spans[8, pairs] = name + 1
                    spans[9, pairs] = j - name - 1
                    for m in range(first, pairs):
                        if spans[7, m] == name - i and same(b, spans[6, m], b, i, name - i):
                            ordinary = False
                    names += name - i
                    values += j - name - 1
                    pairs += 1
                    row = -1
                    if name - i == 4:
                        if i32(b, i) == 1413564243:
                            row = 0
                        elif i32(b, i) == 1262836051:
                            row = 2
                    elif name - i == 8 and i64(b, i) == UNIQ_KEY:
                        row = 4
                    if row >= 0:
                        spans[row, k] = name + 1
                        spans[row + 1, k] = j - name - 1
                i = j + 1
            spans[10, k] = pairs
            if spans[1, k] < 0:
                no_tags += 1
            else:
                tags += spans[1, k]
            if spans[5, k] < 0:
                no_ids += 1
            else:
                ids += spans[5, k]
            if spans[3, k] < 0:
                no_keys += 1
            else:
                i = spans[2, k]
                stop = i + spans[3, k]
                while i <= stop:
                    j = find(b, i, stop, 32)
                    if j == i:
                        ordinary = False
                    items += 1
                    keys += j - i
                    i = j + 1
            if not ordinary:
                break
    if not ordinary or high >= 128 or topics + bodies + names + values >= 2000000000:
        return -1
    for k in range(24):
        nodes[k, 0] = n
        nodes[k, 1] = 0
    nodes[5, 1] = no_tags
    nodes[6, 1] = no_keys
    nodes[7, 0] = items
    nodes[8, 1] = no_ids
    nodes[21, 0] = pairs
    nodes[22, 0] = pairs
    nodes[23, 0] = pairs
    for k in range(57):
        if k == 4 or k == 10 or k == 26 or k == 28 or k == 30 or k == 32:
            length = 4 * n
        elif k == 6 or k == 8 or k == 34 or k == 36 or k == 41:
            length = 8 * n
        elif k == 1 or k == 12 or k == 15 or k == 20 or k == 23 or k == 38 or k == 43 or k == 46 or k == 49:
            length = 4 * (n + 1)
        elif k == 2:
            length = topics
        elif k == 11:
            length = (n + 7) // 8 if no_tags else 0
        elif k == 13:
            length = tags
        elif k == 14:
            length = (n + 7) // 8 if no_keys else 0
        elif k == 17:
            length = 4 * (items + 1)
        elif k == 18:
            length = keys
        elif k == 19:
            length = (n + 7) // 8 if no_ids else 0
        elif k == 21:
            length = ids
        elif k == 24:
            length = bodies
        elif k == 39 or k == 44:
            length = 27 * n
        elif k == 47:
            length = 32 * n
        elif k == 52 or k == 55:
            length = 4 * (pairs + 1)
        elif k == 53:
            length = names
        elif k == 56:
            length = values
        else:
            length = 0
        buffers[k, 0] = at
        buffers[k, 1] = length
        at += (length + 7) & -8
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def decimal(out: cython.uchar[::1], at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a number of at most 32 bits in decimal digits; where they end."""
    scale: cython.longlong = 1
    if value < 0:
        out[at] = 45
        at += 1
        value = -value
    while value // scale >= 10:
        scale = scale * 10
    while scale > 0:
        out[at] = 48 + value // scale % 10
        at += 1
        scale = scale // 10
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def digits(
    out: cython.uchar[::1], at: cython.Py_ssize_t, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write n bytes in upper-case hexadecimal digits; where they end."""
    k: cython.Py_ssize_t
    high: cython.uint
    low: cython.uint
    for k in range(n):
        high = u8(b, p + k) >> 4
        low = u8(b, p + k) & 15
        out[at] = high + 48 if high < 10 else high + 55
        out[at + 1] = low + 48 if low < 10 else low + 55
        at += 2
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def texts(
    b: cython.const[cython.uchar][::1],
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
    n: cython.Py_ssize_t,
    offsets: cython.Py_ssize_t,
    text: cython.Py_ssize_t,
    bitmap: cython.Py_ssize_t,
    out: cython.uchar[::1],
    out32: cython.int[::1],
) -> cython.int:
    """Write spans as a column of texts; a negative length is null. bitmap: -1 where nothing is null."""
    k: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    out32[offsets] = 0
    for k in range(n):
        if lengths[k] > 0:
            copy(out, text + at, b, starts[k], lengths[k])
            at += lengths[k]
        out32[offsets + k + 1] = at
        if bitmap >= 0:
            if k & 7 == 0:
                out[bitmap + (k >> 3)] = 0
            if lengths[k] >= 0:
                out[bitmap + (k >> 3)] |= 1 << (k & 7)
    return 0


def fill(
    b: cython.const[cython.uchar][::1],
    fields: cython.longlong[:, ::1],
    spans: cython.longlong[:, ::1],
    nodes: cython.longlong[:, ::1],
    buffers: cython.longlong[:, ::1],
    base: cython.Py_ssize_t,
    out: cython.uchar[::1],
    out32: cython.int[::1],
    out64: cython.longlong[::1],
):
    """Write the body that `measure` has laid out, from byte `base` of the output on, a multiple of eight.

    out, out32, out64: the same bytes. Positions of records are those of `fields`.
    """
    n: cython.Py_ssize_t = fields.shape[1]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t
    item: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t
    column: cython.Py_ssize_t
    field: cython.Py_ssize_t
    start: cython.Py_ssize_t
    offsets: cython.Py_ssize_t
    text: cython.Py_ssize_t
    if fields.shape[0] < 19 or spans.shape[0] < 11 or nodes.shape[0] < 24 or buffers.shape[0] < 57:
        raise ValueError("arrays are too small")
    if base + buffers[56, 0] + buffers[56, 1] > out.shape[0] or out32.shape[0] < out.shape[0] // 4 or out64.shape[0] < out.shape[0] // 8:
        raise ValueError("the output is too small")
    with cython.nogil:
        texts(b, fields[15], fields[16], n, (base + buffers[1, 0]) // 4, base + buffers[2, 0], -1, out, out32)
        texts(b, fields[13], fields[14], n, (base + buffers[23, 0]) // 4, base + buffers[24, 0], -1, out, out32)
        at = base + buffers[11, 0] if nodes[5, 1] else -1
        texts(b, spans[0], spans[1], n, (base + buffers[12, 0]) // 4, base + buffers[13, 0], at, out, out32)
        at = base + buffers[19, 0] if nodes[8, 1] else -1
        texts(b, spans[4], spans[5], n, (base + buffers[20, 0]) // 4, base + buffers[21, 0], at, out, out32)
        texts(b, spans[6], spans[7], nodes[22, 0], (base + buffers[52, 0]) // 4, base + buffers[53, 0], -1, out, out32)
        texts(b, spans[8], spans[9], nodes[23, 0], (base + buffers[55, 0]) // 4, base + buffers[56, 0], -1, out, out32)
        # 32-bit columns: queue id, size, body CRC, flag, system flag, reconsume times
        for column in range(6):
            field = 2 if column == 0 else 0 if column == 1 else 1 if column == 2 else 3 if column == 3 else 6 if column == 4 else 11
            at = (base + buffers[4 if column == 0 else 10 if column == 1 else 22 + 2 * column, 0]) // 4
            for k in range(n):
                out32[at + k] = fields[field, k]
        # 64-bit columns: queue offset, physical offset, prepared transaction offset, then the times
        for column in range(5):
            field = 4 if column == 0 else 5 if column == 1 else 12 if column == 2 else 7 if column == 3 else 9
            start = 6 if column == 0 else 8 if column == 1 else 34 if column == 2 else 36 if column == 3 else 41
            at = (base + buffers[start, 0]) // 8
            for k in range(n):
                out64[at + k] = fields[field, k] * 1000 if column > 2 else fields[field, k]
        # keys
        offsets = (base + buffers[15, 0]) // 4
        start = (base + buffers[17, 0]) // 4
        text = base + buffers[18, 0]
        at = 0
        out32[offsets] = 0
        out32[start] = 0
        for k in range(n):
            if nodes[6, 1]:
                j = base + buffers[14, 0] + (k >> 3)
                if k & 7 == 0:
                    out[j] = 0
                if spans[3, k] >= 0:
                    out[j] |= 1 << (k & 7)
            if spans[3, k] >= 0:
                i = spans[2, k]
                stop = i + spans[3, k]
                while i <= stop:
                    j = find(b, i, stop, 32)
                    copy(out, text + at, b, i, j - i)
                    at += j - i
                    item += 1
                    out32[start + item] = at
                    i = j + 1
            out32[offsets + k + 1] = item
        # hosts
        for column in range(2):
            offsets = (base + buffers[38 if column == 0 else 43, 0]) // 4
            text = base + buffers[39 if column == 0 else 44, 0]
            field = 8 if column == 0 else 10
            at = text
            out32[offsets] = 0
            for k in range(n):
                i = fields[field, k]
                for j in range(4):
                    at = decimal(out, at, u8(b, i + j))
                    out[at] = 46 if j < 3 else 58
                    at += 1
                at = decimal(out, at, i32(b, i + 4))
                out32[offsets + k + 1] = at - text
        # message ids: store host, physical offset
        offsets = (base + buffers[46, 0]) // 4
        text = base + buffers[47, 0]
        out32[offsets] = 0
        for k in range(n):
            at = digits(out, text + 32 * k, b, fields[10, k], 8)
            digits(out, at, b, fields[8, k] - 20, 8)
            out32[offsets + k + 1] = 32 * (k + 1)
        offsets = (base + buffers[49, 0]) // 4
        out32[offsets] = 0
        for k in range(n):
            out32[offsets + k + 1] = spans[10, k]
