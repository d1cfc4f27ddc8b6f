"""Appending many messages at once: the kernel writes a batch of Arrow columns into the log, one file at a time.

The messages are independent, as if each had been put alone, and are stored in order; other producers may append in between, after
every few thousand. Messages that need more than copying (a delay level, further queues, inner batches) are put one by one. A batch with a
row that no store could accept is refused before any of it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import MqstoreError
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.append.appender import QUEUED_TYPES, Appender
from mqstore.rocketmq.append.record_encoder import BatchColumns
from mqstore.rocketmq.format.message import Message, PutStatus
from mqstore.rocketmq.format.record import BORN_HOST_IPV6, STORE_HOST_IPV6, TRANSACTION_MASK, format_host
from mqstore.rocketmq.live.commit_log_writer import END_OF_FILE
from mqstore.table.arrow_spans import bad_row
from mqstore.table.needle import Parts

if TYPE_CHECKING:
    import pyarrow as pa

Longs = NDArray[np.int64]

ROWS_AT_ONCE = 8192
BYTES_AT_ONCE = 16 << 20
_SPECIAL = Parts(b"INNER_")
_SPECIAL_OR_WAITING = Parts(b"INNER_", b"DELAY\x01", b"TIMER_")
_NONE = np.empty(0, np.int64)


@dataclass(slots=True)
class BatchResult:
    """The result of a batch: its first `count` messages are stored, at these offsets. status, detail: why the rest is not.

    physical_offsets, queue_offsets, sizes: one for each stored message; sizes in bytes.
    """

    status: PutStatus
    physical_offsets: Longs = field(default_factory=lambda: _NONE)
    queue_offsets: Longs = field(default_factory=lambda: _NONE)
    sizes: Longs = field(default_factory=lambda: _NONE)
    detail: str = ""

    @property
    def count(self) -> int:
        """Number of stored messages."""
        return len(self.physical_offsets)

    @property
    def end(self) -> int:
        """Physical offset after the last stored message; 0 if none is stored."""
        return int(self.physical_offsets[-1] + self.sizes[-1]) if self.count else 0


def put_each(appender: Appender, messages: Sequence[Message]) -> BatchResult:
    """Append messages one by one until one is refused."""
    offsets = np.empty((3, len(messages)), np.int64)
    for number, message in enumerate(messages):
        result = appender.put(message)
        if not result.stored:
            physical, queue, sizes = offsets[:, :number]
            return BatchResult(result.status, physical, queue, sizes, f"message {number}: {result.detail}")
        offsets[:, number] = result.physical_offset, result.queue_offset, result.size
    return BatchResult(PutStatus.PUT_OK, offsets[0], offsets[1], offsets[2])


def put_columns(appender: Appender, messages: pa.RecordBatch | pa.Table, *, stored: bool = False) -> BatchResult:
    """Append the rows of an Arrow batch. Raises UsageError for a row that no store accepts.

    stored: the rows come from a store: their delay is already over, and their checksum property no longer holds.
    """
    config = appender.config
    columns = BatchColumns.from_arrow(
        messages,
        version=appender.version,
        store_host=config.store_host,
        now=config.clock(),
        max_message_size=config.max_message_size,
        property_crc=appender.follows.has_property_crc and config.enabled_append_prop_crc,
        stored=stored,
    )
    if len(columns) and columns.sizes.max() > appender.max_record_size:
        row = int(np.argmax(columns.sizes > appender.max_record_size))
        sentence = f"a record of {columns.sizes[row]} bytes, at most {appender.max_record_size} fit into a file of this store"
        raise bad_row("body", row, 0, sentence)
    for number, (topic, _) in enumerate(() if stored else columns.groups):
        refused = appender.refusal_of(topic)
        if refused:
            raise bad_row("topic", int(np.argmax(columns.group == number)), 0, refused)
    stop_at = np.append(np.flatnonzero(special_rows(columns, stored)), len(columns))
    done = 0
    status, detail = PutStatus.PUT_OK, ""
    for stop in stop_at.tolist():
        done, detail = _put_range(appender, columns, done, stop)
        if done < stop:
            status = PutStatus.SERVICE_NOT_AVAILABLE if appender.closed or appender.interrupted else PutStatus.CREATE_MAPPED_FILE_FAILED
            break
        if stop < len(columns):
            result = appender.put(message_of_row(columns, stop))
            if not result.stored:
                status, detail = result.status, f"row {stop}: {result.detail}"
                break
            columns.fields[frames.PHYSICAL_OFFSET, stop] = result.physical_offset
            columns.fields[frames.QUEUE_OFFSET, stop] = result.queue_offset
            columns.fields[frames.SIZE, stop] = result.size
            done = stop + 1
    fields = columns.fields[:, :done]
    return BatchResult(
        status, fields[frames.PHYSICAL_OFFSET].copy(), fields[frames.QUEUE_OFFSET].copy(), fields[frames.SIZE].copy(), detail
    )


def special_rows(columns: BatchColumns, stored: bool) -> NDArray[np.bool_]:
    """Return which rows are put one by one, because they may be stored in another form."""
    return columns.holding(_SPECIAL if stored else _SPECIAL_OR_WAITING)


def _put_range(appender: Appender, columns: BatchColumns, first: int, stop: int) -> tuple[int, str]:
    """Append rows first … stop-1. Returns the first row that is not stored, and the reason."""
    keys = [(topic.encode("utf-8", "surrogatepass"), queue_id) for topic, queue_id in columns.groups]
    while first < stop:
        total = np.cumsum(columns.sizes[first : min(stop, first + ROWS_AT_ONCE)])
        until = first + max(1, int(np.searchsorted(total, BYTES_AT_ONCE, side="right")))
        with appender.lock:
            now = appender.config.clock()
            columns.stamp(now, first)
            following = np.array([appender.next_offset.get(key) for key in keys], np.int64)
            before = following.copy()
            columns.assign_offsets(following, first, until)
            start = first
            why = ""
            try:
                while first < until:
                    first = _fill(appender, columns, first, until, now)
            except MqstoreError as error:
                why = str(error)
            written = columns.fields[:, start:first]
            listed = np.isin(written[frames.SYS_FLAG] & TRANSACTION_MASK, QUEUED_TYPES)
            counts = np.bincount(columns.group[start:first][listed], minlength=len(keys))
            for number in np.flatnonzero(counts).tolist():
                appender.next_offset[keys[number]] = int(before[number] + counts[number])
        if why:
            return first, why
    return first, ""


def _fill(appender: Appender, columns: BatchColumns, first: int, until: int, now: int) -> int:
    """Write rows into the current file until it is full. Returns the first row not written."""
    size = int(columns.sizes[first])
    file, writer = appender.room(size, now)
    if file.written + size + END_OF_FILE > file.size:
        file, writer = appender.next_file(file, size, now)
    assert file.map is not None
    length = file.written + int(columns.sizes[first:until].sum()) + END_OF_FILE
    file.map.reserve(min(file.size, length))
    done, end = writer.append_batch(
        file.written,
        file.size,
        file.start + file.written,
        first,
        until,
        columns.fields,
        columns.hosts,
        columns.bodies,
        columns.topics,
        columns.texts,
        columns.property_crc,
    )
    appender.count(file, end - file.written, now)
    return int(done)


def message_of_row(columns: BatchColumns, row: int) -> Message:
    """Return one row as a message."""
    fields = columns.fields[:, row].tolist()

    def text(source: NDArray[np.uint8], start: int, length: int) -> bytes:
        return source[start : start + length].tobytes()

    def host(start: int, bit: int) -> str:
        return format_host(text(columns.hosts, start, 20 if fields[frames.SYS_FLAG] & bit else 8))

    topic, queue_id = columns.groups[int(columns.group[row])]
    return Message(
        topic,
        text(columns.bodies, fields[frames.BODY_START], fields[frames.BODY_LENGTH]),
        queue_id=queue_id,
        properties=text(columns.texts, fields[frames.PROPERTIES_START], fields[frames.PROPERTIES_LENGTH]),
        flag=fields[frames.FLAG],
        sys_flag=fields[frames.SYS_FLAG],
        born_timestamp=fields[frames.BORN_TIMESTAMP],
        born_host=host(fields[frames.BORN_HOST], BORN_HOST_IPV6),
        store_host=host(fields[frames.STORE_HOST], STORE_HOST_IPV6),
        reconsume_times=fields[frames.RECONSUME_TIMES],
        prepared_transaction_offset=fields[frames.PREPARED_TRANSACTION_OFFSET],
    )
