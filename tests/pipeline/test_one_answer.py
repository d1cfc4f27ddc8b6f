"""One query, one result: Spark and DuckDB over the store, over its Parquet files, and over its Iceberg and Delta tables.

Iceberg is read by pyiceberg and by DuckDB's own reader, Delta by deltalake and by Spark with Delta's own package, whose jars
`mvn -q -B package` in tests/interop/delta downloads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyspark
import pytest
from support.golden import case_named, opened
from support.spark_api import needs_streams

import mqstore
from mqstore import pipeline
from mqstore.jobs.export import export
from mqstore.jobs.lakehouse import CATALOG, TABLE
from mqstore.pipeline.tail.follow import follow
from mqstore.table.columns import ROCKETMQ_COLUMNS, rocketmq_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

duckdb_ext = pytest.importorskip("duckdb_ext", reason="the extensions of DuckDB are not installed")
pytestmark = pytest.mark.spark_in_all

STORES = (
    "4.9.3/b2-kill9-live",
    "4.9.3/f-broker-offsets",
    "4.9.3/m-damaged/16-everything",
    "5.3.3/i-v2-codecs-crc",
    "5.3.3/o-batch-queue",
)
QUESTIONS = {
    "groups": """
        select topic, queue_id, verdict, count(*) as n, sum(size) as bytes, max(queue_offset) as high
        from messages group by 1, 2, 3
    """,
    "windows": """
        select date_trunc('minute', store_timestamp) as minute, topic, count(*) as n, max(store_timestamp) as last
        from messages group by 1, 2
    """,
    "from minute to minute": """
        select minute, n, n - lag(n) over (order by minute) as more
        from (select date_trunc('minute', born_timestamp) as minute, count(*) as n from messages group by 1) as counted
    """,
    "latest of each queue": """
        select topic, queue_id, queue_offset, store_timestamp, uniq_key
        from (select *, row_number() over (partition by topic, queue_id order by physical_offset desc) as place from messages) as placed
        where place = 1
    """,
    "keys": """
        select key, count(*) as n, min(physical_offset) as first
        from (select {each}(keys) as key, physical_offset from messages) as single group by key
    """,
    "one key": "select physical_offset, topic, keys from messages where array_contains(keys, (select max(keys[{first}]) from messages))",
    "properties": """
        select properties['TAGS'] as tags, properties['WAIT'] as wait, count(*) as n, count(distinct properties['UNIQ_KEY']) as ids,
            sum(cardinality(properties)) as entries
        from messages group by 1, 2
    """,
    "bodies": """
        select topic, md5(body) as body, count(*) as n, sum(octet_length(body)) as bytes
        from messages where body is not null group by 1, 2
    """,
    "what is missing": """
        select verdict, store_file, count(*) as n, count(body) as bodies, count(tags) as tags, avg(size) as size
        from messages group by 1, 2
    """,
}
IN_SPARK = {name: text.format(each="explode", first=0) for name, text in QUESTIONS.items()}
IN_DUCKDB = {name: text.format(each="unnest", first=1) for name, text in QUESTIONS.items()}

FOLLOWED = "4.9.3/f-broker-offsets"
DELTA_TABLES = (*((name, "delta") for name in STORES), (FOLLOWED, "followed delta"))
DELTA_JARS = Path(__file__).resolve().parents[1] / "interop" / "delta" / "target" / "lib"
DELTA_LINE = "4.2"

Rows = list[list[Any]]
Answers = dict[str, dict[str, Rows]]


def plain(rows: Any) -> Rows:
    """Return rows as sorted values that JSON can hold. Times are without their zone, which is UTC."""
    return sorted(([_plain(value) for value in row] for row in rows), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, Decimal):
        return int(value)
    return list(value) if isinstance(value, list | tuple) else value


@cache
def database() -> duckdb.DuckDBPyConnection:
    """DuckDB with its own Iceberg reader, from installed packages: nothing is downloaded."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    connection.execute("set timezone = 'UTC'")
    for name in ("avro", "iceberg"):
        (found,) = [path for place in duckdb_ext.__path__ for path in Path(place).glob(f"extensions/v*/*/{name}.duckdb_extension")]
        connection.execute(f"load '{found}'")
    return connection


def in_duckdb(messages: str) -> dict[str, Rows]:
    """Run a query in DuckDB. messages: the relation to query, as DuckDB SQL."""
    database().execute(f"create or replace temp view messages as select * from {messages}")
    return {
        name: plain(tuple(row.values()) for row in database().sql(text).to_arrow_table().to_pylist()) for name, text in IN_DUCKDB.items()
    }


def in_duckdb_over(table: pa.Table | pa.RecordBatchReader) -> dict[str, Rows]:
    database().register("given", table)
    return in_duckdb("given")


def in_spark(spark: SparkSession, frame: Any) -> dict[str, Rows]:
    frame.createOrReplaceTempView("messages")
    return {name: plain(spark.sql(text).collect()) for name, text in IN_SPARK.items()}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores as plain Parquet files, as Iceberg and as Delta tables: STORE/FORMAT."""
    place = tmp_path_factory.mktemp("exported")
    for name in STORES:
        case = case_named(name)
        (place / name).mkdir(parents=True)
        for form in ("parquet", "iceberg", "delta"):
            export(opened(case), place / name / form, format=form, config=case.config, threads=1, splits=3)
    return place


@pytest.fixture(scope="module")
def followed(exported: Path, spark: SparkSession) -> Path:
    """One of the stores followed into tables of several batches, beside the exported ones."""
    for form in ("iceberg", "delta"):
        case = case_named(FOLLOWED)
        to = exported / FOLLOWED / f"followed {form}"
        follow(opened(case), to, form=form, once=True, batch_bytes=60_000, config=case.config, spark=spark)
    return exported


@pytest.fixture(scope="module")
def answers() -> Answers:
    """By store, DuckDB's results over our Arrow batches: all others are compared with them."""
    return {name: in_duckdb_over(mqstore.open(opened(case_named(name)), config=case_named(name).config).to_arrow()) for name in STORES}


