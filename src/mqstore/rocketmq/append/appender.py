"""The put path: from a message to its bytes at the end of the commit log.

The checks are those of the broker, in its order, with one status for each way to fail; queue offsets come from a table in memory that is
rebuilt from the queues at start. One thread appends at a time:

    with the append lock held    store time = now; queue offset = table[topic, queue], 0 for prepared and rolled back records;
                                 does the record fit (its size + 8)? no: BLANK, next file;
                                 write it; table + 1
    after it is released         with SYNC_FLUSH, wait for the disk unless the message has WAIT=false

What a 4.9.3 broker does inside its store, and a 5.3.3 broker in hooks before it (delay levels, checks), happens here for both.

Multi-dispatch at put: one record that also gets entries in other queues, among them light message queues (LMQ).

The property INNER_MULTI_DISPATCH names the queues, separated by commas. Under the append lock the broker looks up the next
offset of each, writes them as INNER_MULTI_QUEUE_OFFSET and encodes the properties again, 4.9.3 without WAIT. After the append
each offset is advanced by one, in 4.9.3 only for records that get queue entries (not prepared or rolled back ones). Dispatch then
finds both lists in the record (`dispatch.dispatcher.request`).

    queue            its offset is kept under           5.3.3
    name             `name-<queue id of the message>`   has no offset: an empty item
    %LMQ%name        `%LMQ%name-0` where LMQ is on      `%LMQ%name-0`

    >>> text = b"INNER_MULTI_DISPATCH\\x01%LMQ%a,mirror\\x02WAIT\\x01true"
    >>> with_queue_offsets(text, 2, {"%LMQ%a-0": 7}.get, "4.9.3", lmq=True)
    (b'INNER_MULTI_DISPATCH\\x01%LMQ%a,mirror\\x02INNER_MULTI_QUEUE_OFFSET\\x017,0', ('%LMQ%a-0', 'mirror-2'))
    >>> with_queue_offsets(text, 2, {"%LMQ%a-0": 7}.get, "5.3.3", lmq=True)[1]
    ('%LMQ%a-0',)

Format: docs/formats/rocketmq.md, section 3.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence

from mqstore.errors import MqstoreError, TargetError
from mqstore.kernels.rocketmq import encode
from mqstore.kernels.rocketmq.put import PutPath, Topic
from mqstore.rocketmq.append.admission import (
    PROPERTIES_LIMIT,
    Admission,
    QueueOffsets,
    host_bytes,
    illegal,
    joined_properties,
)
from mqstore.rocketmq.append.delay import asks_for_timer, delayed
from mqstore.rocketmq.config.store_config import StoreConfig, now_ms
from mqstore.rocketmq.dispatch.dispatcher import LMQ_PREFIX, parse_delays
from mqstore.rocketmq.format import java_map, record
from mqstore.rocketmq.format.java_map import reencode
from mqstore.rocketmq.format.message import Inner, Message, MessageBatch, PutResult, PutStatus
from mqstore.rocketmq.format.profile import profile, version_rules
from mqstore.rocketmq.format.record import CRC_PROPERTY_SIZE, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE, Record
from mqstore.rocketmq.format.system_topics import is_left_out_of_light_queues
from mqstore.rocketmq.live.checkpoint_writer import LiveCheckpoint
from mqstore.rocketmq.live.commit_log_writer import END_OF_FILE, LiveFile, LiveLog

RECORD_MARGIN = 65536  # bytes by which a 5.3 record may be longer than the longest body
INNER_BATCH = 0xC0
_NUMBERS = struct.Struct(">iiiq")  # queue id, system flag, reconsume times, born timestamp
_FLAG = struct.Struct(">i")

QUEUED_TYPES = (TRANSACTION_NONE, TRANSACTION_COMMIT)  # transaction types whose records get consume queue entries


class AppendLock:
    """The append lock. While it is held, the fast path of puts stores nothing either.

    interrupted: whether an append was interrupted, so that the log and the queue offsets may disagree.
    """

    def __init__(self, path: PutPath) -> None:
        self._lock = threading.RLock()
        self._path = path
        self.interrupted = False

    def __enter__(self) -> None:
        self._lock.acquire()
        self._path.busy += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.interrupted = True
            self._path.release()
        self._path.busy -= 1
        self._lock.release()


class Appender:
    """Appends messages to a log. lock: held while something is appended.

    next_offset: queue offset of the next message of each queue. multi_offset: the same for multi-dispatch, by its own keys.
    max_record_size: bytes of the longest record that the store accepts. follows: the rules of its version.
    """

    def __init__(
        self,
        log: LiveLog,
        config: StoreConfig,
        release: str,
        next_offset: Mapping[tuple[str, int], int],
        checkpoint: LiveCheckpoint,
    ) -> None:
        """next_offset: (topic, queue id) -> maximum offset of the queue. checkpoint: lowered before the clock goes backwards.

        release: for which it writes.
        """
        self.closed = False
        self.config = config
        self._release = profile(release)
        self.version = self._release.rules
        self.follows = version_rules(release)
        margin = 0 if self.follows.limits_record else RECORD_MARGIN
        self.max_record_size = min(config.max_message_size + margin, log.file_size - END_OF_FILE)
        self._log = log
        self._recorded = log.recorded
        self._clock = config.clock
        self._levels = parse_delays(config.message_delay_level)
        self._checkpoint = checkpoint
        self._writer: encode.LogFileWriter | None = None
        self._writing_to: LiveFile | None = None
        crc = self.follows.has_property_crc and config.enabled_append_prop_crc
        self._property_crc = encode.PROPERTY_CRC if crc else encode.NO_PROPERTY_CRC
        self._multi = config.enable_multi_dispatch and (config.enable_lmq or not self.follows.only_light_queues)
        self._default_host = host_bytes(config.store_host)
        self.path = PutPath(
            PutStatus.PUT_OK,
            self._default_host,
            trailing_separator=self.follows.ends_with_separator,
            max_body_size=config.max_message_size,
            max_record_size=self.max_record_size,
        )
        self.lock = AppendLock(self.path)
        # the fast path neither reports what it writes to a recorder, nor asks a test's clock, nor adds a checksum property
        self._fast_path = not self._recorded and config.clock is now_ms and not self._property_crc
        self.next_offset = QueueOffsets()
        self.multi_offset: dict[str, int] = {}
        for (topic, queue_id), offset in next_offset.items():
            self.next_offset[topic.encode("utf-8", "surrogatepass"), queue_id] = offset
            if self.follows.only_light_queues and topic.startswith(LMQ_PREFIX):
                self.multi_offset[f"{topic}-0"] = offset
        self.admission = Admission(config, self.version, self.path, self.next_offset)

    # puts

    def put(self, message: Message) -> PutResult:
        """Append one message; the caller has checked that the store accepts messages."""
        return self.path.put(message) or self.put_slow(message)

    def put_slow(self, message: Message) -> PutResult:
        """Append a message that the fast path did not accept, or refuse it with a status and a sentence."""
        given = message.properties
        properties = given if type(given) is bytes else message.encoded_properties(trailing_separator=self.follows.ends_with_separator)
        if b"DELAY" in properties and message.sys_flag & TRANSACTION_MASK in QUEUED_TYPES:
            try:
                message = delayed(message, self._levels, self._release.version)
            except ValueError as error:
                return illegal(str(error))
            properties = message.encoded_properties(trailing_separator=self.follows.ends_with_separator)
        if self.follows.has_timer_wheel and b"TIMER_" in properties and asks_for_timer(message, self.version):
            return illegal("the message asks for the timer wheel of 5.x (TIMER_ properties), which is not supported; use a delay level")
        if self._property_crc and record.CRC_PROPERTY in properties:
            properties = record.without_property(properties, record.CRC_NAME)
        topic = message.topic
        known = self.path.topics.get(topic)
        if known is None:
            known = self.admission.topic(topic)
        body = message.body
        if known.refused or len(body) > self.config.max_message_size or len(properties) > PROPERTIES_LIMIT:
            refused = self.admission.refusal(known, len(body), properties)
            if refused is not None:
                # 5.3.3 looks at the properties of such a message only where it adds the offsets
                late = needs_queue_offsets(topic, properties, self.version, multi_dispatch=True, lmq=self._multi)
                return illegal(refused.detail) if late and self.follows.judges_with_offsets else refused
        try:
            born_host = self._default_host if message.born_host is None else self.admission.host(message.born_host)
            store_host = self._default_host if message.store_host is None else self.admission.host(message.store_host)
        except ValueError as error:
            return illegal(f"a host must be ip:port or [ip]:port: {error}")
        if known.batch and b"INNER_NUM" in properties:
            return self._put_inner(message, known, properties)
        if self._multi and b"INNER_MULTI_DISPATCH" in properties:
            return self._put_multi(message, known, properties)
        return self._append(
            known,
            message.queue_id,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            born_host,
            store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            properties,
            body,
        )

    def put_stored(self, stored: Record) -> PutResult:
        """Append a record unchanged except for its offsets and store timestamp, which are reassigned."""
        known = self.admission.topic(stored.topic)
        version = Topic(known.raw, stored.version, known.batch)
        count = 1
        if known.batch:
            count = _inner_count(stored.property_map())
        properties = stored.properties
        if self._property_crc:
            properties = record.without_property(properties, record.CRC_NAME)
        return self._append(
            version,
            stored.queue_id,
            stored.flag,
            stored.sys_flag,
            stored.born_timestamp,
            host_bytes(stored.born_host),
            host_bytes(stored.store_host),
            stored.reconsume_times,
            stored.prepared_transaction_offset,
            properties,
            stored.body,
            count=count,
        )

    def put_messages(self, batch: MessageBatch) -> PutResult:
        """Append a producer's batch: all of it into one file, or nothing."""
        envelope = batch.envelope
        shared = envelope.encoded_properties(trailing_separator=self.follows.ends_with_separator)
        known = self.admission.topic(envelope.topic)
        refused = self.admission.batch_refusal(known, batch, shared)
        if refused is not None:
            return refused
        if not self._release.shares_properties:
            shared = b""
        elif not self._release.ends_properties:
            shared = shared.removesuffix(b"\x02")
        texts = [joined_properties(inner, shared) for inner in batch.messages]
        longest = PROPERTIES_LIMIT - (CRC_PROPERTY_SIZE if self._property_crc else 0)
        if any(len(text) > longest for text in texts):
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED, detail="a message in the batch has more than 32767 bytes of properties")
        return self._append_batch(known, envelope, batch.messages, texts)

    def refusal_of(self, topic: str) -> str:
        """Return why no message of a topic is accepted; empty for a topic that is."""
        refused: str = self.admission.topic(topic).refused
        return refused

    # appending

    def stop(self) -> None:
        """Accept nothing more. When this returns, no thread is appending."""
        with self.lock:
            self.closed = True
            self.path.release()
            self._writer = self._writing_to = None

    @property
    def interrupted(self) -> bool:
        """Whether a put was interrupted, for example from the keyboard. Nothing more is accepted then."""
        return self.lock.interrupted

    def _failed(self, error: MqstoreError) -> PutResult:
        """Return the result for a message that could not be written."""
        status = PutStatus.SERVICE_NOT_AVAILABLE if self.closed or self.interrupted else PutStatus.CREATE_MAPPED_FILE_FAILED
        return PutResult(status, detail=str(error))

    def _append(
        self,
        known: Topic,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int | None,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        prepared: int,
        properties: bytes,
        body: bytes | memoryview,
        *,
        count: int = 1,
    ) -> PutResult:
        crc = self._property_crc
        size = 74 + known.version + len(born_host) + len(store_host) + len(known.raw) + len(properties) + len(body) + (21 if crc else 0)
        if size > self.max_record_size:
            exact = encode.record_size(known.raw, properties, len(body), born_host, store_host, known.version, crc)
            if exact > self.max_record_size:
                return illegal(f"a record of {exact} bytes: at most {self.max_record_size} fit into this store")
        if crc and len(properties) + CRC_PROPERTY_SIZE + (properties[-1:] not in (b"", b"\x02")) > PROPERTIES_LIMIT:
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED, detail="the properties leave no room for the CRC property of 20 bytes")
        key = (known.raw, queue_id)
        kind = sys_flag & TRANSACTION_MASK
        advances = kind in QUEUED_TYPES
        with self.lock:
            now = self._clock()
            queue_offset = self.next_offset.get(key) if advances else 0
            born = now if born_timestamp is None else born_timestamp
            try:
                file, writer = self.room(size, now)
                while True:
                    at = file.written
                    written = writer.append(
                        at,
                        file.size,
                        file.start + at,
                        queue_offset,
                        now,
                        queue_id,
                        flag,
                        sys_flag,
                        born,
                        born_host,
                        store_host,
                        reconsume_times,
                        prepared,
                        known.version,
                        known.raw,
                        properties,
                        body,
                        crc,
                    )
                    if written > 0:
                        break
                    file, writer = self.next_file(file, size, now)
            except MqstoreError as error:
                return self._failed(error)
            except OverflowError as error:
                return illegal(f"a number of the message does not fit its field: {error}")
            offset = file.start + at
            self.count(file, written, now)
            if advances:
                self.next_offset[key] = queue_offset + count
        return PutResult(PutStatus.PUT_OK, offset, queue_offset, written, now, store_host)

    def room(self, size: int, now: int) -> tuple[LiveFile, encode.LogFileWriter]:
        """Return the file to append to, with blocks reserved for a record of that size, and the writer of its map."""
        if self.closed:
            raise TargetError("the store is closed")
        if self.lock.interrupted:
            raise TargetError("a put was interrupted; close the store and open it again")
        file = self._log.files[-1] if self._log.files else None
        if file is None or file.written >= file.size or file.map is None:
            if file is not None and file.written >= file.size:
                self._checkpoint.before_file(file.start + file.size, now)
            file = self._log.current()
        if now <= self._checkpoint.written.index:
            self._checkpoint.before_record(now)
        assert file.map is not None
        if self._writing_to is not file:
            self._writer = encode.LogFileWriter(file.map.data)
            self._writing_to = file
        assert self._writer is not None
        if file.written + size + END_OF_FILE > file.map.reserved:
            file.map.reserve(min(file.size, file.written + size + END_OF_FILE))
        if self._recorded:
            file.map.about_to_write()
        if self._fast_path:
            self.path.not_after = self._checkpoint.written.index
            self.path.use(file, file.map.data, file.map.reserved)
        return file, self._writer

    def next_file(self, file: LiveFile, size: int, now: int) -> tuple[LiveFile, encode.LogFileWriter]:
        """End a file that has no room for a record of that size, and return the next one as `room` does."""
        self._log.end_file(file)
        return self.room(size, now)

    def count(self, file: LiveFile, size: int, now: int) -> None:
        """Count a record of that size that was written at the end of the file."""
        if self._recorded:
            assert file.map is not None
            file.map.wrote(file.written, file.written + size)
        self._log.appended(file, size, now)
        self.path.last_stored = now

    def _append_batch(self, known: Topic, envelope: Message, messages: Sequence[Inner], texts: Sequence[bytes]) -> PutResult:
        try:
            born_host = self._default_host if envelope.born_host is None else self.admission.host(envelope.born_host)
            store_host = self._default_host if envelope.store_host is None else self.admission.host(envelope.store_host)
        except ValueError as error:
            return illegal(f"a host must be ip:port or [ip]:port: {error}")
        crc = encode.PROPERTY_CRC_IN_BATCH if self._property_crc else encode.NO_PROPERTY_CRC
        sizes = [
            encode.record_size(known.raw, text, len(inner.body), born_host, store_host, known.version, crc)
            for inner, text in zip(messages, texts, strict=True)
        ]
        try:
            _NUMBERS.pack(envelope.queue_id, envelope.sys_flag, envelope.reconsume_times, envelope.born_timestamp or 0)
            for inner in messages:
                _FLAG.pack(inner.flag)
        except struct.error as error:  # before the first record is written, so that the log never has half a batch
            return illegal(f"a number of the batch does not fit its field: {error}")
        total = sum(sizes)
        if total > self.max_record_size:
            return illegal(f"a batch of {total} bytes in the log: at most {self.max_record_size} fit into this store")
        key = (known.raw, envelope.queue_id)
        with self.lock:
            now = self._clock()
            first = self.next_offset.get(key)
            try:
                file, writer = self.room(total, now)
                if total + END_OF_FILE > file.size - file.written:
                    file, writer = self.next_file(file, total, now)
            except MqstoreError as error:
                return self._failed(error)
            at = file.written
            for number, (inner, text) in enumerate(zip(messages, texts, strict=True)):
                at += writer.append(
                    at,
                    file.size,
                    file.start + at,
                    first + number,
                    now,
                    envelope.queue_id,
                    inner.flag,
                    envelope.sys_flag,
                    now if envelope.born_timestamp is None else envelope.born_timestamp,
                    born_host,
                    store_host,
                    envelope.reconsume_times,
                    0,
                    known.version,
                    known.raw,
                    text,
                    inner.body,
                    crc,
                )
            offset = file.start + file.written
            self.count(file, total, now)
            self.next_offset[key] = first + len(sizes)
        return PutResult(PutStatus.PUT_OK, offset, first, total, now, store_host, sizes)

    def _put_inner(self, message: Message, known: Topic, properties: bytes) -> PutResult:
        """Append a whole batch as one record (5.3, batch queue); its properties get the queue offset of its first message."""
        count = _inner_count(record.decode_properties(properties))
        if count < 1 or message.sys_flag & INNER_BATCH != INNER_BATCH:
            return illegal("INNER_NUM must be a number above 0, on a message with the inner batch bits in SYSFLAG")
        with self.lock:
            base = self.next_offset.get((known.raw, message.queue_id))
            text = reencode(properties, {"INNER_BASE": str(base)}, self._release.version)
            return self.put_stored(self._as_record(message, text))

    def _put_multi(self, message: Message, known: Topic, properties: bytes) -> PutResult:
        """Append a message that is also dispatched to other queues; the offsets it gets there become part of it."""
        if not needs_queue_offsets(message.topic, properties, self.version, multi_dispatch=True, lmq=self.follows.only_light_queues):
            return self.put_stored(self._as_record(message, properties))
        with self.lock:
            text, keys = with_queue_offsets(
                properties,
                message.queue_id,
                lambda key: self.multi_offset.setdefault(key, 0),
                self._release.version,
                self.config.enable_lmq,
            )
            stored = self._as_record(message, text)
            refused = None if text is properties else self._multi_refusal(known, stored, properties)
            if refused is not None:
                return refused
            result = self.put_stored(stored)
            if result.stored and (self.follows.advances_unlisted or message.sys_flag & TRANSACTION_MASK in QUEUED_TYPES):
                for key in keys:
                    self.multi_offset[key] += 1
        return result

    def _multi_refusal(self, known: Topic, stored: Record, properties: bytes) -> PutResult | None:
        """Return the refusal of a record that its queue offsets have made too long; None if it fits. properties: its text without them.

        5.3.3 allows such a record no more bytes than a body. 4.9.3 has accepted the message when it adds them, and calls this unknown.
        """
        before, size = (
            encode.record_size(
                known.raw,
                text,
                len(stored.body),
                host_bytes(stored.born_host),
                host_bytes(stored.store_host),
                known.version,
                self._property_crc,
            )
            for text in (properties, stored.properties)
        )
        limit = min(self.max_record_size, self.config.max_message_size)
        if not self.follows.judges_with_offsets and before > limit:
            return illegal(f"a record of {before} bytes: at most {limit} fit into this store")
        if size <= limit and len(stored.properties) <= PROPERTIES_LIMIT:
            return None
        return PutResult(
            PutStatus.MESSAGE_ILLEGAL if self.follows.judges_with_offsets else PutStatus.UNKNOWN_ERROR,
            detail=f"with the offsets of its other queues the record has {size} bytes, {len(stored.properties)} of them properties: "
            f"at most {limit} and {PROPERTIES_LIMIT} fit into this store",
        )

    def _as_record(self, message: Message, properties: bytes) -> Record:
        known = self.admission.topic(message.topic)
        return Record(
            message.topic,
            bytes(message.body),
            message.queue_id,
            message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=self._clock() if message.born_timestamp is None else message.born_timestamp,
            born_host=message.born_host or self.config.store_host,
            store_host=message.store_host or self.config.store_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            properties=properties,
            version=known.version,
        )


