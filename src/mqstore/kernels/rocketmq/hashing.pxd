from mqstore.kernels.common.loads cimport LOW32, TWO32
from mqstore.kernels.common.pointer_loads cimport first_byte, u8

cdef unsigned long long hash_span(const unsigned char *b, Py_ssize_t p, Py_ssize_t n, unsigned long long seed) noexcept nogil
cdef unsigned long long hash_utf8(const unsigned char *b, Py_ssize_t p, Py_ssize_t n, unsigned long long seed) noexcept nogil
