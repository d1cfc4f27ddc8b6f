"""Frames of the RocketMQ commit log: from bytes to record positions, from positions to columns.

A record announces its size and a magic, and holds its own physical offset (docs/formats/rocketmq.md, section 2).
`walk` hops from record to record and believes a record only when *every* inner length adds up to its size, so the
kernels that read fields need no check of their own.
"""

import cython
import numpy as np

if not cython.compiled:
    from mqstore.kernels.common.loads import UNIQ_KEY, copy, find, i16, i32, i64, i8, prefetch, u8

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124

# status of a walk
STOP = 0  # the next record would start at or behind `stop`
FULL = 1  # `positions` is full
BLANK = 2  # an end-of-file record stands at the returned position
UNWRITTEN = 3  # eight zero bytes, or fewer than eight bytes are left
BAD_MAGIC = 4
BAD_SIZE = 5  # below the smallest record, or beyond the end of the buffer
BAD_LENGTHS = 6  # inner lengths do not add up to the size
BAD_OFFSET = 7  # strict only: the physical offset field is not base + position

# rows of `fields`
SIZE = 0
BODY_CRC = 1
QUEUE_ID = 2
FLAG = 3
QUEUE_OFFSET = 4
PHYSICAL_OFFSET = 5
SYS_FLAG = 6
BORN_TIMESTAMP = 7
BORN_HOST = 8  # position of the address bytes
STORE_TIMESTAMP = 9
STORE_HOST = 10  # position of the address bytes
RECONSUME_TIMES = 11
PREPARED_TRANSACTION_OFFSET = 12
BODY_START = 13
BODY_LENGTH = 14
TOPIC_START = 15
TOPIC_LENGTH = 16
PROPERTIES_START = 17
PROPERTIES_LENGTH = 18
FIELD_COUNT = 19


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def check(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t, base: cython.longlong, strict: cython.bint
) -> cython.int:
    """Status of the record at p: STOP if believable, else what is wrong. Never reads at or behind limit."""
    size: cython.longlong
    magic: cython.longlong
    hosts: cython.longlong
    wide: cython.longlong
    at: cython.Py_ssize_t
    body: cython.longlong
    topic: cython.longlong
    properties: cython.longlong
    sys_flag: cython.int
    if limit - p < 8:
        return 3
    size = i32(b, p)
    magic = i32(b, p + 4)
    if magic == -875286124:
        return 2
    if magic == -626843481:
        wide = 1
    elif magic == -626843477:
        wide = 2
    elif size == 0 and magic == 0:
        return 3
    else:
        return 4
    if size < 90 + wide or size > limit - p:
        return 5
    if strict and i64(b, p + 28) != base + p:
        return 7
    sys_flag = i32(b, p + 36)
    hosts = (20 if sys_flag & 16 else 8) + (20 if sys_flag & 32 else 8)
    if size < 74 + wide + hosts:
        return 6
    at = p + 68 + hosts
    body = i32(b, at)
    if body < 0:
        if strict:
            return 6
        body = 0
    if size < 74 + wide + hosts + body:
        return 6
    at = at + 4 + body
    topic = i8(b, at) if wide == 1 else i16(b, at)
    if topic < 0 or size < 74 + wide + hosts + body + topic:
        return 6
    at = at + wide + topic
    properties = i16(b, at)
    if properties < 0:
        if strict:
            return 6
        properties = 0
    if size != 74 + wide + hosts + body + topic + properties:
        return 6
    return 0


def status_at(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, base: cython.longlong, strict: cython.bint):
    """Status of whatever stands at position p of the buffer (STOP: a believable record)."""
    if p < 0 or p >= b.shape[0]:
        return 3
    return check(b, p, b.shape[0], base, strict)


