# Big-endian loads and stores of an array's bytes. Positions were range-checked by the walker.
#
# Constants of this size are macros: as literals they would become Python objects in a loop.
cdef extern from *:
    """
    #include <string.h>
    #include <stdint.h>
    #define MQ_TWO31 2147483648ULL
    #define MQ_TWO32 4294967296ULL
    #define MQ_LOW32 4294967295ULL
    #define MQ_UNIQ_KEY 6146931155247252825LL
    static CYTHON_INLINE uint32_t mq_load32(const unsigned char *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
    static CYTHON_INLINE uint64_t mq_load64(const unsigned char *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    static CYTHON_INLINE void mq_store32(unsigned char *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
    static CYTHON_INLINE void mq_store64(unsigned char *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
    static CYTHON_INLINE void mq_prefetch(const unsigned char *p) { __builtin_prefetch(p, 0, 3); }
    static CYTHON_INLINE Py_ssize_t mq_find(const unsigned char *p, int c, Py_ssize_t n) {
        const unsigned char *q = n > 0 ? (const unsigned char *) memchr(p, c, (size_t) n) : 0;
        return q ? q - p : -1;
    }
    /* 31-polynomial of eight bytes a step: neighbours are put together as 16-bit, then 32-bit sums, none of which overflows */
    static CYTHON_INLINE uint64_t mq_ascii_hash(const unsigned char *p, Py_ssize_t n, uint64_t seed) {
        uint32_t h = (uint32_t) seed;
        unsigned char high = 0;
        for (; n >= 8; n -= 8, p += 8) {
            uint64_t v = __builtin_bswap64(mq_load64(p));
            if (v & 0x8080808080808080ULL) return MQ_TWO32;
            v = (v & 0x00ff00ff00ff00ffULL) * 31 + ((v >> 8) & 0x00ff00ff00ff00ffULL);
            v = (v & 0x0000ffff0000ffffULL) * 961 + ((v >> 16) & 0x0000ffff0000ffffULL);
            h = h * 2487512833U + (uint32_t) v * 923521U + (uint32_t) (v >> 32);
        }
        for (; n > 0; n--, p++) { high |= *p; h = h * 31 + *p; }
        return high & 0x80 ? MQ_TWO32 : h;
    }
    """
    const unsigned long long TWO31 "MQ_TWO31"
    const unsigned long long TWO32 "MQ_TWO32"
    const unsigned long long LOW32 "MQ_LOW32"
    const long long UNIQ_KEY "MQ_UNIQ_KEY"
    unsigned int mq_load32(const unsigned char *p) noexcept nogil
    unsigned long long mq_load64(const unsigned char *p) noexcept nogil
    void mq_store32(unsigned char *p, unsigned int v) noexcept nogil
    void mq_store64(unsigned char *p, unsigned long long v) noexcept nogil
    void mq_prefetch(const unsigned char *p) noexcept nogil
    Py_ssize_t mq_find(const unsigned char *p, int c, Py_ssize_t n) noexcept nogil
    unsigned long long mq_ascii_hash(const unsigned char *p, Py_ssize_t n, unsigned long long seed) noexcept nogil
    void *memcpy(void *to, const void *source, size_t n) noexcept nogil
    int memcmp(const void *a, const void *b, size_t n) noexcept nogil

cdef inline unsigned int u8(const unsigned char[::1] b, Py_ssize_t p) noexcept nogil:
    return b[p]

cdef inline int i8(const unsigned char[::1] b, Py_ssize_t p) noexcept nogil:
    return <signed char> b[p]

cdef inline int i16(const unsigned char[::1] b, Py_ssize_t p) noexcept nogil:
    return <short> ((b[p] << 8) | b[p + 1])

cdef inline int u16(const unsigned char[::1] b, Py_ssize_t p) noexcept nogil:
    return (b[p] << 8) | b[p + 1]

cdef inline long long u32(const unsigned char[::1] b, Py_ssize_t p) noexcept nogil:
    return mq_load32(&b[p])

cdef inline int i32(const unsigned char[::1] b, Py_ssize_t p) noexcept nogil:
    return <int> mq_load32(&b[p])

cdef inline long long i64(const unsigned char[::1] b, Py_ssize_t p) noexcept nogil:
    return <long long> mq_load64(&b[p])

cdef inline void put32(unsigned char[::1] b, Py_ssize_t p, long long v) noexcept nogil:
    mq_store32(&b[p], <unsigned int> v)

cdef inline void put64(unsigned char[::1] b, Py_ssize_t p, long long v) noexcept nogil:
    mq_store64(&b[p], <unsigned long long> v)

cdef inline bint outside(long long at, long long length, long long size) noexcept nogil:
    # whether length bytes at `at` are not all inside size bytes
    return at < 0 or length < 0 or at > size or length > size - at

cdef inline void prefetch(const unsigned char[::1] b, Py_ssize_t p) noexcept nogil:
    mq_prefetch(&b[0] + p)

cdef inline Py_ssize_t find(const unsigned char[::1] b, Py_ssize_t start, Py_ssize_t stop, int c) noexcept nogil:
    cdef Py_ssize_t k = mq_find(&b[0] + start, c, stop - start)
    return stop if k < 0 else start + k

cdef inline void copy(unsigned char[::1] to, Py_ssize_t at, const unsigned char[::1] b, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    if n > 0:
        memcpy(&to[at], &b[start], <size_t> n)

cdef inline bint same(const unsigned char[::1] a, Py_ssize_t p, const unsigned char[::1] b, Py_ssize_t q, Py_ssize_t n) noexcept nogil:
    return n <= 0 or memcmp(&a[p], &b[q], <size_t> n) == 0

cdef inline unsigned long long ascii_hash(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n, unsigned long long seed) noexcept nogil:
    return mq_ascii_hash(&b[0] + p, n, seed)

cdef inline unsigned long long cell(const unsigned long long[:, ::1] table, Py_ssize_t row, Py_ssize_t column) noexcept nogil:
    return table[row, column]

cdef inline int low32(long long v) noexcept nogil:
    return <int> v

cdef inline unsigned long long word64(long long v) noexcept nogil:
    return <unsigned long long> v
