"""One Arrow record batch of a handful of messages, written in two passes over their records.

A pull returns a few dozen records, for which making a column at a time costs more than the records themselves. Here
all columns of the batch come out of one call, as one Arrow IPC message: its head, which is given, and the body, one buffer behind the
other, each at a multiple of eight bytes.

    sound        which of the positions hold a record that can be believed
    written      the message; it reads the records' fields, lays out the body (`measure`) and writes it (`fill`)

Only ordinary records are taken: both hosts IPv4, the body not compressed, texts of ASCII, no property twice, keys with
single blanks between them, times that fit into microseconds. `written` answers None where one is not, and the caller makes the columns
one by one.

The columns, with the number of their first buffer (each begins with a bitmap of what is not null):

     0 topic             9 size         22 body         31 reconsume_times     40 store_timestamp
     3 queue_id         11 tags         25 body_crc     33 prepared offset     42 store_host
     5 queue_offset     14 keys         27 flag         35 born_timestamp      45 msg_id
     7 physical_offset  19 uniq_key     29 sys_flag     37 born_host           48 properties
"""

import cython
import numpy as np

if not cython.compiled:
    import sys

    from mqstore.kernels.rocketmq.frames import check
    from mqstore.kernels.common.loads import UNIQ_KEY, copy, find, i8, i16, i32, i64, prefetch, same, u8

    def announce(b, p, n):
        """Nothing to do: a hint for the processor."""

    def number(rows, k):
        return int.from_bytes(rows[8 * k : 8 * k + 8], sys.byteorder, signed=True)

    def octets_for(length):
        return np.empty(length, np.uint8)

    def st32(out, at, value):
        out[at : at + 4] = tuple(int(value).to_bytes(4, sys.byteorder, signed=True))

    def st64(out, at, value):
        out[at : at + 8] = tuple(int(value).to_bytes(8, sys.byteorder, signed=True))

    def hexadecimal(out, at, b, p):
        out[at : at + 16] = tuple(bytes(b[p : p + 8]).hex().upper().encode())

    def ascii_only(b, p, n):
        return bytes(b[p : p + n]).isascii()

    def again(out, at, start, n):
        out[at : at + n] = out[start : start + n]


BUFFERS = 57
NODES = 24
SPANS = 11  # rows of the scratch array: spans of TAGS, KEYS, UNIQ_KEY, of the name and the value of each pair; where a record's pairs end
FIELDS = 19  # rows of `frames.fields`
PAIRS = 16  # properties a record may have on average; records with more are not ordinary


class Room:
    """Scratch arrays for so many records."""

    def __init__(self, count):
        self.count = count
        self.positions = np.empty((2, count), np.int64)
        self.fields = np.empty((FIELDS, count), np.int64)
        self.spans = np.empty((SPANS, PAIRS * count), np.int64)
        self.nodes = np.empty((NODES, 2), np.int64)
        self.buffers = np.empty((BUFFERS, 2), np.int64)


