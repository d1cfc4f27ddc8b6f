"""Commit log record: one message as RocketMQ stores it. The reference implementation: plain Python, one record at a time.

All integers are big-endian. B = 8 if the born host is IPv4, 20 if IPv6 (SYSFLAG bit 4); S likewise for the store host (bit 5).

    offset   width  field                        offset   width  field
         0       4  TOTALSIZE                    48+B         8  STORETIMESTAMP, ms
         4       4  MAGICCODE                    56+B         S  STOREHOST
         8       4  BODYCRC                      56+B+S       4  RECONSUMETIMES
        12       4  QUEUEID                      60+B+S       8  PREPAREDTRANSACTIONOFFSET
        16       4  FLAG                         68+B+S       4  body length, then the body
        20       8  QUEUEOFFSET                  …          1|2  topic length (2 bytes in version 2), then the topic
        28       8  PHYSICALOFFSET               …            2  properties length, then the properties
        36       4  SYSFLAG
        40       8  BORNTIMESTAMP, ms
        48       B  BORNHOST

A file ends with a BLANK record: i32 bytes left in the file, i32 0xCBD43194. The bytes after these eight are arbitrary.

    >>> raw = bytes.fromhex(
    ...     "00000075daa320a70cdc1683000000000000000000000000000000000000000000000000000000300000017e12ef9c00"
    ...     "105000000000000000050600300c326b0000007b0000017e12ef9c7b000000000000000000000000000000010000007c"
    ...     "000000000000000000000000000000017801540000"
    ... )
    >>> message = decode(raw)
    >>> message.topic, message.born_host, message.store_host, message.body
    ('T', '[1050::5:600:300c:326b]:123', '[::1]:124', b'x')
    >>> encode(message) == raw
    True

Records read from the log as objects: as `record.decode` does, but None where it raises.

    >>> from mqstore.rocketmq.format.record import Record, encode
    >>> record_or_none(memoryview(encode(Record("T", b"body", queue_id=3)))).queue_id, record_or_none(b"no record")
    (3, None)

Format: docs/formats/rocketmq.md, section 2.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mqstore.kernels.rocketmq.record_decode import Decoder
from mqstore.rocketmq.format.java_text import decode_utf8

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = -626843481, -626843477, -875286124

COMPRESSED = 0x1
TRANSACTION_MASK = 0xC
TRANSACTION_NONE, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK = 0x0, 0x4, 0x8, 0xC
BORN_HOST_IPV6 = 0x10
STORE_HOST_IPV6 = 0x20

CRC_NAME = b"__CRC32#"
CRC_PROPERTY = CRC_NAME + b"\x01"
CRC_PROPERTY_SIZE = 20

_HEAD = struct.Struct(">iiiiiqqiq")
_TAIL = struct.Struct(">iqi")
_IPV4 = struct.Struct(">iiiiiqqiq8sq8siqi")  # all fixed fields of a record whose hosts are both IPv4

# positions of fixed fields in a record; those after the born host are 12 bytes later if it is IPv6
MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_HOST_AT = _HEAD.size
HOST_SIZE, IPV6_HOST_SIZE = 8, 20
STORE_TIMESTAMP_AT = BORN_HOST_AT + HOST_SIZE
STORE_TIMESTAMP_AT_IPV6 = BORN_HOST_AT + IPV6_HOST_SIZE
BODY_AT = _IPV4.size  # of a record whose hosts are both IPv4
MIN_RECORD_SIZE = BODY_AT + 1 + 2  # with the lengths of topic and properties


class BadRecordError(ValueError):
    """Bytes that are not a record; the message names the field at fault."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record, field by field as stored. body: as stored, possibly compressed. properties: the property text."""

    topic: str
    body: bytes
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: str = "0.0.0.0:0"
    store_timestamp: int = 0
    store_host: str = "0.0.0.0:0"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    properties: bytes = b""
    body_crc: int | None = None
    version: int = 1

    def property_map(self) -> dict[str, str]:
        """Parse the properties into name -> value."""
        return decode_properties(self.properties)


def body_crc(body: bytes | memoryview) -> int:
    """Return the CRC-32 of the stored body without its top bit.

    >>> body_crc(b"Hello RocketMQ") == 0x69C865ED
    True
    """
    return zlib.crc32(body) & 0x7FFFFFFF


