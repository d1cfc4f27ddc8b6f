"""From messages to commit log bytes: one record, or as many rows of a batch as fit into the file.

Both write into a mapped log file that a `LogFileWriter` holds. The first eight bytes of a record (TOTALSIZE, MAGICCODE) are
stored last and at once, behind everything else: who reads the file meanwhile meets zeros or the whole record.

    >>> import numpy as np
    >>> page = np.zeros(300, np.uint8)
    >>> file = LogFileWriter(page)
    >>> host = bytes.fromhex("7f00000100002a9f")
    >>> file.append(0, 300, 1000, 7, 0, 3, 0, 0, 0, host, host, 0, 0, 1, b"TopicTest", b"TAGS\\x01a", b"Hello RocketMQ")
    120
    >>> page[:12].tobytes().hex()
    '00000078daa320a769c865ed'
    >>> file.append(120, 300, 1120, 8, 0, 3, 0, 0, 0, host, host, 0, 0, 1, b"TopicTest", b"", bytes(73)) == END_OF_FILE
    True
    >>> file.blank(120, 300), page[120:128].tobytes().hex()
    (180, '000000b4cbd43194')

Format: docs/formats/rocketmq.md, sections 2.1 to 2.11.
"""

import sys

import cython
import numpy as np

from mqstore.kernels.common.crc32 import LONG_SPAN, crc32

if not cython.compiled:
    from mqstore.kernels.common.crc_spans import crc_on
    from mqstore.kernels.common.loads import LOW32, copy, put32, put64, u8

    def first_byte(b):
        return b

    def bytes_start(b):
        return np.frombuffer(b, np.uint8)

    def put8(b, p, v):
        b[p] = v & 255

    def put16(b, p, v):
        b[p : p + 2] = tuple((int(v) & 0xFFFF).to_bytes(2, "big"))

    def publish():
        """Nothing to do: a fence between the stores before and those after it."""

    def overlap(to, at, n, b, start, m):
        return bool(np.may_share_memory(to[at : at + n], b[start : start + m]))


# bytes of a body from which the call of a library costs less than its CRC is faster; never, where the kernel has the library's function
CALLED = 256 if LONG_SPAN < sys.maxsize else sys.maxsize

END_OF_FILE = -1  # the record and the eight bytes behind it do not fit before the limit

