r"""AMQP 0-9-1 content properties: the property block of a message and its header tables.

A block is a u16 of flags and then the values of the set flags, from bit 15 down:

    15 content_type      12 delivery_mode u8     9 reply_to      6 timestamp u64    3 app_id
    14 content_encoding  11 priority u8          8 expiration    5 type             2 cluster_id
    13 headers, a table  10 correlation_id       7 message_id    4 user_id

The others are shortstr: u8 length, bytes. A table is its length in bytes as u32, then fields of shortstr name, type octet, value; an
array is the same without names. Names may repeat, and their order is kept. `FIELD_TYPES` lists the octets.

    >>> properties_from_bin(bytes.fromhex("1080 02 03 432d30"))
    {'delivery_mode': 2, 'message_id': b'C-0'}
    >>> properties_to_bin({"headers": [[b"n", "signedint", -1], [b"t", "bool", True]], "delivery_mode": 2}).hex(" ")
    '30 00 00 00 00 0b 01 6e 49 ff ff ff ff 01 74 74 01 02'

In memory: a dict in the order above with text and binary as bytes; headers are lists of [name, type, value], arrays of [type, value], a
decimal is (scale, value), void None. A message that the broker changed has its properties as the Erlang record `P_basic`, which
`properties_from_record` reads. `json_properties` is the form of the column in the message table.

Octets `l` and `L` are both `long`, and every non-zero `bool` is true, so such blocks do not encode to the same bytes.
Tables nested deeper than 100 are not read.

`properties_from_json` reads them as `messages -o jsonl` prints them and a person may edit them: the inverse of `json_properties`.

Headers are a list of [name, type, value], as printed, or an object of plain values, whose types follow from JSON:

    >>> properties_from_json({"message_id": "o-17", "headers": {"shop": "a", "count": 3}})
    {'message_id': b'o-17', 'headers': [[b'shop', 'longstr', b'a'], [b'count', 'long', 3]]}
    >>> properties_from_json({"headers": [["id", "binary", {"b64": "/w=="}]]})
    {'headers': [[b'id', 'binary', b'\xff']]}

Format: docs/formats/rabbitmq.md, sections 10.2 and 10.3.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mqstore.rabbitmq.erlang.terms import Atom, Term
from mqstore.table.columns import RABBITMQ_PROPERTIES

Properties = dict[str, Any]
Fields = list[list[Any]]

MAX_DEPTH = 100
MAX_FIELDS = 200_000

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_DECIMAL = struct.Struct(">BI")
_NUMBERS = {"delivery_mode": _U8, "priority": _U8, "timestamp": _U64}

# octet: name in records; a struct for numbers, None for everything else
FIELD_TYPES: dict[int, tuple[str, struct.Struct | None]] = {
    ord("S"): ("longstr", None),
    ord("I"): ("signedint", struct.Struct(">i")),
    ord("i"): ("unsignedint", _U32),
    ord("L"): ("long", struct.Struct(">q")),
    ord("l"): ("long", struct.Struct(">q")),
    ord("s"): ("short", struct.Struct(">h")),
    ord("u"): ("unsignedshort", _U16),
    ord("b"): ("byte", struct.Struct(">b")),
    ord("B"): ("unsignedbyte", _U8),
    ord("d"): ("double", struct.Struct(">d")),
    ord("f"): ("float", struct.Struct(">f")),
    ord("D"): ("decimal", _DECIMAL),
    ord("T"): ("timestamp", _U64),
    ord("t"): ("bool", _U8),
    ord("F"): ("table", None),
    ord("A"): ("array", None),
    ord("x"): ("binary", None),
    ord("V"): ("void", None),
}
# the octet written for a name: the later one of two
OCTETS = {name: (octet, number) for octet, (name, number) in FIELD_TYPES.items()}
_WHOLE_NUMBERS = ("delivery_mode", "priority", "timestamp")
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class PropertiesError(ValueError):
    """An invalid property block or record. The message itself may be valid."""


# the block


def properties_from_bin(block: bytes) -> Properties:
    """Return the properties that a block sets. Raises PropertiesError."""
    return _BlockReader(block).properties()


class _BlockReader:
    """Reads a block, with every length checked before it is read."""

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.pos = 0
        self.fields_left = MAX_FIELDS

    def properties(self) -> Properties:
        flags: int = self.number(_U16)
        if flags & 1:
            raise PropertiesError("the property flags continue in a second word, which basic properties never have")
        properties: Properties = {}
        for bit, name in enumerate(RABBITMQ_PROPERTIES):
            if flags & 0x8000 >> bit:
                if name == "headers":
                    properties[name] = self.fields(self.number(_U32), True, MAX_DEPTH)
                elif name in _NUMBERS:
                    properties[name] = self.number(_NUMBERS[name])
                else:
                    properties[name] = self.octets(self.number(_U8))
        if self.pos != len(self.block):
            raise PropertiesError(f"{len(self.block) - self.pos} bytes follow the last property")
        return properties

    def number(self, shape: struct.Struct) -> Any:
        octets = self.octets(shape.size)
        numbers = shape.unpack(octets)
        return numbers[0] if len(numbers) == 1 else numbers

    def octets(self, count: int) -> bytes:
        if count > len(self.block) - self.pos:
            raise PropertiesError(f"byte {self.pos} of the properties: {count} bytes are needed, {len(self.block) - self.pos} are left")
        self.pos += count
        return self.block[self.pos - count : self.pos]

    def fields(self, length: int, named: bool, depth: int) -> Fields:
        """Return the fields of a table (named) or an array whose contents have this length in bytes."""
        end = self.pos + length
        if end > len(self.block):
            raise PropertiesError(f"byte {self.pos} of the properties: a table of {length} bytes, {len(self.block) - self.pos} are left")
        if not depth:
            raise PropertiesError(f"header tables nest deeper than {MAX_DEPTH}")
        fields: Fields = []
        while self.pos < end:
            self.fields_left -= 1
            if not self.fields_left:
                raise PropertiesError(f"more than {MAX_FIELDS} header fields")
            name = [self.octets(self.number(_U8))] if named else []
            fields.append([*name, *self.typed(depth)])
        if self.pos != end:
            raise PropertiesError(f"byte {self.pos} of the properties: a field extends past its table, which ends at {end}")
        return fields

    def typed(self, depth: int) -> tuple[str, Any]:
        octet: int = self.number(_U8)
        if octet not in FIELD_TYPES:
            raise PropertiesError(f"byte {self.pos - 1} of the properties: {octet} is not a field type")
        name, shape = FIELD_TYPES[octet]
        if shape is not None:
            value = self.number(shape)
            return name, bool(value) if name == "bool" else value
        if name == "void":
            return name, None
        length: int = self.number(_U32)
        return name, self.octets(length) if name in ("longstr", "binary") else self.fields(length, name == "table", depth - 1)


def properties_to_bin(properties: Properties) -> bytes:
    """Return the block of these properties. Raises PropertiesError for a value its field cannot hold."""
    unknown = set(properties) - set(RABBITMQ_PROPERTIES)
    if unknown:
        raise PropertiesError(f"{', '.join(sorted(unknown))}: not an AMQP property; they are {', '.join(RABBITMQ_PROPERTIES)}")
    flags, out = 0, bytearray()
    for bit, name in enumerate(RABBITMQ_PROPERTIES):
        if name in properties:
            flags |= 0x8000 >> bit
            value = properties[name]
            try:
                if name == "headers":
                    out += _fields_bytes(value, True, MAX_DEPTH)
                else:
                    out += _NUMBERS[name].pack(value) if name in _NUMBERS else _shortstr(value)
            except (struct.error, TypeError, OverflowError) as error:
                raise PropertiesError(f"{name} cannot be {value!r:.60}: {error}") from None
    return _U16.pack(flags) + bytes(out)


def _shortstr(text: bytes | str) -> bytes:
    octets = _octets(text)
    return _U8.pack(len(octets)) + octets


def _octets(text: bytes | str) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else bytes(text)


def _fields_bytes(fields: Sequence[Sequence[Any]], named: bool, depth: int) -> bytes:
    if not depth:
        raise PropertiesError(f"header tables nest deeper than {MAX_DEPTH}")
    out = bytearray()
    for field in fields:
        if len(field) != 2 + named or field[-2] not in OCTETS:
            raise PropertiesError(f"a header field is [name, type, value] (in an array [type, value]), not {field!r:.60}")
        kind, value = field[-2:]
        octet, shape = OCTETS[kind]
        if named:
            out += _shortstr(field[0])
        out.append(octet)
        if kind == "decimal":
            out += _DECIMAL.pack(*value)
        elif kind == "bool":
            out.append(bool(value))
        elif shape is not None:
            out += shape.pack(value)
        elif kind in ("table", "array"):
            out += _fields_bytes(value, kind == "table", depth - 1)
        elif kind != "void":
            octets = _octets(value)
            out += _U32.pack(len(octets)) + octets
    return _U32.pack(len(out)) + bytes(out)


# the record


def properties_from_record(record: tuple[Term, ...]) -> Properties:
    """Return the properties that {'P_basic', content_type, …} sets. Raises PropertiesError."""
    if len(record) != 1 + len(RABBITMQ_PROPERTIES) or record[0] != "P_basic":
        raise PropertiesError(f"decoded properties are a P_basic record of {len(RABBITMQ_PROPERTIES)} fields, not {record!r:.60}")
    properties: Properties = {}
    for name, value in zip(RABBITMQ_PROPERTIES, record[1:], strict=True):
        if isinstance(value, Atom) and value == "undefined":
            continue
        if name == "headers":
            properties[name] = _record_fields(value, True, MAX_DEPTH)
        elif name in _NUMBERS:
            properties[name] = _in_range(name, value, _NUMBERS[name])
        elif type(value) is bytes:
            properties[name] = value
        else:
            raise PropertiesError(f"{name} of decoded properties is a binary, not {value!r:.60}")
    return properties


def _in_range(name: str, value: Term, shape: struct.Struct) -> int:
    try:
        shape.pack(value)
    except struct.error:
        raise PropertiesError(f"{name} of decoded properties cannot be {value!r:.60}") from None
    return int(value)


def _record_fields(fields: Term, named: bool, depth: int) -> Fields:
    if not depth:
        raise PropertiesError(f"header tables nest deeper than {MAX_DEPTH}")
    if type(fields) is not list:
        raise PropertiesError(f"headers are a list, not {fields!r:.60}")
    result: Fields = []
    for field in fields:
        if type(field) is not tuple or len(field) != 2 + named or not isinstance(field[-2], Atom) or field[-2] not in OCTETS:
            raise PropertiesError(f"a decoded header is {{Name, Type, Value}} (in an array {{Type, Value}}), not {field!r:.60}")
        if named and type(field[0]) is not bytes:
            raise PropertiesError(f"the name of a decoded header is a binary, not {field[0]!r:.60}")
        kind = str(field[-2])
        result.append([*field[:-2], kind, _record_value(kind, field[-1], depth)])
    return result


def _record_value(kind: str, value: Term, depth: int) -> Any:
    shape = OCTETS[kind][1]
    good: dict[str, Callable[[], Any]] = {
        "void": lambda: None,
        "bool": lambda: {"true": True, "false": False}[value],
        "table": lambda: _record_fields(value, True, depth - 1),
        "array": lambda: _record_fields(value, False, depth - 1),
        "decimal": lambda: _DECIMAL.unpack(_DECIMAL.pack(*value)),
    }
    try:
        if kind in good:
            return good[kind]()
        if shape is None:
            return bytes(memoryview(value))
        if kind in ("double", "float"):
            return float(value)
        shape.pack(value)
        return value
    except (struct.error, TypeError, KeyError, OverflowError):
        raise PropertiesError(f"a decoded header of type {kind} cannot be {value!r:.60}") from None


# the column


def json_text(octets: bytes) -> str | dict[str, str]:
    """Return UTF-8 as text, and any other bytes as {"b64": …}."""
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return _b64(octets)


def _b64(octets: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(octets).decode("ascii")}


def json_properties(properties: Properties) -> dict[str, Any]:
    """Return properties for JSON: text as text, `binary` as {"b64": …}, a decimal as [scale, value], NaN and infinities by name."""
    return {
        name: _json_fields(value) if name == "headers" else json_text(value) if isinstance(value, bytes) else value
        for name, value in properties.items()
    }


def json_or_none(read: Callable[[], Properties]) -> dict[str, Any] | None:
    """Return the properties that a call returns, for JSON; None if they cannot be read."""
    try:
        return json_properties(read())
    except PropertiesError:
        return None


def _json_fields(fields: Fields) -> Fields:
    return [[*(json_text(name) for name in field[:-2]), field[-2], _json_value(field[-2], field[-1])] for field in fields]


def _json_value(kind: str, value: Any) -> Any:
    if kind in ("table", "array"):
        return _json_fields(value)
    if kind == "binary":
        return _b64(value)
    if kind == "decimal":
        return list(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return json_text(value) if isinstance(value, bytes) else value


def properties_from_json(value: object) -> Properties:
    """Return properties in memory. Raises PropertiesError for what they cannot be."""
    if not isinstance(value, dict):
        raise PropertiesError(f"properties must be an object, not {_short(value)}")
    properties: Properties = {}
    for name, each in value.items():
        if each is None:
            continue
        if name == "headers":
            properties[name] = _fields_from_json(each, True, MAX_DEPTH)
        elif name in _WHOLE_NUMBERS:
            if type(each) is not int:
                raise PropertiesError(f"{name} must be a whole number, not {_short(each)}")
            properties[name] = each
        else:
            properties[name] = _octets_from_json(name, each)
    properties_to_bin(properties)  # whatever a field cannot hold
    return properties


def _octets_from_json(name: str, value: object) -> bytes:
    """Return text, or bytes that are given as {"b64": ...}."""
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and list(value) == ["b64"]:
            return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError, TypeError):
        pass
    raise PropertiesError(f'{name} must be text, or bytes as {{"b64": ...}}, not {_short(value)}')


def _fields_from_json(value: object, named: bool, depth: int) -> list[list[Any]]:
    if not depth:
        raise PropertiesError(f"header tables nest deeper than {MAX_DEPTH}")
    if named and isinstance(value, dict):
        return [[name.encode("utf-8", "replace"), *_guessed(name, each, depth)] for name, each in value.items()]
    if not isinstance(value, list):
        raise PropertiesError(f"headers must be a list of [name, type, value], or an object, not {_short(value)}")
    fields = []
    for field in value:
        if not isinstance(field, list) or len(field) != 2 + named or not isinstance(field[-2], str):
            raise PropertiesError(f"a header is [name, type, value] (in an array [type, value]), not {_short(field)}")
        name = [_octets_from_json("the name of a header", field[0])] if named else []
        fields.append([*name, field[-2], _value_from_json(field[-2], field[-1], depth)])
    return fields


def _value_from_json(kind: str, value: Any, depth: int) -> Any:
    if kind in ("table", "array"):
        return _fields_from_json(value, kind == "table", depth - 1)
    if kind in ("longstr", "binary"):
        return _octets_from_json("a header", value)
    if kind in ("double", "float") and value in _NOT_FINITE:
        return float(value)
    if kind == "decimal" and not (isinstance(value, list) and len(value) == 2):
        raise PropertiesError(f"a decimal is [scale, value], not {_short(value)}")
    return value


def _guessed(name: str, value: Any, depth: int) -> tuple[str, Any]:
    """Return type and value of a plain value."""
    if isinstance(value, str):
        return "longstr", value.encode("utf-8", "replace")
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int):
        return "long", value
    if isinstance(value, float):
        return "double", value
    if value is None:
        return "void", None
    if isinstance(value, Mapping):
        return "table", _fields_from_json(value, True, depth - 1)
    if isinstance(value, list):
        return "array", [[*_guessed(name, each, depth - 1)] for each in value] if depth > 1 else _fields_from_json(value, False, 0)
    raise PropertiesError(f"header {name!r} cannot be {_short(value)}")


def _short(value: object) -> str:
    return f"{json.dumps(value, ensure_ascii=False)[:60]}"
