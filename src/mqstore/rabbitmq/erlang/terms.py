"""Erlang terms as plain Python values, and their encoding as OTP writes it.

An atom is an `Atom`, a binary `bytes`, a string a list of numbers; tuples, lists, maps, integers and floats are Python's own.

    >>> encode((Atom("ok"), [1, 2, 3], [1, 300])).hex(" ")
    '83 68 03 64 00 02 6f 6b 6b 00 03 01 02 03 6c 00 00 00 02 61 01 62 00 00 01 2c 6a'

The output is that of OTP 25, byte for byte; with `atoms="utf8"` that of OTP 26 and newer. Maps keep their order: OTP 25 writes up to
32 keys in Erlang's term order.

Format: docs/formats/rabbitmq.md, section 9; the tags are listed in `etf`.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

Term = Any

VERSION = 131
MAX_ATOM_LENGTH = 255

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_F64 = struct.Struct(">d")


class Atom(str):
    """An atom. Equal to the text of its name; a binary is `bytes`, so the two cannot be confused."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Atom({str.__repr__(self)})"


class Pairs(tuple[tuple[Term, Term], ...]):
    """A map as its pairs, if a dict cannot hold it: keys that are lists or maps, or that Python considers equal."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class BitBinary:
    """A bit string. bits: number of used bits in the last byte, 1 to 8."""

    octets: bytes
    bits: int


@dataclass(frozen=True, slots=True)
class ImproperList:
    """A list whose tail is not a list."""

    items: tuple[Term, ...]
    tail: Term


@dataclass(frozen=True, slots=True)
class Opaque:
    """A pid, reference, port or function. encoded: its bytes, tag included."""

    encoded: bytes


def text_of(octets: bytes) -> str:
    """Return a name as text; bytes that are not UTF-8 become U+FFFD."""
    return octets.decode("utf-8", "replace")


def encode(term: Term, atoms: Literal["latin1", "utf8"] = "latin1") -> bytes:
    """Return the bytes that OTP writes for a term. atoms: `latin1` as up to OTP 25, `utf8` as since OTP 26.

    Raises TypeError for a value that is not a term, and ValueError for one out of range.
    """
    out = bytearray([VERSION])
    todo: list[Term] = [term]
    while todo:
        value = todo.pop()
        if type(value) is _RawBytes:
            out += value.octets
        elif isinstance(value, Atom):
            out += _atom_bytes(value, atoms)
        elif isinstance(value, bytes):
            out += b"m" + _U32.pack(len(value))
            out += value
        elif isinstance(value, Pairs | dict):
            pairs = list(value.items() if isinstance(value, dict) else value)
            out += b"t" + _U32.pack(len(pairs))
            for key, item in reversed(pairs):
                todo += (item, key)
        elif isinstance(value, tuple):
            out += bytes([104, len(value)]) if len(value) < 256 else b"i" + _U32.pack(len(value))
            todo.extend(reversed(value))
        elif isinstance(value, list):
            if value and len(value) < 1 << 16 and all(type(item) is int and 0 <= item <= 255 for item in value):
                out += b"k" + _U16.pack(len(value)) + bytes(value)
            elif value:
                out += b"l" + _U32.pack(len(value))
                todo.append(_NIL)
                todo.extend(reversed(value))
            else:
                out += b"j"
        elif type(value) is int:
            out += _int_bytes(value)
        elif type(value) is float and math.isfinite(value):
            out += b"F" + _F64.pack(value)
        elif isinstance(value, ImproperList):
            out += b"l" + _U32.pack(len(value.items))
            todo.append(value.tail)
            todo.extend(reversed(value.items))
        elif isinstance(value, BitBinary):
            out += b"M" + _U32.pack(len(value.octets)) + bytes([value.bits]) + value.octets
        elif isinstance(value, Opaque):
            out += value.encoded
        else:
            raise TypeError(f"{value!r} is not an Erlang term; use Atom for atoms and bytes for binaries")
    return bytes(out)


@dataclass(frozen=True, slots=True)
class _RawBytes:
    octets: bytes


_NIL = _RawBytes(b"j")


def _atom_bytes(atom: Atom, atoms: str) -> bytes:
    if len(atom) > MAX_ATOM_LENGTH:
        raise ValueError(f"an atom has at most {MAX_ATOM_LENGTH} characters, not {len(atom)}")
    if atoms == "latin1":
        try:
            name = atom.encode("latin-1")
            return b"d" + _U16.pack(len(name)) + name
        except UnicodeEncodeError:
            pass
    name = atom.encode("utf-8")
    return bytes([119, len(name)]) + name if len(name) < 256 else b"v" + _U16.pack(len(name)) + name


def _int_bytes(value: int) -> bytes:
    if 0 <= value <= 255:
        return bytes([97, value])
    if -(1 << 31) <= value < 1 << 31:
        return b"b" + _I32.pack(value)
    octets = abs(value).to_bytes((abs(value).bit_length() + 7) // 8, "little")
    sign = value < 0
    return bytes([110, len(octets), sign]) + octets if len(octets) < 256 else b"o" + _U32.pack(len(octets)) + bytes([sign]) + octets


# ---- Erlang terms as text: `clean.dot`, `.config` and similar files, a sequence of terms each ended by a full stop
#
# Strings are lists of numbers, as in Erlang. The output is that of Erlang's `~w.~n`. Only values are read: no macros, functions, pids or
# binaries with sizes.
#
# Format: docs/formats/rabbitmq.md, sections 2.3 and 8.1.

MAX_DEPTH = 64
# a message store with 100,000 queues has a clean.dot of 6 MB
MAX_TEXT_BYTES = 64 << 20
MAX_NUMBER_LENGTH = 400

_TOKEN = re.compile(
    r"""(?P<skip>[\s\x00]+|%[^\n]*)
    |(?P<float>[-+]?[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?)
    |(?P<based>[-+]?[0-9]{1,2}\#[0-9A-Za-z]+)
    |(?P<int>[-+]?[0-9]+)
    |(?P<atom>[a-zß-öø-ÿ][0-9A-Za-z_@À-ÖØ-öø-ÿ]*)
    |'(?P<quoted>(?:[^'\\]|\\.)*)'
    |"(?P<string>(?:[^"\\]|\\.)*)"
    |\$(?P<char>\\.|[^\\])
    |(?P<mark><<|>>|=>|\#\{|[{}\[\],|.])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|([0-7]{1,3})|\^(.)|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "b": "\b", "f": "\f", "e": "\x1b", "s": " ", "d": "\x7f"}


class NotATermError(ValueError):
    """What is not a term, or one beyond the limits. offset: where, in units of its kind."""

    unit = "byte"

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"{self.unit} {offset}: {what}")
        self.offset = offset
        self.what = what

    def __reduce__(self) -> tuple[type[Self], tuple[int, str]]:
        return type(self), (self.offset, self.what)


