"""Stored messages parsed in place: spans of exchange, routing keys, properties and body of many stored terms at once.

`fields` reads the shape that brokers up to 3.12 store (basic_message with its encoded properties), `logged_fields` the messages in the log
of a quorum queue, of all versions, as clients of AMQP 0-9-1 sent them. Any other term gets the status SLOW and is left to
`mqstore.rabbitmq.message.message_term.read_message`, which defines both. `listed` turns routing keys and body frames into spans,
`properties` the property blocks; `tables` says which of their header tables can be read.

>>> import numpy as np
>>> name = bytes.fromhex("6804 640008") + b"resource" + bytes.fromhex("6d00000001 2f 640008") + b"exchange" + bytes.fromhex("6d00000000")
>>> content = bytes.fromhex("6806 640007") + b"content" + bytes.fromhex("613c 640004") + b"none" + bytes.fromhex("6d00000003 100002 640019")
>>> content += b"rabbit_framing_amqp_0_9_1" + bytes.fromhex("6c00000001 6d00000002 6869 6a")
>>> term = bytes.fromhex("836806 64000d") + b"basic_message" + name + bytes.fromhex("6c00000001 6d00000001 71 6a") + content
>>> term += bytes.fromhex("6d00000010") + bytes(16) + bytes.fromhex("640004") + b"true"
>>> rows = np.zeros((1, FIELD_COUNT), np.int64)
>>> b = np.frombuffer(term, np.uint8)
>>> fields(b, np.array([0]), np.array([len(term)]), rows)
0
>>> starts, lengths = np.zeros((2, 1), np.int64)
>>> listed(b, rows[:, PAYLOAD_START].copy(), rows[:, PAYLOAD_COUNT].copy(), True, starts, lengths)
1
>>> term[starts[0] : starts[0] + lengths[0]], int(rows[0, PERSISTENT])
(b'hi', 1)
"""

import cython
import numpy as np

# where each name is, and its size, is in `term_layout`
_NAMES = b"basic_messageresourceexchangecontentnonerabbit_framing_amqp_0_9_1truefalse$usrenqueueemcmc_amqplrequeue"
NAMES = np.frombuffer(_NAMES, np.uint8)

