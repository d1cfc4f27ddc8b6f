"""A compact table of message ids that grows in place: for each 16-byte id its reference count and its position.

A row is four words of 64 bits; a row whose word FILE_REFERENCES is 0 is empty:

    HIGH, LOW         the id, as two big-endian halves
    FILE_REFERENCES   number of a file (upper half), references (lower half)
    OFFSET_LENGTH     offset in that file (upper half), bytes there (lower half); 0 bytes: the position is not known yet

Rows are sorted by a hash of the id. The home of a hash h among `homes` rows is h * homes / 2^32; a row is at its home or after it, with
no empty row between. There are more rows than homes, for rows that the last homes cannot hold. A search therefore ends at the first row
that is empty or has a larger hash, and a larger table has the same order: `stretch` moves every row once and needs no second table.
The creator of the table chooses the salt of the hash, because ids come from other parties.
"""

import cython


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def spread(hi: cython.ulonglong, lo: cython.ulonglong, salt: cython.ulonglong) -> cython.ulonglong:
    """Return a 32-bit hash of an id."""
    x: cython.ulonglong = (hi ^ salt) & LOW32
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & LOW32
    x = x ^ (hi >> 32)
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & LOW32
    x = x ^ (lo & LOW32)
    x = ((x ^ (x >> 16)) * 0x297A2D39) & LOW32
    x = x ^ (lo >> 32)
    x = ((x ^ (x >> 15)) * 0x45D9F3B) & LOW32
    x = ((x ^ (x >> 16)) * 0x2C1B3C6D) & LOW32
    return x ^ (x >> 16)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def where(
    table: cython.ulonglong[:, ::1], homes: cython.ulonglong, salt: cython.ulonglong, hi: cython.ulonglong, lo: cython.ulonglong
) -> cython.Py_ssize_t:
    """Return the row of an id, or -1 - the row before which it would be inserted."""
    h: cython.ulonglong = spread(hi, lo, salt)
    p: cython.Py_ssize_t = (h * homes) >> HALF
    rows: cython.Py_ssize_t = table.shape[0]
    while p < rows and cell(table, p, FILE_REFERENCES) != 0:
        if cell(table, p, HIGH) == hi and cell(table, p, LOW) == lo:
            return p
        if spread(cell(table, p, HIGH), cell(table, p, LOW), salt) > h:
            break
        p += 1
    return -1 - p


