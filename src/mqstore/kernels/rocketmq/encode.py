"""From messages to commit log bytes: one record, or as many rows of a batch as fit into the file.

Both write into a mapped log file that a `LogFileWriter` holds. The first eight bytes of a record (TOTALSIZE, MAGICCODE) are
stored last, in one piece, after everything else: a concurrent reader of the file finds zeros or the whole record.

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

# bytes of a body from which the CRC of a library repays the call through the interpreter; never, if the kernel has the library's function
MIN_LIBRARY_BODY = 256 if LONG_SPAN < sys.maxsize else sys.maxsize


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def crc_property_size(
    property_crc: cython.int, properties: cython.pointer[cython.const[cython.uchar]], start: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the bytes that the checksum property adds to the n bytes of properties."""
    if property_crc == NO_PROPERTY_CRC:
        return 0
    if property_crc == PROPERTY_CRC and n > 0 and u8(properties, start + n - 1) != PAIR_END:
        return CRC_PROPERTY_SIZE + 1
    return CRC_PROPERTY_SIZE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_crc_property(
    to: cython.pointer[cython.uchar], at: cython.Py_ssize_t, p: cython.Py_ssize_t, size: cython.Py_ssize_t, head: cython.ulonglong
) -> cython.void:
    """Write the checksum property of `size` bytes at p, for the record at `at` whose first eight bytes will be head."""
    crc: cython.ulonglong
    k: cython.int
    if size > CRC_PROPERTY_SIZE:
        put8(to, p, PAIR_END)
        p += 1
    # the head is written for a moment where the property comes, so that its CRC can be carried on to the rest
    put64(to, p, head)
    crc = crc_on(to, p, FRAME_SIZE, 0)
    crc = crc_on(to, at + FRAME_SIZE, p - at - FRAME_SIZE, cython.cast(cython.uint, crc)) & 0x7FFFFFFF
    put32(to, p, WORD_CRC_FIRST)
    put32(to, p + 4, WORD_CRC_SECOND)
    put8(to, p + CRC_NAME_SIZE, NAME_END)
    for k in range(CRC_DIGITS):  # the lowest digit comes first
        put8(to, p + CRC_NAME_SIZE + 1 + k, ZERO + crc % 10)
        crc = crc // 10
    put8(to, p + CRC_PROPERTY_SIZE - 1, PAIR_END)


def put_record(to, at, r):
    """Write a record at `at`; r: a reference to its RecordValues. All lengths have been checked."""
    p: cython.Py_ssize_t = at + AT_BORN_HOST
    head: cython.ulonglong
    body_crc: cython.longlong = r.body_crc
    sys_flag: cython.int = r.sys_flag & ~(BORN_HOST_IPV6 | STORE_HOST_IPV6)
    if body_crc < 0:
        body_crc = crc_on(r.body.buffer, r.body.start, r.body.length, 0)
    if r.born_host.length == IPV6_HOST_SIZE:
        sys_flag = sys_flag | BORN_HOST_IPV6
    if r.store_host.length == IPV6_HOST_SIZE:
        sys_flag = sys_flag | STORE_HOST_IPV6
    put32(to, at + AT_BODY_CRC, body_crc & 0x7FFFFFFF)
    put32(to, at + AT_QUEUE_ID, r.queue_id)
    put32(to, at + AT_FLAG, r.flag)
    put64(to, at + AT_QUEUE_OFFSET, r.queue_offset)
    put64(to, at + AT_PHYSICAL_OFFSET, r.physical_offset)
    put32(to, at + AT_SYS_FLAG, sys_flag)
    put64(to, at + AT_BORN_TIMESTAMP, r.born_timestamp)
    copy_host(to, p, r.born_host.buffer, r.born_host.start, r.born_host.length)
    p = at + r.born_host.length
    put64(to, p + AT_STORE_TIMESTAMP, r.store_timestamp)
    copy_host(to, p + AT_STORE_HOST, r.store_host.buffer, r.store_host.start, r.store_host.length)
    p += r.store_host.length
    put32(to, p + AT_RECONSUME_TIMES, r.reconsume_times)
    put64(to, p + AT_PREPARED_OFFSET, r.prepared_offset)
    put32(to, p + AT_BODY_LENGTH, r.body.length)
    p += AT_BODY
    copy(to, p, r.body.buffer, r.body.start, r.body.length)
    p += r.body.length
    if r.version == 1:
        put8(to, p, r.topic.length)
    else:
        put16(to, p, r.topic.length)
    p += r.version
    copy(to, p, r.topic.buffer, r.topic.start, r.topic.length)
    p += r.topic.length
    put16(to, p, r.properties.length + r.crc_size)
    p += PROPERTIES_LENGTH_SIZE
    copy(to, p, r.properties.buffer, r.properties.start, r.properties.length)
    head = r.size
    head = (head << 32) | (cython.cast(cython.longlong, MAGIC_V1 if r.version == 1 else MAGIC_V2) & LOW32)
    if r.crc_size > 0:
        put_crc_property(to, at, p + r.properties.length, r.crc_size, head)
    publish()
    put64(to, at, head)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def inside(start: cython.longlong, n: cython.longlong, limit: cython.longlong) -> cython.bint:
    """Return whether n bytes at start are inside a buffer of limit bytes."""
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
    """Return the bytes of the record of column k; 0 if a span is outside its buffer or a record cannot hold it.

    hosts, bodies, topics: bytes of the buffers.
    """
    born: cython.longlong = born_host_size(fields[SYS_FLAG, k])
    store: cython.longlong = store_host_size(fields[SYS_FLAG, k])
    topic: cython.longlong = fields[TOPIC_LENGTH, k]
    text: cython.longlong = fields[PROPERTIES_LENGTH, k]
    size: cython.longlong
    if not inside(fields[BORN_HOST, k], born, hosts) or not inside(fields[STORE_HOST, k], store, hosts):
        return 0
    if not inside(fields[BODY_START, k], fields[BODY_LENGTH, k], bodies) or not inside(fields[TOPIC_START, k], topic, topics):
        return 0
    if not inside(fields[PROPERTIES_START, k], text, texts.shape[0]) or topic > MAX_TOPIC_V2:
        return 0
    text += crc_property_size(property_crc, first_byte(texts), fields[PROPERTIES_START, k], text)
    size = FIXED_SIZE + born + store + fields[BODY_LENGTH, k] + topic + text
    size += 2 if topic > MAX_TOPIC_V1 else 1
    if text > MAX_PROPERTIES or size > MAX_RECORD_SIZE:
        return 0
    return size


