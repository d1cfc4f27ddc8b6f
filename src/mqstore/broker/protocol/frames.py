r"""Frames: the unit of communication in both directions. All integers are big-endian.

    bytes           field
    4               length: of what follows, 4 + header + body; at most 16 MiB including itself
    4               header word: serialization in the top byte (0 JSON, 1 ROCKETMQ), header length in the low 24 bits
    header length   header
    rest            body

A JSON header is one object: code, extFields (string to string), flag, language, opaque, remark, serializeTypeCurrentRPC, version. A
ROCKETMQ header is binary:

    2 code   1 language   2 version   4 opaque   4 flag   4 + n remark   4 + m fields (2 + k name, 4 + v value)*

The smallest frame, the response to a heartbeat:

    >>> smallest = encode(Frame(0, version=399, opaque=48, flag=1, serialization=Serialization.ROCKETMQ))
    >>> smallest.hex(" ", 4)
    '00 00001901 00001500 0000018f 00000030 00000001 00000000 00000000'
    >>> decode(smallest[4:]).opaque, Frame(105, ext={"topic": "T"}).is_response
    (48, False)

Flag bit 0 marks a response, bit 1 a request without a response (oneway). The requester chooses `opaque`, which the response repeats.
TLS is not supported.

Protocol: docs/formats/rocketmq-remoting.md, sections 1.1 to 1.6.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from json.encoder import encode_basestring as _quoted
from typing import Any

from mqstore.broker.protocol.codes import Language, ResponseCode

MAX_FRAME = 16 << 20  # including the length field
MAX_HEADER = 1 << 20  # a header holds properties of up to 32 KiB and some names; decoded it takes several times as much memory

RESPONSE, ONEWAY = 1, 2

_HEAD = struct.Struct(">II")
_U32 = struct.Struct(">I")
_JSON, _BINARY = 0, 1
_DECODER = json.JSONDecoder()
_FIXED = struct.Struct(">hbhii")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_LANGUAGES = {each.name: each for each in Language}
_BY_NUMBER = {each.value: each for each in Language}


class FrameError(Exception):
    """Malformed frame. The connection is closed without a response."""


class ResponseError(Exception):
    """Ends a request with this code and remark; raised by handlers."""

    def __init__(self, code: int, remark: str, ext: dict[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = ext


class Serialization(IntEnum):
    """Encoding of a header."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)
class Frame:
    """A request or a response. code: request or response code. ext: the custom header, or None.

    version: release number of the sender; 0 in an outgoing frame means the broker's own.
    """

    code: int
    ext: dict[str, str] | None = None
    body: bytes | memoryview = b""
    remark: str | None = None
    flag: int = 0
    opaque: int = 0
    language: Language = Language.JAVA
    version: int = 0
    serialization: Serialization = Serialization.JSON
    parts: Sequence[bytes | memoryview] = ()  # further parts of the body after `body`; sent without joining them

    @property
    def size(self) -> int:
        """About how many bytes of memory the frame takes."""
        fields = self.ext.items() if self.ext is not None else ()
        return 512 + len(self.body) + sum(128 + len(name) + len(value) for name, value in fields)

    def without_content(self) -> Frame:
        """Return what a response needs to know of a request: everything but the fields and the body."""
        known = self.language, self.version, self.serialization
        return Frame(self.code, None, b"", None, self.flag, self.opaque, *known)

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY)


def make_response(
    request: Frame,
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    ext: dict[str, str] | None = None,
    body: bytes | memoryview = b"",
) -> Frame:
    """Return a response to a request, in the request's serialization."""
    return Frame(code, ext, body, remark, RESPONSE, request.opaque, serialization=request.serialization)


def make_request(code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, oneway: bool = False) -> Frame:
    """Return a request; `opaque` is assigned when it is sent."""
    return Frame(code, ext, body, flag=ONEWAY if oneway else 0)


# encoding


def encode(frame: Frame, version: int = 0) -> bytes:
    """Encode a frame. version: used if the frame has none."""
    header = _json_header(frame, version) if frame.serialization is Serialization.JSON else _binary_header(frame, version)
    length = len(header)
    body = frame.body
    total = 4 + length + len(body)
    if frame.parts:
        total += sum(map(len, frame.parts))
    if total + 4 > MAX_FRAME or length > MAX_HEADER:
        raise FrameError(f"a frame of {total + 4} bytes with a header of {length} is larger than any receiver accepts")
    return b"".join((_HEAD.pack(total, frame.serialization << 24 | length), header, body, *frame.parts))


def _json_header(frame: Frame, version: int) -> bytes:
    """Encode the header as fastjson does: names in order, null values omitted."""
    ext = frame.ext
    fields = ""
    if ext is not None:
        fields = ',"extFields":{' + ",".join([f"{_quoted(name)}:{_quoted(value)}" for name, value in ext.items()]) + "}"
    remark = "" if frame.remark is None else f',"remark":{_quoted(frame.remark)}'
    text = (
        f'{{"code":{int(frame.code)}{fields},"flag":{frame.flag},"language":"{frame.language._name_}","opaque":{frame.opaque}{remark},'
        f'"serializeTypeCurrentRPC":"JSON","version":{frame.version or version}}}'
    )
    return text.encode("utf-8", "replace")


