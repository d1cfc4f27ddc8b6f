from mqstore.kernels.common.loads cimport LOW32, TWO32, u8

cdef unsigned long long hash_span(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n, unsigned long long seed) noexcept nogil
cdef unsigned long long hash_utf8(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n, unsigned long long seed) noexcept nogil
