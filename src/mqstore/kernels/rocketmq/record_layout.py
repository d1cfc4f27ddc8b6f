"""The layout of a commit log record, once for all kernels (docs/formats/rocketmq.md, section 2).

    position          size  field
    AT_SIZE              4  size of the record in bytes
    AT_MAGIC             4  MAGIC_V1, MAGIC_V2; MAGIC_BLANK for the record that fills the rest of a file
    AT_BODY_CRC          4
    AT_QUEUE_ID          4
    AT_FLAG              4
    AT_QUEUE_OFFSET      8
    AT_PHYSICAL_OFFSET   8  position of this record in the whole log
    AT_SYS_FLAG          4
    AT_BORN_TIMESTAMP    8
    AT_BORN_HOST         8  address and port; 20 bytes if SYS_FLAG has BORN_HOST_IPV6
    AT_STORE_TIMESTAMP   8
    AT_STORE_HOST        8  20 bytes if SYS_FLAG has STORE_HOST_IPV6
    AT_RECONSUME_TIMES   4
    AT_PREPARED_OFFSET   8
    AT_BODY_LENGTH       4
    AT_BODY                 the body, then the topic's length (1 byte in version 1, 2 in version 2), the topic,
                            the properties' length (2 bytes), the properties

A position after a host does not count the host: AT_STORE_TIMESTAMP is relative to the end of the born host, the positions from
AT_RECONSUME_TIMES on are relative to the end of both.

`record_layout.pxd` is the C twin of this module for compiled kernels: the same names, the same values. It is the only other place
where they are written down.

>>> AT_SYS_FLAG, AT_BODY, MIN_RECORD_SIZE
(36, 72, 91)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from mqstore.kernels.common.loads import Array, i8, i16, i32

INT = 4
LONG = 8

AT_SIZE = 0
AT_MAGIC = AT_SIZE + INT
AT_BODY_CRC = AT_MAGIC + INT
AT_QUEUE_ID = AT_BODY_CRC + INT
AT_FLAG = AT_QUEUE_ID + INT
AT_QUEUE_OFFSET = AT_FLAG + INT
AT_PHYSICAL_OFFSET = AT_QUEUE_OFFSET + LONG
AT_SYS_FLAG = AT_PHYSICAL_OFFSET + LONG
AT_BORN_TIMESTAMP = AT_SYS_FLAG + INT
AT_BORN_HOST = AT_BORN_TIMESTAMP + LONG
# after the born host, whose size is not counted
AT_STORE_TIMESTAMP = AT_BORN_HOST
AT_STORE_HOST = AT_STORE_TIMESTAMP + LONG
# after both hosts, whose sizes are not counted
AT_RECONSUME_TIMES = AT_STORE_HOST
AT_PREPARED_OFFSET = AT_RECONSUME_TIMES + INT
AT_BODY_LENGTH = AT_PREPARED_OFFSET + LONG
AT_BODY = AT_BODY_LENGTH + INT

FRAME_SIZE = AT_MAGIC + INT  # bytes that hold size and kind
PROPERTIES_LENGTH_SIZE = 2
IPV4_HOST_SIZE = 8
IPV6_HOST_SIZE = 20
FIXED_SIZE = AT_BODY + PROPERTIES_LENGTH_SIZE  # all but the hosts, the length of the topic, and the texts
MIN_SIZE = FIXED_SIZE + 2 * IPV4_HOST_SIZE  # without the length of the topic, which has as many bytes as the version says
MIN_RECORD_SIZE = MIN_SIZE + 1

MAX_RECORD_SIZE = 2**31 - 1
MAX_TOPIC_V1 = 127
MAX_TOPIC_V2 = 32767
MAX_PROPERTIES = 32767

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124
MAGIC_FIRST_BYTE = 0xDA  # of versions 1 and 2

# bits of SYS_FLAG
COMPRESSED = 0x1
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_IPV6 = 0x10
STORE_HOST_IPV6 = 0x20

# properties are `name` NAME_END `value` PAIR_END ...; KEYS are separated by blanks
NAME_END = 1
PAIR_END = 2
KEY_SEPARATOR = 32
# names, or their first four bytes, as big-endian numbers
WORD_TAGS = int.from_bytes(b"TAGS", "big")
WORD_KEYS = int.from_bytes(b"KEYS", "big")
WORD_DELA = int.from_bytes(b"DELA", "big")
WORD_INNE = int.from_bytes(b"INNE", "big")
WORD_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")
# the checksum property `__CRC32#`: name, NAME_END, ten decimal digits, PAIR_END
WORD_CRC_FIRST = int.from_bytes(b"__CR", "big")
WORD_CRC_SECOND = int.from_bytes(b"C32#", "big")
CRC_NAME_SIZE = 8
CRC_DIGITS = 10
CRC_PROPERTY_SIZE = CRC_NAME_SIZE + 1 + CRC_DIGITS + 1

# a reference to a record: a row of native 64-bit numbers
ROW_QUEUE_OFFSET = 0
ROW_PHYSICAL_OFFSET = ROW_QUEUE_OFFSET + 1
ROW_SIZE = ROW_PHYSICAL_OFFSET + 1
ROW_NUMBERS = ROW_SIZE + 1
ROW_BYTES = ROW_NUMBERS * LONG


class RecordParts(NamedTuple):
    """Where the parts of a record are in a buffer. after_hosts: add AT_RECONSUME_TIMES and what follows it."""

    version: int
    sys_flag: int
    born_length: int
    store_length: int
    after_hosts: int
    body: int
    body_length: int
    topic: int
    topic_length: int
    properties: int
    properties_length: int


@dataclass(slots=True)
class Span:
    """Bytes of a buffer."""

    buffer: Any
    start: int
    length: int


@dataclass(slots=True)
class RecordValues:
    """All that a record is made of. body_crc < 0: computed. crc_size: bytes of the checksum property, see `encode`."""

    size: int
    version: int
    queue_id: int
    flag: int
    sys_flag: int
    queue_offset: int
    physical_offset: int
    born_timestamp: int
    store_timestamp: int
    reconsume_times: int
    prepared_offset: int
    body_crc: int
    crc_size: int
    born_host: Span
    store_host: Span
    body: Span
    topic: Span
    properties: Span


def empty_values() -> RecordValues:
    """Return values that are 0, with empty spans, to be filled in."""
    spans = [Span(None, 0, 0) for _ in range(5)]
    return RecordValues(0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, *spans)


def born_host_size(sys_flag: Any) -> int:
    """Return the bytes of the born host."""
    return IPV6_HOST_SIZE if sys_flag & BORN_HOST_IPV6 else IPV4_HOST_SIZE


def store_host_size(sys_flag: Any) -> int:
    """Return the bytes of the store host."""
    return IPV6_HOST_SIZE if sys_flag & STORE_HOST_IPV6 else IPV4_HOST_SIZE


def parts_of(b: Array, p: int) -> RecordParts:
    """Return the parts of the record at p, which `frames.check` has accepted. Negative lengths of body and properties count as 0."""
    version = 1 if i32(b, p + AT_MAGIC) == MAGIC_V1 else 2
    sys_flag = i32(b, p + AT_SYS_FLAG)
    born_length, store_length = born_host_size(sys_flag), store_host_size(sys_flag)
    after_hosts = p + born_length + store_length
    body = after_hosts + AT_BODY
    body_length = max(i32(b, after_hosts + AT_BODY_LENGTH), 0)
    at = body + body_length
    topic = at + version
    topic_length = i8(b, at) if version == 1 else i16(b, at)
    at = topic + topic_length
    properties_length = max(i16(b, at), 0)
    return RecordParts(
        version, sys_flag, born_length, store_length, after_hosts, body, body_length, topic, topic_length,
        at + PROPERTIES_LENGTH_SIZE, properties_length,
    )  # fmt: skip
