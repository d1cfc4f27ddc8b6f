"""Usage: every byte of a log is counted once, for any grouping and any number of splits."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, opened, unchanged
from support.stores import BEGIN, Store, message

import mqstore
from mqstore.errors import CannotOpenError, UsageError
from mqstore.jobs.usage import usage
from mqstore.rocketmq.usage import UsageReport, key_prefix

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("topic", "queue_id", "size", "stored_body_len", "store_timestamp", "keys", "queue_offset", "physical_offset")


def table(path: Path) -> list[dict[str, Any]]:
    return [row for batch in mqstore.open(path).view().batches(NAMES, milliseconds=True) for row in batch.to_pylist()]


def counted(rows: list[dict[str, Any]], *labels: str) -> dict[Any, tuple[int, int, int]]:
    return {tuple(row[label] for label in labels): (row["messages"], row["bytes"], row["body_bytes"]) for row in rows}


def summed(rows: list[dict[str, Any]], label: Any) -> dict[Any, tuple[int, int, int]]:
    messages, sizes, stored = Counter(), Counter(), Counter()
    for row in rows:
        messages[label(row)] += 1
        sizes[label(row)] += row["size"]
        stored[label(row)] += row["stored_body_len"]
    return {key: (messages[key], sizes[key], stored[key]) for key in messages}


def sums(report: UsageReport) -> None:
    parts = (report.total.body, report.total.properties, report.total.overhead, report.filler_bytes, report.damaged_bytes)
    assert min(*parts, report.unwritten_bytes) >= 0
    assert sum(parts) + report.unwritten_bytes == report.log_bytes == sum(file.bytes for file in report.files)
    for by in ("topic", "queue", "day", "retained"):
        assert sum(row["bytes"] for row in report.rows(by)) == report.record_bytes
        assert sum(row["messages"] for row in report.rows(by)) == report.total.messages


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_parts_of_every_golden_store_sum_to_its_log(case: GoldenCase) -> None:
    source = opened(case)
    with unchanged(source):
        report = usage(source, threads=2, prefix=3)
    sums(report)
    assert report.log_bytes == sum(path.stat().st_size for path in (source / "commitlog").glob("*") if path.name.isdigit())
    rows = table(source)
    assert counted(report.rows("topic"), "topic") == summed(rows, lambda row: (row["topic"],))
    assert counted(report.rows("queue"), "topic", "queue_id") == summed(rows, lambda row: (row["topic"], row["queue_id"]))
    days = summed(rows, lambda row: (datetime.fromtimestamp(row["store_timestamp"] / 1000, UTC).date().isoformat(),))
    assert counted(report.rows("day"), "day") == days
    keys = summed(rows, lambda row: ((row["keys"] or "").split(" ")[0][:3] or None,))
    assert counted(report.rows("key-prefix:3"), "key_prefix") == keys


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_counts_do_not_depend_on_the_splits(case: GoldenCase) -> None:
    source = opened(case)
    whole = usage(source, threads=1, splits=1, prefix=2).as_dict(("topic", "queue", "day", "retained", "key-prefix:2"))
    for splits in (2, 7, 40):
        assert usage(source, threads=2, splits=splits, prefix=2).as_dict(tuple(whole["by"])) == whole


@pytest.mark.parametrize("name", ["4.9.3/b-kill9", "5.5.0/g-dledger"])
def test_each_file_of_a_log_has_the_time_of_its_last_change(name: str) -> None:
    """Wherever the log is: those of DLedger are not below `commitlog`."""
    source = opened(case_named(name))
    found = {file.changed_at for file in usage(source, threads=1).files}
    written = [
        path.stat().st_mtime_ns // 10**6 for path in source.rglob("*") if path.name.isdigit() and path.parent.name in ("commitlog", "data")
    ]
    assert found == {*written} != set()


def test_unwritten_bytes_are_zeros_and_damaged_ones_are_those_that_verify_names(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=8192)
    for number in range(100):
        store.put(message("orders", b"x" * 200, keys=f"k{number}"))
    store.write()
    before = usage(store.root, threads=1)
    assert before.damaged_bytes == 0
    last = store.files[max(store.files)]
    assert before.unwritten_bytes == 8192 - len(last)
    store.patch_log(store.puts[50].offset + 4, bytes(4))
    for splits in (1, 5):
        report = usage(store.root, threads=1, splits=splits)
        sums(report)
        assert report.damaged_bytes == len(store.puts[50].raw)
        assert (report.total.messages, report.unwritten_bytes) == (99, before.unwritten_bytes)
        assert not report.ok


def test_files_are_reported_with_what_would_be_lost_with_them(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=4096)
    for number in range(30):
        store.put(message(("orders", "bills")[number % 2], b"x" * 200), at=number * 1000)
    store.write()
    store.write_file("config/consumerOffset.json", b'{"offsetTable":{"orders@billing":{0:3},"orders@audit":{0:15},"bills@billing":{0:0}}}')
    report = usage(store.root, threads=1)
    rows = report.rows("retained")
    assert [row["file"] for row in rows] == [f"{4096 * (k // 2):020d}" for k in range(len(rows))]
    first = rows[0]
    assert (first["topic"], first["oldest_store_timestamp"], first["first_queue_offset"]) == ("orders", BEGIN, 0)
    assert first["waiting_groups"] == {"billing": first["last_queue_offset"] + 1 - 3}
    assert rows[1]["waiting_groups"] == {"billing": rows[1]["messages"]}
    assert all("audit" not in row["waiting_groups"] for row in rows)


@pytest.mark.versions
def test_spark_counts_what_threads_count(spark: SparkSession) -> None:
    source = opened(case_named("5.3.3/i-v2-codecs-crc"))
    done: list[tuple[int, int]] = []
    on_spark = usage(source, spark=spark, splits=5, prefix=1, progress=lambda *told: done.append(told))
    assert on_spark.as_dict() == usage(source, threads=1, splits=1, prefix=1).as_dict()
    assert on_spark.rows("key-prefix:1") == usage(source, threads=1, prefix=1).rows("key-prefix:1")
    assert done[-1][0] == done[-1][1] > 0


def test_an_empty_log_is_counted(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / ("0" * 20)).write_bytes(bytes(4096))
    report = usage(tmp_path / "store", threads=1)
    assert (report.log_bytes, report.unwritten_bytes, report.rows("topic")) == (4096, 4096, [])


def test_times_beyond_the_calendar_are_days_all_the_same(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=8192)
    store.put(message("orders"), at=(1 << 62) - BEGIN)
    store.put(message("orders"), at=-5 - BEGIN)
    for base, data in store.files.items():
        store.write_file(f"commitlog/{base:020d}", bytes(data).ljust(8192, b"\0"))
    assert [row["day"] for row in usage(store.root, threads=1).rows("day")] == ["1969-12-31", str((1 << 62) // 86_400_000)]


@pytest.mark.parametrize("by", ["colour", "key-prefix:0", "key-prefix:", "key-prefix:N", "key-prefix:x", ""])
def test_an_unknown_way_to_count_is_reported(by: str) -> None:
    with pytest.raises(UsageError, match="key-prefix:N"):
        key_prefix(by)


def test_keys_that_were_not_counted_are_not_reported() -> None:
    with pytest.raises(UsageError, match="were not counted by key-prefix:4"):
        usage(opened(case_named("4.9.3/a-clean-small")), threads=1, prefix=3).rows("key-prefix:4")


def test_wrong_arguments_are_one_sentence(tmp_path: Path) -> None:
    source = opened(case_named("4.9.3/a-clean-small"))
    with pytest.raises(UsageError, match="give only one of them"):
        usage(source, threads=2, master="local[1]")
    with pytest.raises(UsageError, match="must have at least 1 character"):
        usage(source, prefix=0)
    with pytest.raises(CannotOpenError, match="unpack it first"):
        usage(case_named("4.9.3/a-clean-small").path / "store.tar.xz", master="local[1]")
