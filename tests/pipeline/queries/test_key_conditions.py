"""Keys that a statement asks for: the messages without them are not read, and no row of the result is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from support.golden import case_named, opened, unpack
from support.random_queries import same_rows

import mqstore
from mqstore.pipeline.queries import duck
from mqstore.pipeline.queries.duck import StoreTables, keys_wanted
from mqstore.pipeline.source.views import MESSAGE_COLUMNS
from mqstore.rocketmq.format.index_geometry import HEADER_SIZE, SLOT_SIZE

pytestmark = pytest.mark.versions

STORE = "4.9.3/b-kill9"
A, B, C = "😀6", "OrderID38", "订单号#42"
HAS = f"array_contains(keys, '{A}')"

NARROWED = {
    f"select * from messages where {HAS}": {A},
    f"select count(*), max(size) from MESSAGES as m where list_contains(M.Keys, '{A}') and size > 100": {A},
    f"from messages where list_has(messages.keys, '{B}') or '{C}' in keys": {B, C},
    f"select topic from messages where ({HAS} or array_has(keys, '{B}')) and not array_contains(keys, '{C}')": {A, B},
    f"select * from messages where {HAS} and (array_contains(keys, '{B}') or size > 1)": {A},
    f"select * from messages where list_has_any(keys, ['{A}', '{B}', 'none'])": {A, B, "none"},
    f"select * from messages where keys && ['{B}']": {B},
    f"select * from messages where keys @> ['{C}', '{B}']": {min(C, B)},
    f"select * from (select topic, keys from messages where {HAS}) s join queues q on s.topic = q.topic": {A},
    f"with found as (select * from messages where {HAS}) select a.size from found a join found b using (physical_offset)": {A},
    f"select q.topic, (select count(*) from messages m where {HAS} and m.topic = q.topic) n from queues q": {A},
    f"select m.size, q.queue_id from messages m, queues q where m.topic = q.topic and array_contains(m.keys, '{A}')": {A},
    f"select m.size, q.queue_id from queues q left join messages m on m.topic = q.topic where array_contains(m.keys, '{A}')": {A},
    f"select m.size, q.queue_id from messages m full join queues q on m.queue_id = q.queue_id where list_has(m.keys, '{A}')": {A},
    f"select 1 from messages where {HAS} union all select 2 from queues": {A},
    f"select topic, count(*) from messages where {HAS} group by topic having count(*) > 1 order by 2, 1 limit 3": {A},
    f"select row_number() over (order by physical_offset) from messages where {HAS}": {A},
}
# each may use messages without the key, or is not understood
READ_WHOLLY = [
    f"select * from messages where not {HAS}",
    f"select * from messages where {HAS} or size > 1000",
    f"select * from messages where {HAS} is null",
    f"select * from messages where {HAS} is distinct from true",
    f"select * from messages where coalesce({HAS}, true)",
    f"select * from messages where case when {HAS} then size > 0 else true end",
    f"select * from messages where {HAS} = false",
    f"select count(*) filter ({HAS}), count(*) from messages",
    f"select topic, max({HAS}::int) from messages group by topic having max({HAS}::int) = 0",
    f"select * from messages a where exists (select 1 from messages b where array_contains(b.keys, '{A}') and a.topic = b.topic)",
    f"select (select count(*) from messages) n from messages where {HAS}",
    f"select a.size from messages a join messages b using (topic) where array_contains(a.keys, '{A}') and b.size < 300",
    f"select 1 from messages where {HAS} union all select 2 from messages",
    f"select 1 from messages where {HAS} union all select 2 from query_table('messages')",
    f"with messages as (select * from queues) select 1 from messages union all select 2 from main.messages where {HAS}",
    f"select q.queue_id, m.size from queues q left join messages m on q.topic = m.topic and array_contains(m.keys, '{A}')",
    f"select q.queue_id from queues q anti join messages m on q.topic = m.topic and array_contains(m.keys, '{A}')",
    f"select q.topic from queues q where topic not in (select topic from messages m where {HAS} or m.size > 0)",
    f"select 1 from queues q asof join messages m on q.topic = m.topic and q.physical_offset > m.size where array_contains(m.keys, '{A}')",
    f"select m.size, q.queue_id from messages m positional join queues q where array_contains(m.keys, '{A}')",
    f"select topic, keys from (select topic, ['{A}'] as keys from messages) where {HAS}",
    f"select ['{A}'] as keys from messages where {HAS}",
    "select 1 from messages where array_contains(keys, '')",
    "select 1 from messages where array_contains(keys, 'a b')",
    "select 1 from messages where array_contains(keys, null)",
    "select 1 from messages where list_has_all(keys, [])",
    "select 1 from messages where array_contains(keys, '\ufffd')",
    f"select 1 from messages where list_has_any(keys, ['{A}', null])",
    f"select 1 from messages where array_contains(keys, lower('{A}'))",
    f"select 1 from messages where array_contains(['{A}'], topic)",
    f"select 1 from messages as m(first) where array_contains(m.keys, '{A}')",
    f"select t.v from messages m, (select ['{A}'] as keys, 1 as v) t where array_contains(t.keys, '{A}')",
]


@pytest.fixture(scope="module")
def tables() -> Iterator[StoreTables]:
    with StoreTables(opened(case_named(STORE))) as found:
        yield found


@pytest.fixture(scope="module")
def in_memory() -> duckdb.DuckDBPyConnection:
    """The same tables in memory, where nothing is narrowed."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("messages", mqstore.open(opened(case_named(STORE))).to_arrow(MESSAGE_COLUMNS))
    with StoreTables(opened(case_named(STORE))) as found:
        connection.register("queues", found._connection.sql("from queues").to_arrow_table())
    return connection


