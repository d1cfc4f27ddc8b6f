"""Message store files of RabbitMQ (`N.rdq`): scans for records, as the broker does and carefully, and look-up of records by id.

A record is its size S, 16 bytes of id, a term, and the end mark, a byte 255 (section 6.1 of the specification of the stores).
"""

import cython


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_empty_binary(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.bint:
    """Return whether the CLIENT_DEATH_TERM bytes at p are the external term of an empty binary."""
    return u8(b, p) == VERSION and u8(b, p + 1) == BINARY and u32(b, p + 2) == 0


def strict_scan(b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, at: cython.longlong[:], total: cython.longlong[:]):
    """Scan as the broker does up to 3.13.0 (section 6.8): position and total size of each record, as many as the columns hold.

    Return (records found, of which the first are in the columns, position where the scan stopped).
    """
    limit: cython.Py_ssize_t = b.shape[0]
    room: cython.Py_ssize_t = at.shape[0]
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    size: cython.longlong
    if start < 0 or total.shape[0] < room:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        while limit - p >= RECORD_SIZE_FIELD:
            size = i64(b, p)
            # a negative size is one of 2^63 or more: larger than any file
            if size <= 0 or size > limit - p - RECORD_OVERHEAD:
                break
            if u8(b, p + RECORD_SIZE_FIELD + size) == RECORD_MARK and size >= ID_SIZE:
                if n < room:
                    at[n] = p
                    total[n] = size + RECORD_OVERHEAD
                n += 1
            p += size + RECORD_OVERHEAD
    return n, p


def careful_scan(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    at: cython.longlong[:],
    total: cython.longlong[:],
    quality: cython.uchar[:],
):
    """Find every valid record that starts in [start, stop), whatever is between them (section 14, 6 and 7).

    A record is valid if it holds its own id a second time, inside its term; it ends where the term ends, whatever its size field is. A
    record with valid neighbours and a correct end mark is returned too, without PROVED. Return (records found, position where the scan
    stopped: columns full, or stop; whether every position was tried).
    """
    limit: cython.Py_ssize_t = b.shape[0]
    room: cython.Py_ssize_t = at.shape[0]
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    after: cython.Py_ssize_t
    term: cython.Py_ssize_t
    size: cython.longlong
    effort: cython.longlong = EFFORT * (limit - start) + LEAST_EFFORT
    framed: cython.bint
    marked: cython.bint
    chained: cython.bint = True
    if start < 0 or total.shape[0] < room or quality.shape[0] < room:
        raise ValueError("the columns differ in length")
    # a record with the smallest binary for a term: what is read below is there
    if stop > limit - RECORD_AT_TERM - CLIENT_DEATH_TERM + 1:
        stop = limit - RECORD_AT_TERM - CLIENT_DEATH_TERM + 1
    with cython.nogil:
        while p < stop and n < room:
            end = -1
            term = p + RECORD_AT_TERM
            if u8(b, term) == VERSION and (chained or effort > 0):
                end = message_end(b, term, limit, i64(b, p + RECORD_AT_ID), i64(b, p + RECORD_AT_LOW_ID), False)
                if end < 0:
                    effort += end + term + 1
            size = i64(b, p)
            if end >= 0:
                marked = end < limit and u8(b, end) == RECORD_MARK
                after = end + RECORD_MARK_SIZE
                at[n] = p
                total[n] = after - p
                quality[n] = PROVED
                if marked:
                    quality[n] |= MARKED
                if size != end - p - RECORD_SIZE_FIELD:
                    quality[n] |= RESIZED
                n += 1
                p = after if marked or follows(b, after, limit) else end
                chained = True
                continue
            # files are smaller than 2^48 bytes
            framed = (
                chained
                and ID_SIZE + SMALLEST_TERM <= size <= limit - p - RECORD_OVERHEAD
                and u8(b, p + RECORD_SIZE_FIELD + size) == RECORD_MARK
            )
            if framed and follows(b, p + size + RECORD_OVERHEAD, limit):
                # a client-death mark of old stores is not a message
                if size != ID_SIZE + CLIENT_DEATH_TERM or not is_empty_binary(b, term):
                    at[n] = p
                    total[n] = size + RECORD_OVERHEAD
                    quality[n] = MARKED
                    n += 1
                p += size + RECORD_OVERHEAD
            else:
                chained = False
                p += 1
    return n, p, effort > 0


def stored_messages(
    b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t, at: cython.longlong[:], end: cython.longlong[:]
):
    """Find complete terms of messages that start in [start, stop), whatever is before them: from where to where each goes.

    Return (terms found, position where the search stopped: columns full, or stop; whether every position was tried).
    """
    limit: cython.Py_ssize_t = b.shape[0]
    room: cython.Py_ssize_t = at.shape[0]
    p: cython.Py_ssize_t = start
    q: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    effort: cython.longlong = EFFORT * (limit - start) + LEAST_EFFORT
    if start < 0 or stop > limit or end.shape[0] < room:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        while p < stop and n < room and effort > 0:
            q = -1
            if u8(b, p) == VERSION:
                q = message_end(b, p, limit, 0, 0, True)
                if q < 0:
                    effort += q + p + 1
            if q >= 0:
                at[n] = p
                end[n] = q
                n += 1
                p = q
            else:
                p += 1
    return n, p, effort > 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def follows(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.bint:
    """Return whether the file ends at p, or the bytes there have the frame of a record."""
    size: cython.longlong
    if p == limit:
        return True
    if limit - p < RECORD_MIN_SIZE:
        return False
    size = i64(b, p)
    return size >= ID_SIZE and size <= limit - p - RECORD_OVERHEAD and u8(b, p + RECORD_SIZE_FIELD + size) == RECORD_MARK


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def padding(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, count: cython.longlong) -> cython.bint:
    """Return whether the bytes from p on, at most MOST_PADDING, are zeros that fill an entry."""
    k: cython.Py_ssize_t
    if count < 0 or count > MOST_PADDING or count > b.shape[0] - p:
        return False
    for k in range(count):
        if u8(b, p + k) != 0:
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def holds_id_before(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.bint:
    """Return whether the message at p holds the id that is before it, as in a record."""
    return message_end(b, p, limit, i64(b, p - ID_SIZE), i64(b, p - ID_SIZE + RECORD_AT_LOW_ID - RECORD_AT_ID), False) >= 0


def carve(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    more: cython.bint,
    out: cython.longlong[:, ::1],
    effort: cython.longlong,
):
    """Find the messages whose terms start in [start, stop), each with the frame around it: columns (from, to, term, its end, kind).

    Return (messages found, position where the search stopped, whether the message there may go on after the buffer, effort left).
    more: the bytes go on after the buffer; then positions that are less than CARVE_HEAD bytes before its end are not examined. effort:
    bytes that failed attempts to read a term may take; when it is used up, the search stops.
    """
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    limit: cython.Py_ssize_t = b.shape[0]
    room: cython.Py_ssize_t = out.shape[1]
    low: cython.Py_ssize_t = start  # nothing before belongs to a message that is yet to be found
    last: cython.Py_ssize_t = stop
    p: cython.Py_ssize_t = start
    q: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    size: cython.longlong
    cut: cython.bint = False
    if start < 0 or stop > limit or out.shape[0] < 5:
        raise ValueError("the columns are too few, or the range is outside the buffer")
    if last > limit - CARVE_HEAD and more:
        last = limit - CARVE_HEAD
    elif last > limit - 3:
        last = limit - 3
    with cython.nogil:
        while p < last and n < room and effort > 0:
            p = find(source, p, last, VERSION)
            if p >= last:
                break
            if u8(b, p + 1) != SMALL_TUPLE:
                p += 1
                continue
            q = message_end(b, p, limit, 0, 0, True)
            if q < 0 or (q == limit and more):
                if q >= 0:
                    cut = True
                elif -1 - q > p:  # more than its head could be read
                    effort -= -1 - q - p
                    cut = limit - p < CARVE_NEAR
                    if not cut and p - low >= RECORD_AT_TERM:
                        size = i64(b, p - RECORD_AT_TERM)
                        cut = size > limit - p + ID_SIZE
                    if not cut and p - low >= ENTRY_HEADER_SIZE:
                        size = u32(b, p - ENTRY_HEADER_SIZE)
                        cut = size > limit - p and u8(b, p - 1) == 0
                if cut and more:
                    break
                cut = False
                p += 1
                continue
            out[0, n] = p
            out[1, n] = q
            out[2, n] = p
            out[3, n] = q
            out[4, n] = BARE
            if p - low >= RECORD_AT_TERM and holds_id_before(b, p, limit):
                out[0, n] = p - RECORD_AT_TERM
                out[4, n] = RECORD
                if q < limit and u8(b, q) == RECORD_MARK:
                    out[1, n] = q + RECORD_MARK_SIZE
            elif p - low >= ENTRY_HEADER_SIZE and u8(b, p - ENTRY_HEADER_SIZE + ENTRY_AT_PADDING) == 0:
                size = u32(b, p - ENTRY_HEADER_SIZE)
                if padding(b, q, size - (q - p)) and u8(b, p - ENTRY_HEADER_SIZE + ENTRY_AT_FLAGS) <= ENTRY_HAS_CRC:
                    out[0, n] = p - ENTRY_HEADER_SIZE
                    out[1, n] = p + size
                    out[4, n] = ENTRY
                    if u8(b, p - ENTRY_HEADER_SIZE + ENTRY_AT_FLAGS) == ENTRY_HAS_CRC and (
                        crc_on(crc_bytes(b), p, q - p, 0) & 0xFFFF
                    ) != u16(b, p - ENTRY_HEADER_SIZE + ENTRY_AT_CRC):
                        out[4, n] = DAMAGED_ENTRY
            p = out[1, n]
            low = p
            n += 1
    return n, p, cut, effort


def resynchronising_scan(
    b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t, at: cython.longlong[:], total: cython.longlong[:]
):
    """Scan as the broker does since 3.13.1 (section 13.2): search byte by byte for any frame with its mark that starts before stop.

    Return as `strict_scan`. A second copy of an id is returned too; the broker would step through it byte by byte and find only its
    nested frames.
    """
    limit: cython.Py_ssize_t = b.shape[0]
    room: cython.Py_ssize_t = at.shape[0]
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    size: cython.longlong
    if start < 0 or total.shape[0] < room:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        while p < stop and limit - p >= RECORD_MIN_SIZE:
            size = i64(b, p)
            if size >= ID_SIZE and size <= limit - p - RECORD_OVERHEAD and u8(b, p + RECORD_SIZE_FIELD + size) == RECORD_MARK:
                if n < room:
                    at[n] = p
                    total[n] = size + RECORD_OVERHEAD
                n += 1
                p += size + RECORD_OVERHEAD
            else:
                p += 1
    return n, p


def record_ids(b: cython.const[cython.uchar][::1], at: cython.longlong[:], hi: cython.longlong[:], lo: cython.longlong[:]):
    """Store the id of each record. Raises ValueError for a position outside the file."""
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = at.shape[0]
    limit: cython.Py_ssize_t = b.shape[0]
    outside: cython.bint = False
    if hi.shape[0] < n or lo.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            if at[k] < 0 or at[k] > limit - RECORD_AT_TERM:
                outside = True
                break
            hi[k] = i64(b, at[k] + RECORD_AT_ID)
            lo[k] = i64(b, at[k] + RECORD_AT_LOW_ID)
    if outside:
        raise ValueError("a record lies outside the file")


def find_ids(
    hi: cython.const[cython.longlong][:],
    lo: cython.const[cython.longlong][:],
    wanted_hi: cython.const[cython.longlong][:],
    wanted_lo: cython.const[cython.longlong][:],
    found: cython.longlong[:],
):
    """Store for each wanted id its first index among ids sorted by (hi, lo), or -1."""
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = hi.shape[0]
    low: cython.Py_ssize_t
    high: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    if lo.shape[0] < n or wanted_lo.shape[0] < wanted_hi.shape[0] or found.shape[0] < wanted_hi.shape[0]:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(wanted_hi.shape[0]):
            low = 0
            high = n
            while low < high:
                middle = (low + high) >> 1
                if hi[middle] < wanted_hi[k] or (hi[middle] == wanted_hi[k] and lo[middle] < wanted_lo[k]):
                    low = middle + 1
                else:
                    high = middle
            found[k] = low if low < n and hi[low] == wanted_hi[k] and lo[low] == wanted_lo[k] else -1
