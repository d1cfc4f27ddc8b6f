"""Hash chains of index files (docs/formats/rocketmq.md, section 5): building and checking them.

A slot holds the number of its newest entry, an entry the number of the one before it in the same slot.
"""

import cython


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def seconds_after(timestamp: cython.longlong, begin_timestamp: cython.longlong) -> cython.longlong:
    """Return the time difference that an entry stores: whole seconds, at least 0; 0 if the file has no begin timestamp."""
    difference: cython.longlong = timestamp - begin_timestamp
    if begin_timestamp <= 0 or difference < 0:
        return 0
    difference = cython.cast(cython.ulonglong, difference) // MILLISECONDS
    return difference if difference < MAX_INT else MAX_INT


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def newest_entry(slot_value: cython.longlong, number: cython.longlong) -> cython.longlong:
    """Return the entry that a slot holds, 0 if the slot is empty or damaged; `number`: the next entry.

    Which slots are empty is random, so only the test for damage is a branch.
    """
    return 0 if slot_value < 0 or slot_value > number else slot_value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def hash_of(keys: cython.pointer[cython.const[cython.uchar]], k: cython.Py_ssize_t) -> cython.int:
    """Return the hash of key row k; 0 for a negative one."""
    h: cython.int = i32(keys, KEY_SIZE * k + KEY_AT_HASH)
    return h if h > 0 else 0


def add_entries(keys, n, begin_timestamp, first_number, slots, slot_count, out):
    """Do what `build` does, without its arrays: slot_count has to stay in a register, or each division waits for the last slot."""
    k: cython.Py_ssize_t
    slot: cython.uint
    h: cython.int
    previous: cython.longlong
    taken: cython.longlong = 0
    for k in range(n):
        if k + AHEAD < n:
            expect_slot(slots, cython.cast(cython.uint, hash_of(keys, k + AHEAD)) % slot_count)
        h = hash_of(keys, k)
        slot = cython.cast(cython.uint, h) % slot_count
        previous = newest_entry(slots[slot], first_number + k)
        taken += previous == 0
        slots[slot] = first_number + k
        put_entry(
            out,
            INDEX_ENTRY_SIZE * k,
            h,
            i64(keys, KEY_SIZE * k + KEY_AT_OFFSET),
            seconds_after(i64(keys, KEY_SIZE * k + KEY_AT_TIMESTAMP), begin_timestamp),
            previous,
        )
    return taken


def build(
    keys: cython.const[cython.uchar][::1],
    begin_timestamp: cython.longlong,
    first_number: cython.longlong,
    slots: cython.int[::1],
    out: cython.uchar[::1],
):
    """Append the 20-byte key rows (hash, physical offset, store time) as entries first_number, first_number + 1, …

    slots: the native slot table of the file, changed in place. out: the entries, 20 bytes each.
    begin_timestamp: that of the file's header when the rows are added (0: every difference is 0).
    Returns the number of slots that were empty before (the header's hashSlotCount grows by it).
    """
    n: cython.Py_ssize_t = keys.shape[0] // KEY_SIZE
    taken: cython.longlong
    if out.shape[0] < INDEX_ENTRY_SIZE * n or slots.shape[0] < 1:
        raise ValueError("arrays are too small")
    if slots.shape[0] > MAX_INT:
        raise ValueError(f"{slots.shape[0]} slots: an index file has at most {MAX_INT}")
    with cython.nogil:
        taken = add_entries(first_byte(keys), n, begin_timestamp, first_number, first_slot(slots), slots.shape[0], start_of(out))
    return taken


def put(
    keys: cython.const[cython.uchar][::1],
    begin_timestamp: cython.longlong,
    first_number: cython.longlong,
    file: cython.uchar[::1],
    slot_count: cython.longlong,
    touched: cython.longlong[::1],
):
    """Add entries like `build`, but to an index file itself: the entries in their places, then each slot. The header is left to the caller.

    touched: filled with the slot of each key; may be empty. Returns the number of slots that were empty before.
    """
    n: cython.Py_ssize_t = keys.shape[0] // KEY_SIZE
    note: cython.bint = touched.shape[0] > 0
    base: cython.Py_ssize_t = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slot_count + INDEX_ENTRY_SIZE * first_number
    k: cython.Py_ssize_t
    at: cython.Py_ssize_t
    slot: cython.longlong
    h: cython.longlong
    previous: cython.longlong
    seconds: cython.longlong
    taken: cython.longlong = 0
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(keys)
    to: cython.pointer[cython.uchar] = start_of(file)
    if slot_count < 1 or first_number < 0 or base + INDEX_ENTRY_SIZE * n > file.shape[0] or (note and touched.shape[0] < n):
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            if k + AHEAD < n:
                expect_byte(to, INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * (hash_of(source, k + AHEAD) % slot_count))
            h = hash_of(source, k)
            slot = h % slot_count
            at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slot
            previous = newest_entry(i32(to, at), first_number + k)
            taken += previous == 0
            seconds = seconds_after(i64(source, KEY_SIZE * k + KEY_AT_TIMESTAMP), begin_timestamp)
            put_entry(to, base + INDEX_ENTRY_SIZE * k, h, i64(source, KEY_SIZE * k + KEY_AT_OFFSET), seconds, previous)
            put32(to, at, first_number + k)
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

    bad: filled with the numbers of entries whose hash is negative or whose link does not match the chain, as many as fit.
    Returns the number of such entries.
    """
    n: cython.Py_ssize_t = entries.shape[0] // INDEX_ENTRY_SIZE
    slot_count: cython.longlong = slots.shape[0]
    room: cython.Py_ssize_t = bad.shape[0]
    k: cython.Py_ssize_t
    h: cython.longlong
    slot: cython.longlong
    found: cython.longlong = 0
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(entries)
    if slot_count < 1:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            if k + AHEAD < n:
                h = i32(source, INDEX_ENTRY_SIZE * (k + AHEAD) + INDEX_AT_HASH)
                expect_slot(first_slot(slots), h % slot_count if h >= 0 else 0)
            h = i32(source, INDEX_ENTRY_SIZE * k + INDEX_AT_HASH)
            slot = h % slot_count if h >= 0 else 0
            if h < 0 or i32(source, INDEX_ENTRY_SIZE * k + INDEX_AT_PREVIOUS) != slots[slot]:
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
    """Return the number of leading key rows that equal the leading entries in hash, physical offset and time difference."""
    n: cython.Py_ssize_t = keys.shape[0] // KEY_SIZE
    m: cython.Py_ssize_t = entries.shape[0] // INDEX_ENTRY_SIZE
    k: cython.Py_ssize_t = 0
    key: cython.Py_ssize_t
    entry: cython.Py_ssize_t
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(keys)
    written: cython.pointer[cython.const[cython.uchar]] = first_byte(entries)
    if m < n:
        n = m
    with cython.nogil:
        while k < n:
            key = KEY_SIZE * k
            entry = INDEX_ENTRY_SIZE * k
            if i32(source, key + KEY_AT_HASH) != i32(written, entry + INDEX_AT_HASH):
                break
            if i64(source, key + KEY_AT_OFFSET) != i64(written, entry + INDEX_AT_OFFSET):
                break
            if seconds_after(i64(source, key + KEY_AT_TIMESTAMP), begin_timestamp) != i32(written, entry + INDEX_AT_SECONDS):
                break
            k += 1
    return k