def rows(answer: pa.Table) -> Any:
    return same_rows([tuple(row.values()) for row in answer.rename_columns([f"c{k}" for k in range(answer.num_columns)]).to_pylist()])


def same(tables: StoreTables, in_memory: duckdb.DuckDBPyConnection, query: str) -> int:
    """Check that a query has the rows that it has over tables in memory. Returns how many."""
    wanted = rows(in_memory.sql(query).to_arrow_table())
    assert rows(tables.table(query)) == wanted, query
    return len(wanted)


@pytest.mark.parametrize("query", NARROWED)
def test_a_condition_on_keys_narrows_what_is_read_and_not_the_answer(tables: Any, in_memory: Any, query: str) -> None:
    assert tables._keys_wanted(query) == NARROWED[query]
    assert same(tables, in_memory, query) > 0


@pytest.mark.parametrize("query", READ_WHOLLY)
def test_a_statement_that_may_use_other_messages_reads_them(tables: Any, in_memory: Any, query: str) -> None:
    assert tables._keys_wanted(query) is None
    same(tables, in_memory, query)


@pytest.mark.parametrize("sample", ["tablesample reservoir(5 rows)", "using sample 5 rows"])
def test_a_sample_is_taken_of_all_messages(tables: Any, sample: str) -> None:
    query = f"select 1 from messages {sample}" if sample[0] == "u" else f"select 1 from messages {sample} where {HAS}"
    assert tables._keys_wanted(query.replace("using", f"where {HAS} using")) is None


