from mqstore.kernels.common.loads cimport i32, i64, u8

cdef long long unsigned32(const unsigned char[::1] b, Py_ssize_t p) noexcept nogil
cdef int shape_at(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit, long long hi, long long lo) noexcept nogil
cdef Py_ssize_t message_end(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t limit, long long hi, long long lo, bint any_id) noexcept nogil
