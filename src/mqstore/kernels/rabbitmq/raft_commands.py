"""Entries of a quorum queue's log parsed in place: what the machine needs of publishes and settles, without creating objects.

`commands` reads the entries that make up nearly all of a log: `e` and `enqueue` with a message whose properties are encoded, and `settle`.
Any other entry gets the kind OTHER and is left to `mqstore.rabbitmq.quorum.commands.read_entry`, which defines all of them. Bodies are
skipped.

>>> import numpy as np
>>> entry = bytes.fromhex("83 6804 770424757372 7400000001 77027473 6109 6803 7706") + b"settle" + bytes.fromhex("610f 6b0001 07")
>>> entry += bytes.fromhex("7707") + b"noreply"
>>> out = np.zeros((1, COLUMNS), np.int64)
>>> commands(np.frombuffer(entry, np.uint8), np.array([0]), np.array([len(entry)]), out)
>>> int(out[0, KIND]) == SETTLE, out[0, [TS, SEQ, IDS_COUNT, BODY]].tolist()
(True, [9, 15, 1, 7])
"""

import cython

# names of atoms as numbers: their letters, at most eight
NAME_USR = cython.declare(cython.longlong, 0x24757372)  # $usr
NAME_TS = cython.declare(cython.longlong, 0x7473)  # ts
NAME_SETTLE = cython.declare(cython.longlong, 0x736574746C65)  # settle
NAME_ENQUEUE = cython.declare(cython.longlong, 0x656E7175657565)  # enqueue
NAME_E = cython.declare(cython.longlong, 0x65)  # e
NAME_NOTIFY = cython.declare(cython.longlong, 0x6E6F74696679)  # notify
NAME_MC = cython.declare(cython.longlong, 0x6D63)  # mc
NAME_AMQPL = cython.declare(cython.longlong, 0x6D635F616D71706C)  # mc_amqpl
NAME_AMQP = cython.declare(cython.longlong, 0x6D635F616D7170)  # mc_amqp
NAME_CONTENT = cython.declare(cython.longlong, 0x636F6E74656E74)  # content
NAME_NONE = cython.declare(cython.longlong, 0x6E6F6E65)  # none
NAME_TTL = cython.declare(cython.longlong, 0x74746C)  # ttl
NAME_P = cython.declare(cython.longlong, 0x70)  # p
NAME_COUNT = cython.declare(cython.longlong, -2)  # delivery_count, which is longer: these letters, and then those
FIRST_OF_COUNT = cython.declare(cython.longlong, 0x64656C697665)
LAST_OF_COUNT = cython.declare(cython.longlong, 0x72795F636F756E74)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def letters(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """Return the letters in [p, end), at most eight, as a number; -1 if one is zero or not ASCII."""
    value: cython.longlong = 0
    while p < end:
        if u8(b, p) == 0 or u8(b, p) > LAST_ASCII:
            return -1
        value = (value << 8) | u8(b, p)
        p += 1
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def name_at(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.longlong:
    """Return the number of the atom at p; -1 if no atom is there, or one that has no number."""
    q: cython.Py_ssize_t = atom_text(b, p, limit)
    end: cython.Py_ssize_t
    if q < 0:
        return -1
    end = skip_atom(b, p, limit)
    if end - q <= LETTERS:
        return letters(b, q, end)
    if end - q != DELIVERY_COUNT_SIZE or letters(b, end - LETTERS, end) != LAST_OF_COUNT:
        return -1
    return NAME_COUNT if letters(b, q, end - LETTERS) == FIRST_OF_COUNT else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def integer_at(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    row: cython.Py_ssize_t,
    column: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Store the integer at p, which is not negative. Return the position after it, or -1 if there is no such integer."""
    n: cython.Py_ssize_t
    value: cython.longlong = 0
    if p < 0 or limit - p < 2:
        return -1
    if u8(b, p) == SMALL_INTEGER:
        out[row, column] = u8(b, p + 1)
        return p + 2
    if u8(b, p) == INTEGER and limit - p >= 1 + INTEGER_SIZE and i32(b, p + 1) >= 0:
        out[row, column] = i32(b, p + 1)
        return p + 1 + INTEGER_SIZE
    if u8(b, p) != SMALL_BIG or limit - p < BIG_HEADER:
        return -1
    n = u8(b, p + 1)
    if n >= LETTERS or u8(b, p + 2) != 0 or limit - p < BIG_HEADER + n:
        return -1
    p += BIG_HEADER + n
    while n > 0:
        value = (value << 8) | u8(b, p - 1)
        p -= 1
        n -= 1
    out[row, column] = value
    return p + u8(b, p - 2)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def timestamp(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    row: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Store `ts` of the map at p. Return the position after the map, or -1."""
    n: cython.longlong
    found: cython.bint = False
    if limit - p < LIST_HEADER or u8(b, p) != MAP:
        return -1
    n = u32(b, p + 1)
    p += LIST_HEADER
    while n > 0:
        n -= 1
        if name_at(b, p, limit) == NAME_TS:
            p = integer_at(b, skip_atom(b, p, limit), limit, out, row, TS)
            found = True
        else:
            p = skip(b, p, limit)
            if p >= 0:
                p = skip(b, p, limit)
        if p < 0:
            return -1
    return p if found else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def record(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    row: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Store the priority of {'P_basic', …} at p. Return the position after it; -1 too if it has an expiration."""
    k: cython.int
    p = tuple_of(b, p, limit, BASIC_ARITY)
    for k in range(BASIC_ARITY):
        if p < 0 or p >= limit:
            return -1
        if k == BASIC_PRIORITY and atom_text(b, p, limit) < 0:
            p = integer_at(b, p, limit, out, row, PRIORITY)
        elif k == BASIC_EXPIRATION and atom_text(b, p, limit) < 0:
            return -1
        else:
            p = skip(b, p, limit)
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def content(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    row: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Store the facts of {content, 60, Properties, PropertiesBin, Protocol, Payload} at p. Return the position after it, or -1."""
    n: cython.longlong
    size: cython.longlong = 0
    p = tuple_of(b, p, limit, CONTENT_ARITY)
    if p < 0 or name_at(b, p, limit) != NAME_CONTENT:
        return -1
    p = skip(b, skip_atom(b, p, limit), limit)
    if p < 0:
        return -1
    p = skip_atom(b, p, limit) if name_at(b, p, limit) == NAME_NONE else record(b, p, limit, out, row)
    if p < 0 or limit - p < BINARY_HEADER or u8(b, p) != BINARY:
        return -1
    out[row, META] = u32(b, p + 1)
    p = skip(b, p, limit)
    if p < 0:
        return -1
    p = skip_atom(b, p, limit)
    if p < 0 or p >= limit:
        return -1
    if u8(b, p) == NIL:
        out[row, BODY] = 0
        return p + 1
    if limit - p < LIST_HEADER or u8(b, p) != LIST:
        return -1
    n = u32(b, p + 1)
    p += LIST_HEADER
    while n > 0:
        n -= 1
        if limit - p < BINARY_HEADER or u8(b, p) != BINARY or u32(b, p + 1) > limit - p - BINARY_HEADER:
            return -1
        size += u32(b, p + 1)
        p += BINARY_HEADER + u32(b, p + 1)
    if p >= limit or u8(b, p) != NIL:
        return -1
    out[row, BODY] = size
    return p + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def message(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    row: cython.Py_ssize_t,
    sized: cython.bint,
) -> cython.Py_ssize_t:
    """Store the facts of the message at p; sized: its sizes are stated elsewhere. Return the position after it, or -1."""
    n: cython.longlong
    name: cython.longlong
    column: cython.Py_ssize_t
    q: cython.Py_ssize_t = tuple_of(b, p, limit, MESSAGE_ARITY)
    out[row, TTL] = out[row, PRIORITY] = out[row, COUNT] = NOTHING
    if q >= 0:
        if not is_message(b, q, limit, MESSAGE_ARITY):
            return -1
        q = skip(b, skip_atom(b, q, limit), limit)
        if q >= 0:
            q = skip(b, q, limit)
        if q >= 0:
            q = content(b, q, limit, out, row)
        if q >= 0:
            q = skip(b, q, limit)
        return skip(b, q, limit) if q >= 0 else -1
    q = tuple_of(b, p, limit, CONTAINER_ARITY)
    if q < 0 or name_at(b, q, limit) != NAME_MC:
        return -1
    q = skip_atom(b, q, limit)
    name = name_at(b, q, limit)
    q = skip_atom(b, q, limit)
    if q < 0:
        return -1
    if name == NAME_AMQPL:
        q = content(b, q, limit, out, row)
    elif name == NAME_AMQP and sized:
        q = skip(b, q, limit)
    else:
        return -1
    if q < 0 or limit - q < LIST_HEADER or u8(b, q) != MAP:
        return -1
    n = u32(b, q + 1)
    q += LIST_HEADER
    while n > 0:
        n -= 1
        name = name_at(b, q, limit)
        q = skip(b, q, limit)
        if q < 0 or q >= limit:
            return -1
        column = TTL if name == NAME_TTL else PRIORITY if name == NAME_P else COUNT if name == NAME_COUNT else COLUMNS
        # `undefined` is an atom: not stated
        if column != COLUMNS and atom_text(b, q, limit) < 0:
            q = integer_at(b, q, limit, out, row, column)
        else:
            q = skip(b, q, limit)
        if q < 0:
            return -1
    return q


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def process(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    row: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Store the span of the process at p; none if there is an atom. Return the position after it, or -1."""
    q: cython.Py_ssize_t
    if p < 0 or p >= limit:
        return -1
    q = skip(b, p, limit)
    if q >= 0 and (u8(b, p) == PID or u8(b, p) == NEW_PID):
        out[row, KEY_START] = p
        out[row, KEY_LENGTH] = q - p
    elif atom_text(b, p, limit) < 0:
        return -1
    return q


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def settled(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    row: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Store consumer and message ids of a settle, whose consumer is at p. Return the position after it, or -1."""
    n: cython.longlong
    q: cython.Py_ssize_t = integer_at(b, p, limit, out, row, SEQ)
    if q < 0:  # {Tag, Process}
        q = skip(b, p, limit)
        if q < 0:
            return -1
        out[row, KEY_START] = p
        out[row, KEY_LENGTH] = q - p
    p = q
    q = skip(b, p, limit)
    if q < 0:
        return -1
    out[row, IDS_START] = p
    if u8(b, p) == STRING:
        out[row, IDS_COUNT] = u16(b, p + 1)
        if out[row, IDS_COUNT] == 1:
            out[row, BODY] = u8(b, p + 1 + LENGTH_16)
        return q
    if u8(b, p) != LIST:
        return -1
    out[row, IDS_COUNT] = n = u32(b, p + 1)
    p += LIST_HEADER
    while n > 0 and p >= 0:
        p = integer_at(b, p, limit, out, row, BODY)
        n -= 1
    return q if p == q - 1 and u8(b, p) == NIL else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def command_at(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    row: cython.Py_ssize_t,
) -> cython.int:
    """Store the columns of the entry in [p, limit). Return its kind."""
    name: cython.longlong
    q: cython.Py_ssize_t
    if limit - p < 2 or u8(b, p) != VERSION:
        return OTHER
    p = tuple_of(b, p + 1, limit, ENTRY_ARITY)
    if p < 0 or name_at(b, p, limit) != NAME_USR:
        return OTHER
    p = timestamp(b, skip_atom(b, p, limit), limit, out, row)
    if p < 0:
        return OTHER
    q = tuple_of(b, p, limit, SETTLE_ARITY)
    if q >= 0:
        if name_at(b, q, limit) != NAME_SETTLE:
            return OTHER
        q = settled(b, skip_atom(b, q, limit), limit, out, row)
        if q < 0 or skip(b, q, limit) != limit:
            return OTHER
        return SETTLE
    q = tuple_of(b, p, limit, PUBLISH_ARITY)
    if q < 0:
        return OTHER
    name = name_at(b, q, limit)
    q = skip_atom(b, q, limit)
    if name == NAME_ENQUEUE:
        q = integer_at(b, process(b, q, limit, out, row), limit, out, row, SEQ)
        if q < 0 or message(b, q, limit, out, row, False) < 0:
            return OTHER
        q = skip(b, q, limit)
        return PUBLISH if q >= 0 and skip(b, q, limit) == limit else OTHER
    if name != NAME_E:
        return OTHER
    q = integer_at(b, q, limit, out, row, SEQ)
    if q < 0:
        return OTHER
    q = message(b, q, limit, out, row, True)
    if q < 0:
        return OTHER
    q = tuple_of(b, q, limit, SIZES_ARITY)
    q = integer_at(b, integer_at(b, q, limit, out, row, META), limit, out, row, BODY)
    if q < 0 or skip(b, q, limit) != limit:
        return OTHER
    # {notify, Correlation, Process}
    q = tuple_of(b, q, limit, NOTIFY_ARITY)
    if q >= 0 and name_at(b, q, limit) == NAME_NOTIFY:
        q = skip(b, skip_atom(b, q, limit), limit)
        if q < 0 or process(b, q, limit, out, row) < 0:
            return OTHER
    return PUBLISH


def commands(b: cython.const[cython.uchar][::1], at: cython.longlong[::1], length: cython.longlong[::1], out: cython.longlong[:, ::1]):
    """Store a row of columns for each entry of `length` bytes at `at`. One outside the buffer is of the kind OTHER."""
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = at.shape[0]
    size: cython.Py_ssize_t = b.shape[0]
    if length.shape[0] < n or out.shape[0] < n or out.shape[1] < COLUMNS:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            out[k, KEY_LENGTH] = 0
            out[k, IDS_COUNT] = 0
            if outside(at[k], length[k], size):
                out[k, KIND] = OTHER
            else:
                out[k, KIND] = command_at(b, at[k], at[k] + length[k], out, k)


def message_ids(b: cython.const[cython.uchar][::1], columns: cython.longlong[:, ::1], out: cython.longlong[:, ::1]):
    """Store the message ids of the settles among rows of `commands`, one in each row of `out`. Return how many there are."""
    limit: cython.Py_ssize_t = b.shape[0]
    row: cython.Py_ssize_t
    k: cython.longlong
    p: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    if columns.shape[1] < COLUMNS or out.shape[1] < 1:
        raise ValueError("the columns are too few")
    with cython.nogil:
        for row in range(columns.shape[0]):
            if columns[row, KIND] != SETTLE:
                continue
            p = columns[row, IDS_START]
            if columns[row, IDS_COUNT] > out.shape[0] - n or p < 0 or limit - p < LIST_HEADER:
                break
            if columns[row, IDS_COUNT] == 1:
                out[n, 0] = columns[row, BODY]
                n += 1
            elif u8(b, p) == STRING:
                p += 1 + LENGTH_16
                if columns[row, IDS_COUNT] > limit - p:
                    break
                for k in range(columns[row, IDS_COUNT]):
                    out[n, 0] = u8(b, p + k)
                    n += 1
            else:
                p += LIST_HEADER
                for k in range(columns[row, IDS_COUNT]):
                    p = integer_at(b, p, limit, out, n, 0)
                    n += 1
    return n


def deliver(
    who: cython.longlong[::1],
    first: cython.longlong[::1],
    count: cython.longlong[::1],
    ids: cython.longlong[::1],
    consumers: cython.longlong[:, ::1],
    where: cython.longlong[::1],
    turns: cython.longlong[::1],
    waiting: cython.Py_ssize_t,
    messages: cython.longlong[:, ::1],
    head: cython.Py_ssize_t,
    tail: cython.Py_ssize_t,
):
    """Run publishes (who: NOTHING) and settles (who: their consumer) of a queue whose consumers are served in turns.

    first, count: the ids of a settle, in `ids`. consumers: a row of CONSUMER_COLUMNS each; `where` has the message of the id k of a
    consumer at PLACE + k - LOW_ID, or NOTHING. turns: as many places as consumers, the first `waiting` of them those with credit, in order.
    messages: a row of MESSAGE_COLUMNS each; those from head to tail are ready, publishes add those from tail on.

    The arrays are as they are afterwards; return the new (head, place of the first in turns, how many wait).
    """
    n: cython.Py_ssize_t = who.shape[0]
    size: cython.Py_ssize_t = turns.shape[0]
    room: cython.Py_ssize_t = messages.shape[0]
    start: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    k: cython.Py_ssize_t
    place: cython.Py_ssize_t
    found: cython.longlong
    c: cython.longlong
    if first.shape[0] < n or count.shape[0] < n or consumers.shape[1] < CONSUMER_COLUMNS or messages.shape[1] < MESSAGE_COLUMNS:
        raise ValueError("the columns differ in length")
    if not 0 <= head <= tail <= room or not 0 <= waiting <= size or size != consumers.shape[0]:
        raise ValueError("the messages or the turns are outside their arrays")
    with cython.nogil:
        for row in range(n):
            c = who[row]
            if c < 0:
                if tail == room:
                    break
                tail += 1
            elif c >= size or first[row] < 0 or count[row] < 0 or first[row] + count[row] > ids.shape[0]:
                break
            else:
                found = 0
                for k in range(first[row], first[row] + count[row]):
                    if ids[k] < consumers[c, LOW_ID] or ids[k] >= consumers[c, NEXT_ID]:
                        continue
                    place = consumers[c, PLACE] + ids[k] - consumers[c, LOW_ID]
                    if where[place] >= 0:
                        messages[where[place], LEFT] = row
                        where[place] = NOTHING
                        found += 1
                if found > 0 and consumers[c, CREDIT] == 0:
                    turns[(start + waiting) % size] = c
                    waiting += 1
                consumers[c, CREDIT] += found
            while waiting > 0 and head < tail:
                c = turns[start]
                start = (start + 1) % size
                waiting -= 1
                place = consumers[c, PLACE] + consumers[c, NEXT_ID] - consumers[c, LOW_ID]
                where[place] = head
                messages[head, HOLDER] = c
                messages[head, ID] = consumers[c, NEXT_ID]
                messages[head, GIVEN] = row
                head += 1
                consumers[c, NEXT_ID] += 1
                consumers[c, CREDIT] -= 1
                if consumers[c, CREDIT] > 0:
                    turns[(start + waiting) % size] = c
                    waiting += 1
    return head, start, waiting
