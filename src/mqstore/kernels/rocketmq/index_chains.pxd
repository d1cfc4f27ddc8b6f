from mqstore.kernels.common.loads cimport i32, i64, mq_store32, mq_store64, put32
from mqstore.kernels.rocketmq.entry_layout cimport (
    INDEX_AT_HASH, INDEX_AT_OFFSET, INDEX_AT_PREVIOUS, INDEX_AT_SECONDS, INDEX_ENTRY_SIZE, INDEX_HEADER_SIZE, INDEX_SLOT_SIZE, KEY_AT_HASH,
    KEY_AT_OFFSET, KEY_AT_TIMESTAMP, KEY_SIZE, MAX_INT, MILLISECONDS,
)

cdef inline void put_entry(
    unsigned char[::1] out, Py_ssize_t at, long long key_hash, long long physical_offset, long long seconds, long long previous
) noexcept nogil:
    cdef unsigned char *entry = &out[at]
    mq_store32(entry + INDEX_AT_HASH, <unsigned int> key_hash)
    mq_store64(entry + INDEX_AT_OFFSET, <unsigned long long> physical_offset)
    mq_store32(entry + INDEX_AT_SECONDS, <unsigned int> seconds)
    mq_store32(entry + INDEX_AT_PREVIOUS, <unsigned int> previous)
