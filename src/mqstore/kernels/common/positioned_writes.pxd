cdef enum:
    # rows of the numbers of a write
    DESCRIPTOR = 0
    OFFSET
    ADDRESS
    LENGTH

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <unistd.h>
    /* one positioned write; repeated if a signal interrupts it; the error number, negated, if it fails */
    static long long mq_write_some(long long descriptor, long long address, long long length, long long offset) {
        ssize_t written;
        do {
            written = pwrite((int) descriptor, (const void *) (intptr_t) address, (size_t) length, (off_t) offset);
        } while (written < 0 && errno == EINTR);
        return written < 0 ? -errno : written == 0 ? -EIO : written;
    }
    """
    long long write_some "mq_write_some"(long long descriptor, long long address, long long length, long long offset) noexcept nogil

cdef inline long long address_of(const unsigned char[::1] b) noexcept:
    return <long long> <size_t> b._data
