from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from mqstore.kernels.common.loads cimport i32, i64, memcmp, memcpy
from mqstore.kernels.common.pointer_loads cimport first_byte
from mqstore.kernels.rocketmq.frames cimport VALID, check
from mqstore.kernels.rocketmq.record_layout cimport (
    AT_BODY_CRC, AT_BORN_HOST, AT_BORN_TIMESTAMP, AT_FLAG, AT_PHYSICAL_OFFSET, AT_PREPARED_OFFSET, AT_QUEUE_ID, AT_QUEUE_OFFSET,
    AT_RECONSUME_TIMES, AT_STORE_HOST, AT_STORE_TIMESTAMP, ROW_BYTES, ROW_NUMBERS, ROW_PHYSICAL_OFFSET, ROW_SIZE, RecordParts, parts_of,
)

# positions in FIELDS
cdef enum:
    TOPIC = 0
    BODY
    QUEUE_ID
    FLAG
    QUEUE_OFFSET
    PHYSICAL_OFFSET
    SYS_FLAG
    BORN_TIMESTAMP
    BORN_HOST
    STORE_TIMESTAMP
    STORE_HOST
    RECONSUME_TIMES
    PREPARED_TRANSACTION_OFFSET
    PROPERTIES
    BODY_CRC
    VERSION

cdef enum:
    MAX_TEXTS = 4096

cdef extern from *:
    """
    static CYTHON_INLINE PyObject *mq_new_object(PyObject *kind) {
        return ((PyTypeObject *) kind)->tp_alloc((PyTypeObject *) kind, 0);
    }
    static CYTHON_INLINE int mq_set_member(PyObject *member, PyObject *made, PyObject *value) {
        return Py_TYPE(member)->tp_descr_set(member, made, value);
    }
    """
    object new_object "mq_new_object"(object kind)
    int set_member "mq_set_member"(object member, object made, object value) except -1

cdef inline long long number(bytes rows, Py_ssize_t k):
    cdef long long value
    memcpy(&value, PyBytes_AS_STRING(rows) + 8 * k, 8)
    return value

cdef inline bytes octets(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n):
    return PyBytes_FromStringAndSize(<const char *> &b[0] + p, n)

cdef inline bint alike(bytes known, const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n):
    return memcmp(PyBytes_AS_STRING(known), &b[0] + p, <size_t> n) == 0

cdef class Texts:
    cdef object make, text
    cdef dict known
    cdef bytes last
    cdef at(self, const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n)

cdef class Decoder:
    cdef object kind
    cdef Texts topics, hosts
    cdef list members
    cdef decode(self, const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit)
