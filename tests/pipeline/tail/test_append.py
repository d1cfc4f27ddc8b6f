"""Appending the new range of a log to a table: each message is in it once, whatever dies, and other readers find it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.golden import run_cli
from support.tables import delta, iceberg

import mqstore
from mqstore.errors import PipelineError, TargetError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.jobs.export import export
from mqstore.pipeline.tail import append as module
from mqstore.pipeline.tail.append import AppendReport, NewTable, append, open_position_table
from mqstore.rocketmq import MessageStore
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.scan.log_tail import LogPosition
from mqstore.table.columns import ROCKETMQ_COLUMNS, rocketmq_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark_in_all

FORMATS = ("iceberg", "delta")
CONFIG = StoreConfig(version="4.9.3", commit_log_file_size=1 << 15, max_hash_slot_num=100, max_index_num=5000, services=False)
TOPICS = ("t0", "t1", "%DLQ%group")


def put(store: Path, count: int) -> None:
    """Put messages to a store, which is closed again."""
    with MessageStore.open(store, CONFIG) as opened:
        for number in range(count):
            result = opened.put(Message(TOPICS[number % 3], b"x" * (number % 700), queue_id=number % 2, keys=f"k{number}", tags="T"))
            assert result.stored, result.detail
        opened.dispatch_now()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    put(tmp_path / "store", 60)
    return tmp_path / "store"


def added(store: Path, out: Path, table_format: str, **more: Any) -> AppendReport:
    return append(store, out, format=table_format, threads=2, **more)


def in_log(store: Path) -> list[int]:
    found: list[int] = mqstore.open(store).to_arrow(["physical_offset"]).column(0).to_pylist()
    return found


def read(table_format: str, out: Path) -> pa.Table:
    return iceberg(out) if table_format == "iceberg" else delta(out)


def offsets(table_format: str, out: Path) -> list[int]:
    found: list[int] = sorted(read(table_format, out).column("physical_offset").to_pylist())
    return found


def versions(table_format: str, out: Path) -> int:
    """Return the number of commits."""
    return len(list((out / "metadata").glob("*.metadata.json") if table_format == "iceberg" else (out / "_delta_log").glob("*.json")))


# new ranges


@pytest.mark.parametrize("partition_by", [None, ["topic", "store_timestamp"]], ids=["plain", "by topic and day"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_each_run_adds_the_new_range_and_nothing_else(table_format: str, partition_by: Any, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "a table"
    first = added(store, out, table_format, partition_by=partition_by)
    assert (first.messages, first.start, first.ok) == (60, 0, True)
    assert offsets(table_format, out) == in_log(store)
    commits = versions(table_format, out)
    again = added(store, out, table_format)
    assert (again.start, again.stop, again.messages, again.files) == (first.stop, first.stop, 0, ())
    assert versions(table_format, out) == commits
    put(store, 40)
    second = added(store, out, table_format)
    assert (second.start, second.messages) == (first.stop, 40)
    assert offsets(table_format, out) == in_log(store)
    export(store, tmp_path / "plain", threads=1)
    names = list(ROCKETMQ_COLUMNS)
    expected = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "plain").glob("*.parquet"))).select(names)
    found = read(table_format, out).select(names).sort_by("physical_offset")
    assert found.to_pylist() == expected.to_pylist()
    assert not (out / "_mqstore_append" / "pending.json").exists()


@pytest.mark.real_sizes
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_partitioned_table_has_files_of_one_topic_and_day_which_readers_skip(table_format: str, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    added(store, out, table_format, partition_by=["topic", "store_timestamp"])
    put(store, 30)
    added(store, out, table_format)
    if table_format == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(out)
        assert table.metadata().partition_columns == ["topic", "store_day"]
        found = {(row["topic"], str(row["store_day"])) for row in table.partitions()}
        rows = table.to_pyarrow_table(filters=[("topic", "=", "%DLQ%group")])
        read_files = sum(row["partition.topic"] == "%DLQ%group" for row in pa.table(table.get_add_actions(flatten=True)).to_pylist())
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("mqstore", uri=f"sqlite:///{out}/catalog.db", warehouse=str(out))
        scan = catalog.load_table("mqstore.messages").scan(row_filter="topic == '%DLQ%group'")
        rows, read_files = scan.to_arrow(), len(list(scan.plan_files()))
        parts = catalog.load_table("mqstore.messages").inspect.partitions().column("partition").to_pylist()
        found = {(row["topic"], str(row["store_day"])) for row in parts}
        catalog.engine.dispose()
    days = {str(each.date()) for each in mqstore.open(store).to_arrow(["store_timestamp"]).column(0).to_pylist()}
    assert found == {(topic, day) for topic in TOPICS for day in days}
    assert read_files == 2 * len(days)
    assert set(rows.column("topic").to_pylist()) == {"%DLQ%group"}
    assert rows.num_rows == 30


@pytest.mark.versions
def test_duckdb_and_spark_read_what_was_appended(store: Path, tmp_path: Path, spark: SparkSession) -> None:
    import duckdb

    asked = "select topic, count(*), sum(size) from messages group by topic order by topic"
    answers = []
    for table_format in FORMATS:
        append(store, tmp_path / table_format, format=table_format, spark=spark)
    put(store, 25)
    for table_format in FORMATS:
        report = append(store, tmp_path / table_format, format=table_format, spark=spark)
        assert report.messages == 25
        messages = read(table_format, tmp_path / table_format)
        assert len(messages) == 85
        answers.append(duckdb.sql(asked).fetchall())
        files = [str(path) for path in (tmp_path / table_format).glob("append-*/*.parquet")]
        spark.read.parquet(*files).createOrReplaceTempView("messages")
        answers.append([tuple(row) for row in spark.sql(asked).collect()])
    assert answers == answers[:1] * 4


@pytest.mark.real_sizes
def test_a_file_holds_as_much_log_as_requested(store: Path, tmp_path: Path) -> None:
    assert len(added(store, tmp_path / "one", "delta").files) == 1
    put(store, 3000)
    many = added(store, tmp_path / "many", "delta", file_bytes=1)
    few = added(store, tmp_path / "few", "delta")
    assert len(many.files) >= len(few.files) == 1
    assert offsets("delta", tmp_path / "many") == offsets("delta", tmp_path / "few") == in_log(store)


# what dies

KILLED = """
import os, signal, sys
from pathlib import Path
from mqstore.files.durable import DurableDirectory
from mqstore.pipeline.tail import append as module
def dies(*args, **more):
    os.kill(os.getpid(), signal.SIGKILL)
