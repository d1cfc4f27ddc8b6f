r"""JSON bodies, in the two forms that brokers use for maps whose keys are not strings.

    fastjson   {0:"127.0.0.1:10911"}     {{"brokerName":"b","queueId":0,"topic":"T"}:{…}}       4.x, and 5.x to clients before 4.9.4
    strict     {"0":"127.0.0.1:10911"}   {"{\"brokerName\":\"b\",\"queueId\":0,…}":{…}}         5.x to newer clients

Such keys are `int` and `MessageQueue` here. None values are omitted; names are in alphabetical order.

    >>> queue = MessageQueue("T", "b", 0)
    >>> encode({"offsetTable": {queue: {"maxOffset": 3}}}).decode()
    '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":3}}}'
    >>> encode({"brokerAddrs": {0: "127.0.0.1:10911"}, "cluster": None}, strict=True).decode()
    '{"brokerAddrs":{"0":"127.0.0.1:10911"}}'

Clients use both kinds of keys too, in responses to requests of the broker:

    >>> parse(b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7}}') == {"messageQueueTable": {queue: 7}}
    True

Protocol: docs/formats/rocketmq-remoting.md, section 1.9.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring as _quoted
from typing import Any, NamedTuple

from mqstore.broker.protocol.codes import V4_9_4, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError
from mqstore.broker.protocol.headers import boolean_or

MAX_DEPTH = 64


class BodyError(ValueError):
    """The body is not JSON as clients write it."""


class MessageQueue(NamedTuple):
    """A queue of a topic on a broker, the key of many maps."""

    topic: str
    broker_name: str
    queue_id: int

    def bean(self) -> dict[str, Any]:
        """Return its JSON object."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def takes_strict_json(request: Frame) -> bool:
    """Return whether a 5.x name server responds to a route query in strict JSON."""
    return request.version >= V4_9_4 or boolean_or(request, "acceptStandardJsonOnly")


def encode(value: object, *, strict: bool = False) -> bytes:
    """Encode a body. value: mappings, lists, strings, numbers, booleans, `MessageQueue` and None."""
    return _encode_value(value, strict).encode("utf-8", "replace")


def _encode_value(value: object, strict: bool) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return json.dumps(value, allow_nan=False)
    if isinstance(value, MessageQueue):
        return _encode_value(value.bean(), strict)
    if isinstance(value, Mapping):
        return "{" + ",".join(_encode_members(value, strict)) + "}"
    if isinstance(value, Iterable):
        return "[" + ",".join([_encode_value(item, strict) for item in value]) + "]"
    raise TypeError(f"{type(value).__name__} cannot be encoded in a body")


def _encode_members(value: Mapping[Any, object], strict: bool) -> list[str]:
    named = all(isinstance(name, str) for name in value)
    items = sorted(value.items()) if named else list(value.items())
    return [f"{_key(name, strict)}:{_encode_value(item, strict)}" for name, item in items if item is not None]


def _key(name: object, strict: bool) -> str:
    if isinstance(name, str):
        return _quoted(name)
    text = _encode_value(name, strict)
    return _quoted(text) if strict else text


# reading


def parse_request(request: Frame) -> dict[str, Any]:
    """Parse the body of a request as an object. Raises ResponseError."""
    try:
        value = parse(request.body)
    except BodyError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"the body of the request cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "the body of the request is not a JSON object")
    return value


def parse(raw: bytes | memoryview) -> Any:
    """Parse a body in either form; queue keys become `MessageQueue`, number keys `int`. Raises BodyError."""
    text = str(raw, "utf-8", "replace")
    try:
        return json.loads(text)
    except RecursionError:
        raise BodyError("nested too deeply") from None
    except ValueError:
        return _LenientParser(text).whole()


class _LenientParser:
    """Parser of JSON with unquoted numbers and objects as keys."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._decoder = json.JSONDecoder()

    def whole(self) -> Any:
        try:
            value, at = self._value(self._skip(0), 0)
        except (ValueError, IndexError, RecursionError) as error:
            raise BodyError(str(error) or type(error).__name__) from None
        if self._skip(at) != len(self._text):
            raise BodyError(f"unexpected text after the end, at character {at}")
        return value

    def _skip(self, at: int) -> int:
        text = self._text
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        return at

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        first = self._text[at]
        if first == "{":
            return self._object(at, depth)
        if first == "[":
            return self._list(at, depth)
        return self._decoder.raw_decode(self._text, at)

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = self._skip(at + 1)
        while self._text[at] != "]":
            if items:
                at = self._past(",", at)
            item, at = self._value(at, depth + 1)
            items.append(item)
            at = self._skip(at)
        return items, at + 1

    def _object(self, at: int, depth: int) -> tuple[dict[Any, Any], int]:
        members: dict[Any, Any] = {}
        at = self._skip(at + 1)
        while self._text[at] != "}":
            if members:
                at = self._past(",", at)
            key, at = self._value(at, depth + 1)
            at = self._past(":", self._skip(at))
            item, at = self._value(at, depth + 1)
            members[_as_key(key)] = item
            at = self._skip(at)
        return members, at + 1

    def _past(self, sign: str, at: int) -> int:
        if self._text[at] != sign:
            raise ValueError(f"{sign!r} expected at character {at}, found {self._text[at]!r}")
        return self._skip(at + 1)


def _as_key(key: Any) -> str | int | MessageQueue:
    if isinstance(key, (str, int)):
        return key
    if isinstance(key, dict):
        topic, name, number = key.get("topic"), key.get("brokerName"), key.get("queueId")
        if isinstance(topic, str) and isinstance(name, str) and isinstance(number, int):
            return MessageQueue(topic, name, number)
    raise ValueError("a key is neither a string, a number nor a queue")
