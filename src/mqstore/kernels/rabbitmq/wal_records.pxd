from mqstore.kernels.common.pointer_loads cimport first_byte, i64, u8
from mqstore.kernels.common.loads cimport mq_load32
from mqstore.kernels.rabbitmq.term_layout cimport VERSION

# cpdef: Python sees them too
cpdef enum:
    # columns of a record, as `mqstore.rabbitmq.quorum.wal.RECORD` has them
    MEMBER = 0
    INDEX
    TERM
    START
    POSITION
    LENGTH
    TRUNCATES
    VALID
    RECORD_COLUMNS

cdef enum:
    AT_CHECKSUM = 3
    AT_LENGTH = 7
    AT_INDEX = 11
    AT_TERM = 19
    AT_ENTRY = 27
    TRUNCATES_BIT = 0x80  # of the first byte
    KNOWN_BIT = 0x40
    NUMBER_BITS = 0x3F
    BASE = 65521  # of Adler-32
    HALF = 16
    SUMMED = 5552  # bytes whose sums do not overflow 32 bits

cdef inline long long u32(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return mq_load32(b + p)
