"""The text that `find` looks for, in the forms in which messages hold it.

    text          its bytes in UTF-8
    base64        inside a longer text that was encoded as base64, in either alphabet, at any of the three alignments
    compressed    inside a body that is a whole gzip or zlib stream; expanded, then searched as above

Spans of a buffer are searched by a kernel, all forms at once. In base64 only the characters that depend on nothing but the text are
looked for; whether the text is really there is decided by decoding the characters around them. Texts of fewer than four bytes are
not looked for in base64, where nearly every body would contain them by chance.

>>> order = Needle("order-17")
>>> order.forms_in(b"paid: order-17"), order.forms_in(b"b3JkZXItMTc="), order.forms_in(b"order-18")
(('text',), ('base64',), ())
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UsageError
from mqstore.kernels.common.needles import mark_spans, shift_table

if TYPE_CHECKING:
    import pyarrow as pa

TEXT, BASE64, COMPRESSED = "text", "base64", "compressed"

LEAST_BYTES = 2
LEAST_IN_BASE64 = 4
MOST_BYTES = 4096
MAX_EXPANDED = 256 << 20

_RUN = re.compile(rb"[A-Za-z0-9+/_-]+")
_STANDARD = bytes.maketrans(b"-_", b"+/")

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Parts:
    """Byte strings to look for at once, each of at least two bytes.

    >>> texts = np.frombuffer(b"a DELAY|TIMER", np.uint8)
    >>> Parts(b"DELAY", b"TIMER").marks(texts, np.array([0, 8, 9]), np.array([7, 13, 13])).tolist()
    [True, True, False]
    """

    def __init__(self, *parts: bytes) -> None:
        self._needles = np.frombuffer(b"".join(parts), np.uint8)
        self._ends = np.cumsum([len(part) for part in parts]).astype(np.int64)
        self._shifts = np.empty(65536, np.uint8)
        self._window = shift_table(self._needles, self._ends, self._shifts)

    def marks(self, data: NDArray[np.uint8], starts: Longs, stops: Longs) -> Mask:
        """Return which spans of a buffer hold one of the parts."""
        marks = np.empty(len(starts), np.uint8)
        contiguous = np.ascontiguousarray
        mark_spans(data, contiguous(starts), contiguous(stops), self._needles, self._ends, self._shifts, self._window, marks)
        return marks.view(np.bool_)


class Needle:
    """A text to look for. Can be pickled. Raises UsageError for a text that is too short or too long."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.raw = text.encode("utf-8", "surrogateescape")
        if not LEAST_BYTES <= len(self.raw) <= MOST_BYTES:
            raise UsageError(f"the text to find must have {LEAST_BYTES} to {MOST_BYTES} bytes (got {len(self.raw)})")

    def __reduce__(self) -> tuple[type[Needle], tuple[str]]:
        return Needle, (self.text,)

    @cached_property
    def _encoded(self) -> tuple[bytes, ...]:
        """The characters of base64 that contain nothing but the text, for each alignment and alphabet."""
        if len(self.raw) < LEAST_IN_BASE64:
            return ()
        encoded: dict[bytes, None] = {}
        for before, dropped in ((0, 0), (1, 2), (2, 3)):
            padded = bytes(before) + self.raw
            inner = base64.b64encode(padded)[dropped : 8 * len(padded) // 6]
            encoded[inner] = None
            encoded[inner.translate(bytes.maketrans(b"+/", b"-_"))] = None
        return tuple(encoded)

    @cached_property
    def _forms(self) -> Parts:
        return Parts(self.raw, *self._encoded)

    def marks(self, data: NDArray[np.uint8], starts: Longs, stops: Longs) -> Mask:
        """Return which spans of a buffer hold the text in one of its forms; for base64, which may hold it."""
        return self._forms.marks(data, starts, stops)

    def marks_of(self, values: pa.Array) -> Mask:
        """Return which values of an Arrow column of texts or bytes hold the text, as `marks` does; null is False."""
        import pyarrow as pa

        _, offsets, data = values.cast(pa.large_binary()).buffers()
        if data is None or not len(values):
            return np.zeros(len(values), np.bool_)
        ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
        return self.marks(np.frombuffer(data, np.uint8), ends[:-1], ends[1:])

    def forms_in(self, raw: bytes) -> tuple[str, ...]:
        """Return the forms in which bytes hold the text: TEXT, BASE64, or, if they are a compressed stream, COMPRESSED first."""
        forms = []
        if self.raw in raw:
            forms.append(TEXT)
        if any(self._is_encoded(raw, inner) for inner in self._encoded):
            forms.append(BASE64)
        if not forms and looks_compressed(raw):
            expanded = expand(raw)
            inside = () if expanded is None else self.forms_in(expanded)
            return (COMPRESSED, *(form for form in inside if form != COMPRESSED)) if inside else ()
        return tuple(forms)

    def _is_encoded(self, raw: bytes, inner: bytes) -> bool:
        at = raw.find(inner)
        while at >= 0:
            # the run of base64 around it, from a place where it may be aligned
            low = at
            while low > 0 and at - low < 8 and _RUN.match(raw[low - 1 : low]):
                low -= 1
            run = raw[low : at + len(inner) + 4]
            for skip in range(min(4, at - low + 1)):
                text = run[skip:].translate(_STANDARD)
                whole = _RUN.match(text)
                if whole is not None and self.raw in _decoded(whole[0]):
                    return True
            at = raw.find(inner, at + 1)
        return False


def _decoded(text: bytes) -> bytes:
    """Decode base64 as far as it goes, without its padding."""
    text = text[: len(text) - 1] if len(text) % 4 == 1 else text
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4))
    except binascii.Error:
        return b""


def looks_compressed(raw: bytes) -> bool:
    """Return whether bytes begin as a gzip or zlib stream does."""
    return raw[:2] == b"\x1f\x8b" or (len(raw) > 5 and raw[0] == 0x78 and int.from_bytes(raw[:2], "big") % 31 == 0)


def expand(raw: bytes, limit: int = MAX_EXPANDED) -> bytes | None:
    """Return what a gzip or zlib stream holds; None if it is not one, or holds more than `limit` bytes."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        text = stream.decompress(raw, limit + 1)
    except zlib.error:
        return None
    return text if stream.eof and len(text) <= limit else None
