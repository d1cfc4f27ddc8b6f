"""Custom headers: the fields of a request, by name and Java type.

    >>> from mqstore.broker.protocol.frames import Frame
    >>> asked = Frame(11, ext={"queueId": "3", "queueOffset": "99999999999", "order": "TRUE", "count": "many"})
    >>> int32(asked, "queueId"), int64(asked, "queueOffset"), boolean(asked, "order"), int32_or(asked, "count", 16)
    (3, 99999999999, True, 16)
    >>> text(asked, "topic")
    Traceback (most recent call last):
    mqstore.broker.protocol.frames.ResponseError: the custom field <topic> is null

An invalid number, or one too large for its type, counts as missing. Of booleans only `true`, in any case, is true.

Protocol: docs/formats/rocketmq-remoting.md, section 1.4.
"""

from __future__ import annotations

from typing import overload

from mqstore.broker.protocol.codes import ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError

_I32, _I64 = 1 << 31, 1 << 63
_SMALL = {str(number): number for number in range(-1, 256)}  # the most frequent numbers in headers: queues, flags, counts


def missing(name: str) -> ResponseError:
    """Return the error of a request without a required field."""
    return ResponseError(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is null")


def number_or_none(written: str, bound: int = _I64) -> int | None:
    """Parse an integer as Java does. Returns None if it is not a number or is outside [-bound, bound)."""
    small = _SMALL.get(written)
    if small is not None:
        return small
    digits = written[1:] if written[:1] in ("-", "+") else written
    if not digits.isdecimal() or len(digits) > 32:
        return None
    number = int(written)
    return number if -bound <= number < bound else None


def text(frame: Frame, name: str) -> str:
    """Return a required string. Raises ResponseError."""
    found = frame.ext.get(name) if frame.ext is not None else None
    if found is None:
        raise missing(name)
    return found


@overload
def text_or(frame: Frame, name: str) -> str | None: ...
@overload
def text_or(frame: Frame, name: str, default: str) -> str: ...
def text_or(frame: Frame, name: str, default: str | None = None) -> str | None:
    """Return an optional string."""
    return frame.ext.get(name, default) if frame.ext is not None else default


def int32(frame: Frame, name: str) -> int:
    """Return a required int. Raises ResponseError."""
    number = number_or_none(text(frame, name), _I32)
    if number is None:
        raise missing(name)
    return number


def int64(frame: Frame, name: str) -> int:
    """Return a required long. Raises ResponseError."""
    number = number_or_none(text(frame, name))
    if number is None:
        raise missing(name)
    return number


@overload
def int32_or(frame: Frame, name: str) -> int | None: ...
@overload
def int32_or(frame: Frame, name: str, default: int) -> int: ...
def int32_or(frame: Frame, name: str, default: int | None = None) -> int | None:
    """Return an optional int."""
    return _number_or(frame, name, _I32, default)


@overload
def int64_or(frame: Frame, name: str) -> int | None: ...
@overload
def int64_or(frame: Frame, name: str, default: int) -> int: ...
def int64_or(frame: Frame, name: str, default: int | None = None) -> int | None:
    """Return an optional long."""
    return _number_or(frame, name, _I64, default)


def _number_or(frame: Frame, name: str, bound: int, default: int | None) -> int | None:
    found = frame.ext.get(name) if frame.ext is not None else None
    number = None if found is None else number_or_none(found, bound)
    return default if number is None else number


def boolean(frame: Frame, name: str) -> bool:
    """Return a required boolean. Raises ResponseError."""
    return text(frame, name).lower() == "true"


def boolean_or(frame: Frame, name: str, default: bool = False) -> bool:
    """Return an optional boolean."""
    found = frame.ext.get(name) if frame.ext is not None else None
    return default if found is None else found.lower() == "true"