when, table_format = sys.argv[3:5]
kind = {"iceberg": module._IcebergTable, "delta": module._DeltaTable}[table_format]
if when == "written":
    module._values = dies
elif when == "announced":
    whole = DurableDirectory.rename
    def rename(self, source, target):
        return dies() if target.startswith("append-") else whole(self, source, target)
    DurableDirectory.rename = rename
elif when == "renamed":
    kind.add = dies
elif when == "committed":
    added = kind.add
    def add(self, *args):
        added(self, *args)
        dies()
    kind.add = add
module.append(sys.argv[1], sys.argv[2], format=table_format, threads=1)
"""


@pytest.mark.parametrize("when", ["written", "announced", "renamed", "committed"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_run_that_is_killed_between_any_two_steps_neither_loses_nor_repeats(
    table_format: str, when: str, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    added(store, out, table_format)
    put(store, 40)
    died = subprocess.run([sys.executable, "-c", KILLED, store, out, when, table_format], capture_output=True, check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    put(store, 5)  # the range of the next run is another one
    report = added(store, out, table_format)
    assert report.messages == (5 if when == "committed" else 45)
    assert offsets(table_format, out) == in_log(store)
    assert len(list(out.glob("append-*"))) == (3 if when == "committed" else 2)
    assert sorted(path.name for path in (out / "_mqstore_append").iterdir()) == ["lock"]
    assert report.notes == (("the files of a run that ended before its commit were removed",) if when in ("announced", "renamed") else ())


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_run_that_died_while_it_began_the_table_is_repeated(table_format: str, store: Path, tmp_path: Path) -> None:
    died = subprocess.run(
        [sys.executable, "-c", KILLED, store, tmp_path / "out", "renamed", table_format], capture_output=True, check=False, timeout=120
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert added(store, tmp_path / "out", table_format).messages == 60
    assert offsets(table_format, tmp_path / "out") == in_log(store)


# who else writes


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_run_elsewhere_that_was_faster_is_noticed_and_nothing_is_added_twice(
    table_format: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    added(store, out, table_format)
    put(store, 10)
    whole = module.export_range

    def overtaken(task: Any) -> Any:
        # another host, which does not see the lock
        with DurableDirectory(out) as directory:
            table = open_position_table(table_format, directory, NewTable(rocketmq_schema(ROCKETMQ_COLUMNS), (), lambda: LogPosition(0)))
            before = table.position()
            assert before is not None
            table.add(rocketmq_schema(ROCKETMQ_COLUMNS), [], before, LogPosition(before.offset + 1, before.generation))
            table.close()
        return whole(task)

    monkeypatch.setattr(module, "export_range", overtaken)
    rows = offsets(table_format, out)
    with pytest.raises(TargetError, match="was appended to by another process meanwhile; append again"):
        added(store, out, table_format)
    assert offsets(table_format, out) == rows
    assert len(list(out.glob("append-*"))) == 1


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_that_other_programs_changed_is_continued(table_format: str, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    added(store, out, table_format)
    rows = read(table_format, out)
    if table_format == "delta":
        from deltalake import DeltaTable, write_deltalake

        write_deltalake(out, rows.slice(0, 3), mode="append")
        DeltaTable(out).delete("queue_id = 1")
        DeltaTable(out).optimize.compact()
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("mqstore", uri=f"sqlite:///{out}/catalog.db", warehouse=str(out))
        catalog.load_table("mqstore.messages").append(rows.slice(0, 3))
        catalog.load_table("mqstore.messages").delete("queue_id = 1")
        catalog.engine.dispose()
    theirs = offsets(table_format, out)
    put(store, 10)
    assert added(store, out, table_format).messages == 10
    assert offsets(table_format, out) == sorted(theirs + in_log(store)[60:])


def test_a_second_append_at_the_same_time_is_refused(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = module.export_range

    def another(task: Any) -> Any:
        with pytest.raises(TargetError, match="is being appended to by another process; wait until it ends"):
            added(store, tmp_path / "out", "delta")
        return whole(task)

    monkeypatch.setattr(module, "export_range", another)
    assert added(store, tmp_path / "out", "delta").messages == 60


# which log


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_table_of_another_store_is_refused_unchanged(table_format: str, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    added(store, out, table_format)
    with MessageStore.open(tmp_path / "other", CONFIG) as other:
        for number in range(90):
            other.put(Message("elsewhere", b"y" * 400, keys=f"o{number}"))
        other.dispatch_now()
    commits = versions(table_format, out)
    with pytest.raises(PipelineError, match=r"is not the one that was read up to .*; append to the table of that log, or to a new one"):
        added(tmp_path / "other", out, table_format)
    assert (versions(table_format, out), offsets(table_format, out)) == (commits, in_log(store))
    (tmp_path / "store").rename(tmp_path / "moved")
    assert added(tmp_path / "moved", out, table_format).messages == 0


@pytest.mark.parametrize("table_format", FORMATS)
def test_what_retention_removed_in_between_is_an_error_or_counted(table_format: str, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = added(store, out, table_format)
    put(store, 300)
    files = sorted((store / "commitlog").iterdir())
    gone = [path for path in files if int(path.name) < 2 << 15]
    for path in gone:
        path.unlink()
    assert len(gone) < len(files)
    with pytest.raises(PipelineError, match=f"has lost physical offsets {first.stop} to 65535 .*; --skip-lost goes on after them"):
        added(store, out, table_format)
    report = added(store, out, table_format, skip_lost=True)
    assert report.lost == (2 << 15) - first.stop
    assert report.notes == (f"{report.lost} bytes of log were removed by retention before they were appended",)
    assert offsets(table_format, out)[60:] == in_log(store)
    put(store, 1)
    later = added(store, out, table_format)
    assert (later.lost, later.notes, later.messages) == (report.lost, (), 1)


# which table


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_without_a_position_needs_a_start(table_format: str, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(store, out, format=table_format, threads=1)
    with pytest.raises(UsageError, match="does not record how far it has this log; give --append-from"):
        added(store, out, table_format)
    put(store, 12)
    begin = in_log(store)[60]
    assert added(store, out, table_format, start=begin).messages == 12
    assert offsets(table_format, out) == in_log(store)
    with pytest.raises(UsageError, match="and continues there; omit the start"):
        added(store, out, table_format, start="earliest")
    put(store, 2)
    assert added(store, out, table_format).messages == 2


@pytest.mark.parametrize("table_format", FORMATS)
def test_columns_that_a_table_lacks_are_added_and_those_it_has_are_the_default(table_format: str, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    added(store, out, table_format, columns=["topic"])
    assert set(read(table_format, out).column_names) == {"topic", "physical_offset", "store_file", "verdict"}
    put(store, 4)
    added(store, out, table_format)
    put(store, 4)
    added(store, out, table_format, columns=["topic", "size", "keys"])
    table = read(table_format, out)
    assert set(table.column_names) == {"topic", "physical_offset", "store_file", "verdict", "size", "keys"}
    assert table.num_rows == 68
    assert table.filter(pc.is_valid(table["size"])).num_rows == 4


def test_what_is_no_table_is_refused_unchanged(store: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").write_text("mine")
    with pytest.raises(TargetError, match="exists and is not a table of format delta"):
        added(store, tmp_path / "files", "delta")
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["notes.txt"]
    added(store, tmp_path / "delta", "delta")
    with pytest.raises(TargetError, match="exists and is not a table of format iceberg"):
        added(store, tmp_path / "delta", "iceberg")
    with pytest.raises(UsageError, match="only a table can be appended to"):
        added(store, tmp_path / "p", "parquet")
    with pytest.raises(UsageError, match="a table is partitioned by topic and store_timestamp, a time by its day; omit size"):
        added(store, tmp_path / "p", "delta", partition_by=["size"])
    with pytest.raises(UsageError, match="is partitioned by nothing; omit --partition-by"):
        added(store, tmp_path / "delta", "delta", partition_by=["topic"])


def test_a_column_of_another_type_is_refused_with_nothing_added(store: Path, tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "theirs", pa.table({"topic": pa.array([1, 2])}))
    with pytest.raises(UsageError, match="has a column topic of another type"):
        added(store, tmp_path / "theirs", "delta", start="earliest")
    assert read("delta", tmp_path / "theirs").to_pydict() == {"topic": [1, 2]}
    assert not list((tmp_path / "theirs").glob("append-*"))


def test_the_command_appends(store: Path, tmp_path: Path) -> None:
    words = ("export", store, "--to", tmp_path / "out", "--format", "delta", "--append", "--threads", 2)
    done = run_cli(*words, "-o", "json")
    assert (done.status, done.document["messages"], done.document["ok"]) == (0, 60, True)
    assert "Nothing new: it has the log up to physical offset" in run_cli(*words).stdout
    assert run_cli(*words, "--topic", "t0").status == 2
    assert "--append-from and --skip-lost belong to --append" in run_cli(*words[:6], "--skip-lost", "--threads", 1).stderr
