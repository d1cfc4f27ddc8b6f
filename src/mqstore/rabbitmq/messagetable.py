"""From judged entries to the message table: stored terms taken apart, columns as Arrow arrays.

Only the messages of one batch are ever in memory. A message is `damaged` if its bytes are no message, if it holds another id or another
number of body bytes than its index entry says, or if its properties cannot be read.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Verdict
from mqstore.messages import RABBITMQ_PROPERTIES, rabbitmq_schema
from mqstore.rabbitmq.content import MessageTerm, PropertiesError, json_properties, read_message
from mqstore.rabbitmq.etf import EtfError
from mqstore.rabbitmq.queue import CONSUMED, DAMAGED, DUPLICATE, LOCATIONS, PLAIN, UNINDEXED, UNREACHABLE, Judged
from mqstore.rabbitmq.queueindex import DELIVERED, PERSISTENT

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TERM_COLUMNS", "Rows", "build", "decoded", "verdicts"]

# columns that need the stored message
TERM_COLUMNS = frozenset(
    {
        "exchange",
        "routing_keys",
        "properties",
        "payload",
        "payload_len",
        "payload_sha256",
        "payload_b64",
        "properties_json",
        "verdict",
        "msg_id",
    }
)

# columns of index entries
_OF_ENTRIES = frozenset({"queue_version", "seq_id", "persistent", "expiry_us", "size", "redelivered", "expired", "delivered_marker"})

_VERDICTS = {
    PLAIN: Verdict.INTACT,
    CONSUMED: Verdict.CONSUMED,
    UNREACHABLE: Verdict.UNREACHABLE,
    DAMAGED: Verdict.DAMAGED,
    DUPLICATE: Verdict.DUPLICATE,
    UNINDEXED: Verdict.UNINDEXED,
}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one queue (or of none: queue None) for one batch. pos: -1 where there is none. indexed: they are index entries."""

    vhost: str | None
    queue: str | None
    priority_level: int | None
    judged: Judged
    pos: NDArray[np.int64]
    now: int | None = None
    indexed: bool = True

    def __len__(self) -> int:
        return len(self.pos)

    def take(self, rows: NDArray[np.intp]) -> Rows:
        return Rows(self.vhost, self.queue, self.priority_level, self.judged.take(rows), self.pos[rows], self.now, self.indexed)


@dataclass(slots=True)
class _Message:
    """One decoded message; message None: its bytes are no message."""

    message: MessageTerm | None
    properties: dict[str, Any] | None
    told: dict[str, Any] | None
    sound: bool


def decoded(rows: Rows, data_of: Callable[[str], Bytes | None]) -> list[_Message | None]:
    """The message of each row; None where there are no bytes to decode. data_of: bytes of a file by name."""
    judged = rows.judged
    found: list[_Message | None] = []
    entries = judged.entries
    for row in range(len(rows)):
        source = int(judged.source[row])
        if source < 0:
            found.append(None)
            continue
        name, data = judged.sources[source]
        if data is None:
            data = data_of(name)
        at, length = int(judged.at[row]), int(judged.length[row])
        if data is None or at < 0 or length <= 0 or at + length > len(data):
            found.append(None)
            continue
        found.append(_decode(data[at : at + length].tobytes()))
        item = found[-1]
        if item is not None and item.message is not None and rows.indexed:
            hi, lo = int(entries["hi"][row]), int(entries["lo"][row])
            own = hi.to_bytes(8, "big", signed=True) + lo.to_bytes(8, "big", signed=True)
            size = sum(map(len, item.message.fragments))
            item.sound &= (own == bytes(16) or item.message.id == own) and size == entries["size"][row]
    return found


def _decode(raw: bytes) -> _Message:
    try:
        message = read_message(raw)
    except EtfError:
        return _Message(None, None, None, False)
    try:
        properties = message.properties
        return _Message(message, properties, json_properties(properties), True)
    except PropertiesError:
        return _Message(message, None, None, False)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _plain(value: Any) -> Any:
    """A property for Arrow: text of bytes, numbers as they are."""
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, dict) and set(value) == {"b64"}:
        return _text(base64.b64decode(value["b64"]))
    return value


def _struct(told: dict[str, Any] | None) -> dict[str, Any] | None:
    if told is None:
        return None
    found = {name: _plain(told.get(name)) for name in RABBITMQ_PROPERTIES}
    timestamp = found["timestamp"]
    if timestamp is not None and not -(1 << 63) <= timestamp < 1 << 63:
        found["timestamp"] = None
    if found["headers"] is not None:
        found["headers"] = [
            {"name": _plain(name), "type": kind, "value": json.dumps(value, ensure_ascii=False)} for name, kind, value in told["headers"]
        ]
    return found


