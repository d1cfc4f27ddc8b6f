"""Stored messages parsed in place: spans of exchange, routing keys, properties and body of many stored terms at once.

`fields` reads the shape that brokers up to 3.12 store (basic_message with its encoded properties). Any other term gets the status SLOW
and is left to `mqstore.rabbitmq.message.message_term.read_message`, which defines both. `listed` turns routing keys and
body frames into spans, `properties` the property blocks.

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
>>> term[starts[0] : starts[0] + lengths[0]], rows[0, PERSISTENT]
(b'hi', np.int64(1))
"""

import cython
import numpy as np

if not cython.compiled:
    from mqstore.kernels.common.loads import i32, i64, same, u8

# status
FAST = 0  # every field is set
SLOW = 1  # another shape, or damage: left to the decoder

# fields; spans count from the buffer's first byte
STATUS = 0
END = 1  # position after the term
VHOST_START = 2
VHOST_LENGTH = 3
EXCHANGE_START = 4
EXCHANGE_LENGTH = 5
KEYS_START = 6  # of the first routing key's binary, tag included; the others follow without a gap
KEYS_COUNT = 7
PROPERTIES_START = 8
PROPERTIES_LENGTH = 9
PAYLOAD_START = 10  # of the first binary of the list, which is the last of the body
PAYLOAD_COUNT = 11
BODY_LENGTH = 12
ID_START = 13
PERSISTENT = 14
FIELD_COUNT = 15

# columns of `properties`: 1 + 2k is where property k starts, or the number itself; 2 + 2k its length, -1 if it is not set
PROPERTY_COLUMNS = 29

