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

from mqstore.files import Bytes
from mqstore.findings import Kind, Verdict
from mqstore.kernels.rabbitmq import message_terms
from mqstore.rabbitmq.erlang.etf import EtfError, decode
from mqstore.rabbitmq.erlang.terms import Atom, Pairs, Term
from mqstore.rabbitmq.message import stored_columns
from mqstore.rabbitmq.message.message_term import PROTOCOL, Form, MessageTerm, delivered_properties, message_from
from mqstore.rabbitmq.message.properties import Properties, PropertiesError, json_or_none
from mqstore.rabbitmq.message.stored_columns import TERM_COLUMNS, DecodedMessage, SlowMessage, StoredTerms, encodable
from mqstore.rabbitmq.quorum.facts import delivered_indexes
from mqstore.rabbitmq.quorum.machine import CONFIRMED, CONSUMED, EXPIRED, LIMIT, MAXLEN, PURGED, REJECTED
from mqstore.rabbitmq.quorum.queue import QueueState, QuorumMessage, QuorumQueue
from mqstore.table.arrow_spans import pieces
from mqstore.table.columns import QUORUM, RABBITMQ_COLUMNS, QueueSelection

if TYPE_CHECKING:
    import pyarrow as pa

_OF_TERMS = TERM_COLUMNS | {"verdict", "persistent"}
# machines of 4.3 and newer deliver the name of a queue for its AMQP 1.0 address as a reply-to
_ADDRESSES_FROM = 8
BLOCK = 2048
BLOCK_BYTES = 32 << 20  # of entries that are read together, or one entry
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
        headers = delivered_properties({"headers": properties.get("headers")}, noted).get("headers") if noted else None
        return properties if headers is None else {**properties, "headers": headers}
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
            yield _verdict(self.queue, message, row is not None and row[1] is not None), None if row is None else row[0], properties

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
    first = 0
    for part in _parts(queue, messages):
        yield QuorumRows(queue, part, now, first)
        first += len(part)


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
    terms = None if _OF_TERMS.isdisjoint(columns) else LoggedTerms.of(queue, messages)
    return stored_columns.build_batch(columns, terms, lambda name: _values(queue, messages, name, terms, now))


def count_unread(queue: QuorumQueue, messages: Sequence[QuorumMessage]) -> int:
    """Return how many messages have another verdict than `intact`. What a kernel proves readable is not decoded."""
    intact = 0
    for part in _parts(queue, messages):
        verdicts = [_verdict(queue, *each) for each in zip(part, LoggedTerms.of(queue, part).readable.tolist(), strict=True)]
        intact += verdicts.count(Verdict.INTACT)
    return len(messages) - intact


def _parts(queue: QuorumQueue, messages: Sequence[QuorumMessage]) -> Iterator[Sequence[QuorumMessage]]:
    """Yield the messages in order, as many at once as are read together."""
    row = np.array([message.row for message in messages], np.int64)
    length = np.where(row >= 0, queue.log.lengths[row], 0) if len(queue.log) else row
    for start, stop in pieces(length, BLOCK_BYTES, BLOCK):
        yield messages[start:stop]


class LoggedTerms(StoredTerms):
    """The stored messages of a queue, as they are delivered. What the kernel does not split is decoded from its entry."""

    _split = staticmethod(message_terms.logged_fields)
    queue: QuorumQueue
    messages: Sequence[QuorumMessage]

    @classmethod
    def of(cls, queue: QuorumQueue, messages: Sequence[QuorumMessage]) -> LoggedTerms:
        """Read the entries of messages; one that is not there, or is damaged, has no term."""
        rows = np.array([message.row for message in messages], np.int64)
        source = np.full(len(rows), -1, np.int32)
        at, length = np.zeros((2, len(rows)), np.int64)
        there = np.flatnonzero(rows >= 0)
        there = there[queue.log.valid[rows[there]]]
        sources: list[Bytes | None] = []
        for data, some, position, size in queue.log.spans(rows[there]):
            source[there[some]], at[there[some]], length[there[some]] = len(sources), position, size
            sources.append(data)
        terms = cls.collect(sources, source, at, length)
        terms.queue, terms.messages = queue, messages
        terms._fields[:, message_terms.NOTED] |= np.array([_noted(message) for message in messages], np.int64)
        return terms

    def _decode(self, row: int) -> SlowMessage:
        return SlowMessage(*(_decoded(self.queue, self.messages[row]) or (None, None)))

    def _read_block(self, row: int) -> dict[str, Any] | None:
        start, end, noted, persistent = self._fields[row, _ANNOTATED].tolist()
        annotations: Term = None
        if start:  # those that decide nothing are not read
            annotations = decode(b"\x83" + self._bytes(start, end - start))[0] if noted else {} if persistent else _TRANSIENT
        form: Form = "mc_amqpl" if start else "basic_message"
        stored = MessageTerm(b"", None, b"", (), True, (), self._block(row), None, PROTOCOL, form, None, annotations)
        return json_or_none(partial(delivered, self.messages[row], stored))


_ANNOTATED = [message_terms.ANNOTATIONS_START, message_terms.END, message_terms.NOTED, message_terms.PERSISTENT]
_TRANSIENT: dict[Term, Term] = {Atom("d"): Atom("false")}


def _noted(message: QuorumMessage) -> int:
    """Return what the queue itself notes of a message, as the kernel does for what is noted in its entry."""
    if message.annotations is not None:
        return message_terms.DECIDES | message_terms.UNPROVED
    counted = message.delivery_count is not None or message.acquired_count is not None
    return message_terms.DECIDES if counted and counts(message) else 0


def _values(queue: QuorumQueue, messages: Sequence[QuorumMessage], name: str, terms: StoredTerms | None, now: int | None) -> list[Any]:
    log = queue.log
    spans = [log.source(message.row) if message.row >= 0 else (None, None) for message in messages] if name in _PLACES else []
    match name:
        case "persistent" if terms is not None:
            return terms.persistent
        case "verdict" if terms is not None:
            return [_verdict(queue, *each) for each in zip(messages, terms.readable.tolist(), strict=True)]
        case "vhost" | "queue":
            return [encodable(queue.name[name == "queue"])] * len(messages)
        case "queue_type":
            return [QUORUM] * len(messages)
        case "raft_index":
            return [message.index if message.index >= 0 else None for message in messages]
        case "expiry_us":
            return [None if message.expiry is None else min(message.expiry * 1000, _MOST) for message in messages]
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
        case "size":
            return [None if message.size < 0 else min(message.size, _MOST) for message in messages]
        case "recovered":
            unsure = log.system.scattered
            return [None if (unsure or message.state == NOT_KNOWN) and not message.left else message.recovered for message in messages]
        case "pos" | "delivery_count" | "acquired_count" | "state":
            return [getattr(message, name) for message in messages]
    return [None] * len(messages)


_PLACES = ("store_file", "position")
_MOST = np.iinfo(np.int64).max  # for a number that no column holds


def _verdict(queue: QuorumQueue, message: QuorumMessage, readable: bool) -> str:
    if readable:
        # its acknowledgement may be in a part that is not there
        unsure = queue.log.system.scattered or message.state == NOT_KNOWN
        there = Verdict.UNINDEXED if unsure else Verdict.INTACT
        return str(Verdict.CONSUMED if message.left else there)
    return str(Verdict.UNREACHABLE if message.row < 0 else Verdict.DAMAGED)
