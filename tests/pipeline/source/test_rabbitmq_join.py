"""The join by message id on Spark: the rows of the message table, for any number of groups and any damage."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.golden import CASES, RABBITMQ, GoldenCase, case_id, case_named, opened, unpack
from support.spark_api import needs_tables

import mqstore
from mqstore import pipeline
from mqstore.errors import UnsupportedError, UsageError
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark_in_all

MIXED = case_named("3.10.8/f-mixed-features")
MERGED = case_named("3.10.8/e-gc-combined")
CUT = case_named("3.10.8/e2-gc-interrupted")


def ordered(table: Any) -> list[dict[str, Any]]:
    return sorted(
        table.to_pylist(), key=lambda row: tuple(str(row[name]) for name in ("vhost", "queue", "priority_level", "seq_id", "msg_id"))
    )


@needs_tables
@pytest.mark.versions
@pytest.mark.parametrize(
    ("case", "splits"), [*((case, 3) for case in RABBITMQ), *((case, splits) for case in (MIXED, CUT) for splits in (1, 7))], ids=case_id
)
def test_the_joined_table_is_that_of_the_command(spark: SparkSession, case: GoldenCase, splits: int) -> None:
    frame = pipeline.joined(spark, opened(case), splits=splits)
    assert tuple(frame.columns) == RABBITMQ_COLUMNS
    assert ordered(frame.toArrow()) == ordered(mqstore.open(opened(case)).to_arrow())


@pytest.mark.parametrize("seed", range(4))
def test_damaged_stores_are_joined_as_they_are_read(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    """Bytes changed; files truncated, filled with zeros, removed or duplicated."""
    choice = random.Random(seed)
    root = unpack(choice.choice([case for case in RABBITMQ if case.name[0] in "defg"]), tmp_path / "store")
    files = [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.stat().st_size and path.suffix in (".rdq", ".rdt", ".idx", ".jif", ".qi")
    ]
    for path in choice.sample(files, min(4, len(files))):
        path.chmod(0o644)
        raw = bytearray(path.read_bytes())
        at = choice.randrange(len(raw))
        match choice.randrange(5):
            case 0:
                raw[at] ^= 1 << choice.randrange(8)
            case 1:
                del raw[at:]
            case 2:
                raw[at : at + 64] = bytes(min(64, len(raw) - at))
            case 3:
                raw[at : at + 8] = choice.randbytes(min(8, len(raw) - at))
            case 4 if path.suffix == ".rdq":
                path.with_name("97.rdq").write_bytes(raw)
        path.write_bytes(raw)
    wanted = ordered(mqstore.open(root).to_arrow())
    assert ordered(pipeline.joined(spark, root, splits=3).toArrow()) == wanted
    assert ordered(pipeline.read(spark, root, format="rabbitmq", splits=3).toArrow()) == wanted


def test_a_queue_that_stops_its_vhost_does_so_in_every_task(spark: SparkSession, tmp_path: Path) -> None:
    root = unpack(MERGED, tmp_path / "store")
    queue = next(path.parent for path in sorted(root.rglob("journal.jif")) if b"fan.2" in (path.parent / ".queue_name").read_bytes())
    # an acknowledgement without a publish
    (queue / "77.idx").write_bytes(b"\x40\x05")
    store = mqstore.open(root)
    assert isinstance(store, RabbitMQStore)
    assert store.vhosts[0].refusals
    wanted = ordered(store.to_arrow())
    assert not any(row["recovered"] for row in wanted)
    assert ordered(pipeline.joined(spark, root, splits=4).toArrow()) == wanted
    (row,) = pipeline.read(spark, root, format="rabbitmq", view="refusals").collect()
    assert (row["queue"], row["whole_vhost"]) == ("fan.2", True)
    one = pipeline.joined(spark, root, ["recovered"], queue="solo.d", splits=1).collect()
    assert one
    assert not any(row["recovered"] for row in one)


def test_one_vhost_and_several_stores_are_joined(spark: SparkSession) -> None:
    vhost = next((opened(CUT) / "msg_stores" / "vhosts").iterdir())
    assert ordered(pipeline.joined(spark, vhost).toArrow()) == ordered(mqstore.open(vhost).to_arrow())
    paths = [str(opened(MIXED)), str(opened(MERGED))]
    counts = {row["store"]: row["count"] for row in pipeline.joined(spark, paths, ["queue", "store"]).groupBy("store").count().collect()}
    assert counts == {paths[0]: 118, paths[1]: 89}


def test_options_of_the_format_select_rows_and_columns(spark: SparkSession) -> None:
    frame = pipeline.joined(
        spark, opened(MIXED), ["queue", "seq_id", "payload"], vhost="/", queue="prio.q,ttl.q", fromSeq=1, recovered=True
    )
    selection = QueueSelection(vhosts=frozenset({"/"}), queues=frozenset({"prio.q", "ttl.q"}), from_seq=1, recovered=True)
    wanted = mqstore.open(opened(MIXED)).to_arrow(["queue", "seq_id", "payload"], selection).to_pylist()
    key = lambda row: (row["queue"], row["seq_id"], row["payload"])  # noqa: E731
    assert wanted
    assert sorted(frame.toArrow().to_pylist(), key=key) == sorted(wanted, key=key)
    assert pipeline.joined(spark, opened(MIXED), queue="no such queue").count() == 0


@pytest.mark.parametrize("options", [{"all": True}, {"view": "index"}])
def test_views_without_a_join_are_refused(spark: SparkSession, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="returns only messages in queues"):
        pipeline.joined(spark, opened(MIXED), **options)


def test_a_store_of_the_other_family_is_refused(spark: SparkSession) -> None:
    with pytest.raises(UnsupportedError, match='format\\("rocketmq"\\)'):
        pipeline.joined(spark, opened(CASES[0]))
