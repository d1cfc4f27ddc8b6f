from mqstore.kernels.common.loads cimport low32, prefetch
from mqstore.kernels.common.pointer_loads cimport find, first_byte, i16, i32, i64, i8
from mqstore.kernels.rocketmq.record_layout cimport (
    AT_BODY, AT_BODY_CRC, AT_BODY_LENGTH, AT_BORN_HOST, AT_BORN_TIMESTAMP, AT_FLAG, AT_MAGIC, AT_PHYSICAL_OFFSET, AT_PREPARED_OFFSET,
    AT_QUEUE_ID, AT_QUEUE_OFFSET, AT_RECONSUME_TIMES, AT_SIZE, AT_STORE_HOST, AT_STORE_TIMESTAMP, AT_SYS_FLAG, FIXED_SIZE, FRAME_SIZE,
    MAGIC_BLANK, MAGIC_FIRST_BYTE, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE, MIN_SIZE, PROPERTIES_LENGTH_SIZE, born_host_size, store_host_size,
)

# cpdef: Python sees them too
cpdef enum:
    # status of a record, and of a walk
    VALID = 0
    STOP = VALID  # the next record would start at or after `stop`
    FULL  # `positions` is full
    BLANK  # the record that fills the rest of a file is at the returned position
    UNWRITTEN  # eight zero bytes, or fewer than eight bytes are left
    BAD_MAGIC
    BAD_SIZE  # below the smallest record, or past the end of the buffer
    BAD_LENGTHS  # inner lengths do not add up to the size
    BAD_OFFSET  # strict only: the physical offset field is not base + position

cpdef enum:
    # rows of `fields`
    SIZE = 0
    BODY_CRC
    QUEUE_ID
    FLAG
    QUEUE_OFFSET
    PHYSICAL_OFFSET
    SYS_FLAG
    BORN_TIMESTAMP
    BORN_HOST  # position of the address bytes
    STORE_TIMESTAMP
    STORE_HOST  # position of the address bytes
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
    # an entry of a DLedger log: a header, and one record (docs/formats/rocketmq.md, section 2.13)
    ENTRY_HEADER_SIZE = 48

cdef enum:
    ENTRY_MAGIC = 1
    ENTRY_BLANK = -1  # instead of the magic: the rest of the file is not used
    ENTRY_SIZE_AT = 4
    ENTRY_POSITION_AT = 24
    ENTRY_BODY_SIZE_AT = 44

cdef enum:
    LANES = 8
    LANE_BYTES = 131072  # `hop` goes over a window of LANES stretches of this many bytes
    LANE_ROOM = LANE_BYTES // MIN_RECORD_SIZE + 2  # records of the smallest size that start in a lane, and one more
    SEARCH = 8192  # bytes in which a lane looks for its first record
    LINE = 64  # bytes of a cache line
    # rows of `lanes`, LANES numbers each
    AT = 0  # current position
    FIRST = LANES  # where the lane starts, -1 if it found no record
    END = 2 * LANES  # where it ends, -1 once it has
    COUNT = 3 * LANES

cdef int check(const unsigned char *b, Py_ssize_t p, Py_ssize_t limit, long long base, bint strict) noexcept nogil
cdef int check_entry(const unsigned char *b, Py_ssize_t p, Py_ssize_t limit, long long base) noexcept nogil
cdef void read_fields(
    const unsigned char[::1] b, const long long[::1] positions, Py_ssize_t first, Py_ssize_t n, long long[:, ::1] out
) noexcept nogil
