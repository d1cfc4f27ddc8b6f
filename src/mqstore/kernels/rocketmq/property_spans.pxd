from mqstore.kernels.common.loads cimport mq_load32, mq_load64, u8
from mqstore.kernels.common.pointer_loads cimport find, first_byte, i32
from mqstore.kernels.rocketmq.record_layout cimport (
    CRC_NAME_SIZE, CRC_PROPERTY_SIZE, INT, NAME_END, PAIR_END, WORD_CRC_FIRST, WORD_CRC_SECOND, WORD_KEYS, WORD_TAGS, WORD_UNIQ_KEY,
)

# the names of property_spans.py, where they are described; cpdef: Python sees them too
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
    ZERO = 48
    NINE = 57

cdef inline int known_row(const unsigned char *b, Py_ssize_t p, Py_ssize_t n) noexcept nogil:
    if n == 4:
        if <int> mq_load32(b + p) == WORD_TAGS:
            return TAGS_START
        if <int> mq_load32(b + p) == WORD_KEYS:
            return KEYS_START
    elif n == 8 and <long long> mq_load64(b + p) == WORD_UNIQ_KEY:
        return UNIQ_KEY_START
    return -1

cdef inline Py_ssize_t name_end(const unsigned char *b, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef Py_ssize_t at = find(b, start, stop, NAME_END)
    return at if at > start and at < stop - 1 else -1
