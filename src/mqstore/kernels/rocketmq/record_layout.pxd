# The layout of a commit log record, once for all kernels (docs/formats/rocketmq.md, section 2).
#
#     position          size  field
#     AT_SIZE              4  size of the record in bytes
#     AT_MAGIC             4  MAGIC_V1, MAGIC_V2; MAGIC_BLANK for the record that fills the rest of a file
#     AT_BODY_CRC          4
#     AT_QUEUE_ID          4
#     AT_FLAG              4
#     AT_QUEUE_OFFSET      8
#     AT_PHYSICAL_OFFSET   8  position of this record in the whole log
#     AT_SYS_FLAG          4
#     AT_BORN_TIMESTAMP    8
#     AT_BORN_HOST         8  address and port; 20 bytes if SYS_FLAG has BORN_HOST_IPV6
#     AT_STORE_TIMESTAMP   8
#     AT_STORE_HOST        8  20 bytes if SYS_FLAG has STORE_HOST_IPV6
#     AT_RECONSUME_TIMES   4
#     AT_PREPARED_OFFSET   8
#     AT_BODY_LENGTH       4
#     AT_BODY                 the body, then the topic's length (1 byte in version 1, 2 in version 2), the topic,
#                             the properties' length (2 bytes), the properties
#
# A position after a host does not count the host: AT_STORE_TIMESTAMP is relative to the end of the born host, the positions from
# AT_RECONSUME_TIMES on are relative to the end of both.
#
# The constants are anonymous enums: the C compiler sees numbers, no Python object is made.

from libc.string cimport memset
from mqstore.kernels.common.loads cimport mq_load32

cdef enum:
    INT = 4
    LONG = 8

    AT_SIZE = 0
    AT_MAGIC = AT_SIZE + INT
    AT_BODY_CRC = AT_MAGIC + INT
    AT_QUEUE_ID = AT_BODY_CRC + INT
    AT_FLAG = AT_QUEUE_ID + INT
    AT_QUEUE_OFFSET = AT_FLAG + INT
    AT_PHYSICAL_OFFSET = AT_QUEUE_OFFSET + LONG
    AT_SYS_FLAG = AT_PHYSICAL_OFFSET + LONG
    AT_BORN_TIMESTAMP = AT_SYS_FLAG + INT
    AT_BORN_HOST = AT_BORN_TIMESTAMP + LONG
    # after the born host, whose size is not counted
    AT_STORE_TIMESTAMP = AT_BORN_HOST
    AT_STORE_HOST = AT_STORE_TIMESTAMP + LONG
    # after both hosts, whose sizes are not counted
    AT_RECONSUME_TIMES = AT_STORE_HOST
    AT_PREPARED_OFFSET = AT_RECONSUME_TIMES + INT
    AT_BODY_LENGTH = AT_PREPARED_OFFSET + LONG
    AT_BODY = AT_BODY_LENGTH + INT

    FRAME_SIZE = AT_MAGIC + INT  # bytes that hold size and kind
    PROPERTIES_LENGTH_SIZE = 2
    IPV4_HOST_SIZE = 8
    IPV6_HOST_SIZE = 20
    FIXED_SIZE = AT_BODY + PROPERTIES_LENGTH_SIZE  # all but the hosts, the length of the topic, and the texts
    MIN_SIZE = FIXED_SIZE + 2 * IPV4_HOST_SIZE  # without the length of the topic, which has as many bytes as the version says
    MIN_RECORD_SIZE = MIN_SIZE + 1

    MAX_RECORD_SIZE = 2147483647
    MAX_TOPIC_V1 = 127
    MAX_TOPIC_V2 = 32767
    MAX_PROPERTIES = 32767

    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    MAGIC_BLANK = -875286124
    MAGIC_FIRST_BYTE = 0xDA  # of versions 1 and 2

    # bits of SYS_FLAG
    COMPRESSED = 0x1
    TRANSACTION_MASK = 0xC
    TRANSACTION_NONE = 0x0
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    BORN_HOST_IPV6 = 0x10
    STORE_HOST_IPV6 = 0x20

    # properties are `name` NAME_END `value` PAIR_END ...; KEYS are separated by blanks
    NAME_END = 1
    PAIR_END = 2
    KEY_SEPARATOR = 32
    # names, or their first four bytes, as big-endian numbers
    WORD_TAGS = 1413564243
    WORD_KEYS = 1262836051
    WORD_DELA = 1145392193
    WORD_INNE = 1229868613
    # the checksum property `__CRC32#`: name, NAME_END, ten decimal digits, PAIR_END
    WORD_CRC_FIRST = 1600078674
    WORD_CRC_SECOND = 1127428643
    CRC_NAME_SIZE = 8
    CRC_DIGITS = 10
    CRC_PROPERTY_SIZE = CRC_NAME_SIZE + 1 + CRC_DIGITS + 1

    # a reference to a record: a row of native 64-bit numbers
    ROW_QUEUE_OFFSET = 0
    ROW_PHYSICAL_OFFSET = ROW_QUEUE_OFFSET + 1
    ROW_SIZE = ROW_PHYSICAL_OFFSET + 1
    ROW_NUMBERS = ROW_SIZE + 1
    ROW_BYTES = ROW_NUMBERS * LONG

