"""Random queries over the views of a store, in the SQL that Spark and DuckDB share.

    query = RandomQuery(random.Random(7), {"messages": table, "queues": table, "groups": table}).text()

A query has predicates over all types of columns, with values that occur in the tables and values that do not, NULLs, inner and outer
joins, subqueries of all kinds, unions, aggregates, and LIMIT after a complete ORDER BY, so that its rows are determined.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa

__all__ = ["RandomQuery", "same_rows"]

JOINS = ("join", "left join", "right join", "full join")
NAMES = ("messages", "messages", "messages", "queues", "groups")


class Column:
    """A column of a table, with some of its values."""

    def __init__(self, name: str, kind: pa.DataType, values: list[Any]) -> None:
        self.name = name
        self.values = values
        self.is_text = pa.types.is_string(kind)
        self.is_number = pa.types.is_integer(kind)
        self.is_time = pa.types.is_timestamp(kind)
        self.is_boolean = pa.types.is_boolean(kind)


def columns_of(table: pa.Table) -> list[Column]:
    """Return the columns that can be compared."""
    found = [Column(field.name, field.type, table.column(field.name).to_pylist()[::7] or [None]) for field in table.schema]
    return [each for each in found if each.is_text or each.is_number or each.is_time or each.is_boolean]


class RandomQuery:
    """Makes one query. tables: by the name of the view; prefix: of the views."""

    def __init__(self, rng: random.Random, tables: Mapping[str, pa.Table], prefix: str = "") -> None:
        self.rng = rng
        self.prefix = prefix
        self.columns = {name: _columns(table) for name, table in tables.items()}
        self.aliases = 0

    def text(self) -> str:
        """Return the query."""
        made = self.rng.choice((self.rows, self.rows, self.rows, self.counted, self.counted, self.set_operation, self.named_part))()
        if self.rng.random() < 0.3:
            width = made[1]
            order = ", ".join(f"{number} {self.rng.choice(('asc', 'desc'))} nulls last" for number in range(1, width + 1))
            return f"select * from ({made[0]}) as outermost order by {order} limit {self.rng.choice((1, 5, 50))}"
        return made[0]

    # ---- queries: text, and number of columns

    def rows(self) -> tuple[str, int]:
        source, scope = self.source()
        chosen = [self.column(scope) for _ in range(self.rng.randint(1, 4))]
        distinct = self.rng.choice(("", "", "distinct "))
        listed = ", ".join(f"{name} as c{number}" for number, (name, _) in enumerate(chosen))
        return f"select {distinct}{listed} from {source}{self.where(scope)}", len(chosen)

    def counted(self) -> tuple[str, int]:
        source, scope = self.source()
        number = [each for each in scope if each[1].is_number]
        measure = self.rng.choice(("count(*)", f"count({self.column(scope)[0]})", f"max({self.rng.choice(number)[0]})"))
        if self.rng.random() < 0.4:
            return f"select {measure} as c0 from {source}{self.where(scope)}", 1
        by = self.column(scope)[0]
        having = self.rng.choice(("", "", " having count(*) > 1"))
        return f"select {by} as c0, {measure} as c1 from {source}{self.where(scope)} group by {by}{having}", 2

    def set_operation(self) -> tuple[str, int]:
        table = self.rng.choice(NAMES)
        column = self.rng.choice(self.columns[table]).name
        how = self.rng.choice(("union all", "union", "intersect", "except"))
        sides = []
        for _ in range(2):
            alias = self.alias()
            sides.append(f"select {alias}.{column} as c0 from {self.view(table)} {alias}{self.where(self.scope(table, alias))}")
        return f"{sides[0]} {how} {sides[1]}", 1

    def named_part(self) -> tuple[str, int]:
        table = self.rng.choice(NAMES)
        inner = self.alias()
        part = f"with part as (select * from {self.view(table)} {inner}{self.where(self.scope(table, inner))}) "
        first, second = self.alias(), self.alias()
        scope = [*self.scope(table, first), *self.scope(table, second)]
        same = self.rng.choice(self.columns[table]).name
        if self.rng.random() < 0.4:
            alone = self.scope(table, first)
            return f"{part}select count(*) as c0, min({self.column(alone)[0]}) as c1 from part {first}{self.where(alone)}", 2
        return f"{part}select count(*) as c0 from part {first} join part {second} on {first}.{same} = {second}.{same}{self.where(scope)}", 1

    # ---- FROM

    def source(self) -> tuple[str, list[tuple[str, Column]]]:
        """Return what a query reads, and its columns by their qualified names."""
        table, alias = self.rng.choice(NAMES), self.alias()
        text, scope = self.relation(table, alias), self.scope(table, alias)
        for _ in range(self.rng.choice((0, 0, 1, 1, 2))):
            other, name = self.rng.choice(NAMES), self.alias()
            added = self.scope(other, name)
            left, right = self.pair(scope, added)
            conditions = [f"{left} = {right}"]
            if self.rng.random() < 0.5:
                conditions.append(self.predicate(self.rng.choice((scope, added)), 1))
            text = f"{text} {self.rng.choice(JOINS)} {self.relation(other, name)} on {' and '.join(conditions)}"
            scope = [*scope, *added]
        return text, scope

    def relation(self, table: str, alias: str) -> str:
        if self.rng.random() < 0.2:
            inner = self.alias()
            return f"(select * from {self.view(table)} {inner}{self.where(self.scope(table, inner))}) {alias}"
        return f"{self.view(table)} {alias}"

    def pair(self, scope: list[tuple[str, Column]], added: list[tuple[str, Column]]) -> tuple[str, str]:
        """Return two columns to join by, preferably ones with few rows for a value."""
        for wanted in ("physical_offset", "queue_offset", "topic", "queue_id"):
            left = [name for name, column in scope if column.name == wanted]
            right = [name for name, column in added if column.name == wanted]
            if left and right and (wanted == "queue_id" or self.rng.random() < 0.8):
                return self.rng.choice(left), right[0]
        left = [name for name, column in scope if column.name == "queue_id"]
        return self.rng.choice(left), next(name for name, column in added if column.name == "queue_id")

    def view(self, table: str) -> str:
        name = self.prefix + table
        return self.rng.choice((name, name, name.upper()))

    def alias(self) -> str:
        self.aliases += 1
        return f"t{self.aliases}"

    def scope(self, table: str, alias: str) -> list[tuple[str, Column]]:
        return [(f"{alias}.{column.name}", column) for column in self.columns[table]]

    def column(self, scope: list[tuple[str, Column]]) -> tuple[str, Column]:
        name, column = self.rng.choice(scope)
        return self.rng.choice((name, name, name.upper())), column

    # ---- WHERE

    def where(self, scope: list[tuple[str, Column]]) -> str:
        count = self.rng.choice((0, 1, 1, 2, 3))
        conditions = [self.subquery(scope) if self.rng.random() < 0.2 else self.predicate(scope, 2) for _ in range(count)]
        return f" where {' and '.join(conditions)}" if conditions else ""

    def predicate(self, scope: list[tuple[str, Column]], depth: int) -> str:
        draw = self.rng.random()
        if depth and draw < 0.15:
            return f"({self.predicate(scope, depth - 1)} or {self.predicate(scope, depth - 1)})"
        if depth and draw < 0.25:
            return f"({self.predicate(scope, depth - 1)} and {self.predicate(scope, depth - 1)})"
        if depth and draw < 0.32:
            return f"not ({self.predicate(scope, depth - 1)})"
        favourites = [each for each in scope if each[1].name in ("topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp")]
        name, column = self.column(favourites if self.rng.random() < 0.6 else scope)
        draw = self.rng.random()
        if draw < 0.08:
            return f"{name} is {self.rng.choice(('', 'not '))}null"
        if column.is_boolean:
            return f"{name} = {self.value(column)}"
        if draw < 0.2:
            return f"{name} {self.rng.choice(('', 'not '))}in ({', '.join(self.value(column) for _ in range(self.rng.randint(1, 4)))})"
        if draw < 0.28:
            return f"{name} between {self.value(column)} and {self.value(column)}"
        if draw < 0.36:
            return f"{name} is {self.rng.choice(('', 'not '))}distinct from {self.value(column)}"
        if draw < 0.42 and column.is_text:
            return f"{name} like '{self.rng.choice(('%', 'o%', '%s', 'TopicTest', '_rders%'))}'"
        if draw < 0.48 and column.is_number:
            return f"{name} + 1 > {self.value(column)}"
        if draw < 0.54 and column.is_text:
            return f"coalesce({name}, 'none') <> {self.value(column)}"
        if draw < 0.58:
            return f"case when {name} is null then true else {name} < {self.value(column)} end"
        sides = [name, self.value(column)]
        if self.rng.random() < 0.2:
            sides.reverse()
        return f" {self.rng.choice(('=', '=', '<', '<=', '>', '>=', '<>'))} ".join(sides)

    def value(self, column: Column) -> str:
        """Return a literal for a column: one of its values, a value beside one, or NULL."""
        value = self.rng.choice(column.values)
        if value is None or self.rng.random() < 0.04:
            return (
                "cast(null as "
                + ("varchar(9)" if column.is_text else "timestamp" if column.is_time else "boolean" if column.is_boolean else "int")
                + ")"
            )
        if column.is_boolean:
            return str(value).lower()
        if column.is_number:
            return str(value + self.rng.choice((0, 0, 0, 1, -1)) if abs(value) < 2**31 - 2 else value)
        if column.is_time:
            moved = value.astimezone(UTC) + timedelta(microseconds=self.rng.choice((0, 0, 1, -1, 1500, 60_000_000)))
            return f"timestamp '{moved:%Y-%m-%d %H:%M:%S.%f}'"
        if self.rng.random() < 0.05:
            return "'it''s \"no\" value\\\\'"
        return "'" + value.replace("'", "''") + "'"

    def subquery(self, scope: list[tuple[str, Column]]) -> str:
        table, alias = self.rng.choice(NAMES), self.alias()
        inner = self.scope(table, alias)
        outer_name, inner_name = self.pair(scope, inner)
        draw = self.rng.random()
        where = self.where(inner)
        if draw < 0.5:
            tied = f"{alias}.{inner_name.partition('.')[2]} = {outer_name}"
            where = f"{where} and {tied}" if where else f" where {tied}"
            return f"{self.rng.choice(('', 'not '))}exists (select 1 from {self.view(table)} {alias}{where})"
        if draw < 0.8:
            return f"{outer_name} {self.rng.choice(('', 'not '))}in (select {inner_name} from {self.view(table)} {alias}{where})"
        return f"{outer_name} >= (select min({inner_name}) from {self.view(table)} {alias}{where})"


@lru_cache(maxsize=32)
def _cached(key: int) -> list[Column]:
    return columns_of(_TABLES[key])


_TABLES: dict[int, pa.Table] = {}


def _columns(table: pa.Table) -> list[Column]:
    _TABLES[id(table)] = table
    return _cached(id(table))


def same_rows(rows: list[tuple[Any, ...]]) -> list[str]:
    """Return rows in a form that two engines share: sorted, times without their zone, which is UTC."""
    return sorted(repr(tuple(_plain(value) for value in row)) for row in rows)


def _plain(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value
