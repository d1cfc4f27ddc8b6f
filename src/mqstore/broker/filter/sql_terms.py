"""Terms of an SQL92 expression: values that may be unknown, and their comparison.

    >>> n = Term(lambda properties: properties.get("n"), name="n")
    >>> found = comparison(n, constant(5), HOLDS[">"]).evaluate
    >>> found({"n": "6"}), found({"n": "4"}), found({})
    (True, False, None)

Compared with a number, a string is parsed as a number of the same type: a 32-bit int, a long, or a double. Values that cannot be compared
end the evaluation, and the message does not match.

Source: Apache RocketMQ 4.9.3, ComparisonExpression, LogicExpression, UnaryExpression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

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
