"""The header of a send: fields of a message other than its body.

SEND_MESSAGE (10) has long names; SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320) use letters for the same fields:

    a producerGroup    b topic            c defaultTopic   d defaultTopicQueueNums   e queueId           f sysFlag
    g bornTimestamp    h flag             i properties     j reconsumeTimes          k unitMode          l maxReconsumeTimes
    m batch

    >>> from mqstore.broker.protocol.frames import Frame
    >>> short = dict(a="p1", b="orders", c="TBW102", d="4", e="0", f="0", g="1795230514507", h="7", i="TAGS\\x01eu")
    >>> asked = parse(Frame(310, ext=short))
    >>> asked.topic, asked.queue_id, asked.flag, asked.properties, asked.max_reconsume_times
    ('orders', 0, 7, b'TAGS\\x01eu', None)
    >>> del short["b"]
    >>> parse(Frame(310, ext=short))
    Traceback (most recent call last):
    mqstore.broker.protocol.frames.ResponseError: the custom field <b> is null

A batch is identified by its code or by `m`; its body is a sequence of messages:

    4 length   4 zero   4 zero   4 flag   4 + n body   2 + m properties

    >>> inner_messages(bytes.fromhex("000000180000000000000000000000070000000268690000"))
    [Inner(body=b'hi', properties=b'', flag=7)]

Protocol: docs/formats/rocketmq-remoting.md, sections 3.2 and 4.2.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError
from mqstore.broker.protocol.headers import missing, number_or_none
from mqstore.rocketmq.format.message import Inner

_SHORT = tuple("abcdefghijklm")
_LONG = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
)
_WITH_LONG_NAMES = frozenset({int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_REPLY_MESSAGE)})
_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_I32 = 1 << 31
_INNER = struct.Struct(">iiiii")


@dataclass(slots=True)
class SendHeader:
    """Header of a send. properties: unparsed. born_timestamp: ms. max_reconsume_times: None if missing."""

    producer_group: str
    topic: str
    default_topic: str
    default_queues: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: bytes
    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool


def _int32(fields: dict[str, str], name: str) -> int:
    written = fields.get(name)
    number = None if written is None else number_or_none(written, _I32)
    if number is None:
        raise missing(name)
    return number


def parse(request: Frame) -> SendHeader:
    """Parse the header of a send in either form. Raises ResponseError if a required field is missing."""
    fields = request.ext or {}
    names = _LONG if request.code in _WITH_LONG_NAMES else _SHORT
    get = fields.get
    group, topic, default = get(names[0]), get(names[1]), get(names[2])
    if group is None or topic is None or default is None:
        raise missing(next(name for name in names[:3] if name not in fields))
    born = number_or_none(get(names[6], ""))
    if born is None:
        raise missing(names[6])
    properties, tries, most = get(names[8]), get(names[9]), get(names[11])
    return SendHeader(
        group,
        topic,
        default,
        _int32(fields, names[3]),
        _int32(fields, names[4]),
        _int32(fields, names[5]),
        born,
        _int32(fields, names[7]),
        properties.encode("utf-8", "replace") if properties else b"",
        0 if tries is None else number_or_none(tries, _I32) or 0,
        get(names[10], "").lower() == "true",
        None if most is None else number_or_none(most, _I32),
        request.code == _BATCH or get(names[12], "").lower() == "true",
    )


def inner_messages(body: bytes) -> list[Inner]:
    """Parse the messages of a batch. Raises ResponseError for inconsistent lengths."""
    messages = []
    at, end = 0, len(body)
    while at < end:
        if end - at < _INNER.size:
            raise _overrun(at)
        _, _, _, flag, size = _INNER.unpack_from(body, at)
        at += _INNER.size
        if not 0 <= size <= end - at - 2:
            raise _overrun(at)
        text = body[at : at + size]
        at += size
        length = int.from_bytes(body[at : at + 2], "big", signed=True)
        at += 2
        if not 0 <= length <= end - at:
            raise _overrun(at)
        messages.append(Inner(text, body[at : at + length], flag))
        at += length
    return messages


def _overrun(at: int) -> ResponseError:
    return ResponseError(ResponseCode.SYSTEM_ERROR, f"java.nio.BufferUnderflowException: the batch ends within the message at byte {at}")
