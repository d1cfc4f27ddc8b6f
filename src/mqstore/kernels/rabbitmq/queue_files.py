"""Queue files written from stored messages: entries of a `.qs` with their checksums, publishes of a segment.

Messages are taken from one buffer by position and length; the caller has computed where each entry goes. Both functions check every
position.

    >>> import numpy as np
    >>> source, page = np.frombuffer(b"..\\x83j", np.uint8), np.zeros(10, np.uint8)
    >>> store_entries(source, np.array([2]), np.array([2]), page, np.array([0]))
    >>> page.tobytes().hex()
    '0000000201513100836a'

Format: docs/formats/rabbitmq.md, sections 4, 5.4 and 12.3.
"""

import cython


def store_entries(
    b: cython.const[cython.uchar][::1],
    at: cython.longlong[:],
    length: cython.longlong[:],
    to: cython.uchar[::1],
    to_at: cython.longlong[:],
):
    """Write entries of a queue store: size, flag, low 16 bits of the CRC-32, message. Raises ValueError for a position outside a buffer."""
    n: cython.Py_ssize_t = at.shape[0]
    k: cython.Py_ssize_t
    crc: cython.uint
    fits: cython.bint = True
    if length.shape[0] < n or to_at.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            if outside(at[k], length[k], b.shape[0]) or outside(to_at[k], length[k] + ENTRY_HEADER_SIZE, to.shape[0]):
                fits = False
                break
            crc = crc_on(first_byte(b), at[k], length[k], 0)
            put32(to, to_at[k] + ENTRY_AT_SIZE, length[k])
            put8(to, to_at[k] + ENTRY_AT_FLAGS, ENTRY_HAS_CRC)
            put16(to, to_at[k] + ENTRY_AT_CRC, crc)
            put8(to, to_at[k] + ENTRY_AT_PADDING, 0)
            copy(to, to_at[k] + ENTRY_HEADER_SIZE, b, at[k], length[k])
    if not fits:
        raise ValueError("an entry lies outside its buffer")


def sound_entries(
    b: cython.const[cython.uchar][::1],
    at: cython.longlong[:],
    length: cython.longlong[:],
    out: cython.uchar[:],
):
    """Store for each entry of a queue store 1 if it is complete, has this size and matches its checksum if it has one, else 0."""
    n: cython.Py_ssize_t = at.shape[0]
    k: cython.Py_ssize_t
    p: cython.longlong
    size: cython.longlong
    crc: cython.uint
    if length.shape[0] < n or out.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            p = at[k]
            out[k] = 0
            if outside(p, ENTRY_HEADER_SIZE, b.shape[0]) or outside(p, length[k] + ENTRY_HEADER_SIZE, b.shape[0]):
                continue
            size = u32(b, p + ENTRY_AT_SIZE)
            if size != length[k]:
                continue
            if u8(b, p + ENTRY_AT_FLAGS) & ENTRY_HAS_CRC:
                crc = crc_on(first_byte(b), p + ENTRY_HEADER_SIZE, size, 0)
                if u16(b, p + ENTRY_AT_CRC) != cython.cast(cython.int, crc & 0xFFFF):
                    continue
            out[k] = 1


def publishes(
    b: cython.const[cython.uchar][::1],
    at: cython.longlong[:],
    length: cython.longlong[:],
    rel: cython.longlong[:],
    hi: cython.longlong[:],
    lo: cython.longlong[:],
    expiry: cython.longlong[:],
    size: cython.longlong[:],
    to: cython.uchar[::1],
    to_at: cython.longlong[:],
):
    """Write entries of a segment: a persistent publish with its embedded message (none: length 0), followed by its delivery.

    Raises ValueError for a position outside a buffer.
    """
    n: cython.Py_ssize_t = at.shape[0]
    k: cython.Py_ssize_t
    p: cython.longlong
    fits: cython.bint = length.shape[0] >= n and rel.shape[0] >= n and hi.shape[0] >= n and lo.shape[0] >= n
    if not fits or expiry.shape[0] < n or size.shape[0] < n or to_at.shape[0] < n:
        raise ValueError("the columns differ in length")
    with cython.nogil:
        for k in range(n):
            p = to_at[k]
            if (
                rel[k] < 0
                or rel[k] > REL_MASK
                or outside(at[k], length[k], b.shape[0])
                or outside(p, length[k] + SEGMENT_PUBLISH_SIZE + SEGMENT_MARK_SIZE, to.shape[0])
            ):
                fits = False
                break
            put16(to, p, SEGMENT_PUBLISH | SEGMENT_PERSISTENT | rel[k])
            p += SEGMENT_WORD_SIZE
            put64(to, p, hi[k])
            put64(to, p + AT_LOW_ID, lo[k])
            put64(to, p + AT_EXPIRY, expiry[k])
            put32(to, p + AT_SIZE, size[k])
            put32(to, p + AT_EMBEDDED, length[k])
            p += FIELDS_SIZE
            copy(to, p, b, at[k], length[k])
            put16(to, p + length[k], SEGMENT_MARK | rel[k])
    if not fits:
        raise ValueError("an entry lies outside its buffer")
