"""SQL92 expressions over message properties, as consumers use them to select messages.

    a > 5 AND b IN ('x', 'y') OR c IS NULL AND NOT (d BETWEEN 1 AND 9.5)

    operators    =  <>  <  <=  >  >=  [NOT] BETWEEN … AND …  [NOT] IN (…)  IS [NOT] NULL  NOT  AND  OR
                 [NOT] CONTAINS / STARTSWITH / ENDSWITH 'text'      of 5.x
    values       properties, 'texts' with '' for a quote, numbers, TRUE, FALSE; comments -- and /* */

    >>> matches = compile_expression("n BETWEEN 3 AND 5 AND region <> 'eu'")
    >>> matches({"n": "4", "region": "us"}), matches({"n": "6", "region": "us"}), matches({"n": "4"})
    (True, False, False)

Properties are strings. Compared with a number, they are parsed as a number of the same type, a 32-bit int, a long or a double:
`n > 5` does not match an n of 5.5 or a word.
A missing property is unknown, and only messages for which the expression is true are delivered. Unlike the broker's parser, this one
rejects trailing text instead of ignoring it.

The grammar is parsed by `lark`; `lark` takes 0.1 s to import and to build its tables, so this
module is imported when the first expression arrives.

Source: Apache RocketMQ 4.9.3 and 5.3.3, SelectorParser.jj and the expressions of its filter module.

A term of an expression is a value that may be unknown:

    >>> n = Term(lambda properties: properties.get("n"), name="n")
    >>> found = comparison(n, constant(5), HOLDS[">"]).evaluate
    >>> found({"n": "6"}), found({"n": "4"}), found({})
    (True, False, None)

Values that cannot be compared end the evaluation, and the message does not match.
"""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from mqstore.errors import UsageError

# terms


Properties = Mapping[str, str]
Value = bool | int | float | str | None
Evaluate = Callable[[Properties], Value]

_DOUBLE = re.compile(r"\s*(?:[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[dDfF]?|[+-]?(?:NaN|Infinity))\s*", re.ASCII)
_I32, _I64 = 1 << 31, 1 << 63


class IncomparableError(Exception):
    """The values cannot be compared, so the message does not match."""


class Term:
    """Part of an expression. constant: its value is known. boolean: it is true, false or unknown. name: of the property, if it is one."""

    __slots__ = ("boolean", "constant", "evaluate", "name", "value")

    def __init__(self, evaluate: Evaluate, *, boolean: bool = False, constant: bool = False, value: Value = None, name: str = "") -> None:
        self.evaluate = evaluate
        self.boolean = boolean
        self.constant = constant
        self.value = value
        self.name = name


def constant(value: Value, *, boolean: bool = False) -> Term:
    return Term(lambda _: value, boolean=boolean, constant=True, value=value)


def property_of(name: str) -> Term:
    return Term(lambda properties: properties.get(name), name=name)


def _number_like(text: str, other: float | int) -> float | int:
    """Parse a string as a number of the type it is compared with. Raises IncomparableError."""
    if isinstance(other, float):
        return _double(text)
    digits = text[1:] if text[:1] in ("+", "-") else text
    bound = _I32 if -_I32 <= other < _I32 else _I64
    if not digits.isdecimal() or len(digits) > 32 or not -bound <= int(text) < bound:
        raise IncomparableError
    return int(text)


def _double(text: str) -> float:
    if not _DOUBLE.fullmatch(text):
        raise IncomparableError
    return float(text.strip().rstrip("dDfF") if text.strip()[-1:] in "dDfF" and "nfin" not in text else text)


def order_of(left: Value, right: Value) -> int:
    """Compare as Java does: negative, zero or positive. Raises IncomparableError."""
    if isinstance(left, bool) or isinstance(right, bool):
        if isinstance(left, str) and isinstance(right, bool):
            left = left.lower() == "true"
        if isinstance(left, bool) and isinstance(right, str):
            raise IncomparableError
        return int(left) - int(right) if isinstance(left, bool) and isinstance(right, bool) else -1
    if isinstance(left, str) and isinstance(right, (int, float)):
        left = _number_like(left, right)
    elif isinstance(left, (int, float)) and isinstance(right, str):
        right = _number_like(right, left)
    if left == right:
        return 0
    return 1 if left > right else -1  # type: ignore[operator]


def equality(left: Term, right: Term) -> Term:
    def evaluate(properties: Properties) -> Value:
        a, b = left.evaluate(properties), right.evaluate(properties)
        if a is None and b is not None:
            return None
        if a is None or b is None:
            return a is None
        return order_of(a, b) == 0

    return Term(evaluate, boolean=True)


def comparison(left: Term, right: Term, holds: Callable[[int], bool]) -> Term:
    def evaluate(properties: Properties) -> Value:
        a, b = left.evaluate(properties), right.evaluate(properties)
        if a is None or b is None:
            return None
        if isinstance(a, str) and isinstance(b, str):
            return holds(order_of(_double(a), _double(b)))
        return holds(order_of(a, b))

    return Term(evaluate, boolean=True)


