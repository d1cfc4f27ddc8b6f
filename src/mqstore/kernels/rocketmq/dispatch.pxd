from mqstore.kernels.common.loads cimport LOW32, TWO31, TWO32, UNIQ_KEY, ascii_hash, copy, find, i16, i32, i64, i8, prefetch, put32, put64, same, u8
from mqstore.kernels.rocketmq.hashing cimport hash_span

cdef unsigned long long slot_of(unsigned long long topic_hash, int queue) noexcept nogil
