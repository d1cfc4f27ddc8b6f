# The layouts of the index files of RabbitMQ classic queues, version 1, once for all kernels (docs/formats/rabbitmq.md, sections 3 and 4).
#
#     journal record   a word of 8 bytes: the kind in its first two bits, the sequence id in the others
#     segment entry    a word of 2 bytes: SEGMENT_PUBLISH and SEGMENT_PERSISTENT, or SEGMENT_MARK; the other bits are the rel
#
# The word of a publish is followed by its fields, and these by the embedded message:
#
#     position      size  field
#     0               16  message id
#     AT_EXPIRY        8
#     AT_SIZE          4  size of the body
#     AT_EMBEDDED      4  size of the embedded message

cdef enum:
    # fields of a publish
    AT_LOW_ID = 8  # second half of the id
    AT_EXPIRY = 16
    AT_SIZE = 24
    AT_EMBEDDED = 28
    FIELDS_SIZE = AT_EMBEDDED + 4
    EMBEDDED_LIMIT = 16777216  # size of the largest embedded message that is searched for after damage

    # kinds of a journal record
    PUBLISH = 0
    PUBLISH_TRANSIENT = 1
    DELIVER = 2
    ACKNOWLEDGE = 3

    JOURNAL_WORD_SIZE = 8
    JOURNAL_PUBLISH_SIZE = JOURNAL_WORD_SIZE + FIELDS_SIZE
    JOURNAL_AT_EMBEDDED = JOURNAL_WORD_SIZE + AT_EMBEDDED
    KIND_SHIFT = 6  # of the kind in the first byte
    TRANSIENT_BIT = PUBLISH_TRANSIENT << KIND_SHIFT
    SEQUENCE_BITS = 62

    # bits of the word of a segment entry
    SEGMENT_PUBLISH = 0x8000
    SEGMENT_PERSISTENT = 0x4000  # of a publish
    SEGMENT_MARK = 0x4000  # delivered, and the second time acknowledged
    REL_MASK = 0x3FFF

    SEGMENT_WORD_SIZE = 2
    SEGMENT_MARK_SIZE = SEGMENT_WORD_SIZE
    SEGMENT_PUBLISH_SIZE = SEGMENT_WORD_SIZE + FIELDS_SIZE
    SEGMENT_AT_EMBEDDED = SEGMENT_WORD_SIZE + AT_EMBEDDED