class ErlangTextError(NotATermError):
    """Text that is not a sequence of terms. offset: character position."""

    unit = "character"


def read_text(content: bytes) -> list[Term]:
    r"""Return all terms of a file. Raises ErlangTextError.

    >>> read_text(b'% a comment\n{client_refs,[<<1,2,255>>,<<"text">>]}.\n{a, \'B c\', -16#ff, 1.5, "ab", #{k => []}}.')
    [(Atom('client_refs'), [b'\x01\x02\xff', b'text']), (Atom('a'), Atom('B c'), -255, 1.5, [97, 98], {Atom('k'): []})]
    >>> write_text([(Atom("client_refs"), [b"\x01\x02"]), (Atom("index_module"), Atom("rabbit_msg_store_ets_index"))])
    b'{client_refs,[<<1,2>>]}.\n{index_module,rabbit_msg_store_ets_index}.\n'
    """
    if len(content) > MAX_TEXT_BYTES:
        raise ErlangTextError(MAX_TEXT_BYTES, f"a file of terms has at most {MAX_TEXT_BYTES} bytes, this one {len(content)}")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return _TermReader(text).terms()


Token = tuple[str, str, int]


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or token.lastgroup is None:
            raise ErlangTextError(at, f"{text[at : at + 10]!r} is not part of a term")
        if token.lastgroup != "skip":
            yield token.lastgroup, token[token.lastgroup], at
        at = token.end()
    yield "end", "", at


