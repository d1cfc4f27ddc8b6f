"""Rows of quorum queues and streams that were found in an image: entries of Raft logs and chunks, each without the file that it was in.

What was found is an array, a column for each unit (`mqstore.wreck.log_search`):

    START, END       of its bytes in the image; AT: where its entry begins, of a chunk where its data end
    KIND             RECORD of a write-ahead log, ENTRY of a segment, CHUNK of a stream, or MARK, which has no message
    INDEX, TERM      of the entry, -1 if they are not known; of a chunk its id and epoch
    CRC              CRC-32 of the entry, or of the chunk's data
    MESSAGES         number of messages in it
    PROOF            NO_PROOF, CONTENT: a checksum covers the messages, but nothing the chunk's offset, or PROVED
    UID, NUMBER      of the member: number in `uids`, -1 if not known, and in the file; of a chunk -1 and its records

Nothing in an entry or a chunk says whether its messages were acknowledged or removed: they are `unindexed`, and `recovered` is empty. What
no checksum covers is `unproved`. A queue is named by the UID of its member, where the log states it; a chunk does not name its stream.

Format: docs/formats/rabbitmq-quorum.md, sections 2 and 3; docs/formats/rabbitmq-streams.md, section 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqstore.files.image import Image
from mqstore.findings import Verdict
from mqstore.kernels.rabbitmq import stream_chunks
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.message import stored_columns
from mqstore.rabbitmq.message.message_term import ID_SIZE, MessageTerm, message_from, write_message
from mqstore.rabbitmq.message.properties import Properties, PropertiesError, json_or_none, properties_to_bin
from mqstore.rabbitmq.message.stored_columns import DecodedMessage, StoredTerms
from mqstore.rabbitmq.quorum.queue import stored_message
from mqstore.rabbitmq.quorum.raft_log import SEGMENT, WAL
from mqstore.rabbitmq.streams.delivered_entry import RULES
from mqstore.rabbitmq.streams.entries import walk_records
from mqstore.rabbitmq.streams.rows import StreamRows, build_batch
from mqstore.rabbitmq.streams.segment import Chunks
from mqstore.table.arrow_spans import pieces
from mqstore.table.columns import QUORUM

if TYPE_CHECKING:
    import pyarrow as pa

Longs = NDArray[np.int64]

START, END, AT, KIND, INDEX, TERM, CRC, MESSAGES, PROOF, UID, NUMBER, UNIT_ROWS = range(12)
MARK, RECORD, ENTRY, CHUNK = range(4)
NO_PROOF, CONTENT, PROVED = range(3)
BATCH_ROWS = 2048
BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class FoundLogs:
    """What was found in a file. name: its path relative to the source; uids: those of members. duplicate: which are copies."""

    name: str
    image: Image
    units: Longs
    uids: tuple[str, ...]
    duplicate: NDArray[np.bool_]

    @property
    def messages(self) -> int:
        """Number of messages."""
        return int(self.units[MESSAGES].sum())

    def take(self, rows: NDArray[np.intp] | slice) -> FoundLogs:
        """Return some of the units."""
        return FoundLogs(self.name, self.image, self.units[:, rows], self.uids, self.duplicate[rows])


def log_rows_of(logs: FoundLogs, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the message table in the order of positions. Memory is that of a batch."""
    chosen = np.flatnonzero(logs.units[MESSAGES] > 0)
    chunk = logs.units[KIND, chosen] == CHUNK
    borders = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(chosen)]
    for low, high in pairwise(borders):
        if low < high:
            yield from (_chunks if chunk[low] else _entries)(logs.take(chosen[low:high]), columns)


def stored_terms(logs: FoundLogs, vhost: str) -> Iterator[tuple[str, bytes, bytes, bool]]:
    """Yield the messages in the order of positions, as a classic queue of a vhost stores them: verdict, id, term, whether it is persistent.

    The id is made of the place. What a checksum covers is `unindexed`, whatever its index or offset; of others the term is empty.
    """
    chosen = logs.units.T[logs.units[MESSAGES] > 0]
    for unit, copy in zip(chosen.tolist(), logs.duplicate[logs.units[MESSAGES] > 0].tolist(), strict=True):
        read = _stored_in_chunk(logs, unit) if unit[KIND] == CHUNK else _stored_in_entry(logs.image.read(unit[AT], unit[END]).tobytes())
        for number, (message, properties) in enumerate(read):
            verdict = _verdict(PROVED if unit[PROOF] == CONTENT else unit[PROOF], copy, properties is not None)
            if verdict != Verdict.UNINDEXED or message is None or properties is None:
                yield verdict, b"", b"", False
                continue
            try:
                block = properties_to_bin(properties)
            except PropertiesError:
                yield str(Verdict.DAMAGED), b"", b"", False
                continue
            place = f"{logs.name} {unit[START]} {number}".encode("utf-8", "surrogateescape")
            id = hashlib.blake2b(place, digest_size=ID_SIZE).digest()  # noqa: A001
            where = message.vhost or vhost.encode("utf-8", "surrogateescape")
            made = MessageTerm(id, where, message.exchange, message.routing_keys, message.persistent, message.fragments, block)
            yield verdict, id, write_message(made), message.persistent


