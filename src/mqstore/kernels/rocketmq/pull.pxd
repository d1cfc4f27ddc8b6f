from cpython.bytes cimport PyBytes_FromStringAndSize
from mqstore.kernels.common.loads cimport i32, i64
from mqstore.kernels.rocketmq.entry_layout cimport ENTRY_AT_OFFSET, ENTRY_AT_SIZE, ENTRY_AT_TAGS_CODE, ENTRY_AT_TAGS_HASH, ENTRY_SIZE
from mqstore.kernels.rocketmq.put cimport LogEnd
from mqstore.kernels.rocketmq.record_layout cimport ROW_NUMBERS, ROW_PHYSICAL_OFFSET, ROW_QUEUE_OFFSET, ROW_SIZE

# cpdef: Python sees them too
cpdef enum:
    # what `scan` writes before its rows
    SCAN_CONSUMED = 0  # entries consumed
    SCAN_EXAMINED  # physical offset looked at last
    SCAN_BYTES  # bytes of the messages
    SCAN_LOWEST  # lowest physical offset of a message
    SCAN_END  # highest end of a message
    SCAN_HEADER

cpdef enum:
    MAX_MAPS = 96  # maps that are held at a time: a store may have more files than a process may open

cdef enum:
    UNDECIDED = -1  # the entries alone do not decide the answer
    MAX_ENTRIES = 100000000  # their bytes still fit 32 bits
    MAX_ROWS = 4096
    LEAST_TAGS_CODE = -2147483648  # codes below it are addresses in the extended queue

cdef extern from *:
    """
    /* a record will be read: its first and its last line at once, all others into the larger cache */
    static CYTHON_INLINE void mq_announce(const unsigned char *p, Py_ssize_t n) {
        const unsigned char *stop = p + n;
        __builtin_prefetch(p, 0, 3);
        for (p += 64; p < stop - 64; p += 64) __builtin_prefetch(p, 0, 1);
        __builtin_prefetch(stop - 1, 0, 3);
    }
    """
    void mq_announce(const unsigned char *p, Py_ssize_t n) noexcept nogil

cdef inline void announce(const unsigned char[::1] b, Py_ssize_t p, Py_ssize_t n) noexcept nogil:
    mq_announce(&b[0] + p, n)

cdef inline long long c_long(value) except? -1:
    return value

cdef inline bytes packed(const long long[::1] numbers, Py_ssize_t start, Py_ssize_t count):
    return PyBytes_FromStringAndSize(<const char *> &numbers[start], 8 * count)

cdef class MappedBytes:
    cdef public object view
    cdef const unsigned char[::1] octets

cdef class PullResult:
    cdef public object status, view
    cdef public long long next_begin_offset, min_offset, max_offset, total_bytes, message_count, start
    cdef public bint suggest_pulling_from_slave
    cdef public bytes rows
    cdef list _slices, _queue_offsets, _physical_offsets, _sizes
    cdef _lay_out(self)

cdef class Limits:
    cdef public bint goes_on_to_next_file
    cdef public long long in_memory_bytes, travel_files, max_filter_bytes, count_in_memory, bytes_in_memory, count_on_disk, bytes_on_disk

cpdef long long scan(
    const unsigned char[::1] b, long long first, long long stop, long long offset, long long max_count, long long log_max,
    Limits limits, long long[::1] out, const int[::1] hashes=*
) except? -2

cdef class PullPath:
    cdef object result, found, unmatched, log
    cdef dict queues
    cdef Limits limits
    cdef long long[::1] out
    cdef list kept
    cdef int turn
    cdef bint closed
    cdef pull(self, topic, queue_id, offset, max_count, hashes)
