from mqstore.kernels.common.loads cimport i32, i64
from mqstore.kernels.rocketmq.entry_layout cimport ENTRY_AT_SIZE, ENTRY_SIZE

cdef inline long long end_of(long long physical_offset, int size) noexcept nogil:
    """Return the end of a record, wrapped to 64 bits as in Java."""
    return <long long> (<unsigned long long> physical_offset + <unsigned long long> <long long> size)