class Head:
    """The head of an IPC message, and the byte positions of its numbers. rooms: scratch that is not in use."""

    def __init__(self, raw, rows, body_length, nodes, buffers):
        """raw: uint8. rows, body_length: a number each; nodes, buffers: two numbers for each."""
        if len(raw) % 8 or min(rows, body_length, nodes, buffers) < 0:
            raise ValueError("the head of a message has a multiple of eight bytes")
        if max(rows + 8, body_length + 8, nodes + 16 * NODES, buffers + 16 * BUFFERS) > len(raw):
            raise ValueError("the numbers do not lie in the head")
        self.raw = raw
        self.rows = rows
        self.body_length = body_length
        self.nodes = nodes
        self.buffers = buffers
        self.rooms = []


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.longlong, out: cython.longlong[:, ::1], k: cython.Py_ssize_t
) -> cython.bint:
    """The fields of the record at p into column k, as `frames.fields` has them; False where `frames.check` believes none."""
    size: cython.longlong = i32(b, p)
    magic: cython.longlong = i32(b, p + 4)
    wide: cython.Py_ssize_t
    sys_flag: cython.int
    born: cython.Py_ssize_t
    at: cython.Py_ssize_t
    rest: cython.longlong  # bytes of body, topic and properties
    length: cython.longlong
    if magic == -626843481:
        wide = 1
    elif magic == -626843477:
        wide = 2
    else:
        return False
    if size < 90 + wide or size > limit:
        return False
    sys_flag = i32(b, p + 36)
    born = 20 if sys_flag & 16 else 8
    at = p + 56 + born + (20 if sys_flag & 32 else 8)
    rest = size - (at - p) - 18 - wide
    if rest < 0:
        return False
    out[0, k] = size
    out[1, k] = i32(b, p + 8)
    out[2, k] = i32(b, p + 12)
    out[3, k] = i32(b, p + 16)
    out[4, k] = i64(b, p + 20)
    out[5, k] = i64(b, p + 28)
    out[6, k] = sys_flag
    out[7, k] = i64(b, p + 40)
    out[8, k] = p + 48
    out[9, k] = i64(b, p + 48 + born)
    out[10, k] = p + 56 + born
    out[11, k] = i32(b, at)
    out[12, k] = i64(b, at + 4)
    length = i32(b, at + 12)
    if length < 0:
        length = 0
    rest -= length
    if rest < 0:
        return False
    at += 16
    announce(b, at, length)  # it is copied much later
    out[13, k] = at
    out[14, k] = length
    at += length
    length = i8(b, at) if wide == 1 else i16(b, at)
    rest -= length
    if length < 0 or rest < 0:
        return False
    at += wide
    out[15, k] = at
    out[16, k] = length
    at += length
    length = i16(b, at)
    if length < 0:
        length = 0
    out[17, k] = at + 2
    out[18, k] = length
    return rest == length


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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def measure(
    b: cython.const[cython.uchar][::1],
    fields: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
    spans: cython.longlong[:, ::1],
    room: cython.Py_ssize_t,
    nodes: cython.longlong[:, ::1],
    buffers: cython.longlong[:, ::1],
) -> cython.longlong:
    """Lay out the body of a batch of n records; return its bytes, -1 if a record is not ordinary.

    spans: scratch with room for so many pairs. nodes: filled with rows and nulls of each column. buffers: filled with begin and length
    of each buffer.
    """
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
    for k in range(n):
        if fields[6, k] & 0x31 or fields[7, k] > most or fields[7, k] < -most or fields[9, k] > most or fields[9, k] < -most:
            ordinary = False
            break
        topics += fields[16, k]
        bodies += fields[14, k]
        i = fields[17, k]
        stop = i + fields[18, k]
        if not ascii_only(b, fields[15, k], fields[16, k]) or not ascii_only(b, i, stop - i):
            ordinary = False
            break
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
    if not ordinary or topics + bodies + names + values >= 2000000000:
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
    rest: cython.uint
    stop: cython.Py_ssize_t
    k: cython.Py_ssize_t
    if value < 0:
        out[at] = 45
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
        out[k] = 48 + rest % 10
        rest = rest // 10
    return stop


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
) -> cython.int:
    """Write spans as a column of texts; a negative length is null. bitmap: -1 where nothing is null."""
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
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill(
    b: cython.const[cython.uchar][::1],
    fields: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
    spans: cython.longlong[:, ::1],
    nodes: cython.longlong[:, ::1],
    buffers: cython.longlong[:, ::1],
    base: cython.Py_ssize_t,
    out: cython.uchar[::1],
) -> cython.int:
    """Write the body that `measure` has laid out, from byte `base` of the output on, a multiple of eight."""
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
    first: cython.Py_ssize_t
    length: cython.Py_ssize_t
    host: cython.longlong
    texts(b, fields[15], fields[16], n, base + buffers[1, 0], base + buffers[2, 0], -1, out)
    texts(b, fields[13], fields[14], n, base + buffers[23, 0], base + buffers[24, 0], -1, out)
    at = base + buffers[11, 0] if nodes[5, 1] else -1
    texts(b, spans[0], spans[1], n, base + buffers[12, 0], base + buffers[13, 0], at, out)
    at = base + buffers[19, 0] if nodes[8, 1] else -1
    texts(b, spans[4], spans[5], n, base + buffers[20, 0], base + buffers[21, 0], at, out)
    texts(b, spans[6], spans[7], nodes[22, 0], base + buffers[52, 0], base + buffers[53, 0], -1, out)
    texts(b, spans[8], spans[9], nodes[23, 0], base + buffers[55, 0], base + buffers[56, 0], -1, out)
    # 32-bit columns: queue id, size, body CRC, flag, system flag, reconsume times
    for column in range(6):
        field = 2 if column == 0 else 0 if column == 1 else 1 if column == 2 else 3 if column == 3 else 6 if column == 4 else 11
        at = base + buffers[4 if column == 0 else 10 if column == 1 else 22 + 2 * column, 0]
        for k in range(n):
            st32(out, at + 4 * k, fields[field, k])
    # 64-bit columns: queue offset, physical offset, prepared transaction offset, then the times
    for column in range(5):
        field = 4 if column == 0 else 5 if column == 1 else 12 if column == 2 else 7 if column == 3 else 9
        start = 6 if column == 0 else 8 if column == 1 else 34 if column == 2 else 36 if column == 3 else 41
        at = base + buffers[start, 0]
        for k in range(n):
            st64(out, at + 8 * k, fields[field, k] * 1000 if column > 2 else fields[field, k])
    # keys
    offsets = base + buffers[15, 0]
    start = base + buffers[17, 0]
    text = base + buffers[18, 0]
    at = 0
    st32(out, offsets, 0)
    st32(out, start, 0)
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
                st32(out, start + 4 * item, at)
                i = j + 1
        st32(out, offsets + 4 * (k + 1), item)
    # hosts: most are that of the record before
    for column in range(2):
        offsets = base + buffers[38 if column == 0 else 43, 0]
        text = base + buffers[39 if column == 0 else 44, 0]
        field = 8 if column == 0 else 10
        at = text
        first = text
        length = 0
        host = 0
        st32(out, offsets, 0)
        for k in range(n):
            i = fields[field, k]
            if k > 0 and i64(b, i) == host:
                again(out, at, first, length)
                at += length
            else:
                host = i64(b, i)
                first = at
                for j in range(4):
                    at = decimal(out, at, u8(b, i + j))
                    out[at] = 46 if j < 3 else 58
                    at += 1
                at = decimal(out, at, i32(b, i + 4))
                length = at - first
            st32(out, offsets + 4 * (k + 1), at - text)
    # message ids: store host, physical offset
    offsets = base + buffers[46, 0]
    text = base + buffers[47, 0]
    st32(out, offsets, 0)
    for k in range(n):
        hexadecimal(out, text + 32 * k, b, fields[10, k])
        hexadecimal(out, text + 32 * k + 16, b, fields[8, k] - 20)
        st32(out, offsets + 4 * (k + 1), 32 * (k + 1))
    offsets = base + buffers[49, 0]
    st32(out, offsets, 0)
    for k in range(n):
        st32(out, offsets + 4 * (k + 1), spans[10, k])
    return 0


