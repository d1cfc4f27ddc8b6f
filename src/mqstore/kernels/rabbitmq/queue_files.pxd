from mqstore.kernels.common.crc_spans cimport crc_on, first_byte
from mqstore.kernels.common.loads cimport copy, outside, put32, put64, u16, u32, u8
from mqstore.kernels.rabbitmq.index_layout cimport (
    AT_EMBEDDED, AT_EXPIRY, AT_LOW_ID, AT_SIZE, FIELDS_SIZE, REL_MASK, SEGMENT_MARK, SEGMENT_MARK_SIZE, SEGMENT_PERSISTENT,
    SEGMENT_PUBLISH, SEGMENT_PUBLISH_SIZE, SEGMENT_WORD_SIZE,
)
from mqstore.kernels.rabbitmq.store_layout cimport (
    ENTRY_AT_CRC, ENTRY_AT_FLAGS, ENTRY_AT_PADDING, ENTRY_AT_SIZE, ENTRY_HAS_CRC, ENTRY_HEADER_SIZE,
)

cdef inline void put8(unsigned char[::1] b, Py_ssize_t p, long long v) noexcept nogil:
    b[p] = <unsigned char> v

cdef inline void put16(unsigned char[::1] b, Py_ssize_t p, long long v) noexcept nogil:
    b[p] = <unsigned char> (v >> 8)
    b[p + 1] = <unsigned char> v
