"""Stores of every further version through the commands, the Python API and Spark: all of them count the same messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.golden import FURTHER, OTHER_RABBITMQ, GoldenCase, case_id, opened, run_cli

import mqstore
from mqstore import pipeline

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark")]

ROCKETMQ_COMMANDS = ("inspect", "verify", "diagnose", "topics", "groups", "timers", "usage", "repair", "inspect -o json", "find {text}")
RABBITMQ_COMMANDS = ("inspect", "verify", "diagnose", "topics", "usage", "repair", "inspect -o json", "find {text}")


@pytest.mark.parametrize("case", [*FURTHER, *OTHER_RABBITMQ], ids=case_id)
def test_commands_api_and_spark_agree_on_a_store(case: GoldenCase, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store, kind = opened(case), "rocketmq" if case in FURTHER else "rabbitmq"
    rows = run_cli("messages", store, "-o", "jsonl").rows
    assert rows
    for command in ROCKETMQ_COMMANDS if kind == "rocketmq" else RABBITMQ_COMMANDS:
        name, *rest = command.format(text="order").split()
        asked = run_cli(name, store, *rest)
        assert "Traceback" not in asked.stderr
        assert asked.status in (0, 1) or asked.stderr.startswith("mqstore: "), (command, asked)
    exported = run_cli("export", store, "--to", tmp_path / "out.parquet", "-o", "json")
    assert (exported.status, exported.document["messages"]) == (0, len(rows))
    counted = run_cli("sql", store, "SELECT count(*) AS n FROM messages", "-o", "jsonl")
    assert [json.loads(line)["n"] for line in counted.stdout.splitlines()] == [len(rows)]
    assert mqstore.open(store).to_arrow().num_rows == len(rows)
    spark = request.getfixturevalue("spark")
    pipeline.register(spark)
    assert spark.read.format(kind).load(str(store)).count() == len(rows)
