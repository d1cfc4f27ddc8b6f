"""Export: every row of the message table in files, each traceable to its bytes; complete or absent."""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, opened, run_cli, unchanged
from support.stores import Store, message

import mqstore
from mqstore.errors import MqstoreError, TargetError, UsageError
from mqstore.findings import Kind
from mqstore.jobs.export import MANIFEST, export
from mqstore.rocketmq.store.split_reader import ExportTask, export_split
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection
from mqstore.table.row_files import TaskOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def table(path: Path, selection: Selection = Selection(), columns: tuple[str, ...] = ROCKETMQ_COLUMNS) -> list[dict[str, Any]]:
    return [row for batch in mqstore.open(path).view().batches(columns, selection) for row in batch.to_pylist()]


def parquet(root: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(root.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def small(root: Path, count: int = 200) -> Path:
    store = Store(root, file_size=8192)
    for number in range(count):
        store.put(message(("orders", "bills/", "a b")[number % 3], b"x" * (number % 90), keys=f"k{number}", queue_id=number % 4))
    for base, data in store.files.items():
        store.write_file(f"commitlog/{base:020d}", bytes(data).ljust(8192, b"\0"))
    return store.root


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_parquet_files_hold_the_message_table(case: GoldenCase, tmp_path: Path) -> None:
    source = opened(case)
    with unchanged(source):
        report = export(source, tmp_path / "out", threads=2, splits=3)
    assert parquet(tmp_path / "out") == table(source)
    assert report.messages == len(table(source))
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert [each["name"] for each in manifest["files"]] == list(report.files)
    assert sum(each["rows"] for each in manifest["files"]) == report.messages
    assert [each["bytes"] for each in manifest["files"]] == [(tmp_path / "out" / name).stat().st_size for name in report.files]


@pytest.mark.parametrize("case", [case_named("4.9.3/a-clean-small"), case_named("5.3.3/i-v2-codecs-crc")], ids=case_id)
def test_lines_are_those_the_command_messages_prints(case: GoldenCase, tmp_path: Path) -> None:
    source = opened(case)
    export(source, tmp_path / "out", format="jsonl", threads=2, splits=4)
    lines = [json.loads(line) for path in sorted((tmp_path / "out").glob("*.jsonl")) for line in path.read_text().splitlines()]
    printed = run_cli("messages", source, "-o", "jsonl", "--body", "base64")
    assert printed.status == 0
    assert lines == [json.loads(line) for line in printed.stdout.splitlines()]


def test_csv_files_hold_the_same_rows_under_a_head(tmp_path: Path) -> None:
    source = opened(case_named("4.9.3/a-clean-small"))
    export(source, tmp_path / "out", format="csv", threads=2, splits=2, columns=["topic", "keys", "store_timestamp"])
    found = []
    for path in sorted((tmp_path / "out").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            found += list(csv.DictReader(file))
    wanted = table(source, columns=("topic", "physical_offset"))
    assert [row["topic"] for row in found] == [row["topic"] for row in wanted]
    assert [int(row["physical_offset"]) for row in found] == [row["physical_offset"] for row in wanted]
    assert list(found[0]) == ["topic", "keys", "store_timestamp", "physical_offset", "store_file", "verdict"]
    assert found[0]["store_timestamp"] == "1640995200123"


def test_lineage_is_always_there(tmp_path: Path) -> None:
    source = opened(case_named("4.9.3/a-clean-small"))
    report = export(source, tmp_path / "out", columns=["topic"], threads=1)
    schema = pq.read_schema(tmp_path / "out" / report.files[0])
    assert schema.names == ["topic", "physical_offset", "store_file", "verdict"]
    assert schema.metadata[b"mqstore.run_id"].decode() == report.run_id
    assert schema.metadata[b"mqstore.store"].decode() == str(source)


def test_an_export_that_took_no_time_has_a_speed_of_zero(tmp_path: Path) -> None:
    report = export(small(tmp_path / "store"), tmp_path / "out", threads=1)
    speeds = [replace(report, log_bytes=3 * 10**9, seconds=seconds).gigabytes_per_second for seconds in (0.0, 2.0)]
    assert speeds == [0.0, 1.5]


def test_times_are_microseconds_in_utc_as_table_formats_want_them(tmp_path: Path) -> None:
    export(opened(case_named("4.9.3/a-clean-small")), tmp_path / "out", threads=1)
    schema = pq.read_schema(tmp_path / "out/part-00000.parquet")
    assert schema.field("store_timestamp").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    "selection",
    [
        Selection(topics=frozenset({"orders"})),
        Selection(keys=frozenset({"k7", "k9"}), limit=1),
        Selection(from_offset=3001, to_offset=9000),
        Selection(since=1_640_995_200_050, queue_ids=frozenset({1, 2}), limit=7),
        Selection(grep=re.compile(b"x{80}")),
        Selection(limit=0),
        Selection(topics=frozenset({"nothing"})),
    ],
)
@pytest.mark.parametrize("count", [1, 5])
def test_a_selection_is_exported_as_it_is_read(selection: Selection, count: int, tmp_path: Path) -> None:
    source = small(tmp_path / "store")
    report = export(source, tmp_path / "out", selection=selection, threads=2, splits=count)
    assert parquet(tmp_path / "out") == table(source, selection)
    assert report.files


def test_partitions_are_directories_and_their_columns_stand_in_the_path(tmp_path: Path) -> None:
    source = small(tmp_path / "store")
    report = export(source, tmp_path / "out", partition_by=["topic", "store_timestamp"], threads=2, splits=2)
    assert {name.rpartition("/")[0] for name in report.files} == {
        "topic=orders/store_day=2022-01-01",
        "topic=bills%2F/store_day=2022-01-01",
        "topic=a b/store_day=2022-01-01",
    }
    found = ds.dataset(tmp_path / "out", partitioning="hive", exclude_invalid_files=True).to_table().to_pylist()
    key = {row["physical_offset"]: (row["topic"], row["store_timestamp"]) for row in found}
    assert key == {row["physical_offset"]: (row["topic"], row["store_timestamp"]) for row in table(source)}
    assert "topic" not in pq.read_schema(tmp_path / "out" / report.files[0]).names


def test_a_missing_value_has_a_partition_of_its_own(tmp_path: Path) -> None:
    report = export(small(tmp_path / "store"), tmp_path / "out", partition_by=["tags", "queue_id"], threads=1)
    assert {name.split("/")[0] for name in report.files} == {"tags=__HIVE_DEFAULT_PARTITION__"}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"format": "xml"}, "the formats are parquet, jsonl, csv"),
        ({"columns": ["colour"]}, "no column 'colour'"),
        ({"partition_by": ["body"]}, "body cannot name directories"),
        ({"partition_by": ["colour"]}, "no column 'colour'"),
    ],
)
def test_what_cannot_be_exported_is_reported_before_anything_is_written(asked: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        export(opened(case_named("4.9.3/a-clean-small")), tmp_path / "out", threads=1, **asked)
    assert list(tmp_path.iterdir()) == []


def test_a_partition_with_too_long_a_name_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too long for a directory name"):
        export(opened(case_named("5.3.3/i-v2-codecs-crc")), tmp_path / "out", partition_by=["topic"], threads=2)
    assert list(tmp_path.iterdir()) == []


def test_damage_is_reported_and_the_rest_is_exported(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=8192)
    for number in range(100):
        store.put(message("orders", b"x" * 200, keys=f"k{number}"))
    store.write()
    store.patch_log(store.puts[50].offset + 4, bytes(4))
    store.patch_log(store.puts[60].offset + 100, b"!")
    for count in (1, 6):
        report = export(store.root, tmp_path / str(count), threads=2, splits=count)
        assert [(item.kind, item.messages) for item in report.damage] == [(Kind.BAD_FRAME, 1)]
        assert not report.ok
        verdicts = {row["physical_offset"]: row["verdict"] for row in parquet(tmp_path / str(count))}
        assert len(verdicts) == 99
        assert verdicts[store.puts[60].offset] == "damaged"


def test_a_target_that_exists_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(TargetError, match="exists already"):
        export(opened(case_named("4.9.3/a-clean-small")), tmp_path / "out", threads=1)
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.versions
@pytest.mark.parametrize("file_format", ["parquet", "jsonl", "csv"])
def test_spark_writes_the_rows_that_threads_write(file_format: str, tmp_path: Path, spark: SparkSession) -> None:
    source = opened(case_named("4.9.3/a-clean-small"))
    done: list[tuple[int, int]] = []
    on_spark = export(source, tmp_path / "a", format=file_format, spark=spark, splits=5, progress=lambda *told: done.append(told))
    in_process = export(source, tmp_path / "b", format=file_format, threads=1, splits=5)
    assert on_spark.files == in_process.files
    for name in on_spark.files:
        if file_format == "parquet":
            assert pq.read_table(tmp_path / "a" / name).equals(pq.read_table(tmp_path / "b" / name))
        else:
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert done[-1][0] == done[-1][1] > 0


@pytest.mark.versions
def test_spark_reads_the_exported_table(tmp_path: Path, spark: SparkSession) -> None:
    source = opened(case_named("4.9.3/a-clean-small"))
    export(source, tmp_path / "out", spark=spark, splits=3)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.count() == 511
    assert {row["topic"] for row in found.select("topic").distinct().collect()} == {row["topic"] for row in table(source)}


def test_attempts_that_died_after_they_wrote_leave_no_file(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def dies_at_first(task: ExportTask) -> TaskOutput:
        result = export_split(task)
        mark = marks / str(task.read.split.number)
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return result

    monkeypatch.setattr("mqstore.jobs.export.export_split", dies_at_first)
    source = opened(case_named("4.9.3/a-clean-small"))
    report = export(source, tmp_path / "out", spark=spark, splits=3)
    assert report.messages == 511
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [MANIFEST, *report.files]
    assert parquet(tmp_path / "out") == table(source)


def test_a_task_that_fails_for_good_leaves_nothing(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(task: ExportTask) -> TaskOutput:
        raise TargetError("the disk is full")

    monkeypatch.setattr("mqstore.jobs.export.export_split", full)
    with pytest.raises(MqstoreError, match=r"^the disk is full$"):
        export(opened(case_named("4.9.3/a-clean-small")), tmp_path / "out", spark=spark)
    assert list(tmp_path.iterdir()) == []


def test_large_bodies_do_not_come_together_beyond_a_row_group(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=256 << 20)
    body = os.urandom(3 << 20)
    for _ in range(50):
        store.put(replace(message("orders", body)))
    for base, data in store.files.items():
        store.write_file(f"commitlog/{base:020d}", bytes(data))
    os.truncate(store.root / ("commitlog/" + "0" * 20), 256 << 20)
    report = export(store.root, tmp_path / "out", threads=1, splits=1)
    groups = pq.ParquetFile(tmp_path / "out" / report.files[0]).metadata
    assert groups.num_rows == 50
    assert max(groups.row_group(k).num_rows for k in range(groups.num_row_groups)) <= 25
