"""Index files of RabbitMQ classic queues, version 1: journal and segments from bytes to columns, and the combined effect of their actions.

All functions take the file as bytes and fill columns that the caller allocates. The rules are those of sections 3.1, 4.1
and 5.2 of the specification of the stores; where the broker would crash, the entry is flagged and the plausible state kept.
"""

import cython

if not cython.compiled:
    from mqstore.kernels.common.loads import i32, i64, u8
    from mqstore.kernels.rabbitmq.terms import shape_at, unsigned32

# kinds of a journal record
PUBLISH = 0
PUBLISH_TRANSIENT = 1
DELIVER = 2
ACKNOWLEDGE = 3

# status of a walk
DONE = 0  # the end of the file
ZEROS = 1  # journal: forty zero bytes, as a crash leaves them
TORN = 2  # fewer bytes than the record needs
BAD = 3  # segment: a word that is neither publish nor del/ack, or one for an entry the segment cannot have
FULL = 4

# bits of a state
P = 1
D = 2
A = 4
REMOVED = 8  # published, delivered and acknowledged within the journal: the broker has forgotten it
CRASH = 16  # the broker would crash on these actions
REPEATED = 32  # a second, different publish

EMBEDDED_LIMIT = 16777216


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def all_zero(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.bint:
    k: cython.Py_ssize_t
    for k in range(p, p + n):
        if u8(b, k) != 0:
            return False
    return True


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
    status: cython.int = 0
    word: cython.longlong
    low: cython.longlong = 1
    what: cython.int
    if start < 0 or seq.shape[0] < room or at.shape[0] < room:
        raise ValueError("the columns differ in length")
    low = (low << 62) - 1
    with cython.nogil:
        while True:
            if limit - p < 8:
                status = 0 if p >= limit else 2
                break
            if n == room:
                status = 4
                break
            what = u8(b, p) >> 6
            word = i64(b, p) & low
            if what < 2:
                if limit - p < 40:
                    status = 2
                    break
                if what == 0 and word == 0 and all_zero(b, p + 8, 32):
                    status = 1
                    break
                if unsigned32(b, p + 36) > limit - p - 40:
                    status = 2
                    break
            kind[n] = what
            seq[n] = word
            at[n] = p
            n += 1
            p += 8 if what > 1 else 40 + unsigned32(b, p + 36)
    return n, p, status


def journal_resume(b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t):
    """Return the position of the next valid publish after damage, or -1.

    Valid is a publish whose embedded message has the id of the record, and one without a message whose delivery follows directly.
    """
    limit: cython.Py_ssize_t = b.shape[0]
    p: cython.Py_ssize_t = start
    size: cython.longlong
    found: cython.Py_ssize_t = -1
    if start < 0:
        raise ValueError("positions are counted from 0")
    with cython.nogil:
        while limit - p >= 40:
            # of 62 bits the upper 22 are never used
            if (u8(b, p) & 191) == 0 and u8(b, p + 1) == 0 and u8(b, p + 2) == 0:
                size = unsigned32(b, p + 36)
                if size == 0:
                    if (
                        limit - p >= 48
                        and u8(b, p + 40) == 128
                        and i32(b, p + 44) == i32(b, p + 4)
                        and i32(b, p + 41) == i32(b, p + 1)
                        and not all_zero(b, p + 8, 16)
                    ):
                        found = p
                        break
                elif size <= 16777216 and size <= limit - p - 40 and u8(b, p + 40) == 131:
                    if shape_at(b, p + 40, p + 40 + size, i64(b, p + 8), i64(b, p + 16)) & 4:
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
            if at[k] < 0 or limit - p < 32:
                outside = True
                break
            hi[k] = i64(b, p)
            lo[k] = i64(b, p + 8)
            expiry[k] = i64(b, p + 16)
            size[k] = unsigned32(b, p + 24)
            embedded[k] = unsigned32(b, p + 28)
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
    status: cython.int = 0
    word: cython.int
    rel: cython.int
    if start < 0 or state.shape[0] < count or at.shape[0] < count:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        while True:
            if limit - p < 2:
                status = 0 if p >= limit else 2
                break
            word = (u8(b, p) << 8) | u8(b, p + 1)
            rel = word & 16383
            if word < 16384 or rel >= count:
                status = 3
                break
            if word >= 32768:
                if limit - p < 34 or unsigned32(b, p + 30) > limit - p - 34:
                    status = 2
                    break
                if state[rel] & 1:
                    if not same_publish(b, at[rel], p):
                        state[rel] |= 32
                    state[rel] = (state[rel] & 48) | 1
                else:
                    state[rel] |= 1
                at[rel] = p
                p += 34 + unsigned32(b, p + 30)
            else:
                if (state[rel] & 7) == 1:
                    state[rel] |= 2
                elif (state[rel] & 7) == 3:
                    state[rel] |= 4
                else:
                    state[rel] |= 16
                p += 2
            n += 1
    return n, p, status


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def same_publish(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, q: cython.Py_ssize_t) -> cython.bint:
    """Return whether two complete publishes of a segment have the same bytes."""
    n: cython.Py_ssize_t = 34 + unsigned32(b, p + 30)
    k: cython.Py_ssize_t
    for k in range(34):
        if u8(b, p + k) != u8(b, q + k):
            return False
    for k in range(34, n):
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
        while limit - p >= 36:
            if u8(b, p) >= 128 and u8(b, p + 34) == 131 and (((u8(b, p) << 8) | u8(b, p + 1)) & 16383) < count:
                size = unsigned32(b, p + 30)
                if size > 0 and size <= 16777216 and size <= limit - p - 34:
                    if shape_at(b, p + 34, p + 34 + size, i64(b, p + 2), i64(b, p + 10)) & 4:
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
                low = s & 7
                if kind[a] < 2:
                    if low & 1:
                        crash = True
                        repeat[g] = a
                    else:
                        crash = low != 0
                        publish[g] = a
                        s = (s & 48) | low | 1
                        if low & 4:
                            s = (s & 48) | 8
                elif kind[a] == 2:
                    if low < 2:
                        s |= 2
                    else:
                        crash = True
                elif low == 0:
                    s |= 4
                elif low == 2:
                    s |= 4
                elif low & 1:
                    crash = low == 1
                    s = (s & 48) | 8
                else:
                    crash = True
                if crash:
                    s |= 16
                    if bad[g] < 0:
                        bad[g] = a
                k += 1
            state[g] = s
            g += 1
    return g
