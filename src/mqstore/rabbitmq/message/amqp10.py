r"""AMQP 1.0 sections inside stored messages (RabbitMQ 3.13 and newer), and the AMQP 0-9-1 properties they are converted to.

A section is 00, its descriptor and a value; the descriptor is 53 and one of

    70 header                  71 delivery annotations    72 message annotations   73 properties
    74 application properties  75 data    76 sequence    77 value                  78 footer

4.x stores {v1, MessageAnnotations, BareAndFooter, PropsPos, AppPropsPos, BodyPos, BodyCode}: the bare message as bytes, with the
positions of the sections in them ([] = absent). 3.13 stores {msg, header, …}, a tuple of 8 with records of decoded values, each value
being {Type, Value}, true, false, null or undefined. This module reads both into the latter form.

    >>> value(bytes.fromhex("a1 02 6869"), 0)
    (('utf8', b'hi'), 4)
    >>> fragments((Atom("v1"), [], bytes.fromhex("005375 a0 02 6869"), [], [], 0, 0x75))
    (b'hi',)

A body of data sections is their contents. Any other body is the AMQP 1.0 encoding itself, with type `amqp-1.0`, as an AMQP 0-9-1
consumer receives it. Properties are converted as the broker does for such a consumer, as far as AMQP 0-9-1 can express them.

Why this is not a library: docs/decisions/0010-what-is-kept-by-hand.md.

Format: docs/formats/rabbitmq.md, section 10.4.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any

from mqstore.rabbitmq.erlang.terms import Atom, Term

DATA = 0x75
BODY_TYPE = b"amqp-1.0"
MAX_DEPTH = 32
MAX_VALUES = 200_000
MAX_SHORTSTR = 255
_U64 = (1 << 64) - 1

_NUMBERS: dict[int, tuple[str, struct.Struct]] = {
    0x50: ("ubyte", struct.Struct(">B")),
    0x51: ("byte", struct.Struct(">b")),
    0x52: ("uint", struct.Struct(">B")),
    0x53: ("ulong", struct.Struct(">B")),
    0x54: ("int", struct.Struct(">b")),
    0x55: ("long", struct.Struct(">b")),
    0x60: ("ushort", struct.Struct(">H")),
    0x61: ("short", struct.Struct(">h")),
    0x70: ("uint", struct.Struct(">I")),
    0x71: ("int", struct.Struct(">i")),
    0x72: ("float", struct.Struct(">f")),
    0x80: ("ulong", struct.Struct(">Q")),
    0x81: ("long", struct.Struct(">q")),
    0x82: ("double", struct.Struct(">d")),
    0x83: ("timestamp", struct.Struct(">q")),
}
_CONSTANTS: dict[int, Term] = {
    0x40: Atom("null"),
    0x41: Atom("true"),
    0x42: Atom("false"),
    0x43: ("uint", 0),
    0x44: ("ulong", 0),
    0x45: ("list", []),
}
_FIXED = {0x73: ("char", 4), 0x74: ("as_is", 4), 0x84: ("as_is", 8), 0x94: ("as_is", 16), 0x98: ("uuid", 16)}
_OCTETS = {0xA0: ("binary", 1), 0xA1: ("utf8", 1), 0xA3: ("symbol", 1), 0xB0: ("binary", 4), 0xB1: ("utf8", 4), 0xB3: ("symbol", 4)}
_COMPOUND = {0xC0: ("list", 1), 0xC1: ("map", 1), 0xD0: ("list", 4), 0xD1: ("map", 4), 0xE0: ("array", 1), 0xF0: ("array", 4)}


class Amqp10Error(ValueError):
    """Bytes or terms that are not an AMQP 1.0 value or section."""


# values


def value(octets: bytes, pos: int) -> tuple[Term, int]:
    """Return the value at pos in the form of the stored terms, and the position after it. Raises Amqp10Error."""
    return _ValueReader(octets).value(pos, MAX_DEPTH)


class _ValueReader:
    def __init__(self, octets: bytes) -> None:
        self.octets = octets
        self.left = MAX_VALUES

    def number(self, pos: int, width: int) -> int:
        return int.from_bytes(self.run(pos, width), "big")

    def run(self, pos: int, count: int) -> bytes:
        if count > len(self.octets) - pos:
            raise Amqp10Error(f"byte {pos} of the AMQP 1.0 message: {count} bytes are needed, {max(0, len(self.octets) - pos)} are left")
        return self.octets[pos : pos + count]

    def value(self, pos: int, depth: int) -> tuple[Term, int]:
        code = self.number(pos, 1)
        if code == 0:
            if not depth:
                raise Amqp10Error(f"AMQP 1.0 values nest deeper than {MAX_DEPTH}")
            descriptor, pos = self.value(pos + 1, depth - 1)
            described, pos = self.value(pos, depth - 1)
            return ("described", descriptor, described), pos
        return self.primitive(code, pos + 1, depth)

    def primitive(self, code: int, pos: int, depth: int) -> tuple[Term, int]:
        self.left -= 1
        if not self.left:
            raise Amqp10Error(f"more than {MAX_VALUES} AMQP 1.0 values")
        if code in _CONSTANTS:
            return _CONSTANTS[code], pos
        if code in _NUMBERS:
            kind, shape = _NUMBERS[code]
            return (kind, shape.unpack(self.run(pos, shape.size))[0]), pos + shape.size
        if code == 0x56:
            return ("boolean", Atom("true" if self.number(pos, 1) else "false")), pos + 1
        if code in _FIXED:
            kind, width = _FIXED[code]
            return (kind, self.run(pos, width)), pos + width
        if code in _OCTETS:
            kind, width = _OCTETS[code]
            count = self.number(pos, width)
            return (kind, self.run(pos + width, count)), pos + width + count
        if code in _COMPOUND:
            return self.compound(code, pos, depth)
        raise Amqp10Error(f"byte {pos - 1} of the AMQP 1.0 message: {code:#x} is not a type")

    def compound(self, code: int, pos: int, depth: int) -> tuple[Term, int]:
        if not depth:
            raise Amqp10Error(f"AMQP 1.0 values nest deeper than {MAX_DEPTH}")
        kind, width = _COMPOUND[code]
        end = pos + width + self.number(pos, width)
        self.run(pos, end - pos)
        count = self.number(pos + width, width)
        pos += 2 * width
        items: list[Term] = []
        if kind == "array":
            item_code = self.number(pos, 1)
            if item_code == 0:
                raise Amqp10Error("arrays of described AMQP 1.0 values are not read")
            pos += 1
        for _ in range(count):
            if kind == "array":
                item, pos = self.primitive(item_code, pos, depth - 1)
            else:
                item, pos = self.value(pos, depth - 1)
            items.append(item)
        if pos != end:
            raise Amqp10Error(f"byte {pos} of the AMQP 1.0 message: a {kind} should end at {end}")
        if kind == "map":
            if count % 2:
                raise Amqp10Error("an AMQP 1.0 map has a key without a value")
            return ("map", list(zip(items[::2], items[1::2], strict=True))), end
        return (kind, items), end


def sections(octets: bytes, pos: int = 0) -> list[tuple[int, Term]]:
    """Return (descriptor, value) of the sections from pos on. Raises Amqp10Error."""
    values, result = _ValueReader(octets), []
    while pos < len(octets):
        section, pos = values.value(pos, MAX_DEPTH)
        if section[0] != "described" or section[1][0] != "ulong":
            raise Amqp10Error("an AMQP 1.0 message consists of sections, which are described values")
        result.append((section[1][1], section[2]))
    return result


def _encode(term: Term, depth: int = MAX_DEPTH) -> bytes:
    """Return the bytes of a decoded value."""
    if not depth:
        raise Amqp10Error(f"AMQP 1.0 values nest deeper than {MAX_DEPTH}")
    if isinstance(term, Atom):
        return {"true": b"\x41", "false": b"\x42"}.get(term, b"\x40")
    kind, content = term
    if kind in ("binary", "utf8", "symbol"):
        short, long = {"binary": (0xA0, 0xB0), "utf8": (0xA1, 0xB1), "symbol": (0xA3, 0xB3)}[kind]
        head = bytes([short, len(content)]) if len(content) < 256 else bytes([long]) + len(content).to_bytes(4, "big")
        return head + bytes(content)
    if kind in ("list", "map"):
        items = [item for pair in content for item in pair] if kind == "map" else content
        inner = len(items).to_bytes(4, "big") + b"".join(_encode(item, depth - 1) for item in items)
        return bytes([0xD0 if kind == "list" else 0xD1]) + len(inner).to_bytes(4, "big") + inner
    if kind == "boolean":
        return b"\x41" if content == "true" else b"\x42"
    if kind in ("uuid", "char"):
        return bytes([0x98 if kind == "uuid" else 0x73]) + bytes(content)
    code = next(code for code, (name, shape) in reversed(_NUMBERS.items()) if name == kind)
    return bytes([code]) + _NUMBERS[code][1].pack(content)


# messages


def fragments(data: Term) -> tuple[bytes, ...]:
    """Return the body of stored data, in pieces. Raises Amqp10Error."""
    try:
        if _is_v1(data):
            return _v1_fragments(data)
        if type(data) is tuple and len(data) == 8 and data[0] == "msg":
            body = data[6] if type(data[6]) is list else [data[6]]
            return tuple(_section_fragment(section) for section in body if section != "undefined")
    except (TypeError, IndexError, KeyError, StopIteration, struct.error, AttributeError):
        raise Amqp10Error("the body of an AMQP 1.0 message is not a list of sections") from None
    raise Amqp10Error("data of an AMQP 1.0 message is {v1, …} of 7 or {msg, …} of 8")


def stored_size(data: Term) -> int | None:
    """Return the size of stored data as 4.x states it in index entries: all its sections. None for the form of 3.13."""
    return len(data[2]) if _is_v1(data) else None


def _is_v1(data: Term) -> bool:
    return type(data) is tuple and len(data) == 7 and data[0] == "v1" and type(data[2]) is bytes and type(data[5]) is int


def _v1_fragments(data: tuple[Term, ...]) -> tuple[bytes, ...]:
    _, _, bare, _, _, body_pos, code = data
    if not 0 <= body_pos <= len(bare):
        raise Amqp10Error(f"the body of an AMQP 1.0 message should begin at {body_pos} of {len(bare)} bytes")
    if code != DATA:
        return (bare[body_pos:],)
    return tuple(section[1] for kind, section in sections(bare, body_pos) if kind == DATA and section[0] == "binary")


def _section_fragment(section: tuple[Term, ...]) -> bytes:
    name, content = section
    if name == "v1_0.data":
        return _join(content)
    code = 0x76 if name == "v1_0.amqp_sequence" else 0x77
    return bytes([0, 0x53, code]) + _encode(("list", content) if type(content) is list else content)


def _join(content: Term) -> bytes:
    if type(content) is tuple:
        content = content[1]
    return content if type(content) is bytes else b"".join(bytes([part]) if type(part) is int else _join(part) for part in content)


PROPERTY_FIELDS = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
)


def properties(data: Term, annotations: dict[str, Term]) -> dict[str, Any]:
    """Return the AMQP 0-9-1 properties of stored data. annotations: those of the container, by name. Raises PropertiesError."""
    from mqstore.rabbitmq.message.properties import PropertiesError, properties_from_bin, properties_to_bin
    from mqstore.table.columns import RABBITMQ_PROPERTIES

    try:
        converted = _convert(data, annotations)
        # drop what cannot be encoded as a property
        return properties_from_bin(
            properties_to_bin({name: converted[name] for name in RABBITMQ_PROPERTIES if converted.get(name) is not None})
        )
    except (Amqp10Error, TypeError, IndexError, KeyError, AttributeError, ValueError) as error:
        raise PropertiesError(f"the properties of an AMQP 1.0 message cannot be read: {error}") from None


def _convert(data: Term, annotations: dict[str, Term]) -> dict[str, Any]:
    valued = _is_v1(data) and data[6] != DATA
    return basic_properties(*_message_sections(data), annotations, valued=valued)


def basic_properties(
    header: list[Term], fields: list[Term], application: list[Term], message: list[Term], annotations: dict[str, Term], *, valued: bool
) -> dict[str, Any]:
    """Return the AMQP 0-9-1 properties of a message, None for those that it lacks; some may not be encodable.

    header, fields: the values of the sections 70 and 73; application, message: the pairs of 74 and 72. annotations: as in `properties`.
    valued: the body is not data.
    """
    sent = dict(zip(PROPERTY_FIELDS, fields, strict=False))
    basic = {key[1]: _unwrap(item) for key, item in message if key[1].startswith(b"x-basic-")}
    application_headers = [
        _header(key[1], item) for key, item in application if key[0] == "utf8" and len(key[1]) <= MAX_SHORTSTR and item[0] != "as_is"
    ]
    for name, key in (("message_id", b"x-message-id"), ("correlation_id", b"x-correlation-id")):
        sent[name], extra = _identity(sent.get(name), key)
        application_headers = extra + application_headers
    headers = [*_annotation_headers(message), *application_headers]
    durable = header[0] if header else Atom("undefined")
    mode = {"true": 2, "false": 1}.get(durable) if isinstance(durable, Atom) else None
    if mode is None:
        mode = basic.get(b"x-basic-delivery-mode", None if annotations.get("d") == "false" else 2)
    priority = _unwrap(header[1]) if len(header) > 1 else None
    lifetime = _unwrap(header[2]) if len(header) > 2 else None
    ttl = lifetime if lifetime is not None else annotations.get("ttl")
    user = _unwrap(sent.get("user_id"))
    body_type = BODY_TYPE if valued else basic.get(b"x-basic-type")
    return {
        "content_type": _unwrap(sent.get("content_type")),
        "content_encoding": _unwrap(sent.get("content_encoding")),
        "headers": headers or None,
        "delivery_mode": mode,
        "priority": priority if priority is not None else basic.get(b"x-basic-priority", annotations.get("p")),
        "correlation_id": sent["correlation_id"],
        "reply_to": _shortstr(sent.get("reply_to")),
        "expiration": b"%d" % ttl if type(ttl) is int else basic.get(b"x-basic-expiration"),
        "message_id": sent["message_id"],
        "timestamp": _unwrap(sent.get("creation_time")),
        "type": body_type,
        "user_id": user if type(user) is bytes and len(user) <= MAX_SHORTSTR else None,
        "app_id": _shortstr(fields[10]) if len(fields) > 10 else None,
    }


def _message_sections(data: Term) -> tuple[list[Term], list[Term], list[Term], list[Term]]:
    """Return header and property fields, and pairs of application properties and message annotations."""
    if _is_v1(data):
        _, message, bare, *_, body_pos, _ = data
        by_code = dict(sections(bare[:body_pos]))
        return [], by_code[0x73][1] if 0x73 in by_code else [], by_code[0x74][1] if 0x74 in by_code else [], _pairs(message)
    if type(data) is not tuple or len(data) != 8 or data[0] != "msg":
        raise Amqp10Error("data of an AMQP 1.0 message is {v1, …} of 7 or {msg, …} of 8")
    _, header, _, message, sent, application, _, _ = data
    records = [list(record[1:]) if type(record) is tuple else [] for record in (header, sent)]
    return records[0], records[1], _pairs(application), _pairs(message)


def _pairs(section: Term) -> list[Term]:
    if type(section) is tuple and len(section) == 2:
        section = section[1]
    return section if type(section) is list else []


def _unwrap(term: Term) -> Any:
    if term is None or isinstance(term, Atom):
        return None
    return term[1] // 1000 if term[0] == "timestamp" else term[1]


def _shortstr(term: Term) -> bytes | None:
    """Return a text that fits into a property; the broker delivers no longer one."""
    text = _unwrap(term)
    return text if type(text) is bytes and len(text) <= MAX_SHORTSTR else None


def _identity(term: Term, key: bytes) -> tuple[bytes | None, list[list[Any]]]:
    """Return a message or correlation id as text, or as the header that represents it."""
    if term is None or isinstance(term, Atom):
        return None, []
    kind, content = term
    if kind == "uuid":
        return f"urn:uuid:{uuid.UUID(bytes=content)}".encode("ascii"), []
    if kind == "ulong":
        return b"%d" % content, []
    if kind == "utf8" and len(content) <= MAX_SHORTSTR:
        return content, []
    return None, [[key, "binary" if kind == "binary" else "longstr", content]]


def _annotation_headers(message: list[Term]) -> list[list[Any]]:
    """Return the message annotations that become headers: those with `x-`, except the ones that the broker set itself."""
    headers: list[list[Any]] = []
    for (kind, key), item in message:
        if kind != "symbol" or not key.startswith(b"x-") or len(key) > MAX_SHORTSTR or item[0] == "as_is":
            continue
        if key == b"x-opt-rabbitmq-received-time":
            headers.append([b"timestamp_in_ms", "long", item[1]])
        elif key == b"x-cc":
            headers.append(_header(b"CC", item))
        elif not key.startswith(b"x-basic-") and key not in (b"x-routing-key", b"x-exchange", b"x-death", b"x-opt-deaths"):
            headers.append(_header(key, item))
    return headers


_HEADER_TYPES = {
    "utf8": "longstr",
    "symbol": "longstr",
    "long": "long",
    "ulong": "long",
    "byte": "byte",
    "ubyte": "unsignedbyte",
    "short": "short",
    "ushort": "unsignedshort",
    "uint": "unsignedint",
    "int": "signedint",
    "double": "double",
    "float": "float",
    "binary": "longstr",
}


def _header(key: bytes, term: Term) -> list[Any]:
    return [key, *_typed_header(term)]


def _typed_header(term: Term, depth: int = MAX_DEPTH) -> list[Any]:
    if not depth:
        raise Amqp10Error(f"AMQP 1.0 values nest deeper than {MAX_DEPTH}")
    if isinstance(term, Atom):
        return ["bool", term == "true"] if term in ("true", "false") else ["void", None]
    kind, content = term[0], term[-1]
    if kind == "timestamp":
        return ["timestamp", (content // 1000 if content >= 0 else -(-content // 1000)) & _U64]
    if kind == "ulong":
        return ["long", content - (1 << 64) if content >> 63 else content]
    if kind == "boolean":
        return ["bool", content == "true"]
    if kind in ("list", "array"):
        return ["array", [_typed_header(item, depth - 1) for item in content]]
    if kind == "map":
        return ["table", [[key[1], *_typed_header(item, depth - 1)] for key, item in content]]
    if kind in _HEADER_TYPES:
        return [_HEADER_TYPES[kind], content]
    return ["binary", content]