class _TermReader:
    """Reads terms with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.token: Token = next(self.tokens)

    def take(self) -> Token:
        taken = self.token
        if taken[0] != "end":
            self.token = next(self.tokens)
        return taken

    def mark(self, *expected: str) -> str:
        kind, text, at = self.take()
        if kind != "mark" or text not in expected:
            raise ErlangTextError(at, f"{' or '.join(expected)} belongs here, not {text[:20]!r}")
        return text

    def at_mark(self, text: str) -> bool:
        return self.token[:2] == ("mark", text)

    def terms(self) -> list[Term]:
        terms = []
        while self.token[0] != "end":
            terms.append(self.term(MAX_DEPTH))
            self.mark(".")
        return terms

    def term(self, depth: int) -> Term:
        kind, text, at = self.take()
        if not depth:
            raise ErlangTextError(at, f"terms nest deeper than {MAX_DEPTH}")
        if kind == "mark":
            if text == "{":
                return tuple(self.row("}", depth))
            if text == "[":
                return self.row("]", depth)
            if text == "<<":
                return self.binary()
            if text == "#{":
                return self.map(depth, at)
        if kind in ("int", "float", "based"):
            return _parse_number(kind, text, at)
        if kind in ("atom", "quoted"):
            name = text if kind == "atom" else _unescape(text, at)
            if len(name) > MAX_ATOM_LENGTH:
                raise ErlangTextError(at, f"an atom of {len(name)} characters")
            return Atom(name)
        if kind == "string":
            codes = [ord(character) for character in _unescape(text, at)]
            while self.token[0] == "string":
                codes += [ord(character) for character in _unescape(self.take()[1], at)]
            return codes
        if kind == "char":
            return ord(_unescape(text, at))
        raise ErlangTextError(at, f"a term belongs here, not {text[:20] or 'the end'!r}")

    def row(self, close: str, depth: int) -> list[Term]:
        items: list[Term] = []
        if self.at_mark(close):
            self.take()
            return items
        while True:
            items.append(self.term(depth - 1))
            if self.mark(",", close) == close:
                return items

    def map(self, depth: int, at: int) -> dict[Term, Term]:
        pairs: dict[Term, Term] = {}
        if self.at_mark("}"):
            self.take()
            return pairs
        while True:
            key = self.term(depth - 1)
            self.mark("=>")
            try:
                pairs[key] = self.term(depth - 1)
            except TypeError:
                raise ErlangTextError(at, "a map whose keys are lists is not read") from None
            if self.mark(",", "}") == "}":
                return pairs

    def binary(self) -> bytes:
        octets = bytearray()
        if self.at_mark(">>"):
            self.take()
            return b""
        while True:
            kind, text, at = self.take()
            if kind == "int" and text.isdigit() and len(text) <= 3 and int(text) <= 255:
                octets.append(int(text))
            elif kind == "string":
                characters = _unescape(text, at)
                if any(ord(character) > 255 for character in characters):
                    raise ErlangTextError(at, "a character beyond 255 in a binary")
                octets += characters.encode("latin-1")
            else:
                raise ErlangTextError(at, f"a binary is numbers up to 255 and text, not {text[:20]!r}")
            if self.mark(",", ">>") == ">>":
                return bytes(octets)


def _parse_number(kind: str, text: str, at: int) -> int | float:
    if len(text) > MAX_NUMBER_LENGTH:
        raise ErlangTextError(at, f"a number of {len(text)} digits")
    try:
        if kind == "float":
            return float(text)
        if kind == "int":
            return int(text)
        base, _, digits = text.partition("#")
        value = int(digits, abs(int(base)))
        return -value if base.startswith("-") else value
    except ValueError:
        raise ErlangTextError(at, f"{text[:20]!r} is not a number") from None


def _unescape(text: str, at: int) -> str:
    def one(match: re.Match[str]) -> str:
        wide, short, octal, control, plain = match.groups()
        if wide or short:
            return chr(int(wide or short, 16))
        if octal:
            return chr(int(octal, 8))
        return chr(ord(control) & 31) if control else _ESCAPED.get(plain, plain)

    if "\\" not in text:
        return text
    try:
        return _ESCAPE.sub(one, text)
    except (ValueError, OverflowError):
        raise ErlangTextError(at, "an escape beyond the last Unicode character") from None


# writing


def write_text(terms: Sequence[Term]) -> bytes:
    """Return the terms as the bytes of a file, one per line. Raises TypeError for a value that has no Erlang text."""
    return "".join(f"{_term_text(term)}.\n" for term in terms).encode("utf-8")


_PLAIN_ATOM = re.compile(r"[a-zß-öø-ÿ][0-9A-Za-z_@À-ÖØ-öø-ÿ]*\Z")
# without quotes these would be operators or keywords
_RESERVED = re.compile(
    r"(after|and|andalso|band|begin|bnot|bor|bsl|bsr|bxor|case|catch|cond|div|else|end|fun|if|let|maybe|not|of|or|orelse|receive|rem|try"
    r"|when|xor)\Z"
)


def _term_text(term: Term) -> str:
    if isinstance(term, Atom):
        if _PLAIN_ATOM.match(term) and not _RESERVED.match(term):
            return str(term)
        return "'" + term.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    if isinstance(term, bytes):
        return f"<<{','.join(map(str, term))}>>"
    if isinstance(term, tuple | list):
        inner = ",".join(map(_term_text, term))
        return f"{{{inner}}}" if isinstance(term, tuple) else f"[{inner}]"
    if isinstance(term, dict):
        return "#{" + ",".join(f"{_term_text(key)} => {_term_text(value)}" for key, value in term.items()) + "}"
    if type(term) in (int, float):
        return repr(term)
    raise TypeError(f"{term!r} is not an Erlang term that has a text")