LANES = 8
LANE_BYTES = 131072  # a window of the log is LANES stretches of so many bytes
LANE_ROOM = 1442  # records of the smallest size that start in a lane, and one
SEARCH = 8192  # bytes in which a lane looks for its first record


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def synchronise(
    b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t, base: cython.longlong
) -> cython.Py_ssize_t:
    """First position in [start, stop) where a believable record starts, or -1."""
    limit: cython.Py_ssize_t = b.shape[0]
    end: cython.Py_ssize_t = stop + 4
    k: cython.Py_ssize_t = start + 4
    magic: cython.int
    if end > limit - 4:
        end = limit - 4
    while k < end:
        k = find(b, k, end, 0xDA)
        if k >= end:
            return -1
        magic = i32(b, k)
        if (magic == -626843481 or magic == -626843477) and check(b, k - 4, limit, base, True) == 0:
            return k - 4
        k += 1
    return -1


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
    """Follow sizes from start into positions[n:], in lanes that run side by side; returns the new n, lanes[0] the next position.

    One hop waits for memory: the size it needs is a cache miss away. Eight lanes wait at the same time. A lane starts at a
    record found by its magic; what it holds counts only when the lane before it ends exactly where it starts.
    lanes: rows of LANES: current position, start, stop, count.
    """
    limit: cython.Py_ssize_t = b.shape[0]
    lane: cython.Py_ssize_t
    k: cython.Py_ssize_t
    q: cython.longlong
    at: cython.longlong
    size: cython.longlong
    running: cython.int = 0
    reached: cython.longlong
    for lane in range(8):
        at = start
        if lane > 0:
            at = -1
            q = start + lane * 131072
            if q < stop:
                reached = q + 8192
                at = synchronise(b, q, reached if reached < stop else stop, base)
        lanes[lane] = at
        lanes[8 + lane] = at
        lanes[16 + lane] = stop
        lanes[24 + lane] = 0
    reached = start + 1048576
    if reached > stop:
        reached = stop
    for lane in range(7, -1, -1):
        if lanes[8 + lane] >= 0:
            lanes[16 + lane] = reached
            reached = lanes[8 + lane]
            running += 1
    while running > 0:
        for lane in range(8):
            q = lanes[lane]
            if q < 0 or lanes[16 + lane] < 0:
                continue
            size = 0
            if q < lanes[16 + lane] and limit - q >= 8:
                size = i32(b, q)
            if size < 91 or size > limit - q or lanes[24 + lane] >= 1442:
                lanes[16 + lane] = -1
                running -= 1
                continue
            scratch[1442 * lane + lanes[24 + lane]] = q
            lanes[24 + lane] += 1
            q += size
            lanes[lane] = q
            prefetch(b, q)
    reached = start
    for lane in range(8):
        if lanes[8 + lane] < 0:
            continue
        if lanes[8 + lane] != reached:
            break
        for k in range(lanes[24 + lane]):
            if n >= positions.shape[0]:
                lanes[0] = scratch[1442 * lane + k]
                return n
            positions[n] = scratch[1442 * lane + k]
            n += 1
        reached = lanes[lane]
    lanes[0] = reached
    return n


def first_record(b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, stop: cython.Py_ssize_t, base: cython.longlong):
    """First position in [start, stop) where a believable record starts, or -1."""
    if start < 0:
        raise ValueError("start must lie inside the buffer")
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
    """Walk believable records that start in [start, stop); return (count, next position, status)."""
    limit: cython.Py_ssize_t = b.shape[0]
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    k: cython.Py_ssize_t
    first: cython.Py_ssize_t
    room: cython.Py_ssize_t = positions.shape[0]
    status: cython.int = 0
    if start < 0 or stop > limit:
        raise ValueError("start and stop must lie inside the buffer")
    lanes: cython.longlong[::1] = np.empty(4 * LANES, np.int64)
    scratch: cython.longlong[::1] = np.empty(LANES * LANE_ROOM, np.int64)
    with cython.nogil:
        while status == 0 and p < stop:
            # hop over a window by sizes alone, then check its records with their lines on the way
            if n >= room:
                status = 1
                break
            first = n
            n = hop(b, p, stop, base, positions, n, lanes, scratch)
            p = lanes[0]
            k = first
            while k < n:
                if k + 8 < n:
                    prefetch(b, positions[k + 8] + 64)
                    prefetch(b, positions[k + 8] - 64)
                    prefetch(b, positions[k + 8] - 128)
                status = check(b, positions[k], limit, base, strict)
                if status != 0:
                    p = positions[k]
                    n = k
                    break
                k += 1
            if status == 0 and n == first and p < stop:
                status = check(b, p, limit, base, strict)
                if status == 0:
                    positions[n] = p
                    p += i32(b, p)
                    n += 1
    return n, p, status