def _inner_count(properties: Mapping[str, str]) -> int:
    """Return INNER_NUM, or 1 if it is missing or not a number."""
    text = properties.get("INNER_NUM", "1")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1


MULTI_NAMES = "INNER_MULTI_DISPATCH"
MULTI_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"

_MULTI_MARK = f"{MULTI_NAMES}\x01".encode()


def needs_queue_offsets(topic: str, properties: bytes, version: str, *, multi_dispatch: bool, lmq: bool) -> bool:
    """Return whether a put of this message needs offsets of other queues. multi_dispatch, lmq: enableMultiDispatch, enableLmq."""
    if _MULTI_MARK not in properties:
        return False
    if not version_rules(version).only_light_queues:
        return multi_dispatch
    return lmq and not is_left_out_of_light_queues(topic)


def queue_key(name: str, queue_id: int, *, lmq: bool) -> str:
    """Return the key of another queue in the offset table."""
    return f"{name}-{0 if lmq and name.startswith(LMQ_PREFIX) else queue_id}"


def with_queue_offsets(
    properties: bytes, queue_id: int, offset_of: Callable[[str], int | None], version: str, lmq: bool
) -> tuple[bytes, tuple[str, ...]]:
    """Return (property text to store, keys to advance by one after the append).

    queue_id: of the message. offset_of: next queue offset under a key, None or 0 for a new queue. A message that
    names no queue is unchanged. A queue that is named twice gets one offset twice and is advanced twice, as in the broker.
    """
    rules = version_rules(version)
    parsed = java_map.parsed(properties, version)
    named = parsed.get(MULTI_NAMES)
    if named is None or not named.strip():
        return properties, ()
    names = named.split(",")
    while names and not names[-1]:
        names.pop()
    keys = []
    offsets = []
    for name in names:
        if rules.only_light_queues and not (lmq and name.startswith(LMQ_PREFIX)):
            offsets.append("")
            continue
        keys.append(queue_key(name, queue_id, lmq=lmq))
        offsets.append(str(offset_of(keys[-1]) or 0))
    parsed.put(MULTI_OFFSETS, ",".join(offsets))
    wait = parsed.remove("WAIT")
    if wait is not None and rules.keeps_wait:
        parsed.put("WAIT", wait)  # after the others of its bucket
    return parsed.encoded(version), tuple(keys)
