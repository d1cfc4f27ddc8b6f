"""Java's String.hashCode over UTF-8 bytes: h = 31 h + c over UTF-16 code units, modulo 2^32.

Bytes that are not UTF-8 are not hashed here: the caller decodes them as Java does and hashes the text.
A hash can be carried on: the seed for the bytes of a key is the hash of `topic#`.
"""

import cython

MALFORMED = 1 << 32  # set in the result of hash_span when the bytes are not UTF-8


def hash_span(b, p, n, seed):
    """Return the hash of n bytes at p, carried on from seed; MALFORMED if they are not UTF-8."""
    h: cython.ulonglong = seed
    i: cython.Py_ssize_t = 0
    a: cython.uint
    c: cython.uint
    d: cython.uint
    e: cython.uint
    while i + 4 <= n:
        a = u8(b, p + i)
        c = u8(b, p + i + 1)
        d = u8(b, p + i + 2)
        e = u8(b, p + i + 3)
        if (a | c | d | e) >= 128:
            return hash_utf8(b, p, n, seed)
        h = (h * 923521 + a * 29791 + c * 961 + d * 31 + e) & LOW32
        i += 4
    while i < n:
        a = u8(b, p + i)
        if a >= 128:
            return hash_utf8(b, p, n, seed)
        h = (h * 31 + a) & LOW32
        i += 1
    return h


def hash_utf8(b, p, n, seed):
    """Hash text that is not ASCII, as `hash_span` does: decode it and make surrogate pairs."""
    h: cython.ulonglong = seed
    i: cython.Py_ssize_t = 0
    k: cython.Py_ssize_t
    more: cython.Py_ssize_t
    unit: cython.uint
    byte: cython.uint
    while i < n:
        unit = u8(b, p + i)
        if unit < 0x80:
            more = 0
        elif unit < 0xC2:
            return TWO32
        elif unit < 0xE0:
            more = 1
            unit = unit & 0x1F
        elif unit < 0xF0:
            more = 2
            unit = unit & 0x0F
        elif unit < 0xF5:
            more = 3
            unit = unit & 0x07
        else:
            return TWO32
        if i + more >= n:
            return TWO32
        for k in range(more):
            byte = u8(b, p + i + k + 1)
            if byte & 0xC0 != 0x80:
                return TWO32
            unit = (unit << 6) | (byte & 0x3F)
        if more == 2 and (unit < 0x800 or 0xD800 <= unit <= 0xDFFF):
            return TWO32
        if more == 3:
            if unit < 0x10000 or unit > 0x10FFFF:
                return TWO32
            h = (h * 31 + (0xD7C0 + (unit >> 10))) & LOW32
            unit = 0xDC00 + (unit & 0x3FF)
        h = (h * 31 + unit) & LOW32
        i += more + 1
    return h


def hash_bytes(b: cython.const[cython.uchar][::1], seed: cython.ulonglong = 0):
    """Return the hash of all bytes of b as an unsigned 32-bit number, MALFORMED (2^32) if they are not UTF-8."""
    return hash_span(first_byte(b), 0, b.shape[0], seed)


def hash_spans(
    b: cython.const[cython.uchar][::1],
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
    out: cython.longlong[::1],
):
    """Set out[k] to the unsigned hash of span k, or MALFORMED; a negative length counts as 0."""
    n: cython.Py_ssize_t = starts.shape[0]
    k: cython.Py_ssize_t
    if lengths.shape[0] < n or out.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            out[k] = hash_span(first_byte(b), starts[k], lengths[k] if lengths[k] > 0 else 0, 0)
