"""`find` in groups of queues: in threads and on Spark it finds what one thread finds, in the same order."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.golden import OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, case_named, opened, run_cli, unpack

from mqstore.errors import CannotOpenError, UsageError
from mqstore.jobs.find_in_queues import FindInQueuesReport, find_in_queues
from mqstore.rabbitmq.find import FoundInQueues, find
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import QueueSelection
from mqstore.table.needle import Needle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIXED = case_named("3.10.8/f-mixed-features")
TEXTS = ("de", "delivery", "no such text")


def careful(path: Path) -> RabbitMQStore:
    return RabbitMQStore(path, careful=True)


def in_one_thread(path: Path, text: str, limit: int = 1000) -> tuple[list[dict[str, Any]], FoundInQueues]:
    counts = FoundInQueues()
    return list(find(careful(path), Needle(text), counts))[:limit], counts


def same(report: FindInQueuesReport, wanted: tuple[list[dict[str, Any]], FoundInQueues]) -> None:
    assert (list(report.rows), report.counts) == wanted


@pytest.mark.parametrize("case", [*RABBITMQ, *OTHER_RABBITMQ], ids=case_id)
def test_threads_find_what_one_thread_finds(case: GoldenCase) -> None:
    for text in TEXTS:
        wanted = in_one_thread(opened(case), text)
        same(find_in_queues(careful(opened(case)), text, limit=1000, threads=3), wanted)


def test_the_limit_keeps_the_first_hits_and_counts_all() -> None:
    whole, counts = in_one_thread(opened(MIXED), "de")
    assert len(whole) > 12
    report = find_in_queues(careful(opened(MIXED)), "de", limit=12, threads=3)
    same(report, (whole[:12], counts))
    assert report.counts.hits == len(whole)


def test_the_bytes_searched_are_those_of_the_payloads_however_messages_are_batched() -> None:
    store = careful(opened(MIXED))
    batches = (store.batch(rows, ("payload",)) for rows in store.rows(QueueSelection(everything=True)))
    payloads = [payload for batch in batches if batch is not None for payload in batch.column("payload").to_pylist()]
    _, counts = in_one_thread(opened(MIXED), "de")
    assert counts.bytes == sum(len(payload or b"") for payload in payloads)


@pytest.mark.spark
def test_spark_finds_what_one_thread_finds(spark: SparkSession, tmp_path: Path) -> None:
    store = unpack(MIXED, tmp_path)
    path = max(store.rglob("*.rdq"), key=lambda each: each.stat().st_size)
    with path.open("r+b") as file:  # a size field: the message behind it is found by careful reading only
        file.seek(path.stat().st_size // 2)
        file.write(bytes(8))
    for text in TEXTS:
        same(find_in_queues(careful(store), text, limit=1000, spark=spark), in_one_thread(store, text))


@pytest.mark.spark
def test_the_command_prints_the_same_on_spark(spark: SparkSession) -> None:
    threads = run_cli("find", opened(MIXED), "dead-2", "-o", "json")
    on_spark = run_cli("find", opened(MIXED), "dead-2", "-o", "json", "--master", "local[2]")
    assert (on_spark.status, on_spark.document["messages"]) == (threads.status, threads.document["messages"])
    assert on_spark.document["messages"]
    assert "Spark" in on_spark.document["read"]["runs_on"]


def test_what_cannot_be_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give only one of them"):
        find_in_queues(careful(opened(MIXED)), "x", limit=1, threads=2, master="local[1]")
    archive = tmp_path / "store.tar.xz"
    shutil.copy(MIXED.archive, archive)
    done = run_cli("find", archive, "dead-2", "--master", "local[1]")
    assert done.status == 2
    assert "unpack it first" in " ".join(done.stderr.split())
    assert CannotOpenError.__name__ not in done.stderr
