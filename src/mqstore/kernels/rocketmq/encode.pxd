from cpython.bytes cimport PyBytes_AS_STRING
from mqstore.kernels.common.crc_spans cimport crc_on
from mqstore.kernels.common.loads cimport LOW32, mq_store32, mq_store64, memcpy
from mqstore.kernels.rocketmq.frames cimport (
    BODY_CRC, BODY_LENGTH, BODY_START, BORN_HOST, BORN_TIMESTAMP, FIELD_COUNT, FLAG, PHYSICAL_OFFSET, PREPARED_TRANSACTION_OFFSET,
    PROPERTIES_LENGTH, PROPERTIES_START, QUEUE_ID, QUEUE_OFFSET, RECONSUME_TIMES, SIZE, STORE_HOST, STORE_TIMESTAMP, SYS_FLAG,
    TOPIC_LENGTH, TOPIC_START,
)
from mqstore.kernels.rocketmq.record_layout cimport (
    AT_BODY, AT_BODY_CRC, AT_BODY_LENGTH, AT_BORN_HOST, AT_BORN_TIMESTAMP, AT_FLAG, AT_PHYSICAL_OFFSET, AT_PREPARED_OFFSET,
    AT_QUEUE_ID, AT_QUEUE_OFFSET, AT_RECONSUME_TIMES, AT_STORE_HOST, AT_STORE_TIMESTAMP, AT_SYS_FLAG, BORN_HOST_IPV6,
    CRC_DIGITS, CRC_NAME_SIZE, CRC_PROPERTY_SIZE, FIXED_SIZE, FRAME_SIZE, IPV4_HOST_SIZE, IPV6_HOST_SIZE, MAGIC_BLANK, MAGIC_V1,
    MAGIC_V2, MAX_PROPERTIES, MAX_RECORD_SIZE, MAX_TOPIC_V1, MAX_TOPIC_V2, NAME_END, PAIR_END, PROPERTIES_LENGTH_SIZE, RecordValues,
    STORE_HOST_IPV6, Span, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, WORD_CRC_FIRST, WORD_CRC_SECOND,
    born_host_size, empty_values, store_host_size,
)

# cpdef: Python sees them too
cpdef enum:
    END_OF_FILE = -1  # the record and the eight bytes after it do not fit before the limit

    # the `__CRC32#` property at the end of the properties (5.3): none; that of a single message, after a PAIR_END, which is added if
    # it is missing; that of a message of a producer's batch, where nothing is added
    NO_PROPERTY_CRC = 0
    PROPERTY_CRC = 1
    PROPERTY_CRC_IN_BATCH = 2

cdef enum:
    LONG_BODY = 65536  # bytes of a body from which other threads may run while its record is written
    ZERO = 48  # the digit

cdef Py_ssize_t MIN_LIBRARY_BODY

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

# an IPv4 host without a call
cdef inline void copy_host(unsigned char *to, Py_ssize_t at, const unsigned char *b, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    if n == IPV4_HOST_SIZE:
        memcpy(to + at, b + start, IPV4_HOST_SIZE)
    else:
        copy(to, at, b, start, n)

cdef inline bint overlap(const unsigned char *to, Py_ssize_t at, Py_ssize_t n, const unsigned char *b, Py_ssize_t start, Py_ssize_t m) noexcept nogil:
    return n > 0 and m > 0 and to + at < b + start + m and b + start < to + at + n

# the address of a variable
cdef extern from *:
    """
    #define mq_ref(x) (&(x))
    """
    const RecordValues *ref "mq_ref"(RecordValues values) noexcept nogil

cdef void put_record(unsigned char *to, Py_ssize_t at, const RecordValues *r) noexcept nogil
