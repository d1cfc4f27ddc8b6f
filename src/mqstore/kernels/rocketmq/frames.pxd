from mqstore.kernels.common.loads cimport UNIQ_KEY, copy, find, i16, i32, i64, i8, prefetch, u8

cdef int check(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit, long long base, bint strict) noexcept nogil
