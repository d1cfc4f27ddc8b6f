from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING
from mqstore.kernels.common.loads cimport memcpy, prefetch
from mqstore.kernels.common.pointer_loads cimport find, first_byte, i32, i64, same, u8
from mqstore.kernels.rocketmq.frames cimport (
    BODY_CRC, BODY_LENGTH, BODY_START, BORN_HOST, BORN_TIMESTAMP, FIELD_COUNT, FLAG, KEYS_LENGTH, KEYS_START, KNOWN_ROW_COUNT,
    PHYSICAL_OFFSET, PREPARED_TRANSACTION_OFFSET, PROPERTIES_LENGTH, PROPERTIES_START, QUEUE_ID, QUEUE_OFFSET, RECONSUME_TIMES, SIZE,
    STORE_HOST, STORE_TIMESTAMP, SYS_FLAG, TAGS_LENGTH, TAGS_START, TOPIC_LENGTH, TOPIC_START, UNIQ_KEY_LENGTH, UNIQ_KEY_START, VALID,
    check, known_row, read_fields,
)
from mqstore.kernels.rocketmq.pull cimport announce
from mqstore.kernels.rocketmq.record_layout cimport (
    AT_BORN_HOST, AT_PHYSICAL_OFFSET, BORN_HOST_IPV6, COMPRESSED, FRAME_SIZE, KEY_SEPARATOR, NAME_END, PAIR_END, ROW_BYTES, ROW_NUMBERS,
    ROW_PHYSICAL_OFFSET, ROW_SIZE, STORE_HOST_IPV6,
)

# the names of pull_batch.py, where they are described
cdef enum:
    # what a column's buffers are, counted from its first
    VALIDITY = 0
    VALUES = 1
    OFFSETS = 1
    TEXT = 2
    NUMBER_BUFFERS = 2
    TEXT_BUFFERS = 3

    BUFFER_TOPIC = 0
    BUFFER_QUEUE_ID = BUFFER_TOPIC + TEXT_BUFFERS
    BUFFER_QUEUE_OFFSET = BUFFER_QUEUE_ID + NUMBER_BUFFERS
    BUFFER_OFFSET = BUFFER_QUEUE_OFFSET + NUMBER_BUFFERS
    BUFFER_SIZE = BUFFER_OFFSET + NUMBER_BUFFERS
    BUFFER_TAGS = BUFFER_SIZE + NUMBER_BUFFERS
    BUFFER_KEYS = BUFFER_TAGS + TEXT_BUFFERS
    BUFFER_KEY_ITEMS = BUFFER_KEYS + NUMBER_BUFFERS
    BUFFER_UNIQ_KEY = BUFFER_KEY_ITEMS + TEXT_BUFFERS
    BUFFER_BODY = BUFFER_UNIQ_KEY + TEXT_BUFFERS
    BUFFER_BODY_CRC = BUFFER_BODY + TEXT_BUFFERS
    BUFFER_FLAG = BUFFER_BODY_CRC + NUMBER_BUFFERS
    BUFFER_SYS_FLAG = BUFFER_FLAG + NUMBER_BUFFERS
    BUFFER_RECONSUME_TIMES = BUFFER_SYS_FLAG + NUMBER_BUFFERS
    BUFFER_PREPARED_OFFSET = BUFFER_RECONSUME_TIMES + NUMBER_BUFFERS
    BUFFER_BORN_TIMESTAMP = BUFFER_PREPARED_OFFSET + NUMBER_BUFFERS
    BUFFER_BORN_HOST = BUFFER_BORN_TIMESTAMP + NUMBER_BUFFERS
    BUFFER_STORE_TIMESTAMP = BUFFER_BORN_HOST + TEXT_BUFFERS
    BUFFER_STORE_HOST = BUFFER_STORE_TIMESTAMP + NUMBER_BUFFERS
    BUFFER_MSG_ID = BUFFER_STORE_HOST + TEXT_BUFFERS
    BUFFER_PROPERTIES = BUFFER_MSG_ID + TEXT_BUFFERS
    BUFFER_PROPERTY_NAMES = BUFFER_PROPERTIES + NUMBER_BUFFERS + 1
    BUFFER_PROPERTY_VALUES = BUFFER_PROPERTY_NAMES + TEXT_BUFFERS

    NODE_TAGS = 5
    NODE_KEYS = 6
    NODE_KEY_ITEMS = 7
    NODE_UNIQ_KEY = 8
    NODE_PROPERTY_PAIRS = 21
    NODE_PROPERTY_NAMES = 22
    NODE_PROPERTY_VALUES = 23

    ROWS = 0
    NULLS = 1
    BEGIN = 0
    LENGTH = 1

    PAIR_NAME_START = KNOWN_ROW_COUNT
    PAIR_NAME_LENGTH
    PAIR_VALUE_START
    PAIR_VALUE_LENGTH
    PAIRS_STOP
    SPAN_ROWS

    PAIRS_PER_RECORD = 16
    KEPT_ROWS = 64
    HOST_TEXT = 27
    ID_TEXT = 32
    HALF_ID = 16
    MAX_TEXT = 2000000000
    MICROSECONDS = 1000
    NOT_ORDINARY = COMPRESSED | BORN_HOST_IPV6 | STORE_HOST_IPV6
    LINE = 64
    MINUS = 45
    DOT = 46
    ZERO = 48
    COLON = 58