def _stored_in_entry(entry: bytes) -> Iterator[tuple[MessageTerm | None, Properties | None]]:
    try:
        message = message_from(stored_message(entry), with_id=False)
        yield message, message.delivered()
    except (EtfError, PropertiesError):
        yield None, None


def _stored_in_chunk(logs: FoundLogs, unit: Sequence[int]) -> Iterator[tuple[MessageTerm | None, Properties | None]]:
    for rows in _chunk_rows(logs, unit):
        for _, message, properties in rows.stored():
            yield message, None if properties is None else {name: value for name, value in properties.items() if value is not None}


def _verdict(proof: int, duplicate: bool, readable: bool) -> str:
    if not readable:
        return str(Verdict.DAMAGED)
    return str(Verdict.UNPROVED if proof != PROVED else Verdict.DUPLICATE if duplicate else Verdict.UNINDEXED)


def _entries(logs: FoundLogs, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of entries of Raft logs."""
    for first, last in pieces(logs.units[END] - logs.units[AT], BATCH_BYTES, BATCH_ROWS):
        yield _entry_batch(logs.take(slice(first, last)), columns)


def _entry_batch(logs: FoundLogs, columns: Sequence[str]) -> pa.RecordBatch:
    units = logs.units
    rows = [_decoded(logs.image.read(at, end).tobytes()) for at, end in zip(units[AT].tolist(), units[END].tolist(), strict=True)]
    values: dict[str, list[Any]] = {
        "queue": [logs.uids[uid] if uid >= 0 else None for uid in units[UID].tolist()],
        "queue_type": [QUORUM] * len(rows),
        "raft_index": [index if index >= 0 else None for index in units[INDEX].tolist()],
        "location": [WAL if kind == RECORD else SEGMENT for kind in units[KIND].tolist()],
        "store_file": [logs.name] * len(rows),
        "position": units[START].tolist(),
        "persistent": [None if row is None else row[0].persistent for row in rows],
        "size": [None if row is None else len(row[0].body) for row in rows],
        "verdict": [
            _verdict(proof, copy, row is not None and row[1] is not None)
            for proof, copy, row in zip(units[PROOF].tolist(), logs.duplicate.tolist(), rows, strict=True)
        ],
    }
    return stored_columns.build_batch(columns, StoredTerms.decoded(rows), lambda name: values.get(name, [None] * len(rows)))


def _decoded(entry: bytes) -> DecodedMessage | None:
    try:
        message = message_from(stored_message(entry), with_id=False)
        return message, json_or_none(message.delivered)
    except EtfError:
        return None


def _chunks(logs: FoundLogs, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of chunks, of one after the other."""
    for row, unit in enumerate(logs.units.T.tolist()):
        for rows in _chunk_rows(logs, unit):
            yield _chunk_batch(logs, row, rows, columns)


def _chunk_rows(logs: FoundLogs, unit: Sequence[int]) -> Iterator[StreamRows]:
    """Yield the messages of a chunk; none if the image has changed."""
    out = np.empty((stream_chunks.CHUNK_COLUMNS, 1), np.int64)
    data = logs.image.read(unit[START], unit[AT])
    count, _, _ = stream_chunks.walk(data, 0, len(data), out)
    chunks = Chunks(out)
    for records, _ in walk_records(data, chunks) if count else ():
        for first in range(0, len(records), BATCH_ROWS):
            part = records.take(slice(first, first + BATCH_ROWS))
            file, nowhere, chunk = np.zeros(len(part), np.int32), np.full(len(part), -1, np.int64), part.chunk
            yield StreamRows(None, "", RULES["4.3"], (logs.name,), file, part, nowhere, chunks.timestamp[chunk], chunks.state[chunk])


def _chunk_batch(logs: FoundLogs, row: int, rows: StreamRows, columns: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    records = rows.records
    batch = build_batch(rows, columns)
    proof, copy = int(logs.units[PROOF, row]), bool(logs.duplicate[row])
    values: list[Any]
    for number, field in enumerate(batch.schema):
        if field.name == "verdict":
            values = [_verdict(proof, copy, word != Verdict.DAMAGED) for word in batch.column(number).to_pylist()]
        elif field.name == "position":
            values = (records.position + logs.units[START, row]).tolist()
        elif field.name in ("queue", "recovered", "redelivered"):
            values = [None] * len(records)
        else:
            continue
        batch = batch.set_column(number, field, pa.array(values, field.type))
    return batch