_NAMES = b"basic_messageresourceexchangecontentnonerabbit_framing_amqp_0_9_1truefalse"
NAMES = np.frombuffer(_NAMES, np.uint8)


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
    if p < 0 or limit - p < n + 2:
        return -1
    if u8(b, p) == 100 or u8(b, p) == 118:
        if limit - p < n + 3 or u8(b, p + 1) != 0 or u8(b, p + 2) != n:
            return -1
        p += 3
    elif (u8(b, p) == 119 or u8(b, p) == 115) and u8(b, p + 1) == n:
        p += 2
    else:
        return -1
    return p + n if same(b, p, names, at, n) else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def octets(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the length of the binary at p, or -1 if it is not a complete binary. Its bytes start at p + 5."""
    n: cython.longlong
    if p < 0 or limit - p < 5 or u8(b, p) != 109:
        return -1
    n = i32(b, p + 1)
    # a negative length is one of 2 GiB and more
    return n if n >= 0 and n <= limit - p - 5 else -1


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
    if u8(b, p) == 106:
        p += 1
    else:
        if limit - p < 5 or u8(b, p) != 108:
            return -1
        count = i32(b, p + 1)
        p += 5
        if count < 1 or count > (limit - p) // 5:
            return -1
        out[k, column] = p
        out[k, column + 1] = count
        for j in range(count):
            n = octets(b, p, limit)
            if n < 0:
                return -1
            p += 5 + n
            total += n
        if limit - p < 1 or u8(b, p) != 106:
            return -1
        p += 1
    if column == 10:
        out[k, 12] = total
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def tuple_of(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t, arity: cython.int) -> cython.Py_ssize_t:
    """Return the position of the first element of the tuple at p if it has this arity, else -1."""
    return p + 2 if p >= 0 and limit - p >= 2 and u8(b, p) == 104 and u8(b, p + 1) == arity else -1


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
) -> cython.bint:
    """Store the fields of the message whose term starts at p in row k. Return False if it has another shape."""
    n: cython.Py_ssize_t
    q: cython.Py_ssize_t
    if limit - p < 1 or u8(b, p) != 131:
        return False
    p = atom(b, tuple_of(b, p + 1, limit, 6), limit, names, 0, 13)
    p = atom(b, tuple_of(b, p, limit, 4), limit, names, 13, 8)
    n = octets(b, p, limit)
    if n < 0:
        return False
    out[k, 2] = p + 5
    out[k, 3] = n
    p = atom(b, p + 5 + n, limit, names, 21, 8)
    n = octets(b, p, limit)
    if n < 0:
        return False
    out[k, 4] = p + 5
    out[k, 5] = n
    p = binaries(b, p + 5 + n, limit, out, k, 6)
    p = atom(b, tuple_of(b, p, limit, 6), limit, names, 29, 7)
    if p < 0 or limit - p < 2 or u8(b, p) != 97 or u8(b, p + 1) != 60:
        return False
    p = atom(b, p + 2, limit, names, 36, 4)
    n = octets(b, p, limit)
    if n < 0:
        return False
    out[k, 8] = p + 5
    out[k, 9] = n
    p = binaries(b, atom(b, p + 5 + n, limit, names, 40, 25), limit, out, k, 10)
    if octets(b, p, limit) != 16:
        return False
    out[k, 13] = p + 5
    q = atom(b, p + 21, limit, names, 65, 4)
    out[k, 14] = q >= 0
    if q < 0:
        q = atom(b, p + 21, limit, names, 69, 5)
    out[k, 1] = q
    return q >= 0


def fields(
    b: cython.const[cython.uchar][::1],
    start: cython.longlong[:],
    length: cython.longlong[:],
    out: cython.longlong[:, ::1],
):
    """Parse the terms in `length` bytes at `start`, one row of `out` each. Return how many are SLOW.

    The row of a SLOW term holds nothing else. Bytes after a term are ignored.
    """
    k: cython.Py_ssize_t
    j: cython.int
    n: cython.Py_ssize_t = start.shape[0]
    size: cython.Py_ssize_t = b.shape[0]
    slow: cython.Py_ssize_t = 0
    names: cython.const[cython.uchar][::1] = NAMES
    if length.shape[0] < n or out.shape[0] < n or out.shape[1] != 15:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            out[k, 0] = 0
            if (
                start[k] < 0
                or length[k] < 0
                or start[k] > size
                or length[k] > size - start[k]
                or not message(b, start[k], start[k] + length[k], names, out, k)
            ):
                out[k, 0] = 1
                slow += 1
                for j in range(1, 15):
                    out[k, j] = 0
    return slow


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
                starts[to] = p + 5
                lengths[to] = n
                p += 5 + n
            done += count[k]
    return done


def properties(
    b: cython.const[cython.uchar][::1],
    start: cython.longlong[:],
    length: cython.longlong[:],
    out: cython.longlong[:, ::1],
):
    """Parse property blocks, one row of `out` each: status, then for each of the 14 properties start (or number) and length (or -1).

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
    if length.shape[0] < start.shape[0] or out.shape[0] < start.shape[0] or out.shape[1] != 29:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(start.shape[0]):
            for j in range(14):
                out[k, 1 + 2 * j] = 0
                out[k, 2 + 2 * j] = -1
            out[k, 0] = 1
            p = start[k]
            if p < 0 or length[k] < 2 or p > size or length[k] > size - p:
                slow += 1
                continue
            limit = p + length[k]
            flags = (u8(b, p) << 8) | u8(b, p + 1)
            p += 2
            # basic properties never have a second word of flags
            if flags & 1:
                p = -1
            for j in range(14):
                if p < 0 or not flags & (0x8000 >> j):
                    continue
                if j == 2:
                    n = i32(b, p) if limit - p >= 4 else -1
                    p += 4
                elif j == 3 or j == 4:
                    n = 1
                elif j == 9:
                    n = 8
                else:
                    n = u8(b, p) if limit - p >= 1 else -1
                    p += 1
                if n < 0 or n > limit - p:
                    p = -1
                    continue
                out[k, 2 + 2 * j] = n
                if j == 3 or j == 4:
                    out[k, 1 + 2 * j] = u8(b, p)
                elif j == 9:
                    out[k, 1 + 2 * j] = i64(b, p)
                    # only the decoder handles values of 2^63 and more
                    if i64(b, p) < 0:
                        p = -1
                        continue
                else:
                    out[k, 1 + 2 * j] = p
                p += n
            if p == limit:
                out[k, 0] = 0
            else:
                slow += 1
    return slow
