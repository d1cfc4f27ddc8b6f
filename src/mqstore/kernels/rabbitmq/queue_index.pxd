from mqstore.kernels.common.loads cimport i32, i64, u16, u32, u8
from mqstore.kernels.rabbitmq.index_layout cimport (
    AT_EMBEDDED, AT_EXPIRY, AT_LOW_ID, AT_SIZE, DELIVER, EMBEDDED_LIMIT, FIELDS_SIZE, JOURNAL_AT_EMBEDDED, JOURNAL_PUBLISH_SIZE,
    JOURNAL_WORD_SIZE, KIND_SHIFT, PUBLISH, PUBLISH_TRANSIENT, REL_MASK, SEGMENT_AT_EMBEDDED, SEGMENT_MARK, SEGMENT_MARK_SIZE,
    SEGMENT_PUBLISH, SEGMENT_PUBLISH_SIZE, SEGMENT_WORD_SIZE, SEQUENCE_BITS, TRANSIENT_BIT,
)
from mqstore.kernels.rabbitmq.term_layout cimport ID_SIZE, VERSION
from mqstore.kernels.rabbitmq.terms cimport SAME_ID, shape_at

# cpdef: Python sees them too
cpdef enum:
    # status of a walk
    DONE = 0  # the end of the file
    ZEROS  # journal: forty zero bytes, as a crash leaves them
    TORN  # fewer bytes than the record needs
    BAD  # segment: a word that is neither publish nor del/ack, or one for an entry the segment cannot have
    FULL

cpdef enum:
    # bits of a state
    P = 1
    D = 2
    A = 4
    REMOVED = 8  # published, delivered and acknowledged within the journal: the broker has forgotten it
    CRASH = 16  # the broker would crash on these actions
    REPEATED = 32  # a second, different publish
    ACTIONS = P | D | A
    FLAWS = CRASH | REPEATED
