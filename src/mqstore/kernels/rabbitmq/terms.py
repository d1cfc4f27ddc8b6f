"""Stored message terms of RabbitMQ, examined without creating objects: where a term ends, whether a message has the expected id.

`end` walks one term of the External Term Format, whatever it nests, with a count in place of a stack. `shape` returns for
a stored message whether it is a term, whether the id inside equals the id beside it, and its persistent flag.
(docs/formats: shared specification of RabbitMQ stores, sections 9 and 10.)
"""

import cython

if not cython.compiled:
    from mqstore.kernels.common.loads import i32, i64, u8

# bits of a shape
TERM = 1  # one complete term
MESSAGE = 2  # a basic_message or an mc tuple
SAME_ID = 4  # its id is the one asked for
PERSISTENT = 8  # its persistent flag is set
PACKED = 16  # compressed: only the decoder can read it
CONTAINER = 32  # an mc tuple: only the decoder can determine whether it is persistent


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def unsigned32(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    """Return the unsigned 32-bit number at p."""
    return (cython.cast(cython.longlong, u8(b, p)) << 24) | (u8(b, p + 1) << 16) | (u8(b, p + 2) << 8) | u8(b, p + 3)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def skip(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position after the term (without its 131) at p, or -1 - (the position where it is not a term).

    Reads nothing at or after limit; takes no more steps than bytes.
    """
    todo: cython.longlong = 1
    q: cython.Py_ssize_t
    n: cython.longlong
    fixed: cython.longlong
    tag: cython.int
    while todo > 0:
        if p >= limit:
            return -1 - p
        # every outstanding term takes at least a byte
        if todo > limit - p:
            return -1 - p
        todo -= 1
        tag = u8(b, p)
        p += 1
        fixed = 0
        n = 0
        if tag == 97:
            fixed = 1
        elif tag == 98:
            fixed = 4
        elif tag == 70:
            fixed = 8
        elif tag == 99:
            fixed = 31
        elif tag == 106:
            fixed = 0
        elif tag == 100 or tag == 118 or tag == 107:
            if limit - p < 2:
                return -1 - p
            fixed = 2 + ((u8(b, p) << 8) | u8(b, p + 1))
        elif tag == 115 or tag == 119:
            if limit - p < 1:
                return -1 - p
            fixed = 1 + u8(b, p)
        elif tag == 109:
            if limit - p < 4:
                return -1 - p
            fixed = 4 + unsigned32(b, p)
        elif tag == 77:
            if limit - p < 5:
                return -1 - p
            fixed = 5 + unsigned32(b, p)
        elif tag == 110:
            if limit - p < 2:
                return -1 - p
            fixed = 2 + u8(b, p)
        elif tag == 111:
            if limit - p < 5:
                return -1 - p
            fixed = 5 + unsigned32(b, p)
        elif tag == 104:
            if limit - p < 1:
                return -1 - p
            fixed = 1
            todo += u8(b, p)
        elif tag == 105:
            if limit - p < 4:
                return -1 - p
            fixed = 4
            todo += unsigned32(b, p)
        elif tag == 108:
            if limit - p < 4:
                return -1 - p
            fixed = 4
            todo += unsigned32(b, p) + 1
        elif tag == 116:
            if limit - p < 4:
                return -1 - p
            fixed = 4
            todo += 2 * unsigned32(b, p)
        elif tag == 103 or tag == 89:
            q = skip_atom(b, p, limit)
            if q < 0:
                return -1 - p
            p = q
            fixed = 9 if tag == 103 else 8
        elif tag == 88 or tag == 120 or tag == 102:
            q = skip_atom(b, p, limit)
            if q < 0:
                return -1 - p
            p = q
            fixed = 5 if tag == 102 else 12
        elif tag == 90 or tag == 114:
            if limit - p < 2:
                return -1 - p
            n = (u8(b, p) << 8) | u8(b, p + 1)
            q = skip_atom(b, p + 2, limit)
            if q < 0:
                return -1 - p
            p = q
            fixed = 4 * n + (4 if tag == 90 else 1)
        elif tag == 113:
            todo += 3
        else:
            return -1 - p
        if fixed > limit - p:
            return -1 - p
        p += fixed
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def skip_atom(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position after the atom at p, or -1."""
    n: cython.Py_ssize_t
    if limit - p < 3:
        return -1
    if u8(b, p) == 100 or u8(b, p) == 118:
        n = 3 + ((u8(b, p + 1) << 8) | u8(b, p + 2))
    elif u8(b, p) == 115 or u8(b, p) == 119:
        n = 2 + u8(b, p + 1)
    else:
        return -1
    return p + n if n <= limit - p else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def atom_text(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return where the text of the atom at p starts, or -1. It ends at `skip_atom`."""
    if skip_atom(b, p, limit) < 0:
        return -1
    return p + 3 if u8(b, p) == 100 or u8(b, p) == 118 else p + 2


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_basic_message(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.bint:
    """Return whether the 13 bytes at p are `basic_message`."""
    return i32(b, p) == 1650553705 and i32(b, p + 4) == 1667198309 and i32(b, p + 8) == 1936941415 and u8(b, p + 12) == 101


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_id(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t, hi: cython.longlong, lo: cython.longlong
) -> cython.bint:
    """Return whether there is a 16-byte binary with these bytes at p."""
    return limit - p >= 21 and u8(b, p) == 109 and i32(b, p + 1) == 16 and i64(b, p + 5) == hi and i64(b, p + 13) == lo


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def shape_at(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t, hi: cython.longlong, lo: cython.longlong
) -> cython.int:
    """Return the shape bits of the bytes in [p, limit)."""
    q: cython.Py_ssize_t
    r: cython.Py_ssize_t
    k: cython.int
    arity: cython.int
    found: cython.int = 0
    if limit - p < 2 or u8(b, p) != 131:
        return 0
    if u8(b, p + 1) == 80:
        return 16
    if limit - p < 4 or u8(b, p + 1) != 104:
        return 1 if skip(b, p + 1, limit) >= 0 else 0
    arity = u8(b, p + 2)
    q = p + 3
    r = atom_text(b, q, limit)
    if r < 0 or not (
        (arity == 6 and skip_atom(b, q, limit) - r == 13 and is_basic_message(b, r))
        or (arity == 4 and skip_atom(b, q, limit) - r == 2 and u8(b, r) == 109 and u8(b, r + 1) == 99)
    ):
        return 1 if skip(b, p + 1, limit) >= 0 else 0
    q = skip_atom(b, q, limit)
    for k in range(3 if arity == 6 else 2):
        q = skip(b, q, limit)
        if q < 0:
            return 0
    if arity == 6:
        r = skip(b, q, limit)
        if r < 0:
            return 0
        if is_id(b, q, limit, hi, lo):
            found = 4
        q = skip_atom(b, r, limit)
        if q < 0:
            return 1 if skip(b, r, limit) >= 0 else 0
        r = atom_text(b, r, limit)
        if q - r == 4 and i32(b, r) == 1953658213:
            found |= 8
        return 3 | found
    r = skip(b, q, limit)
    if r < 0:
        return 0
    while q < r:
        if is_id(b, q, r, hi, lo):
            found = 4
            break
        q += 1
    return 35 | found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def message_end(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    hi: cython.longlong,
    lo: cython.longlong,
    any_id: cython.bint,
) -> cython.Py_ssize_t:
    """Return the position after the stored message at p with the id (hi, lo), or any_id; else -1 - (how far it was read)."""
    q: cython.Py_ssize_t
    r: cython.Py_ssize_t
    k: cython.int
    arity: cython.int
    if limit - p < 4 or u8(b, p) != 131 or u8(b, p + 1) != 104:
        return -1 - p
    arity = u8(b, p + 2)
    q = p + 3
    r = atom_text(b, q, limit)
    if r < 0 or not (
        (arity == 6 and skip_atom(b, q, limit) - r == 13 and is_basic_message(b, r))
        or (arity == 4 and skip_atom(b, q, limit) - r == 2 and u8(b, r) == 109 and u8(b, r + 1) == 99)
    ):
        return -1 - p
    q = skip_atom(b, q, limit)
    for k in range(3 if arity == 6 else 2):
        q = skip(b, q, limit)
        if q < 0:
            return q
    r = skip(b, q, limit)
    if r < 0:
        return r
    if arity == 6:
        if not any_id and not is_id(b, q, limit, hi, lo):
            return -1 - r
        q = skip_atom(b, r, limit)
        return q if q >= 0 else -1 - r
    while not any_id and not is_id(b, q, r, hi, lo):
        q += 1
        if q >= r:
            return -1 - r
    return r


def end(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t):
    """Return the position after the external term (with its 131) that starts at p, or -1 if there is no complete term."""
    q: cython.Py_ssize_t = -1
    if p >= 0 and limit <= b.shape[0] and limit - p >= 2 and u8(b, p) == 131:
        q = skip(b, p + 1, limit)
    return q if q >= 0 else -1


def shapes(
    b: cython.const[cython.uchar][::1],
    at: cython.longlong[:],
    length: cython.longlong[:],
    hi: cython.longlong[:],
    lo: cython.longlong[:],
    out: cython.uchar[:],
):
    """Store the shape of each stored message: `length` bytes at `at`, expected to hold the id (hi, lo). Positions outside the buffer: 0."""
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = at.shape[0]
    size: cython.Py_ssize_t = b.shape[0]
    if length.shape[0] < n or hi.shape[0] < n or lo.shape[0] < n or out.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            if at[k] < 0 or length[k] < 0 or at[k] > size or length[k] > size - at[k]:
                out[k] = 0
            else:
                out[k] = shape_at(b, at[k], at[k] + length[k], hi[k], lo[k])
