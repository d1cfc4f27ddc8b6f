from mqstore.kernels.common.loads cimport LOW32
from mqstore.kernels.common.pointer_loads cimport first_byte, i32, i64
from mqstore.kernels.rocketmq.hashing cimport hash_span
from mqstore.kernels.rocketmq.index_search cimport MAX_RESULTS, follow
from mqstore.kernels.rocketmq.pull cimport MappedBytes, PullPath, c_long
from mqstore.kernels.rocketmq.put cimport LogEnd
from mqstore.kernels.rocketmq.record_layout cimport AT_PHYSICAL_OFFSET, AT_SIZE

cdef enum:
    SEPARATOR = 35  # between topic and key: `#`
    HIGHEST_BIT = 2147483648
    LEAST_SIZE = 64  # bytes of a record up to its store time: a shorter one cannot be read
    UNKNOWN = -2

cdef extern from "Python.h":
    const char *utf8 "PyUnicode_AsUTF8AndSize"(object text, Py_ssize_t *size) except NULL

cdef class QueryPath:
    cdef object result, recovery, log
    cdef PullPath pulls
    cdef long long cap
    cdef Py_ssize_t search(self, list files, topic, key, long long most, long long begin, long long end, long long *offsets) except -3
    cdef record(self, long long physical)
    cdef look_up(self, long long physical)
