"""Segments of RabbitMQ's streams: the chunks of a segment with their checksums, the entries of chunks, the records of sub-batches.

A chunk is a header of 48 bytes, a filter, data and a trailer. Only the data have a checksum, so a chunk is trusted if the checksum
fits and, for messages, the data are entries to the last byte.

Format: docs/formats/rabbitmq-streams.md, sections 2 and 3.
"""

import cython


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_header(b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.bint:
    """Return whether the bytes at p may be the header of a chunk."""
    return (
        limit - p >= CHUNK_HEADER_SIZE
        and u8(b, p) == CHUNK_MAGIC
        and u8(b, p + CHUNK_AT_KIND) <= LAST_KIND
        and i64(b, p + CHUNK_AT_EPOCH) >= 0
        and i64(b, p + CHUNK_AT_ID) >= 0
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def data_at(b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return where the data of the chunk at p begin."""
    return p + CHUNK_HEADER_SIZE + u8(b, p + CHUNK_AT_FILTER_SIZE)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def end_of(b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return where the chunk at p ends."""
    return data_at(b, p) + u32(b, p + CHUNK_AT_DATA_SIZE) + u32(b, p + CHUNK_AT_TRAILER_SIZE)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def entry_size(b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """Return the bytes of the entry at p, or 0 if it does not end before end."""
    size: cython.longlong
    if end - p < LENGTH_SIZE:
        return 0
    if u8(b, p) & BATCH_MARK:
        if end - p < BATCH_HEADER_SIZE:
            return 0
        size = BATCH_HEADER_SIZE + u32(b, p + BATCH_AT_SIZE)
    else:
        size = LENGTH_SIZE + u32(b, p)
    return size if size <= end - p else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_tracking(
    b: cython.pointer[cython.const[cython.uchar]],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    snapshot: cython.bint,
    named: cython.bint,
) -> cython.bint:
    """Return whether the bytes in [p, end) are blocks of tracking, of a snapshot or not, and not a section of AMQP 1.0.

    named: only if each block has an id. A message may be any bytes, such as ten zeros, which are a block without one.
    """
    kind: cython.int
    if is_section(b, p, end):
        return False
    while end - p >= BLOCK_HEADER_SIZE:
        kind = u8(b, p)
        if kind > LAST_BLOCK or (named and u8(b, p + 1) == 0):
            return False
        p += BLOCK_HEADER_SIZE + u8(b, p + 1) + (2 * BLOCK_NUMBER_SIZE if snapshot and kind == 0 else BLOCK_NUMBER_SIZE)
    return p == end


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_section(b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Return whether a section of a message of AMQP 1.0 may begin at p."""
    return end - p >= 3 and u8(b, p) == 0 and u8(b, p + 1) == SMALL_ULONG and FIRST_SECTION <= u8(b, p + 2) <= LAST_SECTION


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def true_kind(b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t) -> cython.int:
    """Return the kind of the whole chunk at p by its data, or that of its header if they do not show it."""
    q: cython.Py_ssize_t = data_at(b, p)
    end: cython.Py_ssize_t = q + u32(b, p + CHUNK_AT_DATA_SIZE)
    kind: cython.int = u8(b, p + CHUNK_AT_KIND)
    if end - q <= LENGTH_SIZE or u32(b, q) != end - q - LENGTH_SIZE:
        return kind
    if kind != 0 and is_tracking(b, q + LENGTH_SIZE, end, kind == LAST_KIND, False):
        return kind
    if is_tracking(b, q + LENGTH_SIZE, end, False, kind == 0):
        return 1
    if is_tracking(b, q + LENGTH_SIZE, end, True, kind == 0):
        return LAST_KIND
    return 0 if is_section(b, q + LENGTH_SIZE, end) else kind


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def agrees(b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t) -> cython.bint:
    """Return whether the data of the whole chunk at p are the entries and records that its header counts."""
    q: cython.Py_ssize_t = data_at(b, p)
    end: cython.Py_ssize_t = q + u32(b, p + CHUNK_AT_DATA_SIZE)
    size: cython.longlong
    entries: cython.longlong = 0
    records: cython.longlong = 0
    if true_kind(b, p) != u8(b, p + CHUNK_AT_KIND):
        return False
    if u8(b, p + CHUNK_AT_KIND) != 0:
        size = u32(b, q) if end - q >= LENGTH_SIZE else -1
        return size == end - q - LENGTH_SIZE and u16(b, p + CHUNK_AT_ENTRIES) == 1 and u32(b, p + CHUNK_AT_RECORDS) == 1
    while q < end:
        size = entry_size(b, q, end)
        if size == 0:
            return False
        entries += 1
        records += u16(b, q + BATCH_AT_RECORDS) if u8(b, q) & BATCH_MARK else 1
        q += size
    return entries == u16(b, p + CHUNK_AT_ENTRIES) and records == u32(b, p + CHUNK_AT_RECORDS)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def fits(b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t) -> cython.bint:
    """Return whether the checksum of the chunk at p, whose data are there, fits."""
    return crc_on(b, data_at(b, p), u32(b, p + CHUNK_AT_DATA_SIZE), 0) == u32(b, p + CHUNK_AT_CRC)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def follows(b: cython.pointer[cython.const[cython.uchar]], p: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> cython.bint:
    """Return whether the segment ends where the chunk at p does, or a chunk with the next id is there."""
    q: cython.Py_ssize_t = end_of(b, p)
    if q == limit:
        return True
    return is_header(b, q, limit) and i64(b, q + CHUNK_AT_ID) - i64(b, p + CHUNK_AT_ID) == u32(b, p + CHUNK_AT_RECORDS)


def walk(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
):
    """Walk over the chunks that begin in [start, stop), one after the other: their columns, as many as there is room for.

    A chunk whose checksum does not fit is only taken for one (BAD_DATA) if the next one, or the end, is where it should be. So is one
    whose trailer would end after the segment; the walk stops where the trailer begins.
    Return (chunks, position where the walk stopped, why).
    """
    limit: cython.Py_ssize_t = b.shape[0]
    room: cython.Py_ssize_t = out.shape[1]
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    why: cython.int = DONE
    state: cython.longlong
    if start < 0 or stop > limit or out.shape[0] < CHUNK_COLUMNS:
        raise ValueError("the columns are too few, or the range is outside the buffer")
    with cython.nogil:
        while p < stop:
            if n == room:
                why = FULL
                break
            if not is_header(source, p, limit):
                why = TORN if limit - p < CHUNK_HEADER_SIZE and u8(source, p) == CHUNK_MAGIC else NOT_A_CHUNK
                break
            if data_at(source, p) + u32(source, p + CHUNK_AT_DATA_SIZE) > limit:
                why = TORN
                break
            if fits(source, p):
                state = INTACT if agrees(source, p) else BAD_HEADER
            elif follows(source, p, limit):
                state = BAD_DATA
            else:
                why = NOT_A_CHUNK
                break
            out[AT, n] = p
            out[KIND, n] = u8(source, p + CHUNK_AT_KIND)
            out[ENTRIES, n] = u16(source, p + CHUNK_AT_ENTRIES)
            out[RECORDS, n] = u32(source, p + CHUNK_AT_RECORDS)
            out[TIMESTAMP, n] = i64(source, p + CHUNK_AT_TIMESTAMP)
            out[EPOCH, n] = i64(source, p + CHUNK_AT_EPOCH)
            out[ID, n] = i64(source, p + CHUNK_AT_ID)
            out[DATA_SIZE, n] = u32(source, p + CHUNK_AT_DATA_SIZE)
            out[TRAILER_SIZE, n] = u32(source, p + CHUNK_AT_TRAILER_SIZE)
            out[FILTER_SIZE, n] = u8(source, p + CHUNK_AT_FILTER_SIZE)
            out[STATE, n] = state
            n += 1
            if end_of(source, p) > limit:
                p = data_at(source, p) + u32(source, p + CHUNK_AT_DATA_SIZE)
                why = CUT_TRAILER
                break
            p = end_of(source, p)
    return n, p, why


def resume(
    b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, low: cython.longlong, high: cython.longlong, effort: cython.longlong
):
    """Find the next chunk at or after start that is proved: checksum, counts and an id in [low, high).

    Return (its position or -1, effort left). effort: bytes that failed attempts may take; when it is used up, the search ends.
    """
    limit: cython.Py_ssize_t = b.shape[0]
    last: cython.Py_ssize_t = limit - CHUNK_HEADER_SIZE
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    p: cython.Py_ssize_t = start
    found: cython.Py_ssize_t = -1
    size: cython.longlong
    chunk_id: cython.longlong
    if start < 0:
        raise ValueError("the range is outside the buffer")
    with cython.nogil:
        while p < last and effort > 0:
            p = find(source, p, last, CHUNK_MAGIC)
            if p >= last:
                break
            if is_header(source, p, limit):
                size = u32(source, p + CHUNK_AT_DATA_SIZE)
                chunk_id = i64(source, p + CHUNK_AT_ID)
                if (
                    size > 0
                    and u8(source, p + CHUNK_AT_RESERVED) == 0
                    and u16(source, p + CHUNK_AT_RESERVED + 1) == 0
                    and low <= chunk_id < high
                    and data_at(source, p) + size <= limit
                ):
                    if agrees(source, p) and fits(source, p):
                        found = p
                        break
                    effort -= size
            p += 1
    return found, effort


def entries(
    b: cython.const[cython.uchar][::1],
    at: cython.longlong[:],
    length: cython.longlong[:],
    out: cython.longlong[:, ::1],
):
    """Split the data of chunks into entries. at, length: the data of each chunk; out: as many columns as there are entries.

    A chunk's entries end at the first one that does not fit. Return the number of entries, of which the first are in the columns.
    """
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    limit: cython.Py_ssize_t = b.shape[0]
    room: cython.Py_ssize_t = out.shape[1]
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    end: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    size: cython.longlong
    first: cython.longlong
    records: cython.longlong
    inside: cython.bint = True
    if length.shape[0] < at.shape[0] or out.shape[0] < ENTRY_COLUMNS:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(at.shape[0]):
            if at[k] < 0 or length[k] < 0 or at[k] > limit or length[k] > limit - at[k]:
                inside = False
                break
            p = at[k]
            end = p + length[k]
            first = 0
            while p < end:
                size = entry_size(source, p, end)
                if size == 0:
                    break
                records = u16(source, p + BATCH_AT_RECORDS) if u8(source, p) & BATCH_MARK else 1
                if n < room:
                    out[CHUNK, n] = k
                    out[FIRST, n] = first
                    out[RECORD_COUNT, n] = records
                    if u8(source, p) & BATCH_MARK:
                        out[CONTENT, n] = p + BATCH_HEADER_SIZE
                        out[LENGTH, n] = size - BATCH_HEADER_SIZE
                        out[CODEC, n] = (u8(source, p) >> BATCH_CODEC_SHIFT) & BATCH_CODEC_MASK
                        out[PLAIN_SIZE, n] = u32(source, p + BATCH_AT_PLAIN_SIZE)
                    else:
                        out[CONTENT, n] = p + LENGTH_SIZE
                        out[LENGTH, n] = size - LENGTH_SIZE
                        out[CODEC, n] = -1
                        out[PLAIN_SIZE, n] = size - LENGTH_SIZE
                n += 1
                first += records
                p += size
    if not inside:
        raise ValueError("the data of a chunk lie outside the buffer")
    return n


def records(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    at: cython.longlong[:],
    length: cython.longlong[:],
):
    """Split the uncompressed content of a sub-batch, [start, stop), into records. Return (records, position after the last one)."""
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    p: cython.Py_ssize_t = start
    n: cython.Py_ssize_t = 0
    if start < 0 or stop > b.shape[0] or length.shape[0] < at.shape[0]:
        raise ValueError("the range is outside the buffer, or the columns differ in length")
    with cython.nogil:
        while n < at.shape[0] and stop - p >= LENGTH_SIZE and u32(source, p) <= stop - p - LENGTH_SIZE:
            at[n] = p + LENGTH_SIZE
            length[n] = u32(source, p)
            p += LENGTH_SIZE + length[n]
            n += 1
    return n, p


def kind_of(b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t):
    """Return the kind of the chunk at a position, whose data are there, by its data; that of its header if they do not show it."""
    source: cython.pointer[cython.const[cython.uchar]] = first_byte(b)
    if (
        start < 0
        or not is_header(source, start, b.shape[0])
        or data_at(source, start) + u32(source, start + CHUNK_AT_DATA_SIZE) > b.shape[0]
    ):
        raise ValueError("there is no whole chunk")
    return true_kind(source, start)


def effort_for(size: cython.longlong):
    """Return the effort that a search in this many bytes may take."""
    return EFFORT * size + LEAST_EFFORT