def test_the_questions_find_something(answers: Answers) -> None:
    for question in QUESTIONS:
        assert sum(len(answers[name][question]) for name in STORES) >= len(STORES)
    assert max(len(answers[name]["keys"]) for name in STORES) > 100
    assert max(len(answers[name]["bodies"]) for name in STORES) > 100


@pytest.mark.parametrize("name", STORES)
def test_spark_over_the_store_answers_as_duckdb_over_its_batches(name: str, answers: Answers, spark: SparkSession) -> None:
    case = case_named(name)
    frame = pipeline.read(spark, opened(case), columns=list(ROCKETMQ_COLUMNS), config=case.config)
    assert in_spark(spark, frame.cache()) == answers[name]
    frame.unpersist()


def test_duckdb_answers_over_a_stream_of_batches_too(answers: Answers) -> None:
    for name in STORES:
        store = mqstore.open(opened(case_named(name)), config=case_named(name).config)
        batches = pa.RecordBatchReader.from_batches(rocketmq_schema(ROCKETMQ_COLUMNS), store.to_batches())
        database().register("once", batches)
        asked = IN_DUCKDB["groups"].replace("messages", "once")
        assert plain(database().sql(asked).fetchall()) == answers[name]["groups"]


@pytest.mark.parametrize("name", STORES)
def test_the_exported_files_answer_as_the_store(name: str, exported: Path, answers: Answers, spark: SparkSession) -> None:
    assert in_duckdb(f"read_parquet('{exported / name}/parquet/*.parquet')") == answers[name]
    frame = spark.read.parquet(str(exported / name / "parquet")).cache()
    assert in_spark(spark, frame) == answers[name]
    frame.unpersist()


@pytest.mark.parametrize("name", STORES)
def test_the_iceberg_table_answers_as_the_store(name: str, exported: Path, answers: Answers) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    root = exported / name / "iceberg"
    catalog = SqlCatalog("mqstore", uri=f"sqlite:///{root / CATALOG}", warehouse=str(root))
    try:
        table = catalog.load_table(TABLE)
        assert in_duckdb_over(table.scan().to_arrow()) == answers[name]
        assert in_duckdb(f"iceberg_scan('{table.metadata_location.removeprefix('file://')}')") == answers[name]
    finally:
        catalog.engine.dispose()


@pytest.mark.parametrize("name", STORES)
def test_the_delta_table_answers_as_the_store(name: str, exported: Path, answers: Answers) -> None:
    from deltalake import DeltaTable

    assert in_duckdb_over(DeltaTable(exported / name / "delta").to_pyarrow_table()) == answers[name]


ASK_DELTA = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_one_answer import DELTA_TABLES, in_spark
from mqstore.pipeline.spark.session import running
with running("local[2]", config=json.loads(sys.argv[3])) as spark:
    for place in DELTA_TABLES:
        table = spark.read.format("delta").load("/".join((sys.argv[2], *place))).cache()
        print(json.dumps(in_spark(spark, table)), flush=True)
"""


@pytest.fixture(scope="module")
def delta_in_spark(followed: Path) -> dict[tuple[str, str], dict[str, Rows]]:
    """By table, the results of a Spark session with Delta's package, which must be loaded at startup: a separate session."""
    jars = sorted(map(str, DELTA_JARS.glob("*.jar")))
    if not jars:
        pytest.skip("Delta's package for Spark is not there; run `mvn -q -B package` in tests/interop/delta")
    if not pyspark.__version__.startswith(DELTA_LINE + "."):
        pytest.skip(f"Delta's package here is for Spark {DELTA_LINE}; installed is {pyspark.__version__}")
    settings = {
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "2",
    }
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    argv = [sys.executable, "-c", ASK_DELTA, str(here), str(followed), json.dumps(settings)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    return dict(zip(DELTA_TABLES, map(json.loads, done.stdout.splitlines()), strict=True))


@needs_streams
@pytest.mark.spark
def test_spark_with_the_package_of_delta_answers_as_the_store(
    delta_in_spark: dict[tuple[str, str], dict[str, Rows]], answers: Answers
) -> None:
    assert len(delta_in_spark) == len(STORES) + 1
    for (name, kind), found in delta_in_spark.items():
        assert found == answers[name], kind


@needs_streams
def test_tables_that_were_followed_answer_as_the_store(followed: Path, answers: Answers) -> None:
    from deltalake import DeltaTable

    table = DeltaTable(followed / FOLLOWED / "followed delta")
    assert table.version() > 1
    assert in_duckdb_over(table.to_pyarrow_table()) == answers[FOLLOWED]
    newest = max((followed / FOLLOWED / "followed iceberg" / "metadata").glob("*.metadata.json"))
    assert in_duckdb(f"iceberg_scan('{newest}')") == answers[FOLLOWED]
