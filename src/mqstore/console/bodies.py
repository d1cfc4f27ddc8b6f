"""Views of a body: text, indented JSON, and a hex dump. None of them contains anything that a browser would run.

>>> views(b'{"a":[1,2]}').likely, views(b"paid").likely, views(b"\\x00\\x01\\xff").likely
('json', 'text', 'hex')
>>> hex_lines(b"paid\\n")
[HexLine(at=0, bytes='70 61 69 64 0a', letters='paid.')]
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from mqstore.table.formatting import printable

SHOWN = 64 << 10
HEX_SHOWN = 4 << 10
JSON_READ = 1 << 20


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


def hex_lines(raw: bytes, start: int = 0) -> list[HexLine]:
    """Return lines of sixteen bytes from a position, rounded down to a line; at most HEX_SHOWN bytes."""
    start -= start % 16
    lines = []
    for at in range(start, min(len(raw), start + HEX_SHOWN), 16):
        line = raw[at : at + 16]
        lines.append(HexLine(at, line.hex(" "), "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)))
    return lines
