from mqstore.kernels.common.loads cimport LOW32, mq_load64

ctypedef unsigned int (*library_function)(unsigned int before, const unsigned char *b, unsigned long long n) noexcept nogil

cdef unsigned int[2048] NEAR
cdef unsigned int[2048] FAR
cdef library_function LIBRARY

cdef extern from *:
    unsigned long long mq_swap64 "__builtin_bswap64"(unsigned long long v) noexcept nogil

cdef inline const unsigned char *first_byte(const unsigned char[::1] b) noexcept nogil:
    return <const unsigned char *> b._data

cdef inline unsigned int u8(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return b[p]

cdef inline unsigned long long little64(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return mq_swap64(mq_load64(b + p))

cdef unsigned int crc_on(const unsigned char *b, Py_ssize_t start, Py_ssize_t n, unsigned int crc) noexcept nogil
