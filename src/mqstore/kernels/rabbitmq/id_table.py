"""A table of message ids that has few bytes an id and grows where it stands: 16-byte ids, how many refer to each, and a place.

A row is four words of 64 bits; a row whose third word is 0 is empty:

    0  1   the id, as two big-endian halves
    2      number of a file (upper 32 bits), references (lower 32 bits)
    3      offset in that file (upper 32 bits), bytes there (lower 32 bits); 0 bytes: no place is known yet

The rows stand in the order of a hash of the id. The home of a hash h among `homes` rows is h * homes / 2^32; a row stands there or behind
it, with nothing empty between. There are more rows than homes, for what the last homes cannot hold. So a search ends at the first row
that is empty or has a larger hash, and a larger table has the same order: `stretch` moves every row once and needs no second table.
The salt of the hash is chosen by who makes the table: ids come from others.
"""

import cython

if not cython.compiled:
    from mqstore.kernels.common.loads import LOW32, cell, i64, word64

FULL = -2


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def spread(hi: cython.ulonglong, lo: cython.ulonglong, salt: cython.ulonglong) -> cython.ulonglong:
    """A hash of an id, 32 bits."""
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
    """The row of an id; where there is none, -1 - the row before which it would stand."""
    h: cython.ulonglong = spread(hi, lo, salt)
    p: cython.Py_ssize_t = (h * homes) >> 32
    rows: cython.Py_ssize_t = table.shape[0]
    while p < rows and cell(table, p, 2) != 0:
        if cell(table, p, 0) == hi and cell(table, p, 1) == lo:
            return p
        if spread(cell(table, p, 0), cell(table, p, 1), salt) > h:
            break
        p += 1
    return -1 - p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def move(table: cython.ulonglong[:, ::1], source: cython.Py_ssize_t, target: cython.Py_ssize_t) -> cython.void:
    """Move a row."""
    j: cython.Py_ssize_t
    if source != target:
        for j in range(4):
            table[target, j] = table[source, j]
        table[source, 2] = 0


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
    """Put a row at p; those from there to the next empty one move on. False: there is no empty one."""
    rows: cython.Py_ssize_t = table.shape[0]
    e: cython.Py_ssize_t = p
    while e < rows and cell(table, e, 2) != 0:
        e += 1
    if e >= rows:
        return False
    while e > p:
        move(table, e - 1, e)
        e -= 1
    table[p, 0] = hi
    table[p, 1] = lo
    table[p, 2] = third
    table[p, 3] = fourth
    return True


def add(
    table: cython.ulonglong[:, ::1],
    homes: cython.ulonglong,
    salt: cython.ulonglong,
    message_id: cython.const[cython.uchar][::1],
    third: cython.ulonglong,
    fourth: cython.ulonglong,
):
    """Put an id into the table that is not in it. False: the table is full."""
    p: cython.Py_ssize_t
    if len(message_id) != 16:
        raise ValueError("an id has 16 bytes")
    p = where(table, homes, salt, word64(i64(message_id, 0)), word64(i64(message_id, 8)))
    if p >= 0:
        raise ValueError("the id is in the table")
    return bool(insert(table, -1 - p, word64(i64(message_id, 0)), word64(i64(message_id, 8)), third, fourth))


def get(table: cython.ulonglong[:, ::1], homes: cython.ulonglong, salt: cython.ulonglong, message_id: cython.const[cython.uchar][::1]):
    """The third and fourth word of an id, or None."""
    p: cython.Py_ssize_t
    if len(message_id) != 16:
        raise ValueError("an id has 16 bytes")
    p = where(table, homes, salt, word64(i64(message_id, 0)), word64(i64(message_id, 8)))
    return None if p < 0 else (cell(table, p, 2), cell(table, p, 3))


