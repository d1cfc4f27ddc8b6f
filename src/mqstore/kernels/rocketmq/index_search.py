"""Search of one chain of an index file (docs/formats/rocketmq.md, section 5): from a slot to the entries of a key hash, newest first."""

import cython


def follow(b, slots, positions, count, begin_timestamp, key_hash, begin, end, max_results, offsets, first):
    """Write the offsets that `search_chain` returns to `offsets`, from `first` on; return their number, -1 where it returns None."""
    base: cython.longlong = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slots
    size: cython.longlong = b.shape[0]
    found: cython.Py_ssize_t = 0
    at: cython.longlong
    number: cython.longlong
    previous: cython.longlong
    seconds: cython.longlong
    time: cython.longlong
    limit: cython.longlong = 1 << 62
    if slots < 1 or slots > size or base > size or begin_timestamp > limit or begin_timestamp < -limit:
        return -1
    number = i32(b, INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * (key_hash % slots))
    if 0 < number <= count and count > 1:
        while found < max_results and number < positions:
            at = base + INDEX_ENTRY_SIZE * number
            if at + INDEX_ENTRY_SIZE > size:
                return -1
            seconds = i32(b, at + INDEX_AT_SECONDS)
            if seconds < 0:
                break
            time = begin_timestamp + seconds * MILLISECONDS
            if i32(b, at + INDEX_AT_HASH) == key_hash and begin <= time <= end:
                offsets[first + found] = i64(b, at + INDEX_AT_OFFSET)
                found += 1
            previous = i32(b, at + INDEX_AT_PREVIOUS)
            if previous <= 0 or previous > count or previous == number or time < begin:
                break
            if previous > number:
                return -1
            number = previous
    return found


def search_chain(
    b: cython.const[cython.uchar][::1],
    slots: cython.longlong,
    positions: cython.longlong,
    count: cython.longlong,
    begin_timestamp: cython.longlong,
    key_hash: cython.longlong,
    begin: cython.longlong,
    end: cython.longlong,
    max_results: cython.longlong,
):
    """Return a list of the physical offsets of entries with a hash and a time in [begin, end], at most max_results.

    b: the file. slots, positions: its geometry; count, begin_timestamp: from its header. Returns None if a link leads to a newer entry
    or past the end of the file, if times do not fit into 64 bits, and if max_results is above MAX_RESULTS.
    """
    offsets = cython.declare(cython.longlong[MAX_RESULTS])
    found: cython.Py_ssize_t
    if slots < 1 or key_hash < 0 or slots > b.shape[0] or INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slots > b.shape[0]:
        raise ValueError("the file has no such slot")
    if max_results > MAX_RESULTS:
        return None
    with cython.nogil:
        found = follow(b, slots, positions, count, begin_timestamp, key_hash, begin, end, max_results, offsets, 0)
    return None if found < 0 else [offsets[k] for k in range(found)]
