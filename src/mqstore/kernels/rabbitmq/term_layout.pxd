# The layout of stored message terms, once for all kernels (docs/formats/rabbitmq.md, sections 9 and 10).
#
# A term in a file is the byte VERSION, then a tag and what belongs to it:
#
#     tag                                what follows the tag
#     SMALL_INTEGER, INTEGER             1 byte, 4 bytes
#     NEW_FLOAT, FLOAT                   8 bytes, 31 characters
#     ATOM, ATOM_UTF8                    a length of 2 bytes, the name
#     SMALL_ATOM, SMALL_ATOM_UTF8        a length of 1 byte, the name
#     STRING                             a length of 2 bytes, the bytes
#     BINARY                             a length of 4 bytes, the bytes
#     BIT_BINARY                         a length of 4 bytes, the bits of the last byte, the bytes
#     SMALL_BIG, LARGE_BIG               a length of 1 or 4 bytes, the sign, the digits
#     SMALL_TUPLE, LARGE_TUPLE           a count of 1 or 4 bytes, that many terms
#     NIL                                nothing
#     LIST                               a count of 4 bytes, that many terms and a last one, mostly NIL
#     MAP                                a count of 4 bytes, twice as many terms
#     PID, NEW_PID                       an atom, two numbers, a creation
#     PORT, NEW_PORT, V4_PORT            an atom, one number (V4_PORT: two), a creation
#     NEW_REFERENCE, NEWER_REFERENCE     a count of 2 bytes, an atom, a creation, that many numbers
#     EXPORT                             three terms
#
# COMPRESSED takes the place of the first tag: the rest of the term is compressed.
#
# A message is a tuple of MESSAGE_ARITY elements that begins with the atom `basic_message`, or one of CONTAINER_ARITY that begins with `mc`.

cdef enum:
    VERSION = 131
    COMPRESSED = 80

    NEW_FLOAT = 70
    BIT_BINARY = 77
    NEW_PID = 88
    NEW_PORT = 89
    NEWER_REFERENCE = 90
    SMALL_INTEGER = 97
    INTEGER = 98
    FLOAT = 99
    ATOM = 100
    PORT = 102
    PID = 103
    SMALL_TUPLE = 104
    LARGE_TUPLE = 105
    NIL = 106
    STRING = 107
    LIST = 108
    BINARY = 109
    SMALL_BIG = 110
    LARGE_BIG = 111
    EXPORT = 113
    NEW_REFERENCE = 114
    SMALL_ATOM = 115
    MAP = 116
    ATOM_UTF8 = 118
    SMALL_ATOM_UTF8 = 119
    V4_PORT = 120

    # bytes of lengths, counts and numbers
    LENGTH_8 = 1
    LENGTH_16 = 2
    LENGTH_32 = 4
    SMALL_INTEGER_SIZE = 1
    INTEGER_SIZE = 4
    NEW_FLOAT_SIZE = 8
    FLOAT_SIZE = 31
    # after the atom of a process, port or reference
    NUMBER_SIZE = 4
    SHORT_CREATION = 1
    LONG_CREATION = 4
    PID_SIZE = 2 * NUMBER_SIZE + SHORT_CREATION
    NEW_PID_SIZE = 2 * NUMBER_SIZE + LONG_CREATION
    PORT_SIZE = NUMBER_SIZE + SHORT_CREATION
    NEW_PORT_SIZE = NUMBER_SIZE + LONG_CREATION
    V4_PORT_SIZE = 2 * NUMBER_SIZE + LONG_CREATION

    # bytes before the contents of some terms, tag included
    ATOM_HEADER = 1 + LENGTH_16
    SMALL_ATOM_HEADER = 1 + LENGTH_8
    SMALL_TUPLE_HEADER = 1 + LENGTH_8
    LIST_HEADER = 1 + LENGTH_32
    BINARY_HEADER = 1 + LENGTH_32

    # a message id is a binary
    ID_SIZE = 16
    ID_TERM_SIZE = BINARY_HEADER + ID_SIZE

    # elements of the tuples in a message
    MESSAGE_ARITY = 6
    CONTAINER_ARITY = 4
    RESOURCE_ARITY = 4
    CONTENT_ARITY = 6
    MESSAGE_BEFORE_ID = 3  # elements of a basic_message between its name and its id
    CONTAINER_BEFORE_ID = 2  # elements of an mc tuple between its name and the one that holds the id
    BASIC_CLASS = 60  # class id of `basic` in AMQP 0-9-1

    # elements of the tuples of a log entry: {'$usr', Meta, Command, ReplyMode}; {e, Seq, Message, Sizes}, {enqueue, Process, Seq, Message},
    # {requeue, Consumer, Id, Index, Header, Message}
    ENTRY_ARITY = 4
    PUBLISH_ARITY = 4
    REQUEUE_ARITY = 6

    # what the decoder reads at most: elements of one term, how deep they nest, letters of an atom
    MAX_ELEMENTS = 2000000
    MAX_NESTING = 256
    MAX_LETTERS = 255
    LAST_ASCII = 127

    # names as big-endian numbers of four bytes each, `mc` of two
    WORD_BASI = 1650553705
    WORD_C_ME = 1667198309
    WORD_SSAG = 1936941415
    LAST_LETTER = 101
    WORD_TRUE = 1953658213
    WORD_MC = 28003
    TRUE_SIZE = 4
    MC_SIZE = 2

    # where the names of a message's parts are in `message_terms.NAMES`, and their sizes
    BASIC_MESSAGE = 0
    BASIC_MESSAGE_SIZE = 13
    RESOURCE = BASIC_MESSAGE + BASIC_MESSAGE_SIZE
    RESOURCE_SIZE = 8
    EXCHANGE = RESOURCE + RESOURCE_SIZE
    EXCHANGE_SIZE = 8
    CONTENT = EXCHANGE + EXCHANGE_SIZE
    CONTENT_SIZE = 7
    NONE = CONTENT + CONTENT_SIZE
    NONE_SIZE = 4
    FRAMING = NONE + NONE_SIZE
    FRAMING_SIZE = 25
    TRUE = FRAMING + FRAMING_SIZE
    FALSE = TRUE + TRUE_SIZE
    FALSE_SIZE = 5
    USR = FALSE + FALSE_SIZE
    USR_SIZE = 4
    ENQUEUE = USR + USR_SIZE
    ENQUEUE_SIZE = 7
    E = ENQUEUE + ENQUEUE_SIZE
    E_SIZE = 1
    MC = E + E_SIZE
    MC_AMQPL = MC + MC_SIZE
    MC_AMQPL_SIZE = 8
    REQUEUE = MC_AMQPL + MC_AMQPL_SIZE
    REQUEUE_SIZE = 7
