from mqstore.kernels.common.loads cimport i64, u32, u8
from mqstore.kernels.rabbitmq.store_layout cimport (
    CLIENT_DEATH_TERM, RECORD_AT_ID, RECORD_AT_LOW_ID, RECORD_AT_TERM, RECORD_MARK, RECORD_MARK_SIZE, RECORD_MIN_SIZE, RECORD_OVERHEAD,
    RECORD_SIZE_FIELD, SMALLEST_TERM,
)
from mqstore.kernels.rabbitmq.term_layout cimport BINARY, ID_SIZE, VERSION
from mqstore.kernels.rabbitmq.terms cimport message_end

# the names of message_store.py, where they are described; cpdef: Python sees them too
cpdef enum:
    MARKED = 1
    PROVED = 2
    RESIZED = 4

cdef enum:
    EFFORT = 16
    LEAST_EFFORT = 1048576
