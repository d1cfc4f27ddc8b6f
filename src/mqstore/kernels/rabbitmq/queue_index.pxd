from mqstore.kernels.common.loads cimport i32, i64, u16, u32, u8
from mqstore.kernels.rabbitmq.index_layout cimport (
    AT_EMBEDDED, AT_EXPIRY, AT_LOW_ID, AT_SIZE, DELIVER, EMBEDDED_LIMIT, FIELDS_SIZE, JOURNAL_AT_EMBEDDED, JOURNAL_PUBLISH_SIZE,
    JOURNAL_WORD_SIZE, KIND_SHIFT, PUBLISH, PUBLISH_TRANSIENT, REL_MASK, SEGMENT_AT_EMBEDDED, SEGMENT_MARK, SEGMENT_MARK_SIZE,
    SEGMENT_PUBLISH, SEGMENT_PUBLISH_SIZE, SEGMENT_WORD_SIZE, SEQUENCE_BITS, TRANSIENT_BIT,
)
from mqstore.kernels.rabbitmq.term_layout cimport ID_SIZE, VERSION
from mqstore.kernels.rabbitmq.terms cimport SAME_ID, shape_at

# the names of queue_index.py, where they are described; cpdef: Python sees them too
cpdef enum:
    DONE = 0
    ZEROS
    TORN
    BAD
    FULL

cpdef enum:
    P = 1
    D = 2
    A = 4
    REMOVED = 8
    CRASH = 16
    REPEATED = 32
    ACTIONS = P | D | A
    FLAWS = CRASH | REPEATED
