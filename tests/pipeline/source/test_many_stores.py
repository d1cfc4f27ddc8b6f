"""Many stores in one read: few tasks with the same rows, and a path that is not a store is reported instead of ending the read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType
from support.golden import CASES, FURTHER, OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_named, opened, unpack_site
from support.privilege import needs_permissions, without_privilege
from support.spark_api import needs_streams
from support.stores import Store, message

import mqstore
from mqstore.errors import CannotOpenError, MqstoreError, PipelineError, UsageError
from mqstore.pipeline.source.derived import SOURCES, FindingsSource, OffsetsSource, QueueSource, TableSource
from mqstore.pipeline.source.planning import MOST_BYTES, OPEN_COST, PartGroup, grouped, parts_in
from mqstore.pipeline.source.rabbitmq import RabbitMQDataSource
from mqstore.pipeline.source.rocketmq import RocketMQDataSource, read, read_plan
from mqstore.pipeline.source.stores import TableFormat
from mqstore.pipeline.source.stream import RocketMQStreamReader
from mqstore.pipeline.source.views import views
from mqstore.pipeline.spark.source_api import ReadAllAvailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark_in_all, pytest.mark.real_sizes]

Row = dict[str, Any]

MESSAGES = StructType().add("store", "string").add("topic", "string").add("physical_offset", "long").add("verdict", "string")
QUEUED = StructType().add("store", "string").add("queue", "string").add("seq_id", "long").add("msg_id", "string")


def schema_of(source: type[TableFormat]) -> StructType:
    if issubclass(source, TableSource):
        kinds = {"string": "string", "int32": "integer", "int64": "long", "timestamp": "timestamp"}
        found = StructType().add("store", "string")
        for name, kind in source.table.items():
            found.add(name, kinds[kind])
        return found
    return QUEUED if source is RabbitMQDataSource else MESSAGES


def reader_of(source: type[TableFormat], path: object, **options: object) -> Any:
    given = {name: str(value) for name, value in options.items()}
    return source({"path": str(path), **given}).reader(schema_of(source))


def rows_in(reader: Any, partitions: list[Any]) -> list[Row]:
    return [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]


def rows_of(source: type[TableFormat], path: object, **options: object) -> list[Row]:
    reader = reader_of(source, path, **options)
    return rows_in(reader, reader.partitions())


def link_all(root: Path, cases: tuple[GoldenCase, ...]) -> list[Path]:
    """Return paths of the stores of the cases below root, in the order of a glob."""
    root.mkdir()
    for number, case in enumerate(cases):
        (root / f"{number:03d}").symlink_to(opened(case))
    return sorted(root.iterdir())


# ---- few tasks


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hundred stores of 3 to 6 messages."""
    root = tmp_path_factory.mktemp("fleet")
    for number in range(4):
        store = Store(root / "made" / str(number), file_size=4096)
        for k in range(3 + number):
            store.put(message(f"topic-{number}", keys=f"k{k}", queue_id=k % 2))
        store.write()
    (root / "stores").mkdir()
    for number in range(300):
        (root / "stores" / f"{number:03d}").symlink_to(root / "made" / str(number % 4))
    return root / "stores"


def test_300_tiny_stores_are_read_by_a_few_tasks_in_their_order(fleet: Path) -> None:
    reader = reader_of(RocketMQDataSource, fleet / "*")
    partitions = reader.partitions()
    assert len(partitions) <= 16
    sizes = [len(parts_in(partition)) for partition in partitions]
    assert sum(sizes) == 300
    assert min(sizes[:-1]) * 2 > max(sizes)
    found = rows_in(reader, partitions)
    assert list(dict.fromkeys(row["store"] for row in found)) == [str(path) for path in sorted(fleet.iterdir())]
    assert Counter(row["store"] for row in found) == {str(path): 3 + int(path.name) % 4 for path in fleet.iterdir()}
    assert all(row["topic"] == f"topic-{int(Path(row['store']).name) % 4}" for row in found)
    plan = read_plan(partitions)
    assert (len(plan.stores), plan.partitions, plan.skipped) == (300, len(partitions), ())
    assert str(plan).startswith(f"300 stores in {len(partitions)} partitions\n{fleet}/000: scan, 1 partition: ")
    assert str(plan).endswith("… 280 more stores")


