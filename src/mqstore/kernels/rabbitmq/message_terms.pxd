from mqstore.kernels.common.loads cimport i32, i64, outside, same, u16, u32, u8
from mqstore.kernels.rabbitmq.term_layout cimport (
    ATOM, ATOM_HEADER, ATOM_UTF8, BASIC_CLASS, BASIC_MESSAGE, BASIC_MESSAGE_SIZE, BINARY, BINARY_HEADER, CONTAINER_ARITY, CONTENT,
    CONTENT_ARITY, CONTENT_SIZE, E, ENQUEUE, ENQUEUE_SIZE, ENTRY_ARITY, EXCHANGE, EXCHANGE_SIZE, E_SIZE, FALSE, FALSE_SIZE, FRAMING,
    FRAMING_SIZE, ID_SIZE, LIST, LIST_HEADER, MAP, MC, MC_AMQPL, MC_AMQPL_SIZE, MC_SIZE, MESSAGE_ARITY, NIL, NONE, NONE_SIZE,
    PUBLISH_ARITY, REQUEUE, REQUEUE_ARITY, REQUEUE_SIZE, RESOURCE, RESOURCE_ARITY, RESOURCE_SIZE, SMALL_ATOM, SMALL_ATOM_HEADER,
    SMALL_ATOM_UTF8, SMALL_INTEGER, TRUE, TRUE_SIZE, USR, USR_SIZE, VERSION,
)
from mqstore.kernels.rabbitmq.terms cimport atom_text, decodable, skip, skip_atom, tuple_of

# cpdef: Python sees them too
cpdef enum:
    # status
    FAST = 0  # every field is set
    SLOW  # another shape, or damage: left to the decoder

cpdef enum:
    # fields; spans count from the buffer's first byte
    STATUS = 0
    END  # position after the term
    VHOST_START
    VHOST_LENGTH
    EXCHANGE_START
    EXCHANGE_LENGTH
    KEYS_START  # of the first routing key's binary, tag included; the others follow without a gap
    KEYS_COUNT
    PROPERTIES_START
    PROPERTIES_LENGTH
    PAYLOAD_START  # of the first binary of the list, which is the last of the body
    PAYLOAD_COUNT
    BODY_LENGTH
    ID_START
    PERSISTENT
    ANNOTATIONS_START  # of a container; they end at END. 0: there are none
    NOTED
    FIELD_COUNT

cpdef enum:
    # what the annotations of a container may change
    DECIDES = 1  # properties
    UNPROVED = 2  # whether properties can be read

cpdef enum:
    # columns of `properties`: the status, then two for each property
    PROPERTY_START = 1  # of the first property: where it starts, or the number itself
    PROPERTY_LENGTH = 2  # of the first property; -1 if it is not set
    PROPERTY_COUNT = 14
    PROPERTY_COLUMNS = 1 + 2 * PROPERTY_COUNT

cdef enum:
    # properties that are not short texts, by their position among all
    HEADERS = 2
    DELIVERY_MODE = 3
    PRIORITY = 4
    TIMESTAMP = 9
    PROPERTY_FLAGS_SIZE = 2
    FIRST_PROPERTY = 0x8000  # flag of the first property; that of the next is the next lower bit
    MORE_FLAGS = 1

cdef enum:
    # octets of header fields with a length, and of numbers by their size
    LONGSTR = 83  # S
    OCTETS = 120  # x
    TABLE = 70  # F
    ARRAY = 65  # A
    VOID = 86  # V
    BOOL = 116  # t
    BYTE = 98  # b
    UNSIGNED_BYTE = 66  # B
    SHORT = 115  # s
    UNSIGNED_SHORT = 117  # u
    SIGNED_INT = 73  # I
    UNSIGNED_INT = 105  # i
    SINGLE = 102  # f
    DECIMAL = 68  # D
    LONG = 76  # L
    SAME_LONG = 108  # l
    DOUBLE = 100  # d
    MOMENT = 84  # T
    FIELD_LENGTH = 4
    DECIMAL_SIZE = 5
    MOST_TABLE_BYTES = 200000  # fewer fields than the reader of blocks allows
    MOST_TABLES = 8  # within each other

cdef enum:
    # what the annotations of a container must have
    HAS_EXCHANGE = 1
    HAS_KEYS = 2
    KEY_LETTERS = 6  # of an annotation's name that make its number
    KEY_BITS = 48
