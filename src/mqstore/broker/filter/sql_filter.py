"""SQL92 expressions over the properties of a message, as consumers give them to choose messages.

    a > 5 AND b IN ('x', 'y') OR c IS NULL AND NOT (d BETWEEN 1 AND 9.5)

    operators    =  <>  <  <=  >  >=  [NOT] BETWEEN … AND …  [NOT] IN (…)  IS [NOT] NULL  NOT  AND  OR
                 [NOT] CONTAINS / STARTSWITH / ENDSWITH 'text'      of 5.x
    values       properties, 'texts' with '' for a quote, numbers, TRUE, FALSE; comments -- and /* */

    >>> wanted = compiled("n BETWEEN 3 AND 5 AND region <> 'eu'")
    >>> wanted({"n": "4", "region": "us"}), wanted({"n": "6", "region": "us"}), wanted({"n": "4"})
    (True, False, False)

Properties are texts; compared with a number they are read as one of its kind, so `n > 5` lets nothing through whose n is 5.5 or a word.
What is not there is unknown, and only what is surely true is let through. Unlike the broker's, this parser refuses what stands behind
the end of the expression instead of passing over it.

Source: Apache RocketMQ 4.9.3 and 5.3.3, SelectorParser.jj and the expressions of its filter module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from mqstore.broker.filter.sql_terms import (
    HOLDS,
    IncomparableError,
    Properties,
    Term,
    among,
    constant,
    equal,
    joined,
    negated,
    negation,
    order_of,
    ordered,
    property_of,
    text_test,
)
from mqstore.errors import UsageError

__all__ = ["SqlFilter", "compiled"]

SqlFilter = Callable[[Properties], bool]

MAX_DEPTH = 60
MAX_LENGTH = 16 << 10

_TOKEN = re.compile(
    r"""\s+ | --[^\n\r]*(?:[\n\r]|\Z) | /\*.*?\*/
    | (?P<float>\d+\.\d*(?:[eE][+-]?\d+)? | \.\d+(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+)
    | (?P<int>\d+[lL]?) | (?P<text>'(?:''|[^'])*') | (?P<name>[a-zA-Z_$][a-zA-Z0-9_$]*) | (?P<sign><>|<=|>=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_WORDS = frozenset(["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"])
_I64 = 1 << 63