def test_small_batches_of_many_stores_are_put_together(fleet: Path) -> None:
    reader = reader_of(RocketMQDataSource, fleet / "*")
    for partition in reader.partitions():
        (batch,) = reader.read(partition)
        assert batch.num_rows == sum(3 + int(Path(part.path).name) % 4 for part in parts_in(partition))


def test_a_read_of_many_stores_has_at_least_as_many_tasks_as_minpartitions_says(fleet: Path) -> None:
    whole = rows_of(RocketMQDataSource, fleet / "00*")
    for wanted in (7, 10):
        reader = reader_of(RocketMQDataSource, fleet / "00*", minPartitions=wanted)
        partitions = reader.partitions()
        assert len(partitions) >= wanted
        assert rows_in(reader, partitions) == whole
    assert len(reader_of(RocketMQDataSource, fleet / "*", minPartitions=300).partitions()) == 300


def test_a_condition_on_the_store_still_opens_that_one_alone(fleet: Path) -> None:
    from mqstore.pipeline.spark.source_api import EqualTo

    reader = reader_of(RocketMQDataSource, fleet / "*")
    reader.confine([EqualTo(("store",), f"{fleet}/007")])
    (part,) = reader.partitions()
    assert part.path == f"{fleet}/007"


@pytest.mark.parametrize(
    ("costs", "pieces", "wanted"),
    [
        ([], 0, []),
        ([5], 0, [1]),
        ([OPEN_COST] * 10, 0, [10]),
        ([MOST_BYTES] * 3, 0, [1, 1, 1]),
        ([MOST_BYTES, 1, 1, MOST_BYTES], 0, [1, 2, 1]),
        ([1] * 10, 3, [4, 4, 2]),
        ([100, 1, 1, 1], 4, [1, 1, 1, 1]),
        ([1, 1, 1, 100], 3, [2, 1, 1]),
        ([1, 1], 5, [1, 1]),
        ([OPEN_COST] * 1000, 0, None),
        ([OPEN_COST] * 10_000, 0, None),
    ],
)
def test_parts_are_grouped_by_their_cost_without_a_change_of_order(costs: list[int], pieces: int, wanted: list[int] | None) -> None:
    parts = [PartGroup((), ()) for _ in costs]
    found = [parts_in(each) if each not in parts or each.parts else (each,) for each in grouped(parts, costs, pieces)]
    lengths = [max(1, len(run)) for run in found]
    assert sum(lengths) == len(costs)
    if wanted is None:
        assert 16 <= len(lengths) <= 80
        assert max(lengths) <= 128
    else:
        assert lengths == wanted


# ---- the same rows

GOLDEN = (*CASES[::6], *FURTHER[::2])


def test_stores_of_several_versions_in_a_task_give_the_rows_of_each_alone(tmp_path: Path) -> None:
    paths = link_all(tmp_path / "stores", GOLDEN)
    reader = reader_of(RocketMQDataSource, tmp_path / "stores" / "*")
    partitions = reader.partitions()
    assert len(partitions) < len(paths)
    names = ("topic", "physical_offset", "verdict")
    wanted = [{"store": str(path), **row} for path in paths for batch in mqstore.open(path).to_batches(names) for row in batch.to_pylist()]
    assert rows_in(reader, partitions) == wanted


@pytest.mark.parametrize("source", SOURCES, ids=[source.format for source in SOURCES])
def test_derived_files_of_several_stores_in_a_task_give_the_rows_of_each_alone(source: type[TableSource], tmp_path: Path) -> None:
    paths = link_all(tmp_path / "stores", tuple(case for case in GOLDEN if not mqstore.open(opened(case)).unread_index)[:7])
    reader = reader_of(source, tmp_path / "stores" / "*")
    partitions = reader.partitions()
    assert len(partitions) == 1
    assert rows_in(reader, partitions) == [row for path in paths for row in rows_of(source, path)]


def test_rabbitmq_stores_of_several_versions_in_a_task_give_the_rows_of_each_alone(tmp_path: Path) -> None:
    paths = link_all(tmp_path / "stores", (*RABBITMQ[::3], *OTHER_RABBITMQ[::2]))
    reader = reader_of(RabbitMQDataSource, tmp_path / "stores" / "*")
    partitions = reader.partitions()
    assert len(partitions) < len(paths)
    found = rows_in(reader, partitions)
    assert found == [row for path in paths for row in rows_of(RabbitMQDataSource, path)]
    assert len(found) > 100


