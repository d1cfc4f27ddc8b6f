from mqstore.kernels.common.crc_spans cimport crc_on
from mqstore.kernels.common.loads cimport mq_load32
from mqstore.kernels.common.pointer_loads cimport find, first_byte, i64, u8
from mqstore.kernels.rabbitmq.stream_layout cimport (
    BATCH_AT_PLAIN_SIZE, BATCH_AT_RECORDS, BATCH_AT_SIZE, BATCH_CODEC_MASK, BATCH_CODEC_SHIFT, BATCH_HEADER_SIZE, BATCH_MARK,
    CHUNK_AT_CRC, CHUNK_AT_DATA_SIZE, CHUNK_AT_ENTRIES, CHUNK_AT_EPOCH, CHUNK_AT_FILTER_SIZE, CHUNK_AT_ID, CHUNK_AT_KIND,
    CHUNK_AT_RECORDS, CHUNK_AT_RESERVED, CHUNK_AT_TIMESTAMP, CHUNK_AT_TRAILER_SIZE, CHUNK_HEADER_SIZE, CHUNK_MAGIC, LAST_KIND,
    BLOCK_HEADER_SIZE, BLOCK_NUMBER_SIZE, FIRST_SECTION, LAST_BLOCK, LAST_SECTION, LENGTH_SIZE, SMALL_ULONG,
)

# cpdef: Python sees them too
cpdef enum:
    # rows of the columns of `walk`
    AT = 0
    KIND
    ENTRIES
    RECORDS
    TIMESTAMP
    EPOCH
    ID
    DATA_SIZE
    TRAILER_SIZE
    FILTER_SIZE
    STATE
    CHUNK_COLUMNS

cpdef enum:
    # state of a chunk
    INTACT = 1  # header, filter and data are there, the checksum fits, and the data are as many entries and records as the header says
    BAD_DATA  # the checksum does not fit; the next chunk is where it should be
    BAD_HEADER  # the checksum fits, and the header says something else of the data

cpdef enum:
    # why a walk stopped
    DONE = 0  # end of the segment
    FULL  # no more room in the columns
    TORN  # the segment ends inside a chunk
    NOT_A_CHUNK  # bytes without a chunk, or with one that does not end where it says
    CUT_TRAILER  # the trailer of the last chunk would end after the segment

cpdef enum:
    # rows of the columns of `entries`
    CHUNK = 0  # number of the chunk
    CONTENT  # where the record, or the content of the sub-batch, begins
    LENGTH
    CODEC  # -1: a record; else the compression of a sub-batch
    RECORD_COUNT
    PLAIN_SIZE  # of the content of a sub-batch, uncompressed; of a record its length
    FIRST  # number of its first record in the chunk
    ENTRY_COLUMNS

cdef enum:
    # bytes that failed attempts to read a chunk may take, for each byte of the segment: only hostile files need more
    EFFORT = 16
    LEAST_EFFORT = 1048576

cdef inline long long u32(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return mq_load32(b + p)

cdef inline int u16(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return (b[p] << 8) | b[p + 1]