@lru_cache(256)
def compiled(expression: str) -> SqlFilter:
    """What an expression lets through. Raises UsageError with a sentence for what is no expression."""
    if len(expression) > MAX_LENGTH:
        raise UsageError(f"the expression has {len(expression)} characters; at most {MAX_LENGTH} are taken")
    try:
        evaluate = _Parser(expression).whole().evaluate
    except RecursionError:
        raise UsageError("the expression is nested too deeply") from None

    def lets_through(properties: Properties) -> bool:
        try:
            return evaluate(properties) is True
        except (IncomparableError, RecursionError):
            return False

    return lets_through


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, expression: str) -> None:
        self._tokens = _tokens(expression)
        self._at = 0
        self._depth = 0

    def whole(self) -> Term:
        term = self._as_boolean(self._or())
        if self._at < len(self._tokens):
            raise UsageError(f"{self._tokens[self._at][1]!r} stands behind the end of the expression")
        return term

    # tokens

    def _next_is(self, *wanted: str) -> bool:
        """Whether these words or signs come next; then they are passed."""
        found = self._tokens[self._at : self._at + len(wanted)]
        if [text for kind, text in found if kind in ("word", "sign")] != list(wanted):
            return False
        self._at += len(wanted)
        return True

    def _expect(self, wanted: str) -> None:
        if not self._next_is(wanted):
            raise UsageError(f"{wanted} is expected where the expression has {self._here()}")

    def _here(self) -> str:
        return repr(self._tokens[self._at][1]) if self._at < len(self._tokens) else "its end"

    def _text(self) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != "text":
            raise UsageError(f"a 'text' is expected where the expression has {self._here()}")
        self._at += 1
        return self._tokens[self._at - 1][1]

    @staticmethod
    def _as_boolean(term: Term) -> Term:
        if term.boolean:
            return term
        if not term.name:
            raise UsageError("the expression is a value, not a condition")

        return Term(lambda properties: None if term.evaluate(properties) is None else False, boolean=True)

    # grammar

    def _or(self) -> Term:
        terms = [self._and()]
        while self._next_is("OR"):
            terms.append(self._and())
        return terms[0] if len(terms) == 1 else joined([self._as_boolean(term) for term in terms], True)

    def _and(self) -> Term:
        terms = [self._equality()]
        while self._next_is("AND"):
            terms.append(self._equality())
        return terms[0] if len(terms) == 1 else joined([self._as_boolean(term) for term in terms], False)

    def _equality(self) -> Term:
        left = self._comparison()
        while True:
            if self._next_is("IS", "NULL"):
                left = equal(left, constant(None))
            elif self._next_is("IS", "NOT", "NULL"):
                left = negation(equal(left, constant(None)))
            elif self._next_is("="):
                left = equal(*self._comparable(left, self._comparison()))
            elif self._next_is("<>"):
                left = negation(equal(*self._comparable(left, self._comparison())))
            else:
                return left

    @staticmethod
    def _comparable(left: Term, right: Term) -> tuple[Term, Term]:
        if any(term.constant and term.value is None for term in (left, right)):
            raise UsageError("nothing equals NULL; write IS NULL")
        return left, right

    def _comparison(self) -> Term:
        left = self._unary()
        while True:
            sign = next((each for each in HOLDS if self._next_is(each)), None)
            if sign is not None:
                left = ordered(self._number(left), self._number(self._unary()), HOLDS[sign])
                continue
            inverted = self._next_is("NOT")
            if self._next_is("BETWEEN"):
                left = self._between(left, inverted)
            elif self._next_is("IN"):
                left = self._in(left, inverted)
            elif self._next_is("CONTAINS"):
                left = self._searched(left, inverted, lambda value, text: text in value)
            elif self._next_is("STARTSWITH"):
                left = self._searched(left, inverted, str.startswith)
            elif self._next_is("ENDSWITH"):
                left = self._searched(left, inverted, str.endswith)
            elif inverted:
                raise UsageError(f"BETWEEN or IN is expected behind NOT where the expression has {self._here()}")
            else:
                return left

    @staticmethod
    def _number(term: Term) -> Term:
        if term.boolean or (term.constant and (isinstance(term.value, (bool, str)) or term.value is None)):
            raise UsageError("only numbers and properties can be compared with <, <=, >, >= and BETWEEN")
        return term

    def _between(self, value: Term, inverted: bool) -> Term:
        low = self._number(self._unary())
        self._expect("AND")
        high = self._number(self._unary())
        if low.constant and high.constant and order_of(low.value, high.value) > 0:
            raise UsageError(f"between {low.value} and {high.value} there is nothing; the smaller number comes first")
        self._number(value)
        if inverted:
            return joined([ordered(value, low, HOLDS["<"]), ordered(value, high, HOLDS[">"])], True)
        return joined([ordered(value, low, HOLDS[">="]), ordered(value, high, HOLDS["<="])], False)

    def _in(self, value: Term, inverted: bool) -> Term:
        if not value.name:
            raise UsageError("a property is expected in front of IN")
        self._expect("(")
        texts = [self._text()]
        while self._next_is(","):
            texts.append(self._text())
        self._expect(")")
        return among(value, frozenset(texts), inverted=inverted)

    def _searched(self, value: Term, inverted: bool, found: Callable[[str, str], bool]) -> Term:
        if not value.name:
            raise UsageError("a property is expected in front of CONTAINS, STARTSWITH and ENDSWITH")
        text = self._text()
        return text_test(value, lambda held: bool(text) and found(held, text) is not inverted)

    def _unary(self) -> Term:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UsageError("the expression is nested too deeply")
        try:
            if self._next_is("+"):
                return self._unary()
            if self._next_is("-"):
                return negated(self._unary())
            if self._next_is("NOT"):
                return negation(self._as_boolean(self._unary()))
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Term:
        if self._next_is("("):
            term = self._or()
            self._expect(")")
            return term
        for word, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._next_is(word):
                return constant(value, boolean=True)
        if self._at >= len(self._tokens):
            raise UsageError("the expression ends too early")
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "name":
            return property_of(text)
        if kind == "text":
            return constant(text)
        if kind == "float":
            return constant(_finite(text))
        if kind == "int":
            number = int(text.rstrip("lL")) if len(text) < 32 else _I64
            if number >= _I64:
                raise UsageError(f"{text} is larger than a number can be")
            return constant(number)
        raise UsageError(f"a value is expected where the expression has {text!r}")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), 0.0):
        raise UsageError(f"{text} is a number that cannot be written so")
    return number


def _tokens(expression: str) -> list[tuple[str, str]]:
    """(kind, text) of each token; the text of a 'text' is what it stands for, a word is in capitals. Raises UsageError."""
    found = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise UsageError(f"the expression cannot be read from {expression[at : at + 20]!r} on")
        at = match.end()
        kind, text = match.lastgroup, match.group()
        if kind is None:
            continue
        if kind == "text":
            text = text[1:-1].replace("''", "'")
        elif kind == "name" and text.upper() in _WORDS:
            kind, text = "word", text.upper()
        found.append((kind, text))
    return found
