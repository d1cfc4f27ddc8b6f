"""Records as objects, made without a Python call for each.

`Decoder` makes the same objects as `mqstore.rocketmq.format.record.decode`, and None where that raises. The class of the
objects is a parameter: a frozen one with a slot for each of its fields, which are set one by one, bypassing its `__init__`.

Hosts and topics are few: their texts are made once and kept.
"""

from __future__ import annotations

from types import MemberDescriptorType

import cython

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


class Numbers:
    """The numbers of one field; the latest is kept, which that of the next record often equals."""

    def __init__(self):
        self.value = 0
        self.made = 0

    def at(self, value: cython.longlong):
        if value != self.value:
            self.made = value
            self.value = value
        return self.made


class Decoder:
    """Makes objects of a class with slots, among them all of FIELDS. topic, host: functions that turn bytes into texts."""

    def __init__(self, kind, topic, host):
        self.kind = kind
        self.topics = Texts(topic)
        self.born_hosts = Texts(host)
        self.store_hosts = Texts(host)
        self.born_times = Numbers()
        self.store_times = Numbers()
        members = [getattr(kind, name) for name in FIELDS]
        if not all(type(member) is MemberDescriptorType and issubclass(kind, member.__objclass__) for member in members):
            raise TypeError("every field must have a slot")
        for number_of_field, member in enumerate(members):
            self.places[number_of_field] = place_of(member)

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
        count: cython.Py_ssize_t = len(rows) // ROW_BYTES
        found: list = []
        for k in range(count):
            if k + 1 < count:
                # memory is slow: its lines come while this record is decoded
                p = number(rows, ROW_NUMBERS * (k + 1) + ROW_PHYSICAL_OFFSET) - start
                size = number(rows, ROW_NUMBERS * (k + 1) + ROW_SIZE)
                if p >= 0 and 0 < size <= b.shape[0] - p:
                    announce(b, p, size)
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
        if check(first_byte(b), p, limit, 0, False) != VALID:
            return None
        parts = parts_of(first_byte(b), p)
        born = parts.born_length
        made = new_object(self.kind)
        fill_slot(made, self.places[BODY_CRC], i32(b, p + AT_BODY_CRC))
        fill_slot(made, self.places[QUEUE_ID], i32(b, p + AT_QUEUE_ID))
        fill_slot(made, self.places[FLAG], i32(b, p + AT_FLAG))
        fill_slot(made, self.places[QUEUE_OFFSET], i64(b, p + AT_QUEUE_OFFSET))
        fill_slot(made, self.places[PHYSICAL_OFFSET], i64(b, p + AT_PHYSICAL_OFFSET))
        fill_slot(made, self.places[SYS_FLAG], parts.sys_flag)
        fill_slot(made, self.places[BORN_TIMESTAMP], i64(b, p + AT_BORN_TIMESTAMP))
        fill_slot(made, self.places[BORN_HOST], self.born_hosts.at(b, p + AT_BORN_HOST, born))
        fill_slot(made, self.places[STORE_TIMESTAMP], i64(b, p + born + AT_STORE_TIMESTAMP))
        fill_slot(made, self.places[STORE_HOST], self.store_hosts.at(b, p + born + AT_STORE_HOST, parts.store_length))
        fill_slot(made, self.places[RECONSUME_TIMES], i32(b, parts.after_hosts + AT_RECONSUME_TIMES))
        fill_slot(made, self.places[PREPARED_TRANSACTION_OFFSET], i64(b, parts.after_hosts + AT_PREPARED_OFFSET))
        fill_slot(made, self.places[BODY], octets(b, parts.body, parts.body_length))
        fill_slot(made, self.places[VERSION], parts.version)
        fill_slot(made, self.places[TOPIC], self.topics.at(b, parts.topic, parts.topic_length))
        fill_slot(made, self.places[PROPERTIES], octets(b, parts.properties, parts.properties_length))
        return made
