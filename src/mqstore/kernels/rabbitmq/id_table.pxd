from mqstore.kernels.common.loads cimport LOW32, cell, i64, word64
from mqstore.kernels.rabbitmq.term_layout cimport ID_SIZE

cdef enum:
    # words of a row
    HIGH = 0
    LOW
    FILE_REFERENCES
    OFFSET_LENGTH
    WORDS
    HALF = 32  # bits of half a word

# cpdef: Python sees it too
cpdef enum:
    FULL = -2  # what `stretch` returns if the rows do not fit
