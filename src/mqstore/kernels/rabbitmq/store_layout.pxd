# Message files for compiled kernels: the same names and values as in store_layout.py, which describes them.
from mqstore.kernels.rabbitmq.term_layout cimport ID_SIZE

cdef enum:
    RECORD_SIZE_FIELD = 8
    RECORD_AT_ID = RECORD_SIZE_FIELD
    RECORD_AT_LOW_ID = RECORD_AT_ID + 8
    RECORD_AT_TERM = RECORD_AT_ID + ID_SIZE
    RECORD_MARK = 255
    RECORD_MARK_SIZE = 1
    RECORD_OVERHEAD = RECORD_SIZE_FIELD + RECORD_MARK_SIZE
    RECORD_MIN_SIZE = RECORD_OVERHEAD + ID_SIZE
    SMALLEST_TERM = 2
    CLIENT_DEATH_TERM = 6

    ENTRY_AT_SIZE = 0
    ENTRY_AT_FLAGS = 4
    ENTRY_AT_CRC = 5
    ENTRY_AT_PADDING = 7
    ENTRY_HEADER_SIZE = 8
    ENTRY_HAS_CRC = 1
