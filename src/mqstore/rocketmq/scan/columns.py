"""Columns of records: the conversion from commit log bytes to the message table.

`RecordColumns` holds the fixed fields of a run of records as NumPy rows and computes every other column on demand, so that
a query for topics never touches a body. All columns are Arrow arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.kernels.common.crc32 import crc32, crc_of_spans
from mqstore.kernels.common.spans import copy_spans
from mqstore.kernels.rocketmq import frames, hashing, property_spans
from mqstore.rocketmq.format import compression
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.java_text import decode_utf8
from mqstore.rocketmq.format.record import COMPRESSED, CRC_PROPERTY, CRC_PROPERTY_SIZE, format_host, split_keys
from mqstore.table.arrow_spans import pieces
from mqstore.table.columns import rocketmq_schema

if TYPE_CHECKING:
    import pyarrow as pa

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]

_INT32 = {
    "queue_id": frames.QUEUE_ID,
    "size": frames.SIZE,
    "body_crc": frames.BODY_CRC,
    "flag": frames.FLAG,
    "sys_flag": frames.SYS_FLAG,
    "reconsume_times": frames.RECONSUME_TIMES,
    "stored_body_len": frames.BODY_LENGTH,
}
_INT64 = {
    "queue_offset": frames.QUEUE_OFFSET,
    "physical_offset": frames.PHYSICAL_OFFSET,
    "prepared_transaction_offset": frames.PREPARED_TRANSACTION_OFFSET,
}
_TIMES = {"born_timestamp": frames.BORN_TIMESTAMP, "store_timestamp": frames.STORE_TIMESTAMP}
MAX_MS = (2**63 - 1) // 1000  # that fits a timestamp in microseconds


class RecordColumns:
    """The columns of a run of records. `fields` has a row per fixed field (`kernels.rocketmq.frames`) and a column per record."""

    def __init__(self, records: Records, fields: Longs | None = None) -> None:
        self.records = records
        self._data = records.data
        if fields is None:
            fields = np.empty((frames.FIELD_COUNT, len(records)), np.int64)
            frames.fields(records.data, records.positions, fields)
        self.fields = fields

    def __len__(self) -> int:
        return int(self.fields.shape[1])

    def take(self, mask: Mask) -> RecordColumns:
        """Return the records where mask is true."""
        if mask.all():
            return self
        records = Records(self.records.file, self._data, np.ascontiguousarray(self.records.positions[mask]))
        return RecordColumns(records, np.ascontiguousarray(self.fields[:, mask]))

    def pieces(self, limit: int) -> Iterator[RecordColumns]:
        """Yield the records in pieces of at most `limit` bytes of log each, or of one record."""
        for at, stop in pieces(self.row(frames.SIZE), limit):
            if stop - at == len(self):
                yield self
            else:
                part = Records(self.records.file, self._data, self.records.positions[at:stop])
                yield RecordColumns(part, np.ascontiguousarray(self.fields[:, at:stop]))

    def row(self, field: int) -> Longs:
        """Return one fixed field as int64."""
        row: Longs = self.fields[field]
        return row

    # spans of text

    @cached_property
    def _known(self) -> Longs:
        out = np.empty((property_spans.KNOWN_ROW_COUNT, len(self)), np.int64)
        property_spans.known_properties(self._data, self.row(frames.PROPERTIES_START), self.row(frames.PROPERTIES_LENGTH), out)
        return out

    def _buffers(self, starts: Longs, lengths: Longs) -> tuple[NDArray[np.int32], NDArray[np.uint8], bool]:
        present = np.maximum(lengths, 0)
        offsets = np.empty(len(starts) + 1, np.int32)
        text = np.empty(int(present.sum()), np.uint8)
        high = copy_spans(self._data, np.ascontiguousarray(starts), np.ascontiguousarray(present), offsets, text)
        return offsets, text, high

    def _strings(self, starts: Longs, lengths: Longs) -> pa.Array:
        import pyarrow as pa

        offsets, text, high = self._buffers(starts, lengths)
        absent = lengths < 0
        validity = pa.py_buffer(np.packbits(~absent, bitorder="little").tobytes()) if absent.any() else None
        array = pa.Array.from_buffers(pa.string(), len(starts), [validity, pa.py_buffer(offsets), pa.py_buffer(text)])
        if high:
            try:
                array.validate(full=True)
            except pa.ArrowInvalid:
                raw = text.tobytes()
                values = [
                    None if gone else decode_utf8(raw[begin:end])
                    for gone, begin, end in zip(absent.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
                ]
                return pa.array(values, pa.string())
        return array

    def _is_utf8(self, starts: Longs, lengths: Longs) -> Mask:
        hashes = np.empty(len(starts), np.int64)
        hashing.hash_spans(self._data, np.ascontiguousarray(starts), np.ascontiguousarray(lengths), hashes)
        mask: Mask = hashes != hashing.MALFORMED
        return mask

    @cached_property
    def topic(self) -> pa.Array:
        return self._strings(self.row(frames.TOPIC_START), self.row(frames.TOPIC_LENGTH))

    @cached_property
    def tags(self) -> pa.Array:
        return self._strings(self._known[property_spans.TAGS_START], self._known[property_spans.TAGS_LENGTH])

    @cached_property
    def stored_keys(self) -> pa.Array:
        """The KEYS property as stored, null where absent."""
        return self._strings(self._known[property_spans.KEYS_START], self._known[property_spans.KEYS_LENGTH])

    @cached_property
    def uniq_key(self) -> pa.Array:
        return self._strings(self._known[property_spans.UNIQ_KEY_START], self._known[property_spans.UNIQ_KEY_LENGTH])

    def _keys(self) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        stored = self.stored_keys
        # repeated blanks, or blanks at an end, would give empty keys
        if pc.any(pc.match_substring_regex(stored, "^ | $|  ")).as_py():
            return pa.array([None if keys is None else split_keys(keys) for keys in stored.to_pylist()], pa.list_(pa.string()))
        return pc.split_pattern(stored, " ").cast(pa.list_(pa.string()))

    @cached_property
    def _pairs(self) -> tuple[NDArray[np.int32], Longs]:
        starts, lengths = self.row(frames.PROPERTIES_START), self.row(frames.PROPERTIES_LENGTH)
        counts = np.empty(len(self), np.int32)
        spans = np.empty((property_spans.PAIR_ROW_COUNT, property_spans.count_pairs(self._data, starts, lengths, counts)), np.int64)
        property_spans.pair_spans(self._data, starts, lengths, spans)
        return counts, spans

    def _properties(self) -> pa.Array:
        import pyarrow as pa

        counts, spans = self._pairs
        names = self._strings(spans[0], spans[1])
        values = self._strings(spans[2], spans[3])
        hashes = np.empty(spans.shape[1], np.int64)
        hashing.hash_spans(self._data, spans[0], spans[1], hashes)
        if not property_spans.has_equal_names(counts, hashes):
            offsets = np.zeros(len(self) + 1, np.int32)
            np.cumsum(counts, out=offsets[1:])
            return pa.MapArray.from_arrays(pa.array(offsets), names, values)
        owner = np.repeat(np.arange(len(self)), counts)
        # equal names (or hashes) within a record: the last one wins
        rows: list[dict[str, str]] = [{} for _ in range(len(self))]
        for record, name, value in zip(owner.tolist(), names.to_pylist(), values.to_pylist(), strict=True):
            rows[record][name] = value
        return pa.array([list(row.items()) for row in rows], pa.map_(pa.string(), pa.string()))

    # hosts and ids

    def _host_bytes(self, start_row: int, ipv6_bit: int) -> list[bytes]:
        starts = self.row(start_row).tolist()
        wide = (self.row(frames.SYS_FLAG) & ipv6_bit != 0).tolist()
        view = self._data.data
        return [bytes(view[start : start + (20 if is_ipv6 else 8)]) for start, is_ipv6 in zip(starts, wide, strict=True)]

    def _ipv4(self, start_row: int, ipv6_bit: int) -> NDArray[np.uint8] | None:
        """Return the 8 host bytes of every record; None if one of them is IPv6."""
        if (self.row(frames.SYS_FLAG) & ipv6_bit).any():
            return None
        _, hosts, _ = self._buffers(self.row(start_row), np.full(len(self), 8))
        return hosts.reshape(-1, 8)

    def _hosts(self, start_row: int, ipv6_bit: int) -> pa.Array:
        import pyarrow as pa

        narrow = self._ipv4(start_row, ipv6_bit)
        if narrow is None:
            return pa.array([format_host(raw) for raw in self._host_bytes(start_row, ipv6_bit)], pa.string())
        raw_hosts = narrow.view(">u8").ravel()
        if len(raw_hosts) and (raw_hosts == raw_hosts[0]).all():
            return pa.repeat(format_host(int(raw_hosts[0]).to_bytes(8, "big")), len(raw_hosts))
        distinct, number = np.unique(raw_hosts, return_inverse=True)
        texts = pa.array([format_host(int(raw).to_bytes(8, "big")) for raw in distinct.tolist()], pa.string())
        return texts.take(pa.array(number))

    def _message_ids(self) -> pa.Array:
        import pyarrow as pa

        physical = self.row(frames.PHYSICAL_OFFSET).astype(">i8")
        narrow = self._ipv4(frames.STORE_HOST, 0x20)
        if narrow is None:
            hosts = self._host_bytes(frames.STORE_HOST, 0x20)
            raw = physical.tobytes()
            return pa.array([(host + raw[8 * k : 8 * k + 8]).hex().upper() for k, host in enumerate(hosts)], pa.string())
        text = np.concatenate([narrow, physical.view(np.uint8).reshape(-1, 8)], axis=1).tobytes().hex().upper().encode()
        offsets = np.arange(len(self) + 1, dtype=np.int32) * 32
        return pa.Array.from_buffers(pa.string(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(text)])

    # bodies

    @cached_property
    def crc_ok(self) -> Mask:
        """Whether the stored body matches the stored CRC. A broker never checks a record without a body; it counts as matching."""
        lengths = self.row(frames.BODY_LENGTH)
        checksums = crc_of_spans(self._data, self.row(frames.BODY_START), lengths)
        mask: Mask = (checksums == self.row(frames.BODY_CRC)) | (lengths == 0)
        return mask

    @cached_property
    def _compressed(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.row(frames.SYS_FLAG) & COMPRESSED)

    @cached_property
    def _expanded(self) -> dict[int, bytes | None]:
        """Bodies of compressed records by row; None if decompression fails."""
        bodies: dict[int, bytes | None] = {}
        for k in self._compressed.tolist():
            start = int(self.fields[frames.BODY_START, k])
            raw = self._data[start : start + int(self.fields[frames.BODY_LENGTH, k])].tobytes()
            try:
                bodies[k] = compression.decompress(raw, int(self.fields[frames.SYS_FLAG, k]))
            except compression.BadCompressionError:
                bodies[k] = None
        return bodies

    def body(self, k: int) -> bytes | None:
        """Return the body of one record, decompressed; None if that fails."""
        if k in self._expanded:
            return self._expanded[k]
        start = int(self.fields[frames.BODY_START, k])
        return self._data[start : start + int(self.fields[frames.BODY_LENGTH, k])].tobytes()

    def _bodies(self) -> pa.Array:
        import pyarrow as pa

        if len(self._compressed):
            return pa.array([self.body(k) for k in range(len(self))], pa.binary())
        offsets, text, _ = self._buffers(self.row(frames.BODY_START), self.row(frames.BODY_LENGTH))
        return pa.Array.from_buffers(pa.binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(text)])

    def _body_lengths(self) -> pa.Array:
        import pyarrow as pa

        lengths: list[int | None] = self.row(frames.BODY_LENGTH).tolist()
        for k, body in self._expanded.items():
            lengths[k] = None if body is None else len(body)
        return pa.array(lengths, pa.int32())

    def _body_digests(self) -> pa.Array:
        import pyarrow as pa

        bodies = (self.body(k) for k in range(len(self)))
        return pa.array([None if body is None else hashlib.sha256(body).hexdigest() for body in bodies], pa.string())

    # checks

    @cached_property
    def decompressible(self) -> Mask:
        """False where a compressed body cannot be decompressed."""
        mask = np.ones(len(self), np.bool_)
        mask[[k for k, body in self._expanded.items() if body is None]] = False
        return mask

    @cached_property
    def property_crc_ok(self) -> Mask:
        """False where a record does not match the `__CRC32#` property at its end, or that property's name is damaged."""
        mask = np.ones(len(self), np.bool_)
        ends = self.records.positions + self.row(frames.SIZE)
        shaped = np.empty(len(self), np.uint8)
        property_spans.checksum_tails(self._data, ends, self.row(frames.PROPERTIES_LENGTH), shaped)
        view = self._data.data
        for k in np.flatnonzero(shaped).tolist():
            start, end = int(self.records.positions[k]), int(ends[k]) - CRC_PROPERTY_SIZE
            tail = bytes(view[end : end + CRC_PROPERTY_SIZE])
            digits = tail[9:19]
            fits = digits.isdigit() and tail[19] == 2 and int(digits[::-1]) == crc32(view[start:end]) & 0x7FFFFFFF
            # if the digits match the record but the name differs, the name is damaged
            mask[k] = fits if tail.startswith(CRC_PROPERTY) else not fits
        return mask

    @cached_property
    def text_ok(self) -> Mask:
        """False where topic or properties are not UTF-8."""
        return self._is_utf8(self.row(frames.TOPIC_START), self.row(frames.TOPIC_LENGTH)) & self._is_utf8(
            self.row(frames.PROPERTIES_START), self.row(frames.PROPERTIES_LENGTH)
        )

    @cached_property
    def pairs_ok(self) -> Mask:
        """False where a part of the property text is not a name/value pair: a broker always writes the separator.

        Also false where the text ends in a zero byte or holds four in a row: it was overwritten by a block of zeros.
        """
        odd = np.empty(len(self), np.uint8)
        property_spans.irregular_texts(self._data, self.row(frames.PROPERTIES_START), self.row(frames.PROPERTIES_LENGTH), odd)
        mask: Mask = odd == 0
        return mask

    @cached_property
    def valid(self) -> Mask:
        """True where every check within the record itself passes."""
        return self.crc_ok & self.property_crc_ok & self.decompressible & self.text_ok & self.pairs_ok

    # the table

    def column(self, name: str, *, milliseconds: bool = False) -> pa.Array:
        """Return one column of the message table, except `verdict`.

        milliseconds: the JSON form, with times as int64 and keys as stored; else timestamps and a list.
        """
        import pyarrow as pa

        if name in _INT32:
            return pa.array(self.row(_INT32[name]).astype(np.int32))
        if name in _INT64:
            return pa.array(self.row(_INT64[name]))
        if name in _TIMES:
            times = self.row(_TIMES[name])
            if milliseconds:
                return pa.array(times)
            representable = (times <= MAX_MS) & (times >= -MAX_MS)
            return pa.array(
                np.where(representable, times, 0) * 1000, pa.timestamp("us", "UTC"), mask=None if representable.all() else ~representable
            )
        if name == "keys":
            return self.stored_keys if milliseconds else self._keys()
        if name == "store_file":
            return pa.repeat(self.records.file.relative, len(self))
        if name == "body_crc_ok":
            return pa.array(self.crc_ok)
        made: dict[str, Callable[[], pa.Array]] = {
            "topic": lambda: self.topic,
            "tags": lambda: self.tags,
            "uniq_key": lambda: self.uniq_key,
            "properties": self._properties,
            "born_host": lambda: self._hosts(frames.BORN_HOST, 0x10),
            "store_host": lambda: self._hosts(frames.STORE_HOST, 0x20),
            "msg_id": self._message_ids,
            "body": self._bodies,
            "body_len": self._body_lengths,
            "body_sha256": self._body_digests,
        }
        return made[name]()

    def batch(self, names: Sequence[str], verdict: pa.Array | None = None, *, milliseconds: bool = False) -> pa.RecordBatch:
        """Return the named columns as a batch. verdict: that column, computed by the caller from the queues."""
        import pyarrow as pa

        arrays = [verdict if name == "verdict" else self.column(name, milliseconds=milliseconds) for name in names]
        if milliseconds:
            return pa.RecordBatch.from_arrays(arrays, names=list(names))
        return pa.RecordBatch.from_arrays(arrays, schema=rocketmq_schema(names))