def logical_not(term: Term) -> Term:
    def evaluate(properties: Properties) -> Value:
        value = term.evaluate(properties)
        return None if value is None else not value

    return Term(evaluate, boolean=True)


def minus(term: Term) -> Term:
    def evaluate(properties: Properties) -> Value:
        value = term.evaluate(properties)
        return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    if term.constant and isinstance(term.value, (int, float)) and not isinstance(term.value, bool):
        return constant(-term.value)
    return Term(evaluate)


def junction(terms: list[Term], decides: bool) -> Term:
    """Return the AND (decides: False) or OR (decides: True) of terms: `decides` if any is, else unknown if any is, else the other value."""

    def evaluate(properties: Properties) -> Value:
        unknown = False
        for term in terms:
            value = term.evaluate(properties)
            if value is decides:
                return decides
            unknown |= value is None
        return None if unknown else not decides

    return terms[0] if len(terms) == 1 else Term(evaluate, boolean=True)


def text_test(term: Term, holds: Callable[[str], bool]) -> Term:
    def evaluate(properties: Properties) -> Value:
        value = term.evaluate(properties)
        return holds(value) if isinstance(value, str) else False

    return Term(evaluate, boolean=True)


def membership(term: Term, texts: frozenset[str], *, inverted: bool) -> Term:
    def evaluate(properties: Properties) -> Value:
        value = term.evaluate(properties)
        return (value in texts) is not inverted if isinstance(value, str) else None

    return Term(evaluate, boolean=True)