def test_a_path_that_is_not_utf8_is_read_and_shown_with_replacements(tmp_path: Path) -> None:
    root = tmp_path / "stores"
    member(root, "a")
    os.symlink(root / "a", os.fsencode(root) + b"/b\xff")
    os.mkdir(os.fsencode(root) + b"/c\xff")
    with pytest.warns(UserWarning, match="1 of 3 paths"):
        found = rows_of(RocketMQDataSource, root / "*")
    assert Counter(row["store"] for row in found) == {f"{root}/a": 5, f"{root}/b\ufffd": 5}
    with pytest.warns(UserWarning, match="1 of 3 paths"):
        (row,) = (row for row in rows_of(FindingsSource, root / "*") if row["section"] == "damage")
    assert row["store"] == f"{root}/c\ufffd"
    assert row["detail"].startswith(f"{root}/c\ufffd is empty")


# ---- paths that are not stores


def empty(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.write_bytes(b"not a store")


def an_archive(path: Path) -> None:
    path.write_bytes(case_named("4.9.3/a-clean-small").archive.read_bytes())


def leads_nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def rabbitmq(path: Path) -> None:
    path.symlink_to(opened(case_named("3.10.8/f-mixed-features")))


def log_is_a_file(path: Path) -> None:
    path.mkdir()
    (path / "commitlog").write_bytes(b"")
    for name in ("consumequeue", "index"):
        (path / name).mkdir()


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (empty, "b is empty; give the directory that contains commitlog/"),
    "file": (a_file, "b is a file, not a directory, and no record of a commit log is in it"),
    "archive": (an_archive, "b is a file, not a directory, and no record of a commit log is in it"),
    "link": (leads_nowhere, "b does not exist"),
    "rabbitmq": (rabbitmq, "b is a RabbitMQ message store"),
    "log": (log_is_a_file, "b/commitlog is not a directory"),
}


