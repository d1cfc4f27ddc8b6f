from mqstore.kernels.common.crc_spans cimport crc_on, first_byte as crc_bytes
from mqstore.kernels.common.loads cimport i64, u16, u32, u8
from mqstore.kernels.common.pointer_loads cimport find, first_byte
from mqstore.kernels.rabbitmq.store_layout cimport (
    CLIENT_DEATH_TERM, ENTRY_AT_CRC, ENTRY_AT_FLAGS, ENTRY_AT_PADDING, ENTRY_HAS_CRC, ENTRY_HEADER_SIZE, RECORD_AT_ID, RECORD_AT_LOW_ID,
    RECORD_AT_TERM, RECORD_MARK, RECORD_MARK_SIZE, RECORD_MIN_SIZE, RECORD_OVERHEAD, RECORD_SIZE_FIELD, SMALLEST_TERM,
)
from mqstore.kernels.rabbitmq.term_layout cimport BINARY, ID_SIZE, SMALL_TUPLE, VERSION
from mqstore.kernels.rabbitmq.terms cimport message_end

# the names of message_store.py, where they are described; cpdef: Python sees them too
cpdef enum:
    MARKED = 1
    PROVED = 2
    RESIZED = 4

cdef enum:
    EFFORT = 16
    LEAST_EFFORT = 1048576

cpdef enum:
    BARE = 0
    RECORD
    ENTRY
    DAMAGED_ENTRY

cdef enum:
    CARVE_HEAD = 40
    CARVE_NEAR = 1048576
    MOST_PADDING = 4096
