r"""The message term: embedded in index entries, and stored by id in the message store and in `.qs` files.

Up to 3.12 a message is

    {basic_message, {resource, VHost, exchange, Exchange}, RoutingKeys, Content, Id, IsPersistent}
    Content = {content, 60, none, PropertiesBin, Protocol, PayloadRev}                        as the client sent it
            | {content, 60, {'P_basic', …}, none, none, PayloadRev}                           changed or made by the broker

RoutingKeys: the routing key, then the keys of the headers CC and BCC. PayloadRev: the body's frames, the last one first. Id has 16 bytes,
the same as before the term in the store: the two copies are the strongest check of a record.

Since 3.13 it may be {mc, Protocol, Data, Annotations}; the annotations (a map) have the id, `x` the exchange, `rk` the routing keys and
`d` = false if the message is not durable. Protocol determines Data:

    mc_amqpl  a content tuple as above
    mc_amqp   AMQP 1.0, either decoded sections (3.13) or the bytes of the bare message (4.x)
    mc_mqtt   {mqtt_msg, Retain, Qos, Topic, Dup, PacketId, Payload, Properties, Timestamp}

    >>> term = write_message(MessageTerm(bytes(16), b"/", b"", (b"q",), True, (b"hello",), b"\x10\x00\x02"))
    >>> term[:38]
    b'\x83h\x06d\x00\rbasic_messageh\x04d\x00\x08resourcem\x00\x00\x00\x01/'
    >>> message = read_message(term)
    >>> message.routing_keys, message.properties, message.body
    ((b'q',), {'delivery_mode': 2}, b'hello')

Terms of messages as clients sent them are written byte for byte as 3.10.8 on OTP 25 does. Terms from before 3.0 are not read.

A `MessageTemplate` is what messages published alike have in common: the stored term without id and body, and the parsed properties.

    >>> made = MessageTemplate(b"/", b"", (b"q",), PERSISTENT)
    >>> term = MessageTerm(b"0123456789abcdef", b"/", b"", (b"q",), True, (b"hello",), PERSISTENT)
    >>> made.term(b"0123456789abcdef", b"hello") == write_message(term), made.persistent
    (True, True)

Format: docs/formats/rabbitmq.md, section 10.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from mqstore.errors import UsageError
from mqstore.rabbitmq.erlang.etf import LIMITS, Buffer, EtfError, Limits, decode
from mqstore.rabbitmq.erlang.terms import Atom, Pairs, Term, encode
from mqstore.rabbitmq.message import amqp10
from mqstore.rabbitmq.message.properties import (
    Properties,
    PropertiesError,
    json_properties,
    properties_from_bin,
    properties_from_record,
    properties_to_bin,
)
from mqstore.table.columns import RABBITMQ_PROPERTIES

Form = Literal["basic_message", "mc_amqpl", "mc_amqp", "mc_mqtt"]

CLASS_BASIC = 60
ID_SIZE = 16
PROTOCOL = Atom("rabbit_framing_amqp_0_9_1")
PERSISTENT = b"\x10\x00\x02"  # a property block with delivery_mode 2 and nothing else
FRAME = 131064  # bytes of a body in one frame, with the frame_max of the broker
_ID = b"\x6d\x00\x00\x00\x10"


class NotAMessageError(EtfError):
    """A term that is not a message."""


@dataclass(frozen=True, slots=True)
class MessageTerm:
    """One stored message.

    id: 16 bytes. vhost: None in mc forms, which do not name it. routing_keys: the key, then CC and BCC. persistent: delivery mode 2,
    independent of the queue. fragments: the frames of the body in order. properties_bin: the property block as sent; None if
    decoded is the P_basic record. data, annotations: of mc forms, as stored.
    """

    id: bytes
    vhost: bytes | None
    exchange: bytes
    routing_keys: tuple[bytes, ...]
    persistent: bool
    fragments: tuple[bytes, ...]
    properties_bin: bytes | None
    decoded: tuple[Term, ...] | None = field(default=None, hash=False)
    protocol: Atom = PROTOCOL
    form: Form = "basic_message"
    data: Term = field(default=None, hash=False)
    annotations: dict[Term, Term] | Pairs | None = field(default=None, hash=False)

    @property
    def body(self) -> bytes:
        return self.fragments[0] if len(self.fragments) == 1 else b"".join(self.fragments)

    @property
    def stated_size(self) -> int | None:
        """The size that an index entry of this message has; None if it is not known.

        It is the size of the body, except for AMQP 1.0: in 4.x all sections as stored, in 3.13 an estimate.
        """
        if self.form == "mc_amqp":
            return amqp10.stored_size(self.data)
        return sum(map(len, self.fragments))

    @property
    def properties(self) -> Properties:
        """The AMQP properties that are set, decoded on every access. Raises PropertiesError; the rest of the message may be valid."""
        return self.delivered()

    def delivered(self, queue_addresses: bool = False) -> Properties:
        """Return the properties that a consumer of AMQP 0-9-1 receives. Raises PropertiesError.

        queue_addresses: a reply-to of AMQP 1.0 that is the address of a queue becomes the name of the queue, as in 4.2 and newer.
        """
        if self.properties_bin is not None:
            properties = properties_from_bin(self.properties_bin)
        elif self.decoded is not None:
            properties = properties_from_record(self.decoded)
        elif self.form == "mc_amqp":
            properties = amqp10.properties(self.data, _annotations_by_name(self.annotations or {}))
            reply_to = properties.get("reply_to")
            if queue_addresses and reply_to is not None:
                properties["reply_to"] = reply_queue(reply_to)
        else:
            properties = mqtt_properties(self.data) if self.form == "mc_mqtt" else {}
        if self.form == "basic_message":
            return properties
        return delivered_properties(properties, _annotations_by_name(self.annotations or {}))

    def json_properties(self) -> dict[str, object]:
        """Return the properties in the JSON form of the message table."""
        return json_properties(self.properties)


def read_message(buf: Buffer, pos: int = 0, limits: Limits = LIMITS) -> MessageTerm:
    """Return the message whose term begins at pos; bytes after it are ignored. Raises EtfError or its subclass NotAMessageError."""
    return message_from(decode(buf, pos, limits)[0], pos)


def message_from(term: Term, pos: int = 0, *, with_id: bool = True) -> MessageTerm:
    """Return the message that a decoded term is. with_id: messages in the log of a quorum queue have none; theirs is empty.

    Raises NotAMessageError.
    """
    if type(term) is tuple and term:
        if term[0] == "basic_message" and len(term) == 6:
            return _read_basic_message(term, pos, with_id)
        if term[0] == "mc" and len(term) == 4:
            return _read_container(term, pos, with_id)
    raise NotAMessageError(pos, f"a message is a term {{basic_message, …}} or {{mc, …}}, not {_describe(term)}")


def _describe(term: Term) -> str:
    """Return a short description of a term that may be huge."""
    if type(term) is tuple and term and isinstance(term[0], Atom):
        return f"a tuple {{{term[0]!s:.60}, …}} of {len(term)}"
    return f"a term of kind {type(term).__name__}"


def _read_basic_message(term: tuple[Term, ...], pos: int, with_id: bool) -> MessageTerm:
    _, name, keys, content, message_id, persistent = term
    if type(name) is not tuple or len(name) != 4 or name[0] != "resource" or name[2] != "exchange":
        raise NotAMessageError(pos, f"the exchange of a message is {{resource, VHost, exchange, Name}}, not {_describe(name)}")
    if type(name[1]) is not bytes or type(name[3]) is not bytes:
        raise NotAMessageError(pos, "vhost and exchange of a message are binaries")
    if persistent not in ("true", "false") or not isinstance(persistent, Atom):
        raise NotAMessageError(pos, f"the persistent flag of a message is true or false, not {_describe(persistent)}")
    block, record, protocol, fragments = _content(content, pos)
    return MessageTerm(
        _id(message_id, pos, with_id), name[1], name[3], _routing_keys(keys, pos), persistent == "true", fragments, block, record, protocol
    )


def _id(message_id: Term, pos: int, with_id: bool) -> bytes:
    if not with_id and (message_id is None or message_id == b""):
        return b""
    if type(message_id) is not bytes or len(message_id) != ID_SIZE:
        raise NotAMessageError(pos, f"the id of a message is a binary of {ID_SIZE} bytes, not {_describe(message_id)}")
    return message_id


def _routing_keys(keys: Term, pos: int) -> tuple[bytes, ...]:
    if type(keys) is not list or not all(type(key) is bytes for key in keys):
        raise NotAMessageError(pos, f"routing keys are a list of binaries, not {_describe(keys)}")
    return tuple(keys)


def _content(content: Term, pos: int) -> tuple[bytes | None, tuple[Term, ...] | None, Atom, tuple[bytes, ...]]:
    if type(content) is not tuple or len(content) != 6 or content[0] != "content" or not isinstance(content[4], Atom):
        raise NotAMessageError(
            pos, f"the content of a message is {{content, 60, Properties, PropertiesBin, Protocol, Payload}}, not {_describe(content)}"
        )
    _, class_id, record, block, protocol, payload = content
    if class_id != CLASS_BASIC:
        raise NotAMessageError(pos, f"the content of a message is of class {CLASS_BASIC}, not {_describe(class_id)}")
    if type(block) is bytes:
        return block, record if type(record) is tuple else None, protocol, _fragments(payload, pos)
    if type(record) is tuple and block == "none":
        return None, record, protocol, _fragments(payload, pos)
    raise NotAMessageError(pos, "a message has neither decoded nor encoded properties")


def _fragments(payload: Term, pos: int) -> tuple[bytes, ...]:
    if type(payload) is list and all(type(fragment) is bytes for fragment in payload):
        return tuple(reversed(payload))
    raise NotAMessageError(pos, f"the body of a message is a list of binaries, not {_describe(payload)}")


# message containers


def _annotations_by_name(annotations: dict[Term, Term] | Pairs) -> dict[str, Term]:
    """Return the annotations by the text of their keys."""
    pairs = annotations.items() if isinstance(annotations, dict) else annotations
    return {
        key if isinstance(key, Atom) else key.decode("utf-8", "surrogateescape"): value
        for key, value in pairs
        if isinstance(key, Atom | bytes)
    }


def _read_container(term: tuple[Term, ...], pos: int, with_id: bool) -> MessageTerm:
    _, form, data, annotations = term
    if not isinstance(annotations, dict | Pairs):
        raise NotAMessageError(pos, f"the annotations of a message are a map, not {_describe(annotations)}")
    named = _annotations_by_name(annotations)
    message_id = _id(named.get("id"), pos, with_id)
    exchange, keys = named.get("x"), _routing_keys(named.get("rk"), pos)
    if type(exchange) is not bytes:
        raise NotAMessageError(pos, f"the exchange of a message is a binary, not {_describe(exchange)}")
    persistent = named.get("d") != "false"
    if form == "mc_amqpl":
        block, record, protocol, fragments = _content(data, pos)
        return MessageTerm(message_id, None, exchange, keys, persistent, fragments, block, record, protocol, "mc_amqpl", None, annotations)
    if form == "mc_amqp":
        try:
            fragments = amqp10.fragments(data)
        except amqp10.Amqp10Error as error:
            raise NotAMessageError(pos, str(error)) from None
        return MessageTerm(message_id, None, exchange, keys, persistent, fragments, None, None, PROTOCOL, "mc_amqp", data, annotations)
    if form == "mc_mqtt":
        if type(data) is not tuple or len(data) != 9 or data[0] != "mqtt_msg":
            raise NotAMessageError(pos, f"a message from MQTT is {{mqtt_msg, …}} of 9, not {_describe(data)}")
        fragments = _iodata(data[6], pos)
        return MessageTerm(message_id, None, exchange, keys, persistent, fragments, None, None, PROTOCOL, "mc_mqtt", data, annotations)
    raise NotAMessageError(pos, f"a message container of protocol {_describe(form)} is not supported")


def _iodata(term: Term, pos: int) -> tuple[bytes, ...]:
    """Return the binaries of an iolist, in order; single bytes become binaries too."""
    binaries: list[bytes] = []
    todo = [term]
    while todo:
        item = todo.pop()
        if type(item) is bytes:
            binaries.append(item)
        elif type(item) is list:
            todo.extend(reversed(item))
        elif type(item) is int and 0 <= item <= 255:
            binaries.append(bytes([item]))
        else:
            raise NotAMessageError(pos, f"the body of a message is bytes and lists of them, not {_describe(item)}")
    return tuple(binaries)


# writing


def write_message(message: MessageTerm, atoms: Literal["latin1", "utf8"] = "latin1") -> bytes:
    """Return the term of a message in its form. atoms: as in `terms.encode`. Raises ValueError for a basic_message without a vhost."""
    content = (
        Atom("content"),
        CLASS_BASIC,
        Atom("none") if message.decoded is None else message.decoded,
        Atom("none") if message.properties_bin is None else message.properties_bin,
        message.protocol,
        list(reversed(message.fragments)),
    )
    if message.form != "basic_message":
        data = content if message.form == "mc_amqpl" else message.data
        return encode((Atom("mc"), Atom(message.form), data, message.annotations), atoms)
    if message.vhost is None:
        raise ValueError("a basic_message names its vhost; give one with as_basic_message")
    return encode(
        (
            Atom("basic_message"),
            (Atom("resource"), message.vhost, Atom("exchange"), message.exchange),
            list(message.routing_keys),
            content,
            message.id,
            Atom("true" if message.persistent else "false"),
        ),
        atoms,
    )


def as_basic_message(message: MessageTerm, vhost: bytes, *, queue_addresses: bool = False) -> MessageTerm:
    """Return the message in the form of versions up to 3.12: as a consumer of AMQP 0-9-1 would receive it. Raises PropertiesError.

    queue_addresses: as in `MessageTerm.delivered`.
    """
    if message.form == "basic_message":
        return message
    block = properties_to_bin(message.delivered(queue_addresses))
    return MessageTerm(message.id, vhost, message.exchange, message.routing_keys, message.persistent, message.fragments, block)


class MessageTemplate:
    """A message without id and body. persistent: delivery mode 2. priority: 0 by default. ttl: ms of `expiration`, or None.

    Raises UsageError for properties that cannot be published.
    """

    def __init__(self, vhost: bytes, exchange: bytes, routing_keys: tuple[bytes, ...], properties: bytes) -> None:
        try:
            parsed = properties_from_bin(properties)
        except PropertiesError as error:
            raise UsageError(f"the message cannot be published: {error}") from None
        self.persistent = parsed.get("delivery_mode") == 2
        self.priority = int(parsed.get("priority") or 0)
        expiration = parsed.get("expiration")
        text = expiration.decode("latin-1") if isinstance(expiration, bytes) else expiration
        if text is not None and not (str(text).isascii() and str(text).isdigit()):
            raise UsageError(f"the message cannot be published: its expiration {text!r} is not a number of milliseconds")
        self.ttl = None if text is None else int(text)
        self.properties = properties
        self._plain = MessageTerm(bytes(16), vhost, exchange, routing_keys, self.persistent, (), properties)
        empty = write_message(self._plain)
        at = len(empty) - empty[::-1].index((_ID + bytes(16))[::-1]) - len(_ID) - 16
        self._tail = empty[at + len(_ID) + 16 :]
        self._empty = empty[: at + len(_ID)]
        self._head = empty[: at - 1] + b"\x6c\x00\x00\x00\x01\x6d"
        self._middle = b"\x6a" + _ID

    def term(self, message_id: bytes, body: bytes) -> bytes:
        """Return the stored term of a message, byte by byte as 3.10.8 on OTP 25 writes it."""
        length = len(body)
        if 0 < length <= FRAME:
            return b"".join((self._head, length.to_bytes(4, "big"), body, self._middle, message_id, self._tail))
        if not length:
            return b"".join((self._empty, message_id, self._tail))
        plain = self._plain
        fragments = tuple(body[start : start + FRAME] for start in range(0, length, FRAME))
        return write_message(
            MessageTerm(message_id, plain.vhost, plain.exchange, plain.routing_keys, plain.persistent, fragments, self.properties)
        )


# ---- what a consumer of AMQP 0-9-1 receives of a message container: the properties, completed from its annotations
#
# A container ({mc, Protocol, Data, Annotations}, since 3.13) holds the message as it was published, and what the broker noted since. At
# delivery the broker converts the message to AMQP 0-9-1 and then lets the annotations decide:
#
#     ttl         the expiration in milliseconds. `undefined`: none, whatever the message says: it was dead-lettered and does not
#                 expire again
#     ts          the timestamp in milliseconds; without it there is none
#     p, d        priority and durability of a message that does not state them itself
#     deaths      the header x-death, a table for each queue and reason
#     x-…         headers, for example x-first-death-queue and x-last-death-reason
#     timestamp_in_ms   a header
#
# The headers are then sorted by name; of two with one name, that from an annotation remains.
#
# Format: docs/formats/rabbitmq.md, section 10.4.

MAX_SHORTSTR = 255
_ADDRESS = b"/queues/"
_QUEUE_NAME = re.compile(rb"(?:[-!$&'()*+,.:;=@_~0-9A-Za-z]|%[0-9A-Fa-f]{2})*")
_MQTT_TO_AMQP = bytes.maketrans(b"/+", b".*")

Header = list[Any]


def delivered_properties(properties: Properties, annotations: dict[str, Term]) -> Properties:
    r"""Return the properties that are delivered. properties: of the message itself. Raises PropertiesError for invalid annotations.

    >>> noted = {"ttl": Atom("undefined"), "x-last-death-reason": b"expired"}
    >>> delivered_properties({"delivery_mode": 2, "expiration": b"1"}, noted)
    {'headers': [[b'x-last-death-reason', 'longstr', b'expired']], 'delivery_mode': 2}
    >>> reply_queue(b"/queues/a%20b"), reply_queue(b"/exchanges/x/key"), reply_queue(b"/queues/a b")
    (b'a b', b'/exchanges/x/key', None)
    """
    delivered = dict(properties)
    headers = _headers(delivered.get("headers"), annotations)
    if headers is not None:
        delivered["headers"] = headers
    if "ttl" in annotations:
        ttl = annotations["ttl"]
        delivered["expiration"] = b"%d" % ttl if type(ttl) is int else None
    stamp = annotations.get("ts", annotations.get("timestamp"))
    delivered["timestamp"] = stamp // 1000 if type(stamp) is int else None
    if delivered.get("priority") is None and type(annotations.get("p")) is int:
        delivered["priority"] = annotations["p"]
    if delivered.get("delivery_mode") is None and annotations.get("d") != "false":
        delivered["delivery_mode"] = 2
    return {name: delivered[name] for name in RABBITMQ_PROPERTIES if delivered.get(name) is not None}


def _headers(own: list[Header] | None, annotations: dict[str, Term]) -> list[Header] | None:
    """Return the headers, sorted by name; those of the message itself if there are no others."""
    headers = list(own or [])
    if "deaths" in annotations:
        deaths = [b"x-death", "array", _death_tables(annotations["deaths"])]
        headers = [deaths, *(header for header in headers if header[0] != b"x-death")]
    noted = [
        header for name, value in annotations.items() if name.startswith("x-") or name == "timestamp_in_ms"
        for header in _header_of_annotation(name, value)
    ]  # fmt: skip
    if not noted and not headers:
        return own
    by_name: dict[bytes, Header] = {}
    for header in (*noted, *headers):
        by_name.setdefault(header[0], header)
    return [by_name[name] for name in sorted(by_name)]


def _header_of_annotation(name: str, value: Term) -> list[Header]:
    key = name.encode("utf-8", "surrogateescape")
    if type(value) is int:
        return [[key, "long", value]]
    if type(value) is bytes and name != "timestamp_in_ms":
        return [[key, "longstr", value]]
    if isinstance(value, Atom) and value in ("true", "false") and name != "timestamp_in_ms":
        return [[key, "bool", value == "true"]]
    return []


def _death_tables(deaths: Term) -> list[list[Any]]:
    """Return the tables of x-death, the latest death first. 4.x keeps a list in this order; 3.13 {deaths, First, Last, Map}."""
    if type(deaths) is tuple and len(deaths) == 4 and deaths[0] == "deaths" and isinstance(deaths[3], dict | Pairs):
        pairs = sorted(deaths[3].items() if isinstance(deaths[3], dict) else deaths[3], key=_last_time, reverse=True)
        return [_death_table(pair) for pair in pairs]
    if type(deaths) is not list:
        raise PropertiesError(f"the deaths of a message are a list, not {deaths!r:.60}")
    return [_death_table(pair) for pair in deaths]


def _death_parts(pair: Term) -> tuple[bytes, Term, bytes, list[bytes], int, dict[str, Term]]:
    try:
        (queue, reason), (tag, exchange, keys, count, noted) = pair
        named = {str(name): value for name, value in noted.items()}
    except (TypeError, ValueError, AttributeError):
        raise PropertiesError(f"a death of a message is {{{{Queue, Reason}}, {{death, …}}}}, not {pair!r:.60}") from None
    texts = [queue, exchange, *(keys if type(keys) is list else [None])]
    times = [count, named.get("first_time"), named.get("last_time")]
    if tag != "death" or not all(type(text) is bytes for text in texts) or not all(type(time) is int for time in times):
        raise PropertiesError(f"a death of a message is {{{{Queue, Reason}}, {{death, …}}}}, not {pair!r:.60}")
    return queue, reason, exchange, keys, count, named


def _last_time(pair: Term) -> Any:
    return _death_parts(pair)[5]["last_time"]


def _death_table(pair: Term) -> list[Any]:
    queue, reason, exchange, keys, count, noted = _death_parts(pair)
    table: list[Header] = [
        [b"count", "long", count],
        [b"reason", "longstr", reason if type(reason) is bytes else str(reason).encode("utf-8")],
        [b"queue", "longstr", queue],
        [b"time", "timestamp", noted["first_time"] // 1000],
        [b"exchange", "longstr", exchange],
        [b"routing-keys", "array", [["longstr", key] for key in keys]],
    ]
    ttl = noted.get("ttl")
    if type(ttl) is int:
        table.insert(0, [b"original-expiration", "longstr", b"%d" % ttl])
    return ["table", table]


def reply_queue(address: bytes) -> bytes | None:
    """Return the reply-to that 4.3 delivers for an AMQP 1.0 address: of /queues/NAME, percent-encoded, the name.

    None: nothing is delivered, because the address of a queue is not valid.
    """
    if not address.startswith(_ADDRESS):
        return address
    name = address[len(_ADDRESS) :]
    if _QUEUE_NAME.fullmatch(name) is None:
        return None
    name = re.sub(rb"%(..)", lambda code: bytes.fromhex(code[1].decode("ascii")), name)
    return name if len(name) <= MAX_SHORTSTR else None


# MQTT


def mqtt_properties(data: tuple[Term, ...]) -> Properties:
    """Return the properties of {mqtt_msg, Retain, Qos, Topic, Dup, PacketId, Payload, Properties, Timestamp}, without annotations."""
    qos = data[2]
    given = data[7] if isinstance(data[7], dict) else dict(data[7]) if isinstance(data[7], Pairs) else {}
    named = {str(name): value for name, value in given.items() if isinstance(name, Atom)}
    properties: Properties = {"delivery_mode": 2 if type(qos) is int and qos else 1}
    content_type = named.get("Content-Type")
    if type(content_type) is bytes and len(content_type) <= MAX_SHORTSTR and content_type.isascii():
        properties["content_type"] = content_type
    headers: dict[bytes, Header] = {}
    correlation = named.get("Correlation-Data")
    if type(correlation) is bytes:
        if _is_shortstr(correlation):
            properties["correlation_id"] = correlation
        else:
            headers[b"x-correlation-id"] = [b"x-correlation-id", "longstr", correlation]
    topic = named.get("Response-Topic")
    if type(topic) is bytes:
        headers[b"x-reply-to-topic"] = [b"x-reply-to-topic", "longstr", topic.translate(_MQTT_TO_AMQP)]
    pairs = named.get("User-Property")
    for pair in pairs if type(pairs) is list else []:
        if type(pair) is tuple and len(pair) == 2 and type(pair[0]) is bytes and type(pair[1]) is bytes and len(pair[0]) <= MAX_SHORTSTR:
            headers.setdefault(pair[0], [pair[0], "longstr", pair[1]])
    if headers:
        properties["headers"] = [headers[name] for name in sorted(headers)]
    seconds = named.get("Message-Expiry-Interval")
    if type(seconds) is int:
        properties["expiration"] = b"%d" % (seconds * 1000)
    return properties


def _is_shortstr(octets: bytes) -> bool:
    if len(octets) > MAX_SHORTSTR:
        return False
    try:
        octets.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
