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
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqstore.findings import Kind, Verdict
from mqstore.kernels.rabbitmq import message_terms
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.erlang.terms import Atom, Pairs, Term
from mqstore.rabbitmq.message import stored_columns
from mqstore.rabbitmq.message.message_term import MessageTerm, delivered_properties, message_from
from mqstore.rabbitmq.message.properties import Properties, PropertiesError, json_or_none
from mqstore.rabbitmq.message.stored_columns import TERM_COLUMNS, DecodedMessage, StoredTerms, encodable
from mqstore.rabbitmq.quorum.facts import delivered_indexes
from mqstore.rabbitmq.quorum.machine import CONFIRMED, CONSUMED, EXPIRED, LIMIT, MAXLEN, PURGED, REJECTED
from mqstore.rabbitmq.quorum.queue import QueueState, QuorumMessage, QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import MemberLog
from mqstore.table.columns import QUORUM, RABBITMQ_COLUMNS, RABBITMQ_PROPERTIES, QueueSelection

if TYPE_CHECKING:
    import pyarrow as pa

_OF_TERMS = TERM_COLUMNS | {"verdict", "persistent"}
# machines of 4.3 and newer deliver the name of a queue for its AMQP 1.0 address as a reply-to
_ADDRESSES_FROM = 8
BLOCK = 2048
_HEADERS = message_terms.PROPERTY_START + 2 * RABBITMQ_PROPERTIES.index("headers")  # where the kernel has the start of their table
# what `queue` lists of each message of a queue
LOG_COLUMNS = (
    "raft_index",
    "state",
    "pos",
    "recovered",
    "size",
    "delivery_count",
    "acquired_count",
    "redelivered",
    "expiry_us",
    "verdict",
    "location",
    "store_file",
    "position",
)
# what became of a message, for a person
LEFT = {
    CONSUMED: "acknowledged",
    REJECTED: "rejected",
    EXPIRED: "expired",
    MAXLEN: "dropped by the length limit",
    LIMIT: "dropped by the delivery limit",
    PURGED: "purged",
    CONFIRMED: "dead-lettered",
}

NOT_KNOWN = "not known"  # the state of a message that the parts left do not decide: in the queue or gone


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
        properties = stored.delivered(addresses)
        if noted:
            properties["headers"] = delivered_properties({"headers": properties.get("headers")}, noted)["headers"]
        return properties
    if not noted:
        return stored.delivered(addresses)
    own = stored.annotations or {}
    pairs = list(own.items()) if isinstance(own, dict) else list(own)
    replaced = {name.encode() for name in noted}
    pairs = [(name, value) for name, value in pairs if isinstance(name, Atom) or name not in replaced]
    annotations = Pairs((*pairs, *((name.encode(), value) for name, value in noted.items())))
    return replace(stored, annotations=annotations).delivered(addresses)


def _decoded(queue: QuorumQueue, message: QuorumMessage) -> DecodedMessage | None:
    stored = read_stored(queue, message)
    return None if stored is None else (stored, json_or_none(partial(delivered, message, stored)))


@dataclass(frozen=True, slots=True)
class QuorumRows:
    """Messages of one queue, before their entries are read. now: microseconds since 1970, the time at which expiry is judged, or None.

    first: number of the first of them in the queue.
    """

    queue: QuorumQueue
    messages: Sequence[QuorumMessage]
    now: int | None = None
    first: int = 0

    def __len__(self) -> int:
        return len(self.messages)

    def take(self, rows: NDArray[np.intp]) -> QuorumRows:
        """Return the rows with these numbers."""
        return replace(self, messages=[self.messages[row] for row in rows.tolist()])

    def stored(self) -> Iterator[tuple[str, MessageTerm | None, Properties | None]]:
        """Yield for each message its verdict, what is stored, and the properties to send it with, or None for what cannot be read.

        The properties do not count deliveries.
        """
        for message in self.messages:
            row = _decoded(self.queue, message)
            properties = None
            if row is not None:
                with suppress(PropertiesError):
                    properties = delivered(replace(message, delivery_count=None, acquired_count=None), row[0])
            yield _verdict(self.queue, message, row), None if row is None else row[0], properties

    def batch(self, columns: Sequence[str], selection: QueueSelection) -> pa.RecordBatch | None:
        """Return the rows as a batch, filtered by the conditions on message contents; None if no row is left."""
        rows = self
        if selection.grep is not None or selection.verdicts is not None:
            searched = build_batch(self.queue, self.messages, ("payload", "verdict"))
            keep = [selection.has_message(*row) for row in zip(*(column.to_pylist() for column in searched.columns), strict=True)]
            rows = self.take(np.flatnonzero(keep))
        now = None if self.now is None else self.now // 1000
        return build_batch(rows.queue, rows.messages, columns, now=now) if len(rows) else None


