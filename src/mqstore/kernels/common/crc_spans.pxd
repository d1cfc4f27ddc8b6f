from mqstore.kernels.common.loads cimport LOW32, mq_load64

ctypedef unsigned int (*library_function)(unsigned int before, const unsigned char *b, unsigned long long n) noexcept nogil

cdef unsigned int[2048] NEAR
cdef unsigned int[2048] FAR
cdef library_function LIBRARY
cdef bint AVX

cdef extern from *:
    """
    /* ISA-L's function leaves the upper parts of the vector registers in use. Until they are cleared, each older vector instruction, such
       as those of the interpreter's free(), and the next call take some 180 ns more on an Intel Xeon. */
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <cpuid.h>
    static CYTHON_INLINE int mq_has_avx(void) {
        unsigned int a, b, c = 0, d, states = 0;
        if (__get_cpuid(1, &a, &b, &c, &d) && (c & bit_OSXSAVE) && (c & bit_AVX))
            __asm__ volatile("xgetbv" : "=a"(states), "=d"(d) : "c"(0));
        return (states & 6) == 6;
    }
    #define mq_clear_upper() __asm__ volatile("vzeroupper" ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", \\
        "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")
    #else
    #define mq_has_avx() 0
    #define mq_clear_upper()
    #endif
    """
    bint has_avx "mq_has_avx"() noexcept nogil
    void clear_upper "mq_clear_upper"() noexcept nogil
    unsigned long long mq_swap64 "__builtin_bswap64"(unsigned long long v) noexcept nogil

cdef inline const unsigned char *first_byte(const unsigned char[::1] b) noexcept nogil:
    return <const unsigned char *> b._data

cdef inline unsigned int u8(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return b[p]

cdef inline unsigned long long little64(const unsigned char *b, Py_ssize_t p) noexcept nogil:
    return mq_swap64(mq_load64(b + p))

cdef unsigned int crc_on(const unsigned char *b, Py_ssize_t start, Py_ssize_t n, unsigned int crc) noexcept nogil