HOLDS: dict[str, Callable[[int], bool]] = {
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


SqlFilter = Callable[[Properties], bool]

MAX_DEPTH = 60
MAX_LENGTH = 16 << 10
_I64 = 1 << 63

_GRAMMAR = r"""
?start: disjunction -> condition
?disjunction: conjunction ("OR"i conjunction)+ -> any_of
    | conjunction
?conjunction: equality ("AND"i equality)+ -> all_of
    | equality

?equality: comparison
    | equality "=" comparison       -> equals
    | equality UNEQUAL comparison   -> differs
    | equality "IS"i "NULL"i        -> is_null
    | equality "IS"i NOT "NULL"i    -> is_not_null

?comparison: unary
    | comparison ORDER unary                            -> compared
    | comparison [NOT] "BETWEEN"i unary "AND"i unary    -> between
    | comparison [NOT] "IN"i "(" TEXT ("," TEXT)* ")"   -> is_in
    | comparison [NOT] "CONTAINS"i TEXT                 -> contains
    | comparison [NOT] "STARTSWITH"i TEXT               -> starts_with
    | comparison [NOT] "ENDSWITH"i TEXT                 -> ends_with

?unary: primary
    | "+" unary
    | "-" unary    -> minus
    | NOT unary    -> inverse

?primary: "(" disjunction ")"
    | "TRUE"i     -> true
    | "FALSE"i    -> false
    | "NULL"i     -> null
    | NAME        -> property
    | TEXT        -> text
    | FLOAT       -> float
    | INT         -> integer

NOT: "NOT"i
UNEQUAL.2: "<>"
ORDER: "<=" | ">=" | "<" | ">"
NAME: /[a-z_$][a-z0-9_$]*/i
TEXT: /'(''|[^'])*'/
FLOAT.2: /[0-9]+\.[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
INT: /[0-9]+l?/i

%ignore /[ \t\n\r\f\v]+/
%ignore /--[^\n\r]*/
%ignore /\/\*.*?\*\//s
"""


@lru_cache(256)
def compile_expression(expression: str) -> SqlFilter:
    """Compile an expression. Raises UsageError with a sentence if it is not valid."""
    if len(expression) > MAX_LENGTH:
        raise UsageError(f"the expression has {len(expression)} characters; the maximum is {MAX_LENGTH}")
    evaluate = _parse_expression(expression).evaluate

    def matches(properties: Properties) -> bool:
        try:
            return evaluate(properties) is True
        except (IncomparableError, RecursionError):
            return False

    return matches


def _parse_expression(expression: str) -> Term:
    try:
        return cast("Term", _PARSER.parse(expression))
    except UnexpectedCharacters as error:
        start = cast("int", error.pos_in_stream)
        raise UsageError(f"the expression cannot be read from {expression[start : start + 20]!r} on") from None
    except UnexpectedToken as error:
        token, expected = error.token, error.expected
        if token.type == "$END":
            raise UsageError(f"the expression ends too early; {_described(expected)} is expected") from None
        if "$END" in expected:
            raise UsageError(f"{str(token)!r} follows the end of the expression") from None
        raise UsageError(f"{_described(expected)} is expected where the expression has {str(token)!r}") from None


def _described(terminals: Iterable[str]) -> str:
    """Name what may come next, shortly: operators may follow everywhere."""
    if "NAME" in terminals:
        return "a value"
    if "OR" in terminals:
        return ")"
    names = {"TEXT": "a 'text'", "LPAR": "(", "RPAR": ")", "COMMA": ","}
    return " or ".join(sorted(names.get(terminal, terminal) for terminal in terminals))


class _NestingLimit:
    """Rejects deep nesting of parentheses and prefix operators: terms are evaluated recursively."""

    always_accept = ()

    def process(self, tokens: Iterator[Token]) -> Iterator[Token]:
        depth = prefixes = 0
        opened = []
        for token in tokens:
            if token.type in ("PLUS", "MINUS", "NOT"):
                prefixes += 1
            elif token.type == "LPAR":
                opened.append(prefixes + 1)
                depth += prefixes + 1
                prefixes = 0
            else:
                prefixes = 0
                if token.type == "RPAR" and opened:
                    depth -= opened.pop()
            if depth + prefixes >= MAX_DEPTH:
                raise UsageError(f"the expression is nested too deeply; the maximum is {MAX_DEPTH} levels")
            yield token


@v_args(inline=True)
class _Terms(Transformer[Token, Term]):
    """Makes the term of each rule of the grammar."""

    def condition(self, term: Term) -> Term:
        return _as_boolean(term)

    def any_of(self, *terms: Term) -> Term:
        return junction([_as_boolean(term) for term in terms], True)

    def all_of(self, *terms: Term) -> Term:
        return junction([_as_boolean(term) for term in terms], False)

    def equals(self, left: Term, right: Term) -> Term:
        if any(term.constant and term.value is None for term in (left, right)):
            raise UsageError("nothing equals NULL; write IS NULL")
        return equality(left, right)

    def differs(self, left: Term, _: Token, right: Term) -> Term:
        return logical_not(self.equals(left, right))

    def is_null(self, term: Term) -> Term:
        return equality(term, constant(None))

    def is_not_null(self, term: Term, _: Token) -> Term:
        return logical_not(equality(term, constant(None)))

    def compared(self, left: Term, sign: Token, right: Term) -> Term:
        return comparison(_require_number(left), _require_number(right), HOLDS[sign])

    def between(self, value: Term, inverted: Token | None, low: Term, high: Term) -> Term:
        for term in (low, high, value):
            _require_number(term)
        if low.constant and high.constant and order_of(low.value, high.value) > 0:
            raise UsageError(f"there is nothing between {low.value} and {high.value}; put the smaller number first")
        if inverted:
            return junction([comparison(value, low, HOLDS["<"]), comparison(value, high, HOLDS[">"])], True)
        return junction([comparison(value, low, HOLDS[">="]), comparison(value, high, HOLDS["<="])], False)

    def is_in(self, value: Term, inverted: Token | None, *texts: Token) -> Term:
        if not value.name:
            raise UsageError("only a property can be tested with IN")
        return membership(value, frozenset(map(_unquoted, texts)), inverted=inverted is not None)

    def contains(self, value: Term, inverted: Token | None, text: Token) -> Term:
        return _searched(value, inverted, text, lambda held, part: part in held)

    def starts_with(self, value: Term, inverted: Token | None, text: Token) -> Term:
        return _searched(value, inverted, text, str.startswith)

    def ends_with(self, value: Term, inverted: Token | None, text: Token) -> Term:
        return _searched(value, inverted, text, str.endswith)

    def minus(self, term: Term) -> Term:
        return minus(term)

    def inverse(self, _: Token, term: Term) -> Term:
        return logical_not(_as_boolean(term))

    def true(self) -> Term:
        return constant(True, boolean=True)

    def false(self) -> Term:
        return constant(False, boolean=True)

    def null(self) -> Term:
        return constant(None, boolean=True)

    def property(self, name: Token) -> Term:
        return property_of(str(name))

    def text(self, token: Token) -> Term:
        return constant(_unquoted(token))

    def float(self, token: Token) -> Term:
        number = builtins.float(token)
        if number in (math.inf, 0.0):
            raise UsageError(f"{token} is out of the range of a double")
        return constant(number)

    def integer(self, token: Token) -> Term:
        number = int(token.rstrip("lL")) if len(token) < 32 else _I64
        if number >= _I64:
            raise UsageError(f"{token} is larger than a long")
        return constant(number)


def _as_boolean(term: Term) -> Term:
    if term.boolean:
        return term
    if not term.name:
        raise UsageError("the expression is a value, not a condition")
    return Term(lambda properties: None if term.evaluate(properties) is None else False, boolean=True)


def _require_number(term: Term) -> Term:
    if term.boolean or (term.constant and (isinstance(term.value, (bool, str)) or term.value is None)):
        raise UsageError("only numbers and properties can be compared with <, <=, >, >= and BETWEEN")
    return term


def _searched(value: Term, inverted: Token | None, token: Token, test: Callable[[str, str], bool]) -> Term:
    if not value.name:
        raise UsageError("only a property can be tested with CONTAINS, STARTSWITH and ENDSWITH")
    text, expected = _unquoted(token), inverted is None
    return text_test(value, lambda held: bool(text) and test(held, text) is expected)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


_PARSER = Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Terms(), postlex=_NestingLimit())
