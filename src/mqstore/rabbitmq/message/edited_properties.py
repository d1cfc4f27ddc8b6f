"""AMQP properties from JSON, as `messages -o jsonl` prints them and a person may edit them: the inverse of `json_properties`.

Headers are a list of [name, type, value], as printed, or an object of plain values, whose types follow from JSON:

    >>> properties_from_json({"message_id": "o-17", "headers": {"shop": "a", "count": 3}})
    {'message_id': b'o-17', 'headers': [[b'shop', 'longstr', b'a'], [b'count', 'long', 3]]}
    >>> properties_from_json({"headers": [["id", "binary", {"b64": "/w=="}]]})
    {'headers': [[b'id', 'binary', b'\xff']]}
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from mqstore.rabbitmq.message.properties import MAX_DEPTH, Properties, PropertiesError, properties_to_bin

__all__ = ["properties_from_json"]

_NUMBERS = ("delivery_mode", "priority", "timestamp")
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def properties_from_json(value: object) -> Properties:
    """Return properties in memory. Raises PropertiesError for what they cannot be."""
    if not isinstance(value, dict):
        raise PropertiesError(f"properties must be an object, not {_short(value)}")
    found: Properties = {}
    for name, each in value.items():
        if each is None:
            continue
        if name == "headers":
            found[name] = _fields(each, True, MAX_DEPTH)
        elif name in _NUMBERS:
            if type(each) is not int:
                raise PropertiesError(f"{name} must be a whole number, not {_short(each)}")
            found[name] = each
        else:
            found[name] = _octets(name, each)
    properties_to_bin(found)  # whatever a field cannot hold
    return found


def _octets(name: str, value: object) -> bytes:
    """Return text, or bytes that are given as {"b64": ...}."""
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and list(value) == ["b64"]:
            return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, ValueError, TypeError):
        pass
    raise PropertiesError(f'{name} must be text, or bytes as {{"b64": ...}}, not {_short(value)}')


def _fields(value: object, named: bool, depth: int) -> list[list[Any]]:
    if not depth:
        raise PropertiesError(f"header tables nest deeper than {MAX_DEPTH}")
    if named and isinstance(value, dict):
        return [[name.encode("utf-8", "replace"), *_guessed(name, each, depth)] for name, each in value.items()]
    if not isinstance(value, list):
        raise PropertiesError(f"headers must be a list of [name, type, value], or an object, not {_short(value)}")
    found = []
    for field in value:
        if not isinstance(field, list) or len(field) != 2 + named or not isinstance(field[-2], str):
            raise PropertiesError(f"a header is [name, type, value] (in an array [type, value]), not {_short(field)}")
        name = [_octets("the name of a header", field[0])] if named else []
        found.append([*name, field[-2], _value(field[-2], field[-1], depth)])
    return found


def _value(kind: str, value: Any, depth: int) -> Any:
    if kind in ("table", "array"):
        return _fields(value, kind == "table", depth - 1)
    if kind in ("longstr", "binary"):
        return _octets("a header", value)
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
        return "table", _fields(value, True, depth - 1)
    if isinstance(value, list):
        return "array", [[*_guessed(name, each, depth - 1)] for each in value] if depth > 1 else _fields(value, False, 0)
    raise PropertiesError(f"header {name!r} cannot be {_short(value)}")


def _short(value: object) -> str:
    return f"{json.dumps(value, ensure_ascii=False)[:60]}"
