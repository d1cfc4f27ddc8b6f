"""Views of a body: text, indented JSON, and a hex dump. None of them contains anything that a browser would run.

>>> views(b'{"a":[1,2]}').likely, views(b"paid").likely, views(b"\\x00\\x01\\xff").likely
('json', 'text', 'hex')
>>> hex_lines(b"paid\\n")
[HexLine(at=0, bytes='70 61 69 64 0a', letters='paid.')]
>>> unpack(zlib.compress(b"paid")), unpack(b"paid")
(Unpacked(method='zlib', content=b'paid', why=''), None)
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from mqstore.rocketmq.format.compression import COMPRESSED, BadCompressionError, decompress
from mqstore.table.formatting import printable, size

SHOWN = 64 << 10
HEX_SHOWN = 4 << 10
JSON_READ = 1 << 20
UNPACKED = 8 << 20  # bytes that a compressed body may expand to


class HexLine(NamedTuple):
    """A line of sixteen bytes. at: position in the body."""

    at: int
    bytes: str
    letters: str


@dataclass(frozen=True, slots=True)
class BodyViews:
    """Views of a body. text: None if the bytes are not text; pretty: None if they are not JSON. likely: `json`, `text` or `hex`."""

    size: int
    text: str | None
    pretty: str | None
    lossy: str

    @property
    def likely(self) -> str:
        return "json" if self.pretty is not None else "text" if self.text is not None else "hex"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The content of a body that its producer compressed. content: None if it cannot be decompressed, for the reason why."""

    method: str
    content: bytes | None
    why: str = ""


def _method(body: bytes) -> str | None:
    """Return the method that the first bytes of a body announce."""
    for magic, method in ((b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x04\x22\x4d\x18", "LZ4")):
        if body.startswith(magic):
            return method
    return "zlib" if len(body) > 5 and body[0] == 0x78 and (body[0] << 8 | body[1]) % 31 == 0 else None


def unpack(body: bytes, limit: int = UNPACKED) -> Unpacked | None:
    """Decompress a body that is itself gzip, zlib, zstd or LZ4; None for one that is not. Reads at most `limit` bytes of content."""
    method = _method(body)
    if method is None:
        return None
    try:
        if method == "gzip":
            stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
            content = stream.decompress(body, limit + 1)
            if len(content) > limit:
                raise BadCompressionError(f"the body expands beyond {size(limit)}")
            if not stream.eof:
                raise BadCompressionError("the gzip stream ends early")
        else:
            content = decompress(body, COMPRESSED | {"zlib": 0, "LZ4": 1, "zstd": 2}[method] << 8, limit)
    except (BadCompressionError, zlib.error) as error:
        # two bytes of a zlib stream also begin other content
        return None if method == "zlib" and "expands" not in str(error) else Unpacked(method, None, str(error))
    except ImportError as error:
        return Unpacked(method, None, f"the library for {method} is not installed ({error.name})")
    return Unpacked(method, content)


def plain_text(text: str) -> str:
    """Escape control characters and direction marks, except newlines and tabs."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(printable(part) for part in line.split("\t")) for line in lines)


def views(body: bytes) -> BodyViews:
    """Return the views of a body, limited to the beginning of a long one."""
    head = body[:SHOWN]
    lossy = plain_text(head.decode("utf-8", "replace"))
    return BodyViews(len(body), decode_head(head, cut=len(body) > SHOWN), _pretty(body), lossy)


def decode_head(head: bytes, *, cut: bool) -> str | None:
    """Return text, without a character that is cut off at the end; None for bytes that are not text. cut: whether more bytes follow."""
    for length in range(len(head), max(-1, len(head) - 4), -1):
        # a character cut at the end does not mean that the content is binary
        try:
            text = head[:length].decode("utf-8")
        except UnicodeDecodeError:
            if not cut:
                return None
            continue
        return plain_text(text) if all(letter.isprintable() or letter in "\n\r\t" for letter in text) else None
    return None


def _pretty(body: bytes) -> str | None:
    """Indent JSON; objects and lists only, since a single number or word has no structure to show."""
    if len(body) > JSON_READ or body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        # in pieces: the indentation of deep lines can be a thousand times the size of the content
        pieces, length = [], 0
        for piece in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(json.loads(body)):
            pieces.append(piece)
            length += len(piece)
            if length > SHOWN:
                break
    except (ValueError, RecursionError):
        return None
    return plain_text("".join(pieces)[:SHOWN]) + ("\n…" if length > SHOWN else "")


def hex_lines(raw: bytes, start: int = 0, limit: int = HEX_SHOWN) -> list[HexLine]:
    """Return lines of sixteen bytes from a position, rounded down to a line."""
    start -= start % 16
    found = []
    for at in range(start, min(len(raw), start + limit), 16):
        line = raw[at : at + 16]
        found.append(HexLine(at, line.hex(" "), "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)))
    return found
