from mqstore.kernels.common.loads cimport LOW32, TWO31, TWO32, copy, prefetch
from mqstore.kernels.common.pointer_loads cimport ascii_hash, find, first_byte, i32, i64, put32, put64, same, u8
from mqstore.kernels.rocketmq.entry_layout cimport ENTRY_AT_SIZE, ENTRY_AT_TAGS_CODE, ENTRY_SIZE, KEY_AT_OFFSET, KEY_AT_TIMESTAMP, KEY_SIZE
from mqstore.kernels.rocketmq.hashing cimport hash_span
from mqstore.kernels.rocketmq.property_spans cimport KEYS_START, TAGS_START, UNIQ_KEY_START, known_row, name_end
from mqstore.kernels.rocketmq.record_layout cimport (
    AT_PHYSICAL_OFFSET, AT_QUEUE_ID, AT_QUEUE_OFFSET, AT_SIZE, AT_STORE_TIMESTAMP, KEY_SEPARATOR, PAIR_END, RecordParts,
    TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE, TRANSACTION_ROLLBACK, WORD_DELA, WORD_INNE, parts_of,
)

# cpdef: Python sees them too
cpdef enum:
    # positions in the counters array
    RECORDS = 0  # records dispatched so far
    KEYS  # key rows written so far
    GROUPS
    SPECIALS
    COUNTER_COUNT

cpdef enum:
    # why a call returned
    DONE = 0
    KEYS_FULL
    GROUPS_FULL

cpdef enum:
    NO_GROUP = -1  # a prepared or rolled back record: no queue entry

cdef enum:
    LINE = 64  # bytes of a cache line
    NO_ROOM = -2
    SCHEDULE_TOPIC_LENGTH = 19

cdef inline unsigned char *start_of(unsigned char[::1] b) noexcept nogil:
    return <unsigned char *> b._data