def test_the_selection_reaches_the_reader_and_is_forgotten_afterwards(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    read = duck._read

    def record(reader: Any) -> Any:
        seen.append(reader.read_keys)
        return read(reader)

    monkeypatch.setattr(duck, "_read", record)
    assert tables.table(f"select 1 from messages where {HAS}").num_rows < tables.table("select 1 from messages").num_rows
    assert seen == [{A}, None]


def test_a_damaged_index_loses_no_row(tmp_path: Path) -> None:
    """The hash of an entry replaced by another of the same slot: no check of the index alone can see that."""
    path = unpack(case_named(STORE), tmp_path / "store")
    query = f"select physical_offset from messages where {HAS}"
    with StoreTables(path) as tables:
        wanted = rows(tables.table(query))
    for file in mqstore.open(path).index_files():
        begin = HEADER_SIZE + SLOT_SIZE * file.slot_count
        entries = np.memmap(path / file.relative, ">i4", "r+", offset=begin, shape=(file.index_count, 5))
        entries[1:, 0] += np.where(entries[1:, 0] >= file.slot_count, -file.slot_count, file.slot_count)
        entries.flush()
    with StoreTables(path) as tables:
        assert rows(tables.table(query)) == wanted
    assert len(wanted) > 50


def test_without_the_column_a_name_may_mean_another_one() -> None:
    with StoreTables(opened(case_named(STORE)), columns=["topic"]) as tables:
        query = f"select 1 from (select ['{A}'] as keys) o where exists (select 1 from messages where {HAS})"
        assert tables._keys_wanted(query) is None
        assert tables.table(query).num_rows == 1


def condition(dice: random.Random, depth: int = 0) -> str:
    """Return a random condition, most with a key in it."""
    kind = dice.randrange(9 if depth < 3 else 4)
    key = dice.choice((A, B, C, "ключ-8", "nowhere"))
    if kind < 3:
        function = dice.choice(("array_contains", "list_contains", "list_has", "array_has"))
        return f"{function}({dice.choice(('keys', 'm.keys'))}, '{key}')"
    if kind == 3:
        return dice.choice(("size > 300", "queue_id = 1", "keys is null", f"keys && ['{key}', '{B}']", f"keys @> ['{key}']", "true"))
    left, right = condition(dice, depth + 1), condition(dice, depth + 1)
    return {
        4: f"({left} and {right})",
        5: f"({left} or {right})",
        6: f"(not {left})",
        7: f"(case when {left} then {right} else size < 500 end)",
        8: f"({left} and {left} and ({right} or {left}))",
    }[kind]


def check_random(tables: StoreTables, in_memory: duckdb.DuckDBPyConnection, seed: int) -> tuple[bool, bool]:
    """Compare one statement with a random condition. Returns whether it was narrowed, and whether it has rows."""
    dice = random.Random(seed)
    query = f"select physical_offset, size from messages m where {condition(dice)}"
    if dice.random() < 0.3:
        kind = dice.choice(("", "left ", "full "))
        query = f"select s.size, q.queue_offset from ({query}) s {kind}join queues q on s.physical_offset = q.physical_offset"
    return tables._keys_wanted(query) is not None, same(tables, in_memory, query) > 0


def test_random_conditions_have_the_rows_of_tables_in_memory(tables: Any, in_memory: Any) -> None:
    seen = [check_random(tables, in_memory, seed) for seed in range(60)]
    assert sum(narrowed for narrowed, _ in seen) >= 10
    assert sum(narrowed and found for narrowed, found in seen) >= 5


@pytest.mark.long
def test_1000_random_conditions_have_the_rows_of_tables_in_memory(tables: Any, in_memory: Any) -> None:
    assert sum(all(check_random(tables, in_memory, seed)) for seed in range(60, 1060)) >= 100


@pytest.mark.parametrize("text", ["", "[]", "null", '{"error": true}', "[" * 100_000, json.dumps({"a": [{"table_name": "messages"}] * 2})])
def test_a_tree_that_is_not_understood_narrows_nothing(text: str) -> None:
    assert keys_wanted(text) is None


def test_no_part_of_a_tree_is_taken_for_granted() -> None:
    """With any one part of a tree replaced by something else, reading it ends, and finds no key that is not in it."""
    query = f"select * from messages m join queues q using (topic) where array_contains(m.keys, '{A}') and m.size > 1"
    ((text,),) = duckdb.execute("select json_serialize_sql($1::varchar, skip_null := true, skip_empty := true)", [query]).fetchall()
    assert keys_wanted(text) == {A}
    for place in list(places(json.loads(text))):
        for other in (None, 0, "x", [], {}, [0], {"type": "JOIN"}, {"class": "FUNCTION", "children": [1, 2]}):
            tree = json.loads(text)
            at = tree
            for step in place[:-1]:
                at = at[step]
            at[place[-1]] = other
            found = keys_wanted(json.dumps(tree))
            assert found is None or found <= {A, "x"}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each part of a tree."""
    for step, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, step)
        yield from places(each, (*path, step))
