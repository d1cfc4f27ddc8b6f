# The layout of a chunk of a stream segment, once for all kernels (docs/formats/rabbitmq-streams.md, section 2).

cdef enum:
    CHUNK_MAGIC = 0x50  # magic 5 and version 0
    CHUNK_AT_KIND = 1
    CHUNK_AT_ENTRIES = 2
    CHUNK_AT_RECORDS = 4
    CHUNK_AT_TIMESTAMP = 8
    CHUNK_AT_EPOCH = 16
    CHUNK_AT_ID = 24
    CHUNK_AT_CRC = 32
    CHUNK_AT_DATA_SIZE = 36
    CHUNK_AT_TRAILER_SIZE = 40
    CHUNK_AT_FILTER_SIZE = 44
    CHUNK_AT_RESERVED = 45
    CHUNK_HEADER_SIZE = 48
    LAST_KIND = 2

    BATCH_MARK = 0x80  # bit of the first byte of an entry: a sub-batch
    BATCH_CODEC_SHIFT = 4
    BATCH_CODEC_MASK = 7
    BATCH_AT_RECORDS = 1
    BATCH_AT_PLAIN_SIZE = 3
    BATCH_AT_SIZE = 7
    BATCH_HEADER_SIZE = 11
    LENGTH_SIZE = 4  # of an entry that is one record

    BLOCK_HEADER_SIZE = 2  # of tracking: kind, bytes of the id
    BLOCK_NUMBER_SIZE = 8
    LAST_BLOCK = 2
    SMALL_ULONG = 0x53  # a section of AMQP 1.0: 0, this, and its code
    FIRST_SECTION = 0x70
    LAST_SECTION = 0x78
