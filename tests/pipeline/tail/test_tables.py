"""Following into Iceberg and Delta tables: a batch is in the table once, whatever dies between its files and its commit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.golden import case_named, opened, run_cli, unchanged
from support.spark_api import needs_streams

import mqstore
from mqstore.errors import TargetError, UsageError
from mqstore.jobs.lakehouse import CATALOG, TABLE, AddedBatch
from mqstore.pipeline.tail.delta import APPLICATION, DeltaBatches, bounds
from mqstore.pipeline.tail.follow import FollowedBatch, FollowReport, follow
from mqstore.pipeline.tail.iceberg import IcebergBatches
from mqstore.pipeline.tail.sinks import STATE
from mqstore.rocketmq import MessageStore
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format.message import Message
from mqstore.table.columns import ROCKETMQ_COLUMNS, rocketmq_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [needs_streams, pytest.mark.spark_in_all]

FORMS = ("iceberg", "delta")
CONFIG = StoreConfig(version="4.9.3", commit_log_file_size=1 << 15, max_hash_slot_num=100, max_index_num=5000, services=False)
CLASSES: dict[str, Any] = {"iceberg": IcebergBatches, "delta": DeltaBatches}
METADATA = {"iceberg": ("metadata", CATALOG), "delta": ("_delta_log",)}


def put(store: MessageStore, count: int) -> None:
    for number in range(count):
        result = store.put(Message(f"t{number % 3}", b"x" * (number % 700), queue_id=number % 2, keys=f"k{number}", tags="T"))
        assert result.stored, result.detail
    store.dispatch_now()


def a_store(path: Path, count: int) -> MessageStore:
    store = MessageStore.open(path, CONFIG)
    put(store, count)
    return store


def once(spark: SparkSession, store: Path, out: Path, form: str, **more: Any) -> FollowReport:
    return follow(store, out, form=form, once=True, spark=spark, **more)


def offsets(path: Path) -> list[int]:
    """Physical offsets of all messages of a store, in order."""
    return mqstore.open(path).to_arrow(["physical_offset"]).column(0).to_pylist()


def as_table(out: Path, form: str) -> tuple[pa.Table, list[int]]:
    """Return the rows a reader finds in the table, and the numbers of the batches in its history, oldest first."""
    if form == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(out)
        told = [entry["mqstore.batch"] for entry in table.history() if "mqstore.batch" in entry]
        return table.to_pyarrow_table(), [int(number) for number in reversed(told)]
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("mqstore", uri=f"sqlite:///{out / CATALOG}", warehouse=str(out))
    try:
        found = catalog.load_table(TABLE)
        return found.scan().to_arrow(), [int(snapshot.summary["mqstore.batch"]) for snapshot in found.snapshots() if snapshot.summary]
    finally:
        catalog.engine.dispose()


def assert_whole(out: Path, form: str, store: Path) -> list[int]:
    """Assert that every message of the store is in the table once, every batch in its history once. Return the batches."""
    table, batches = as_table(out, form)
    assert sorted(table.column("physical_offset").to_pylist()) == offsets(store)
    assert batches == sorted(int(path.name.removeprefix("batch=")) for path in out.glob("batch=*"))
    return batches


def forget_last_commit(out: Path) -> None:
    """Restore the state of a driver that died before Spark recorded that the last batch was done."""
    last = max((out / STATE / "checkpoint/commits").iterdir(), key=lambda each: int(each.name) if each.name.isdigit() else -1)
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_the_table_has_every_message_once_while_the_store_goes_on(form: str, spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    store = a_store(path, 150)
    assert len(assert_after(once(spark, path, out, form, batch_bytes=20_000), 150, out, form, path)) > 1
    put(store, 100)
    store.abandon()
    store = a_store(path, 50)
    assert_after(once(spark, path, out, form, batch_bytes=20_000), 150, out, form, path)
    assert once(spark, path, out, form).batches == 0
    # the driver died after the commit
    forget_last_commit(out)
    told: list[FollowedBatch] = []
    assert_after(once(spark, path, out, form, on_batch=told.append), 0, out, form, path)
    assert [batch.repeated for batch in told] == [True]
    store.close()


def assert_after(report: FollowReport, messages: int, out: Path, form: str, store: Path) -> list[int]:
    assert (report.messages, report.form, report.stopped, report.ok) == (messages, form, "end", True)
    return assert_whole(out, form, store)


@pytest.mark.versions
@pytest.mark.parametrize("form", FORMS)
def test_the_rows_are_those_of_the_message_table(form: str, spark: SparkSession, tmp_path: Path) -> None:
    case = case_named("5.3.3/i-v2-codecs-crc")
    source = opened(case)
    with unchanged(source):
        once(spark, source, tmp_path / "out", form, config=case.config, batch_bytes=30_000)
    found = as_table(tmp_path / "out", form)[0]
    assert found.column_names == list(ROCKETMQ_COLUMNS)
    assert (
        sorted(found.to_pylist(), key=lambda row: row["physical_offset"]) == mqstore.open(source, config=case.config).to_arrow().to_pylist()
    )


KILLED = """
import os, sys
from mqstore.pipeline.tail import delta
from mqstore.pipeline.tail import iceberg
from mqstore.pipeline.tail.follow import follow
kind = iceberg.IcebergBatches if sys.argv[3] == "iceberg" else delta.DeltaBatches
add = kind.add
def dying(self, batch):
    if batch.number == 2:
        os._exit(9)
    add(self, batch)
