"""The fused dispatch kernel: from walked records to consume queue entries and index keys, in one pass without bodies.

For each record of the positions given: its 20-byte queue entry, its group (a number for its topic and queue id), its
queue offset, and 20 bytes for each key (hash i32, physical offset i64, store time i64, all big-endian) in the order in
which the broker's index service puts them: UNIQ_KEY, then the parts of KEYS.

Records that need more than that (delay levels, multi-dispatch, inner batches, text that is not UTF-8) are told by
number in `special`: their entry and keys are made by `mqstore.rocketmq.dispatch.dispatcher`, in Python.
"""

import cython

if not cython.compiled:
    from mqstore.kernels.rocketmq.hashing import hash_span
    from mqstore.kernels.common.loads import (
        LOW32,
        TWO31,
        TWO32,
        UNIQ_KEY,
        ascii_hash,
        copy,
        find,
        i16,
        i32,
        i64,
        i8,
        prefetch,
        put32,
        put64,
        same,
        u8,
    )

# places in the counters array
RECORDS = 0  # records dispatched so far
KEYS = 1  # key rows written so far
GROUPS = 2
SPECIALS = 3
COUNTER_COUNT = 4

# what stopped a call
DONE = 0
KEYS_FULL = 1
GROUPS_FULL = 2

NO_GROUP = -1  # a prepared or rolled back record: no queue entry

ENTRY_SIZE = 20
KEY_SIZE = 20


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def slot_of(topic_hash: cython.ulonglong, queue: cython.int) -> cython.ulonglong:
    return (topic_hash * 31 + (queue & 0xFFFF)) * 40503 >> 5


def enter_groups(
    b: cython.const[cython.uchar][::1],
    table: cython.int[::1],
    group_topic: cython.longlong[::1],
    group_length: cython.longlong[::1],
    group_queue: cython.int[::1],
    count: cython.Py_ssize_t,
):
    """Enter groups 0 … count-1, known to differ, into an empty table."""
    mask: cython.ulonglong = table.shape[0] - 1
    slot: cython.ulonglong
    g: cython.Py_ssize_t
    if count > group_topic.shape[0] or group_length.shape[0] < count or group_queue.shape[0] < count or table.shape[0] < 2 * count:
        raise ValueError("arrays are too small")
    if (table.shape[0] & (table.shape[0] - 1)) != 0:
        raise ValueError("the table's length must be a power of two")
    with cython.nogil:
        for g in range(count):
            slot = slot_of(hash_span(b, group_topic[g], group_length[g], 0), cython.cast(cython.int, group_queue[g])) & mask
            while table[slot] >= 0:
                slot = (slot + 1) & mask
            table[slot] = g


