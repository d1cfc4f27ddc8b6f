"""Searching one chain of an index file (docs/formats/rocketmq.md, section 5): from a slot to the entries of a key hash, newest first."""

import cython

if not cython.compiled:
    from mqstore.kernels.common.loads import i32, i64

MOST = 64


def chain(
    b: cython.const[cython.uchar][::1],
    slots: cython.longlong,
    positions: cython.longlong,
    count: cython.longlong,
    begin_timestamp: cython.longlong,
    key_hash: cython.longlong,
    begin: cython.longlong,
    end: cython.longlong,
    most: cython.longlong,
):
    """Physical offsets of at most so many entries with a hash whose times lie in [begin, end], as a list.

    b: the file. slots, positions: its geometry; count, begin_timestamp: as its header has them. None where a link leads to a newer entry,
    or to one that the file does not hold, where times do not fit into 64 bits, and for more than MOST entries.
    """
    offsets = cython.declare(cython.longlong[64])
    base: cython.longlong = 40 + 4 * slots
    size: cython.longlong = b.shape[0]
    found: cython.Py_ssize_t = 0
    at: cython.longlong
    number: cython.longlong
    previous: cython.longlong
    seconds: cython.longlong
    time: cython.longlong
    limit: cython.longlong = 1 << 62
    if slots < 1 or key_hash < 0 or base > size:
        raise ValueError("the file has no such slot")
    if begin_timestamp > limit or begin_timestamp < -limit or most > 64:
        return None
    with cython.nogil:
        number = i32(b, 40 + 4 * (key_hash % slots))
        if 0 < number <= count and count > 1:
            while found < most and number < positions:
                at = base + 20 * number
                if at + 20 > size:
                    found = -1
                    break
                seconds = i32(b, at + 12)
                if seconds < 0:
                    break
                time = begin_timestamp + seconds * 1000
                if i32(b, at) == key_hash and begin <= time <= end:
                    offsets[found] = i64(b, at + 4)
                    found += 1
                previous = i32(b, at + 16)
                if previous <= 0 or previous > count or previous == number or time < begin:
                    break
                if previous > number:
                    found = -1
                    break
                number = previous
    return None if found < 0 else [offsets[k] for k in range(found)]