@lru_cache(4096)
def format_host(raw: bytes) -> str:
    """Format 8 host bytes as `ip:port`, 20 as `[ip]:port`."""
    address = ipaddress.ip_address(raw[:-4])
    port = int.from_bytes(raw[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def parse_host(text: str) -> bytes:
    """Parse `ip:port` or `[ip]:port` into host bytes. Raises ValueError."""
    address, _, port = text.rpartition(":")
    packed = ipaddress.ip_address(address.strip("[]")).packed
    number = int(port)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{port} is not a port")
    return packed + struct.pack(">i", number)


def decode_properties(raw: bytes) -> dict[str, str]:
    """Parse a property text, `name` 01 `value` 02 …, into name -> value. The last 02 may be missing; the last of equal names wins.

    >>> decode_properties(b"TAGS\\x01a\\x02KEYS\\x01k1 k2")
    {'TAGS': 'a', 'KEYS': 'k1 k2'}
    """
    decoded: dict[str, str] = {}
    for pair in raw.split(b"\x02"):
        name, separator, value = pair.partition(b"\x01")
        if name and separator and value:
            decoded[decode_utf8(name)] = decode_utf8(value)
    return decoded


def encode_properties(properties: Mapping[str, str], *, trailing: bool = False) -> bytes:
    """Encode a property text in the order of the mapping. trailing: with the last 02, as 5.3 writes it."""
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    return (text + "\x02" if trailing and text else text).encode("utf-8", "surrogatepass")


def without_property(properties: bytes, name: bytes) -> bytes:
    """Remove the properties of a name from a property text and leave the rest unchanged.

    A name with a separator but no value is removed too; a name without a separator is kept.

    >>> without_property(b"b\\x012\\x02a\\x011\\x02xa\\x01a", b"a")
    b'b\\x012\\x02xa\\x01a'
    """
    start = name + b"\x01"
    if start not in properties:
        return properties
    pieces = properties.split(b"\x02")
    others = [piece for piece in pieces if not piece.startswith(start)]
    # if the last property goes, the one before it keeps its separator
    return b"\x02".join(others) + (b"\x02" if others and pieces[-1].startswith(start) else b"")


def split_keys(keys: str) -> list[str]:
    """Split a KEYS property at single blanks; empty parts are left out."""
    return [key for key in keys.split(" ") if key]


def property_crc_fits(raw: bytes | memoryview) -> bool | None:
    """Return whether a whole record matches the `__CRC32#` property at its end; None if it has none (docs/formats/rocketmq.md, 2.10)."""
    tail = bytes(raw[-CRC_PROPERTY_SIZE:])
    digits = tail[9:19]
    if tail[:9] != CRC_PROPERTY or tail[19:] != b"\x02" or not digits.isdigit():
        return None
    return int(digits[::-1]) == zlib.crc32(raw[:-CRC_PROPERTY_SIZE]) & 0x7FFFFFFF


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the message id that a broker assigns: store host bytes and physical offset in upper-case hex."""
    return (store_host + struct.pack(">q", physical_offset)).hex().upper()


def parse_message_id(text: str) -> tuple[str, int]:
    """Parse an offset message id into (store host, physical offset). Raises ValueError."""
    raw = bytes.fromhex(text)
    if len(raw) not in (16, 28):
        raise ValueError(f"a message id has 32 or 56 hexadecimal digits, this one has {len(text)}")
    return format_host(raw[:-8]), int.from_bytes(raw[-8:], "big", signed=True)


def decode(raw: bytes | memoryview) -> Record:
    """Decode the record at the start of raw. Raises BadRecordError if its magic or lengths are not valid."""
    raw = bytes(raw)
    if len(raw) < MIN_RECORD_SIZE:
        raise BadRecordError(f"{len(raw)} bytes are fewer than the smallest record")
    (
        size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        *rest,
    ) = _IPV4.unpack_from(raw)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise BadRecordError(f"magic {magic & 0xFFFFFFFF:08x} is not that of a record")
    wide = 1 if magic == MAGIC_V1 else 2
    at = BODY_AT
    if sys_flag & (BORN_HOST_IPV6 | STORE_HOST_IPV6):
        born = BORN_HOST_AT + (IPV6_HOST_SIZE if sys_flag & BORN_HOST_IPV6 else HOST_SIZE)
        at = born + 8 + (IPV6_HOST_SIZE if sys_flag & STORE_HOST_IPV6 else HOST_SIZE) + _TAIL.size
        if len(raw) < at:
            raise BadRecordError(f"{len(raw)} bytes are fewer than a record with IPv6 hosts")
        born_host, store_host = raw[BORN_HOST_AT:born], raw[born + 8 : at - _TAIL.size]
        store_timestamp = int.from_bytes(raw[born : born + 8], "big", signed=True)
        rest = list(_TAIL.unpack_from(raw, at - _TAIL.size))
    reconsume_times, prepared, length = rest
    smallest = at + 2 + wide
    if not smallest <= size <= len(raw):
        raise BadRecordError(f"size {size} is not between {smallest} and the {len(raw)} bytes available")
    length = max(0, length)
    if smallest + length > size:
        raise BadRecordError(f"a body of {length} bytes does not fit into a record of {size}")
    body = raw[at : at + length]
    at += length
    topic_length = int.from_bytes(raw[at : at + wide], "big", signed=True)
    at += wide
    if topic_length < 0 or smallest + length + topic_length > size:
        raise BadRecordError(f"a topic of {topic_length} bytes does not fit into a record of {size}")
    topic = raw[at : at + topic_length]
    at += topic_length
    properties_length = max(0, int.from_bytes(raw[at : at + 2], "big", signed=True))
    at += 2
    if at + properties_length != size:
        raise BadRecordError(f"size is {size}, but the parts add up to {at + properties_length}")
    return Record(
        decode_utf8(topic),
        body,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        format_host(born_host),
        store_timestamp,
        format_host(store_host),
        reconsume_times,
        prepared,
        raw[at:size],
        crc,
        wide,
    )


def frame_size(read: Callable[[int, int], bytes], at: int, physical_offset: int | None = None) -> int:
    """Return the size of the record at a position of an image if its lengths fit, without reading its body; else 0.

    read: returns bytes from start to stop, fewer at the end. physical_offset: that it must state; any is accepted by default.

    >>> raw = b"..." + encode(Record("orders", b"body", physical_offset=4096))
    >>> frame_size(lambda start, stop: raw[start:stop], 3, 4096), len(raw) - 3
    (101, 101)
    """
    head = read(at, at + 88 + 24)
    if len(head) < 88:
        return 0
    size, magic = struct.unpack_from(">ii", head)
    stated, flags = struct.unpack_from(">qi", head, 28)
    if magic not in (MAGIC_V1, MAGIC_V2) or stated < 0 or physical_offset not in (None, stated):
        return 0
    hosts = (20 if flags & 0x10 else 8) + (20 if flags & 0x20 else 8)
    if len(head) < 72 + hosts:
        return 0
    body_length = int.from_bytes(head[68 + hosts : 72 + hosts], "big", signed=True)
    width = 1 if magic == MAGIC_V1 else 2
    least = 72 + hosts + body_length + width
    if body_length < 0 or size < least + 2:
        return 0
    topic_length = int.from_bytes(read(at + least - width, at + least), "big", signed=True)
    if topic_length < 0 or size < least + topic_length + 2:
        return 0
    raw = read(at + least + topic_length, at + least + topic_length + 2)
    properties_length = int.from_bytes(raw, "big", signed=True)
    if len(raw) < 2 or properties_length < 0 or size != least + topic_length + 2 + properties_length:
        return 0
    return size if len(read(at + size - 1, at + size)) == 1 else 0


def encode(record: Record) -> bytes:
    """Encode a record. SYSFLAG's host bits are set from the hosts; a body_crc of None is computed. Raises BadRecordError."""
    topic = record.topic.encode("utf-8", "surrogatepass")
    if len(topic) > (0x7F if record.version == 1 else 0x7FFF):
        raise BadRecordError(f"a topic of {len(topic)} bytes does not fit a version {record.version} record")
    if len(record.properties) > 0x7FFF:
        raise BadRecordError(f"properties of {len(record.properties)} bytes: at most 32767 fit")
    born = parse_host(record.born_host)
    store = parse_host(record.store_host)
    sys_flag = record.sys_flag & ~(BORN_HOST_IPV6 | STORE_HOST_IPV6)
    sys_flag |= (BORN_HOST_IPV6 if len(born) == IPV6_HOST_SIZE else 0) | (STORE_HOST_IPV6 if len(store) == IPV6_HOST_SIZE else 0)
    crc = body_crc(record.body) if record.body_crc is None else record.body_crc
    magic, topic_length = (MAGIC_V1, struct.pack(">b", len(topic))) if record.version == 1 else (MAGIC_V2, struct.pack(">h", len(topic)))
    size = 73 + record.version + 1 + len(born) + len(store) + len(record.body) + len(topic) + len(record.properties)
    return b"".join(
        (
            _HEAD.pack(
                size, magic, crc, record.queue_id, record.flag, record.queue_offset, record.physical_offset, sys_flag, record.born_timestamp
            ),
            born,
            struct.pack(">q", record.store_timestamp),
            store,
            _TAIL.pack(record.reconsume_times, record.prepared_transaction_offset, len(record.body)),
            record.body,
            topic_length,
            topic,
            struct.pack(">h", len(record.properties)),
            record.properties,
        )
    )


def with_property_crc(record: Record) -> Record:
    """Append a matching `__CRC32#` property to the record's properties (5.3, enabledAppendPropCRC)."""
    head = record.properties
    if head and not head.endswith(b"\x02"):
        head += b"\x02"
    draft = encode(replace(record, properties=head + bytes(CRC_PROPERTY_SIZE)))
    crc = zlib.crc32(draft[:-CRC_PROPERTY_SIZE]) & 0x7FFFFFFF
    digits = f"{crc:010d}"[::-1].encode()
    return replace(record, properties=head + CRC_PROPERTY + digits + b"\x02")


def blank(room: int) -> bytes:
    """Return the eight bytes that end a file with `room` bytes left.

    >>> blank(191).hex()
    '000000bfcbd43194'
    """
    return struct.pack(">ii", room, MAGIC_BLANK)


_DECODER = Decoder(Record, decode_utf8, format_host)


def record_or_none(raw: bytes | memoryview) -> Record | None:
    """Decode the record at the start of raw; None if it cannot be decoded."""
    return _DECODER.record(raw)


def records_of(raws: Iterable[memoryview]) -> list[Record]:
    """Decode the record at the start of each; bytes that are not a record are left out."""
    return [record for record in map(record_or_none, raws) if record is not None]


def records_in(view: memoryview, start: int, rows: bytes) -> list[Record]:
    """Decode the records of a pull within one log file, see `kernels.rocketmq.pull`; bytes that are not a record are left out."""
    return _DECODER.records(view, start, rows)