def dispatch(
    b: cython.const[cython.uchar][::1],
    positions: cython.longlong[::1],
    counters: cython.longlong[::1],
    entries: cython.uchar[::1],
    group: cython.int[::1],
    queue_offset: cython.longlong[::1],
    store_timestamp: cython.longlong[::1],
    keys: cython.uchar[::1],
    special: cython.longlong[::1],
    table: cython.int[::1],
    group_topic: cython.longlong[::1],
    group_length: cython.longlong[::1],
    group_queue: cython.int[::1],
):
    """Dispatch positions[counters[RECORDS]:]; results are written behind what the counters say is there already.

    table: power-of-two hash table of group numbers, -1 where empty, at least twice as long as group_topic.
    Returns DONE, or which array must grow; a record that did not fit is left for the next call.
    """
    n: cython.Py_ssize_t = positions.shape[0]
    k: cython.Py_ssize_t = counters[0]
    keys_written: cython.longlong = counters[1]
    groups: cython.Py_ssize_t = counters[2]
    specials: cython.Py_ssize_t = counters[3]
    key_room: cython.longlong = keys.shape[0] // 20
    group_room: cython.Py_ssize_t = group_topic.shape[0]
    mask: cython.ulonglong = table.shape[0] - 1
    status: cython.int = 0
    p: cython.Py_ssize_t
    at: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    name: cython.Py_ssize_t
    part: cython.Py_ssize_t
    topic: cython.Py_ssize_t
    topic_length: cython.Py_ssize_t
    uniq: cython.Py_ssize_t
    uniq_length: cython.Py_ssize_t
    many: cython.Py_ssize_t
    many_length: cython.Py_ssize_t
    sys_flag: cython.int
    kind: cython.int
    queue: cython.int
    born: cython.Py_ssize_t
    store: cython.Py_ssize_t
    body: cython.longlong
    physical: cython.longlong
    stored_at: cython.longlong
    tags: cython.longlong
    topic_hash: cython.ulonglong
    seed: cython.ulonglong
    h: cython.ulonglong
    slot: cython.ulonglong
    word: cython.longlong
    g: cython.Py_ssize_t
    is_special: cython.bint
    row: cython.Py_ssize_t
    first_key: cython.longlong
    if k > n or entries.shape[0] < 20 * n or group.shape[0] < n or queue_offset.shape[0] < n or store_timestamp.shape[0] < n:
        raise ValueError("arrays are too small")
    if special.shape[0] < n or (table.shape[0] & (table.shape[0] - 1)) != 0 or table.shape[0] < 2 * group_room:
        raise ValueError("arrays are too small")
    with cython.nogil:
        while k < n:
            if k + 7 < n:
                prefetch(b, positions[k + 7])
                prefetch(b, positions[k + 7] + 64)
                # the record before the next one ends where that one starts: its topic and properties
                prefetch(b, positions[k + 7] - 64)
                prefetch(b, positions[k + 7] - 128)
            p = positions[k]
            is_special = False
            first_key = keys_written
            sys_flag = i32(b, p + 36)
            kind = sys_flag & 12
            queue = i32(b, p + 12)
            physical = i64(b, p + 28)
            born = 20 if sys_flag & 16 else 8
            store = 20 if sys_flag & 32 else 8
            stored_at = i64(b, p + 48 + born)
            at = p + 68 + born + store
            body = i32(b, at)
            if body < 0:
                body = 0
            at = at + 4 + body
            if i32(b, p + 4) == -626843481:
                topic_length = i8(b, at)
                topic = at + 1
            else:
                topic_length = i16(b, at)
                topic = at + 2
            topic_hash = ascii_hash(b, topic, topic_length, 0)
            if topic_hash >= TWO32:
                topic_hash = hash_span(b, topic, topic_length, 0)
            if topic_hash >= TWO32:
                is_special = True
            at = topic + topic_length
            i = at + 2
            stop = i16(b, at)
            if stop < 0:
                stop = 0
            stop += i
            tags = 0
            uniq = -1
            uniq_length = 0
            many = -1
            many_length = 0
            while i < stop:
                j = find(b, i, stop, 2)
                name = find(b, i, j, 1)
                if name > i and name < j - 1:
                    if name - i == 4:
                        word = i32(b, i)
                        if word == 1413564243:  # TAGS
                            h = ascii_hash(b, name + 1, j - name - 1, 0)
                            if h >= TWO32:
                                h = hash_span(b, name + 1, j - name - 1, 0)
                            if h >= TWO32:
                                is_special = True
                            tags = h
                            if h >= TWO31:
                                tags = tags - TWO32
                        elif word == 1262836051:  # KEYS
                            many = name + 1
                            many_length = j - name - 1
                    elif name - i == 8:
                        if i64(b, i) == UNIQ_KEY:  # UNIQ_KEY
                            uniq = name + 1
                            uniq_length = j - name - 1
                    elif name - i == 5:
                        if i32(b, i) == 1145392193 and u8(b, i + 4) == 89:  # DELAY
                            if topic_length == 19 and u8(b, topic) == 83:
                                is_special = True
                    elif name - i > 8 and i32(b, i) == 1229868613:  # INNER_MULTI_DISPATCH, INNER_NUM, INNER_BASE
                        is_special = True
                i = j + 1
            # queue entry
            put64(entries, 20 * k, physical)
            put32(entries, 20 * k + 8, i32(b, p))
            put64(entries, 20 * k + 12, tags)
            queue_offset[k] = i64(b, p + 20)
            store_timestamp[k] = stored_at
            if kind == 0 or kind == 8:
                slot = slot_of(topic_hash, queue) & mask
                while True:
                    g = table[slot]
                    if g < 0:
                        if groups >= group_room:
                            status = 2
                            break
                        g = groups
                        groups += 1
                        table[slot] = g
                        group_topic[g] = topic
                        group_length[g] = topic_length
                        group_queue[g] = queue
                        break
                    if group_queue[g] == queue and group_length[g] == topic_length and same(b, group_topic[g], b, topic, topic_length):
                        break
                    slot = (slot + 1) & mask
                if status != 0:
                    break
                group[k] = g
            else:
                group[k] = -1
            # index keys
            if kind != 12 and (uniq >= 0 or many >= 0):
                seed = (topic_hash * 31 + 35) & LOW32
                if uniq >= 0:
                    if keys_written >= key_room:
                        status = 1
                        break
                    h = ascii_hash(b, uniq, uniq_length, seed)
                    if h >= TWO32:
                        h = hash_span(b, uniq, uniq_length, seed)
                    if h >= TWO32:
                        is_special = True
                    if h >= TWO31:
                        h = (TWO32 - h) & 0x7FFFFFFF
                    row = 20 * keys_written
                    put32(keys, row, h)
                    put64(keys, row + 4, physical)
                    put64(keys, row + 12, stored_at)
                    keys_written += 1
                if many >= 0:
                    part = many
                    j = many + many_length
                    while part <= j:
                        i = find(b, part, j, 32)
                        if i > part:
                            if keys_written >= key_room:
                                status = 1
                                break
                            h = ascii_hash(b, part, i - part, seed)
                            if h >= TWO32:
                                h = hash_span(b, part, i - part, seed)
                            if h >= TWO32:
                                is_special = True
                            if h >= TWO31:
                                h = (TWO32 - h) & 0x7FFFFFFF
                            row = 20 * keys_written
                            put32(keys, row, h)
                            put64(keys, row + 4, physical)
                            put64(keys, row + 12, stored_at)
                            keys_written += 1
                        part = i + 1
                    if status != 0:
                        keys_written = first_key
                        break
            if is_special:
                special[specials] = k
                specials += 1
            k += 1
    counters[0] = k
    counters[1] = keys_written
    counters[2] = groups
    counters[3] = specials
    return status


