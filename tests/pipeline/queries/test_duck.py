"""SQL in DuckDB over a store: the rows of the same query over tables in memory, from fewer messages."""

from __future__ import annotations

import os
import random
import threading
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.golden import case_named, opened
from support.random_queries import RandomQuery, same_rows
from support.sparse import FILE_SIZE, sparse_store

import mqstore
from mqstore.errors import CannotOpenError, UnsupportedError, UsageError
from mqstore.pipeline.queries import duck
from mqstore.pipeline.queries.duck import StoreTables, conditions_in
from mqstore.pipeline.source.stores import StoreReader
from mqstore.pipeline.source.views import MESSAGE_COLUMNS
from mqstore.pipeline.spark.source_api import EqualTo, GreaterThanOrEqual, In, LessThan
from mqstore.rocketmq.verify.verification import verify

pytestmark = pytest.mark.versions

GROUPS, KILLED = "4.9.3/f-broker-offsets", "4.9.3/b-kill9"
SCHEMA = pa.schema([("topic", pa.string()), ("size", pa.int32()), ("store_timestamp", pa.timestamp("us", "UTC"))])


def answer(store: str, query: str, **options: Any) -> list[tuple[Any, ...]]:
    with StoreTables(opened(case_named(store)), **options) as tables:
        return list(tables.query(query).rows)


@pytest.fixture(scope="module")
def in_memory() -> dict[str, dict[str, pa.Table]]:
    """The tables of two stores in memory; messages as the table reads them."""
    found: dict[str, dict[str, pa.Table]] = {}
    for store in (GROUPS, KILLED):
        found[store] = {"messages": mqstore.open(opened(case_named(store))).to_arrow(MESSAGE_COLUMNS)}
        with StoreTables(opened(case_named(store))) as tables:
            for name in ("queues", "groups"):
                found[store][name] = tables._connection.sql(f"from {name}").to_arrow_table()
    return found


def check_random(tables: dict[str, dict[str, pa.Table]], seed: int) -> bool:
    """Compare one query over a store with the same over tables in memory. Returns whether it has rows."""
    store = (GROUPS, KILLED)[seed % 2]
    query = RandomQuery(random.Random(seed), tables[store]).text()
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    for name, table in tables[store].items():
        connection.register(name, table)
    wanted = same_rows([tuple(row.values()) for row in connection.sql(query).to_arrow_table().to_pylist()])
    assert same_rows(answer(store, query)) == wanted, f"seed {seed}: {query}"
    return bool(wanted)


def test_random_queries_have_the_rows_of_tables_in_memory(in_memory: Any) -> None:
    assert sum(check_random(in_memory, seed) for seed in range(12)) >= 6


@pytest.mark.long
def test_300_random_queries_have_the_rows_of_tables_in_memory(in_memory: Any) -> None:
    assert sum(check_random(in_memory, seed) for seed in range(12, 312)) >= 150


# what is read


def test_columns_and_conditions_reach_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    read = duck._read

    def record(reader: Any) -> Any:
        seen.append((reader.columns, reader.selection))
        return read(reader)

    monkeypatch.setattr(duck, "_read", record)
    found = answer(KILLED, "select size from messages where topic = 'orders' and queue_id in (1, 3) and physical_offset >= 700000")
    assert len(found) > 0
    ((columns, selection),) = seen
    assert set(columns) == {"topic", "queue_id", "physical_offset", "size"}
    assert (selection.topics, selection.queue_ids, selection.from_offset) == ({"orders"}, {1, 3}, 700000)


def test_parts_are_read_by_several_threads_and_their_rows_come_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = sparse_store(tmp_path, 40)
    gone, readers, read_part = False, set(), StoreReader.read

    def read(self: StoreReader, partition: Any) -> Any:
        readers.add(threading.current_thread())
        if gone and threading.current_thread() is not threading.main_thread():
            raise CannotOpenError("it is gone")
        return read_part(self, partition)

    monkeypatch.setattr(StoreReader, "read", read)
    with StoreTables(path) as tables:
        assert [row for (row,) in tables.query("select physical_offset from messages").rows] == [FILE_SIZE * k for k in range(40)]
        assert len(readers) == 1 + len(os.sched_getaffinity(0))
        assert next(iter(tables.query("select physical_offset from messages limit 1").rows)) == (0,)
    gone = True
    with StoreTables(path) as tables, pytest.raises(CannotOpenError, match="it is gone"):
        list(tables.query("select count(*) from messages where size > 0").rows)


