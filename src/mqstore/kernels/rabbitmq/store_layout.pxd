# The layouts of RabbitMQ's message files, once for all kernels (docs/formats/rabbitmq.md, sections 6.1 and 12.3).
#
#     record of a `.rdq` file   size of id and term (8), id (16), term, RECORD_MARK (1)
#     entry of a `.qs` file     size of the message (4), flags (1), low 16 bits of the CRC-32 (2), 0 (1), message

from mqstore.kernels.rabbitmq.term_layout cimport ID_SIZE

cdef enum:
    RECORD_SIZE_FIELD = 8  # bytes before those that the size counts
    RECORD_AT_ID = RECORD_SIZE_FIELD
    RECORD_AT_LOW_ID = RECORD_AT_ID + 8  # second half of the id
    RECORD_AT_TERM = RECORD_AT_ID + ID_SIZE
    RECORD_MARK = 255
    RECORD_MARK_SIZE = 1
    RECORD_OVERHEAD = RECORD_SIZE_FIELD + RECORD_MARK_SIZE  # bytes that the size does not count
    RECORD_MIN_SIZE = RECORD_OVERHEAD + ID_SIZE  # with no term at all: the broker does not look at it
    SMALLEST_TERM = 2
    CLIENT_DEATH_TERM = 6  # bytes of the empty binary in place of a message: the client is gone

    ENTRY_AT_SIZE = 0
    ENTRY_AT_FLAGS = 4
    ENTRY_AT_CRC = 5
    ENTRY_AT_PADDING = 7
    ENTRY_HEADER_SIZE = 8
    ENTRY_HAS_CRC = 1  # bit of the flags
