from mqstore.kernels.common.loads cimport memcpy
from mqstore.kernels.common.pointer_loads cimport find, i32, i64, u8
from mqstore.kernels.rocketmq.frames cimport (
    BODY_CRC, BODY_LENGTH, BODY_START, BORN_HOST, BORN_TIMESTAMP, FLAG, PHYSICAL_OFFSET, PREPARED_TRANSACTION_OFFSET, QUEUE_ID,
    QUEUE_OFFSET, RECONSUME_TIMES, SIZE, STORE_HOST, STORE_TIMESTAMP, SYS_FLAG, TOPIC_LENGTH, TOPIC_START,
)
from mqstore.kernels.rocketmq.property_spans cimport (
    KEYS_LENGTH, KEYS_START, KNOWN_ROW_COUNT, TAGS_LENGTH, TAGS_START, UNIQ_KEY_LENGTH, UNIQ_KEY_START,
)
from mqstore.kernels.rocketmq.record_layout cimport AT_BORN_HOST, AT_PHYSICAL_OFFSET, KEY_SEPARATOR

cdef enum:
    # what a column's buffers are, counted from its first
    VALIDITY = 0  # bitmap of the values that are not null
    VALUES = 1
    OFFSETS = 1
    TEXT = 2
    NUMBER_BUFFERS = 2
    TEXT_BUFFERS = 3

    # the first buffer of each column
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

    # numbers of the columns, nested ones included
    NODE_TAGS = 5
    NODE_KEYS = 6
    NODE_KEY_ITEMS = 7
    NODE_UNIQ_KEY = 8
    NODE_PROPERTY_PAIRS = 21
    NODE_PROPERTY_NAMES = 22
    NODE_PROPERTY_VALUES = 23

    # of a node, and of a buffer
    ROWS = 0
    NULLS = 1
    BEGIN = 0
    LENGTH = 1

    # rows of the scratch array `spans`: those of `property_spans.known_properties` for each record, then those of each pair
    PAIR_NAME_START = KNOWN_ROW_COUNT
    PAIR_NAME_LENGTH
    PAIR_VALUE_START
    PAIR_VALUE_LENGTH
    PAIRS_STOP  # where the pairs of a record end
    SPAN_ROWS

    HOST_TEXT = 27  # longest text of an IPv4 host
    ID_TEXT = 32  # a message id: store host and physical offset in hexadecimal digits
    HALF_ID = 16
    MICROSECONDS = 1000  # in a millisecond
    MINUS = 45
    DOT = 46
    ZERO = 48
    COLON = 58

# cpdef: Python sees them too
cpdef enum:
    BUFFERS = BUFFER_PROPERTY_VALUES + TEXT_BUFFERS
    NODES = NODE_PROPERTY_VALUES + 1

# sums over the records of a batch; ordinary: whether all of them are
cdef struct Totals:
    bint ordinary
    long long pairs
    long long key_items
    long long topics
    long long bodies
    long long names
    long long values
    long long tags
    long long keys
    long long unique_keys
    long long without_tags
    long long without_keys
    long long without_unique_key

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
    """
    void mq_hexadecimal(unsigned char *out, const unsigned char *p) noexcept nogil
    void mq_copy(unsigned char *to, const unsigned char *p, Py_ssize_t n) noexcept nogil

cdef inline void st32(unsigned char *out, Py_ssize_t at, long long value) noexcept nogil:
    """Store a native 32-bit number."""
    cdef int word = <int> value
    memcpy(out + at, &word, 4)

cdef inline void st64(unsigned char *out, Py_ssize_t at, long long value) noexcept nogil:
    """Store a native 64-bit number."""
    memcpy(out + at, &value, 8)

cdef inline void put_ints(long long[:, ::1] fields, int field, Py_ssize_t n, Py_ssize_t at, unsigned char *out) noexcept nogil:
    """Write a field as a column of 32-bit numbers."""
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
    """Write a field, times factor, as a column of 64-bit numbers."""
    cdef const long long *values = &fields[field, 0]
    cdef unsigned char *start = out + at
    cdef Py_ssize_t k
    cdef long long word
    for k in range(n):
        word = values[k] * factor
        memcpy(start + 8 * k, &word, 8)

cdef inline void hexadecimal(unsigned char *out, Py_ssize_t at, const unsigned char *b, Py_ssize_t p) noexcept nogil:
    mq_hexadecimal(out + at, b + p)

cdef inline void repeat(unsigned char *out, Py_ssize_t at, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    if n > 0:
        mq_copy(out + at, out + start, n)

cdef inline void copy(unsigned char *to, Py_ssize_t at, const unsigned char *b, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    if n > 0:
        mq_copy(to + at, b + start, n)

cdef long long lay_out(long long n, Totals totals, long long[:, ::1] nodes, long long[:, ::1] buffers) noexcept nogil
cdef void fill(
    const unsigned char *b, long long[:, ::1] fields, Py_ssize_t n, long long[:, ::1] spans, long long[:, ::1] nodes,
    long long[:, ::1] buffers, Py_ssize_t base, unsigned char *out
) noexcept nogil