cdef extern from *:
    """
    #define MQ_UNIQ_KEY 6146931155247252825LL
    """
    const long long WORD_UNIQ_KEY "MQ_UNIQ_KEY"

# where the parts of a record are in a buffer; after_hosts: add AT_RECONSUME_TIMES and what follows it
cdef struct RecordParts:
    int version
    int sys_flag
    Py_ssize_t born_length
    Py_ssize_t store_length
    Py_ssize_t after_hosts
    Py_ssize_t body
    Py_ssize_t body_length
    Py_ssize_t topic
    Py_ssize_t topic_length
    Py_ssize_t properties
    Py_ssize_t properties_length

# bytes of a buffer
cdef struct Span:
    const unsigned char *buffer
    Py_ssize_t start
    Py_ssize_t length

# all that a record is made of; body_crc < 0: computed; crc_size: bytes of the checksum property, see `encode`
cdef struct RecordValues:
    long long size
    int version
    int queue_id
    int flag
    int sys_flag
    long long queue_offset
    long long physical_offset
    long long born_timestamp
    long long store_timestamp
    int reconsume_times
    long long prepared_offset
    long long body_crc
    Py_ssize_t crc_size
    Span born_host
    Span store_host
    Span body
    Span topic
    Span properties

cdef inline RecordValues empty_values() noexcept nogil:
    cdef RecordValues values
    memset(&values, 0, sizeof(values))
    return values

cdef inline Py_ssize_t born_host_size(long long sys_flag) noexcept nogil:
    return IPV6_HOST_SIZE if sys_flag & BORN_HOST_IPV6 else IPV4_HOST_SIZE

cdef inline Py_ssize_t store_host_size(long long sys_flag) noexcept nogil:
    return IPV6_HOST_SIZE if sys_flag & STORE_HOST_IPV6 else IPV4_HOST_SIZE

cdef inline RecordParts parts_of(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    """Return the parts of the record at p, which `frames.check` has accepted. Negative lengths of body and properties count as 0."""
    cdef RecordParts parts
    cdef Py_ssize_t at
    parts.sys_flag = <int> mq_load32(b + p + AT_SYS_FLAG)
    parts.born_length = born_host_size(parts.sys_flag)
    parts.store_length = store_host_size(parts.sys_flag)
    parts.after_hosts = p + parts.born_length + parts.store_length
    parts.body = parts.after_hosts + AT_BODY
    parts.body_length = <int> mq_load32(b + parts.after_hosts + AT_BODY_LENGTH)
    if parts.body_length < 0:
        parts.body_length = 0
    at = parts.body + parts.body_length
    if <int> mq_load32(b + p + AT_MAGIC) == MAGIC_V1:
        parts.version = 1
        parts.topic_length = <signed char> b[at]
    else:
        parts.version = 2
        parts.topic_length = <short> ((b[at] << 8) | b[at + 1])
    parts.topic = at + parts.version
    at = parts.topic + parts.topic_length
    parts.properties = at + PROPERTIES_LENGTH_SIZE
    parts.properties_length = <short> ((b[at] << 8) | b[at + 1])
    if parts.properties_length < 0:
        parts.properties_length = 0
    return parts
