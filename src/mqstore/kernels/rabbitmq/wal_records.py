"""Records of a write-ahead log of Ra, one after the other, with their checksums.

Nearly all records name their member by the number that an earlier one gave to it: `walk` reads these. It stops at any other, and at
damage; both are left to `mqstore.rabbitmq.quorum.wal`, which defines what a record is.

Format: docs/formats/rabbitmq-quorum.md, section 2.
"""

import cython


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def adler32(b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.uint:
    """Return the Adler-32 of the bytes in [p, end)."""
    low: cython.uint = 1
    high: cython.uint = 0
    stop: cython.Py_ssize_t
    while p < end:
        stop = end if end - p < SUMMED else p + SUMMED
        while p < stop:
            low += u8(b, p)
            high += low
            p += 1
        low %= BASE
        high %= BASE
    return (high << HALF) | low


def walk(b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, members: cython.longlong[::1], out: cython.longlong[:, ::1]):
    """Read records from start on: their columns, as many as there is room for. members: by number, -1 for one that has no name yet.

    Return (records, position of the first one that was not read).
    """
    limit: cython.Py_ssize_t = b.shape[0]
    room: cython.Py_ssize_t = out.shape[0]
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    p: cython.Py_ssize_t = start
    end: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    number: cython.Py_ssize_t
    length: cython.longlong
    checksum: cython.longlong
    if start < 0 or out.shape[1] < RECORD_COLUMNS:
        raise ValueError("the columns are too few, or the position is outside the buffer")
    with cython.nogil:
        while n < room and limit - p >= AT_ENTRY and u8(source, p) & KNOWN_BIT:
            number = (((u8(source, p) & NUMBER_BITS) << 8) | u8(source, p + 1)) << 8 | u8(source, p + 2)
            if number >= members.shape[0] or members[number] < 0:
                break
            checksum = u32(source, p + AT_CHECKSUM)
            length = u32(source, p + AT_LENGTH)
            if length > limit - p - AT_ENTRY or i64(source, p + AT_INDEX) < 0 or i64(source, p + AT_TERM) < 0:
                break
            end = p + AT_ENTRY + length
            if checksum == 0:
                if length == 0 or u8(source, p + AT_ENTRY) != VERSION:
                    break
            elif adler32(source, p + AT_INDEX, end) != checksum:
                break
            out[n, MEMBER] = members[number]
            out[n, INDEX] = i64(source, p + AT_INDEX)
            out[n, TERM] = i64(source, p + AT_TERM)
            out[n, START] = p
            out[n, POSITION] = p + AT_ENTRY
            out[n, LENGTH] = length
            out[n, TRUNCATES] = 1 if u8(source, p) & TRUNCATES_BIT else 0
            out[n, VALID] = 1
            n += 1
            p = end
    return n, p
