from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from mqstore.kernels.common.loads cimport i32, i64, memcmp, memcpy
from mqstore.kernels.common.pointer_loads cimport first_byte
from mqstore.kernels.rocketmq.frames cimport VALID, check
from mqstore.kernels.rocketmq.record_layout cimport (
    AT_BODY_CRC, AT_BORN_HOST, AT_BORN_TIMESTAMP, AT_FLAG, AT_PHYSICAL_OFFSET, AT_PREPARED_OFFSET, AT_QUEUE_ID, AT_QUEUE_OFFSET,
    AT_RECONSUME_TIMES, AT_STORE_HOST, AT_STORE_TIMESTAMP, ROW_BYTES, ROW_NUMBERS, ROW_PHYSICAL_OFFSET, ROW_SIZE, RecordParts, parts_of,
)

cdef enum:
    # positions in FIELDS
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
    MAX_TEXTS = 4096  # texts that are kept at most

cdef extern from *:
    """
    static CYTHON_INLINE PyObject *mq_new_object(PyObject *kind) {
        return ((PyTypeObject *) kind)->tp_alloc((PyTypeObject *) kind, 0);
    }
    #include "structmember.h"
    /* the offset in bytes at which objects keep the field of a member descriptor */
    static CYTHON_INLINE Py_ssize_t mq_place_of(PyObject *member) {
        PyMemberDef *slot = ((PyMemberDescrObject *) member)->d_member;
        if (slot->type == T_OBJECT_EX && slot->offset > 0) return slot->offset;
        PyErr_SetString(PyExc_TypeError, "a field is not kept as an object");
        return -1;
    }
    static CYTHON_INLINE void mq_announce_lines(const unsigned char *p, Py_ssize_t n) {
        const unsigned char *stop = p + n;
        for (; p < stop; p += 64) __builtin_prefetch(p, 0, 3);
    }
    static CYTHON_INLINE void mq_fill_slot(PyObject *made, Py_ssize_t place, PyObject *value) {
        Py_INCREF(value);
        *(PyObject **) ((char *) made + place) = value;
    }
    """
    object new_object "mq_new_object"(object kind)
    Py_ssize_t place_of "mq_place_of"(object member) except -1
    void announce_lines "mq_announce_lines"(const unsigned char *p, Py_ssize_t n) noexcept nogil
    void fill_slot "mq_fill_slot"(object made, Py_ssize_t place, object value)

cdef inline long long number(bytes rows, Py_ssize_t k):
    """Return the k-th native 64-bit number of rows."""
    cdef long long value
    memcpy(&value, PyBytes_AS_STRING(rows) + 8 * k, 8)
    return value

cdef inline bytes octets(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n):
    return PyBytes_FromStringAndSize(<const char *> &b[0] + p, n)

cdef inline bint alike(bytes known, const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n):
    return memcmp(PyBytes_AS_STRING(known), &b[0] + p, <size_t> n) == 0

cdef inline void announce(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n) noexcept nogil:
    announce_lines(&b[0] + p, n)

cdef class Numbers:
    cdef long long value
    cdef object made
    cdef at(self, long long value)

cdef class Texts:
    cdef object make, text
    cdef dict known
    cdef bytes last
    cdef at(self, const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n)

cdef class Decoder:
    cdef object kind
    cdef Texts topics, born_hosts, store_hosts
    cdef Numbers born_times, store_times
    cdef Py_ssize_t[16] places
    cdef decode(self, const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit)
