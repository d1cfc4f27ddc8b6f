"""Trace of a message: what clients reported about it in the topic RMQ_SYS_TRACE_TOPIC.

The body of a trace message is a sequence of items, each terminated by 02, with fields separated by 01:

    Pub         Pub, time, region, group, topic, message id, tags, keys, store host, body bytes, ms, message type, offset id, success, …
    SubBefore   SubBefore, time, region, group, request id, message id, retries, keys
    SubAfter    SubAfter, request id, message id, ms, success, keys, context code, [time, group]

SubBefore and SubAfter of one consumption share the request id.

    >>> raw = b"SubBefore\\x017\\x01r\\x01billing\\x01q1\\x01ID\\x010\\x01k\\x02SubAfter\\x01q1\\x01ID\\x015\\x01true\\x01k\\x010\\x02"
    >>> steps(raw, "ID")
    [Step(kind='consumed', time=7, group='billing', took_ms=5, success=True, detail='')]
    >>> steps(b"Pub\\x01nonsense\\x02", "ID")
    []
"""

from __future__ import annotations

from dataclasses import dataclass

_TYPES = {"0": "", "1": "half message", "2": "committed", "3": "delayed"}
_CODES = {"0": "", "1": "timed out", "2": "exception", "3": "returned null", "4": "failed"}


@dataclass(frozen=True, slots=True)
class Step:
    """One step in the life of a message. kind: `sent`, `consumed` or `begun` (no end was reported). time: ms, None if not reported."""

    kind: str
    time: int | None
    group: str
    took_ms: int | None
    success: bool | None
    detail: str


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _or_empty(text: str) -> str:
    return "" if text == "null" else text


def steps(body: bytes, message_id: str) -> list[Step]:
    """Return the steps of one message in a trace body; items of other messages and malformed items are ignored."""
    result: list[Step] = []
    begun: dict[str, list[str]] = {}
    ended: dict[str, list[str]] = {}
    for item in body.decode("utf-8", "replace").split("\x02"):
        fields = item.split("\x01")
        if fields[0] == "Pub" and len(fields) >= 13 and fields[5] == message_id:
            success = fields[13] == "true" if len(fields) > 13 else None
            result.append(Step("sent", _integer(fields[1]), fields[3], _integer(fields[10]), success, _TYPES.get(fields[11], "")))
        elif fields[0] == "SubBefore" and len(fields) >= 8 and fields[5] == message_id:
            begun[fields[4]] = fields
        elif fields[0] == "SubAfter" and len(fields) >= 6 and fields[2] == message_id:
            ended[fields[1]] = fields
    for request in dict.fromkeys((*begun, *ended)):
        before, after = begun.get(request), ended.get(request)
        time = _integer(before[1]) if before else _integer(after[7]) if after and len(after) > 7 else None
        group = _or_empty(before[3]) if before else after[8] if after and len(after) > 8 else ""
        if after is None:
            result.append(Step("begun", time, group, None, None, "no end was reported"))
        else:
            code = _CODES.get(after[6], "") if len(after) > 6 else ""
            retries = f"try {int(before[6]) + 1}" if before and before[6] not in ("0", "null") and _integer(before[6]) is not None else ""
            result.append(Step("consumed", time, group, _integer(after[3]), after[4] == "true", ", ".join(filter(None, (retries, code)))))
    return result
