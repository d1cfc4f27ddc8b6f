from mqstore.kernels.common.loads cimport i32, i64, put32, put64
from mqstore.kernels.rocketmq.entry_layout cimport (
    INDEX_AT_HASH, INDEX_AT_OFFSET, INDEX_AT_PREVIOUS, INDEX_AT_SECONDS, INDEX_ENTRY_SIZE, INDEX_HEADER_SIZE, INDEX_SLOT_SIZE, KEY_AT_HASH,
    KEY_AT_OFFSET, KEY_AT_TIMESTAMP, KEY_SIZE, MAX_INT, MILLISECONDS,
)
