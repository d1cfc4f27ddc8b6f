"""Index files of RabbitMQ classic queues, version 1: journal and segments from bytes to columns, and the combined effect of their actions.

All functions take the file as bytes and fill columns that the caller allocates. The rules are those of sections 3.1, 4.1
and 5.2 of the specification of the stores; where the broker would crash, the entry is flagged and the plausible state kept.
"""

import cython


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def all_zero(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.bint:
    k: cython.Py_ssize_t
    for k in range(p, p + n):
        if u8(b, k) != 0:
            return False
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def has_own_id(b: cython.const[cython.uchar][::1], fields: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
    """Return whether the embedded message, `size` bytes after the fields of a publish, has the id of the publish."""
    at: cython.Py_ssize_t = fields + FIELDS_SIZE
    return shape_at(b, at, at + size, i64(b, fields), i64(b, fields + AT_LOW_ID)) & SAME_ID != 0


def journal_walk(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    kind: cython.uchar[:],
    seq: cython.longlong[:],
    at: cython.longlong[:],
):
    """Read records from `start` on: kind, sequence id and position of each, as many as the columns hold.

    Return (records, position after the last, status).
    """
    limit: cython.Py_ssize_t = b.shape[0]
    room: cython.Py_ssize_t = kind.shape[0]
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    status: cython.int = DONE
    word: cython.longlong
    low: cython.longlong = 1
    what: cython.int
    if start < 0 or seq.shape[0] < room or at.shape[0] < room:
        raise ValueError("the columns differ in length")
    low = (low << SEQUENCE_BITS) - 1
    with cython.nogil:
        while True:
            if limit - p < JOURNAL_WORD_SIZE:
                status = DONE if p >= limit else TORN
                break
            if n == room:
                status = FULL
                break
            what = u8(b, p) >> KIND_SHIFT
            word = i64(b, p) & low
            if what <= PUBLISH_TRANSIENT:
                if limit - p < JOURNAL_PUBLISH_SIZE:
                    status = TORN
                    break
                if what == PUBLISH and word == 0 and all_zero(b, p + JOURNAL_WORD_SIZE, FIELDS_SIZE):
                    status = ZEROS
                    break
                if u32(b, p + JOURNAL_AT_EMBEDDED) > limit - p - JOURNAL_PUBLISH_SIZE:
                    status = TORN
                    break
            kind[n] = what
            seq[n] = word
            at[n] = p
            n += 1
            p += JOURNAL_WORD_SIZE if what > PUBLISH_TRANSIENT else JOURNAL_PUBLISH_SIZE + u32(b, p + JOURNAL_AT_EMBEDDED)
    return n, p, status


def journal_resume(b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t):
    """Return the position of the next valid publish after damage, or -1.

    Valid is a publish whose embedded message has the id of the record, and one without a message whose delivery follows directly.
    """
    limit: cython.Py_ssize_t = b.shape[0]
    p: cython.Py_ssize_t = start
    after: cython.Py_ssize_t
    size: cython.longlong
    found: cython.Py_ssize_t = -1
    if start < 0:
        raise ValueError("positions are counted from 0")
    with cython.nogil:
        while limit - p >= JOURNAL_PUBLISH_SIZE:
            # of the bits of the sequence id the upper 22 are never used
            if (u8(b, p) & ~TRANSIENT_BIT) == 0 and u8(b, p + 1) == 0 and u8(b, p + 2) == 0:
                size = u32(b, p + JOURNAL_AT_EMBEDDED)
                after = p + JOURNAL_PUBLISH_SIZE
                if size == 0:
                    # a delivery of the same sequence id: its word ends in the same seven bytes
                    if (
                        limit - after >= JOURNAL_WORD_SIZE
                        and u8(b, after) == DELIVER << KIND_SHIFT
                        and i32(b, after + 4) == i32(b, p + 4)
                        and i32(b, after + 1) == i32(b, p + 1)
                        and not all_zero(b, p + JOURNAL_WORD_SIZE, ID_SIZE)
                    ):
                        found = p
                        break
                elif size <= EMBEDDED_LIMIT and size <= limit - after and u8(b, after) == VERSION:
                    if has_own_id(b, p + JOURNAL_WORD_SIZE, size):
                        found = p
                        break
            p += 1
    return found


def publish_fields(
    b: cython.const[cython.uchar][::1],
    at: cython.longlong[:],
    fixed: cython.Py_ssize_t,
    hi: cython.longlong[:],
    lo: cython.longlong[:],
    expiry: cython.longlong[:],
    size: cython.longlong[:],
    embedded: cython.longlong[:],
):
    """Store the fields of the publishes at `at`, whose message id is `fixed` bytes after the start (8 in a journal, 2 in a segment).

    The positions come from a walk: the fixed part is complete. Raises ValueError for a position outside the file.
    """
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = at.shape[0]
    p: cython.Py_ssize_t
    limit: cython.Py_ssize_t = b.shape[0]
    outside: cython.bint = False
    if hi.shape[0] < n or lo.shape[0] < n or expiry.shape[0] < n or size.shape[0] < n or embedded.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            p = at[k] + fixed
            if at[k] < 0 or limit - p < FIELDS_SIZE:
                outside = True
                break
            hi[k] = i64(b, p)
            lo[k] = i64(b, p + AT_LOW_ID)
            expiry[k] = i64(b, p + AT_EXPIRY)
            size[k] = u32(b, p + AT_SIZE)
            embedded[k] = u32(b, p + AT_EMBEDDED)
    if outside:
        raise ValueError("a publish lies outside the file")


def segment_walk(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    state: cython.uchar[:],
    at: cython.longlong[:],
):
    """Add the entries from `start` on to the state (bits P, D, A, CRASH, REPEATED) and publish position of each of `count` rels.

    Return (entries, position of the first entry that is incomplete or invalid, status).
    """
    limit: cython.Py_ssize_t = b.shape[0]
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    status: cython.int = DONE
    word: cython.int
    rel: cython.int
    if start < 0 or state.shape[0] < count or at.shape[0] < count:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        while True:
            if limit - p < SEGMENT_WORD_SIZE:
                status = DONE if p >= limit else TORN
                break
            word = u16(b, p)
            rel = word & REL_MASK
            if word < SEGMENT_MARK or rel >= count:
                status = BAD
                break
            if word & SEGMENT_PUBLISH:
                if limit - p < SEGMENT_PUBLISH_SIZE or u32(b, p + SEGMENT_AT_EMBEDDED) > limit - p - SEGMENT_PUBLISH_SIZE:
                    status = TORN
                    break
                if state[rel] & P:
                    if not same_publish(b, at[rel], p):
                        state[rel] |= REPEATED
                    state[rel] = (state[rel] & FLAWS) | P
                else:
                    state[rel] |= P
                at[rel] = p
                p += SEGMENT_PUBLISH_SIZE + u32(b, p + SEGMENT_AT_EMBEDDED)
            else:
                if (state[rel] & ACTIONS) == P:
                    state[rel] |= D
                elif (state[rel] & ACTIONS) == P | D:
                    state[rel] |= A
                else:
                    state[rel] |= CRASH
                p += SEGMENT_MARK_SIZE
            n += 1
    return n, p, status


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def same_publish(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, q: cython.Py_ssize_t) -> cython.bint:
    """Return whether two complete publishes of a segment have the same bytes."""
    n: cython.Py_ssize_t = SEGMENT_PUBLISH_SIZE + u32(b, p + SEGMENT_AT_EMBEDDED)
    k: cython.Py_ssize_t
    for k in range(SEGMENT_PUBLISH_SIZE):
        if u8(b, p + k) != u8(b, q + k):
            return False
    for k in range(SEGMENT_PUBLISH_SIZE, n):
        if u8(b, p + k) != u8(b, q + k):
            return False
    return True


def segment_resume(b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, count: cython.Py_ssize_t):
    """Return the position of the next publish after damage whose embedded message has the id of the entry, or -1."""
    limit: cython.Py_ssize_t = b.shape[0]
    p: cython.Py_ssize_t = start
    size: cython.longlong
    found: cython.Py_ssize_t = -1
    if start < 0:
        raise ValueError("positions are counted from 0")
    with cython.nogil:
        # the first two bytes of the message are there
        while limit - p >= SEGMENT_PUBLISH_SIZE + 2:
            if u8(b, p) & (SEGMENT_PUBLISH >> 8) and u8(b, p + SEGMENT_PUBLISH_SIZE) == VERSION and (u16(b, p) & REL_MASK) < count:
                size = u32(b, p + SEGMENT_AT_EMBEDDED)
                if size > 0 and size <= EMBEDDED_LIMIT and size <= limit - p - SEGMENT_PUBLISH_SIZE:
                    if has_own_id(b, p + SEGMENT_WORD_SIZE, size):
                        found = p
                        break
            p += 1
    return found


def fold(
    order: cython.longlong[:],
    kind: cython.uchar[:],
    seq: cython.longlong[:],
    first: cython.longlong[:],
    state: cython.uchar[:],
    publish: cython.longlong[:],
    repeat: cython.longlong[:],
    bad: cython.longlong[:],
):
    """Combine the actions of each sequence id as the broker's journal map does (section 5.2).

    order: the actions by sequence id, those of one id in file order. Filled for each id: `first`, its first action; `state`: what
    the map holds in bits P, D, A, and REMOVED, CRASH; `publish`, the action that published it (REMOVED: that had), or -1; `repeat`,
    a second publish, or -1; `bad`, the action at which the broker would crash, or -1. Return the number of ids.

    Where it would crash: of two publishes the first counts, an acknowledgement takes effect, anything repeated changes nothing.
    """
    n: cython.Py_ssize_t = order.shape[0]
    k: cython.Py_ssize_t = 0
    g: cython.Py_ssize_t = 0
    a: cython.longlong
    s: cython.int
    low: cython.int
    crash: cython.bint
    if first.shape[0] < n or state.shape[0] < n or publish.shape[0] < n or repeat.shape[0] < n or bad.shape[0] < n:
        raise ValueError("the columns are too short")
    with cython.nogil:
        while k < n:
            a = order[k]
            first[g] = a
            publish[g] = -1
            repeat[g] = -1
            bad[g] = -1
            s = 0
            while k < n and seq[order[k]] == seq[first[g]]:
                a = order[k]
                crash = False
                low = s & ACTIONS
                if kind[a] <= PUBLISH_TRANSIENT:
                    if low & P:
                        crash = True
                        repeat[g] = a
                    else:
                        crash = low != 0
                        publish[g] = a
                        s = (s & FLAWS) | low | P
                        if low & A:
                            s = (s & FLAWS) | REMOVED
                elif kind[a] == DELIVER:
                    if low < D:
                        s |= D
                    else:
                        crash = True
                elif low == 0 or low == D:
                    s |= A
                elif low & P:
                    crash = low == P
                    s = (s & FLAWS) | REMOVED
                else:
                    crash = True
                if crash:
                    s |= CRASH
                    if bad[g] < 0:
                        bad[g] = a
                k += 1
            state[g] = s
            g += 1
    return g