def _binary_header(frame: Frame, version: int) -> bytes:
    remark = b"" if frame.remark is None else frame.remark.encode("utf-8", "replace")
    fields = []
    for name, value in (frame.ext or {}).items():
        key, text = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        fields += [_I16.pack(len(key)), key, _I32.pack(len(text)), text]
    joined = b"".join(fields)
    fixed = _FIXED.pack(frame.code, frame.language, frame.version or version, frame.opaque, frame.flag)
    return b"".join((fixed, _I32.pack(len(remark)), remark, _I32.pack(len(joined)), joined))


# decoding


def decode(raw: bytes | bytearray | memoryview, start: int = 0, stop: int | None = None) -> Frame:
    """Decode a frame from what follows its length field: raw[start:stop]. Raises FrameError."""
    end = len(raw) if stop is None else stop
    if end - start < 4:
        raise FrameError(f"{end - start} bytes follow the length field; the header word takes 4")
    (word,) = _U32.unpack_from(raw, start)
    kind, length = word >> 24, word & 0xFFFFFF
    at = start + 4
    behind = at + length
    if behind > end:
        raise FrameError(f"the header of {length} bytes does not fit into the remaining {end - at}")
    if length > MAX_HEADER:
        raise FrameError(f"the header has {length} bytes; the maximum is {MAX_HEADER}")
    if type(raw) is bytes:
        header, body = raw[at:behind], raw[behind:end]
    else:
        with memoryview(raw) as view:
            header, body = bytes(view[at:behind]), bytes(view[behind:end])
    if kind == _JSON:
        return _from_json(header, body)
    if kind == _BINARY:
        return _from_binary(memoryview(header), body)
    raise FrameError(f"there is no serialization of type {kind}")


def _parse_json(header: bytes) -> Any:
    """Parse a header as `json.loads` does, with a fast path for a single object in UTF-8. Raises ValueError."""
    if header[:2] == b'{"':
        text = header.decode("utf-8", "surrogatepass")
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            return value
    return json.loads(header)


def _from_json(header: bytes, body: bytes) -> Frame:
    try:
        value = _parse_json(header)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the header is not JSON: {error}") from None
    if type(value) is not dict:
        raise FrameError("the header is not a JSON object")
    ext = value.get("extFields")
    if ext is not None:
        if type(ext) is not dict:
            raise FrameError("extFields is not a JSON object")
        for item in ext.values():
            if type(item) is not str:
                ext = {name: _as_text(item) for name, item in ext.items() if item is not None}
                break
    remark, language = value.get("remark"), value.get("language", "JAVA")
    return Frame(
        _unsigned_member(value, "code"),
        ext,
        body,
        remark if remark is None or type(remark) is str else _as_text(remark),
        _unsigned_member(value, "flag"),
        _unsigned_member(value, "opaque"),
        _LANGUAGES.get(language, Language.OTHER) if type(language) is str else Language.OTHER,
        _unsigned_member(value, "version"),
    )


def _unsigned_member(value: dict[str, Any], name: str) -> int:
    number = value.get(name, 0)
    if type(number) is int and 0 <= number < 1 << 31:
        return number
    if type(number) is str and len(number) <= 11:
        try:
            number = int(number)
        except ValueError:
            raise FrameError(f"{name} is not a number") from None
    if number is None:
        return 0
    if type(number) is not int or not -(1 << 31) <= number < 1 << 31:
        raise FrameError(f"{name} is not a 32-bit number")
    return number


def _as_text(value: object) -> str:
    """Convert a JSON value in place of a string as the Java decoder does."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a field cannot be converted to text: {error}") from None


def _from_binary(header: memoryview, body: bytes) -> Frame:
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(header)
        at = _FIXED.size
        remark, at = _sized(header, at, _I32)
        fields, at = _sized(header, at, _I32)
        ext = None
        if fields:
            ext, position = {}, 0
            while position < len(fields):
                name, position = _sized(fields, position, _I16)
                item, position = _sized(fields, position, _I32)
                ext[str(name, "utf-8", "replace")] = str(item, "utf-8", "replace")
    except struct.error:
        raise FrameError("the header ends in the middle of a field") from None
    return Frame(
        code,
        ext,
        body,
        str(remark, "utf-8", "replace") if remark else None,
        flag,
        opaque,
        _BY_NUMBER.get(language, Language.OTHER),
        version,
        Serialization.ROCKETMQ,
    )


def _sized(view: memoryview, at: int, length: struct.Struct) -> tuple[memoryview, int]:
    """Return (the bytes after a length field, their end)."""
    (size,) = length.unpack_from(view, at)
    at += length.size
    if size < 0 or size > len(view) - at:
        raise FrameError(f"a field of {size} bytes does not fit into the remaining {len(view) - at} of the header")
    return view[at : at + size], at + size
