# The layouts of consume queue entries, index keys and index files, once for all kernels (docs/formats/rocketmq.md, sections 4 and 5).
#
#     consume queue entry   physical offset (8), size (4), tags code (8)
#     index key             hash (4), physical offset (8), store timestamp (8): what dispatch gives to the index
#     index file            header, slots of 4 bytes, entries
#     index entry           hash (4), physical offset (8), seconds after the file's begin timestamp (4), previous entry of its chain (4)

cdef enum:
    ENTRY_SIZE = 20
    ENTRY_AT_OFFSET = 0
    ENTRY_AT_SIZE = ENTRY_AT_OFFSET + 8
    ENTRY_AT_TAGS_CODE = ENTRY_AT_SIZE + 4
    ENTRY_AT_TAGS_HASH = ENTRY_AT_TAGS_CODE + 4  # its lower half

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
    MILLISECONDS = 1000  # in a second
