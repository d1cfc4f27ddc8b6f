from mqstore.kernels.common.loads cimport i32, i64
from mqstore.kernels.rocketmq.entry_layout cimport (
    INDEX_AT_HASH, INDEX_AT_OFFSET, INDEX_AT_PREVIOUS, INDEX_AT_SECONDS, INDEX_ENTRY_SIZE, INDEX_HEADER_SIZE, INDEX_SLOT_SIZE, MILLISECONDS,
)

# the name of index_search.py, where it is described; cpdef: Python sees it too
cpdef enum:
    MAX_RESULTS = 64
