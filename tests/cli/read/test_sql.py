"""`sql` as users and scripts run it."""

from __future__ import annotations

import base64
import csv
import io
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.golden import case_named, opened, run_cli
from support.spark_api import needs_tables
from support.stores import Store, message

import mqstore

pytestmark = pytest.mark.spark_in_all

KILLED = case_named("4.9.3/b-kill9")
BY_TOPIC = "select topic, count(*) as n, max(store_timestamp) as last from messages where queue_id = 1 group by topic order by topic"


@needs_tables
@pytest.mark.versions
def test_rows_are_a_table_for_people() -> None:
    done = run_cli("sql", opened(KILLED), BY_TOPIC)
    assert (done.status, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()[2:]] == [
        ["TopicTest", "145", "2022-01-01", "00:15:10.742"],
        ["orders", "190", "2022-01-01", "00:15:10.578"],
    ]


def test_machine_formats_have_the_same_rows_with_times_in_milliseconds() -> None:
    wanted = [{"topic": "TopicTest", "n": 145, "last": 1640996110742}, {"topic": "orders", "n": 190, "last": 1640996110578}]
    assert run_cli("sql", opened(KILLED), BY_TOPIC, "-o", "json").document == wanted
    assert run_cli("sql", opened(KILLED), BY_TOPIC, "-o", "jsonl").rows == wanted
    sheet = csv.DictReader(io.StringIO(run_cli("sql", opened(KILLED), BY_TOPIC, "-o", "csv").stdout))
    assert list(sheet) == [{name: str(value) for name, value in row.items()} for row in wanted]


def test_a_whole_row_has_the_values_of_the_message_table(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put(message("orders", b"\x00\xff", keys="k1 k2", tags="A"))
    columns = "topic,tags,keys,properties,body,uniq_key,body_crc_ok"
    (row,) = run_cli("sql", store.write(), "select * from messages", "--columns", columns, "-o", "json").document
    body = base64.b64encode(b"\x00\xff").decode()
    assert row == {
        "topic": "orders",
        "tags": "A",
        "keys": ["k1", "k2"],
        "properties": {"KEYS": "k1 k2", "TAGS": "A"},
        "body": body,
        "uniq_key": None,
        "body_crc_ok": True,
    }


def test_repeated_names_are_numbered() -> None:
    (row,) = run_cli("sql", opened(KILLED), "select 1 as a, 2 as a, sum(1.5::decimal(9, 2)) as b", "-o", "json").document
    assert row == {"a": 1, "a_2": 2, "b": 1.5}


def test_no_rows_are_an_empty_result() -> None:
    done = run_cli("sql", opened(KILLED), "select topic from messages where physical_offset > 99999999", "-o", "json")
    assert (done.status, done.document) == (0, [])


def test_an_archive_is_read_as_its_directory() -> None:
    assert run_cli("sql", KILLED.archive, "select count(*) as n from messages", "-o", "json").document == [{"n": 1639}]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("selec", "DuckDB: Parser Error"),
        ("select colour from messages", "DuckDB: Binder Error"),
        ("copy messages to 'x.csv'", "give one statement that reads"),
    ],
)
def test_a_query_that_cannot_be_run_is_one_sentence(query: str, sentence: str) -> None:
    done = run_cli("sql", opened(KILLED), query)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith(f"mqstore: {sentence}")
    assert done.stderr.count("\n") == 1


@needs_tables
@pytest.mark.versions
def test_the_tables_of_a_rabbitmq_store_hold_what_its_commands_list() -> None:
    node = opened(case_named("3.10.8/f-mixed-features"))
    wanted = Counter((row["vhost"], row["queue"]) for row in run_cli("messages", node, "-o", "jsonl").rows)
    found = run_cli("sql", node, "select vhost, queue, count(*) as n from messages group by all", "-o", "json").document
    assert {(row["vhost"], row["queue"]): row["n"] for row in found} == wanted
    (queue, vhost), number = next(((name, vhost), n) for (vhost, name), n in wanted.items() if name == "lazy.mixed")
    entries = run_cli("queue", node, vhost, queue, "-o", "jsonl").rows
    of_queue = f"where queue = '{queue}' and vhost = '{vhost}'"
    listed = run_cli("sql", node, f"select seq_id, msg_id from index_entries {of_queue}", "-o", "jsonl").rows
    assert sorted((row["seq_id"], row["msg_id"]) for row in listed) == sorted((row["seq_id"], row["msg_id"]) for row in entries)
    count = f"select count(*) as n, count(r.msg_id) as stored from messages m left join records r using (vhost, msg_id) {of_queue}"
    (joined,) = run_cli("sql", node, count, "-o", "json").document
    assert joined["n"] == number > joined["stored"] > 0
    assert run_cli("sql", node, "select * from refusals", "-o", "json").document == []


def test_columns_of_a_rabbitmq_store_are_chosen_and_payloads_are_read_only_then() -> None:
    node = opened(case_named("3.10.8/a-small-clean"))
    (row,) = run_cli("sql", node, "select max(octet_length(payload)) as n from messages", "--columns", "payload", "-o", "json").document
    assert row == run_cli("sql", node, "select max(payload_len) as n from messages", "-o", "json").document[0]
    refused = run_cli("sql", node, "select payload from messages")
    assert (refused.status, 'column "payload" not found' in refused.stderr) == (2, True)
    refused = run_cli("sql", node, "select 1", "--config", "broker.conf")
    assert (refused.status, refused.stderr) == (2, "mqstore: --config is for RocketMQ stores; a RabbitMQ store needs none\n")
    refused = run_cli("sql", node, "select 1 from messages", "--columns", "nope")
    assert (refused.status, "nope" in refused.stderr) == (2, True)


@pytest.mark.spark
def test_spark_and_duckdb_print_the_same_of_a_rabbitmq_store() -> None:
    query = "select queue, count(*) as n, sum(payload_len) as bytes from messages group by queue order by queue"
    node = opened(case_named("3.10.8/a-small-clean"))
    on_spark = run_cli("sql", node, query, "--master", "local[2]", "-o", "json")
    assert on_spark.document == run_cli("sql", node, query, "-o", "json").document


@pytest.mark.long
def test_spark_and_duckdb_print_the_same(spark: SparkSession) -> None:
    for query in (BY_TOPIC, "select keys, properties from messages where physical_offset = 0"):
        assert run_cli("sql", opened(KILLED), query, "--master", "local[2]", "-o", "json").document == (
            run_cli("sql", opened(KILLED), query, "-o", "json").document
        )
    assert mqstore.open(opened(KILLED)).to_arrow(["topic"]).num_rows == 1639
