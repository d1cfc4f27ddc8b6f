r"""Messages of a quorum queue as rows of the message table, with what a consumer of AMQP 0-9-1 receives.

The columns are those of every RabbitMQ queue, and

    queue_type       `quorum`
    raft_index       of the entry with the message
    delivery_count, acquired_count      as a restarted node has them
    state            `ready`, `returned`, `checked-out`, `dead-letter-held`, `delayed`
    location         `wal`, `segment`; `snapshot` if only the state of a snapshot knows of the message

`pos` 0 is next to be delivered. Headers have what the version adds: x-delivery-count, from 4.3 on x-acquired-count too.

    >>> counts(QuorumMessage(7, 0, "returned", 5, None, 1, 2, True, None, None, 0, True, None, 8))
    {'x-acquired-count': 2, 'x-delivery-count': 1}
    >>> counts(QuorumMessage(7, 0, "returned", 5, None, 1, 2, True, None, None, 0, True, None, 5))
    {'x-delivery-count': 2}

Format: docs/formats/rabbitmq-quorum.md, section 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mqstore.findings import Verdict
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.erlang.terms import Atom, Pairs, Term
from mqstore.rabbitmq.message.message_term import MessageTerm, delivered_properties, message_from
from mqstore.rabbitmq.message.properties import Properties, PropertiesError, json_properties
from mqstore.rabbitmq.message.stored_columns import StoredTerms
from mqstore.rabbitmq.quorum.queue import QuorumMessage, QuorumQueue
from mqstore.table.columns import RABBITMQ_COLUMNS, rabbitmq_schema

if TYPE_CHECKING:
    import pyarrow as pa

QUORUM_COLUMNS = ("queue_type", "raft_index", "delivery_count", "acquired_count", "state")
COLUMNS = RABBITMQ_COLUMNS + QUORUM_COLUMNS
TERM_COLUMNS = frozenset(
    ("exchange", "routing_keys", "properties", "payload", "payload_len", "payload_sha256", "payload_b64", "properties_json")
)
_OF_TERMS = TERM_COLUMNS | {"verdict", "persistent"}
# machines of 4.3 and newer deliver the name of a queue for its AMQP 1.0 address as a reply-to
_ADDRESSES_FROM = 8
BLOCK = 4096

Row = tuple[MessageTerm, dict[str, Any] | None]


def counts(message: QuorumMessage) -> dict[str, Term]:
    """Return the headers that count how often a message was delivered."""
    delivered, acquired = message.delivery_count, message.acquired_count
    if message.version < 4:
        return {} if delivered is None else {"x-delivery-count": delivered}
    acquired = delivered if acquired is None else acquired
    if message.version < 8:
        return {"x-delivery-count": acquired} if acquired else {}
    both = {"x-acquired-count": acquired, "x-delivery-count": delivered}
    return {name: count for name, count in both.items() if count is not None}


def read_stored(queue: QuorumQueue, message: QuorumMessage) -> MessageTerm | None:
    """Return the stored message of an entry; None if the entry is not there, is damaged, or is not a message."""
    if message.row < 0 or not queue.log.valid[message.row]:
        return None
    try:
        return message_from(queue.stored(message.row), with_id=False)
    except EtfError:
        return None


def delivered(message: QuorumMessage, stored: MessageTerm) -> Properties:
    """Return the properties that a consumer of AMQP 0-9-1 receives of a restarted node. Raises PropertiesError."""
    noted = counts(message)
    if isinstance(message.annotations, dict):
        noted |= {name.decode("utf-8", "replace"): value for name, value in message.annotations.items() if isinstance(name, bytes)}
    addresses = message.version >= _ADDRESSES_FROM
    if stored.form == "basic_message":
        found = stored.delivered(addresses)
        if noted:
            found["headers"] = delivered_properties({"headers": found.get("headers")}, noted)["headers"]
        return found
    if not noted:
        return stored.delivered(addresses)
    own = stored.annotations or {}
    pairs = list(own.items()) if isinstance(own, dict) else list(own)
    replaced = {name.encode() for name in noted}
    pairs = [(name, value) for name, value in pairs if isinstance(name, Atom) or name not in replaced]
    annotations = Pairs((*pairs, *((name.encode(), value) for name, value in noted.items())))
    return replace(stored, annotations=annotations).delivered(addresses)


def _decoded(queue: QuorumQueue, message: QuorumMessage) -> Row | None:
    stored = read_stored(queue, message)
    if stored is None:
        return None
    try:
        return stored, json_properties(delivered(message, stored))
    except PropertiesError:
        return stored, None


def quorum_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the Arrow schema of the named columns, in that order. Raises UsageError for an unknown one."""
    import pyarrow as pa

    own = {"queue_type": pa.string(), "state": pa.string()}
    return pa.schema(
        [pa.field(name, own.get(name, pa.int64())) if name in QUORUM_COLUMNS else rabbitmq_schema((name,)).field(name) for name in columns]
    )


def batches(
    queue: QuorumQueue, messages: Sequence[QuorumMessage], columns: Sequence[str] = COLUMNS, *, now: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield messages as batches of rows. now: ms since 1970, for the column `expired`."""
    for start in range(0, len(messages), BLOCK):
        yield build_batch(queue, messages[start : start + BLOCK], columns, now=now)


def build_batch(
    queue: QuorumQueue, messages: Sequence[QuorumMessage], columns: Sequence[str] = COLUMNS, *, now: int | None = None
) -> pa.RecordBatch:
    """Return messages as one batch. Entries are read only if a column needs the stored message."""
    import pyarrow as pa

    schema = quorum_schema(columns)
    rows = [_decoded(queue, message) for message in messages] if not _OF_TERMS.isdisjoint(columns) else None
    terms = None if rows is None else StoredTerms.decoded(rows)
    arrays = []
    for name in columns:
        if terms is not None and name in TERM_COLUMNS:
            arrays.append(terms.column(name))
        else:
            arrays.append(pa.array(_values(queue, messages, name, rows, now), schema.field(name).type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _values(queue: QuorumQueue, messages: Sequence[QuorumMessage], name: str, rows: list[Row | None] | None, now: int | None) -> list[Any]:
    log = queue.log
    spans = [log.source(message.row) if message.row >= 0 else (None, None) for message in messages] if name in _PLACES else []
    match name:
        case "vhost" | "queue":
            return [queue.name[name == "queue"]] * len(messages)
        case "queue_type":
            return ["quorum"] * len(messages)
        case "raft_index":
            return [message.index if message.index >= 0 else None for message in messages]
        case "expiry_us":
            return [None if message.expiry is None else message.expiry * 1000 for message in messages]
        case "expired":
            return [None if now is None else message.expiry is not None and message.expiry <= now for message in messages]
        case "redelivered":
            return [message.redelivered if message.recovered else None for message in messages]
        case "location":
            return [log.location(message.row) if message.row >= 0 else "snapshot" for message in messages]
        case "store_file":
            return [path for path, _ in spans]
        case "position":
            return [start for _, start in spans]
        case "persistent":
            return [None if row is None else row[0].persistent for row in rows or ()]
        case "verdict":
            return [_verdict(message, row) for message, row in zip(messages, rows or (), strict=True)]
        case "pos" | "size" | "recovered" | "delivery_count" | "acquired_count" | "state":
            return [getattr(message, name) for message in messages]
    return [None] * len(messages)


_PLACES = ("store_file", "position")


def _verdict(message: QuorumMessage, row: Row | None) -> str:
    if row is not None and row[1] is not None:
        return str(Verdict.INTACT)
    return str(Verdict.UNREACHABLE if message.row < 0 else Verdict.DAMAGED)
