# Consume queue entries, index keys and index files for compiled kernels: the same names and values as in entry_layout.py.
cdef enum:
    ENTRY_SIZE = 20
    ENTRY_AT_OFFSET = 0
    ENTRY_AT_SIZE = ENTRY_AT_OFFSET + 8
    ENTRY_AT_TAGS_CODE = ENTRY_AT_SIZE + 4
    ENTRY_AT_TAGS_HASH = ENTRY_AT_TAGS_CODE + 4

    KEY_SIZE = 20
    KEY_AT_HASH = 0
    KEY_AT_OFFSET = KEY_AT_HASH + 4
    KEY_AT_TIMESTAMP = KEY_AT_OFFSET + 8

    INDEX_HEADER_SIZE = 40
    INDEX_SLOT_SIZE = 4
    INDEX_ENTRY_SIZE = 20
    INDEX_AT_HASH = 0
    INDEX_AT_OFFSET = INDEX_AT_HASH + 4
    INDEX_AT_SECONDS = INDEX_AT_OFFSET + 8
    INDEX_AT_PREVIOUS = INDEX_AT_SECONDS + 4

    MAX_INT = 2147483647
    MILLISECONDS = 1000