def rows_of(queue: QuorumQueue, selection: QueueSelection, now: int | None, state: QueueState | None = None) -> Iterator[QuorumRows]:
    """Yield the rows of a queue in its order: what a restarted node delivers, then the rest; with `everything` what has left it, too.

    state: of the queue, if it was replayed.
    """
    state = queue.replay() if state is None else state
    scattered = queue.log.system.scattered
    # parts do not say what a node delivers; and without the entries before, not even which message an acknowledgement is of
    reached = frozenset[int]() if scattered else delivered_indexes(queue, state)
    proved = not (scattered and queue.log.gaps)
    messages = [message if message.index in reached else replace(message, pos=None) for message in state.messages if proved]
    if selection.everything and selection.recovered is not True:
        messages += departed(queue, state) if proved else []
        if scattered or any(item.kind is Kind.MISSING_ENTRIES for item in state.damage):
            messages += _unplaced(queue, state, {message.index for message in messages})
    if selection.recovered is not None:
        messages = [message for message in messages if message.recovered == selection.recovered]
    for start in range(0, len(messages), BLOCK):
        yield QuorumRows(queue, messages[start : start + BLOCK], now, start)


def log_rows(queue: QuorumQueue, state: QueueState, start: int | None, stop: int | None) -> Iterator[dict[str, Any]]:
    """Yield LOG_COLUMNS of every message in the log: those in the queue in its order, then those that have left it.

    start, stop: only entries with these indexes, the last excluded; None: no bound.
    """
    for rows in rows_of(queue, QueueSelection(everything=True), None, state):
        index = np.array([message.index for message in rows.messages], np.int64)
        keep = (index >= (-1 if start is None else start)) & (index < (np.iinfo(np.int64).max if stop is None else stop))
        yield from build_batch(queue, rows.take(np.flatnonzero(keep)).messages, LOG_COLUMNS).to_pylist()


def departed(queue: QuorumQueue, state: QueueState) -> list[QuorumMessage]:
    """Return the messages that have left the queue and whose entries are still in its log; `state` says why, and with which entry."""
    here = {message.index for message in state.messages}
    gone = [each for each in queue.departures if each.index not in here]
    return [
        QuorumMessage(
            each.index, None, f"{LEFT.get(each.why, each.why)} at index {each.at}", -1, None, None, None, False, None, each.why,
            queue.log.row(each.index), True, None, state.version, left=True,
        )
        for each in gone
    ]  # fmt: skip


def _unplaced(queue: QuorumQueue, state: QueueState, listed: set[int]) -> Iterator[QuorumMessage]:
    """Yield the messages of a log, of which parts are missing or damaged, whose fate is not known."""
    for row in range(int(np.searchsorted(queue.log.index, queue.log.first_replayed)), len(queue.log)):
        index = int(queue.log.index[row])
        message = QuorumMessage(index, None, NOT_KNOWN, -1, None, None, None, False, None, None, row, False, None, state.version)
        if index not in listed and read_stored(queue, message) is not None:
            yield message