@cython.cfunc
def row_of(
    table: cython.ulonglong[:, ::1], homes: cython.ulonglong, salt: cython.ulonglong, message_id: cython.const[cython.uchar][::1]
) -> cython.Py_ssize_t:
    """Return the row of an id, as `where` does. Raises ValueError if it does not have the size of one."""
    if len(message_id) != ID_SIZE:
        raise ValueError("an id has 16 bytes")
    return where(table, homes, salt, word64(i64(message_id, 0)), word64(i64(message_id, 8)))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def home_of(table: cython.ulonglong[:, ::1], homes: cython.ulonglong, salt: cython.ulonglong, p: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the home of the id in row p."""
    return (spread(cell(table, p, HIGH), cell(table, p, LOW), salt) * homes) >> HALF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def has_position(table: cython.ulonglong[:, ::1], p: cython.Py_ssize_t) -> cython.bint:
    """Return whether the position of the id in row p is known."""
    return cell(table, p, OFFSET_LENGTH) & LOW32 != 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def move(table: cython.ulonglong[:, ::1], source: cython.Py_ssize_t, target: cython.Py_ssize_t) -> cython.void:
    """Move a row."""
    j: cython.Py_ssize_t
    if source != target:
        for j in range(WORDS):
            table[target, j] = table[source, j]
        table[source, FILE_REFERENCES] = 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def insert(
    table: cython.ulonglong[:, ::1],
    p: cython.Py_ssize_t,
    hi: cython.ulonglong,
    lo: cython.ulonglong,
    third: cython.ulonglong,
    fourth: cython.ulonglong,
) -> cython.bint:
    """Insert a row at p; rows from there to the next empty one move up. Return False if there is no empty row."""
    rows: cython.Py_ssize_t = table.shape[0]
    e: cython.Py_ssize_t = p
    while e < rows and cell(table, e, FILE_REFERENCES) != 0:
        e += 1
    if e >= rows:
        return False
    while e > p:
        move(table, e - 1, e)
        e -= 1
    table[p, HIGH] = hi
    table[p, LOW] = lo
    table[p, FILE_REFERENCES] = third
    table[p, OFFSET_LENGTH] = fourth
    return True


def add(
    table: cython.ulonglong[:, ::1],
    homes: cython.ulonglong,
    salt: cython.ulonglong,
    message_id: cython.const[cython.uchar][::1],
    third: cython.ulonglong,
    fourth: cython.ulonglong,
):
    """Insert an id that is not in the table. Return False if the table is full."""
    p: cython.Py_ssize_t = row_of(table, homes, salt, message_id)
    if p >= 0:
        raise ValueError("the id is in the table")
    return bool(insert(table, -1 - p, word64(i64(message_id, 0)), word64(i64(message_id, 8)), third, fourth))


def get(table: cython.ulonglong[:, ::1], homes: cython.ulonglong, salt: cython.ulonglong, message_id: cython.const[cython.uchar][::1]):
    """Return the third and fourth word of an id, or None."""
    p: cython.Py_ssize_t = row_of(table, homes, salt, message_id)
    return None if p < 0 else (cell(table, p, FILE_REFERENCES), cell(table, p, OFFSET_LENGTH))


def count(
    table: cython.ulonglong[:, ::1],
    homes: cython.ulonglong,
    salt: cython.ulonglong,
    message_id: cython.const[cython.uchar][::1],
    references: cython.longlong,
):
    """Change the reference count of an id; at 0 the id is removed. Return its third and fourth word afterwards, or None."""
    rows: cython.Py_ssize_t = table.shape[0]
    p: cython.Py_ssize_t = row_of(table, homes, salt, message_id)
    q: cython.Py_ssize_t
    third: cython.ulonglong
    fourth: cython.ulonglong
    left: cython.longlong
    if p < 0:
        return None
    third = cell(table, p, FILE_REFERENCES)
    fourth = cell(table, p, OFFSET_LENGTH)
    left = (third & LOW32) + references
    if left < 0 or word64(left) > LOW32:
        raise ValueError("there are not that many references")
    third = ((third >> HALF) << HALF) | word64(left)
    table[p, FILE_REFERENCES] = third
    if left == 0:
        # rows after it that are not at their home move up
        table[p, FILE_REFERENCES] = 0
        q = p + 1
        while q < rows and cell(table, q, FILE_REFERENCES) != 0:
            if home_of(table, homes, salt, q) == q:
                break
            move(table, q, q - 1)
            q += 1
    return third, fourth


def stretch(table: cython.ulonglong[:, ::1], homes: cython.ulonglong, salt: cython.ulonglong):
    """Move all rows, which are in order but anywhere, to their places among this many homes. Return the number of rows placed.

    FULL: the rows do not fit; all of them are still there, and a larger table may be stretched.
    """
    rows: cython.Py_ssize_t = table.shape[0]
    source: cython.Py_ssize_t
    target: cython.Py_ssize_t = rows - 1
    last: cython.Py_ssize_t = -1
    count: cython.Py_ssize_t = 0
    home: cython.Py_ssize_t
    fits: cython.bint = True
    with cython.nogil:
        source = rows - 1
        while source >= 0:
            if cell(table, source, FILE_REFERENCES) != 0:
                move(table, source, target)
                target -= 1
            source -= 1
        for source in range(target + 1, rows):
            home = home_of(table, homes, salt, source)
            if home <= last:
                home = last + 1
            if home > source:
                fits = False
                break
            move(table, source, home)
            last = home
            count += 1
    return count if fits else FULL


def drop_unplaced(table: cython.ulonglong[:, ::1]):
    """Clear the rows without a position and return their number; the table must be stretched afterwards."""
    p: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    with cython.nogil:
        for p in range(table.shape[0]):
            if cell(table, p, FILE_REFERENCES) != 0 and not has_position(table, p):
                table[p, FILE_REFERENCES] = 0
                count += 1
    return count


def refer(
    table: cython.ulonglong[:, ::1],
    homes: cython.ulonglong,
    salt: cython.ulonglong,
    hi: cython.const[cython.longlong][:],
    lo: cython.const[cython.longlong][:],
    start: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
):
    """Add a reference to each id from `start` on; ids not in the table are added without a position, at most `room` of them.

    Return (ids processed, ids added). Fewer than all ids are processed if the table has no room.
    """
    n: cython.Py_ssize_t = hi.shape[0]
    k: cython.Py_ssize_t = start
    p: cython.Py_ssize_t
    added: cython.Py_ssize_t = 0
    if lo.shape[0] < n or start < 0:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        while k < n:
            p = where(table, homes, salt, word64(hi[k]), word64(lo[k]))
            if p >= 0:
                table[p, FILE_REFERENCES] = cell(table, p, FILE_REFERENCES) + 1
            else:
                if added == room or not insert(table, -1 - p, word64(hi[k]), word64(lo[k]), 1, 0):
                    break
                added += 1
            k += 1
    return k - start, added


def place(
    table: cython.ulonglong[:, ::1],
    homes: cython.ulonglong,
    salt: cython.ulonglong,
    hi: cython.const[cython.longlong][:],
    lo: cython.const[cython.longlong][:],
    file: cython.ulonglong,
    at: cython.const[cython.longlong][:],
    total: cython.const[cython.longlong][:],
    wanted: cython.ulonglong,
):
    """Set the position of each id that is in the table to `file`, if it has none or one in `wanted`. Return how many had none."""
    n: cython.Py_ssize_t = hi.shape[0]
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    new: cython.Py_ssize_t = 0
    if lo.shape[0] < n or at.shape[0] < n or total.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            p = where(table, homes, salt, word64(hi[k]), word64(lo[k]))
            if p < 0:
                continue
            if not has_position(table, p):
                new += 1
            elif cell(table, p, FILE_REFERENCES) >> HALF != wanted:
                continue
            table[p, FILE_REFERENCES] = (file << HALF) | (cell(table, p, FILE_REFERENCES) & LOW32)
            table[p, OFFSET_LENGTH] = (word64(at[k]) << HALF) | word64(total[k])
    return new


def stands(
    table: cython.ulonglong[:, ::1],
    homes: cython.ulonglong,
    salt: cython.ulonglong,
    hi: cython.const[cython.longlong][:],
    lo: cython.const[cython.longlong][:],
    file: cython.ulonglong,
    at: cython.const[cython.longlong][:],
    result: cython.uchar[:],
):
    """Store for each id whether its position is that offset of `file`."""
    n: cython.Py_ssize_t = hi.shape[0]
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    if lo.shape[0] < n or at.shape[0] < n or result.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            p = where(table, homes, salt, word64(hi[k]), word64(lo[k]))
            result[k] = 0
            if p >= 0 and has_position(table, p):
                result[k] = cell(table, p, FILE_REFERENCES) >> HALF == file and cell(table, p, OFFSET_LENGTH) >> HALF == word64(at[k])


def placed(
    table: cython.ulonglong[:, ::1],
    homes: cython.ulonglong,
    salt: cython.ulonglong,
    hi: cython.const[cython.longlong][:],
    lo: cython.const[cython.longlong][:],
    result: cython.uchar[:],
):
    """Store for each id whether it has a position."""
    n: cython.Py_ssize_t = hi.shape[0]
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    if lo.shape[0] < n or result.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            p = where(table, homes, salt, word64(hi[k]), word64(lo[k]))
            result[k] = p >= 0 and has_position(table, p)
