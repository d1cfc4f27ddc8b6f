from cpython.bytes cimport PyBytes_AS_STRING
from mqstore.kernels.common.crc_spans cimport crc_on
from mqstore.kernels.common.loads cimport LOW32, mq_store32, mq_store64, memcpy

cdef Py_ssize_t CALLED

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

cdef void put_record(
    unsigned char *to, Py_ssize_t at, long long size, int wide, int queue_id, int flag, long long queue_offset, long long physical_offset,
    int sys_flag, long long born_timestamp, const unsigned char *born, Py_ssize_t born_start, Py_ssize_t born_length,
    long long store_timestamp, const unsigned char *store, Py_ssize_t store_start, Py_ssize_t store_length, int reconsume_times,
    long long prepared, const unsigned char *body, Py_ssize_t body_start, Py_ssize_t body_length, long long body_crc,
    const unsigned char *topic, Py_ssize_t topic_start, Py_ssize_t topic_length, const unsigned char *properties,
    Py_ssize_t properties_start, Py_ssize_t properties_length, Py_ssize_t tail
) noexcept nogil