# names of annotations as numbers: how many letters, then the letters
KEY_X = cython.declare(cython.longlong, 0x1000000000078)  # x
KEY_RK = cython.declare(cython.longlong, 0x200000000726B)  # rk
KEY_ID = cython.declare(cython.longlong, 0x2000000006964)  # id
KEY_D = cython.declare(cython.longlong, 0x1000000000064)  # d
KEY_RTS = cython.declare(cython.longlong, 0x3000000727473)  # rts
KEY_DEATHS = cython.declare(cython.longlong, 0x6646561746873)  # deaths


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def atom(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the position after the atom at p if its name is the n bytes at `at` of names, else -1. A p of -1 is passed on."""
    if p < 0 or limit - p < n + SMALL_ATOM_HEADER:
        return -1
    if u8(b, p) == ATOM or u8(b, p) == ATOM_UTF8:
        if limit - p < n + ATOM_HEADER or u16(b, p + 1) != n:
            return -1
        p += ATOM_HEADER
    elif (u8(b, p) == SMALL_ATOM_UTF8 or u8(b, p) == SMALL_ATOM) and u8(b, p + 1) == n:
        p += SMALL_ATOM_HEADER
    else:
        return -1
    return p + n if same(b, p, names, at, n) else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def octets(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the length of the binary at p, or -1 if it is not a complete binary. Its bytes start at p + BINARY_HEADER."""
    n: cython.longlong
    if p < 0 or limit - p < BINARY_HEADER or u8(b, p) != BINARY:
        return -1
    n = i32(b, p + 1)
    # a negative length is one of 2 GiB and more
    return n if n >= 0 and n <= limit - p - BINARY_HEADER else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def binaries(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    k: cython.Py_ssize_t,
    column: cython.int,
) -> cython.Py_ssize_t:
    """Return the position after the list of binaries at p, or -1. Sets its start, its count, and for the body the total length."""
    n: cython.longlong
    count: cython.longlong
    j: cython.longlong
    total: cython.longlong = 0
    if p < 0 or limit - p < 1:
        return -1
    out[k, column] = p
    out[k, column + 1] = 0
    if u8(b, p) == NIL:
        p += 1
    else:
        if limit - p < LIST_HEADER or u8(b, p) != LIST:
            return -1
        count = i32(b, p + 1)
        p += LIST_HEADER
        if count < 1 or count > (limit - p) // BINARY_HEADER:
            return -1
        out[k, column] = p
        out[k, column + 1] = count
        for j in range(count):
            n = octets(b, p, limit)
            if n < 0:
                return -1
            p += BINARY_HEADER + n
            total += n
        if limit - p < 1 or u8(b, p) != NIL:
            return -1
        p += 1
    if column == PAYLOAD_START:
        out[k, BODY_LENGTH] = total
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def binary(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    k: cython.Py_ssize_t,
    column: cython.int,
) -> cython.Py_ssize_t:
    """Return the position after the binary at p, or -1. Sets start and length of its bytes."""
    n: cython.Py_ssize_t = octets(b, p, limit)
    if n < 0:
        return -1
    out[k, column] = p + BINARY_HEADER
    out[k, column + 1] = n
    return p + BINARY_HEADER + n


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def after(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position after the term at p, or -1. A p of -1 is passed on."""
    return max(skip(b, p, limit), -1) if p >= 0 else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def content(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
    out: cython.longlong[:, ::1],
    k: cython.Py_ssize_t,
    decoded: cython.bint,
) -> cython.Py_ssize_t:
    """Return the position after the content at p, or -1. decoded: beside the property block may be decoded properties, of any kind."""
    p = atom(b, tuple_of(b, p, limit, CONTENT_ARITY), limit, names, CONTENT, CONTENT_SIZE)
    if p < 0 or limit - p < 2 or u8(b, p) != SMALL_INTEGER or u8(b, p + 1) != BASIC_CLASS:
        return -1
    p = after(b, p + 2, limit) if decoded else atom(b, p + 2, limit, names, NONE, NONE_SIZE)
    p = binary(b, p, limit, out, k, PROPERTIES_START)
    return binaries(b, atom(b, p, limit, names, FRAMING, FRAMING_SIZE), limit, out, k, PAYLOAD_START)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def message(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
    out: cython.longlong[:, ::1],
    k: cython.Py_ssize_t,
    logged: cython.bint,
) -> cython.Py_ssize_t:
    """Store the fields of the basic_message at p in row k. Return the position after it, or -1 if it has another shape.

    logged: it is in a log: without an id, and its decoded properties may be beside the block.
    """
    n: cython.Py_ssize_t
    q: cython.Py_ssize_t
    p = atom(b, tuple_of(b, p, limit, MESSAGE_ARITY), limit, names, BASIC_MESSAGE, BASIC_MESSAGE_SIZE)
    p = atom(b, tuple_of(b, p, limit, RESOURCE_ARITY), limit, names, RESOURCE, RESOURCE_SIZE)
    p = binary(b, p, limit, out, k, VHOST_START)
    p = binary(b, atom(b, p, limit, names, EXCHANGE, EXCHANGE_SIZE), limit, out, k, EXCHANGE_START)
    p = binaries(b, p, limit, out, k, KEYS_START)
    p = content(b, p, limit, names, out, k, logged)
    n = octets(b, p, limit)
    if n != ID_SIZE and (n != 0 or not logged):
        return -1
    p += BINARY_HEADER
    out[k, ID_START] = p
    p += n
    q = atom(b, p, limit, names, TRUE, TRUE_SIZE)
    out[k, PERSISTENT] = q >= 0
    return q if q >= 0 else atom(b, p, limit, names, FALSE, FALSE_SIZE)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def key_at(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.longlong:
    """Return the number of the name at p, which is an atom or a binary; 0 for one of more than KEY_LETTERS; -1 for any other term."""
    n: cython.Py_ssize_t = octets(b, p, limit)
    j: cython.Py_ssize_t
    value: cython.longlong
    if n >= 0:
        p += BINARY_HEADER
    else:
        n = skip_atom(b, p, limit)
        p = atom_text(b, p, limit)
        if p < 0:
            return -1
        n -= p
    if n > KEY_LETTERS:
        return 0
    value = n
    for j in range(KEY_LETTERS):
        value = value << 8
        if j >= KEY_LETTERS - n:
            value = value | u8(b, p)
            p += 1
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def annotations(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
    out: cython.longlong[:, ::1],
    k: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Store the fields that the annotations at p state, the last one of a name. Return the position after them, or -1 for another shape."""
    n: cython.longlong
    size: cython.Py_ssize_t
    name: cython.longlong
    found: cython.int = 0
    if p < 0 or limit - p < LIST_HEADER or u8(b, p) != MAP:
        return -1
    out[k, ANNOTATIONS_START] = p
    n = u32(b, p + 1)
    p += LIST_HEADER
    out[k, VHOST_START] = out[k, VHOST_LENGTH] = out[k, ID_START] = 0
    out[k, PERSISTENT] = True
    while n > 0 and p >= 0:
        n -= 1
        name = key_at(b, p, limit)
        p = after(b, p, limit)
        if name == KEY_X:
            p = binary(b, p, limit, out, k, EXCHANGE_START)
            found |= HAS_EXCHANGE
        elif name == KEY_RK:
            p = binaries(b, p, limit, out, k, KEYS_START)
            found |= HAS_KEYS
        elif name == KEY_ID:
            size = octets(b, p, limit)
            p = p + BINARY_HEADER + size if size == 0 or size == ID_SIZE else -1
        elif name == KEY_D:
            out[k, PERSISTENT] = atom(b, p, limit, names, FALSE, FALSE_SIZE) < 0
            p = after(b, p, limit)
        elif name < 0:
            return -1
        else:
            if name == KEY_DEATHS:
                out[k, NOTED] = DECIDES | UNPROVED
            elif name != KEY_RTS:
                out[k, NOTED] |= DECIDES
            p = after(b, p, limit)
    return p if found == HAS_EXCHANGE | HAS_KEYS else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def entry(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
    out: cython.longlong[:, ::1],
    k: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Store the fields of the message in the log entry in [p, limit). Return the position after it, or -1 if it has another shape."""
    q: cython.Py_ssize_t
    if limit - p < 1 or u8(b, p) != VERSION or decodable(b, p + 1, limit) != limit:
        return -1
    p = after(b, atom(b, tuple_of(b, p + 1, limit, ENTRY_ARITY), limit, names, USR, USR_SIZE), limit)
    q = atom(b, tuple_of(b, p, limit, REQUEUE_ARITY), limit, names, REQUEUE, REQUEUE_SIZE)
    if q >= 0:  # consumer, message id, index and header come first
        q = after(b, after(b, after(b, q, limit), limit), limit)
    else:
        p = tuple_of(b, p, limit, PUBLISH_ARITY)
        q = atom(b, p, limit, names, E, E_SIZE)
        if q < 0:  # its process comes first
            q = after(b, atom(b, p, limit, names, ENQUEUE, ENQUEUE_SIZE), limit)
    p = after(b, q, limit)
    q = atom(b, tuple_of(b, p, limit, CONTAINER_ARITY), limit, names, MC, MC_SIZE)
    if q < 0:
        return message(b, p, limit, names, out, k, True)
    q = content(b, atom(b, q, limit, names, MC_AMQPL, MC_AMQPL_SIZE), limit, names, out, k, True)
    return annotations(b, q, limit, names, out, k)


@cython.cfunc
def parse(
    b: cython.const[cython.uchar][::1],
    start: cython.longlong[:],
    length: cython.longlong[:],
    out: cython.longlong[:, ::1],
    logged: cython.bint,
) -> cython.Py_ssize_t:
    k: cython.Py_ssize_t
    j: cython.int
    p: cython.Py_ssize_t
    limit: cython.Py_ssize_t
    n: cython.Py_ssize_t = start.shape[0]
    size: cython.Py_ssize_t = b.shape[0]
    slow: cython.Py_ssize_t = 0
    names: cython.const[cython.uchar][::1] = NAMES
    if length.shape[0] < n or out.shape[0] < n or out.shape[1] != FIELD_COUNT:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            p = start[k]
            out[k, STATUS] = FAST
            out[k, END] = -1
            out[k, ANNOTATIONS_START] = out[k, NOTED] = 0
            if length[k] > 0 and not outside(p, length[k], size):
                limit = p + length[k]
                if logged:
                    out[k, END] = entry(b, p, limit, names, out, k)
                elif u8(b, p) == VERSION:
                    out[k, END] = message(b, p + 1, limit, names, out, k, False)
            if out[k, END] < 0:
                out[k, STATUS] = SLOW
                slow += 1
                for j in range(STATUS + 1, FIELD_COUNT):
                    out[k, j] = 0
    return slow


def fields(
    b: cython.const[cython.uchar][::1],
    start: cython.longlong[:],
    length: cython.longlong[:],
    out: cython.longlong[:, ::1],
):
    """Parse the terms in `length` bytes at `start`, one row of `out` each. Return how many are SLOW.

    The row of a SLOW term holds nothing else. Bytes after a term are ignored.
    """
    return parse(b, start, length, out, False)


def logged_fields(
    b: cython.const[cython.uchar][::1],
    start: cython.longlong[:],
    length: cython.longlong[:],
    out: cython.longlong[:, ::1],
):
    """Parse the messages in entries of a quorum queue's log as `fields` does terms; a container has no vhost, but annotations.

    Where a row is FAST, the decoder reads the whole entry, and the message in it; of its property block nothing is said. NOTED says
    whether other annotations than those of the fields may decide what is delivered, and whether they may be unreadable.
    """
    return parse(b, start, length, out, True)


def listed(
    b: cython.const[cython.uchar][::1],
    start: cython.longlong[:],
    count: cython.longlong[:],
    backwards: cython.bint,
    starts: cython.longlong[:],
    lengths: cython.longlong[:],
):
    """Store the spans of the binaries of lists that `fields` found, row by row, and within each list in reverse, as body frames are.

    Return their number. `starts` and `lengths` have room for the sum of the counts.
    """
    k: cython.Py_ssize_t
    j: cython.longlong
    p: cython.longlong
    n: cython.longlong
    to: cython.Py_ssize_t
    done: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = b.shape[0]
    room: cython.Py_ssize_t = min(starts.shape[0], lengths.shape[0])
    if count.shape[0] < start.shape[0]:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(start.shape[0]):
            p = start[k]
            if count[k] <= 0 or count[k] > room - done:
                if count[k] <= 0:
                    continue
                break
            for j in range(count[k]):
                n = octets(b, p, size)
                if n < 0:
                    n = 0
                to = done + (count[k] - 1 - j if backwards else j)
                starts[to] = p + BINARY_HEADER
                lengths[to] = n
                p += BINARY_HEADER + n
            done += count[k]
    return int(done)


def properties(
    b: cython.const[cython.uchar][::1],
    start: cython.longlong[:],
    length: cython.longlong[:],
    out: cython.longlong[:, ::1],
):
    """Parse property blocks, one row of `out` each: status, then for each property start (or number) and length (or -1).

    The header table is the span of its fields, after its length. Return how many blocks are SLOW: not valid here.
    """
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    limit: cython.Py_ssize_t
    n: cython.longlong
    flags: cython.int
    j: cython.int
    size: cython.Py_ssize_t = b.shape[0]
    slow: cython.Py_ssize_t = 0
    if length.shape[0] < start.shape[0] or out.shape[0] < start.shape[0] or out.shape[1] != PROPERTY_COLUMNS:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(start.shape[0]):
            for j in range(PROPERTY_COUNT):
                out[k, PROPERTY_START + 2 * j] = 0
                out[k, PROPERTY_LENGTH + 2 * j] = -1
            out[k, STATUS] = SLOW
            p = start[k]
            if length[k] < PROPERTY_FLAGS_SIZE or outside(p, length[k], size):
                slow += 1
                continue
            limit = p + length[k]
            flags = u16(b, p)
            p += PROPERTY_FLAGS_SIZE
            # basic properties never have a second word of flags
            if flags & MORE_FLAGS:
                p = -1
            for j in range(PROPERTY_COUNT):
                if p < 0 or not flags & (FIRST_PROPERTY >> j):
                    continue
                if j == HEADERS:
                    n = i32(b, p) if limit - p >= 4 else -1
                    p += 4
                elif j == DELIVERY_MODE or j == PRIORITY:
                    n = 1
                elif j == TIMESTAMP:
                    n = 8
                else:
                    n = u8(b, p) if limit - p >= 1 else -1
                    p += 1
                if n < 0 or n > limit - p:
                    p = -1
                    continue
                out[k, PROPERTY_LENGTH + 2 * j] = n
                if j == DELIVERY_MODE or j == PRIORITY:
                    out[k, PROPERTY_START + 2 * j] = u8(b, p)
                elif j == TIMESTAMP:
                    out[k, PROPERTY_START + 2 * j] = i64(b, p)
                    # only the decoder handles values of 2^63 and more
                    if i64(b, p) < 0:
                        p = -1
                        continue
                else:
                    out[k, PROPERTY_START + 2 * j] = p
                p += n
            if p == limit:
                out[k, STATUS] = FAST
            else:
                slow += 1
    return slow


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def table(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t, named: cython.bint, depth: cython.int
) -> cython.bint:
    """Return whether [p, end) has the fields of a header table (named) or of an array, and nothing else. depth: how many may nest."""
    n: cython.longlong
    kind: cython.int
    while p < end:
        if named:
            p += 1 + u8(b, p)
            if p >= end:
                return False
        kind = u8(b, p)
        p += 1
        if kind == VOID:
            n = 0
        elif kind == BOOL or kind == BYTE or kind == UNSIGNED_BYTE:
            n = 1
        elif kind == SHORT or kind == UNSIGNED_SHORT:
            n = 2
        elif kind == SIGNED_INT or kind == UNSIGNED_INT or kind == SINGLE:
            n = 4
        elif kind == DECIMAL:
            n = DECIMAL_SIZE
        elif kind == LONG or kind == SAME_LONG or kind == DOUBLE or kind == MOMENT:
            n = 8
        elif kind == LONGSTR or kind == OCTETS or kind == TABLE or kind == ARRAY:
            if end - p < FIELD_LENGTH:
                return False
            n = u32(b, p)
            p += FIELD_LENGTH
        else:
            return False
        if n > end - p:
            return False
        if (kind == TABLE or kind == ARRAY) and (depth <= 1 or not table(b, p, p + n, kind == TABLE, depth - 1)):
            return False
        p += n
    return True


def tables(b: cython.const[cython.uchar][::1], start: cython.longlong[:], length: cython.longlong[:], out: cython.uchar[:]):
    """Store for each header table, the span of its fields, whether the reader of property blocks reads it with certainty.

    Where the length is negative there is none: 1.
    """
    k: cython.Py_ssize_t
    size: cython.Py_ssize_t = b.shape[0]
    if length.shape[0] < start.shape[0] or out.shape[0] < start.shape[0]:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(start.shape[0]):
            if length[k] < 0:
                out[k] = True
            elif length[k] > MOST_TABLE_BYTES or outside(start[k], length[k], size):
                out[k] = False
            else:
                out[k] = table(b, start[k], start[k] + length[k], True, MOST_TABLES)