@pytest.mark.parametrize(
    ("filter_", "conditions"),
    [
        (pc.field("topic") == "größe (a) and b", [EqualTo(("topic",), "größe (a) and b")]),
        ((pc.field("topic") == "a") | (pc.field("topic") == "b"), [In(("topic",), ("a", "b"))]),
        ((pc.field("topic") == "a") | (pc.field("size") == 1), []),
        ((pc.field("size") >= -5) & (pc.field("topic") == "a"), [GreaterThanOrEqual(("size",), -5), EqualTo(("topic",), "a")]),
        (~(pc.field("size") < 5) & (pc.field("topic") == "a"), [EqualTo(("topic",), "a")]),
        ((pc.field("size") < 5) & pc.field("topic").is_valid(), [LessThan(("size",), 5)]),
        (
            pc.field("store_timestamp") < pa.scalar(datetime(2022, 1, 1, 0, 0, 0, 120, tzinfo=UTC), SCHEMA.field(2).type),
            [LessThan(("store_timestamp",), datetime(2022, 1, 1, 0, 0, 0, 120, tzinfo=UTC))],
        ),
        (pc.field("size") != 5, []),
        (pc.field("size") + 1 == 5, []),
    ],
    ids=str,
)
def test_conditions_of_a_filter(filter_: Any, conditions: list[Any]) -> None:
    assert conditions_in(filter_, SCHEMA) == conditions


@pytest.mark.parametrize("text", ['a" or (x', "\\", "\n", '")) or (size > 1', ""])
def test_a_value_cannot_be_mistaken_for_a_condition(text: str) -> None:
    found = conditions_in((pc.field("size") < 5) & (pc.field("topic") == text), SCHEMA)
    assert found == [LessThan(("size",), 5), EqualTo(("topic",), text)]


def one_of(column: str, values: list[Any]) -> Any:
    """The filter that DuckDB 2.0 passes for `column in (…)`."""
    return pc.if_else(pc.field(column).is_valid(), pc.field(column).isin(values), pa.scalar(None, pa.bool_()))


@pytest.mark.parametrize(
    ("filter_", "conditions"),
    [
        (one_of("topic", ["a", "(b)", ""]), [In(("topic",), ("a", "(b)", ""))]),
        (one_of("topic", ["a"]) & (pc.field("size") >= 5), [In(("topic",), ("a",)), GreaterThanOrEqual(("size",), 5)]),
        (one_of("topic", ['a",\n  "b', "c"]), [In(("topic",), ('a",\n  "b', "c"))]),  # prints like three values
        (one_of("size", list(range(30))), [In(("size",), tuple(range(30)))]),
        (one_of("topic", ["a", None]), []),
        (pc.field("topic").isin(["a", "b"]), [In(("topic",), ("a", "b"))]),
        (pc.if_else(pc.field("size") > 5, pc.field("topic") == "a", pc.scalar(True)), []),
        (pc.field(("topic", "inner")) == "a", []),
    ],
    ids=["texts", "with another", "a value with a line", "30 values", "null", "without the check for null", "or else true", "a field"],
)
def test_a_column_that_is_one_of_some_values(filter_: Any, conditions: list[Any]) -> None:
    assert conditions_in(filter_, SCHEMA) == conditions


def test_a_filter_may_name_columns_that_are_not_asked_for() -> None:
    with StoreTables(opened(case_named(KILLED))) as tables:
        scan = tables._tables["messages"].scanner(columns=["size"], filter=pc.field("topic") == "orders").to_reader().read_all()
    assert (scan.column_names, scan.num_rows) == (["size"], 565)


# tables


def test_the_body_is_a_column_on_request() -> None:
    ((topic, size),) = answer(
        KILLED, "select topic, octet_length(body) from messages where physical_offset = 0", columns=["topic", "physical_offset", "body"]
    )
    assert (topic, size) == tuple(
        mqstore.open(opened(case_named(KILLED))).to_arrow(["topic", "body_len"]).slice(0, 1).to_pylist()[0].values()
    )


def test_damage_is_what_verify_finds() -> None:
    found = answer("4.9.3/m-damaged/16-everything", "select count(*) from damage")
    assert found == [(len(verify(mqstore.open(opened(case_named("4.9.3/m-damaged/16-everything")))).damage),)]


# what is refused


@pytest.mark.parametrize("query", ["create table t as select 1", "copy messages to 'x.csv'", "select 1; select 2", "drop view damage", ""])
def test_only_one_query_that_reads_is_run(query: str) -> None:
    with pytest.raises(UsageError, match="one statement that reads"):
        answer(KILLED, query)


@pytest.mark.parametrize("query", ["selec 1", "select colour from messages", "select * from nothing", "select 'x'::int from messages"])
def test_what_duckdb_refuses_is_one_sentence(query: str) -> None:
    with pytest.raises(UsageError, match=r"^DuckDB: ") as caught:
        answer(KILLED, query)
    assert "\n" not in str(caught.value)


def test_without_duckdb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_spec("duckdb")
    monkeypatch.setattr(duck, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'mqstore\[sql\]'"):
        answer(KILLED, "select 1")