def fields(b: cython.const[cython.uchar][::1], positions: cython.longlong[::1], out: cython.longlong[:, ::1]):
    """Fill out[FIELD_COUNT, n] with the fixed fields of n walked records."""
    n: cython.Py_ssize_t = positions.shape[0]
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    at: cython.Py_ssize_t
    born: cython.Py_ssize_t
    store: cython.Py_ssize_t
    sys_flag: cython.int
    length: cython.longlong
    if out.shape[0] < 19 or out.shape[1] < n:
        raise ValueError("out is too small")
    with cython.nogil:
        for k in range(n):
            if k + 6 < n:
                prefetch(b, positions[k + 6])
                prefetch(b, positions[k + 6] + 64)
            p = positions[k]
            sys_flag = i32(b, p + 36)
            born = 20 if sys_flag & 16 else 8
            store = 20 if sys_flag & 32 else 8
            out[0, k] = i32(b, p)
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
            at = p + 56 + born + store
            out[11, k] = i32(b, at)
            out[12, k] = i64(b, at + 4)
            length = i32(b, at + 12)
            if length < 0:
                length = 0
            out[13, k] = at + 16
            out[14, k] = length
            at = at + 16 + length
            if i32(b, p + 4) == -626843481:
                length = i8(b, at)
                at += 1
            else:
                length = i16(b, at)
                at += 2
            out[15, k] = at
            out[16, k] = length
            at += length
            length = i16(b, at)
            if length < 0:
                length = 0
            out[17, k] = at + 2
            out[18, k] = length


def known_properties(
    b: cython.const[cython.uchar][::1],
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
    out: cython.longlong[:, ::1],
):
    """Spans of TAGS (rows 0, 1), KEYS (2, 3) and UNIQ_KEY (4, 5): start and length, -1 where absent. The last of equal names counts."""
    n: cython.Py_ssize_t = starts.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    name: cython.Py_ssize_t
    row: cython.int
    if lengths.shape[0] < n or out.shape[0] < 6 or out.shape[1] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            out[1, k] = -1
            out[3, k] = -1
            out[5, k] = -1
            out[0, k] = 0
            out[2, k] = 0
            out[4, k] = 0
            i = starts[k]
            stop = i + lengths[k]
            while i < stop:
                j = find(b, i, stop, 2)
                name = find(b, i, j, 1)
                if name > i and name < j - 1:
                    row = -1
                    if name - i == 4:
                        if i32(b, i) == 1413564243:
                            row = 0
                        elif i32(b, i) == 1262836051:
                            row = 2
                    elif name - i == 8 and i64(b, i) == UNIQ_KEY:
                        row = 4
                    if row >= 0:
                        out[row, k] = name + 1
                        out[row + 1, k] = j - name - 1
                i = j + 1


def count_pairs(b: cython.const[cython.uchar][::1], starts: cython.longlong[::1], lengths: cython.longlong[::1], out: cython.int[::1]):
    """out[k] = number of name/value pairs in span k; returns their sum."""
    n: cython.Py_ssize_t = starts.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    name: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    total: cython.longlong = 0
    pairs: cython.int
    if lengths.shape[0] < n or out.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            pairs = 0
            i = starts[k]
            stop = i + lengths[k]
            while i < stop:
                j = find(b, i, stop, 2)
                name = find(b, i, j, 1)
                if name > i and name < j - 1:
                    pairs += 1
                i = j + 1
            out[k] = pairs
            total += pairs
    return total


