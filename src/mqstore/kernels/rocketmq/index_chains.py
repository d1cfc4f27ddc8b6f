"""Hash chains of index files (docs/formats/rocketmq.md, section 5): building them, and proving them sound.

A slot holds the number of its newest entry, an entry the number of the one before it in the same slot.
"""

import cython

if not cython.compiled:
    from mqstore.kernels.common.loads import i32, i64, put32, put64


def build(
    keys: cython.const[cython.uchar][::1],
    begin_timestamp: cython.longlong,
    first_number: cython.longlong,
    slots: cython.int[::1],
    out: cython.uchar[::1],
):
    """Append the 20-byte key rows (hash, physical offset, store time) as entries first_number, first_number + 1, …

    slots: the native slot table of the file, changed in place. out: the entries, 20 bytes each.
    begin_timestamp: that of the file's header when the rows are put (0: every difference is 0).
    Returns how many slots were empty before (the header's hashSlotCount grows by it).
    """
    n: cython.Py_ssize_t = keys.shape[0] // 20
    slot_count: cython.longlong = slots.shape[0]
    k: cython.Py_ssize_t
    slot: cython.longlong
    h: cython.longlong
    previous: cython.longlong
    seconds: cython.longlong
    taken: cython.longlong = 0
    if out.shape[0] < 20 * n or slot_count < 1:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            h = i32(keys, 20 * k)
            if h < 0:
                h = 0
            slot = h % slot_count
            previous = slots[slot]
            if previous <= 0 or previous > first_number + k:
                previous = 0
                taken += 1
            seconds = 0
            if begin_timestamp > 0:
                seconds = i64(keys, 20 * k + 12) - begin_timestamp
                if seconds < 0:
                    seconds = 0
                else:
                    seconds = seconds // 1000
                if seconds > 2147483647:
                    seconds = 2147483647
            put32(out, 20 * k, h)
            put64(out, 20 * k + 4, i64(keys, 20 * k + 4))
            put32(out, 20 * k + 12, seconds)
            put32(out, 20 * k + 16, previous)
            slots[slot] = first_number + k
    return taken


def put(
    keys: cython.const[cython.uchar][::1],
    begin_timestamp: cython.longlong,
    first_number: cython.longlong,
    file: cython.uchar[::1],
    slot_count: cython.longlong,
    touched: cython.longlong[::1],
):
    """As `build`, but into an index file itself: the entries at their places, then each slot. The header is left to the caller.

    touched: takes the number of the slot that each key went to; may be empty. Returns how many slots were empty before.
    """
    n: cython.Py_ssize_t = keys.shape[0] // 20
    note: cython.bint = touched.shape[0] > 0
    base: cython.Py_ssize_t = 40 + 4 * slot_count + 20 * first_number
    k: cython.Py_ssize_t
    at: cython.Py_ssize_t
    slot: cython.longlong
    h: cython.longlong
    previous: cython.longlong
    seconds: cython.longlong
    taken: cython.longlong = 0
    if slot_count < 1 or first_number < 0 or base + 20 * n > file.shape[0] or (note and touched.shape[0] < n):
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            h = i32(keys, 20 * k)
            if h < 0:
                h = 0
            slot = h % slot_count
            at = 40 + 4 * slot
            previous = i32(file, at)
            if previous <= 0 or previous > first_number + k:
                previous = 0
                taken += 1
            seconds = 0
            if begin_timestamp > 0:
                seconds = i64(keys, 20 * k + 12) - begin_timestamp
                if seconds < 0:
                    seconds = 0
                else:
                    seconds = seconds // 1000
                if seconds > 2147483647:
                    seconds = 2147483647
            put32(file, base + 20 * k, h)
            put64(file, base + 20 * k + 4, i64(keys, 20 * k + 4))
            put32(file, base + 20 * k + 12, seconds)
            put32(file, base + 20 * k + 16, previous)
            put32(file, at, first_number + k)
            if note:
                touched[k] = slot
    return taken


def check(
    entries: cython.const[cython.uchar][::1],
    first_number: cython.longlong,
    slots: cython.int[::1],
    bad: cython.longlong[::1],
):
    """Replay the links of entries first_number, first_number + 1, … over the native slot table, which is changed in place.

    bad: numbers of entries whose hash is negative or whose link is not what the chain says. Returns how many there are,
    of which the first bad.shape[0] are told.
    """
    n: cython.Py_ssize_t = entries.shape[0] // 20
    slot_count: cython.longlong = slots.shape[0]
    room: cython.Py_ssize_t = bad.shape[0]
    k: cython.Py_ssize_t
    h: cython.longlong
    slot: cython.longlong
    found: cython.longlong = 0
    if slot_count < 1:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            h = i32(entries, 20 * k)
            slot = h % slot_count if h >= 0 else 0
            if h < 0 or i32(entries, 20 * k + 16) != slots[slot]:
                if found < room:
                    bad[found] = first_number + k
                found += 1
            if h >= 0:
                slots[slot] = first_number + k
    return found


def match(
    keys: cython.const[cython.uchar][::1],
    entries: cython.const[cython.uchar][::1],
    begin_timestamp: cython.longlong,
):
    """How many leading key rows equal the leading entries in hash, physical offset and time difference."""
    n: cython.Py_ssize_t = keys.shape[0] // 20
    m: cython.Py_ssize_t = entries.shape[0] // 20
    k: cython.Py_ssize_t = 0
    seconds: cython.longlong
    if m < n:
        n = m
    with cython.nogil:
        while k < n:
            if i32(keys, 20 * k) != i32(entries, 20 * k) or i64(keys, 20 * k + 4) != i64(entries, 20 * k + 4):
                break
            seconds = 0
            if begin_timestamp > 0:
                seconds = i64(keys, 20 * k + 12) - begin_timestamp
                if seconds < 0:
                    seconds = 0
                else:
                    seconds = seconds // 1000
                if seconds > 2147483647:
                    seconds = 2147483647
            if seconds != i32(entries, 20 * k + 12):
                break
            k += 1
    return k
