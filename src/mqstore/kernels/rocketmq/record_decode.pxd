from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from mqstore.kernels.rocketmq.frames cimport check
from mqstore.kernels.common.loads cimport i8, i16, i32, i64, memcmp, memcpy

cdef extern from *:
    """
    static CYTHON_INLINE PyObject *mq_blank_of(PyObject *kind) {
        return ((PyTypeObject *) kind)->tp_alloc((PyTypeObject *) kind, 0);
    }
    static CYTHON_INLINE int mq_put(PyObject *member, PyObject *made, PyObject *value) {
        return Py_TYPE(member)->tp_descr_set(member, made, value);
    }
    """
    object blank_of "mq_blank_of"(object kind)
    int put "mq_put"(object member, object made, object value) except -1

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
    cdef made(self, const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit)
