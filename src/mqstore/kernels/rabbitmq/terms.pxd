from mqstore.kernels.common.loads cimport i32, i64, outside, u16, u32, u8
from mqstore.kernels.rabbitmq.term_layout cimport (
    ATOM, ATOM_HEADER, ATOM_UTF8, BASIC_MESSAGE_SIZE, BINARY, BINARY_HEADER, BIT_BINARY, COMPRESSED, CONTAINER_ARITY, CONTAINER_BEFORE_ID,
    EXPORT, FLOAT, FLOAT_SIZE, ID_SIZE, ID_TERM_SIZE, INTEGER, INTEGER_SIZE, LARGE_BIG, LARGE_TUPLE, LAST_ASCII, LAST_LETTER, LENGTH_16,
    LENGTH_32, LENGTH_8, LIST, LONG_CREATION, MAP, MAX_ELEMENTS, MAX_LETTERS, MAX_NESTING, MC_SIZE, MESSAGE_ARITY, MESSAGE_BEFORE_ID,
    NEWER_REFERENCE, NEW_FLOAT, NEW_FLOAT_SIZE, NEW_PID,
    NEW_PID_SIZE, NEW_PORT, NEW_PORT_SIZE, NEW_REFERENCE, NIL, NUMBER_SIZE, PID, PID_SIZE, PORT, PORT_SIZE, SHORT_CREATION, SMALL_ATOM,
    SMALL_ATOM_HEADER, SMALL_ATOM_UTF8, SMALL_BIG, SMALL_INTEGER, SMALL_INTEGER_SIZE, SMALL_TUPLE, SMALL_TUPLE_HEADER, STRING, TRUE_SIZE,
    V4_PORT, V4_PORT_SIZE, VERSION, WORD_BASI, WORD_C_ME, WORD_MC, WORD_SSAG, WORD_TRUE,
)

# cpdef: Python sees them too
cpdef enum:
    # bits of a shape
    TERM = 1  # one complete term
    MESSAGE = 2  # a basic_message or an mc tuple
    SAME_ID = 4  # its id is the one asked for
    PERSISTENT = 8  # its persistent flag is set
    PACKED = 16  # compressed: only the decoder can read it
    CONTAINER = 32  # an mc tuple: only the decoder can determine whether it is persistent

cdef Py_ssize_t skip(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit) noexcept nogil
cdef Py_ssize_t decodable(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit) noexcept nogil
cdef Py_ssize_t skip_atom(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit) noexcept nogil
cdef Py_ssize_t atom_text(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit) noexcept nogil
cdef bint is_message(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit, int arity) noexcept nogil
cdef int shape_at(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit, long long hi, long long lo) noexcept nogil
cdef Py_ssize_t message_end(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit, long long hi, long long lo, bint any_id) noexcept nogil
cdef Py_ssize_t tuple_of(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit, int arity) noexcept nogil