# the `__CRC32#` property at the end of the properties (5.3): none; a single message's, behind a 02, which is added where it is
# missing; that of a message of a producer's batch, where nothing is added
NO_PROPERTY_CRC = 0
PROPERTY_CRC = 1
PROPERTY_CRC_IN_BATCH = 2


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def tail_size(
    property_crc: cython.int, properties: cython.pointer[cython.const[cython.uchar]], start: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Bytes that the checksum property adds to the n bytes of properties."""
    if property_crc == 0:
        return 0
    if property_crc == 1 and n > 0 and u8(properties, start + n - 1) != 2:
        return 21
    return 20


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_record(
    to: cython.pointer[cython.uchar],
    at: cython.Py_ssize_t,
    size: cython.longlong,
    wide: cython.int,
    queue_id: cython.int,
    flag: cython.int,
    queue_offset: cython.longlong,
    physical_offset: cython.longlong,
    sys_flag: cython.int,
    born_timestamp: cython.longlong,
    born: cython.pointer[cython.const[cython.uchar]],
    born_start: cython.Py_ssize_t,
    born_length: cython.Py_ssize_t,
    store_timestamp: cython.longlong,
    store: cython.pointer[cython.const[cython.uchar]],
    store_start: cython.Py_ssize_t,
    store_length: cython.Py_ssize_t,
    reconsume_times: cython.int,
    prepared: cython.longlong,
    body: cython.pointer[cython.const[cython.uchar]],
    body_start: cython.Py_ssize_t,
    body_length: cython.Py_ssize_t,
    body_crc: cython.longlong,
    topic: cython.pointer[cython.const[cython.uchar]],
    topic_start: cython.Py_ssize_t,
    topic_length: cython.Py_ssize_t,
    properties: cython.pointer[cython.const[cython.uchar]],
    properties_start: cython.Py_ssize_t,
    properties_length: cython.Py_ssize_t,
    tail: cython.Py_ssize_t,
) -> cython.void:
    """The record of `size` bytes at `at`, all lengths checked. body_crc < 0: computed. tail: 0, 20 or 21, see `tail_size`."""
    p: cython.Py_ssize_t = at + 48
    head: cython.ulonglong
    crc: cython.ulonglong
    k: cython.int
    if body_crc < 0:
        body_crc = crc_on(body, body_start, body_length, 0)
    put32(to, at + 8, body_crc & 0x7FFFFFFF)
    put32(to, at + 12, queue_id)
    put32(to, at + 16, flag)
    put64(to, at + 20, queue_offset)
    put64(to, at + 28, physical_offset)
    sys_flag = sys_flag & ~48
    if born_length == 20:
        sys_flag = sys_flag | 16
    if store_length == 20:
        sys_flag = sys_flag | 32
    put32(to, at + 36, sys_flag)
    put64(to, at + 40, born_timestamp)
    copy(to, p, born, born_start, born_length)
    p += born_length
    put64(to, p, store_timestamp)
    copy(to, p + 8, store, store_start, store_length)
    p += 8 + store_length
    put32(to, p, reconsume_times)
    put64(to, p + 4, prepared)
    put32(to, p + 12, body_length)
    copy(to, p + 16, body, body_start, body_length)
    p += 16 + body_length
    if wide == 1:
        put8(to, p, topic_length)
    else:
        put16(to, p, topic_length)
    p += wide
    copy(to, p, topic, topic_start, topic_length)
    p += topic_length
    put16(to, p, properties_length + tail)
    copy(to, p + 2, properties, properties_start, properties_length)
    p += 2 + properties_length
    head = size
    head = (head << 32) | (cython.cast(cython.longlong, -626843481 if wide == 1 else -626843477) & LOW32)
    if tail > 0:
        if tail == 21:
            put8(to, p, 2)
            p += 1
        # the head stands for a moment where the property comes, so that its CRC can be carried on to the rest
        put64(to, p, head)
        crc = crc_on(to, p, 8, 0)
        crc = crc_on(to, at + 8, p - at - 8, cython.cast(cython.uint, crc)) & 0x7FFFFFFF
        put32(to, p, 1600078674)  # __CR
        put32(to, p + 4, 1127428643)  # C32#
        put8(to, p + 8, 1)
        for k in range(10):
            put8(to, p + 9 + k, 48 + crc % 10)
            crc = crc // 10
        put8(to, p + 19, 2)
    publish()
    put64(to, at, head)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def inside(start: cython.longlong, n: cython.longlong, limit: cython.longlong) -> cython.bint:
    return start >= 0 and n >= 0 and n <= limit - start


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def size_of(
    fields: cython.longlong[:, ::1],
    k: cython.Py_ssize_t,
    hosts: cython.longlong,
    bodies: cython.longlong,
    topics: cython.longlong,
    texts: cython.const[cython.uchar][::1],
    property_crc: cython.int,
) -> cython.longlong:
    """Bytes of the record of column k; 0 if a span lies outside its buffer or a record cannot hold it."""
    sys_flag: cython.longlong = fields[6, k]
    born: cython.longlong = 20 if sys_flag & 16 else 8
    store: cython.longlong = 20 if sys_flag & 32 else 8
    text: cython.longlong = fields[18, k]
    size: cython.longlong
    if not inside(fields[8, k], born, hosts) or not inside(fields[10, k], store, hosts):
        return 0
    if not inside(fields[13, k], fields[14, k], bodies) or not inside(fields[15, k], fields[16, k], topics):
        return 0
    if not inside(fields[17, k], text, texts.shape[0]) or fields[16, k] > 32767:
        return 0
    text += tail_size(property_crc, first_byte(texts), fields[17, k], text)
    size = 75 + born + store + fields[14, k] + fields[16, k] + text
    if fields[16, k] > 127:
        size += 1
    if text > 32767 or size > 0x7FFFFFFF:
        return 0
    return size


@cython.cclass
class LogFileWriter:
    """A mapped log file to write records into. The caller sees to it that one thread writes at a time.

    buffer: writable bytes; they stay exported until `release`.
    """

    file: cython.uchar[::1]
    start: cython.pointer[cython.uchar]
    size: cython.Py_ssize_t

    def __init__(self, buffer):
        view = memoryview(buffer)
        if view.readonly:
            raise ValueError("the buffer of a log file must be writable, this one is read-only")
        self.size = 0
        if view.nbytes < 8:
            raise ValueError(f"a log file of {view.nbytes} bytes has no room for a record")
        self.file = np.frombuffer(view, np.uint8)
        self.start = first_byte(self.file)
        self.size = self.file.shape[0]

    def release(self):
        """Let go of the buffer; nothing can be written any more."""
        self.size = 0
        self.start = cython.NULL
        self.file = None

    def append(
        self,
        position: cython.Py_ssize_t,
        limit: cython.Py_ssize_t,
        physical_offset: cython.longlong,
        queue_offset: cython.longlong,
        store_timestamp: cython.longlong,
        queue_id: cython.int,
        flag: cython.int,
        sys_flag: cython.int,
        born_timestamp: cython.longlong,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: cython.int,
        prepared_transaction_offset: cython.longlong,
        version: cython.int,
        topic: bytes,
        properties: bytes,
        body,
        property_crc: cython.int = 0,
    ):
        """Write a record at position; returns its size, or END_OF_FILE, with nothing written, if size + 8 > limit - position.

        limit: the end of the file. version: 1 or 2 (topic of more than 127 characters). born_host, store_host: 8 or 20
        bytes, SYSFLAG's host bits follow them. Raises ValueError for what no record can hold and for a body that lies
        where the record would come.
        """
        view: cython.const[cython.uchar][::1]
        kept: cython.uchar[::1]
        to: cython.pointer[cython.uchar]
        source: cython.pointer[cython.const[cython.uchar]]
        name: cython.pointer[cython.const[cython.uchar]] = bytes_start(topic)
        text: cython.pointer[cython.const[cython.uchar]] = bytes_start(properties)
        born: cython.pointer[cython.const[cython.uchar]] = bytes_start(born_host)
        store: cython.pointer[cython.const[cython.uchar]] = bytes_start(store_host)
        body_length: cython.Py_ssize_t
        topic_length: cython.Py_ssize_t = len(topic)
        text_length: cython.Py_ssize_t = len(properties)
        born_length: cython.Py_ssize_t = len(born_host)
        store_length: cython.Py_ssize_t = len(store_host)
        tail: cython.Py_ssize_t
        size: cython.longlong
        crc: cython.longlong = -1
        if isinstance(body, bytes):
            source = bytes_start(body)
            body_length = len(body)
        else:
            view = body if cython.compiled else np.frombuffer(body, np.uint8)
            source = first_byte(view)
            body_length = view.shape[0]
        tail = tail_size(property_crc, text, 0, text_length)
        if position < 0 or limit > self.size:
            raise ValueError(f"bytes {position} to {limit} do not lie in a file of {self.size} bytes, or the file is released")
        if version != 1 and version != 2:
            raise ValueError(f"there is no record version {version}")
        if topic_length > (127 if version == 1 else 32767):
            raise ValueError(f"a topic of {topic_length} bytes does not fit a version {version} record")
        if text_length + tail > 32767:
            raise ValueError(f"properties of {text_length + tail} bytes: at most 32767 fit")
        if (born_length != 8 and born_length != 20) or (store_length != 8 and store_length != 20):
            raise ValueError(f"host bytes are 8 or 20, not {born_length} and {store_length}")
        size = 74 + version + born_length + store_length + topic_length + text_length + tail + body_length
        if size + 8 > limit - position:
            return END_OF_FILE
        if size > 0x7FFFFFFF:
            raise ValueError(f"a record of {size} bytes: at most 2147483647 fit")
        if overlap(self.start, position, size, source, 0, body_length):
            raise ValueError("the body lies where the record would be written")
        if body_length >= CALLED:
            crc = crc32(body)
        if body_length < 65536:
            put_record(
                self.start, position, size, version, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp,
                born, 0, born_length, store_timestamp, store, 0, store_length,
                reconsume_times, prepared_transaction_offset, source, 0, body_length, crc,
                name, 0, topic_length, text, 0, text_length, tail,
            )  # fmt: skip
        else:
            # a reference of its own: `release` may be called while others run
            kept = self.file
            to = first_byte(kept)
            with cython.nogil:
                put_record(
                    to, position, size, version, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp,
                    born, 0, born_length, store_timestamp, store, 0, store_length,
                    reconsume_times, prepared_transaction_offset, source, 0, body_length, crc,
                    name, 0, topic_length, text, 0, text_length, tail,
                )  # fmt: skip
        return size

    def blank(self, position: cython.Py_ssize_t, limit: cython.Py_ssize_t):
        """Fill position … limit with an end-of-file record, of which eight bytes are written; returns how long it is."""
        head: cython.ulonglong
        if position < 0 or limit > self.size or limit - position < 8 or limit - position > 0x7FFFFFFF:
            raise ValueError(f"no end-of-file record can fill bytes {position} to {limit} of a file of {self.size}")
        head = limit - position
        publish()
        put64(self.start, position, (head << 32) | (cython.cast(cython.longlong, -875286124) & LOW32))
        return limit - position

    def append_batch(
        self,
        position: cython.Py_ssize_t,
        limit: cython.Py_ssize_t,
        physical_offset: cython.longlong,
        first: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        fields: cython.longlong[:, ::1],
        hosts: cython.const[cython.uchar][::1],
        bodies: cython.const[cython.uchar][::1],
        topics: cython.const[cython.uchar][::1],
        texts: cython.const[cython.uchar][::1],
        property_crc: cython.int = 0,
    ):
        """Write columns first … stop-1 of `fields` from position, as many records as fit before limit with eight bytes behind each.

        fields: as `kernels.frames` reads them, their starts being positions in the four buffers. SIZE, PHYSICAL_OFFSET and a
        BODY_CRC of -1 are filled in. physical_offset: that of position. A topic of more than 127 bytes makes a version 2 record.
        Returns the first column that was not written and the position behind the last record.
        """
        k: cython.Py_ssize_t = first
        at: cython.Py_ssize_t = position
        size: cython.longlong
        sys_flag: cython.int
        good: cython.bint = True
        kept: cython.uchar[::1]
        to: cython.pointer[cython.uchar]
        if position < 0 or position > limit or limit > self.size:
            raise ValueError(f"bytes {position} to {limit} do not lie in a file of {self.size} bytes, or the file is released")
        if first < 0 or stop > fields.shape[1] or fields.shape[0] < 19:
            raise ValueError("arrays are too small")
        if (
            overlap(self.start, position, limit - position, first_byte(hosts), 0, hosts.shape[0])
            or overlap(self.start, position, limit - position, first_byte(bodies), 0, bodies.shape[0])
            or overlap(self.start, position, limit - position, first_byte(topics), 0, topics.shape[0])
            or overlap(self.start, position, limit - position, first_byte(texts), 0, texts.shape[0])
        ):
            raise ValueError("the messages lie where the records would be written")
        # a reference of its own: `release` may be called while others run
        kept = self.file
        to = first_byte(kept)
        with cython.nogil:
            while k < stop:
                size = size_of(fields, k, hosts.shape[0], bodies.shape[0], topics.shape[0], texts, property_crc)
                if size == 0:
                    good = False
                    break
                if size + 8 > limit - at:
                    break
                sys_flag = fields[6, k]
                if fields[1, k] < 0:
                    fields[1, k] = crc_on(first_byte(bodies), fields[13, k], fields[14, k], 0) & 0x7FFFFFFF
                fields[0, k] = size
                fields[5, k] = physical_offset + (at - position)
                put_record(
                    to,
                    at,
                    size,
                    2 if fields[16, k] > 127 else 1,
                    fields[2, k],
                    fields[3, k],
                    fields[4, k],
                    fields[5, k],
                    sys_flag,
                    fields[7, k],
                    first_byte(hosts),
                    fields[8, k],
                    20 if sys_flag & 16 else 8,
                    fields[9, k],
                    first_byte(hosts),
                    fields[10, k],
                    20 if sys_flag & 32 else 8,
                    fields[11, k],
                    fields[12, k],
                    first_byte(bodies),
                    fields[13, k],
                    fields[14, k],
                    fields[1, k],
                    first_byte(topics),
                    fields[15, k],
                    fields[16, k],
                    first_byte(texts),
                    fields[17, k],
                    fields[18, k],
                    tail_size(property_crc, first_byte(texts), fields[17, k], fields[18, k]),
                )
                at += size
                k += 1
        if not good:
            raise ValueError(f"no record can be made of column {k}; measure the columns first")
        return k, at


def record_size(
    topic: bytes,
    properties: bytes,
    body_length: cython.longlong,
    born_host: bytes,
    store_host: bytes,
    version: cython.int,
    property_crc: cython.int = 0,
):
    """Bytes that `append` would write."""
    tail: cython.Py_ssize_t = tail_size(property_crc, bytes_start(properties), 0, len(properties))
    return 74 + version + len(born_host) + len(store_host) + len(topic) + len(properties) + tail + body_length


def measure(
    fields: cython.longlong[:, ::1],
    hosts: cython.const[cython.uchar][::1],
    bodies: cython.const[cython.uchar][::1],
    topics: cython.const[cython.uchar][::1],
    texts: cython.const[cython.uchar][::1],
    property_crc: cython.int = 0,
):
    """Fill in SIZE as `append_batch` would; returns the first column of which no record can be made, or -1."""
    k: cython.Py_ssize_t
    bad: cython.Py_ssize_t = -1
    if fields.shape[0] < 19:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(fields.shape[1]):
            fields[0, k] = size_of(fields, k, hosts.shape[0], bodies.shape[0], topics.shape[0], texts, property_crc)
            if fields[0, k] == 0 and bad < 0:
                bad = k
    return bad


def assign_queue_offsets(
    fields: cython.longlong[:, ::1],
    first: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    group: cython.int[::1],
    following: cython.longlong[::1],
):
    """QUEUE_OFFSET of columns first … stop-1: following[g] of the column's group g, which grows by one each time.

    Prepared and rolled back messages (SYSFLAG) are in no queue: theirs is 0, and nothing grows.
    """
    k: cython.Py_ssize_t
    kind: cython.int
    if fields.shape[0] < 19 or first < 0 or stop > fields.shape[1] or group.shape[0] < stop:
        raise ValueError("arrays are too small")
    for k in range(first, stop):
        if group[k] < 0 or group[k] >= following.shape[0]:
            raise ValueError("a group number is out of range")
    with cython.nogil:
        for k in range(first, stop):
            kind = fields[6, k] & 12
            if kind == 4 or kind == 12:
                fields[4, k] = 0
            else:
                fields[4, k] = following[group[k]]
                following[group[k]] += 1
