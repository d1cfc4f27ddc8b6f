"""CRC-32 (zlib's) without leaving a kernel: table look-ups over five interleaved streams of eight bytes.

A look-up table answers what one byte does to the CRC some bytes later, so eight look-ups advance the CRC by a word. Each waits
for the one before it; five words side by side do not. So a span is read in blocks of five words: stream i carries word i
over to word i of the next block, 40 bytes later (`FAR` holds the effect of a byte 33 to 40 bytes on), and the last block
brings the five together word by word (`NEAR`: 1 to 8 bytes on).

    >>> import numpy as np
    >>> hex(crc_of(np.frombuffer(b"Hello RocketMQ", np.uint8)))
    '0x69c865ed'

A library that has a faster function can lend it (`use_library`): spans of some length are its own then, without a call by the interpreter.

The broker clears the top bit of a body's CRC (docs/formats/rocketmq.md, 2.3); so does `crc_spans`.
"""

import cython


def use_library(address: cython.size_t):
    """Leave spans of 64 bytes and more to a C function, `crc(before, bytes, count)`, at that address."""
    global LIBRARY, AVX
    AVX = has_avx()
    LIBRARY = cython.cast(library_function, address)


def _fill_tables():
    """Row k of NEAR (of FAR): what each value of byte k of a word does to the CRC at the end of the word (32 bytes after its end)."""
    n: cython.uint
    k: cython.int
    crc: cython.uint
    row: cython.int
    for n in range(256):
        crc = n
        for k in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        NEAR[7 * 256 + n] = crc
    for row in range(6, -1, -1):
        for n in range(256):
            crc = NEAR[(row + 1) * 256 + n]
            NEAR[row * 256 + n] = (crc >> 8) ^ NEAR[7 * 256 + (crc & 255)]
    for row in range(8):
        for n in range(256):
            crc = NEAR[row * 256 + n]
            for k in range(32):
                crc = (crc >> 8) ^ NEAR[7 * 256 + (crc & 255)]
            FAR[row * 256 + n] = crc


_fill_tables()


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def near(w: cython.ulonglong) -> cython.ulonglong:
    """The CRC at the end of a word that was mixed with the CRC before it."""
    return (
        NEAR[w & 255]
        ^ NEAR[256 + ((w >> 8) & 255)]
        ^ NEAR[512 + ((w >> 16) & 255)]
        ^ NEAR[768 + ((w >> 24) & 255)]
        ^ NEAR[1024 + ((w >> 32) & 255)]
        ^ NEAR[1280 + ((w >> 40) & 255)]
        ^ NEAR[1536 + ((w >> 48) & 255)]
        ^ NEAR[1792 + (w >> 56)]
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def far(w: cython.ulonglong) -> cython.ulonglong:
    """What a mixed word adds to the word of its stream in the next block."""
    return (
        FAR[w & 255]
        ^ FAR[256 + ((w >> 8) & 255)]
        ^ FAR[512 + ((w >> 16) & 255)]
        ^ FAR[768 + ((w >> 24) & 255)]
        ^ FAR[1024 + ((w >> 32) & 255)]
        ^ FAR[1280 + ((w >> 40) & 255)]
        ^ FAR[1536 + ((w >> 48) & 255)]
        ^ FAR[1792 + (w >> 56)]
    )


def crc_on(b, start, n, crc):
    """CRC-32 of n bytes of b from start, carried on from crc (0 at first; the result can be carried on again)."""
    p: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + n
    c: cython.ulonglong = crc ^ LOW32
    w0: cython.ulonglong
    w1: cython.ulonglong
    w2: cython.ulonglong
    w3: cython.ulonglong
    w4: cython.ulonglong
    if n >= 64 and LIBRARY != cython.NULL:
        found: cython.uint = LIBRARY(crc, b + start, n)
        if AVX:
            clear_upper()
        return found
    if n >= 80:
        w0 = little64(b, p) ^ c
        w1 = little64(b, p + 8)
        w2 = little64(b, p + 16)
        w3 = little64(b, p + 24)
        w4 = little64(b, p + 32)
        p += 40
        while p + 40 <= end:
            w0 = little64(b, p) ^ far(w0)
            w1 = little64(b, p + 8) ^ far(w1)
            w2 = little64(b, p + 16) ^ far(w2)
            w3 = little64(b, p + 24) ^ far(w3)
            w4 = little64(b, p + 32) ^ far(w4)
            p += 40
        c = near(near(near(near(near(w0) ^ w1) ^ w2) ^ w3) ^ w4)
    while p + 8 <= end:
        c = near(little64(b, p) ^ c)
        p += 8
    while p < end:
        c = (c >> 8) ^ NEAR[1792 + ((c ^ u8(b, p)) & 255)]
        p += 1
    return cython.cast(cython.uint, c ^ LOW32)


def crc_of(b: cython.const[cython.uchar][::1], before: cython.uint = 0):
    """CRC-32 of all bytes of b, carried on from `before`."""
    return crc_on(first_byte(b), 0, b.shape[0], before)


def crc_spans(
    b: cython.const[cython.uchar][::1],
    starts: cython.longlong[::1],
    lengths: cython.longlong[::1],
    out: cython.longlong[::1],
):
    """out[k] = CRC-32 without its top bit of span k; 0 for an empty span. Raises ValueError for a span outside b."""
    n: cython.Py_ssize_t = starts.shape[0]
    limit: cython.longlong = b.shape[0]
    k: cython.Py_ssize_t
    fits: cython.bint = True
    if lengths.shape[0] < n or out.shape[0] < n:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(n):
            if starts[k] < 0 or lengths[k] < 0 or lengths[k] > limit - starts[k]:
                fits = False
                break
            out[k] = crc_on(first_byte(b), starts[k], lengths[k], 0) & 0x7FFFFFFF
    if not fits:
        raise ValueError("a span lies outside its buffer")
