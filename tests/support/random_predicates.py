"""Random conditions on messages, in SQL and as a function of a row in plain Python: NULL is neither true nor false.

    made = RandomPredicate(random.Random(7), rows, ZoneInfo("Europe/Berlin"))
    made.sql, [row["physical_offset"] for row in rows if made.holds(row) is True]

The rows are dictionaries by column. Their values are those of the message table: text, numbers, times in UTC, bytes, lists, maps. A
literal of a time is a local time of the zone: one that does not exist, or exists twice, means what it means in Java.
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

__all__ = ["RandomPredicate"]

Row = dict[str, Any]
Holds = Callable[[Row], bool | None]

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TEXT = ("topic", "tags", "uniq_key", "msg_id", "verdict", "born_host")
NUMBERS = ("queue_id", "queue_offset", "physical_offset", "size", "body_len", "flag", "reconsume_times", "body_crc")
TIMES = ("store_timestamp", "born_timestamp")
# those that the reader can apply
FAVOURITES = ("topic", "tags", "uniq_key", "queue_id", "queue_offset", "physical_offset", "store_timestamp")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Condition:
    """A condition: its text, and its value for a row."""

    sql: str
    holds: Holds


class RandomPredicate:
    """One condition."""

    def __init__(self, rng: random.Random, rows: Sequence[Row], zone: ZoneInfo) -> None:
        self._rng = rng
        self._rows = rows
        self._zone = zone
        made = self._condition(3)
        self.sql, self.holds = made.sql, made.holds

    # ---- AND, OR, NOT

    def _condition(self, depth: int) -> Condition:
        draw = self._rng.random()
        if not depth or draw < 0.35:
            return self._leaf()
        if draw < 0.5:
            inner = self._condition(depth - 1)
            return Condition(f"not ({inner.sql})", lambda row: _not(inner.holds(row)))
        left, right = self._condition(depth - 1), self._condition(depth - 1)
        if draw < 0.8:
            return Condition(f"({left.sql}) and ({right.sql})", lambda row: _and(left.holds(row), right.holds(row)))
        return Condition(f"({left.sql}) or ({right.sql})", lambda row: _or(left.holds(row), right.holds(row)))

    def _leaf(self) -> Condition:
        if self._rng.random() < 0.65:
            name = self._rng.choice(FAVOURITES)
        else:
            name = self._rng.choice((*TEXT, *NUMBERS, *TIMES, "body_crc_ok", "body", "keys", "properties"))
        if self._rng.random() < 0.06:
            return self._null(self._spelt(name), lambda row: row[name])
        if name in TEXT:
            return self._text(name)
        if name in NUMBERS:
            return self._number(name)
        if name in TIMES:
            return self._time(name)
        return {"body_crc_ok": self._flag, "body": self._body, "keys": self._keys, "properties": self._properties}[name]()

    # ---- conditions on one column

    def _text(self, name: str) -> Condition:
        draw, column = self._rng.random(), self._spelt(name)
        if draw < 0.2:
            pattern = self._pattern(name)
            negated = self._rng.random() < 0.4
            wanted = re.compile("".join({"%": ".*", "_": "."}.get(each, re.escape(each)) for each in pattern), re.DOTALL)

            def like(row: Row) -> bool | None:
                found = None if row[name] is None else wanted.fullmatch(row[name]) is not None
                return _not(found) if negated else found

            return Condition(f"{column} {'not ' if negated else ''}like {_quoted(pattern)}", like)
        if draw < 0.28:
            value = self._value(name, str.upper)
            return self._compared(f"upper({column})", lambda row: _of(str.upper, row[name]), value, _quoted)
        if draw < 0.34:
            return self._compared(f"length({column})", lambda row: _of(len, row[name]), self._rng.randrange(12), str)
        return self._plain(column, lambda row: row[name], lambda: self._value(name), _quoted)

    def _number(self, name: str) -> Condition:
        draw, column = self._rng.random(), self._spelt(name)

        def value() -> Any:
            found = self._value(name)
            return None if found is None else found + self._rng.choice((0, 0, 0, 1, -1, 1000))

        if draw < 0.1:
            return self._plain(f"cast({column} as bigint)", lambda row: row[name], value, str)
        if draw < 0.18:
            return self._plain(f"cast({column} as string)", lambda row: _of(str, row[name]), lambda: _of(str, value()), _quoted)
        if draw < 0.26:
            return self._plain(
                f"cast({column} as bigint) * 2 + 1",
                lambda row: _of(lambda n: n * 2 + 1, row[name]),
                lambda: _of(lambda n: 2 * n, value()),
                str,
            )
        if draw < 0.32:
            return self._plain(column, lambda row: row[name], lambda: _of(lambda n: n + 0.5, value()), lambda n: f"{n:.1f}")
        if draw < 0.36:
            return self._plain(f"cast({column} as double)", lambda row: row[name], value, lambda n: f"{n}.0D")
        return self._plain(column, lambda row: row[name], value, str)

    def _time(self, name: str) -> Condition:
        draw, column = self._rng.random(), self._spelt(name)

        def local() -> Any:
            """A local time without a zone, possibly one that the zone skips or repeats."""
            found = self._value(name)
            moves = (0, 0, 1, -1, 500, 1500, 60_000_000, 3_600_000_000, -3_600_000_000)
            move = timedelta(microseconds=self._rng.choice(moves))
            return None if found is None else found.astimezone(self._zone).replace(tzinfo=None) + move

        def instant(row: Row) -> Any:
            return row[name]

        def meant(value: datetime) -> datetime:
            return value.replace(tzinfo=self._zone, fold=0).astimezone(UTC)

        if draw < 0.1:
            return self._plain(f"cast({column} as date)", lambda row: _of(self._day, row[name]), lambda: _of(datetime.date, local()), _date)
        if draw < 0.16:
            return self._compared(f"hour({column})", lambda row: _of(self._hour, row[name]), self._rng.randrange(5), str)
        if draw < 0.24:
            value = self._value(name)
            seconds = None if value is None else (value - EPOCH) // timedelta(seconds=1)
            return self._compared(f"cast({column} as bigint)", lambda row: _of(_seconds, row[name]), seconds, str)
        if draw < 0.32:  # an instant, which does not depend on the zone
            return self._plain(column, instant, lambda: self._value(name), lambda value: f"timestamp '{value:%Y-%m-%d %H:%M:%S.%f}Z'")
        if draw < 0.42:
            return self._plain(column, instant, local, lambda value: f"'{value:%Y-%m-%d %H:%M:%S.%f}'", meant)
        return self._plain(column, instant, local, lambda value: f"timestamp '{value:%Y-%m-%d %H:%M:%S.%f}'", meant)

    def _flag(self) -> Condition:
        column = self._spelt("body_crc_ok")
        if self._rng.random() < 0.4:
            return Condition(column, lambda row: row["body_crc_ok"])
        return self._compared(
            column, lambda row: row["body_crc_ok"], self._rng.random() < 0.5, lambda value: str(value).lower(), ("=", "<>")
        )

    def _body(self) -> Condition:
        column = self._spelt("body")
        if self._rng.random() < 0.5:
            return self._compared(f"octet_length({column})", lambda row: _of(len, row["body"]), self._rng.randrange(60), str)
        return self._plain(column, lambda row: row["body"], lambda: self._value("body"), lambda value: f"X'{value.hex()}'")

    def _keys(self) -> Condition:
        column, listed = self._spelt("keys"), self._value("keys") or ["none"]
        key = self._rng.choice(listed)
        if self._rng.random() < 0.3:
            return self._compared(f"{column}[0]", lambda row: _of(lambda keys: keys[0], row["keys"]), key, _quoted)
        return Condition(f"array_contains({column}, {_quoted(key)})", lambda row: _of(lambda keys: key in keys, row["keys"]))

    def _properties(self) -> Condition:
        name = self._rng.choice(("TAGS", "KEYS", "UNIQ_KEY", "nothing"))
        column = f"{self._spelt('properties')}[{_quoted(name)}]"
        value = self._rng.choice(self._rows)["properties"]

        def property_of(row: Row) -> Any:
            return None if row["properties"] is None else dict(row["properties"]).get(name)

        return self._plain(column, property_of, lambda: dict(value or ()).get(name, "x"), _quoted)

    # ---- forms

    def _plain(
        self,
        text: str,
        of: Callable[[Row], Any],
        value: Callable[[], Any],
        literal: Callable[[Any], str],
        meant: Callable[[Any], Any] = lambda value: value,
    ) -> Condition:
        """Return a comparison, IN, BETWEEN, or IS DISTINCT FROM. literal: the SQL of a value; meant: what Spark takes it for."""

        def written(each: Any) -> str:
            return "null" if each is None else literal(each)

        draw, negated = self._rng.random(), self._rng.random() < 0.35
        word = "not " if negated else ""
        if draw < 0.08:
            return self._null(text, of)
        if draw < 0.28:
            values = [None if self._rng.random() < 0.1 else value() for _ in range(self._rng.randint(1, 4))]
            taken = [_of(meant, each) for each in values]

            def inside(row: Row) -> bool | None:
                found: bool | None = False
                for each in taken:
                    found = _or(found, _compare(operator.eq, of(row), each))
                return _not(found) if negated else found

            return Condition(f"{text} {word}in ({', '.join(map(written, values))})", inside)
        if draw < 0.4:
            low, high = value(), value()
            begin, end = _of(meant, low), _of(meant, high)

            def between(row: Row) -> bool | None:
                found = _and(_compare(operator.ge, of(row), begin), _compare(operator.le, of(row), end))
                return _not(found) if negated else found

            return Condition(f"{text} {word}between {written(low)} and {written(high)}", between)
        if draw < 0.5:
            other = value()
            known = _of(meant, other)
            return Condition(f"{text} is {word}distinct from {written(other)}", lambda row: (of(row) == known) is negated)
        return self._compared(text, of, value(), written, meant=meant)

    def _compared(
        self,
        text: str,
        of: Callable[[Row], Any],
        value: Any,
        literal: Callable[[Any], str],
        operators: Sequence[str] = ("=", "=", "<>", "<", "<=", ">", ">="),
        meant: Callable[[Any], Any] = lambda value: value,
    ) -> Condition:
        sign, known = self._rng.choice(operators), _of(meant, value)
        written = "null" if value is None else literal(value)
        if self._rng.random() < 0.15:
            return Condition(f"{written} {sign} {text}", lambda row: _compare(COMPARISONS[sign], known, of(row)))
        return Condition(f"{text} {sign} {written}", lambda row: _compare(COMPARISONS[sign], of(row), known))

    def _null(self, text: str, of: Callable[[Row], Any]) -> Condition:
        if self._rng.random() < 0.5:
            return Condition(f"{text} is null", lambda row: of(row) is None)
        return Condition(f"{text} is not null", lambda row: of(row) is not None)

    # ---- values

    def _spelt(self, name: str) -> str:
        return self._rng.choice((name, name, name, name.upper(), f"`{name}`"))

    def _value(self, name: str, change: Callable[[Any], Any] = lambda value: value) -> Any:
        found = self._rng.choice(self._rows)[name]
        return None if found is None else change(found)

    def _pattern(self, name: str) -> str:
        text = [each for each in self._value(name) or "none" if each not in "%_\\"]
        for _ in range(self._rng.randint(1, 3)):
            at = self._rng.randrange(len(text) + 1)
            text[at : at + self._rng.randint(0, 4)] = self._rng.choice("%%_")
        return "".join(text)

    def _day(self, value: datetime) -> Any:
        return value.astimezone(self._zone).date()

    def _hour(self, value: datetime) -> int:
        return value.astimezone(self._zone).hour


# ---- three values


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _and(left: bool | None, right: bool | None) -> bool | None:
    return False if left is False or right is False else None if left is None or right is None else True


def _or(left: bool | None, right: bool | None) -> bool | None:
    return True if left or right else None if left is None or right is None else False


def _compare(sign: Callable[[Any, Any], bool], left: Any, right: Any) -> bool | None:
    return None if left is None or right is None else sign(left, right)


def _of(function: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else function(value)


def _seconds(value: datetime) -> int:
    return (value - EPOCH) // timedelta(seconds=1)


def _date(value: Any) -> str:
    return f"date '{value}'"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
