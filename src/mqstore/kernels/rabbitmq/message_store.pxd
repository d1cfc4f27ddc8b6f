from mqstore.kernels.common.loads cimport i64, u8
from mqstore.kernels.rabbitmq.terms cimport message_end, unsigned32

# the names of message_store.py, where they are described; cpdef: Python sees them too
cpdef enum:
    MARKED = 1
    PROVED = 2
    RESIZED = 4

cdef enum:
    EFFORT = 16
    LEAST_EFFORT = 1048576