def member(root: Path, name: str) -> Path:
    store = Store(root / name, file_size=4096)
    for k in range(5):
        store.put(message("orders", name.encode(), keys=f"k{k}"))
    return store.write()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A directory with the stores `a` and `c`."""
    for name in "ac":
        member(tmp_path / "stores", name)
    return tmp_path / "stores"


@pytest.mark.parametrize("kind", BROKEN)
def test_a_match_that_is_not_a_store_is_skipped_and_reported_with_the_reason(kind: str, good: Path) -> None:
    make, why = BROKEN[kind]
    make(good / "b")
    reader = reader_of(RocketMQDataSource, good / "*")
    with pytest.warns(UserWarning, match=f"1 of 3 paths cannot be read as a store and are skipped: .*{why}"):
        partitions = reader.partitions()
    assert Counter(row["store"] for row in rows_in(reader, partitions)) == {f"{good}/a": 5, f"{good}/c": 5}
    plan = read_plan(partitions)
    assert [(each.path, why in each.why) for each in plan.skipped] == [(f"{good}/b", True)]
    assert f"{good}/b: skipped: " in str(plan)
    with pytest.raises(PipelineError, match=f"mode=FAILFAST: {good}/b cannot be read as a store: .*{why}.*; mode=PERMISSIVE skips"):
        reader_of(RocketMQDataSource, good / "*", mode="FAILFAST").partitions()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_single_path_that_is_not_a_store_stays_an_error(kind: str, tmp_path: Path) -> None:
    make, why = BROKEN[kind]
    make(tmp_path / "b")
    for path in (tmp_path / "b", tmp_path / "*"):
        with pytest.raises(MqstoreError, match=why):
            reader_of(RocketMQDataSource, path).partitions()


def test_a_read_of_which_no_path_is_a_store_is_an_error(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    for source in (RocketMQDataSource, RabbitMQDataSource, *SOURCES):
        with pytest.raises(CannotOpenError, match=r"none of the 3 paths can be read as a store; of the first: .*/a is empty"):
            reader_of(source, tmp_path / "*").partitions()


@needs_permissions
@pytest.mark.parametrize("part", ["", "commitlog", f"commitlog/{0:020d}"], ids=["store", "log", "log file"])
def test_a_store_without_permission_is_skipped_and_reported(part: str, good: Path) -> None:
    place = member(good, "b") / part
    mode = place.stat().st_mode
    place.chmod(0)
    try:
        with without_privilege():
            reader = reader_of(RocketMQDataSource, good / "*")
            with pytest.warns(UserWarning, match=r"1 of 3 paths .*/b.*[Pp]ermission denied"):
                partitions = reader.partitions()
            assert {row["store"] for row in rows_in(reader, partitions)} == {f"{good}/a", f"{good}/c"}
    finally:
        place.chmod(mode)


def test_a_warning_names_the_first_paths_and_counts_the_others(good: Path) -> None:
    for number in range(5):
        (good / f"x{number}").mkdir()
    with pytest.warns(UserWarning, match="5 of 7 paths cannot be read as a store and are skipped: ") as caught:
        reader_of(RocketMQDataSource, good / "*").partitions()
    (only,) = caught
    sentence = str(only.message)
    assert [f"{good}/x{number} is empty" in sentence for number in range(5)] == [True, True, True, False, False]
    assert sentence.endswith("and 2 more, which explain_read lists")


def test_a_list_with_a_path_that_does_not_exist_is_read_without_it(good: Path) -> None:
    with pytest.warns(UserWarning, match=f"1 of 2 paths .*{good}/nothing does not exist"):
        found = rows_of(RocketMQDataSource, f"{good}/a,{good}/nothing")
    assert {row["store"] for row in found} == {f"{good}/a"}


@pytest.mark.parametrize("source", [QueueSource, OffsetsSource], ids=["queue", "offsets"])
def test_derived_files_are_read_without_the_paths_that_are_not_stores(source: type[TableSource], good: Path) -> None:
    wanted = rows_of(source, good / "*")
    (good / "b").mkdir()
    with pytest.warns(UserWarning, match="1 of 3 paths"):
        assert rows_of(source, good / "*") == wanted
    with pytest.raises(PipelineError, match=f"mode=FAILFAST: {good}/b cannot be read as a store"):
        rows_of(source, good / "*", mode="failfast")
    with pytest.raises(UsageError, match="option mode is 'x'"):
        rows_of(source, good / "*", mode="x")


def test_a_path_that_is_not_a_store_is_a_finding(good: Path) -> None:
    (good / "b").mkdir()
    with pytest.warns(UserWarning, match="1 of 3 paths"):
        found = [row for row in rows_of(FindingsSource, good / "*") if row["section"] == "damage"]
    (row,) = found
    assert row == {
        "store": f"{good}/b",
        "section": "damage",
        "file": ".",
        "offset": 0,
        "length": 0,
        "kind": "unreadable",
        "detail": f"{good}/b is empty; give the directory that contains commitlog/, or the data directory of a RabbitMQ node",
        "messages": 0,
    }


def test_a_rocketmq_store_among_rabbitmq_stores_is_skipped_and_reported(tmp_path: Path) -> None:
    paths = link_all(tmp_path / "stores", (RABBITMQ[0], case_named("4.9.3/a-clean-small"), RABBITMQ[1]))
    reader = reader_of(RabbitMQDataSource, tmp_path / "stores" / "*")
    with pytest.warns(UserWarning, match=f'1 of 3 paths .*{paths[1]} is a RocketMQ store; read it with format\\("rocketmq"\\)'):
        partitions = reader.partitions()
    assert rows_in(reader, partitions) == [*rows_of(RabbitMQDataSource, paths[0]), *rows_of(RabbitMQDataSource, paths[2])]
    with pytest.raises(PipelineError, match="mode=FAILFAST: "):
        reader_of(RabbitMQDataSource, tmp_path / "stores" / "*", mode="FAILFAST").partitions()


# ---- stores that vanish after planning


def removed(path: Path) -> None:
    shutil.rmtree(path)


def replaced_by_nothing(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


@pytest.mark.parametrize("vanish", [removed, replaced_by_nothing])
def test_a_store_that_vanishes_after_planning_is_lost_data(vanish: Callable[[Path], None], good: Path) -> None:
    member(good, "b")
    strict, tolerant = (reader_of(RocketMQDataSource, good / "*", failOnDataLoss=value) for value in ("true", "false"))
    plans = strict.partitions(), tolerant.partitions()
    vanish(good / "b")
    with pytest.raises(PipelineError, match=f"{good}/b.*failOnDataLoss=false reads the"):
        rows_in(strict, plans[0])
    if vanish is removed:
        with pytest.warns(UserWarning, match=f"1 of 3 paths .*{good}/b does not exist"):
            found = rows_in(tolerant, plans[1])
    else:
        found = rows_in(tolerant, plans[1])
    assert {row["store"] for row in found} == {f"{good}/a", f"{good}/c"}


# ---- on Spark


def test_a_glob_with_a_path_that_is_not_a_store_is_a_table_of_the_others(good: Path, spark: SparkSession) -> None:
    (good / "b").mkdir()
    with pytest.warns(UserWarning, match="1 of 3 paths") as caught:
        frame = read(spark, str(good / "*"), columns=["store", "topic"])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert {row["store"]: row["count"] for row in frame.groupBy("store").count().collect()} == {f"{good}/a": 5, f"{good}/c": 5}
    with pytest.warns(UserWarning, match="1 of 3 paths") as caught:
        views(spark, str(good / "*"), prefix="many_")
    assert len(caught) == 1
    assert spark.sql("select store, kind from many_damage").collect() == [(f"{good}/b", "unreadable")]
    assert spark.sql("select count(*) from many_queues").collect() == [(10,)]
    for name in ("messages", "queues", "groups", "damage", "index_entries", "timers"):
        spark.catalog.dropTempView(f"many_{name}")


OF_ROWS = {
    "compaction-533": "compaction topics: of topic 'prices', consumers get 59 messages of 2 queues",
    "log-file-renamed-bak": "only what is left of the log of .* is read: .* cannot be told without the log at .*131072.bak",
}


@pytest.mark.parametrize(("site", "said"), [*OF_ROWS.items()])
def test_a_read_warns_of_rows_that_are_not_all_or_not_what_a_broker_returns(
    spark: SparkSession, tmp_path: Path, site: str, said: str
) -> None:
    store = unpack_site(site, tmp_path)
    with pytest.warns(UserWarning, match=said) as caught:
        views(spark, store)
    assert len([item for item in caught if "compaction topics" in str(item.message) or "left of the log" in str(item.message)]) == 1


OPTIONS = {"startingOffsets": "earliest", "failOnDataLoss": "false"}


@needs_streams
@pytest.mark.parametrize(("site", "said"), [*OF_ROWS.items()])
def test_planning_warns_of_such_rows_where_spark_is_asked_itself(tmp_path: Path, site: str, said: str) -> None:
    store = unpack_site(site, tmp_path)
    with pytest.warns(UserWarning, match=said):
        reader_of(RocketMQDataSource, store).partitions()
    stream = RocketMQStreamReader({"path": str(store), **OPTIONS}, ("topic",))
    with pytest.warns(UserWarning, match=said) as caught:
        first = stream.initialOffset()
    assert len(caught) == 1
    if site == "log-file-renamed-bak":
        strict = RocketMQStreamReader({"path": str(store), "startingOffsets": "earliest"}, ("topic",))
        with pytest.raises(PipelineError, match=r"offsets 131072 to 196607 .*: files are missing between others, as retention leaves none"):
            strict.latestOffset(first, ReadAllAvailable())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # by the same stream, and after `read`
        stream.partitions(first, stream.latestOffset(first, ReadAllAvailable()))
        reader_of(RocketMQDataSource, store, reported=0).partitions()


PLAIN = """
import sys
from mqstore.pipeline import register, session

with session("local[1]", quiet=sys.argv[3] == "quiet") as spark:
    register(spark)
    frame = spark.read.format("rocketmq").load(sys.argv[1])
    frame.count(), frame.count()
    live = spark.readStream.format("rocketmq").options(startingOffsets="earliest", failOnDataLoss="false").load(sys.argv[1])
    query = live.writeStream.format("noop").trigger(availableNow=True).option("checkpointLocation", sys.argv[2]).start()
    query.awaitTermination()
"""


@needs_streams
@pytest.mark.parametrize("output", ["all", "quiet"])
def test_a_plain_read_and_a_stream_print_such_a_warning_once(output: str, tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    command = [sys.executable, "-c", PLAIN, str(store), str(tmp_path / "checkpoint"), output]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 1 <= done.stderr.count(f"UserWarning: only what is left of the log of {store} is read") <= 3, done.stderr
