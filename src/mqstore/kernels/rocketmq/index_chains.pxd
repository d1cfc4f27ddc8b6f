from mqstore.kernels.common.loads cimport mq_prefetch, mq_store32, mq_store64
from mqstore.kernels.common.pointer_loads cimport first_byte, i32, i64, put32
from mqstore.kernels.rocketmq.entry_layout cimport (
    INDEX_AT_HASH, INDEX_AT_OFFSET, INDEX_AT_PREVIOUS, INDEX_AT_SECONDS, INDEX_ENTRY_SIZE, INDEX_HEADER_SIZE, INDEX_SLOT_SIZE, KEY_AT_HASH,
    KEY_AT_OFFSET, KEY_AT_TIMESTAMP, KEY_SIZE, MAX_INT, MILLISECONDS,
)

cdef enum:
    AHEAD = 16  # keys

cdef inline void expect_slot(int *slots, unsigned int slot) noexcept nogil:
    """Have a slot fetched from memory before it is needed."""
    mq_prefetch(<const unsigned char *> (slots + slot))

cdef inline void expect_byte(unsigned char *b, Py_ssize_t at) noexcept nogil:
    """Have a byte fetched from memory before it is needed."""
    mq_prefetch(b + at)

cdef inline int *first_slot(int[::1] slots) noexcept nogil:
    return <int *> slots._data

cdef inline unsigned char *start_of(unsigned char[::1] b) noexcept nogil:
    return <unsigned char *> b._data

cdef inline void put_entry(
    unsigned char *out, Py_ssize_t at, long long key_hash, long long physical_offset, long long seconds, long long previous
) noexcept nogil:
    cdef unsigned char *entry = out + at
    mq_store32(entry + INDEX_AT_HASH, <unsigned int> key_hash)
    mq_store64(entry + INDEX_AT_OFFSET, <unsigned long long> physical_offset)
    mq_store32(entry + INDEX_AT_SECONDS, <unsigned int> seconds)
    mq_store32(entry + INDEX_AT_PREVIOUS, <unsigned int> previous)

cdef long long add_entries(
    const unsigned char *keys, Py_ssize_t n, long long begin_timestamp, long long first_number, int *slots, unsigned int slot_count,
    unsigned char *out
) noexcept nogil
