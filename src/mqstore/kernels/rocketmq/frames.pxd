from mqstore.kernels.common.loads cimport copy, mq_load32, mq_load64, prefetch, u8
from mqstore.kernels.common.pointer_loads cimport find, first_byte, i16, i32, i64, i8
from mqstore.kernels.rocketmq.record_layout cimport (
    AT_BODY, AT_BODY_CRC, AT_BODY_LENGTH, AT_BORN_HOST, AT_BORN_TIMESTAMP, AT_FLAG, AT_MAGIC, AT_PHYSICAL_OFFSET, AT_PREPARED_OFFSET,
    AT_QUEUE_ID, AT_QUEUE_OFFSET, AT_RECONSUME_TIMES, AT_SIZE, AT_STORE_HOST, AT_STORE_TIMESTAMP, AT_SYS_FLAG, CRC_NAME_SIZE,
    CRC_PROPERTY_SIZE, FIXED_SIZE, FRAME_SIZE, MAGIC_BLANK, MAGIC_FIRST_BYTE, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE, MIN_SIZE, NAME_END,
    PAIR_END, PROPERTIES_LENGTH_SIZE, WORD_CRC_FIRST, WORD_CRC_SECOND, WORD_KEYS, WORD_TAGS, WORD_UNIQ_KEY, born_host_size, store_host_size,
)

# the names of frames.py, where they are described; cpdef: Python sees them too
cpdef enum:
    VALID = 0
    STOP = VALID
    FULL
    BLANK
    UNWRITTEN
    BAD_MAGIC
    BAD_SIZE
    BAD_LENGTHS
    BAD_OFFSET

cpdef enum:
    SIZE = 0
    BODY_CRC
    QUEUE_ID
    FLAG
    QUEUE_OFFSET
    PHYSICAL_OFFSET
    SYS_FLAG
    BORN_TIMESTAMP
    BORN_HOST
    STORE_TIMESTAMP
    STORE_HOST
    RECONSUME_TIMES
    PREPARED_TRANSACTION_OFFSET
    BODY_START
    BODY_LENGTH
    TOPIC_START
    TOPIC_LENGTH
    PROPERTIES_START
    PROPERTIES_LENGTH
    FIELD_COUNT

cpdef enum:
    TAGS_START = 0
    TAGS_LENGTH
    KEYS_START
    KEYS_LENGTH
    UNIQ_KEY_START
    UNIQ_KEY_LENGTH
    KNOWN_ROW_COUNT

cpdef enum:
    NAME_START = 0
    NAME_LENGTH
    VALUE_START
    VALUE_LENGTH
    PAIR_ROW_COUNT

cdef enum:
    LANES = 8
    LANE_BYTES = 131072
    LANE_ROOM = LANE_BYTES // MIN_RECORD_SIZE + 2
    SEARCH = 8192
    LINE = 64
    # rows of the lanes
    AT = 0
    FIRST = LANES
    END = 2 * LANES
    COUNT = 3 * LANES

cdef int check(const unsigned char *b, Py_ssize_t p, Py_ssize_t limit, long long base, bint strict) noexcept nogil
cdef void read_fields(const unsigned char[::1] b, const long long[::1] positions, Py_ssize_t n, long long[:, ::1] out) noexcept nogil

cdef inline int known_row(const unsigned char *b, Py_ssize_t p, Py_ssize_t n) noexcept nogil:
    if n == 4:
        if <int> mq_load32(b + p) == WORD_TAGS:
            return TAGS_START
        if <int> mq_load32(b + p) == WORD_KEYS:
            return KEYS_START
    elif n == 8 and <long long> mq_load64(b + p) == WORD_UNIQ_KEY:
        return UNIQ_KEY_START
    return -1
