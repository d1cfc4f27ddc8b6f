"""The fast path of a put: from a message object to its record in the mapped log file, without a Python call in between.

`PutPath.put` takes a message only if neither the message nor the log needs more than copying bytes: a known topic, a body and a
property text of bytes, no delay, room in the reserved part of the current file. For everything else it returns None, having changed
nothing, and the slow path (`mqstore.rocketmq.append.appender`) takes over.

No lock is taken: all of it runs in one piece, because nothing in it calls Python code or releases the interpreter's lock. The slow
path holds its lock and is counted in `busy` while it changes the log.
"""

from __future__ import annotations

import struct

import cython
import numpy as np

_OFFSET = struct.Struct(">q")


class Message:
    """One message on its way into a store.

    properties: a mapping, or the text itself as bytes, which is stored unchanged. keys, tags: shorthands for KEYS (several
    with blanks between them) and TAGS; they come before the mapping. born_timestamp: ms; None takes the store's clock.
    born_host, store_host: `ip:port` or `[ip]:port`; None takes the store's host.
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

    def encoded_properties(self, *, trailing_separator):
        """Return the property text, with a separator after its last pair if asked for; a text given as bytes is returned unchanged."""
        given = self.properties
        if isinstance(given, bytes):
            return given
        text = "\x02".join([f"{name}\x01{value}" for name, value in given.items()])
        return (text + "\x02" if trailing_separator and text else text).encode("utf-8", "surrogatepass")

    def property_map(self):
        """Return the properties as name -> value."""
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
        """Return a copy with some fields changed. Raises TypeError for an unknown field."""
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
    """status: a PutStatus. physical_offset, queue_offset: where the (first) message is, -1 if it is not stored.

    size: bytes in the log, of all messages of a batch. count: messages. store_timestamp: ms. detail: why it was refused, in a sentence.
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
        """Number of messages in the request."""
        return 1 if self._sizes is None else len(self._sizes)

    @property
    def stored(self):
        """Whether the message is in the log."""
        return self.physical_offset >= 0

    @property
    def msg_id(self):
        """The offset message id; for a batch, all ids joined by commas; empty if nothing is stored."""
        if self.physical_offset < 0:
            return ""
        at = self.physical_offset
        ids = []
        for size in (self.size,) if self._sizes is None else self._sizes:
            ids.append((self._host + _OFFSET.pack(at)).hex().upper())
            at += size
        return ",".join(ids)

    def __repr__(self):
        detail = f", detail={self.detail!r}" if self.detail else ""
        return f"PutResult({self.status.value}, physical_offset={self.physical_offset}, queue_offset={self.queue_offset}{detail})"


class Topic:
    """A topic as a store knows it.

    raw: its bytes; version: of the records that carry it; batch: whether its queues are batch queues; refused: why its messages
    are refused, empty if they are not; following: queue id -> queue offset of the next message, None after the topic was forgotten.
    """

    def __init__(self, raw, version, batch, refused=""):
        self.raw = raw
        self.version = version
        self.batch = batch
        self.refused = refused
        self.following = {}


class LogEnd:
    """The end of a log file that is written to.

    start: physical offset of the file; size: its bytes; written: bytes up to the end of the last record; last_stored: store time
    of the last record appended since the file was opened, ms.
    """

    def __init__(self, start, size, written):
        self.start = start
        self.size = size
        self.written = written
        self.last_stored = 0


