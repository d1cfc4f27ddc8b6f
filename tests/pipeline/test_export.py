"""Export: the files hold the very rows that the store's own table has, whatever writes them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from goldenkit import CASES, GoldenCase, case_id, case_named, opened, unchanged

import mqstore
from mqstore.errors import TargetError, UsageError
from mqstore.messages import ROCKETMQ_COLUMNS, Selection
from mqstore.pipeline.export import LINEAGE, MANIFEST, ExportTask, export, write_split
from mqstore.rows import json_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLED = case_named("4.9.3/b-kill9")


def rows_of(root: Path, columns: tuple[str, ...] = ROCKETMQ_COLUMNS, selection: Selection = Selection()) -> list[dict[str, Any]]:
    return [row for batch in mqstore.open(root).to_batches(columns, selection) for row in batch.to_pylist()]


def exported(root: Path) -> list[dict[str, Any]]:
    table = ds.dataset(sorted(root.rglob("*.parquet")), format="parquet").to_table()
    return sorted(table.to_pylist(), key=lambda row: row["physical_offset"])


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_parquet_holds_the_table_of_every_golden_store(case: GoldenCase, tmp_path: Path) -> None:
    source = opened(case)
    with unchanged(source):
        report = export(source, tmp_path / "out", in_process_threads=2, splits=3)
    assert exported(tmp_path / "out") == rows_of(source)
    assert report.messages == len(rows_of(source))
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["messages"] == report.messages
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("splits", [1, 7])
def test_spark_writes_the_same_rows_for_any_number_of_splits(spark: SparkSession, splits: int, tmp_path: Path) -> None:
    source = opened(KILLED)
    report = export(source, tmp_path / "out", spark=spark, splits=splits)
    assert exported(tmp_path / "out") == rows_of(source)
    assert len(report.files) == splits
    total = spark.read.parquet(str(tmp_path / "out")).count()
    assert total == report.messages == 1639


def test_json_lines_are_the_rows_that_the_messages_command_prints(tmp_path: Path) -> None:
    source = opened(KILLED)
    export(source, tmp_path / "out", format="jsonl", in_process_threads=1, splits=2)
    lines = [line for path in sorted((tmp_path / "out").glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    names = list(json.loads(lines[0]))
    expected = [
        json.loads(row) for batch in mqstore.open(source).to_batches(names, milliseconds=True) for row in json_rows(batch, "base64")
    ]
    assert [json.loads(line) for line in lines] == expected


def test_csv_has_a_header_and_a_line_a_message(tmp_path: Path) -> None:
    source = opened(KILLED)
    export(source, tmp_path / "out", format="csv", in_process_threads=1)
    with open(tmp_path / "out" / "part-00000.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["physical_offset"]) for row in rows] == [row["physical_offset"] for row in rows_of(source, ("physical_offset",))]
    assert all(row["verdict"] in ("intact", "unindexed") for row in rows)


def test_chosen_columns_come_with_their_lineage(tmp_path: Path) -> None:
    export(opened(KILLED), tmp_path / "out", columns=("topic", "size"), in_process_threads=1)
    assert pq.read_schema(tmp_path / "out" / "part-00000.parquet").names == ["topic", "size", *LINEAGE]


@pytest.mark.parametrize(
    "selection",
    [
        Selection(topics=frozenset({"orders"}), queue_ids=frozenset({1, 2})),
        Selection(from_offset=100_000, to_offset=400_000),
        Selection(since=1640995210000, until=1640995220000),
        Selection(grep=re.compile(rb"invoice")),
        Selection(limit=9),
        Selection(topics=frozenset({"orders"}), limit=5),
    ],
    ids=["queues", "offsets", "times", "grep", "limit", "topic-and-limit"],
)
def test_filters_choose_what_the_table_chooses(selection: Selection, tmp_path: Path) -> None:
    source = opened(KILLED)
    export(source, tmp_path / "out", selection=selection, in_process_threads=2, splits=4)
    wanted = rows_of(source, selection=selection)
    assert wanted
    assert exported(tmp_path / "out") == wanted


def test_nothing_chosen_is_one_file_with_the_columns_and_no_rows(tmp_path: Path) -> None:
    report = export(opened(KILLED), tmp_path / "out", selection=Selection(topics=frozenset({"never"})), in_process_threads=1)
    assert report.files == ("part-00000.parquet",)
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet").num_rows == 0


def test_partitions_stand_in_the_names_of_directories(tmp_path: Path) -> None:
    source = opened(KILLED)
    export(source, tmp_path / "out", partition_by=("topic", "store_timestamp"), in_process_threads=2, splits=3)
    assert (tmp_path / "out" / "topic=orders" / "store_day=2022-01-01").is_dir()
    files = f"read_parquet('{tmp_path}/out/**/*.parquet', hive_partitioning=true)"
    found = duckdb.sql(f"select topic, count(*), sum(octet_length(body)) from {files} group by 1 order by 1").fetchall()
    expected: dict[str, list[int]] = {}
    for row in rows_of(source, ("topic", "body")):
        expected.setdefault(row["topic"], []).append(len(row["body"]))
    assert found == [(topic, len(sizes), sum(sizes)) for topic, sizes in sorted(expected.items())]


def test_a_partition_value_cannot_lead_out_of_the_target(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    from mqstore.rocketmq.record import Record, encode

    (root / "commitlog" / "00000000000000000000").write_bytes(
        encode(Record("../../out/of here", b"x", store_timestamp=1)).ljust(4096, b"\0")
    )
    export(root, tmp_path / "out", partition_by=("topic",), in_process_threads=1)
    assert [path.parent.name for path in (tmp_path / "out").rglob("*.parquet")] == ["topic=..%2F..%2Fout%2Fof here"]


def test_damage_is_told_and_the_rest_is_written(tmp_path: Path) -> None:
    case = case_named("4.9.3/m-damaged/05-zero-4k")
    report = export(opened(case), tmp_path / "out", in_process_threads=2)
    assert not report.ok
    assert report.messages == 419
    assert [item.offset for item in report.damage] == [7543]


def test_a_repeated_attempt_adds_nothing(tmp_path: Path) -> None:
    """A lost attempt leaves files under a name of its own; only those of the counted attempt are given a name in the target."""
    source = opened(KILLED)
    stage = tmp_path / "stage"
    stage.mkdir()
    from mqstore.rocketmq.splits import plan

    task = ExportTask(str(source), None, str(stage), "run", plan(mqstore.open(source).log)[0], "parquet", ROCKETMQ_COLUMNS, (), Selection())
    first, second = write_split(task), write_split(task)
    assert first.rows == second.rows
    assert {file.path for file in first.files}.isdisjoint(file.path for file in second.files)


def test_a_target_that_exists_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    with pytest.raises(TargetError, match="exists already"):
        export(opened(KILLED), tmp_path / "out", in_process_threads=1)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "wrong", [{"format": "xml"}, {"columns": ("tpoic",)}, {"partition_by": ("body",)}], ids=["format", "column", "partition"]
)
def test_a_wrong_wish_is_one_sentence(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        export(opened(KILLED), tmp_path / "out", in_process_threads=1, **wrong)
    assert not list(tmp_path.iterdir())
