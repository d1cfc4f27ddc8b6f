"""The fused dispatch kernel: from walked records to consume queue entries and index keys, in one pass without bodies.

For each record of the given positions it writes the 20-byte queue entry, the group (a number for its topic and queue id), the
queue offset, and 20 bytes for each key (hash i32, physical offset i64, store time i64, all big-endian) in the order in
which the broker's index service puts them: UNIQ_KEY, then the parts of KEYS, then (since 5.4.0) `T#` and TAGS.

Records that need more than that (delay levels, multi-dispatch, inner batches, text that is not UTF-8) are listed by
number in `special`: `mqstore.rocketmq.dispatch.dispatcher` makes their entries and keys in Python.
"""

import cython

# what dispatch needs of the properties of a record; a span that is absent starts at -1
Properties = cython.struct(
    tags_code=cython.longlong,
    tags=cython.Py_ssize_t,
    tags_length=cython.Py_ssize_t,
    unique_key=cython.Py_ssize_t,
    unique_key_length=cython.Py_ssize_t,
    keys=cython.Py_ssize_t,
    keys_length=cython.Py_ssize_t,
    is_special=cython.bint,
)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def slot_of(topic_hash: cython.ulonglong, queue: cython.int) -> cython.ulonglong:
    """Return the hash of a topic and queue id for the table of groups."""
    return (topic_hash * 31 + (queue & 0xFFFF)) * 40503 >> 5


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def text_hash(
    b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, n: cython.Py_ssize_t, seed: cython.ulonglong
) -> cython.ulonglong:
    """Return Java's hash of n bytes at p, carried on from seed; TWO32 if they are not UTF-8."""
    h: cython.ulonglong = ascii_hash(b, p, n, seed)
    return h if h < TWO32 else hash_span(b, p, n, seed)


