"""Stored message terms of RabbitMQ, examined without creating objects: where a term ends, whether a message has the expected id.

`end` walks one term of the External Term Format, whatever it nests, with a count in place of a stack. `shape` returns for
a stored message whether it is a term, whether the id inside equals the id beside it, and its persistent flag.
(docs/formats: shared specification of RabbitMQ stores, sections 9 and 10.)
"""

import cython


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def skip(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position after the term at p, which begins with its tag, or -1 - (the position where it is not a term).

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
        if tag == SMALL_INTEGER:
            fixed = SMALL_INTEGER_SIZE
        elif tag == INTEGER:
            fixed = INTEGER_SIZE
        elif tag == NEW_FLOAT:
            fixed = NEW_FLOAT_SIZE
        elif tag == FLOAT:
            fixed = FLOAT_SIZE
        elif tag == NIL:
            fixed = 0
        elif tag == ATOM or tag == ATOM_UTF8 or tag == STRING:
            if limit - p < LENGTH_16:
                return -1 - p
            fixed = LENGTH_16 + u16(b, p)
        elif tag == SMALL_ATOM or tag == SMALL_ATOM_UTF8:
            if limit - p < LENGTH_8:
                return -1 - p
            fixed = LENGTH_8 + u8(b, p)
        elif tag == BINARY:
            if limit - p < LENGTH_32:
                return -1 - p
            fixed = LENGTH_32 + u32(b, p)
        elif tag == BIT_BINARY or tag == LARGE_BIG:
            # the bits of the last byte, or the sign, are one more byte
            if limit - p < LENGTH_32 + 1:
                return -1 - p
            fixed = LENGTH_32 + 1 + u32(b, p)
        elif tag == SMALL_BIG:
            if limit - p < LENGTH_8 + 1:
                return -1 - p
            fixed = LENGTH_8 + 1 + u8(b, p)
        elif tag == SMALL_TUPLE:
            if limit - p < LENGTH_8:
                return -1 - p
            fixed = LENGTH_8
            todo += u8(b, p)
        elif tag == LARGE_TUPLE:
            if limit - p < LENGTH_32:
                return -1 - p
            fixed = LENGTH_32
            todo += u32(b, p)
        elif tag == LIST:
            if limit - p < LENGTH_32:
                return -1 - p
            fixed = LENGTH_32
            todo += u32(b, p) + 1
        elif tag == MAP:
            if limit - p < LENGTH_32:
                return -1 - p
            fixed = LENGTH_32
            todo += 2 * u32(b, p)
        elif tag == PID or tag == NEW_PID or tag == PORT or tag == NEW_PORT or tag == V4_PORT:
            q = skip_atom(b, p, limit)
            if q < 0:
                return -1 - p
            p = q
            if tag == PID:
                fixed = PID_SIZE
            elif tag == PORT:
                fixed = PORT_SIZE
            elif tag == NEW_PORT:
                fixed = NEW_PORT_SIZE
            else:
                fixed = NEW_PID_SIZE if tag == NEW_PID else V4_PORT_SIZE
        elif tag == NEWER_REFERENCE or tag == NEW_REFERENCE:
            if limit - p < LENGTH_16:
                return -1 - p
            n = u16(b, p)
            q = skip_atom(b, p + LENGTH_16, limit)
            if q < 0:
                return -1 - p
            p = q
            fixed = NUMBER_SIZE * n + (LONG_CREATION if tag == NEWER_REFERENCE else SHORT_CREATION)
        elif tag == EXPORT:
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
def letters_of(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position after the atom at p if its name is one for the decoder in any encoding, else -1."""
    q: cython.Py_ssize_t = atom_text(b, p, limit)
    end: cython.Py_ssize_t
    if q < 0:
        return -1
    end = skip_atom(b, p, limit)
    if end - q > MAX_LETTERS:
        return -1
    if u8(b, p) == ATOM_UTF8 or u8(b, p) == SMALL_ATOM_UTF8:
        while q < end:
            if u8(b, q) > LAST_ASCII:
                return -1
            q += 1
    return end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def decodable(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position after the term at p, which begins with its tag, if the decoder reads it with certainty, else -1.

    `skip` goes past terms that the decoder rejects. Here terms that a message seldom has are rejected, too.
    """
    todo: cython.longlong = 1
    nested: cython.longlong = 0
    elements: cython.longlong = 0
    fixed: cython.longlong
    n: cython.longlong
    tag: cython.int
    while todo > 0:
        # every outstanding term takes at least a byte
        if todo > limit - p or nested > MAX_NESTING or elements > MAX_ELEMENTS:
            return -1
        todo -= 1
        tag = u8(b, p)
        fixed = 0
        n = 0
        if tag == ATOM or tag == ATOM_UTF8 or tag == SMALL_ATOM or tag == SMALL_ATOM_UTF8:
            p = letters_of(b, p, limit)
            if p < 0:
                return -1
            continue
        p += 1
        if tag == SMALL_INTEGER:
            fixed = SMALL_INTEGER_SIZE
        elif tag == INTEGER:
            fixed = INTEGER_SIZE
        elif tag == STRING:
            if limit - p < LENGTH_16:
                return -1
            elements += u16(b, p)
            fixed = LENGTH_16 + u16(b, p)
        elif tag == BINARY:
            if limit - p < LENGTH_32:
                return -1
            fixed = LENGTH_32 + u32(b, p)
        elif tag == SMALL_BIG:
            if limit - p < LENGTH_8 + 1 or u8(b, p + LENGTH_8) > 1:
                return -1
            fixed = LENGTH_8 + 1 + u8(b, p)
        elif tag == SMALL_TUPLE:
            if limit - p < LENGTH_8:
                return -1
            fixed = LENGTH_8
            n = u8(b, p)
        elif tag == LIST or tag == MAP:
            if limit - p < LENGTH_32:
                return -1
            fixed = LENGTH_32
            n = u32(b, p) + 1 if tag == LIST else 2 * u32(b, p)
        elif tag == PID or tag == NEW_PID:
            p = letters_of(b, p, limit)
            if p < 0:
                return -1
            fixed = PID_SIZE if tag == PID else NEW_PID_SIZE
        elif tag != NIL:
            return -1
        if fixed > limit - p:
            return -1
        p += fixed
        todo += n
        elements += n
        nested += n > 0
    return p if nested <= MAX_NESTING and elements <= MAX_ELEMENTS else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def skip_atom(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position after the atom at p, or -1."""
    n: cython.Py_ssize_t
    if limit - p < ATOM_HEADER:
        return -1
    if u8(b, p) == ATOM or u8(b, p) == ATOM_UTF8:
        n = ATOM_HEADER + u16(b, p + 1)
    elif u8(b, p) == SMALL_ATOM or u8(b, p) == SMALL_ATOM_UTF8:
        n = SMALL_ATOM_HEADER + u8(b, p + 1)
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
    return p + ATOM_HEADER if u8(b, p) == ATOM or u8(b, p) == ATOM_UTF8 else p + SMALL_ATOM_HEADER


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_basic_message(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.bint:
    """Return whether the BASIC_MESSAGE_SIZE bytes at p are `basic_message`."""
    return i32(b, p) == WORD_BASI and i32(b, p + 4) == WORD_C_ME and i32(b, p + 8) == WORD_SSAG and u8(b, p + 12) == LAST_LETTER


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_message(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t, arity: cython.int) -> cython.bint:
    """Return whether the first element, at p, of a tuple of this arity is the name of a basic_message or an mc tuple."""
    text: cython.Py_ssize_t = atom_text(b, p, limit)
    size: cython.Py_ssize_t
    if text < 0:
        return False
    size = skip_atom(b, p, limit) - text
    if arity == MESSAGE_ARITY:
        return size == BASIC_MESSAGE_SIZE and is_basic_message(b, text)
    return arity == CONTAINER_ARITY and size == MC_SIZE and u16(b, text) == WORD_MC


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_id(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t, hi: cython.longlong, lo: cython.longlong
) -> cython.bint:
    """Return whether there is a binary with the bytes of this id at p."""
    return (
        limit - p >= ID_TERM_SIZE
        and u8(b, p) == BINARY
        and i32(b, p + 1) == ID_SIZE
        and i64(b, p + BINARY_HEADER) == hi
        and i64(b, p + BINARY_HEADER + 8) == lo
    )


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
    if limit - p < 2 or u8(b, p) != VERSION:
        return 0
    if u8(b, p + 1) == COMPRESSED:
        return PACKED
    q = p + 1 + SMALL_TUPLE_HEADER
    if limit < q or u8(b, p + 1) != SMALL_TUPLE:
        return TERM if skip(b, p + 1, limit) >= 0 else 0
    arity = u8(b, p + 2)
    if not is_message(b, q, limit, arity):
        return TERM if skip(b, p + 1, limit) >= 0 else 0
    q = skip_atom(b, q, limit)
    for k in range(MESSAGE_BEFORE_ID if arity == MESSAGE_ARITY else CONTAINER_BEFORE_ID):
        q = skip(b, q, limit)
        if q < 0:
            return 0
    if arity == MESSAGE_ARITY:
        r = skip(b, q, limit)
        if r < 0:
            return 0
        if is_id(b, q, limit, hi, lo):
            found = SAME_ID
        q = skip_atom(b, r, limit)
        if q < 0:
            return TERM if skip(b, r, limit) >= 0 else 0
        r = atom_text(b, r, limit)
        if q - r == TRUE_SIZE and i32(b, r) == WORD_TRUE:
            found |= PERSISTENT
        return TERM | MESSAGE | found
    r = skip(b, q, limit)
    if r < 0:
        return 0
    while q < r:
        if is_id(b, q, r, hi, lo):
            found = SAME_ID
            break
        q += 1
    return TERM | MESSAGE | CONTAINER | found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def tuple_of(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t, arity: cython.int) -> cython.Py_ssize_t:
    """Return the position of the first element of the tuple at p if it has this arity, else -1."""
    if p < 0 or limit - p < SMALL_TUPLE_HEADER or u8(b, p) != SMALL_TUPLE or u8(b, p + 1) != arity:
        return -1
    return p + SMALL_TUPLE_HEADER


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
    q = p + 1 + SMALL_TUPLE_HEADER
    if limit < q or u8(b, p) != VERSION or u8(b, p + 1) != SMALL_TUPLE:
        return -1 - p
    arity = u8(b, p + 2)
    if not is_message(b, q, limit, arity):
        return -1 - p
    q = skip_atom(b, q, limit)
    for k in range(MESSAGE_BEFORE_ID if arity == MESSAGE_ARITY else CONTAINER_BEFORE_ID):
        q = skip(b, q, limit)
        if q < 0:
            return q
    r = skip(b, q, limit)
    if r < 0:
        return r
    if arity == MESSAGE_ARITY:
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
    """Return the position after the external term (with its VERSION) that starts at p, or -1 if there is no complete term."""
    q: cython.Py_ssize_t = -1
    if p >= 0 and limit <= b.shape[0] and limit - p >= 2 and u8(b, p) == VERSION:
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
            if outside(at[k], length[k], size):
                out[k] = 0
            else:
                out[k] = shape_at(b, at[k], at[k] + length[k], hi[k], lo[k])
