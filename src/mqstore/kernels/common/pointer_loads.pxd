# Loads and stores at a pointer: the functions of loads.pxd for the small functions of a kernel, which take no array. A C compiler keeps
# copying arrays (208 bytes) that are passed through two levels of inlined functions; a pointer costs nothing.
from mqstore.kernels.common.loads cimport memcmp, mq_ascii_hash, mq_find, mq_load32, mq_load64, mq_store32, mq_store64

cdef inline const unsigned char *first_byte(const unsigned char[::1] b) noexcept nogil:
    return <const unsigned char *> b._data

cdef inline unsigned int u8(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return b[p]

cdef inline int i8(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return <signed char> b[p]

cdef inline int i16(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return <short> ((b[p] << 8) | b[p + 1])

cdef inline int i32(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return <int> mq_load32(b + p)

cdef inline long long i64(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return <long long> mq_load64(b + p)

cdef inline void put32(unsigned char *b, Py_ssize_t p, long long v) noexcept nogil:
    mq_store32(b + p, <unsigned int> v)

cdef inline void put64(unsigned char *b, Py_ssize_t p, long long v) noexcept nogil:
    mq_store64(b + p, <unsigned long long> v)

cdef inline Py_ssize_t find(const unsigned char *b, Py_ssize_t start, Py_ssize_t stop, int c) noexcept nogil:
    cdef Py_ssize_t k = mq_find(b + start, c, stop - start)
    return stop if k < 0 else start + k

cdef inline bint same(const unsigned char *a, Py_ssize_t p, const unsigned char *b, Py_ssize_t q, Py_ssize_t n) noexcept nogil:
    return n <= 0 or (a[p] == b[q] and memcmp(a + p, b + q, <size_t> n) == 0)  # mostly, no call is needed

cdef inline unsigned long long ascii_hash(const unsigned char *b, Py_ssize_t p, Py_ssize_t n, unsigned long long seed) noexcept nogil:
    return mq_ascii_hash(b + p, n, seed)