def _ids(rows: Rows, messages: Sequence[_Message | None] | None) -> list[str | None]:
    entries = rows.judged.entries
    pairs = np.empty((len(rows), 2), ">i8")
    pairs[:, 0], pairs[:, 1] = entries["hi"], entries["lo"]
    raw = pairs.tobytes()
    found: list[str | None] = [raw[k : k + 16].hex() for k in range(0, len(raw), 16)]
    missing = np.flatnonzero((entries["hi"] == 0) & (entries["lo"] == 0))
    for row in missing.tolist():
        item = None if messages is None else messages[row]
        found[row] = None if item is None or item.message is None else item.message.id.hex()
    return found


def verdicts(rows: Rows, messages: Sequence[_Message | None] | None) -> list[str]:
    """The verdict of each row. messages: as for `build`."""
    found = []
    for row, known in enumerate(rows.judged.known.tolist()):
        item = None if messages is None else messages[row]
        if known in (PLAIN, UNINDEXED, DAMAGED) and item is None:
            known = UNREACHABLE
        elif known in (PLAIN, UNINDEXED) and item is not None and not item.sound:
            known = DAMAGED
        found.append(str(_VERDICTS[known]))
    return found


def build(rows: Rows, columns: Sequence[str], messages: Sequence[_Message | None] | None) -> pa.RecordBatch:
    """The rows as a batch. messages: what `decoded` found, needed for TERM_COLUMNS."""
    import pyarrow as pa

    schema = rabbitmq_schema(columns)
    arrays = [pa.array(_values(rows, name, messages), schema.field(name).type) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _each(messages: Sequence[_Message | None] | None, value: Callable[[MessageTerm], Any]) -> list[Any]:
    return [None if item is None or item.message is None else value(item.message) for item in messages or ()]


def _values(rows: Rows, name: str, messages: Sequence[_Message | None] | None) -> Any:
    judged, count = rows.judged, len(rows)
    entries = judged.entries
    recovered = judged.kept
    if name in ("vhost", "queue", "priority_level"):
        return [getattr(rows, name)] * count
    if not rows.indexed and name in _OF_ENTRIES:
        return [None] * count
    match name:
        case "queue_version":
            return [judged.version] * count
        case "pos":
            return [None if pos < 0 else pos for pos in rows.pos.tolist()]
        case "seq_id":
            return entries["seq"]
        case "persistent":
            return (entries["flags"] & PERSISTENT) != 0
        case "expiry_us":
            # beyond 2^63: shown as the latest time there is
            return [None if value == 0 else value if value > 0 else (1 << 63) - 1 for value in entries["expiry"].tolist()]
        case "size":
            return entries["size"]
        case "msg_id":
            return _ids(rows, messages)
        case "redelivered":
            return [bool(mark) if kept else None for mark, kept in zip(judged.redelivered.tolist(), recovered.tolist(), strict=True)]
        case "location":
            return [LOCATIONS[place] for place in judged.location.tolist()]
        case "recovered":
            return recovered
        case "store_file":
            return [judged.sources[k][0] for k in np.where(judged.source < 0, judged.index_file, judged.source).tolist()]
        case "position":
            return judged.record
        case "verdict":
            return verdicts(rows, messages)
        case "expired":
            now = rows.now
            return [None] * count if now is None else [0 < value <= now for value in entries["expiry"].tolist()]
        case "delivered_marker":
            return (entries["state"] & DELIVERED) != 0
    return _term_values(name, messages)


def _term_values(name: str, messages: Sequence[_Message | None] | None) -> list[Any]:
    match name:
        case "exchange":
            return _each(messages, lambda message: _text(message.exchange))
        case "routing_keys":
            return _each(messages, lambda message: [_text(key) for key in message.routing_keys])
        case "payload":
            return _each(messages, lambda message: message.body)
        case "payload_len":
            return _each(messages, lambda message: sum(map(len, message.fragments)))
        case "payload_sha256":
            return _each(messages, lambda message: hashlib.sha256(message.body).hexdigest())
        case "payload_b64":
            return _each(messages, lambda message: base64.b64encode(message.body).decode("ascii"))
        case "properties":
            return [None if item is None else _struct(item.told) for item in messages or ()]
        case _:
            told = (None if item is None else item.told for item in messages or ())
            return [None if item is None else json.dumps(item, ensure_ascii=False) for item in told]
