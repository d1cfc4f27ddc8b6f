from mqstore.kernels.common.loads cimport i32, i64
from mqstore.kernels.rocketmq.entry_layout cimport (
    INDEX_AT_HASH, INDEX_AT_OFFSET, INDEX_AT_PREVIOUS, INDEX_AT_SECONDS, INDEX_ENTRY_SIZE, INDEX_HEADER_SIZE, INDEX_SLOT_SIZE, MILLISECONDS,
)

# cpdef: Python sees it too
cpdef enum:
    MAX_RESULTS = 64  # entries that one search can return

cdef Py_ssize_t follow(
    const unsigned char[::1] b, long long slots, long long positions, long long count, long long begin_timestamp, long long key_hash,
    long long begin, long long end, long long max_results, long long *offsets, Py_ssize_t first
) noexcept nogil