def pair_spans(
    b: cython.const[cython.uchar][::1], starts: cython.longlong[::1], lengths: cython.longlong[::1], out: cython.longlong[:, ::1]
):
    """Spans of all pairs, in order: rows name start, name length, value start, value length. Returns how many were written."""
    n: cython.Py_ssize_t = starts.shape[0]
    room: cython.Py_ssize_t = out.shape[1]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    name: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    pairs: cython.Py_ssize_t = 0
    if lengths.shape[0] < n or out.shape[0] < 4:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            i = starts[k]
            stop = i + lengths[k]
            while i < stop:
                j = find(b, i, stop, 2)
                name = find(b, i, j, 1)
                if name > i and name < j - 1 and pairs < room:
                    out[0, pairs] = i
                    out[1, pairs] = name - i
                    out[2, pairs] = name + 1
                    out[3, pairs] = j - name - 1
                    pairs += 1
                i = j + 1
    return pairs


def checksum_tails(b: cython.const[cython.uchar][::1], ends: cython.longlong[::1], lengths: cython.longlong[::1], out: cython.uchar[::1]):
    """out[k] = 1 where a property text ends in 20 bytes that begin with `__CRC32#` 01, or are eight bytes, 01, ten digits and 02."""
    n: cython.Py_ssize_t = ends.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t
    digit: cython.uint
    if lengths.shape[0] < n or out.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            out[k] = 0
            p = ends[k] - 20
            if lengths[k] < 20 or u8(b, p + 8) != 1:
                continue
            if i32(b, p) == 1600078674 and i32(b, p + 4) == 1127428643:
                out[k] = 1
                continue
            if u8(b, p + 19) != 2:
                continue
            out[k] = 1
            for i in range(9, 19):
                digit = u8(b, p + i)
                if digit < 48 or digit > 57:
                    out[k] = 0


def repeated(counts: cython.int[::1], hashes: cython.longlong[::1]):
    """Whether two pairs of one record have the same name hash. counts: pairs per record; hashes: of all pairs in order."""
    n: cython.Py_ssize_t = counts.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    first: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t
    found: cython.bint = False
    with cython.nogil:
        for k in range(n):
            stop = first + counts[k]
            if stop > hashes.shape[0]:
                break
            for i in range(first, stop):
                for j in range(i + 1, stop):
                    if hashes[i] == hashes[j]:
                        found = True
            if found:
                break
            first = stop
    return found


def odd_parts(b: cython.const[cython.uchar][::1], starts: cython.longlong[::1], lengths: cython.longlong[::1], out: cython.uchar[::1]):
    """out[k] = 1 where a part of property text k is not empty and yet has no name or no separator, or where zeros were written over it."""
    n: cython.Py_ssize_t = starts.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    name: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    if lengths.shape[0] < n or out.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            i = starts[k]
            stop = i + lengths[k]
            out[k] = 0
            j = find(b, i, stop, 0)
            while j < stop:
                if j + 1 == stop or (j + 4 <= stop and i32(b, j) == 0):
                    out[k] = 1
                    break
                j = find(b, j + 1, stop, 0)
            while i < stop:
                j = find(b, i, stop, 2)
                name = find(b, i, j, 1)
                if j > i and (name == i or name == j):
                    out[k] = 1
                i = j + 1


def gather(
    b: cython.const[cython.uchar][::1],
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
    offsets: cython.int[::1],
    out: cython.uchar[::1],
):
    """Copy spans one behind the other (length -1 counts as 0); offsets[n + 1] are Arrow's. Returns whether a byte above 0x7f was met."""
    n: cython.Py_ssize_t = starts.shape[0]
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    length: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    high: cython.uint = 0
    room: cython.Py_ssize_t = out.shape[0]
    limit: cython.Py_ssize_t = b.shape[0]
    fits: cython.bint = True
    if lengths.shape[0] < n or offsets.shape[0] < n + 1:
        raise ValueError("arrays are too small")
    with cython.nogil:
        offsets[0] = 0
        for k in range(n):
            length = lengths[k]
            if length > 0:
                if length > room - at or starts[k] < 0 or length > limit - starts[k]:
                    fits = False
                    break
                copy(out, at, b, starts[k], length)
                at += length
            offsets[k + 1] = at
        for i in range(at):
            high |= u8(out, i)
    if not fits:
        raise ValueError("a span lies outside its buffer")
    return high >= 128
