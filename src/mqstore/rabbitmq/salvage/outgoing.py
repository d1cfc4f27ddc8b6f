"""Salvaged messages as they are sent again: to their queue, or to their original exchange.

Properties are sent as the broker would deliver them, except for two that a broker acts on: `user_id`, if it is not the user of the
connection, because a broker rejects such a message; and the headers CC and BCC of a message sent to its own queue, because they would
publish it to other queues that have their own copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mqstore.findings import Verdict
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format.layout import mapped_bytes
from mqstore.rabbitmq.message.message_term import MessageTerm, PropertiesError, read_message
from mqstore.rabbitmq.message.properties import properties_to_bin
from mqstore.rabbitmq.salvage.amqp_sender import OutgoingMessage
from mqstore.rabbitmq.store import message_table
from mqstore.rabbitmq.store.fate import TRANSIENT
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import QueueSelection

UNREADABLE = "the bytes are not a message"
UNWRITABLE = "the properties cannot be read"
_REASONS = {
    str(Verdict.DAMAGED): "damaged: not all bytes can be trusted; --verdict damaged sends what can be read",
    str(Verdict.UNREACHABLE): "unreachable: no file has the message",
}
_NOT_MISSED = frozenset(map(str, (Verdict.CONSUMED, Verdict.UNINDEXED, Verdict.DUPLICATE)))
_COPIES = (b"CC", b"BCC", "CC", "BCC")


def outgoing_messages(
    store: RabbitMQStore,
    verdicts: frozenset[str],
    *,
    vhosts: frozenset[str] | None = None,
    queues: frozenset[str] | None = None,
    by_exchange: bool = False,
    user: str = "guest",
    into: str | None = None,
    skipped: Counter[str] | None = None,
) -> Iterator[OutgoingMessage]:
    """Yield the messages of these verdicts, in the order of the message table. by_exchange: send to the exchange instead of the queue.

    into: the queue for messages that are in none; by default these go to their exchange. skipped: counts live messages that are not sent,
    by reason; acknowledged messages, those of no queue and further copies are not among them.
    """
    left = Counter[str]() if skipped is None else skipped
    for rows in store.rows(QueueSelection(vhosts=vhosts, queues=queues, everything=True)):
        found = message_table.verdicts(rows, message_table.decode_terms(rows, lambda name: mapped_bytes(store.directory, name)))
        for row, verdict in enumerate(found):
            if verdict not in verdicts:
                # what a broker drops at every start is not missed
                if verdict not in _NOT_MISSED and rows.table.fate[row] != TRANSIENT:
                    left[_REASONS.get(verdict, f"{verdict}: not among the verdicts to send")] += 1
                continue
            try:
                message = _message_of(store, rows, row, by_exchange=by_exchange, user=user, into=into)
            except PropertiesError:
                left[UNWRITABLE] += 1
                continue
            if message is None:
                left[UNREADABLE] += 1
            else:
                yield message


def outgoing_message(
    store: RabbitMQStore, rows: MessageRows, row: int, *, by_exchange: bool = False, user: str = "guest", into: str | None = None
) -> OutgoingMessage | None:
    """Return one row of the message table as it is sent again, None if its message is unreadable.

    Other arguments are those of `outgoing_messages`.
    """
    try:
        return _message_of(store, rows, row, by_exchange=by_exchange, user=user, into=into)
    except PropertiesError:
        return None


def _message_of(
    store: RabbitMQStore, rows: MessageRows, row: int, *, by_exchange: bool, user: str, into: str | None
) -> OutgoingMessage | None:
    """Return the same. Raises PropertiesError."""
    source = int(rows.table.source[row])
    name, data = rows.table.sources[source] if source >= 0 else ("", None)
    data = mapped_bytes(store.directory, name) if data is None and name else data
    at, length = int(rows.table.at[row]), int(rows.table.length[row])
    try:
        message = read_message(data[at : at + length].tobytes()) if data is not None else None
    except EtfError:
        return None
    if message is None:
        return None
    queue = rows.queue if rows.indexed else into
    return _outgoing(message, None if by_exchange else queue, user, rows.table.queue_addresses)


def _outgoing(message: MessageTerm, queue: str | None, user: str, queue_addresses: bool) -> OutgoingMessage:
    block = _property_block(message, user, queue_addresses, to_queue=queue is not None)
    if queue is not None:
        return OutgoingMessage("", queue, block, message.body)
    key = message.routing_keys[0] if message.routing_keys else b""
    return OutgoingMessage(message.exchange.decode("utf-8", "replace"), key.decode("utf-8", "replace"), block, message.body)


def _property_block(message: MessageTerm, user: str, queue_addresses: bool, *, to_queue: bool) -> bytes:
    properties = dict(message.delivered(queue_addresses))
    sender, headers = properties.get("user_id"), properties.get("headers")
    foreign = sender is not None and sender not in (user, user.encode())
    copied = to_queue and isinstance(headers, list) and any(field[0] in _COPIES for field in headers)
    if message.form == "basic_message" and message.properties_bin is not None and not foreign and not copied:
        return message.properties_bin
    if foreign:
        del properties["user_id"]
    if copied and isinstance(headers, list):
        properties["headers"] = [field for field in headers if field[0] not in _COPIES]
    return properties_to_bin(properties)
