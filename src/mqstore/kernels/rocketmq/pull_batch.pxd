from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING
from mqstore.kernels.common.loads cimport memcpy, prefetch
from mqstore.kernels.common.pointer_loads cimport find, first_byte, same
from mqstore.kernels.rocketmq.batch_body cimport (
    BEGIN, BUFFERS, LENGTH, NODES, NULLS, PAIRS_STOP, PAIR_NAME_LENGTH, PAIR_NAME_START, PAIR_VALUE_LENGTH, PAIR_VALUE_START, ROWS,
    SPAN_ROWS, Totals, copy, fill, lay_out, st64,
)
from mqstore.kernels.rocketmq.frames cimport (
    BODY_LENGTH, BODY_START, BORN_TIMESTAMP, FIELD_COUNT, PROPERTIES_LENGTH, PROPERTIES_START, STORE_TIMESTAMP, SYS_FLAG, TOPIC_LENGTH,
    TOPIC_START, VALID, check, read_fields,
)
from mqstore.kernels.rocketmq.property_spans cimport KEYS_LENGTH, KEYS_START, TAGS_LENGTH, UNIQ_KEY_LENGTH, known_row, name_end
from mqstore.kernels.rocketmq.record_decode cimport announce
from mqstore.kernels.rocketmq.record_layout cimport (
    BORN_HOST_IPV6, COMPRESSED, FRAME_SIZE, KEY_SEPARATOR, PAIR_END, ROW_BYTES, ROW_NUMBERS, ROW_PHYSICAL_OFFSET, ROW_SIZE,
    STORE_HOST_IPV6,
)

cdef enum:
    # what is summed up over the records of a batch
    SUM_KEY_ITEMS = 0
    SUM_TOPICS
    SUM_BODIES
    SUM_TAGS
    SUM_KEYS
    SUM_UNIQUE_KEYS
    SUM_WITHOUT_TAGS
    SUM_WITHOUT_KEYS
    SUM_WITHOUT_UNIQUE_KEY
    SUMS

    PAIRS_PER_RECORD = 16  # properties a record may have on average; records with more are not ordinary
    KEPT_ROWS = 64  # records that scratch arrays are kept for
    MAX_TEXT = 2000000000  # bytes of texts that fit 32-bit offsets
    NOT_ORDINARY = COMPRESSED | BORN_HOST_IPV6 | STORE_HOST_IPV6  # bits of SYS_FLAG

cdef extern from *:
    """
    #include <string.h>
    #include <stdint.h>
    static CYTHON_INLINE int mq_ascii_only(const unsigned char *p, Py_ssize_t n) {
        uint64_t v, all = 0;
        for (; n >= 8; n -= 8, p += 8) { memcpy(&v, p, 8); all |= v; }
        for (; n > 0; n--, p++) all |= *p;
        return !(all & 0x8080808080808080ULL);
    }
    """
    bint mq_ascii_only(const unsigned char *p, Py_ssize_t n) noexcept nogil

cdef inline object new_buffer(Py_ssize_t length):
    return PyByteArray_FromStringAndSize(NULL, length)

cdef inline long long number(bytes rows, Py_ssize_t k):
    """Return the k-th native 64-bit number of rows."""
    cdef long long value
    memcpy(&value, PyBytes_AS_STRING(rows) + 8 * k, 8)
    return value

cdef inline unsigned char *start_of(unsigned char[::1] out) noexcept nogil:
    return <unsigned char *> out._data

cdef inline bint ascii_only(const unsigned char *b, Py_ssize_t p, Py_ssize_t n) noexcept nogil:
    return mq_ascii_only(b + p, n)

cdef class Scratch:
    cdef Py_ssize_t count
    cdef long long[:, ::1] positions, fields, spans, nodes, buffers
    cdef long long[::1] sums

cdef class BatchHead:
    cdef readonly const unsigned char[::1] raw
    cdef readonly Py_ssize_t rows, body_length, nodes, buffers
    cdef list free
