"""Frames of the RocketMQ commit log: from bytes to record positions, from positions to columns.

A record announces its size and a magic number and holds its own physical offset (docs/formats/rocketmq.md, section 2).
`check` alone decides whether bytes are a record: only if *every* inner length adds up to its size. `walk` goes from record to
record and checks each, so the kernels that read fields need no further checks.
"""

import cython
import numpy as np


def check(b, p, limit, base, strict):
    """Return the status of the record at p: VALID, or what is wrong. Never reads at or past limit."""
    size: cython.longlong
    magic: cython.longlong
    least: cython.longlong  # size of the record with the parts that were read so far
    version: cython.longlong  # and bytes of the topic's length
    at: cython.Py_ssize_t
    length: cython.longlong
    sys_flag: cython.int
    if limit - p < FRAME_SIZE:
        return UNWRITTEN
    # one load: a writer stores both in one piece
    size = i64(b, p + AT_SIZE)
    magic = low32(size)
    size = size >> 32
    if magic == MAGIC_BLANK:
        return BLANK
    if magic == MAGIC_V1:
        version = 1
    elif magic == MAGIC_V2:
        version = 2
    elif size == 0 and magic == 0:
        return UNWRITTEN
    else:
        return BAD_MAGIC
    if size < MIN_SIZE + version or size > limit - p:
        return BAD_SIZE
    if strict and i64(b, p + AT_PHYSICAL_OFFSET) != base + p:
        return BAD_OFFSET
    sys_flag = i32(b, p + AT_SYS_FLAG)
    length = born_host_size(sys_flag) + store_host_size(sys_flag)
    least = FIXED_SIZE + version + length
    if size < least:
        return BAD_LENGTHS
    at = p + length + AT_BODY_LENGTH
    length = i32(b, at)
    if length < 0:
        if strict:
            return BAD_LENGTHS
        length = 0
    least += length
    if size < least:
        return BAD_LENGTHS
    at += AT_BODY - AT_BODY_LENGTH + length
    length = i8(b, at) if version == 1 else i16(b, at)
    least += length
    if length < 0 or size < least:
        return BAD_LENGTHS
    at += version + length
    length = i16(b, at)
    if length < 0:
        if strict:
            return BAD_LENGTHS
        length = 0
    if size != least + length:
        return BAD_LENGTHS
    return VALID


def status_at(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, base: cython.longlong, strict: cython.bint):
    """Return the status of the bytes at position p of the buffer (VALID: they are a record)."""
    if p < 0 or p >= b.shape[0]:
        return UNWRITTEN
    return check(first_byte(b), p, b.shape[0], base, strict)


def are_valid(
    b: cython.const[cython.uchar][::1], positions: cython.const[cython.longlong][::1], base: cython.longlong, out: cython.uchar[::1]
):
    """Set out[k] to 1 where the bytes at a position are a record that agrees with its position, else to 0."""
    n: cython.Py_ssize_t = positions.shape[0]
    k: cython.Py_ssize_t
    limit: cython.Py_ssize_t = b.shape[0]
    p: cython.Py_ssize_t
    if out.shape[0] < n:
        raise ValueError("arrays are too small")
    if limit == 0:
        for k in range(n):
            out[k] = 0
        return
    with cython.nogil:
        for k in range(n):
            p = positions[k]
            out[k] = 0 <= p < limit and check(first_byte(b), p, limit, base, True) == VALID


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def synchronise(
    b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t, base: cython.longlong
) -> cython.Py_ssize_t:
    """Return the first position in [start, stop) where a valid record starts, or -1."""
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    limit: cython.Py_ssize_t = b.shape[0]
    end: cython.Py_ssize_t = stop + AT_MAGIC
    k: cython.Py_ssize_t = start + AT_MAGIC
    magic: cython.int
    if end > limit - (FRAME_SIZE - AT_MAGIC):
        end = limit - (FRAME_SIZE - AT_MAGIC)
    while k < end:
        k = find(source, k, end, MAGIC_FIRST_BYTE)
        if k >= end:
            return -1
        magic = i32(source, k)
        if (magic == MAGIC_V1 or magic == MAGIC_V2) and check(source, k - AT_MAGIC, limit, base, True) == VALID:
            return k - AT_MAGIC
        k += 1
    return -1


