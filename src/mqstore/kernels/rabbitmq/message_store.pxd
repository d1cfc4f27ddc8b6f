from mqstore.kernels.common.crc_spans cimport crc_on, first_byte as crc_bytes
from mqstore.kernels.common.loads cimport i64, u16, u32, u8
from mqstore.kernels.common.pointer_loads cimport find, first_byte
from mqstore.kernels.rabbitmq.store_layout cimport (
    CLIENT_DEATH_TERM, ENTRY_AT_CRC, ENTRY_AT_FLAGS, ENTRY_AT_PADDING, ENTRY_HAS_CRC, ENTRY_HEADER_SIZE, RECORD_AT_ID, RECORD_AT_LOW_ID,
    RECORD_AT_TERM, RECORD_MARK, RECORD_MARK_SIZE, RECORD_MIN_SIZE, RECORD_OVERHEAD, RECORD_SIZE_FIELD, SMALLEST_TERM,
)
from mqstore.kernels.rabbitmq.term_layout cimport BINARY, ID_SIZE, SMALL_TUPLE, VERSION
from mqstore.kernels.rabbitmq.terms cimport message_end

# cpdef: Python sees them too
cpdef enum:
    # bits of a record's quality
    MARKED = 1  # the byte after it is RECORD_MARK
    PROVED = 2  # its term is a message with the record's own id
    RESIZED = 4  # its size field does not fit its term, which is complete

cdef enum:
    # bytes that failed attempts to read a term may take, for each byte of the file: only hostile files need more
    EFFORT = 16
    LEAST_EFFORT = 1048576

cpdef enum:
    # what holds a carved message
    BARE = 0  # nothing that is known: an index file, or a frame that is damaged
    RECORD  # a record of a message store
    ENTRY  # an entry of a queue's own store, whose checksum fits if it has one
    DAMAGED_ENTRY  # such an entry whose checksum does not fit

cdef enum:
    CARVE_HEAD = 40  # bytes of a message that show that it is one, and more
    CARVE_NEAR = 1048576  # a message that ends within this many bytes needs no frame to be followed past the buffer
    MOST_PADDING = 4096  # zeros after the message of an entry
