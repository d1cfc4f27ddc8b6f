"""The short way of a put: from a message object to its record in the mapped log file, without a Python call in between.

`PutPath.put` takes a message only when nothing about it or the log asks for more than bytes: a known topic, a body and a property
text of bytes, no delay, room in the reserved part of the current file. For everything else it returns None, having changed
nothing, and the long way (`mqstore.rocketmq.append.appender`) takes over.

No lock is taken: compiled, all of it runs in one piece, because nothing in it calls Python code or releases the interpreter's lock.
Whoever changes the log the long way holds the lock there and counts himself in `busy` meanwhile. Uncompiled, where
another thread could come in between, `put` always returns None.
"""

from __future__ import annotations

import struct

import cython
import numpy as np

from mqstore.kernels.rocketmq import encode

if not cython.compiled:
    import time

    def now_ms():
        return time.time_ns() // 1_000_000

    def pause(microseconds):
        time.sleep(microseconds / 1e6)

    def c_int(value):
        return int(value)

    def c_long(value):
        return int(value)


_OFFSET = struct.Struct(">q")
_LONGEST_BODY = 65536
_ASKING_FOR_MORE = (b"DELAY", b"TIMER_", b"INNER_")


class Message:
    """One message on its way into a store.

    properties: a mapping, or the text itself as bytes, which is stored as it is. keys, tags: shorthands for KEYS (several
    with blanks between them) and TAGS; they are put in front of the mapping. born_timestamp: ms; None takes the store's clock.
    born_host, store_host: `ip:port` or `[ip]:port`; None takes the store's own.
    """

    def __init__(
        self,
        topic,
        body=b"",
        *,
        queue_id=0,
        keys=None,
        tags=None,
        properties=None,
        flag=0,
        sys_flag=0,
        born_timestamp=None,
        born_host=None,
        store_host=None,
        reconsume_times=0,
        prepared_transaction_offset=0,
    ):
        self.topic = topic
        self.body = body
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self._given = properties
        self._keys = keys
        self._tags = tags
        if (keys is not None or tags is not None) and isinstance(properties, bytes):
            raise TypeError("keys and tags cannot be added to a property text; put them into it")

    @property
    def properties(self):
        """The properties as they will be stored: bytes if a text was given, else a mapping."""
        if self._keys is None and self._tags is None:
            return b"" if self._given is None else self._given
        named = {} if self._keys is None else {"KEYS": self._keys}
        if self._tags is not None:
            named["TAGS"] = self._tags
        if self._given:
            named.update(self._given)
        return named

    @properties.setter
    def properties(self, value):
        self._given, self._keys, self._tags = value, None, None

    def encoded_properties(self, version):
        """The property text as a broker of this version stores it; one that was given as bytes is left alone."""
        given = self.properties
        if isinstance(given, bytes):
            return given
        text = "\x02".join([f"{name}\x01{value}" for name, value in given.items()])
        return (text + "\x02" if version != "4.9.3" and text else text).encode("utf-8", "surrogatepass")

    def property_map(self):
        """The properties as name -> value."""
        given = self.properties
        if not isinstance(given, bytes):
            return dict(given)
        found = {}
        for pair in given.split(b"\x02"):
            name, separator, value = pair.partition(b"\x01")
            if name and separator and value:
                found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        return found

    def replaced(self, **changes):
        """A copy with some fields changed. Raises TypeError for a field that there is not."""
        fields = {name: getattr(self, name) for name in FIELDS}
        for name in changes:
            if name not in fields:
                raise TypeError(f"a message has no field {name}")
        fields.update(changes)
        return Message(fields.pop("topic"), fields.pop("body"), **fields)

    def __repr__(self):
        return f"{type(self).__name__}({self.topic!r}, {len(self.body)} bytes, queue_id={self.queue_id}, properties={self.properties!r})"


FIELDS = (
    "topic",
    "body",
    "queue_id",
    "properties",
    "flag",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
)


class PutResult:
    """status: a PutStatus. physical_offset, queue_offset: where the (first) message stands, -1 if it is not stored.

    size: bytes in the log, of all messages of a batch. count: messages. store_timestamp: ms. detail: why not, in a sentence.
    """

    def __init__(self, status, physical_offset=-1, queue_offset=-1, size=0, store_timestamp=0, host=b"", sizes=None, detail=""):
        self.status = status
        self.physical_offset = physical_offset
        self.queue_offset = queue_offset
        self.size = size
        self.store_timestamp = store_timestamp
        self.detail = detail
        self._host = host
        self._sizes = sizes

    @property
    def count(self):
        """Messages that the result is of."""
        return 1 if self._sizes is None else len(self._sizes)

    @property
    def stored(self):
        """Whether the message is in the log."""
        return self.physical_offset >= 0

    @property
    def msg_id(self):
        """The offset message id; of a batch all ids, joined by commas; empty if nothing is stored."""
        if self.physical_offset < 0:
            return ""
        at = self.physical_offset
        ids = []
        for size in (self.size,) if self._sizes is None else self._sizes:
            ids.append((self._host + _OFFSET.pack(at)).hex().upper())
            at += size
        return ",".join(ids)

    def __repr__(self):
        said = f", detail={self.detail!r}" if self.detail else ""
        return f"PutResult({self.status.value}, physical_offset={self.physical_offset}, queue_offset={self.queue_offset}{said})"


class Topic:
    """What a store knows of a topic. raw: its bytes; version: of the records that carry it; batch: whether its queues are batch
    queues; refused: why no message of it is taken; following: queue id -> queue offset of the next message.
    """

    def __init__(self, raw, version, batch, refused=""):
        self.raw = raw
        self.version = version
        self.batch = batch
        self.refused = refused
        self.following = {}


