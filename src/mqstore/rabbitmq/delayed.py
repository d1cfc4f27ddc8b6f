"""Messages that the plug-in rabbitmq_delayed_message_exchange holds until they are due: in no queue, and in no message store.

They are in a table of Mnesia, also of a node that has its other metadata in Khepri. The name of the table ends in that of the node; a node
of another name neither reads nor delivers what is in it.

    rabbit_delayed_messageNODE          a bag of {delay_entry, {delay_key, Due, Exchange}, Delivery, Ref}
    rabbit_delayed_messageNODE_index    the keys again
    Due                                 milliseconds since 1970
    Exchange                            {exchange, {resource, VHost, exchange, Name}, 'x-delayed-message', …}
    Delivery                            {delivery, Mandatory, Confirm, Sender, Message, SeqNo, Flow} up to 3.12, then the message itself

The tables are replayed as those of definitions are (`definitions.metadata`): on a node that was killed, all may be in LATEST.LOG.

Format: docs/formats/rabbitmq.md, section 11.4.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind, Verdict
from mqstore.rabbitmq.definitions.metadata import replay, table_files
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.erlang.terms import Atom, Term, text_of
from mqstore.rabbitmq.format.layout import node_name
from mqstore.rabbitmq.message.message_term import MessageTerm, message_from
from mqstore.rabbitmq.message.properties import json_or_none
from mqstore.table.formatting import count
from mqstore.table.text import body_text

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.store import RabbitMQStore

PLUGIN = "rabbitmq_delayed_message_exchange"
WAITING = "waiting"
DELAYED_NAMES = (
    "due_time",
    "vhost",
    "exchange",
    "routing_keys",
    "persistent",
    "properties",
    "payload_len",
    "payload_sha256",
    "payload_b64",
    "state",
    "verdict",
    "node",
    "store_file",
)
_TABLE = "rabbit_delayed_message"
_INDEX = "_index"


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """One message. due: milliseconds since 1970; stored: the message, None if what is stored is not one; raw: bytes in its place."""

    due: int
    vhost: str
    exchange: str
    stored: MessageTerm | None
    raw: bytes | None
    node: str
    file: str

    @property
    def payload(self) -> bytes | None:
        return self.raw if self.stored is None else self.stored.body

    def row(self) -> dict[str, Any]:
        """Return the row that `timers` prints: DELAYED_NAMES."""
        properties, payload = None if self.stored is None else json_or_none(self.stored.delivered), self.payload
        intact = self.stored is not None and properties is not None
        return {
            "due_time": self.due,
            "vhost": self.vhost,
            "exchange": self.exchange,
            "routing_keys": self.routing_keys,
            "persistent": None if self.stored is None else self.stored.persistent,
            "properties": properties,
            "payload_len": None if payload is None else len(payload),
            "payload_sha256": None if payload is None else hashlib.sha256(payload).hexdigest(),
            "payload_b64": None if payload is None else base64.b64encode(payload).decode("ascii"),
            "state": WAITING,
            "verdict": str(Verdict.INTACT if intact else Verdict.DAMAGED),
            "node": self.node,
            "store_file": self.file,
        }

    @property
    def routing_keys(self) -> list[str] | None:
        return None if self.stored is None else [text_of(key) for key in self.stored.routing_keys]

    def found_row(self, columns: tuple[str, ...], body: str) -> dict[str, Any]:
        """Return the row of the message table, all of its columns that do not apply null. body: none, sha256, base64 or text."""
        own = self.row() | {"location": "delayed", "position": 0, "payload": None}
        if body == "text":
            own["payload"] = body_text(self.payload)
        return {name: own.get(name) for name in columns}


@dataclass(frozen=True, slots=True)
class DelayedTable:
    """The table of one node. file: the first of its files; messages: by when they are due; damage: what could not be read."""

    node: str
    file: str
    messages: tuple[DelayedMessage, ...]
    damage: tuple[Damage, ...]


def delayed_tables(node: ReadOnlyDirectory) -> list[DelayedTable]:
    """Return the tables in a node's data directory, by the name of their node."""
    names = {entry.name.rpartition(".")[0] for entry in node.entries() if entry.name.startswith(_TABLE)}
    return [_read(node, name) for name in sorted(names) if name and not name.endswith(_INDEX)]


def _read(node: ReadOnlyDirectory, table: str) -> DelayedTable:
    files, damage = table_files(node, [table])
    tables = replay(files, [table], bags=True)
    file = next((name for name in files if name.startswith(table)), f"{table}.DCD")
    owner = table.removeprefix(_TABLE)
    messages = [message for record in tables.records[table] if (message := _message(record, owner, file)) is not None]
    lost = len(tables.records[table]) - len(messages)
    damage += [item for item in tables.damage if item.file in files]
    if lost:
        damage.append(
            Damage(file, 0, 0, Kind.BAD_SIDE_FILE, f"{count(lost, 'record')} of the table cannot be read as delayed messages", lost)
        )
    return DelayedTable(owner, file, tuple(sorted(messages, key=lambda each: (each.due, each.vhost, each.exchange))), tuple(damage))


def _message(record: tuple[Term, ...], node: str, file: str) -> DelayedMessage | None:
    """Return the message of a record {delay_entry, {delay_key, Due, Exchange}, Delivery, Ref}; None for another one."""
    if len(record) != 4 or record[0] != "delay_entry" or not isinstance(record[1], tuple) or len(record[1]) != 3:
        return None
    _, due, exchange = record[1]
    name = exchange[1] if isinstance(exchange, tuple) and len(exchange) > 2 and exchange[0] == "exchange" else exchange
    if type(due) is not int or not isinstance(name, tuple) or len(name) != 4 or name[0] != "resource" or not isinstance(name[2], Atom):
        return None
    vhost, own = name[1], name[3]
    if type(vhost) is not bytes or type(own) is not bytes:
        return None
    delivery = record[2]
    stored = delivery[4] if isinstance(delivery, tuple) and len(delivery) > 4 and delivery[0] == "delivery" else delivery
    try:
        message, raw = message_from(stored, with_id=False), None
    except EtfError:
        message, raw = None, stored if type(stored) is bytes else None
    return DelayedMessage(due, text_of(vhost), text_of(own), message, raw, node, file)


def delayed_of(store: RabbitMQStore) -> list[DelayedTable]:
    """Return the tables of the node whose messages a store has; none without its data directory."""
    node = store.node
    try:
        return [] if node is None else delayed_tables(node)
    except CannotOpenError:
        return []


def delayed_sentences(store: RabbitMQStore) -> Iterator[str]:
    """Yield what a diagnosis says of them."""
    own = node_name(store.directory.root)
    for table in delayed_of(store):
        if table.messages:
            yield (
                f"{_TABLE}{table.node}: {count(len(table.messages), 'delayed message')} outside the message stores (`mqstore timers` lists "
                f"them); node {table.node} delivers them when they are due, and only with the plug-in {PLUGIN}"
                f"{'' if table.node == own or '@' not in own else f'; the directory is that of node {own}, which does not read this table'}"
            )
        for item in table.damage:
            yield f"delayed messages of {table.node}, as far as they can be read: {item.file}: {item.detail}"
