from mqstore.kernels.common.crc_spans cimport crc_on, first_byte
from mqstore.kernels.common.loads cimport copy, put32, put64, u8

cdef inline void put8(unsigned char[::1] b, Py_ssize_t p, long long v) noexcept nogil:
    b[p] = <unsigned char> v