kind.add = dying
follow(sys.argv[1], sys.argv[2], form=sys.argv[3], once=True, batch_bytes=9000, master="local[1]")
"""


@pytest.mark.spark
@pytest.mark.parametrize("form", FORMS)
def test_a_kill_between_the_files_and_the_commit_is_mended(form: str, spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    store = a_store(path, 120)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), path, out, form], capture_output=True, timeout=300, check=False)
    assert done.returncode == 9, done.stderr
    before, batches = as_table(out, form)
    assert batches == [0, 1]
    assert (out / "batch=0000000002").is_dir()
    assert 0 < before.num_rows < 120
    put(store, 30)
    report = once(spark, path, out, form, batch_bytes=9000)
    assert report.notes == ("batch 2 was on disk but not in the table; it was added",)
    assert assert_whole(out, form, path)[:3] == [0, 1, 2]
    store.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_commit_that_fails_is_one_sentence_and_the_next_follow_adds_the_batch(
    form: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    a_store(path, 60).close()
    add = CLASSES[form].add

    def full(self: Any, batch: AddedBatch) -> None:
        if batch.number == 1:
            raise OSError("No space\nleft on device")
        add(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(CLASSES[form], "add", full)
        with pytest.raises(
            TargetError,
            match=r"could not add to the table: No space left on device; free some space .*; the batches are intact: follow again",
        ):
            once(spark, path, out, form, batch_bytes=8_000)
    assert as_table(out, form)[1] == [0]
    once(spark, path, out, form, batch_bytes=8_000)
    assert_whole(out, form, path)


@pytest.mark.parametrize("form", FORMS)
def test_a_table_without_its_metadata_is_rebuilt_from_the_batches(form: str, spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    a_store(path, 60).close()
    once(spark, path, out, form, batch_bytes=8_000)
    before = assert_whole(out, form, path)
    for name in METADATA[form]:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    assert len(once(spark, path, out, form).notes) == len(before)
    assert assert_whole(out, form, path) == before
    # broken metadata: the error advises what was done above
    broken = max((out / METADATA[form][0]).iterdir(), key=lambda each: each.name)
    broken = out / CATALOG if form == "iceberg" else broken
    broken.write_bytes(b"nonsense" * 1000)
    with pytest.raises(TargetError, match=r"could not open the table: .* there to rebuild the table"):
        once(spark, path, out, form)


@pytest.mark.parametrize("form", FORMS)
def test_a_lost_checkpoint_is_noticed(form: str, spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    a_store(path, 60).close()
    once(spark, path, out, form, batch_bytes=8_000)
    whole = assert_whole(out, form, path)
    shutil.rmtree(out / STATE / "checkpoint")
    with pytest.raises(TargetError, match="its checkpoint was removed or belongs to another target; use a new target"):
        once(spark, path, out, form, batch_bytes=12_000)
    # a batch whose files were removed is not written under another one's number
    shutil.rmtree(out / STATE / "checkpoint")
    shutil.rmtree(out / "batch=0000000000")
    with pytest.raises(TargetError, match=f"already has batch {whole[-1]}, but its checkpoint continues with batch 0"):
        once(spark, path, out, form, batch_bytes=12_000)


def test_an_iceberg_table_that_was_moved_says_so_and_can_be_rebuilt(spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    a_store(path, 10).close()
    once(spark, path, out, "iceberg")
    shutil.copytree(out, tmp_path / "elsewhere")
    with pytest.raises(TargetError, match=r"was created as .*, and Iceberg stores absolute paths; remove metadata and catalog.db"):
        once(spark, path, tmp_path / "elsewhere", "iceberg")
    out.rename(tmp_path / "moved")
    with pytest.raises(TargetError, match=r"could not open the table: .* or remove metadata and catalog.db there"):
        once(spark, path, tmp_path / "moved", "iceberg")
    shutil.rmtree(tmp_path / "moved/metadata")
    (tmp_path / "moved" / CATALOG).unlink()
    once(spark, path, tmp_path / "moved", "iceberg")
    assert assert_whole(tmp_path / "moved", "iceberg", path) == [0]


def test_the_bounds_of_a_delta_file_are_those_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    source = opened(case_named("4.9.3/a-clean-small"))
    once(spark, source, tmp_path / "out", "delta")
    ((name, table),) = [(path.name, pq.read_table(path)) for path in (tmp_path / "out").glob("batch=*/*.parquet")]
    found = bounds(pq.read_metadata(next((tmp_path / "out").glob(f"batch=*/{name}"))))
    assert found["numRecords"] == table.num_rows == 511
    assert {"topic", "queue_offset", "physical_offset", "store_timestamp"} <= set(found["minValues"])
    for column in found["minValues"]:
        values = [value for value in table.column(column).to_pylist() if value is not None]
        low, high = found["minValues"][column], found["maxValues"][column]
        if column.endswith("_timestamp"):
            low, high = (pa.scalar(bound.removesuffix("Z")).cast(pa.timestamp("us")).as_py() for bound in (low, high))
            values = [value.replace(tzinfo=None) for value in values]
        # texts are compared by their bytes, as Parquet and Delta do
        key = str.encode if isinstance(low, str) else lambda value: value
        assert (min(values, key=key), max(values, key=key)) == (low, high)
        assert found["nullCount"][column] == table.column(column).null_count
    assert pa.table(DeltaTable(tmp_path / "out").get_add_actions(flatten=True)).column("path").to_pylist() == [f"batch=0000000000/{name}"]
    assert DeltaTable(tmp_path / "out").transaction_version(APPLICATION) == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_table_that_nothing_came_into_has_the_columns(form: str, spark: SparkSession, tmp_path: Path) -> None:
    MessageStore.open(tmp_path / "store", CONFIG).close()
    report = once(spark, tmp_path / "store", tmp_path / "out", form, columns=["topic", "size"])
    assert report.messages == 0
    found, batches = as_table(tmp_path / "out", form)
    names = ["topic", "size", "physical_offset", "store_file", "verdict"]
    assert (found.num_rows, found.column_names, batches) == (0, names, [])
    assert rocketmq_schema(names).names == names


@pytest.mark.parametrize(("form", "module"), [("iceberg", "pyiceberg"), ("delta", "deltalake")])
def test_a_missing_extra_is_named(form: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.jobs.lakehouse.find_spec", lambda name: None if name == module else find_spec(name))
    done = run_cli("follow", opened(case_named("4.9.3/a-clean-small")), "--to", tmp_path / "out", "--as", form, "--once")
    assert done.status == 2
    assert f"--as {form} needs {module}, which is not installed: pip install 'mqstore[{form}]', or choose parquet" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_not_kept_as_something_else(spark: SparkSession, tmp_path: Path) -> None:
    a_store(tmp_path / "store", 10).close()
    once(spark, tmp_path / "store", tmp_path / "out", "delta")
    with pytest.raises(UsageError, match="is kept as delta; continue with that"):
        once(spark, tmp_path / "store", tmp_path / "out", "iceberg")
    with pytest.raises(UsageError, match="interpret as part of a URL"):
        once(spark, tmp_path / "store", tmp_path / "out#1", "iceberg")


def test_the_command_keeps_a_table(spark: SparkSession, tmp_path: Path) -> None:
    done = run_cli("follow", opened(case_named("4.9.3/b-kill9")), "--to", tmp_path / "out", "--as", "iceberg", "--once", "-o", "json")
    assert done.status == 0, done.stderr
    assert (done.document["as"], done.document["messages"]) == ("iceberg", 1639)
    assert json.loads((tmp_path / "out" / STATE / "follow.json").read_text())["as"] == "iceberg"
    assert as_table(tmp_path / "out", "iceberg")[0].num_rows == 1639


def test_small_files_are_compacted_by_option_without_a_change_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    path, out = tmp_path / "store", tmp_path / "out"
    store = a_store(path, 150)
    report = once(spark, path, out, "delta", batch_bytes=7_000, compact_every=3)
    store.abandon()
    assert report.batches >= 4
    rows, batches = as_table(out, "delta")
    assert sorted(rows.column("physical_offset").to_pylist()) == offsets(path)
    assert batches == list(range(report.batches))
    files = DeltaTable(out).file_uris()
    assert len(files) == 1 + report.batches % 3
    assert len(list(out.glob("batch=*"))) == report.batches
    store = a_store(path, 10)
    assert once(spark, path, out, "delta").messages == 10
    store.abandon()
    assert sorted(as_table(out, "delta")[0].column("physical_offset").to_pylist()) == offsets(path)
    with pytest.raises(UsageError, match="only a Delta table can be compacted here"):
        once(spark, path, tmp_path / "iceberg", "iceberg", compact_every=3)
    assert not (tmp_path / "iceberg").exists()
