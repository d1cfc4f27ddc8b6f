from mqstore.kernels.common.loads cimport mq_load32, mq_load64, u8
from mqstore.kernels.common.pointer_loads cimport find, first_byte, i32
from mqstore.kernels.rocketmq.record_layout cimport (
    CRC_NAME_SIZE, CRC_PROPERTY_SIZE, INT, NAME_END, PAIR_END, WORD_CRC_FIRST, WORD_CRC_SECOND, WORD_KEYS, WORD_TAGS, WORD_UNIQ_KEY,
)

# cpdef: Python sees them too
cpdef enum:
    # rows of `known_properties`
    TAGS_START = 0
    TAGS_LENGTH
    KEYS_START
    KEYS_LENGTH
    UNIQ_KEY_START
    UNIQ_KEY_LENGTH
    KNOWN_ROW_COUNT

cpdef enum:
    # rows of `pair_spans`
    NAME_START = 0
    NAME_LENGTH
    VALUE_START
    VALUE_LENGTH
    PAIR_ROW_COUNT

cdef enum:
    # digits of a checksum
    ZERO = 48
    NINE = 57

cdef inline int known_row(const unsigned char *b, Py_ssize_t p, Py_ssize_t n) noexcept nogil:
    """Return the row in which the value of the property with this name starts (TAGS_START, ...), or -1 for any other name."""
    if n == 4:
        if <int> mq_load32(b + p) == WORD_TAGS:
            return TAGS_START
        if <int> mq_load32(b + p) == WORD_KEYS:
            return KEYS_START
    elif n == 8 and <long long> mq_load64(b + p) == WORD_UNIQ_KEY:
        return UNIQ_KEY_START
    return -1

cdef inline Py_ssize_t name_end(const unsigned char *b, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    """Return where the name of the pair in [start, stop) ends, or -1 if this is not a pair. The value follows NAME_END."""
    cdef Py_ssize_t at = find(b, start, stop, NAME_END)
    return at if at > start and at < stop - 1 else -1