def written(b: cython.const[cython.uchar][::1], start: cython.longlong, rows: bytes, head: Head):
    """The IPC message of some records, as a buffer; None if one of them is not ordinary.

    rows: three native 64-bit numbers for each record: its queue offset, its physical offset, of which `start` is that of b, and its size.
    What is no record is left out.
    """
    count: cython.Py_ssize_t = len(rows) // 24
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    p: cython.longlong
    size: cython.longlong
    base: cython.Py_ssize_t = head.raw.shape[0]
    length: cython.longlong
    room: Room
    if head.rooms and count <= 64:
        room = head.rooms.pop()
    else:
        room = Room(count if count > 64 else 64)
    positions: cython.longlong[:, ::1] = room.positions
    fields: cython.longlong[:, ::1] = room.fields
    spans: cython.longlong[:, ::1] = room.spans
    nodes: cython.longlong[:, ::1] = room.nodes
    buffers: cython.longlong[:, ::1] = room.buffers
    for k in range(count):
        p = number(rows, 3 * k + 1) - start
        size = number(rows, 3 * k + 2)
        positions[0, k] = p
        positions[1, k] = size
    with cython.nogil:
        for k in range(count):
            p = positions[0, k]
            size = positions[1, k]
            if p >= 0 and size >= 8 and size <= b.shape[0] - p:
                prefetch(b, p)
                prefetch(b, p + 64 if size > 64 else p)
                prefetch(b, p + size - 1)
                prefetch(b, p + size - 64 if size > 64 else p)
        for k in range(count):
            p = positions[0, k]
            size = positions[1, k]
            if p >= 0 and size >= 8 and size <= b.shape[0] - p and read(b, p, size, fields, n):
                n += 1
        length = measure(b, fields, n, spans, 16 * n, nodes, buffers)
    out = None
    if length >= 0:
        out = octets_for(base + length)
        to: cython.uchar[::1] = out
        with cython.nogil:
            copy(to, 0, head.raw, 0, base)
            st64(to, head.rows, n)
            st64(to, head.body_length, length)
            for k in range(24):
                st64(to, head.nodes + 16 * k, nodes[k, 0])
                st64(to, head.nodes + 16 * k + 8, nodes[k, 1])
            for k in range(57):
                st64(to, head.buffers + 16 * k, buffers[k, 0])
                st64(to, head.buffers + 16 * k + 8, buffers[k, 1])
            fill(b, fields, n, spans, nodes, buffers, base, to)
    if room.count == 64:
        head.rooms.append(room)
    return out