def count(
    table: cython.ulonglong[:, ::1],
    homes: cython.ulonglong,
    salt: cython.ulonglong,
    message_id: cython.const[cython.uchar][::1],
    references: cython.longlong,
):
    """Add to the references of an id; with the last one it goes. Returns its third and fourth word after that, or None."""
    rows: cython.Py_ssize_t = table.shape[0]
    p: cython.Py_ssize_t
    q: cython.Py_ssize_t
    third: cython.ulonglong
    fourth: cython.ulonglong
    left: cython.longlong
    if len(message_id) != 16:
        raise ValueError("an id has 16 bytes")
    p = where(table, homes, salt, word64(i64(message_id, 0)), word64(i64(message_id, 8)))
    if p < 0:
        return None
    third = cell(table, p, 2)
    fourth = cell(table, p, 3)
    left = (third & LOW32) + references
    if left < 0 or word64(left) > LOW32:
        raise ValueError("there are not that many references")
    third = ((third >> 32) << 32) | word64(left)
    table[p, 2] = third
    if left == 0:
        # those behind it move up that do not stand at home
        table[p, 2] = 0
        q = p + 1
        while q < rows and cell(table, q, 2) != 0:
            if (spread(cell(table, q, 0), cell(table, q, 1), salt) * homes) >> 32 == word64(q):
                break
            move(table, q, q - 1)
            q += 1
    return third, fourth


def stretch(table: cython.ulonglong[:, ::1], homes: cython.ulonglong, salt: cython.ulonglong):
    """Put all rows, which stand anywhere but in order, to the places they have among so many homes. Returns the rows placed.

    FULL: the rows do not fit; they are all there still, and a larger table may be stretched.
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
            if cell(table, source, 2) != 0:
                move(table, source, target)
                target -= 1
            source -= 1
        for source in range(target + 1, rows):
            home = (spread(cell(table, source, 0), cell(table, source, 1), salt) * homes) >> 32
            if home <= last:
                home = last + 1
            if home > source:
                fits = False
                break
            move(table, source, home)
            last = home
            count += 1
    return count if fits else -2


def drop_unplaced(table: cython.ulonglong[:, ::1]):
    """Empty the rows without a place; the table has to be stretched then. Returns how many."""
    p: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    with cython.nogil:
        for p in range(table.shape[0]):
            if cell(table, p, 2) != 0 and cell(table, p, 3) & LOW32 == 0:
                table[p, 2] = 0
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
    """Count a reference to each id from `start` on, adding ids without a place; at most `room` of them.

    Returns (ids looked at, ids added); the first is short of all when the table has no room.
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
                table[p, 2] = cell(table, p, 2) + 1
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
    """Give each id that is in the table a place in `file`, if it has none or one in `wanted`. Returns how many had none."""
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
            if cell(table, p, 3) & LOW32 == 0:
                new += 1
            elif cell(table, p, 2) >> 32 != wanted:
                continue
            table[p, 2] = (file << 32) | (cell(table, p, 2) & LOW32)
            table[p, 3] = (word64(at[k]) << 32) | word64(total[k])
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
    """For each id whether its place is that offset of `file`."""
    n: cython.Py_ssize_t = hi.shape[0]
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    if lo.shape[0] < n or at.shape[0] < n or result.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            p = where(table, homes, salt, word64(hi[k]), word64(lo[k]))
            result[k] = 0
            if p >= 0 and cell(table, p, 3) & LOW32 != 0:
                result[k] = cell(table, p, 2) >> 32 == file and cell(table, p, 3) >> 32 == word64(at[k])


def placed(
    table: cython.ulonglong[:, ::1],
    homes: cython.ulonglong,
    salt: cython.ulonglong,
    hi: cython.const[cython.longlong][:],
    lo: cython.const[cython.longlong][:],
    result: cython.uchar[:],
):
    """For each id whether it has a place."""
    n: cython.Py_ssize_t = hi.shape[0]
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    if lo.shape[0] < n or result.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            p = where(table, homes, salt, word64(hi[k]), word64(lo[k]))
            result[k] = p >= 0 and cell(table, p, 3) & LOW32 != 0
