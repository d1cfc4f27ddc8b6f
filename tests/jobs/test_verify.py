"""Verify on Spark: the same report as in threads, for any store and any number of splits."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, opened, run_cli, unchanged
from support.stores import Store, message

import mqstore
from mqstore import pipeline
from mqstore.errors import CannotOpenError, PipelineError, UsageError
from mqstore.findings import Report
from mqstore.rocketmq.format.record import encode
from mqstore.rocketmq.verify import log_proof
from mqstore.rocketmq.verify import tasks as spread
from mqstore.rocketmq.verify.verification import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def in_threads(case: GoldenCase) -> Report:
    return verify(mqstore.open(opened(case), config=case.config))


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("size", [log_proof.SPLIT, 20_000])
def test_parts_put_together_are_the_report(case: GoldenCase, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_proof, "SPLIT", size)
    wanted = in_threads(case)
    with unchanged(opened(case)):
        for count in (1, 3, 11):
            assert pipeline.verify(opened(case), config=case.config, threads=2, splits=count) == wanted


def test_a_part_that_began_at_a_record_inside_a_body_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    for number in range(20):
        store.put(message("orders", b"x" * 300, keys=f"k{number}"))
    position = store.puts[-1].offset + len(store.puts[-1].raw)
    # a body that contains a record with its correct physical offset
    inner = encode(message("forged", b"y" * 200, physical_offset=position + 88 + 1000))
    outer = store.put(message("bills", bytes(1000) + inner + bytes(1000)))
    assert outer.offset == position
    for number in range(20):
        store.put(message("orders", b"z" * 300, keys=f"l{number}"))
    path = store.write()
    monkeypatch.setattr(log_proof, "SPLIT", position + 500)
    checked: list[tuple[int, int]] = []
    check = spread.check_part
    monkeypatch.setattr(spread, "check_part", lambda task: (checked.append(task.met), check(task))[1])
    report = pipeline.verify(path, threads=1, splits=99)
    assert report == verify(mqstore.open(path))
    assert report.ok
    assert checked == [(0, position + len(outer.raw))]


@pytest.mark.versions
@pytest.mark.parametrize(
    "name", ["4.9.3/b2-kill9-live", "4.9.3/m-damaged/09-index", "4.9.3/m-damaged/16-everything", "5.3.3/o-batch-queue", "5.3.3/k-rolled"]
)
def test_spark_gives_the_report_of_the_threads(name: str, spark: SparkSession) -> None:
    case = case_named(name)
    wanted = in_threads(case)
    with unchanged(opened(case)):
        for count in (None, 5):
            assert pipeline.verify(opened(case), spark=spark, config=case.config, splits=count) == wanted


def test_the_command_prints_the_same_on_spark(spark: SparkSession) -> None:
    store = opened(case_named("4.9.3/m-damaged/16-everything"))
    alone, spread_out = run_cli("verify", store, "-o", "json"), run_cli("verify", store, "--spark", "-o", "json")
    assert spread_out.status == alone.status == 1
    assert spread_out.document == alone.document


def test_threads_and_a_master_are_one_too_many() -> None:
    outcome = run_cli("verify", opened(case_named("4.9.3/a-clean-small")), "--spark", "--threads", "2")
    assert outcome.status == 2
    assert "give only one of them" in outcome.stderr


def test_progress_ends_with_all_of_the_log(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(message("orders"))
    told: list[tuple[int, int]] = []
    pipeline.verify(store.write(), threads=1, progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0


def test_a_log_without_records_is_intact(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert pipeline.verify(tmp_path, threads=1) == verify(mqstore.open(tmp_path))


def test_what_cannot_be_verified_is_reported_in_one_sentence(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="number of splits must be at least 1"):
        pipeline.verify(tmp_path, splits=0)
    archive = tmp_path / "store.tar"
    archive.write_bytes(b"")
    with pytest.raises(CannotOpenError, match="unpack it first"):
        pipeline.verify(archive, spark=spark)
    with pytest.raises(CannotOpenError, match="does not exist"):
        pipeline.verify(tmp_path / "nowhere", spark=spark)


@pytest.mark.versions
def test_a_task_that_fails_is_one_sentence(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    store.put(message("orders"))
    path = store.write()
    made = spread.parts

    def vanish(*given: object) -> list[spread.PartTask]:
        tasks = made(*given)  # type: ignore[arg-type]
        (path / "commitlog" / f"{0:020d}").unlink()
        return tasks

    monkeypatch.setattr(importlib.import_module("mqstore.jobs.verify"), "parts", vanish)
    with pytest.raises(PipelineError, match="00000000000000000000"):
        pipeline.verify(path, spark=spark)
