from cpython.bytes cimport PyBytes_AS_STRING
from mqstore.kernels.checksums cimport crc_on
from mqstore.kernels.loads cimport LOW32, mq_store32, mq_store64, memcpy

cdef extern from *:
    """
    static CYTHON_INLINE void mq_publish(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }
    """
    void publish "mq_publish"() noexcept nogil

cdef inline unsigned char *first_byte(const unsigned char[::1] b) noexcept nogil:
    return <unsigned char *> b._data

cdef inline const unsigned char *bytes_start(bytes b) noexcept:
    return <const unsigned char *> PyBytes_AS_STRING(b)

cdef inline unsigned int u8(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return b[p]

cdef inline void put8(unsigned char *b, Py_ssize_t p, long long v) noexcept nogil:
    b[p] = <unsigned char> v

cdef inline void put16(unsigned char *b, Py_ssize_t p, long long v) noexcept nogil:
    b[p] = <unsigned char> (v >> 8)
    b[p + 1] = <unsigned char> v

cdef inline void put32(unsigned char *b, Py_ssize_t p, long long v) noexcept nogil:
    mq_store32(b + p, <unsigned int> v)

cdef inline void put64(unsigned char *b, Py_ssize_t p, long long v) noexcept nogil:
    mq_store64(b + p, <unsigned long long> v)

cdef inline void copy(unsigned char *to, Py_ssize_t at, const unsigned char *b, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    if n > 0:
        memcpy(to + at, b + start, <size_t> n)

cdef inline bint overlap(const unsigned char *to, Py_ssize_t at, Py_ssize_t n, const unsigned char *b, Py_ssize_t start, Py_ssize_t m) noexcept nogil:
    return n > 0 and m > 0 and to + at < b + start + m and b + start < to + at + n
