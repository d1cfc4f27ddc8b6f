"""Records as objects, made without a Python call for each.

`Decoder` makes the same objects as `mqstore.rocketmq.format.record.decode`, and None where that raises. The class of the
objects is a parameter: a frozen one with a slot for each of its fields, which are set one by one, bypassing its `__init__`.

Hosts and topics are few: their texts are made once and kept.
"""

from __future__ import annotations

from types import MemberDescriptorType

import cython

if not cython.compiled:
    import sys

    from mqstore.kernels.common.loads import first_byte, i32, i64
    from mqstore.kernels.rocketmq.frames import VALID, check
    from mqstore.kernels.rocketmq.record_layout import (
        AT_BODY_CRC,
        AT_BORN_HOST,
        AT_BORN_TIMESTAMP,
        AT_FLAG,
        AT_PHYSICAL_OFFSET,
        AT_PREPARED_OFFSET,
        AT_QUEUE_ID,
        AT_QUEUE_OFFSET,
        AT_RECONSUME_TIMES,
        AT_STORE_HOST,
        AT_STORE_TIMESTAMP,
        ROW_BYTES,
        ROW_NUMBERS,
        ROW_PHYSICAL_OFFSET,
        ROW_SIZE,
        parts_of,
    )

    # positions in FIELDS
    TOPIC = 0
    BODY = 1
    QUEUE_ID = 2
    FLAG = 3
    QUEUE_OFFSET = 4
    PHYSICAL_OFFSET = 5
    SYS_FLAG = 6
    BORN_TIMESTAMP = 7
    BORN_HOST = 8
    STORE_TIMESTAMP = 9
    STORE_HOST = 10
    RECONSUME_TIMES = 11
    PREPARED_TRANSACTION_OFFSET = 12
    PROPERTIES = 13
    BODY_CRC = 14
    VERSION = 15

    MAX_TEXTS = 4096  # texts that are kept at most

    def number(rows, k):
        """Return the k-th native 64-bit number of rows."""
        return int.from_bytes(rows[8 * k : 8 * k + 8], sys.byteorder, signed=True)

    def octets(b, p, n):
        return bytes(b[p : p + n])

    def alike(known, b, p, n):
        """Return whether n bytes at p are those of known."""
        return known == bytes(b[p : p + n])

    def new_object(kind):
        return object.__new__(kind)

    def set_member(member, made, value):
        member.__set__(made, value)


FIELDS = (
    "topic",
    "body",
    "queue_id",
    "flag",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "properties",
    "body_crc",
    "version",
)


class Texts:
    """The texts that `make` makes of bytes; the latest ones are kept."""

    def __init__(self, make):
        self.make = make
        self.known = {}
        self.last = b""
        self.text = None

    def at(self, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t):
        if self.text is not None and len(self.last) == n and alike(self.last, b, p, n):
            return self.text
        raw = octets(b, p, n)
        text = self.known.get(raw)
        if text is None:
            text = self.make(raw)
            if len(self.known) >= MAX_TEXTS:
                self.known.clear()
            self.known[raw] = text
        self.last = raw
        self.text = text
        return text


class Decoder:
    """Makes objects of a class with slots, among them all of FIELDS. topic, host: functions that turn bytes into texts."""

    def __init__(self, kind, topic, host):
        self.kind = kind
        self.topics = Texts(topic)
        self.hosts = Texts(host)
        self.members = [getattr(kind, name) for name in FIELDS]
        if not all(type(member) is MemberDescriptorType for member in self.members):
            raise TypeError("every field must have a slot")

    def record(self, b: cython.const[cython.uchar][::1]):
        """Return the record at the start of b, or None if these bytes are not a record."""
        return self.decode(b, 0, b.shape[0])

    def records(self, b: cython.const[cython.uchar][::1], start: cython.longlong, rows: bytes):
        """Return the records of rows of queue offset, physical offset and size; bytes that are not a record are left out.

        start: the physical offset of the first byte of b.
        """
        k: cython.Py_ssize_t
        p: cython.longlong
        size: cython.longlong
        found: list = []
        for k in range(len(rows) // ROW_BYTES):
            p = number(rows, ROW_NUMBERS * k + ROW_PHYSICAL_OFFSET) - start
            size = number(rows, ROW_NUMBERS * k + ROW_SIZE)
            if p < 0 or size < 0 or size > b.shape[0] - p:
                continue
            made = self.decode(b, p, p + size)
            if made is not None:
                found.append(made)
        return found

    def decode(self, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t):
        """Return the record at p, which must end at or before limit, or None."""
        parts: RecordParts  # noqa: F821
        born: cython.Py_ssize_t
        members: list = self.members
        if check(first_byte(b), p, limit, 0, False) != VALID:
            return None
        parts = parts_of(first_byte(b), p)
        born = parts.born_length
        made = new_object(self.kind)
        set_member(members[BODY_CRC], made, i32(b, p + AT_BODY_CRC))
        set_member(members[QUEUE_ID], made, i32(b, p + AT_QUEUE_ID))
        set_member(members[FLAG], made, i32(b, p + AT_FLAG))
        set_member(members[QUEUE_OFFSET], made, i64(b, p + AT_QUEUE_OFFSET))
        set_member(members[PHYSICAL_OFFSET], made, i64(b, p + AT_PHYSICAL_OFFSET))
        set_member(members[SYS_FLAG], made, parts.sys_flag)
        set_member(members[BORN_TIMESTAMP], made, i64(b, p + AT_BORN_TIMESTAMP))
        set_member(members[BORN_HOST], made, self.hosts.at(b, p + AT_BORN_HOST, born))
        set_member(members[STORE_TIMESTAMP], made, i64(b, p + born + AT_STORE_TIMESTAMP))
        set_member(members[STORE_HOST], made, self.hosts.at(b, p + born + AT_STORE_HOST, parts.store_length))
        set_member(members[RECONSUME_TIMES], made, i32(b, parts.after_hosts + AT_RECONSUME_TIMES))
        set_member(members[PREPARED_TRANSACTION_OFFSET], made, i64(b, parts.after_hosts + AT_PREPARED_OFFSET))
        set_member(members[BODY], made, octets(b, parts.body, parts.body_length))
        set_member(members[VERSION], made, parts.version)
        set_member(members[TOPIC], made, self.topics.at(b, parts.topic, parts.topic_length))
        set_member(members[PROPERTIES], made, octets(b, parts.properties, parts.properties_length))
        return made
