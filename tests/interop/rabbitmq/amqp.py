"""AMQP with pika, with header tables as on the wire: ordered, typed, with duplicates.

`json_properties` gives a message's properties in the form of the golden `expected.jsonl`.
"""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pika

NAMES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)

_FIXED = {
    "I": ("signedint", ">i"),
    "i": ("unsignedint", ">I"),
    "l": ("long", ">q"),
    "L": ("long", ">q"),
    "s": ("short", ">h"),
    "u": ("unsignedshort", ">H"),
    "b": ("byte", ">b"),
    "B": ("unsignedbyte", ">B"),
    "d": ("double", ">d"),
    "f": ("float", ">f"),
    "T": ("timestamp", ">Q"),
}


class RawTable(bytes):
    """An encoded AMQP field table without its length, sent unchanged."""


class TypedTable(list[list[Any]]):
    """A decoded field table: [name, type, value] in the order of the wire."""

    def __bool__(self) -> bool:
        return True

    def get(self, _key: str, default: Any = None) -> Any:
        """Look up a field; pika reads a server's capabilities like a dictionary."""
        return default


def _decode(encoded: bytes, offset: int) -> tuple[TypedTable, int]:
    (length,) = struct.unpack_from(">I", encoded, offset)
    return _fields(encoded[offset + 4 : offset + 4 + length]), offset + 4 + length


@contextlib.contextmanager
def typed_tables() -> Iterator[None]:
    """Make pika decode tables to TypedTable, and send a RawTable unchanged, within the block."""
    import pika.data

    encode, decode = pika.data.encode_table, pika.data.decode_table

    def encode_raw(pieces: list[bytes], table: Any) -> int:
        if isinstance(table, RawTable):
            pieces += [struct.pack(">I", len(table)), bytes(table)]
            return len(table) + 4
        return int(encode(pieces, table))

    pika.data.encode_table, pika.data.decode_table = encode_raw, _decode
    try:
        yield
    finally:
        pika.data.encode_table, pika.data.decode_table = encode, decode


def json_bytes(octets: bytes) -> Any:
    """Return text, or {"b64": …} for bytes that are not UTF-8."""
    try:
        return bytes(octets).decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(octets).decode()}


def json_properties(properties: pika.BasicProperties) -> dict[str, Any]:
    found = {name: getattr(properties, name) for name in NAMES if getattr(properties, name) is not None}
    return {
        name: list(value) if name == "headers" else json_bytes(value) if isinstance(value, bytes) else value
        for name, value in found.items()
    }


def _fields(octets: bytes) -> TypedTable:
    at, out = 0, TypedTable()
    while at < len(octets):
        length = octets[at]
        name = octets[at + 1 : at + 1 + length]
        kind, value, at = _field(octets, at + 1 + length)
        out.append([json_bytes(name), kind, value])
    return out


def _field(octets: bytes, at: int) -> tuple[str, Any, int]:
    kind = chr(octets[at])
    at += 1
    if kind in "SxFA":
        (length,) = struct.unpack_from(">I", octets, at)
        inner = octets[at + 4 : at + 4 + length]
        at += 4 + length
        match kind:
            case "S":
                return "longstr", json_bytes(inner), at
            case "x":
                return "binary", {"b64": base64.b64encode(inner).decode()}, at
            case "F":
                return "table", _fields(inner), at
        place, values = 0, []
        while place < len(inner):
            name, value, place = _field(inner, place)
            values.append([name, value])
        return "array", values, at
    if kind in _FIXED:
        name, form = _FIXED[kind]
        return name, struct.unpack_from(form, octets, at)[0], at + struct.calcsize(form)
    if kind == "D":
        return "decimal", list(struct.unpack_from(">BI", octets, at)), at + 5
    if kind == "t":
        return "bool", octets[at] != 0, at + 1
    if kind == "V":
        return "void", None, at
    raise ValueError(f"field type {kind!r}")
