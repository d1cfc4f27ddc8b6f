"""Random conditions: Spark's value for each message is that of plain Python, and no reader drops a message for which it is true.

A condition is named by its number, which a failure prints: `--first-predicate N --predicates 1` tries that one alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from support import spark_api
from support.random_predicates import RandomPredicate
from support.stores import BEGIN, Store, message

import mqstore
from mqstore import pipeline
from mqstore.pipeline.source.options import ReadOptions, message_fields
from mqstore.pipeline.source.pushdown import filters_of
from mqstore.pipeline.source.rocketmq import RocketMQReader
from mqstore.pipeline.source.stores import ddl_schema
from mqstore.table.columns import ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark_in_all

ZONE = "Europe/Berlin"
# the nights in which the clocks of the zone are changed, in milliseconds
SPRING, AUTUMN = 1_648_332_000_000, 1_667_080_800_000
COLUMNS = (*ROCKETMQ_COLUMNS, "body_len")
IN_ONE_JOB = 50


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with NULL in tags, keys and uniq_key, damaged messages, and messages of both nights."""
    made = Store(tmp_path_factory.mktemp("predicates"), file_size=16384)
    chance = random.Random(5)
    for number in range(240):
        begin = SPRING if number < 120 else AUTUMN
        each = message(
            ("orders", "bills", "größe", "o_d%r")[chance.randrange(4)],
            bytes(chance.randrange(256) for _ in range(chance.randrange(50))),
            keys=chance.choice((None, f"k{number}", f"k{number % 9} all", "it's")),
            tags=chance.choice((None, "T0", "T1", "it's", "a%b")),
            queue_id=chance.randrange(4),
            flag=chance.randrange(3),
        )
        if number % 3:
            each = with_property(each, "UNIQ_KEY", f"0A09{number:028X}")
        made.put(each, at=begin - BEGIN + number % 120 * 180_000 + chance.randrange(2) * chance.randrange(1000))
    path = made.write()
    for number in (30, 31, 170):  # damaged bodies
        made.patch_log(made.puts[number].offset + 88, b"\xff\x00\xff")
    return path


def with_property(record: Any, name: str, value: str) -> Any:
    from dataclasses import replace

    from mqstore.rocketmq.format.record import encode_properties

    return replace(record, properties=encode_properties(record.property_map() | {name: value}))


@pytest.fixture(scope="module")
def rows(store: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = mqstore.open(store).to_arrow(COLUMNS).to_pylist()
    assert len(found) == 240
    assert {name for row in found for name, value in row.items() if value is None} >= {"tags", "keys", "uniq_key"}
    return found


@pytest.fixture
def in_zone(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield
    spark.conf.set("spark.sql.session.timeZone", str(before))


def predicates(rows: list[dict[str, Any]], first: int, count: int) -> dict[int, RandomPredicate]:
    return {number: RandomPredicate(random.Random(number), rows, ZoneInfo(ZONE)) for number in range(first, first + count)}


def check(spark: SparkSession, store: Path, rows: list[dict[str, Any]], first: int, count: int, every: int) -> None:
    """Check these conditions; each `every`-th one also in queries of its own."""
    frame = pipeline.read(spark, store, columns=COLUMNS)
    schema = ddl_schema(message_fields(COLUMNS))
    narrower = 0
    for begin in range(first, first + count, IN_ONE_JOB):
        made = predicates(rows, begin, min(IN_ONE_JOB, first + count - begin))
        wanted = {number: {row["physical_offset"] for row in rows if each.holds(row)} for number, each in made.items()}
        found = frame.selectExpr("physical_offset as at", *(f"({each.sql}) as p{number}" for number, each in made.items())).collect()
        by_offset = {row["at"]: row for row in found}
        for number, each in made.items():
            for row in rows:
                value = by_offset[row["physical_offset"]][f"p{number}"]
                assert value is each.holds(row), f"--first-predicate {number}: {each.sql}: Spark has {value} for {row}"
            read = read_by(spark, store, schema, each)
            assert wanted[number] <= read, f"--first-predicate {number}: {each.sql}: not read: {wanted[number] - read}"
            narrower += len(read) < len(rows)
        whole = {number: each for number, each in made.items() if number % every == 0}
        for (number, way), offsets in answers(spark, store, frame, whole).items():
            assert offsets == sorted(wanted[number]), f"--first-predicate {number}: {made[number].sql}: {way}"
    assert narrower >= count // 10 or count < 10 or not spark_api.FILTERS


def read_by(spark: SparkSession, store: Path, schema: str, made: RandomPredicate) -> set[int]:
    """Return the messages that a reader with the filters of a condition returns, before Spark checks it."""
    options = ReadOptions.of({"path": str(store), "filters": filters_of(spark, schema, made.sql)})
    reader = RocketMQReader(options, ("physical_offset",))
    return {offset for part in reader.partitions() for batch in reader.read(part) for offset in batch.column(0).to_pylist()}


def answers(spark: SparkSession, store: Path, frame: DataFrame, made: dict[int, RandomPredicate]) -> dict[tuple[int, str], list[int]]:
    """Return the messages of a read with the condition, of a query, and of the narrowed query, in one job."""
    from pyspark.sql.functions import lit

    frames = {}
    for number, each in made.items():
        frames[number, "where="] = pipeline.read(spark, store, columns=["physical_offset"], where=each.sql)
        frames[number, "query"] = frame.where(each.sql).select("physical_offset")
        frames[number, "narrowed"] = pipeline.narrowed(frames[number, "query"])
    if not frames:
        return {}
    marked = [each.select(lit(place).alias("place"), "physical_offset") for place, each in enumerate(frames.values())]
    found: list[list[int]] = [[] for _ in marked]
    for place, offset in reduce(lambda left, right: left.union(right), marked).collect():
        found[place].append(offset)
    return {name: sorted(offsets) for name, offsets in zip(frames, found, strict=True)}


def test_random_conditions_hold_for_the_messages_for_which_they_hold_in_python(
    store: Path, rows: list[dict[str, Any]], spark: SparkSession, in_zone: None, request: pytest.FixtureRequest
) -> None:
    first, count = request.config.getoption("--first-predicate"), request.config.getoption("--predicates")
    check(spark, store, rows, first, count or 20, every=10 if count != 1 else 1)


@pytest.mark.long
def test_1000_random_conditions_hold_for_the_messages_for_which_they_hold_in_python(
    store: Path, rows: list[dict[str, Any]], spark: SparkSession, in_zone: None
) -> None:
    check(spark, store, rows, 20, 1000, every=50)


def test_the_generator_makes_every_form_of_condition(rows: list[dict[str, Any]]) -> None:
    made = predicates(rows, 0, 400)
    text = " ".join(each.sql for each in made.values())
    for form in (" or ", " and ", "not (", " not in (", "null", "between", "is distinct from", "is not distinct from", " like ", "cast("):
        assert form in text, form
    values = [each.holds(row) for each in made.values() for row in rows[::20]]
    assert all(values.count(each) > len(values) // 20 for each in (True, False, None))
