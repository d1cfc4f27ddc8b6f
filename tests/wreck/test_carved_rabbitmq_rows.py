"""Rows of carved RabbitMQ messages: the same bytes whatever runs the tasks, resumed too, and the rows of a store of the same messages."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.golden import case_named
from support.images import files_of, shuffled_image

from mqstore.errors import TargetError
from mqstore.files.durable import DurableDirectory
from mqstore.jobs.runner import ThreadRunner
from mqstore.kernels.rabbitmq import message_store
from mqstore.pipeline.spark.runner import SparkRunner
from mqstore.rabbitmq.salvage import KIND, messages_of, write_carved
from mqstore.wreck import rows as job
from mqstore.wreck.rows import FragmentCounts, write_carved_rabbitmq_rows
from mqstore.wreck.search import Wreck, carve, source_files

pytestmark = pytest.mark.spark_in_all

EVERYTHING = frozenset({"unindexed", "damaged", "duplicate"})
# what the file of the image says, not that of a store
LINEAGE = {"store_file", "position", "verdict"}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an image of both kinds of files with messages of 3.10 and 4.3, each file several times, some bytes changed."""
    cases = [case_named(name) for name in ("3.10.8/g1-v2-small-clean", "4.3.6/a-v2-clean")]
    files = [path for path in files_of(cases) if path.suffix in (".rdq", ".qs")]
    assert {path.suffix for path in files} == {".rdq", ".qs"}
    raw = bytearray(shuffled_image([*files, *files, *files], 4))
    rng = random.Random(9)
    for _ in range(200):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path = tmp_path_factory.mktemp("image") / "disk.img"
    path.write_bytes(raw)
    return path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make batches, fragments and the message files of a store small: copies of a message lie in several of each."""
    monkeypatch.setattr("mqstore.rabbitmq.salvage.BATCH_ROWS", 60)
    monkeypatch.setattr("mqstore.rabbitmq.salvage.FILE_BYTES", 70_000)
    monkeypatch.setattr(job, "FRAGMENT_RECORDS", 120)


def write(wreck: Wreck, to: Path, runner: Any, stage: Path, *, keep: bool = False) -> tuple[bytes, list[Any]]:
    """Return the bytes of a file of all rows and the messages by exchange and routing key in order."""
    stage.mkdir(exist_ok=True)
    groups: Counter[tuple[str, str]] = Counter()

    def take(counts: FragmentCounts) -> None:
        groups.update(counts.groups)

    form = to.suffix[1:]
    write_carved_rabbitmq_rows(wreck.found, to, form, EVERYTHING, runner, stage, keep=keep, take=take)
    return to.read_bytes(), list(groups.items())


@pytest.mark.usefixtures("small")
def test_the_rows_are_those_of_a_store_of_the_same_messages(image: Path, tmp_path: Path) -> None:
    wreck = carve(source_files(image), ThreadRunner(1))
    write(wreck, tmp_path / "rows.parquet", ThreadRunner(2), tmp_path / "stage")
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    (tmp_path / "store").mkdir()
    with DurableDirectory(tmp_path / "store") as directory:
        store = write_carved(wreck.found, directory).open()
    assert len(store.vhosts[0].persistent.files) > 5
    wanted = [row for batch in messages_of(store, tuple(rows[0])) for row in batch.to_pylist()]
    places = wreck.found[0].messages
    assert {name for row, other in zip(rows, wanted, strict=True) for name in row if row[name] != other[name]} <= LINEAGE
    damaged = places[KIND] == message_store.DAMAGED_ENTRY
    assert damaged.any()
    assert [row["verdict"] for row in rows] == [
        "damaged" if bad else other["verdict"] for bad, other in zip(damaged.tolist(), wanted, strict=True)
    ]
    assert [row["position"] for row in rows] == places[0].tolist()
    assert {row["store_file"] for row in rows} == {"disk.img"}
    verdicts = Counter(row["verdict"] for row in rows)
    assert min(verdicts[word] for word in EVERYTHING) > 5


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_any_number_of_threads_and_any_restarts_write_the_same_bytes(
    form: str, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wreck = carve(source_files(image), ThreadRunner(2))
    wanted = write(wreck, tmp_path / f"one.{form}", ThreadRunner(1), tmp_path / "one")
    assert write(wreck, tmp_path / f"four.{form}", ThreadRunner(4), tmp_path / "four") == wanted
    assert not list((tmp_path / "four").iterdir()), "fragments that are not kept stayed"
    stage = tmp_path / "kept"
    stage.mkdir()
    own, read = job.write_messages, job.read_ids
    done: set[tuple[str, int]] = set()
    died = 0

    def dying(word: str, function: Any) -> Any:
        """Die after each fourth task that no earlier run finished."""

        def run(task: Any) -> Any:
            nonlocal died
            key = (word, task.fragment.number)
            if key not in done and len(done) % 4 == 3 and len(done) // 4 == died:
                died += 1
                raise TargetError("the disk is gone")
            done.add(key)
            return function(task)

        return run

    monkeypatch.setattr(job, "write_messages", dying("rows", own))
    monkeypatch.setattr(job, "read_ids", dying("ids", read))
    to = tmp_path / f"kept.{form}"
    while not to.exists():
        before = died
        with contextlib.suppress(TargetError):
            assert write(wreck, to, ThreadRunner(1), stage, keep=True) == wanted
        assert to.exists() or died == before + 1
    assert died > 2
    # fragments that are there are not written again; a torn one and torn ids are
    monkeypatch.setattr(job, "write_messages", own)
    monkeypatch.setattr(job, "read_ids", read)
    times = {path.name: path.stat().st_mtime_ns for path in stage.iterdir()}
    assert len([name for name in times if name.startswith("messages-") and name.endswith(".json")]) > 5
    (stage / "messages-000001").write_bytes(b"torn")
    (stage / "ids-000002").write_bytes(b"torn")
    assert write(wreck, tmp_path / f"last.{form}", ThreadRunner(2), stage, keep=True) == wanted
    changed = {path.name for path in stage.iterdir() if path.stat().st_mtime_ns != times[path.name]}
    assert changed == {"messages-000001", "messages-000001.json", "ids-000002"}


@pytest.mark.spark
@pytest.mark.usefixtures("small")
def test_spark_writes_the_same_bytes_as_threads(image: Path, tmp_path: Path, spark: Any) -> None:
    wreck = carve(source_files(image), ThreadRunner(2))
    for form in ("jsonl", "parquet"):
        wanted = write(wreck, tmp_path / f"threads.{form}", ThreadRunner(2), tmp_path / "threads")
        assert write(wreck, tmp_path / f"spark.{form}", SparkRunner(spark), tmp_path / "spark") == wanted
        assert write(wreck, tmp_path / f"kept.{form}", SparkRunner(spark), tmp_path / form, keep=True) == wanted
        assert write(wreck, tmp_path / f"again.{form}", ThreadRunner(1), tmp_path / form, keep=True) == wanted


def test_an_image_that_changed_since_it_was_searched_is_refused(image: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.img"
    copy.write_bytes(image.read_bytes())
    wreck = carve(source_files(copy), ThreadRunner(1))
    copy.write_bytes(bytes(copy.stat().st_size))
    with pytest.raises(Exception, match="has changed since it was searched"):
        write(wreck, tmp_path / "rows.jsonl", ThreadRunner(1), tmp_path / "stage")
    assert not (tmp_path / "rows.jsonl").exists()
