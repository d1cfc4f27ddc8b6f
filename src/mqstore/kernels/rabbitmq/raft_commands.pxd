from mqstore.kernels.common.loads cimport i32, outside, u16, u32, u8
from mqstore.kernels.rabbitmq.term_layout cimport (
    BINARY, BINARY_HEADER, CONTAINER_ARITY, CONTENT_ARITY, ENTRY_ARITY, INTEGER, INTEGER_SIZE, LAST_ASCII, LENGTH_16, LIST, LIST_HEADER,
    MAP, MESSAGE_ARITY, NEW_PID, NIL, PID, PUBLISH_ARITY, SMALL_BIG, SMALL_INTEGER, STRING, VERSION,
)
from mqstore.kernels.rabbitmq.terms cimport atom_text, is_message, skip, skip_atom, tuple_of

# cpdef: Python sees them too
cpdef enum:
    # kinds
    OTHER = 0  # another command, or another shape: left to the decoder
    PUBLISH
    SETTLE

cpdef enum:
    # columns; spans count from the buffer's first byte
    KIND = 0
    TS  # the machine's time, ms
    SEQ  # of a publish: its number for the publisher; of a settle: the consumer, if KEY_LENGTH is 0
    META  # bytes of the properties
    BODY  # bytes of the body; of a settle with one message its id
    TTL  # NOTHING: not stated
    PRIORITY  # NOTHING: not stated
    COUNT  # of deliveries before; NOTHING: not stated
    KEY_START  # of the publisher, or of the consumer
    KEY_LENGTH  # 0: there is none
    IDS_START  # of the list of a settle's message ids
    IDS_COUNT
    COLUMNS

cpdef enum:
    # of a consumer
    CREDIT = 0
    NEXT_ID
    LOW_ID  # the first id that may be in its hand
    PLACE
    CONSUMER_COLUMNS

cpdef enum:
    # of a message; NOTHING: not yet
    LEFT = 0  # with the settle of this row
    HOLDER
    ID
    GIVEN  # with this row
    MESSAGE_COLUMNS

cpdef enum:
    NOTHING = -1

cdef enum:
    SETTLE_ARITY = 3  # {settle, Consumer, Ids}
    SIZES_ARITY = 2  # {Meta, Body}
    NOTIFY_ARITY = 3  # {notify, Correlation, Process}
    BASIC_ARITY = 15  # {'P_basic', …}, and where two of its fields are
    BASIC_PRIORITY = 5
    BASIC_EXPIRATION = 8
    BIG_HEADER = 3  # tag, number of digits, sign
    LETTERS = 8  # of a name that make its number
    DELIVERY_COUNT_SIZE = 14