def gather_by_group(
    entries: cython.const[cython.uchar][::1],
    group: cython.int[::1],
    queue_offset: cython.longlong[::1],
    first: cython.longlong[::1],
    count: cython.longlong[::1],
    plain: cython.uchar[::1],
    start: cython.longlong[::1],
    out: cython.uchar[::1],
):
    """Sort queue entries by group, keeping the log's order (a counting sort).

    Fills first[g] (queue offset of the group's first entry), count[g], plain[g] (1 when its queue offsets ascend by one),
    start[g] (its first entry in `out`), and `out` with the 20-byte entries. Returns how many entries have a group.
    """
    n: cython.Py_ssize_t = group.shape[0]
    groups: cython.Py_ssize_t = first.shape[0]
    k: cython.Py_ssize_t
    g: cython.Py_ssize_t
    total: cython.longlong = 0
    at: cython.Py_ssize_t
    if entries.shape[0] < 20 * n or queue_offset.shape[0] < n or out.shape[0] < 20 * n:
        raise ValueError("arrays are too small")
    if count.shape[0] < groups or plain.shape[0] < groups or start.shape[0] < groups:
        raise ValueError("arrays are too small")
    for k in range(n):
        if group[k] >= groups:
            raise ValueError("a group number is out of range")
    with cython.nogil:
        for g in range(groups):
            count[g] = 0
            plain[g] = 1
        for k in range(n):
            g = group[k]
            if g >= 0:
                if count[g] == 0:
                    first[g] = queue_offset[k]
                elif queue_offset[k] != first[g] + count[g]:
                    plain[g] = 0
                count[g] += 1
        for g in range(groups):
            start[g] = total
            total += count[g]
            count[g] = 0
        for k in range(n):
            g = group[k]
            if g >= 0:
                at = start[g] + count[g]
                copy(out, 20 * at, entries, 20 * k, 20)
                count[g] += 1
    return total