cpdef enum:
    BUFFERS = BUFFER_PROPERTY_VALUES + TEXT_BUFFERS
    NODES = NODE_PROPERTY_VALUES + 1

cdef extern from *:
    """
    #include <string.h>
    #include <stdint.h>
    /* eight bytes as sixteen upper-case hexadecimal digits: a nibble to each byte, then 7 more for those of ten and above */
    static CYTHON_INLINE uint64_t mq_digits(uint32_t v) {
        uint64_t x = v;
        x = ((x << 16) | x) & 0x0000ffff0000ffffULL;
        x = ((x << 8) | x) & 0x00ff00ff00ff00ffULL;
        x = ((x << 4) | x) & 0x0f0f0f0f0f0f0f0fULL;
        return x + 0x3030303030303030ULL + (((x + 0x0606060606060606ULL) >> 4) & 0x0101010101010101ULL) * 7;
    }
    static CYTHON_INLINE void mq_hexadecimal(unsigned char *out, const unsigned char *p) {
        uint32_t v[2];
        uint64_t x;
        int k;
        memcpy(v, p, 8);
        for (k = 0; k < 2; k++) {
            x = __builtin_bswap64(mq_digits(__builtin_bswap32(v[k])));
            memcpy(out + 8 * k, &x, 8);
        }
    }
    /* short texts without a call: two copies that overlap */
    static CYTHON_INLINE void mq_copy(unsigned char *to, const unsigned char *p, Py_ssize_t n) {
        if (n > 32) memcpy(to, p, (size_t) n);
        else if (n >= 16) { unsigned char a[16], z[16]; memcpy(a, p, 16); memcpy(z, p + n - 16, 16); memcpy(to, a, 16); memcpy(to + n - 16, z, 16); }
        else if (n >= 8) { uint64_t a, z; memcpy(&a, p, 8); memcpy(&z, p + n - 8, 8); memcpy(to, &a, 8); memcpy(to + n - 8, &z, 8); }
        else if (n >= 4) { uint32_t a, z; memcpy(&a, p, 4); memcpy(&z, p + n - 4, 4); memcpy(to, &a, 4); memcpy(to + n - 4, &z, 4); }
        else for (; n > 0; n--) *to++ = *p++;
    }
    static CYTHON_INLINE int mq_ascii_only(const unsigned char *p, Py_ssize_t n) {
        uint64_t v, all = 0;
        for (; n >= 8; n -= 8, p += 8) { memcpy(&v, p, 8); all |= v; }
        for (; n > 0; n--, p++) all |= *p;
        return !(all & 0x8080808080808080ULL);
    }
    """
    void mq_hexadecimal(unsigned char *out, const unsigned char *p) noexcept nogil
    void mq_copy(unsigned char *to, const unsigned char *p, Py_ssize_t n) noexcept nogil
    bint mq_ascii_only(const unsigned char *p, Py_ssize_t n) noexcept nogil

cdef inline object new_buffer(Py_ssize_t length):
    return PyByteArray_FromStringAndSize(NULL, length)

cdef inline long long number(bytes rows, Py_ssize_t k):
    cdef long long value
    memcpy(&value, PyBytes_AS_STRING(rows) + 8 * k, 8)
    return value

cdef inline unsigned char *start_of(unsigned char[::1] out) noexcept nogil:
    return <unsigned char *> out._data

cdef inline void st32(unsigned char *out, Py_ssize_t at, long long value) noexcept nogil:
    cdef int word = <int> value
    memcpy(out + at, &word, 4)

cdef inline void st64(unsigned char *out, Py_ssize_t at, long long value) noexcept nogil:
    memcpy(out + at, &value, 8)

cdef inline void put_ints(long long[:, ::1] fields, int field, Py_ssize_t n, Py_ssize_t at, unsigned char *out) noexcept nogil:
    cdef const long long *values = &fields[field, 0]
    cdef unsigned char *start = out + at
    cdef Py_ssize_t k
    cdef int word
    for k in range(n):
        word = <int> values[k]
        memcpy(start + 4 * k, &word, 4)

cdef inline void put_longs(
    long long[:, ::1] fields, int field, long long factor, Py_ssize_t n, Py_ssize_t at, unsigned char *out
) noexcept nogil:
    cdef const long long *values = &fields[field, 0]
    cdef unsigned char *start = out + at
    cdef Py_ssize_t k
    cdef long long word
    for k in range(n):
        word = values[k] * factor
        memcpy(start + 8 * k, &word, 8)

cdef inline void hexadecimal(unsigned char *out, Py_ssize_t at, const unsigned char *b, Py_ssize_t p) noexcept nogil:
    mq_hexadecimal(out + at, b + p)

cdef inline bint ascii_only(const unsigned char *b, Py_ssize_t p, Py_ssize_t n) noexcept nogil:
    return mq_ascii_only(b + p, n)

cdef inline void repeat(unsigned char *out, Py_ssize_t at, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    if n > 0:
        mq_copy(out + at, out + start, n)

cdef inline void copy(unsigned char *to, Py_ssize_t at, const unsigned char *b, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    if n > 0:
        mq_copy(to + at, b + start, n)

cdef class Scratch:
    cdef Py_ssize_t count
    cdef long long[:, ::1] positions, fields, spans, nodes, buffers

cdef class BatchHead:
    cdef readonly const unsigned char[::1] raw
    cdef readonly Py_ssize_t rows, body_length, nodes, buffers
    cdef list free