def enter_groups(
    b: cython.const[cython.uchar][::1],
    table: cython.int[::1],
    group_topic: cython.longlong[::1],
    group_length: cython.longlong[::1],
    group_queue: cython.int[::1],
    count: cython.Py_ssize_t,
):
    """Enter groups 0 … count-1, which must differ, into an empty table."""
    mask: cython.ulonglong = table.shape[0] - 1
    slot: cython.ulonglong
    g: cython.Py_ssize_t
    if count > group_topic.shape[0] or group_length.shape[0] < count or group_queue.shape[0] < count or table.shape[0] < 2 * count:
        raise ValueError("arrays are too small")
    if (table.shape[0] & (table.shape[0] - 1)) != 0:
        raise ValueError("the table's length must be a power of two")
    with cython.nogil:
        for g in range(count):
            slot = slot_of(hash_span(first_byte(b), group_topic[g], group_length[g], 0), cython.cast(cython.int, group_queue[g])) & mask
            while table[slot] >= 0:
                slot = (slot + 1) & mask
            table[slot] = g


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def find_group(
    b: cython.pointer[cython.const[cython.uchar]],
    topic: cython.Py_ssize_t,
    topic_length: cython.Py_ssize_t,
    topic_hash: cython.ulonglong,
    queue: cython.int,
    table: cython.int[::1],
    group_topic: cython.longlong[::1],
    group_length: cython.longlong[::1],
    group_queue: cython.int[::1],
    groups: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the group of a topic and queue id; `groups` if it was entered now, NO_ROOM if it cannot be."""
    mask: cython.ulonglong = table.shape[0] - 1
    slot: cython.ulonglong = slot_of(topic_hash, queue) & mask
    g: cython.Py_ssize_t
    while True:
        g = table[slot]
        if g < 0:
            if groups >= group_topic.shape[0]:
                return NO_ROOM
            table[slot] = groups
            group_topic[groups] = topic
            group_length[groups] = topic_length
            group_queue[groups] = queue
            return groups
        if group_queue[g] == queue and group_length[g] == topic_length and same(b, group_topic[g], b, topic, topic_length):
            return g
        slot = (slot + 1) & mask


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def needs_python(
    b: cython.pointer[cython.const[cython.uchar]],
    name: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    topic: cython.Py_ssize_t,
    topic_length: cython.Py_ssize_t,
) -> cython.bint:
    """Return whether a property's name makes its record special: DELAY in the schedule topic, INNER_NUM, INNER_BASE and the like."""
    if length == 5:
        if i32(b, name) == WORD_DELA and u8(b, name + 4) == 0x59:  # DELAY
            return topic_length == SCHEDULE_TOPIC_LENGTH and u8(b, topic) == 0x53  # S
        return False
    return length > 8 and i32(b, name) == WORD_INNE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def properties_of(
    b: cython.pointer[cython.const[cython.uchar]],
    start: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    topic: cython.Py_ssize_t,
    topic_length: cython.Py_ssize_t,
) -> Properties:
    """Return what dispatch needs of a property text. The last of equal names counts."""
    i: cython.Py_ssize_t = start
    j: cython.Py_ssize_t
    stop: cython.Py_ssize_t = start + length
    name: cython.Py_ssize_t
    row: cython.int
    h: cython.ulonglong
    tags_code: cython.longlong = 0
    tags: cython.Py_ssize_t = -1
    tags_length: cython.Py_ssize_t = 0
    unique_key: cython.Py_ssize_t = -1
    unique_key_length: cython.Py_ssize_t = 0
    keys: cython.Py_ssize_t = -1
    keys_length: cython.Py_ssize_t = 0
    is_special: cython.bint = False
    while i < stop:
        j = find(b, i, stop, PAIR_END)
        name = name_end(b, i, j)
        if name >= 0:
            row = known_row(b, i, name - i)
            if row == TAGS_START:
                h = text_hash(b, name + 1, j - name - 1, 0)
                if h >= TWO32:
                    is_special = True
                tags_code = h
                if h >= TWO31:
                    tags_code = tags_code - TWO32
                tags = name + 1
                tags_length = j - name - 1
            elif row == KEYS_START:
                keys = name + 1
                keys_length = j - name - 1
            elif row == UNIQ_KEY_START:
                unique_key = name + 1
                unique_key_length = j - name - 1
            elif needs_python(b, i, name - i, topic, topic_length):
                is_special = True
        i = j + 1
    return Properties(
        tags_code=tags_code,
        tags=tags,
        tags_length=tags_length,
        unique_key=unique_key,
        unique_key_length=unique_key_length,
        keys=keys,
        keys_length=keys_length,
        is_special=is_special,
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_key(
    b: cython.pointer[cython.const[cython.uchar]],
    start: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    seed: cython.ulonglong,
    physical_offset: cython.longlong,
    store_timestamp: cython.longlong,
    keys: cython.pointer[cython.uchar],
    k: cython.Py_ssize_t,
) -> cython.bint:
    """Write row k of the keys: the key of n bytes at start. Returns whether its bytes are not UTF-8."""
    h: cython.ulonglong = text_hash(b, start, n, seed)
    malformed: cython.bint = h >= TWO32
    if h >= TWO31:  # Java's absolute value
        h = (TWO32 - h) & 0x7FFFFFFF
    put32(keys, KEY_SIZE * k, h)
    put64(keys, KEY_SIZE * k + KEY_AT_OFFSET, physical_offset)
    put64(keys, KEY_SIZE * k + KEY_AT_TIMESTAMP, store_timestamp)
    return malformed


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
    index_tags: cython.bint,
):
    """Dispatch positions[counters[RECORDS]:]; results are written after those that the counters already count.

    table: power-of-two hash table of group numbers, -1 where empty, at least twice as long as group_topic.
    index_tags: whether the tags of a record get a key, too, as since 5.4.0.
    Returns DONE, or which array must grow; a record that did not fit is left for the next call.
    """
    n: cython.Py_ssize_t = positions.shape[0]
    k: cython.Py_ssize_t = counters[RECORDS]
    written: cython.longlong = counters[KEYS]
    groups: cython.Py_ssize_t = counters[GROUPS]
    specials: cython.Py_ssize_t = counters[SPECIALS]
    key_room: cython.longlong = keys.shape[0] // KEY_SIZE
    status: cython.int = DONE
    p: cython.Py_ssize_t
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    kind: cython.int
    physical: cython.longlong
    stored_at: cython.longlong
    topic_hash: cython.ulonglong
    seed: cython.ulonglong
    g: cython.Py_ssize_t
    is_special: cython.bint
    first_key: cython.longlong
    parts: RecordParts  # noqa: F821
    properties: Properties
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    entry_rows: cython.pointer[cython.uchar] = start_of(entries)
    key_rows: cython.pointer[cython.uchar] = start_of(keys)
    if k > n or entries.shape[0] < ENTRY_SIZE * n or group.shape[0] < n or queue_offset.shape[0] < n or store_timestamp.shape[0] < n:
        raise ValueError("arrays are too small")
    if special.shape[0] < n or (table.shape[0] & (table.shape[0] - 1)) != 0 or table.shape[0] < 2 * group_topic.shape[0]:
        raise ValueError("arrays are too small")
    with cython.nogil:
        while k < n:
            if k + 7 < n:
                prefetch(b, positions[k + 7])
                prefetch(b, positions[k + 7] + LINE)
                # the record before the next one ends where that one starts: its topic and properties
                prefetch(b, positions[k + 7] - LINE)
                prefetch(b, positions[k + 7] - 2 * LINE)
            p = positions[k]
            parts = parts_of(source, p)
            physical = i64(source, p + AT_PHYSICAL_OFFSET)
            stored_at = i64(source, p + parts.born_length + AT_STORE_TIMESTAMP)
            topic_hash = text_hash(source, parts.topic, parts.topic_length, 0)
            properties = properties_of(source, parts.properties, parts.properties_length, parts.topic, parts.topic_length)
            is_special = topic_hash >= TWO32 or properties.is_special
            # queue entry
            put64(entry_rows, ENTRY_SIZE * k, physical)
            put32(entry_rows, ENTRY_SIZE * k + ENTRY_AT_SIZE, i32(source, p + AT_SIZE))
            put64(entry_rows, ENTRY_SIZE * k + ENTRY_AT_TAGS_CODE, properties.tags_code)
            queue_offset[k] = i64(source, p + AT_QUEUE_OFFSET)
            store_timestamp[k] = stored_at
            kind = parts.sys_flag & TRANSACTION_MASK
            g = NO_GROUP
            if kind == TRANSACTION_NONE or kind == TRANSACTION_COMMIT:
                g = find_group(
                    source,
                    parts.topic,
                    parts.topic_length,
                    topic_hash,
                    i32(source, p + AT_QUEUE_ID),
                    table,
                    group_topic,
                    group_length,
                    group_queue,
                    groups,
                )
                if g == NO_ROOM:
                    status = GROUPS_FULL
                    break
                if g == groups:
                    groups += 1
            group[k] = g
            # index keys; the hash of a key goes on from that of `topic#`
            seed = (topic_hash * 31 + 35) & LOW32
            first_key = written
            if properties.unique_key >= 0 and kind != TRANSACTION_ROLLBACK:
                if written >= key_room:
                    status = KEYS_FULL
                    break
                if put_key(source, properties.unique_key, properties.unique_key_length, seed, physical, stored_at, key_rows, written):
                    is_special = True
                written += 1
            if properties.keys >= 0 and kind != TRANSACTION_ROLLBACK:
                start = properties.keys
                stop = start + properties.keys_length
                while start <= stop:
                    i = find(source, start, stop, KEY_SEPARATOR)
                    if i > start:
                        if written >= key_room:
                            status = KEYS_FULL
                            break
                        if put_key(source, start, i - start, seed, physical, stored_at, key_rows, written):
                            is_special = True
                        written += 1
                    start = i + 1
                if status != DONE:
                    written = first_key
                    break
            if index_tags and properties.tags >= 0 and kind != TRANSACTION_ROLLBACK:
                if written >= key_room:
                    written = first_key
                    status = KEYS_FULL
                    break
                # the hash goes on from that of `topic#T#`
                seed = (((seed * 31 + 84) & LOW32) * 31 + 35) & LOW32
                if put_key(source, properties.tags, properties.tags_length, seed, physical, stored_at, key_rows, written):
                    is_special = True
                written += 1
            if is_special:
                special[specials] = k
                specials += 1
            k += 1
    counters[RECORDS] = k
    counters[KEYS] = written
    counters[GROUPS] = groups
    counters[SPECIALS] = specials
    return status


def sort_by_group(
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

    Fills first[g] (queue offset of the group's first entry), count[g], plain[g] (1 if its queue offsets ascend by one),
    start[g] (its first entry in `out`), and `out` with the 20-byte entries. Returns the number of entries that have a group.
    """
    n: cython.Py_ssize_t = group.shape[0]
    groups: cython.Py_ssize_t = first.shape[0]
    k: cython.Py_ssize_t
    g: cython.Py_ssize_t
    total: cython.longlong = 0
    at: cython.Py_ssize_t
    if entries.shape[0] < ENTRY_SIZE * n or queue_offset.shape[0] < n or out.shape[0] < ENTRY_SIZE * n:
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
                copy(out, ENTRY_SIZE * at, entries, ENTRY_SIZE * k, ENTRY_SIZE)
                count[g] += 1
    return total
