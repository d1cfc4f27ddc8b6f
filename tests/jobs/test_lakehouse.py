"""Exports as Iceberg and Delta tables, and exports that are killed and resumed: the rows are those of a plain export."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, opened, run_cli
from support.stores import Store, message
from support.tables import delta, iceberg, plain, table

from mqstore.errors import PipelineError, TargetError, UsageError
from mqstore.jobs.export import MANIFEST, export
from mqstore.rocketmq.store.split_reader import ExportTask, export_split
from mqstore.table.columns import Selection
from mqstore.table.row_files import TaskOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEAN = case_named("4.9.3/a-clean-small")
FORMATS = ("iceberg", "delta")


# tables


@pytest.mark.versions
@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("file_format", FORMATS)
def test_a_table_has_the_rows_of_the_plain_export(file_format: str, case: GoldenCase, tmp_path: Path) -> None:
    source = opened(case)
    export(source, tmp_path / "plain", threads=1, splits=3)
    report = export(source, tmp_path / "a table", format=file_format, threads=2, splits=3)
    assert table(file_format, tmp_path / "a table") == plain(tmp_path / "plain")
    assert report.format == file_format
    assert sorted(name for name in os.listdir(tmp_path)) == ["a table", "plain"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_files_of_a_table_are_those_that_the_tasks_wrote(file_format: str, tmp_path: Path) -> None:
    source = opened(CLEAN)
    export(source, tmp_path / "plain", threads=1, splits=3)
    report = export(source, tmp_path / "table", format=file_format, threads=1, splits=3)
    for name in report.files:
        assert pq.read_table(tmp_path / "table" / name).equals(pq.read_table(tmp_path / "plain" / name))
    assert json.loads((tmp_path / "table" / MANIFEST).read_text())["format"] == file_format


@pytest.mark.versions
def test_iceberg_is_read_without_its_catalog_too(tmp_path: Path) -> None:
    from pyiceberg.table import StaticTable

    export(opened(CLEAN), tmp_path / "out", format="iceberg", threads=1)
    metadata = sorted((tmp_path / "out" / "metadata").glob("*.metadata.json"))[-1]
    assert ".mqstore-" not in metadata.read_text()
    found = StaticTable.from_metadata(str(metadata)).scan(row_filter="topic == 'orders'").to_arrow()
    assert found.num_rows == sum(row["topic"] == "orders" for row in plain(tmp_path / "out"))


@pytest.mark.versions
def test_sql_answers_are_equal_in_duckdb_over_each_format(tmp_path: Path) -> None:
    import duckdb

    source = opened(CLEAN)
    asked = "select topic, queue_id, count(*), sum(size), epoch_ms(max(store_timestamp)) from messages group by 1, 2 order by 1, 2"
    answers = []
    for file_format in ("parquet", *FORMATS):
        export(source, tmp_path / file_format, format=file_format, threads=1, splits=2)
        messages = {
            "parquet": lambda: pa.concat_tables(pq.read_table(path) for path in (tmp_path / "parquet").glob("*.parquet")),
            "iceberg": lambda: iceberg(tmp_path / "iceberg"),
            "delta": lambda: delta(tmp_path / "delta"),
        }[file_format]()
        answers.append(duckdb.sql(asked).fetchall())
        assert len(messages) == 511
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.versions
def test_spark_writes_the_table_that_threads_write(tmp_path: Path, spark: SparkSession) -> None:
    for file_format in FORMATS:
        export(opened(CLEAN), tmp_path / f"{file_format}-s", format=file_format, spark=spark, splits=4)
        export(opened(CLEAN), tmp_path / f"{file_format}-t", format=file_format, threads=1, splits=4)
        assert table(file_format, tmp_path / f"{file_format}-s") == table(file_format, tmp_path / f"{file_format}-t")


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_table_without_rows_has_the_columns(file_format: str, tmp_path: Path) -> None:
    nothing = Selection(topics=frozenset({"no such topic"}))
    export(opened(CLEAN), tmp_path / "out", format=file_format, selection=nothing, columns=["topic", "size"], threads=1)
    found = iceberg(tmp_path / "out") if file_format == "iceberg" else delta(tmp_path / "out")
    assert found.num_rows == 0
    assert found.schema.names == ["topic", "size", "physical_offset", "store_file", "verdict"]


@pytest.mark.parametrize(("file_format", "module"), [("iceberg", "pyiceberg"), ("delta", "deltalake")])
def test_a_missing_extra_is_named(file_format: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.jobs.lakehouse.find_spec", lambda name: None if name == module else find_spec(name))
    done = run_cli("export", opened(CLEAN), "--to", tmp_path / "out", "--format", file_format, "--threads", 1)
    assert done.status == 2
    assert f"needs {module}, which is not installed: pip install 'mqstore[{file_format}]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file_format", FORMATS)
def test_what_cannot_become_a_table_is_reported_before_anything_is_written(file_format: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be partitioned here"):
        export(opened(CLEAN), tmp_path / "out", format=file_format, partition_by=["topic"], threads=1)
    with pytest.raises(UsageError, match="interpret as part of a URL"):
        export(opened(CLEAN), tmp_path / "out#1", format=file_format, threads=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_table_that_cannot_be_made_leaves_nothing(file_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ValueError("no\nroom")

    monkeypatch.setattr(f"mqstore.jobs.lakehouse._{file_format}", fails)
    with pytest.raises(TargetError, match="could not create the table: no room"):
        export(opened(CLEAN), tmp_path / "out", format=file_format, threads=1)
    assert list(tmp_path.iterdir()) == []


def test_the_command_makes_a_table(tmp_path: Path) -> None:
    done = run_cli("export", opened(CLEAN), "--to", tmp_path / "out", "--format", "delta", "--threads", 1, "-o", "json")
    assert done.status == 0
    assert done.document["format"] == "delta"
    assert len(table("delta", tmp_path / "out")) == done.document["messages"] == 511


# damage


def test_damage_fails_the_job_if_requested(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=8192)
    for number in range(60):
        store.put(message("orders", b"x" * 200, keys=f"k{number}"))
    store.write()
    store.patch_log(store.puts[30].offset + 4, bytes(4))
    with pytest.raises(PipelineError, match="1 range of the log is damaged, the first at"):
        export(store.root, tmp_path / "out", mode="FAILFAST", threads=1)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    with pytest.raises(UsageError, match="there is no mode 'STRICT'"):
        export(store.root, tmp_path / "out", mode="STRICT", threads=1)


# resume

KILLED = """
import os, signal, sys
from mqstore.jobs import export as module
whole = module.export_split
def killing(task):
    if task.read.split.number == 3:
        if sys.argv[4] == "written":
            whole(task)
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(task)
module.export_split = killing
module.export(sys.argv[1], sys.argv[2], format=sys.argv[3], threads=1, splits=6)
"""


def kill(source: Path, to: Path, file_format: str = "parquet", when: str = "before") -> None:
    died = subprocess.run([sys.executable, "-c", KILLED, source, to, file_format, when], capture_output=True, check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert not to.exists()


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []

    def counted(task: ExportTask) -> TaskOutput:
        seen.append(task.read.split.number)
        return export_split(task)

    monkeypatch.setattr("mqstore.jobs.export.export_split", counted)
    return seen


@pytest.mark.parametrize("when", ["before", "written"])
@pytest.mark.parametrize("file_format", ["parquet", "jsonl", *FORMATS])
def test_a_killed_export_goes_on_where_it_was(file_format: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = opened(CLEAN)
    kill(source, tmp_path / "out", file_format, when)
    planned = json.loads((tmp_path / ".out.mqstore-export" / "plan.json").read_text())
    seen = counting(monkeypatch)
    report = export(source, tmp_path / "out", format=file_format, resume=True, threads=2)
    assert sorted(seen) == [3, 4, 5]
    assert report.run_id == planned["run_id"]
    export(source, tmp_path / "whole", format="jsonl" if file_format == "jsonl" else "parquet", threads=1, splits=6)
    assert report.messages == 511
    for name in report.files:
        if file_format == "jsonl":
            assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        else:
            assert pq.read_table(tmp_path / "out" / name).equals(pq.read_table(tmp_path / "whole" / name))
    if file_format in FORMATS:
        assert table(file_format, tmp_path / "out") == plain(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]


def test_a_killed_export_on_threads_goes_on_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    kill(opened(CLEAN), tmp_path / "out")
    assert export(opened(CLEAN), tmp_path / "out", resume=True, spark=spark).messages == 511
    export(opened(CLEAN), tmp_path / "whole", threads=1)
    assert plain(tmp_path / "out") == plain(tmp_path / "whole")


def test_without_resume_leftovers_of_a_killed_run_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill(opened(CLEAN), tmp_path / "out")
    seen = counting(monkeypatch)
    export(opened(CLEAN), tmp_path / "out", threads=1, splits=6)
    assert len(seen) == 6
    assert os.listdir(tmp_path) == ["out"]


def test_with_resume_a_run_that_fails_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(task: ExportTask) -> TaskOutput:
        if task.read.split.number == 4:
            raise TargetError("the disk is full")
        return export_split(task)

    monkeypatch.setattr("mqstore.jobs.export.export_split", full)
    for resume in (False, True):
        with pytest.raises(TargetError, match="the disk is full"):
            export(opened(CLEAN), tmp_path / "out", resume=resume, threads=1, splits=6)
        assert os.listdir(tmp_path) == ([".out.mqstore-export"] if resume else [])
    seen = counting(monkeypatch)
    assert export(opened(CLEAN), tmp_path / "out", resume=True, threads=1).messages == 511
    assert seen == [4, 5]
    assert os.listdir(tmp_path) == ["out"]


def test_damage_that_the_killed_run_found_is_reported_by_the_one_that_resumes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=8192)
    for number in range(200):
        store.put(message("orders", b"x" * 100, keys=f"k{number}"))
    store.write()
    store.patch_log(store.puts[10].offset + 4, bytes(4))
    kill(store.root, tmp_path / "out")
    resumed = export(store.root, tmp_path / "out", resume=True, threads=1)
    whole = export(store.root, tmp_path / "whole", threads=1)
    assert resumed.damage == whole.damage != ()
    assert resumed.messages == whole.messages == 199


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"columns": ["topic"]}, "its columns was"),
        ({"format": "jsonl"}, 'its format was "parquet", not "jsonl"'),
        ({"selection": Selection(topics=frozenset({"orders"}))}, "its selection was"),
        ({"partition_by": ["topic"]}, "its partition_by was"),
        ({"splits": 2}, "has other splits"),
    ],
)
def test_work_of_another_export_is_not_taken_up(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    kill(opened(CLEAN), tmp_path / "out")
    with pytest.raises(UsageError, match=told):
        export(opened(CLEAN), tmp_path / "out", resume=True, threads=1, **changed)
    assert export(opened(CLEAN), tmp_path / "out", resume=True, threads=1).messages == 511


def test_work_of_a_log_that_has_changed_is_not_taken_up(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=8192)
    for number in range(200):
        store.put(message("orders", b"x" * 100, keys=f"k{number}"))
    store.write()
    kill(store.root, tmp_path / "out")
    (store.root / "commitlog" / f"{8192 * 10:020d}").write_bytes(bytes(8192))
    done = run_cli("export", store.root, "--to", tmp_path / "out", "--resume", "--threads", 1)
    assert done.status == 2
    assert "cannot be resumed: the log has changed since; export without --resume" in done.stderr


def test_two_exports_to_one_place_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another(task: ExportTask) -> TaskOutput:
        with pytest.raises(TargetError, match="another export to the same target is running"):
            export(opened(CLEAN), tmp_path / "out", resume=True, threads=1)
        return export_split(task)

    monkeypatch.setattr("mqstore.jobs.export.export_split", another)
    assert export(opened(CLEAN), tmp_path / "out", threads=1, splits=1).messages == 511


def test_a_target_inside_the_store_is_refused_with_nothing_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=8192)
    store.put(message("orders"))
    store.write()
    before = sorted(path.name for path in store.root.iterdir())
    with pytest.raises(TargetError, match="inside the store"):
        export(store.root, store.root / "out", threads=1)
    assert sorted(path.name for path in store.root.iterdir()) == before
