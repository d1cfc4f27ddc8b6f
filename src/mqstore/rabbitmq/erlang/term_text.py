r"""Erlang terms as text: `clean.dot`, `.config` and similar files, a sequence of terms each ended by a full stop.

    >>> read_text(b'% a comment\n{client_refs,[<<1,2,255>>,<<"text">>]}.\n{a, \'B c\', -16#ff, 1.5, "ab", #{k => []}}.')
    [(Atom('client_refs'), [b'\x01\x02\xff', b'text']), (Atom('a'), Atom('B c'), -255, 1.5, [97, 98], {Atom('k'): []})]
    >>> write_text([(Atom("client_refs"), [b"\x01\x02"]), (Atom("index_module"), Atom("rabbit_msg_store_ets_index"))])
    b'{client_refs,[<<1,2>>]}.\n{index_module,rabbit_msg_store_ets_index}.\n'

Strings are lists of numbers, as in Erlang. The output is that of Erlang's `~w.~n`. Only values are read: no macros, functions, pids or
binaries with sizes.

Format: docs/formats/rabbitmq.md, sections 2.3 and 8.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mqstore.rabbitmq.erlang.terms import MAX_ATOM_LENGTH, Atom, Term

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


class ErlangTextError(ValueError):
    """Text that is not a sequence of terms. offset: character position."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"character {offset}: {what}")
        self.offset = offset
        self.what = what

    def __reduce__(self) -> tuple[type[ErlangTextError], tuple[int, str]]:
        return ErlangTextError, (self.offset, self.what)


def read_text(content: bytes) -> list[Term]:
    """Return all terms of a file. Raises ErlangTextError."""
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
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise ErlangTextError(at, f"{text[at : at + 10]!r} is not part of a term")
        if found.lastgroup != "skip":
            yield found.lastgroup, found[found.lastgroup], at
        at = found.end()
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

    def mark(self, *wanted: str) -> str:
        kind, text, at = self.take()
        if kind != "mark" or text not in wanted:
            raise ErlangTextError(at, f"{' or '.join(wanted)} belongs here, not {text[:20]!r}")
        return text

    def at_mark(self, text: str) -> bool:
        return self.token[:2] == ("mark", text)

    def terms(self) -> list[Term]:
        found = []
        while self.token[0] != "end":
            found.append(self.term(MAX_DEPTH))
            self.mark(".")
        return found

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
            found = [ord(character) for character in _unescape(text, at)]
            while self.token[0] == "string":
                found += [ord(character) for character in _unescape(self.take()[1], at)]
            return found
        if kind == "char":
            return ord(_unescape(text, at))
        raise ErlangTextError(at, f"a term belongs here, not {text[:20] or 'the end'!r}")

    def row(self, close: str, depth: int) -> list[Term]:
        found: list[Term] = []
        if self.at_mark(close):
            self.take()
            return found
        while True:
            found.append(self.term(depth - 1))
            if self.mark(",", close) == close:
                return found

    def map(self, depth: int, at: int) -> dict[Term, Term]:
        found: dict[Term, Term] = {}
        if self.at_mark("}"):
            self.take()
            return found
        while True:
            key = self.term(depth - 1)
            self.mark("=>")
            try:
                found[key] = self.term(depth - 1)
            except TypeError:
                raise ErlangTextError(at, "a map whose keys are lists is not read") from None
            if self.mark(",", "}") == "}":
                return found

    def binary(self) -> bytes:
        found = bytearray()
        if self.at_mark(">>"):
            self.take()
            return b""
        while True:
            kind, text, at = self.take()
            if kind == "int" and text.isdigit() and len(text) <= 3 and int(text) <= 255:
                found.append(int(text))
            elif kind == "string":
                characters = _unescape(text, at)
                if any(ord(character) > 255 for character in characters):
                    raise ErlangTextError(at, "a character beyond 255 in a binary")
                found += characters.encode("latin-1")
            else:
                raise ErlangTextError(at, f"a binary is numbers up to 255 and text, not {text[:20]!r}")
            if self.mark(",", ">>") == ">>":
                return bytes(found)


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
    def one(found: re.Match[str]) -> str:
        wide, short, octal, control, plain = found.groups()
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
