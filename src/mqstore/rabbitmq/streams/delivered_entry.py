r"""What a consumer of AMQP 0-9-1 receives of a stream's record, which is an AMQP 1.0 message.

    00 53 70  header                    durable, priority, ttl in milliseconds
    00 53 72  message annotations       x-exchange, x-routing-key, x-cc; others become headers
    00 53 73  properties
    00 53 74  application properties    headers
    00 53 75  data, 76 sequence, 77 value: the body

Clients of the stream protocol send such bytes; the node makes them of messages that others publish, and loses headers that AMQP 1.0 has
no place for. Versions differ in what a message without a header section is: of delivery mode 2 in 4.0, of none since 4.3 (`RULES`).

    >>> octets = bytes.fromhex("005372c11c02a30d782d726f7574696e672d6b6579a10a6f72646572732e6e6577 005373c00401a10161 005375a00168")
    >>> read = read_entry(octets)
    >>> read.exchange, read.routing_keys(b"q"), read.body
    (b'', (b'orders.new',), b'h')
    >>> read.delivered(RULES["4.3"], offset=5)
    {'headers': [[b'x-stream-offset', 'long', 5]], 'message_id': b'a'}

Records need not be AMQP 1.0 for clients of the stream protocol; a consumer of AMQP 0-9-1 cannot receive such ones.

Format: docs/formats/rabbitmq-streams.md, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mqstore.rabbitmq.erlang.terms import Atom, Term
from mqstore.rabbitmq.message import amqp10
from mqstore.rabbitmq.message.message_term import delivered_properties, reply_queue
from mqstore.rabbitmq.message.properties import Properties, PropertiesError, properties_from_bin, properties_to_bin
from mqstore.table.columns import RABBITMQ_PROPERTIES

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = 0x70, 0x72, 0x73, 0x74
DATA, SEQUENCE, VALUE = 0x75, 0x76, 0x77
_BASIC = {b"x-basic-type": "type", b"x-basic-app-id": "app_id"}
_CREATION_TIME = amqp10.PROPERTY_FIELDS.index("creation_time")


class NotAMessageError(ValueError):
    """A record that is not an AMQP 1.0 message."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What differs between versions. durable: a message without a header section has delivery mode 2.

    queue_addresses: a reply-to that is the address of a queue becomes the queue's name. basic_application: type and app-id are among the
    application properties, where 3.13 and newer have annotations and a property.
    """

    durable: bool
    queue_addresses: bool
    basic_application: bool = False


RULES: Final = {"3.10": Rules(False, False, True), "4.0": Rules(True, False), "4.3": Rules(False, True)}


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A record, split. header, fields: values of the header and of the properties; application, annotations: pairs. body: as delivered.

    valued: the body is not data; what is delivered is its AMQP 1.0 encoding.
    """

    header: list[Term]
    fields: list[Term]
    application: list[Term]
    annotations: list[Term]
    body: bytes
    valued: bool

    def _annotated(self, key: bytes) -> Term:
        return next((value[1] for name, value in self.annotations if name[1] == key and type(value) is tuple), None)

    @property
    def exchange(self) -> bytes:
        """The exchange that it was published to; empty if it came by the stream protocol."""
        exchange = self._annotated(b"x-exchange")
        return exchange if type(exchange) is bytes else b""

    def routing_keys(self, queue: bytes) -> tuple[bytes, ...]:
        """Return the routing key, that of CC after it; the name of the queue if there is none."""
        key, copies = self._annotated(b"x-routing-key"), self._annotated(b"x-cc")
        others = [item[1] for item in copies if type(item) is tuple and type(item[1]) is bytes] if type(copies) is list else []
        return (key if type(key) is bytes else queue, *others)

    @property
    def durable(self) -> bool:
        """Whether it is persistent: unless its header says otherwise."""
        return not (self.header and self.header[0] == "false")

    def delivered(self, rules: Rules, offset: int) -> Properties:
        """Return the properties that a consumer of AMQP 0-9-1 receives. Raises PropertiesError."""
        noted: dict[str, Term] = {"x-stream-offset": offset}
        if not self.header and not rules.durable:
            noted["d"] = Atom("false")
        created = self.fields[_CREATION_TIME] if len(self.fields) > _CREATION_TIME else None
        if type(created) is tuple and created[0] == "timestamp":
            noted["ts"] = created[1]
        application, basic = self.application, {}
        if rules.basic_application:
            basic = {_BASIC[key[1]]: value[1] for key, value in application if key[1] in _BASIC}
            application = [pair for pair in application if pair[0][1] not in _BASIC]
        try:
            own = amqp10.basic_properties(self.header, self.fields, application, self.annotations, noted, valued=self.valued) | basic
            # drop what cannot be encoded as a property
            properties = properties_from_bin(
                properties_to_bin({name: own[name] for name in RABBITMQ_PROPERTIES if own.get(name) is not None})
            )
        except (amqp10.Amqp10Error, TypeError, IndexError, KeyError, AttributeError, ValueError) as error:
            raise PropertiesError(f"the properties of an AMQP 1.0 message cannot be read: {error}") from None
        if rules.queue_addresses and properties.get("reply_to") is not None:
            properties["reply_to"] = reply_queue(properties["reply_to"])
        return delivered_properties(properties, noted)


def read_entry(octets: bytes) -> StreamMessage:
    """Return a record, split. Raises NotAMessageError."""
    try:
        sections = amqp10.sections(octets)
        by_code = dict(sections)
        header, fields = (_listed(by_code.get(code)) for code in (HEADER, PROPERTIES))
        application, annotations = (_mapped(by_code.get(code)) for code in (APPLICATION_PROPERTIES, ANNOTATIONS))
        data = [content[1] for code, content in sections if code == DATA]
    except (amqp10.Amqp10Error, TypeError, IndexError, AttributeError) as error:
        raise NotAMessageError(f"it is not an AMQP 1.0 message: {error}") from None
    if not all(type(part) is bytes for part in data):
        raise NotAMessageError("it is not an AMQP 1.0 message: a data section is not binary")
    valued = SEQUENCE in by_code or VALUE in by_code
    if valued:
        start = _body_at(octets)
        return StreamMessage(header, fields, application, annotations, octets[start:], True)
    if not data:
        raise NotAMessageError("it is not an AMQP 1.0 message: it has no body")
    return StreamMessage(header, fields, application, annotations, b"".join(data), False)


def _listed(section: Term) -> list[Term]:
    if section is None:
        return []
    if section[0] != "list" or type(section[1]) is not list:
        raise NotAMessageError("it is not an AMQP 1.0 message: its header and properties are lists")
    return section[1]


def _mapped(section: Term) -> list[Term]:
    if section is None:
        return []
    if section[0] != "map" or not all(type(key) is tuple and type(key[1]) is bytes for key, _ in section[1]):
        raise NotAMessageError("it is not an AMQP 1.0 message: its annotations and application properties are maps of texts")
    return list(section[1])


def _body_at(octets: bytes) -> int:
    """Return where the first section of the body begins."""
    position = 0
    while octets[position + 2] not in (DATA, SEQUENCE, VALUE):
        _, position = amqp10.value(octets, position)
    return position