def build_batch(
    queue: QuorumQueue, messages: Sequence[QuorumMessage], columns: Sequence[str] = RABBITMQ_COLUMNS, *, now: int | None = None
) -> pa.RecordBatch:
    """Return messages as one batch. Entries are read only if a column needs the stored message."""
    rows = [] if _OF_TERMS.isdisjoint(columns) else [_decoded(queue, message) for message in messages]
    terms = StoredTerms.decoded(rows) if rows else None
    return stored_columns.build_batch(columns, terms, lambda name: _values(queue, messages, name, rows, now))


def count_unread(queue: QuorumQueue, messages: Sequence[QuorumMessage]) -> int:
    """Return how many messages have another verdict than `intact`. What a kernel proves readable is not decoded."""
    if queue.log.system.scattered:
        return len(messages)
    rows = [-1 if message.left or message.annotations or message.state == NOT_KNOWN else message.row for message in messages]
    others = [messages[number] for number in np.flatnonzero(~_proved(queue.log, np.array(rows, np.int64))).tolist()]
    unread = 0
    for start in range(0, len(others), BLOCK):
        verdicts = build_batch(queue, others[start : start + BLOCK], ("verdict",)).column(0).to_pylist()
        unread += sum(verdict != Verdict.INTACT for verdict in verdicts)
    return unread


def _proved(log: MemberLog, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each row of a log, or -1, whether a kernel knows that its message and its properties can be read."""
    proved = np.zeros(len(rows), np.bool_)
    valid = np.flatnonzero(rows >= 0)
    valid = valid[log.valid[rows[valid]]]
    for data, some, at, length in log.spans(rows[valid]):
        fields = np.zeros((len(some), message_terms.FIELD_COUNT), np.int64)
        blocks = np.zeros((len(some), message_terms.PROPERTY_COLUMNS), np.int64)
        tables = np.zeros(len(some), np.uint8)
        message_terms.logged_fields(data, at, length, fields)
        message_terms.properties(data, fields[:, message_terms.PROPERTIES_START], fields[:, message_terms.PROPERTIES_LENGTH], blocks)
        message_terms.tables(data, blocks[:, _HEADERS], blocks[:, _HEADERS + 1], tables)
        fast = (fields[:, message_terms.STATUS] == message_terms.FAST) & (blocks[:, message_terms.STATUS] == message_terms.FAST)
        proved[valid[some]] = fast & (tables != 0)
    return proved


def _values(
    queue: QuorumQueue, messages: Sequence[QuorumMessage], name: str, rows: list[DecodedMessage | None], now: int | None
) -> list[Any]:
    log = queue.log
    spans = [log.source(message.row) if message.row >= 0 else (None, None) for message in messages] if name in _PLACES else []
    match name:
        case "vhost" | "queue":
            return [encodable(queue.name[name == "queue"])] * len(messages)
        case "queue_type":
            return [QUORUM] * len(messages)
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
            return [encodable(path) for path, _ in spans]
        case "position":
            return [start for _, start in spans]
        case "persistent":
            return [None if row is None else row[0].persistent for row in rows]
        case "verdict":
            return [_verdict(queue, message, row) for message, row in zip(messages, rows, strict=True)]
        case "size":
            return [None if message.size < 0 else message.size for message in messages]
        case "recovered":
            unsure = log.system.scattered
            return [None if (unsure or message.state == NOT_KNOWN) and not message.left else message.recovered for message in messages]
        case "pos" | "delivery_count" | "acquired_count" | "state":
            return [getattr(message, name) for message in messages]
    return [None] * len(messages)


_PLACES = ("store_file", "position")


def _verdict(queue: QuorumQueue, message: QuorumMessage, row: DecodedMessage | None) -> str:
    if row is not None and row[1] is not None:
        # its acknowledgement may be in a part that is not there
        unsure = queue.log.system.scattered or message.state == NOT_KNOWN
        there = Verdict.UNINDEXED if unsure else Verdict.INTACT
        return str(Verdict.CONSUMED if message.left else there)
    return str(Verdict.UNREACHABLE if message.row < 0 else Verdict.DAMAGED)
