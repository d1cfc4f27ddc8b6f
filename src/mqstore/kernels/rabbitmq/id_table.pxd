from mqstore.kernels.common.loads cimport LOW32, cell, i64, word64
from mqstore.kernels.rabbitmq.term_layout cimport ID_SIZE

# the names of id_table.py, where they are described
cdef enum:
    HIGH = 0
    LOW
    FILE_REFERENCES
    OFFSET_LENGTH
    WORDS
    HALF = 32

# cpdef: Python sees it too
cpdef enum:
    FULL = -2