class PutPath:
    """The fast path of one store.

    topics: by name, as far as they are known. busy: number of callers changing the log on the slow path.
    paused: everything takes the slow path, which reports why. not_after: so do puts at this time (ms) or before.
    last_stored: store time of the last record, ms. yield_microseconds: every 256th put yields the interpreter to other threads for
    this long; set while dispatch lags, which would otherwise wait for its turn most of the time.
    """

    def __init__(self, ok, default_host, *, trailing_separator, max_body_size, max_record_size):
        """ok: the status of a stored message. max_body_size, max_record_size: the largest that the store accepts, in bytes."""
        self.ok = ok
        self.default_host = default_host
        self.trailing_separator = trailing_separator
        self.max_body_size = min(max_body_size, LONGEST_BODY)
        self.max_record_size = max_record_size
        self.topics = {}
        self.hosts = {}
        self.busy = 0
        self.paused = False
        self.yield_microseconds = self.puts_since_yield = 0
        self.not_after = -1
        self.last_stored = 0
        self.file = None
        self.limit = 0

    def use(self, file, buffer, limit):
        """Write to this file from now on, up to limit. buffer: its map, a writable uint8 array."""
        self.data = buffer
        self.file = file
        self.limit = min(limit, file.size)

    def release(self):
        """Release the file; everything takes the slow path."""
        self.file = None
        self.limit = 0
        self.data = np.empty(1, np.uint8)

    def put(self, message):
        """Append a message; return None, with nothing changed, if it must take the slow path."""
        if type(message) is not Message or self.busy != 0 or self.paused or self.file is None:
            return None
        return self.put_message(message)

    def put_message(self, m: Message):
        """Append a message, while nothing else changes the log. See `put`."""
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
        values: RecordValues
        found = self.topics.get(m.topic) if type(m.topic) is str else None
        if found is None or type(m.body) is not bytes:
            return None
        known = found
        body = m.body
        if known.refused or known.batch or len(body) > self.max_body_size:
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
                text = join_properties(m._keys, m._tags, self.trailing_separator)
            except UnicodeEncodeError:
                return None
        else:
            return None
        if needs_slow_path(text):
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
        if queue_id < 0 or len(text) > MAX_PROPERTIES:
            return None
        # made before anything is read that the append depends on: making an object may run the garbage collector, which runs Python code
        result = PutResult.__new__(PutResult)
        size = FIXED_SIZE + known.version + len(born) + len(store) + len(known.raw) + len(text) + len(body)
        now = now_ms()
        if self.busy != 0 or self.file is not file or known.following is None:
            return None  # the collector has let another thread change the log, or delete the topic
        if size > self.max_record_size or file.written + size + FRAME_SIZE > self.limit or now <= self.not_after:
            return None
        kind = sys_flag & TRANSACTION_MASK
        if kind == TRANSACTION_NONE or kind == TRANSACTION_COMMIT:
            found = known.following.get(m.queue_id)
            if found is not None:
                queue_offset = found
            known.following[m.queue_id] = queue_offset + 1
        values = RecordValues(
            size=size,
            version=known.version,
            queue_id=queue_id,
            flag=flag,
            sys_flag=sys_flag,
            queue_offset=queue_offset,
            physical_offset=file.start + file.written,
            born_timestamp=now if m.born_timestamp is None else born_timestamp,
            store_timestamp=now,
            reconsume_times=reconsume_times,
            prepared_offset=prepared,
            body_crc=-1,
            crc_size=0,
            born_host=Span(octets(born), 0, len(born)),
            store_host=Span(octets(store), 0, len(store)),
            body=Span(octets(body), 0, len(body)),
            topic=Span(octets(known.raw), 0, len(known.raw)),
            properties=Span(octets(text), 0, len(text)),
        )
        put_record(buffer_start(self.data), file.written, ref(values))
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
        if self.yield_microseconds > 0:
            self.puts_since_yield += 1
            if self.puts_since_yield >= PUTS_PER_YIELD:
                self.puts_since_yield = 0
                with cython.nogil:
                    pause(self.yield_microseconds)
        return result


class SinglePut:
    """The single puts of a store, without a Python call where the fast path suffices.

    _path: the fast path. _sync_flush: whether a message counts as stored only when it is on disk.
    """

    def put(self, message):
        """Store one message. A message that cannot be stored does not raise: the result has a status, and a sentence in `detail`."""
        result = None if self._path is None else self._path.put(message)
        if result is None:
            result = self._put_slow(message)
        if self._sync_flush:
            self._wait_for_flush(message, result)
        return result

    def _put_slow(self, message):
        """Store a message that the fast path did not take, or refuse it."""
        raise NotImplementedError

    def _wait_for_flush(self, message, result):
        """Wait until a stored message is on disk, unless it asks not to; if it takes too long, the result says so."""
        raise NotImplementedError


def needs_slow_path(text):
    """Return whether a property text has something only the slow path handles: a delay, a timer, inner batches or further queues."""
    return contains_any(octets(text), len(text))
