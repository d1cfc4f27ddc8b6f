"""The messages of a RabbitMQ store that hold a text in their ids, properties, headers or payload; each with what became of it.

Every message in the files is searched, also those that no queue holds any more. `state`:

    waiting         the broker would deliver it after a start
    acknowledged    a consumer has confirmed it; its bytes are still in the files. By whom is not recorded
    in-no-queue     a message file holds it, no index entry leads to it: acknowledged, or its entry is lost
    lost            a queue has it, and the broker would start without it; the verdict says why
    delayed         the plug-in for delayed messages holds it until it is due (`delayed`)
    kept            a stream holds it, consumed or not, until its segment is deleted

Messages of quorum queues have the states of `quorum.rows`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mqstore.findings import LOST_VERDICTS
from mqstore.rabbitmq.delayed import delayed_of
from mqstore.rabbitmq.store.store import RabbitMQStore, TableRows
from mqstore.table.columns import QUORUM, STREAM, QueueSelection
from mqstore.table.needle import Needle, looks_compressed
from mqstore.table.text import python_rows, rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    import pyarrow as pa

# added to the columns of the message table
FOUND_COLUMNS = ("matched_in", "matched_as", "state", "consumed_by")

KEPT = "kept"
ID_PART = 8  # digits: a shorter part of a message id is in some of them by chance
_SEARCHED = ("payload", "properties_json", "msg_id", "verdict")


@dataclass(slots=True)
class FoundInQueues:
    """Counts of a search. hits: messages with the text; bytes: of payloads searched; unreadable: messages whose bytes are lost."""

    messages: int = 0
    bytes: int = 0
    hits: int = 0
    unreadable: int = 0

    def add(self, other: FoundInQueues) -> None:
        """Add the counts of another part of the store."""
        self.messages += other.messages
        self.bytes += other.bytes
        self.hits += other.hits
        self.unreadable += other.unreadable


def find(
    store: RabbitMQStore,
    needle: Needle,
    counts: FoundInQueues,
    *,
    body: str = "sha256",
    pieces: Iterable[TableRows] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the messages that hold the text, as JSON values, with FOUND_COLUMNS. counts: are counted up.

    pieces: the rows of the store to search; all by default. progress: called with (messages searched, 0), because their number is not
    known in advance.
    """
    import pyarrow.compute as pc

    quoted = Needle(json.dumps(needle.text, ensure_ascii=False)[1:-1])  # as the properties of a batch have it
    hexadecimal = Needle(needle.text.lower())
    for rows in store.all_rows(QueueSelection(everything=True)) if pieces is None else pieces:
        batch = store.batch(rows, _SEARCHED)
        if batch is None:
            continue
        counts.messages += batch.num_rows
        payloads = batch.column("payload")
        counts.bytes += pc.sum(pc.binary_length(payloads)).as_py() or 0
        counts.unreadable += _lost_bytes(batch)
        mask = needle.marks_of(payloads) | hexadecimal.marks_of(batch.column("msg_id"))
        mask |= needle.marks_of(batch.column("properties_json")) | quoted.marks_of(batch.column("properties_json"))
        for k, payload in _streams(batch):
            mask[k] = mask[k] or bool(needle.forms_in(payload))
        if progress is not None:
            progress(counts.messages, 0)
        if mask.any():
            yield from _rows(store, rows.take(np.flatnonzero(mask)), needle, counts, body)


def find_delayed(store: RabbitMQStore, needle: Needle, counts: FoundInQueues, *, body: str = "sha256") -> Iterator[dict[str, Any]]:
    """Yield the rows of the messages that a plug-in delays and that hold the text, as `find` does; all are counted."""
    names = tuple("properties" if name == "properties_json" else name for name in rabbitmq_columns_for(body))
    hits = []
    for message in (message for table in delayed_of(store) for message in table.messages):
        counts.messages += 1
        counts.bytes += len(message.payload or b"")
        counts.unreadable += message.payload is None
        row = message.found_row(names, body)
        matched, forms = _matches(row, message.payload, needle)
        if matched:
            counts.hits += 1
            hits.append(row | {"matched_in": matched, "matched_as": forms, "state": "delayed", "consumed_by": []})
    yield from hits


def _lost_bytes(batch: pa.RecordBatch) -> int:
    """Count the messages whose bytes cannot be searched: those that are in a queue, and whose payload is missing."""
    pairs = zip(batch.column("payload").is_null().to_pylist(), batch.column("verdict").to_pylist(), strict=True)
    return sum(gone and verdict in LOST_VERDICTS for gone, verdict in pairs)


def _streams(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    """Yield the payloads that begin like a compressed stream, with their row numbers."""
    import pyarrow.compute as pc

    heads = pc.binary_slice(batch.column("payload"), 0, 6)
    for k in np.flatnonzero([head is not None and looks_compressed(head) for head in heads.to_pylist()]).tolist():
        yield k, batch.column("payload")[k].as_py()


def _rows(store: RabbitMQStore, rows: TableRows, needle: Needle, counts: FoundInQueues, body: str) -> Iterator[dict[str, Any]]:
    columns = rabbitmq_columns_for(body)
    batch = store.batch(rows, columns)
    searched = store.batch(rows, ("payload",))
    if batch is None or searched is None:
        return
    payloads = searched.column("payload").to_pylist()
    for row, payload in zip(python_rows(rename_properties_json(batch), body), payloads, strict=True):
        names, forms = _matches(row, payload, needle)
        if names:
            counts.hits += 1
            yield row | {"matched_in": names, "matched_as": forms, "state": _state(row), "consumed_by": []}


def _matches(row: dict[str, Any], payload: bytes | None, needle: Needle) -> tuple[list[str], list[str]]:
    names: dict[str, None] = {}
    forms: dict[str, None] = {}

    def look(name: str, raw: bytes | None) -> None:
        inside = () if raw is None else needle.forms_in(raw)
        if inside:
            names[name] = None
            forms.update(dict.fromkeys(inside))

    properties = dict(row["properties"] or {})
    for name in ("message_id", "correlation_id"):
        value = properties.pop(name, None)
        look(name, None if value is None else str(value).encode("utf-8", "surrogatepass"))
    for value in _texts(properties):
        look("properties", value.encode("utf-8", "surrogatepass"))
    if row.get("msg_id") is not None and len(needle.text) >= ID_PART and needle.text.lower() in row["msg_id"]:
        names["msg_id"], forms["text"] = None, None
    look("payload", payload)
    return list(names), list(forms)


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts and numbers inside a value of JSON, as text."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _state(row: dict[str, Any]) -> str:
    if row["queue_type"] == QUORUM:
        return str(row["state"])
    if row["recovered"]:
        return KEPT if row["queue_type"] == STREAM else "waiting"
    if row["queue_type"] == STREAM:
        return "lost"
    if row["verdict"] == "consumed":
        return "acknowledged"
    return "in-no-queue" if row["queue"] is None or row["verdict"] in ("unindexed", "duplicate") else "lost"
