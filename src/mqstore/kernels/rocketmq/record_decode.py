"""Records as objects, made without a Python call for each.

`Decoder` makes what `mqstore.rocketmq.format.record.decode` makes of the same bytes, and nothing where that raises. The class of the
objects is given: a frozen one with a slot for each of its fields, which are set one by one, past its `__init__`.

Hosts and topics are few: their texts are made once and kept.
"""

from __future__ import annotations

from types import MemberDescriptorType

import cython

if not cython.compiled:
    import sys

    from mqstore.kernels.rocketmq.frames import check
    from mqstore.kernels.common.loads import i8, i16, i32, i64

    def number(rows, k):
        return int.from_bytes(rows[8 * k : 8 * k + 8], sys.byteorder, signed=True)

    def octets(b, p, n):
        return bytes(b[p : p + n])

    def alike(known, b, p, n):
        return known == bytes(b[p : p + n])

    def blank_of(kind):
        return object.__new__(kind)

    def put(member, made, value):
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
_MOST = 4096


class Texts:
    """Texts of bytes, as `make` makes them; those made last are kept."""

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
            if len(self.known) >= _MOST:
                self.known.clear()
            self.known[raw] = text
        self.last = raw
        self.text = text
        return text


class Decoder:
    """kind: a class with slots, all FIELDS among them. topic, host: make texts of bytes."""

    def __init__(self, kind, topic, host):
        self.kind = kind
        self.topics = Texts(topic)
        self.hosts = Texts(host)
        self.members = [getattr(kind, name) for name in FIELDS]
        if not all(type(member) is MemberDescriptorType for member in self.members):
            raise TypeError("every field must have a slot")

    def record(self, b: cython.const[cython.uchar][::1]):
        """The record at the start of b, None where there is none."""
        return self.made(b, 0, b.shape[0])

    def records(self, b: cython.const[cython.uchar][::1], start: cython.longlong, rows: bytes):
        """The records of some rows: queue offset, physical offset, of which `start` is that of b, and size. What is none is left out."""
        k: cython.Py_ssize_t
        p: cython.longlong
        size: cython.longlong
        found: list = []
        for k in range(len(rows) // 24):
            p = number(rows, 3 * k + 1) - start
            size = number(rows, 3 * k + 2)
            if p < 0 or size < 0 or size > b.shape[0] - p:
                continue
            made = self.made(b, p, p + size)
            if made is not None:
                found.append(made)
        return found

    def made(self, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, limit: cython.Py_ssize_t):
        at: cython.Py_ssize_t
        born: cython.Py_ssize_t
        store: cython.Py_ssize_t
        length: cython.Py_ssize_t
        sys_flag: cython.int
        members: list = self.members
        if check(b, p, limit, 0, False) != 0:
            return None
        sys_flag = i32(b, p + 36)
        born = 20 if sys_flag & 16 else 8
        store = 20 if sys_flag & 32 else 8
        made = blank_of(self.kind)
        put(members[2], made, i32(b, p + 12))
        put(members[3], made, i32(b, p + 16))
        put(members[4], made, i64(b, p + 20))
        put(members[5], made, i64(b, p + 28))
        put(members[6], made, sys_flag)
        put(members[7], made, i64(b, p + 40))
        put(members[8], made, self.hosts.at(b, p + 48, born))
        put(members[9], made, i64(b, p + 48 + born))
        put(members[10], made, self.hosts.at(b, p + 56 + born, store))
        at = p + 56 + born + store
        put(members[11], made, i32(b, at))
        put(members[12], made, i64(b, at + 4))
        length = i32(b, at + 12)
        if length < 0:
            length = 0
        at += 16
        put(members[1], made, octets(b, at, length))
        at += length
        put(members[14], made, i32(b, p + 8))
        if i32(b, p + 4) == -626843481:
            length = i8(b, at)
            at += 1
            put(members[15], made, 1)
        else:
            length = i16(b, at)
            at += 2
            put(members[15], made, 2)
        put(members[0], made, self.topics.at(b, at, length))
        at += length
        length = i16(b, at)
        if length < 0:
            length = 0
        put(members[13], made, octets(b, at + 2, length))
        return made