class LogEnd:
    """The end of a log file that is written to. start: physical offset of the file; size: its bytes; written: bytes that count;
    last_stored: store time of the last record appended in this life, ms.
    """

    def __init__(self, start, size, written):
        self.start = start
        self.size = size
        self.written = written
        self.last_stored = 0


class PutPath:
    """topics: by name, as far as they are known. busy: how many are changing the log the long way.

    paused: everything takes the long way, which says why. not_after: so do puts at this time (ms) or before.
    last_stored: store time of the last record, ms. ease: microseconds for which every 256th put lets other threads have the
    interpreter: set while dispatch is behind, which would else wait for its turn most of the time.
    """

    def __init__(self, ok, default_host, *, five, max_body, most):
        """ok: the status of a stored message. max_body, most: bytes of the longest body and record that the store takes."""
        self.ok = ok
        self.default_host = default_host
        self.five = five
        self.max_body = min(max_body, _LONGEST_BODY)
        self.most = most
        self.topics = {}
        self.hosts = {}
        self.busy = 0
        self.paused = False
        self.ease = self.since = 0
        self.not_after = -1
        self.last_stored = 0
        self.file = None
        self.limit = 0

    def use(self, file, buffer, limit):
        """Write to this file from now on, as far as limit. buffer: its map, a writable uint8 array."""
        self.data = buffer
        self.file = file
        self.limit = min(limit, file.size)

    def release(self):
        """Let go of the file; everything takes the long way."""
        self.file = None
        self.limit = 0
        self.data = np.empty(1, np.uint8)

    def put(self, message):
        """Append a message; None, with nothing changed, for one that must take the long way."""
        if not cython.compiled or type(message) is not Message or self.busy != 0 or self.paused or self.file is None:
            return None
        return self.put_message(message)

    def put_message(self, m: Message):
        known: Topic
        file: LogEnd = self.file
        text: bytes
        body: bytes
        born: bytes
        store: bytes
        size: cython.longlong
        queue_offset: cython.longlong = 0
        now: cython.longlong
        born_timestamp: cython.longlong
        prepared: cython.longlong
        queue_id: cython.int
        flag: cython.int
        sys_flag: cython.int
        kind: cython.int
        reconsume_times: cython.int
        result: PutResult
        found = self.topics.get(m.topic) if type(m.topic) is str else None
        if found is None or type(m.body) is not bytes:
            return None
        known = found
        body = m.body
        if known.refused or known.batch or len(body) > self.max_body:
            return None
        if m._keys is None and m._tags is None:
            if m._given is None:
                text = b""
            elif type(m._given) is bytes:
                text = m._given
            else:
                return None
        elif not m._given and (m._keys is None or type(m._keys) is str) and (m._tags is None or type(m._tags) is str):
            try:
                text = joined(m._keys, m._tags, self.five)
            except UnicodeEncodeError:
                return None
        else:
            return None
        if asks_for_more(text):
            return None
        born = store = self.default_host
        if m.born_host is not None:
            found = self.hosts.get(m.born_host) if type(m.born_host) is str else None
            if found is None:
                return None
            born = found
        if m.store_host is not None:
            found = self.hosts.get(m.store_host) if type(m.store_host) is str else None
            if found is None:
                return None
            store = found
        try:
            queue_id = c_int(m.queue_id)
            flag = c_int(m.flag)
            sys_flag = c_int(m.sys_flag)
            reconsume_times = c_int(m.reconsume_times)
            prepared = c_long(m.prepared_transaction_offset)
            born_timestamp = -1 if m.born_timestamp is None else c_long(m.born_timestamp)
        except (TypeError, OverflowError):
            return None
        if queue_id < 0 or len(text) > 32767:
            return None
        # made before anything is read that the append depends on: making an object may run the garbage collector, and so Python code
        result = PutResult.__new__(PutResult)
        size = 74 + known.version + len(born) + len(store) + len(known.raw) + len(text) + len(body)
        now = now_ms()
        if self.busy != 0 or self.file is not file:
            return None  # the collector has let somebody else come in between
        if size > self.most or file.written + size + 8 > self.limit or now <= self.not_after:
            return None
        kind = sys_flag & 12
        if kind == 0 or kind == 8:
            found = known.following.get(m.queue_id)
            if found is not None:
                queue_offset = found
            known.following[m.queue_id] = queue_offset + 1
        encode.put_record(
            buffer_start(self.data), file.written, size, known.version, queue_id, flag, queue_offset, file.start + file.written, sys_flag,
            now if m.born_timestamp is None else born_timestamp, octets(born), 0, len(born), now, octets(store), 0, len(store),
            reconsume_times, prepared, octets(body), 0, len(body), -1, octets(known.raw), 0, len(known.raw), octets(text), 0, len(text), 0,
        )  # fmt: skip
        result.status = self.ok
        result.physical_offset = file.start + file.written
        result.queue_offset = queue_offset
        result.size = size
        result.store_timestamp = now
        result.detail = ""
        result._host = store
        file.written += size
        file.last_stored = now
        self.last_stored = now
        if self.ease > 0:
            self.since += 1
            if self.since >= 256:
                self.since = 0
                with cython.nogil:
                    pause(self.ease)
        return result


def asks_for_more(text):
    """Whether a property text has what only the long way knows: a delay, a timer, inner batches or further queues."""
    if not cython.compiled:
        return any(part in text for part in _ASKING_FOR_MORE)
    return holds_any(octets(text), len(text))


def joined(keys, tags, five):
    """The property text of keys and tags."""
    parts: list = [] if keys is None else [b"KEYS\x01", keys.encode()]
    if tags is not None:
        parts.append(b"\x02TAGS\x01" if parts else b"TAGS\x01")
        parts.append(tags.encode())
    if five:
        parts.append(b"\x02")
    return b"".join(parts)