@cython.cclass
class LogFileWriter:
    """A mapped log file to write records into. The caller makes sure that only one thread writes at a time.

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
        if view.nbytes < FRAME_SIZE:
            raise ValueError(f"a log file of {view.nbytes} bytes has no room for a record")
        self.file = np.frombuffer(view, np.uint8)
        self.start = first_byte(self.file)
        self.size = self.file.shape[0]

    def release(self):
        """Release the buffer; nothing can be written afterwards."""
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
        """Write a record at position and return its size, or END_OF_FILE, with nothing written, if size + 8 > limit - position.

        limit: the end of the file. version: 1 or 2 (topic of more than 127 characters). born_host, store_host: 8 or 20
        bytes; the host bits of SYSFLAG are set to match. Raises ValueError for values that a record cannot hold and for a body
        that overlaps the place of the record.
        """
        view: cython.const[cython.uchar][::1]
        kept: cython.uchar[::1]
        to: cython.pointer[cython.uchar]
        source: cython.pointer[cython.const[cython.uchar]]
        text: cython.pointer[cython.const[cython.uchar]] = bytes_start(properties)
        body_length: cython.Py_ssize_t
        topic_length: cython.Py_ssize_t = len(topic)
        text_length: cython.Py_ssize_t = len(properties)
        born_length: cython.Py_ssize_t = len(born_host)
        store_length: cython.Py_ssize_t = len(store_host)
        crc_size: cython.Py_ssize_t
        size: cython.longlong
        body_crc: cython.longlong = -1
        values: RecordValues
        if isinstance(body, bytes):
            source = bytes_start(body)
            body_length = len(body)
        else:
            view = body
            source = first_byte(view)
            body_length = view.shape[0]
        crc_size = crc_property_size(property_crc, text, 0, text_length)
        if position < 0 or limit > self.size:
            raise ValueError(f"bytes {position} to {limit} are not inside a file of {self.size} bytes, or the file is released")
        if version != 1 and version != 2:
            raise ValueError(f"record version {version} does not exist; give 1 or 2")
        if topic_length > (MAX_TOPIC_V1 if version == 1 else MAX_TOPIC_V2):
            raise ValueError(f"a topic of {topic_length} bytes does not fit a version {version} record")
        if text_length + crc_size > MAX_PROPERTIES:
            raise ValueError(f"properties of {text_length + crc_size} bytes: at most 32767 fit")
        if (born_length != IPV4_HOST_SIZE and born_length != IPV6_HOST_SIZE) or (
            store_length != IPV4_HOST_SIZE and store_length != IPV6_HOST_SIZE
        ):
            raise ValueError(f"host bytes are 8 or 20, not {born_length} and {store_length}")
        size = FIXED_SIZE + version + born_length + store_length + topic_length + text_length + crc_size + body_length
        if size + FRAME_SIZE > limit - position:
            return END_OF_FILE
        if size > MAX_RECORD_SIZE:
            raise ValueError(f"a record of {size} bytes: at most 2147483647 fit")
        if overlap(self.start, position, size, source, 0, body_length):
            raise ValueError("the body is where the record would be written")
        if body_length >= MIN_LIBRARY_BODY:
            body_crc = crc32(body)
        values = RecordValues(
            size=size,
            version=version,
            queue_id=queue_id,
            flag=flag,
            sys_flag=sys_flag,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            born_timestamp=born_timestamp,
            store_timestamp=store_timestamp,
            reconsume_times=reconsume_times,
            prepared_offset=prepared_transaction_offset,
            body_crc=body_crc,
            crc_size=crc_size,
            born_host=Span(bytes_start(born_host), 0, born_length),
            store_host=Span(bytes_start(store_host), 0, store_length),
            body=Span(source, 0, body_length),
            topic=Span(bytes_start(topic), 0, topic_length),
            properties=Span(text, 0, text_length),
        )
        if body_length < LONG_BODY:
            put_record(self.start, position, ref(values))
        else:
            # a reference to the buffer: `release` may be called while other threads run
            kept = self.file
            to = first_byte(kept)
            with cython.nogil:
                put_record(to, position, ref(values))
        return size

    def blank(self, position: cython.Py_ssize_t, limit: cython.Py_ssize_t):
        """Fill position … limit with an end-of-file record, of which eight bytes are written; return its length."""
        head: cython.ulonglong
        if position < 0 or limit > self.size or limit - position < FRAME_SIZE or limit - position > MAX_RECORD_SIZE:
            raise ValueError(f"an end-of-file record cannot fill bytes {position} to {limit} of a file of {self.size}")
        head = limit - position
        publish()
        put64(self.start, position, (head << 32) | (cython.cast(cython.longlong, MAGIC_BLANK) & LOW32))
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
        """Write columns first … stop-1 of `fields` from position on, as many records as fit before limit with eight bytes after each.

        fields: as `kernels.rocketmq.frames.fields` fills them, their starts being positions in the four buffers. SIZE, PHYSICAL_OFFSET
        and a BODY_CRC of -1 are filled in. physical_offset: that of position. A topic of more than 127 bytes makes a version 2 record.
        Returns the first column that was not written and the position after the last record.
        """
        k: cython.Py_ssize_t = first
        at: cython.Py_ssize_t = position
        size: cython.longlong
        valid: cython.bint = True
        values: RecordValues
        kept: cython.uchar[::1]
        to: cython.pointer[cython.uchar]
        host_start: cython.pointer[cython.const[cython.uchar]] = first_byte(hosts)
        body_start: cython.pointer[cython.const[cython.uchar]] = first_byte(bodies)
        topic_start: cython.pointer[cython.const[cython.uchar]] = first_byte(topics)
        text_start: cython.pointer[cython.const[cython.uchar]] = first_byte(texts)
        if position < 0 or position > limit or limit > self.size:
            raise ValueError(f"bytes {position} to {limit} are not inside a file of {self.size} bytes, or the file is released")
        if first < 0 or stop > fields.shape[1] or fields.shape[0] < FIELD_COUNT:
            raise ValueError("arrays are too small")
        if (
            overlap(self.start, position, limit - position, host_start, 0, hosts.shape[0])
            or overlap(self.start, position, limit - position, body_start, 0, bodies.shape[0])
            or overlap(self.start, position, limit - position, topic_start, 0, topics.shape[0])
            or overlap(self.start, position, limit - position, text_start, 0, texts.shape[0])
        ):
            raise ValueError("the messages are where the records would be written")
        # a reference to the buffer: `release` may be called while other threads run
        kept = self.file
        to = first_byte(kept)
        # one struct, refilled for each record: a struct literal is copied twice
        values = empty_values()
        values.born_host.buffer = host_start
        values.store_host.buffer = host_start
        values.body.buffer = body_start
        values.topic.buffer = topic_start
        values.properties.buffer = text_start
        with cython.nogil:
            while k < stop:
                size = size_of(fields, k, hosts.shape[0], bodies.shape[0], topics.shape[0], texts, property_crc)
                if size == 0:
                    valid = False
                    break
                if size + FRAME_SIZE > limit - at:
                    break
                if fields[BODY_CRC, k] < 0:
                    fields[BODY_CRC, k] = crc_on(body_start, fields[BODY_START, k], fields[BODY_LENGTH, k], 0) & 0x7FFFFFFF
                fields[SIZE, k] = size
                fields[PHYSICAL_OFFSET, k] = physical_offset + (at - position)
                values.size = size
                values.version = 2 if fields[TOPIC_LENGTH, k] > MAX_TOPIC_V1 else 1
                values.queue_id = fields[QUEUE_ID, k]
                values.flag = fields[FLAG, k]
                values.sys_flag = fields[SYS_FLAG, k]
                values.queue_offset = fields[QUEUE_OFFSET, k]
                values.physical_offset = fields[PHYSICAL_OFFSET, k]
                values.born_timestamp = fields[BORN_TIMESTAMP, k]
                values.store_timestamp = fields[STORE_TIMESTAMP, k]
                values.reconsume_times = fields[RECONSUME_TIMES, k]
                values.prepared_offset = fields[PREPARED_TRANSACTION_OFFSET, k]
                values.body_crc = fields[BODY_CRC, k]
                values.crc_size = crc_property_size(property_crc, text_start, fields[PROPERTIES_START, k], fields[PROPERTIES_LENGTH, k])
                values.born_host.start = fields[BORN_HOST, k]
                values.born_host.length = born_host_size(fields[SYS_FLAG, k])
                values.store_host.start = fields[STORE_HOST, k]
                values.store_host.length = store_host_size(fields[SYS_FLAG, k])
                values.body.start = fields[BODY_START, k]
                values.body.length = fields[BODY_LENGTH, k]
                values.topic.start = fields[TOPIC_START, k]
                values.topic.length = fields[TOPIC_LENGTH, k]
                values.properties.start = fields[PROPERTIES_START, k]
                values.properties.length = fields[PROPERTIES_LENGTH, k]
                put_record(to, at, ref(values))
                at += size
                k += 1
        if not valid:
            raise ValueError(f"column {k} does not make a valid record; measure the columns first")
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
    """Return the bytes that `append` would write."""
    crc_size: cython.Py_ssize_t = crc_property_size(property_crc, bytes_start(properties), 0, len(properties))
    return FIXED_SIZE + version + len(born_host) + len(store_host) + len(topic) + len(properties) + crc_size + body_length


def measure(
    fields: cython.longlong[:, ::1],
    hosts: cython.const[cython.uchar][::1],
    bodies: cython.const[cython.uchar][::1],
    topics: cython.const[cython.uchar][::1],
    texts: cython.const[cython.uchar][::1],
    property_crc: cython.int = 0,
):
    """Fill in SIZE as `append_batch` would; return the first column that does not make a valid record, or -1."""
    k: cython.Py_ssize_t
    bad: cython.Py_ssize_t = -1
    if fields.shape[0] < FIELD_COUNT:
        raise ValueError("arrays are too small")
    with cython.nogil:
        for k in range(fields.shape[1]):
            fields[SIZE, k] = size_of(fields, k, hosts.shape[0], bodies.shape[0], topics.shape[0], texts, property_crc)
            if fields[SIZE, k] == 0 and bad < 0:
                bad = k
    return bad


def assign_queue_offsets(
    fields: cython.longlong[:, ::1],
    first: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    group: cython.int[::1],
    following: cython.longlong[::1],
):
    """Set QUEUE_OFFSET of columns first … stop-1 to following[g] of the column's group g, which grows by one each time.

    Prepared and rolled back messages (SYSFLAG) are not in a queue: their offset is 0, and nothing grows.
    """
    k: cython.Py_ssize_t
    kind: cython.int
    if fields.shape[0] < FIELD_COUNT or first < 0 or stop > fields.shape[1] or group.shape[0] < stop:
        raise ValueError("arrays are too small")
    for k in range(first, stop):
        if group[k] < 0 or group[k] >= following.shape[0]:
            raise ValueError("a group number is out of range")
    with cython.nogil:
        for k in range(first, stop):
            kind = fields[SYS_FLAG, k] & TRANSACTION_MASK
            if kind == TRANSACTION_PREPARED or kind == TRANSACTION_ROLLBACK:
                fields[QUEUE_OFFSET, k] = 0
            else:
                fields[QUEUE_OFFSET, k] = following[group[k]]
                following[group[k]] += 1