def carve(b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t, more: cython.bint = False):
    """Return the first position in [start, stop) where a valid record starts, whatever its physical offset is, or -1.

    more: the bytes go on after the buffer. Then -2 - position is returned for a head whose size reaches past the buffer, and positions
    that are less than AT_SYS_FLAG bytes before its end are not examined.
    """
    source: cython.pointer[cython.const[cython.uchar]]
    limit: cython.Py_ssize_t = b.shape[0]
    end: cython.Py_ssize_t = stop + AT_MAGIC
    k: cython.Py_ssize_t = start + AT_MAGIC
    p: cython.Py_ssize_t
    found: cython.Py_ssize_t = -1
    magic: cython.int
    physical: cython.longlong
    if start < 0 or limit < AT_SYS_FLAG:
        return -1
    source = first_byte(b)
    if end > limit - (AT_SYS_FLAG - AT_MAGIC):  # the physical offset, too, must be inside
        end = limit - (AT_SYS_FLAG - AT_MAGIC)
    with cython.nogil:
        while k < end:
            k = find(source, k, end, MAGIC_FIRST_BYTE)
            if k >= end:
                break
            magic = i32(source, k)
            if magic == MAGIC_V1 or magic == MAGIC_V2:
                p = k - AT_MAGIC
                physical = i64(source, p + AT_PHYSICAL_OFFSET)
                if physical >= 0:
                    if check(source, p, limit, physical - p, True) == VALID:
                        found = p
                        break
                    if more and i32(source, p + AT_SIZE) > limit - p:
                        found = -2 - p
                        break
            k += 1
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def hop(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    base: cython.longlong,
    positions: cython.longlong[::1],
    n: cython.Py_ssize_t,
    lanes: cython.longlong[::1],
    scratch: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """Follow sizes from start into positions[n:], in lanes that run side by side; return the new n, lanes[AT] the next position.

    Each hop waits for memory: the size it needs is a cache miss away. Eight lanes wait at the same time. A lane starts at a
    record found by its magic number; its records count only if the lane before it ends exactly where it starts.
    """
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    limit: cython.Py_ssize_t = b.shape[0]
    lane: cython.Py_ssize_t
    k: cython.Py_ssize_t
    q: cython.longlong
    at: cython.longlong
    size: cython.longlong
    running: cython.int = 0
    reached: cython.longlong
    for lane in range(LANES):
        at = start
        if lane > 0:
            at = -1
            q = start + lane * LANE_BYTES
            if q < stop:
                reached = q + SEARCH
                at = synchronise(b, q, reached if reached < stop else stop, base)
        lanes[AT + lane] = at
        lanes[FIRST + lane] = at
        lanes[END + lane] = stop
        lanes[COUNT + lane] = 0
    reached = start + LANES * LANE_BYTES
    if reached > stop:
        reached = stop
    for lane in range(LANES - 1, -1, -1):
        if lanes[FIRST + lane] >= 0:
            lanes[END + lane] = reached
            reached = lanes[FIRST + lane]
            running += 1
    while running > 0:
        for lane in range(LANES):
            q = lanes[AT + lane]
            if q < 0 or lanes[END + lane] < 0:
                continue
            size = 0
            if q < lanes[END + lane] and limit - q >= FRAME_SIZE:
                size = i32(source, q + AT_SIZE)
            if size < MIN_RECORD_SIZE or size > limit - q or lanes[COUNT + lane] >= LANE_ROOM:
                lanes[END + lane] = -1
                running -= 1
                continue
            scratch[LANE_ROOM * lane + lanes[COUNT + lane]] = q
            lanes[COUNT + lane] += 1
            q += size
            lanes[AT + lane] = q
            prefetch(b, q)
    reached = start
    for lane in range(LANES):
        if lanes[FIRST + lane] < 0:
            continue
        if lanes[FIRST + lane] != reached:
            break
        for k in range(lanes[COUNT + lane]):
            if n >= positions.shape[0]:
                lanes[AT] = scratch[LANE_ROOM * lane + k]
                return n
            positions[n] = scratch[LANE_ROOM * lane + k]
            n += 1
        reached = lanes[AT + lane]
    lanes[AT] = reached
    return n


def first_record(b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t, base: cython.longlong):
    """Return the first position in [start, stop) where a valid record starts, or -1."""
    if start < 0:
        raise ValueError("start must be inside the buffer")
    with cython.nogil:
        start = synchronise(b, start, stop, base)
    return start


def walk(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    base: cython.longlong,
    strict: cython.bint,
    positions: cython.longlong[::1],
):
    """Walk the valid records that start in [start, stop); return (count, next position, status)."""
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    limit: cython.Py_ssize_t = b.shape[0]
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    k: cython.Py_ssize_t
    first: cython.Py_ssize_t
    room: cython.Py_ssize_t = positions.shape[0]
    status: cython.int = VALID
    if start < 0 or stop > limit:
        raise ValueError("start and stop must be inside the buffer")
    lanes: cython.longlong[::1] = np.empty(4 * LANES, np.int64)
    scratch: cython.longlong[::1] = np.empty(LANES * LANE_ROOM, np.int64)
    with cython.nogil:
        while status == VALID and p < stop:
            # hop over a window by sizes alone, then check its records, whose cache lines are already on their way
            if n >= room:
                status = FULL
                break
            first = n
            n = hop(b, p, stop, base, positions, n, lanes, scratch)
            p = cython.cast(cython.Py_ssize_t, lanes[AT])
            k = first
            while k < n:
                if k + 8 < n:
                    prefetch(b, positions[k + 8] + LINE)
                    prefetch(b, positions[k + 8] - LINE)
                    prefetch(b, positions[k + 8] - 2 * LINE)
                status = check(source, positions[k], limit, base, strict)
                if status != VALID:
                    p = cython.cast(cython.Py_ssize_t, positions[k])
                    n = k
                    break
                k += 1
            if status == VALID and n == first and p < stop:
                status = check(source, p, limit, base, strict)
                if status == VALID:
                    positions[n] = p
                    p += i32(source, p + AT_SIZE)
                    n += 1
    return n, p, status


def check_entry(b, p, limit, base):
    """Return the status of the DLedger entry at p, which must hold one record and nothing else. Never reads at or past limit."""
    magic: cython.int
    size: cython.longlong
    status: cython.int
    if limit - p < FRAME_SIZE:
        return UNWRITTEN
    magic = i32(b, p)
    size = i32(b, p + ENTRY_SIZE_AT)
    if magic == ENTRY_BLANK:
        return BLANK
    if magic == 0 and size == 0:
        return UNWRITTEN
    if magic != ENTRY_MAGIC:
        return BAD_MAGIC
    if size < ENTRY_HEADER_SIZE + MIN_RECORD_SIZE or size > limit - p:
        return BAD_SIZE
    if i64(b, p + ENTRY_POSITION_AT) != base + p:
        return BAD_OFFSET
    if i32(b, p + ENTRY_BODY_SIZE_AT) != size - ENTRY_HEADER_SIZE:
        return BAD_LENGTHS
    status = check(b, p + ENTRY_HEADER_SIZE, p + size, base, True)
    if status == VALID and i32(b, p + ENTRY_HEADER_SIZE + AT_SIZE) != size - ENTRY_HEADER_SIZE:
        return BAD_LENGTHS
    if status == BLANK or status == UNWRITTEN:
        return BAD_MAGIC
    return status


def entry_status_at(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, base: cython.longlong):
    """Return the status of the DLedger entry at a position."""
    if p < 0:
        raise ValueError("the position must be inside the buffer")
    return check_entry(first_byte(b), p, b.shape[0], base)


def walk_entries(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    base: cython.longlong,
    positions: cython.longlong[::1],
):
    """Walk the valid DLedger entries that start in [start, stop); return (count, next position, status). positions: of their records."""
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    limit: cython.Py_ssize_t = b.shape[0]
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = positions.shape[0]
    status: cython.int = VALID
    if start < 0 or stop > limit:
        raise ValueError("start and stop must be inside the buffer")
    with cython.nogil:
        while p < stop:
            if n >= room:
                status = FULL
                break
            status = check_entry(source, p, limit, base)
            if status != VALID:
                break
            positions[n] = p + ENTRY_HEADER_SIZE
            p += i32(source, p + ENTRY_SIZE_AT)
            n += 1
    return n, p, status


def read_fields(b, positions, first, n, out):
    """Fill the columns first..n-1 of out with the fields of those valid records.

    Each number is stored as soon as it is read. `parts_of` would find the parts first, but that takes a quarter more time.
    """
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    born: cython.Py_ssize_t
    at: cython.Py_ssize_t
    length: cython.longlong
    sys_flag: cython.int
    for k in range(first, n):
        if k + 6 < n:
            prefetch(b, positions[k + 6])
            prefetch(b, positions[k + 6] + LINE)
        p = positions[k]
        sys_flag = i32(source, p + AT_SYS_FLAG)
        born = born_host_size(sys_flag)
        at = p + born + store_host_size(sys_flag)
        out[SIZE, k] = i32(source, p + AT_SIZE)
        out[BODY_CRC, k] = i32(source, p + AT_BODY_CRC)
        out[QUEUE_ID, k] = i32(source, p + AT_QUEUE_ID)
        out[FLAG, k] = i32(source, p + AT_FLAG)
        out[QUEUE_OFFSET, k] = i64(source, p + AT_QUEUE_OFFSET)
        out[PHYSICAL_OFFSET, k] = i64(source, p + AT_PHYSICAL_OFFSET)
        out[SYS_FLAG, k] = sys_flag
        out[BORN_TIMESTAMP, k] = i64(source, p + AT_BORN_TIMESTAMP)
        out[BORN_HOST, k] = p + AT_BORN_HOST
        out[STORE_TIMESTAMP, k] = i64(source, p + born + AT_STORE_TIMESTAMP)
        out[STORE_HOST, k] = p + born + AT_STORE_HOST
        out[RECONSUME_TIMES, k] = i32(source, at + AT_RECONSUME_TIMES)
        out[PREPARED_TRANSACTION_OFFSET, k] = i64(source, at + AT_PREPARED_OFFSET)
        length = i32(source, at + AT_BODY_LENGTH)
        if length < 0:
            length = 0
        at += AT_BODY
        out[BODY_START, k] = at
        out[BODY_LENGTH, k] = length
        at += length
        if i32(source, p + AT_MAGIC) == MAGIC_V1:
            length = i8(source, at)
            at += 1
        else:
            length = i16(source, at)
            at += 2
        out[TOPIC_START, k] = at
        out[TOPIC_LENGTH, k] = length
        at += length
        length = i16(source, at)
        if length < 0:
            length = 0
        out[PROPERTIES_START, k] = at + PROPERTIES_LENGTH_SIZE
        out[PROPERTIES_LENGTH, k] = length


def fields(b: cython.const[cython.uchar][::1], positions: cython.longlong[::1], out: cython.longlong[:, ::1]):
    """Fill out[FIELD_COUNT, n] with the fields of n walked records."""
    if out.shape[0] < FIELD_COUNT or out.shape[1] < positions.shape[0]:
        raise ValueError("out is too small")
    with cython.nogil:
        read_fields(b, positions, 0, positions.shape[0], out)


def physical_offsets(b: cython.const[cython.uchar][::1], positions: cython.longlong[::1], out: cython.longlong[::1]):
    """Fill out with the physical offset fields of walked records; return whether they ascend."""
    n: cython.Py_ssize_t = positions.shape[0]
    k: cython.Py_ssize_t
    ascending: cython.bint = True
    if out.shape[0] < n:
        raise ValueError("out is too small")
    with cython.nogil:
        for k in range(n):
            if k + 8 < n:
                prefetch(b, positions[k + 8] + AT_PHYSICAL_OFFSET)
            out[k] = i64(first_byte(b), positions[k] + AT_PHYSICAL_OFFSET)
            if k > 0 and out[k] <= out[k - 1]:
                ascending = False
    return ascending
