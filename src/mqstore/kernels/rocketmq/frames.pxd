from mqstore.kernels.common.loads cimport low32, prefetch
from mqstore.kernels.common.pointer_loads cimport find, first_byte, i16, i32, i64, i8
from mqstore.kernels.rocketmq.record_layout cimport (
    AT_BODY, AT_BODY_CRC, AT_BODY_LENGTH, AT_BORN_HOST, AT_BORN_TIMESTAMP, AT_FLAG, AT_MAGIC, AT_PHYSICAL_OFFSET, AT_PREPARED_OFFSET,
    AT_QUEUE_ID, AT_QUEUE_OFFSET, AT_RECONSUME_TIMES, AT_SIZE, AT_STORE_HOST, AT_STORE_TIMESTAMP, AT_SYS_FLAG, FIXED_SIZE, FRAME_SIZE,
    MAGIC_BLANK, MAGIC_FIRST_BYTE, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE, MIN_SIZE, PROPERTIES_LENGTH_SIZE, born_host_size, store_host_size,
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
    ENTRY_HEADER_SIZE = 48

cdef enum:
    ENTRY_MAGIC = 1
    ENTRY_BLANK = -1
    ENTRY_SIZE_AT = 4
    ENTRY_POSITION_AT = 24
    ENTRY_BODY_SIZE_AT = 44

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
cdef int check_entry(const unsigned char *b, Py_ssize_t p, Py_ssize_t limit, long long base) noexcept nogil
cdef void read_fields(
    const unsigned char[::1] b, const long long[::1] positions, Py_ssize_t first, Py_ssize_t n, long long[:, ::1] out
) noexcept nogil
