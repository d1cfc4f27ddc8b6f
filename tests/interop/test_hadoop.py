"""Jobs on YARN and stores in HDFS: real clusters in a process of their own (tests/interop/hadoop), as docs/guide/cluster.md says."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.cluster import Driver, Hold, blocks, until
from support.golden import case_named, opened, run_cli
from support.hadoop import Hadoop, why_not
from support.spark_api import needs_streams
from support.sparse import FILE_SIZE, sparse_store
from support.stores import store_contents

import mqstore
from mqstore.jobs.export import export
from mqstore.jobs.lookup import lookup
from mqstore.jobs.rebuild import rebuild

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.xdist_group("hadoop")]

CASE = case_named("4.9.3/a-clean-small")


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with Hadoop(tmp_path_factory.mktemp("hadoop") / "h") as started:
        yield started


@pytest.fixture(scope="module")
def driver(hadoop: Hadoop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(hadoop, tmp_path_factory.mktemp("driver") / "driver") as started:
        yield started


@pytest.fixture(scope="module")
def url(hadoop: Hadoop) -> str:
    """The store in HDFS."""
    return hadoop.upload(opened(CASE), "/stores/orders")


def rows(place: Path) -> Counter[str]:
    found = [row for path in sorted(place.rglob("*.parquet")) for row in pq.read_table(path, partitioning=None).to_pylist()]
    return Counter(repr([(name, sorted(value) if name == "properties" else value) for name, value in row.items()]) for row in found)


def test_executors_on_yarn_import_the_package_that_was_sent_with_its_compiled_kernels(driver: Driver) -> None:
    for found in driver.run("where"):
        assert Path(found["file"]).is_relative_to(Path(found["directory"]).resolve())
        assert "container_" in found["directory"]
        assert Path(found["kernel"]).is_relative_to(Path(found["file"]).parent)


def test_a_store_in_hdfs_is_the_store_that_was_copied_there(url: str) -> None:
    here, there = (json.loads(run_cli("verify", place, "-o", "json").stdout) for place in (opened(CASE), url))
    for name in ("ok", "checked", "messages", "coverage", "damage"):
        assert there[name] == here[name], name
    here, there = (json.loads(run_cli("topics", place, "-o", "json").stdout) for place in (opened(CASE), url))
    assert there == here
    assert mqstore.open(url).to_arrow().equals(mqstore.open(opened(CASE)).to_arrow())


def test_a_rebuild_on_yarn_gives_the_same_bytes(driver: Driver, tmp_path: Path) -> None:
    rebuild(opened(CASE), tmp_path / "expected", threads=2)
    driver.run("rebuild", store=opened(CASE), to=tmp_path / "rebuilt")
    assert store_contents(tmp_path / "rebuilt") == store_contents(tmp_path / "expected")


def test_the_commands_of_the_guide_read_from_hdfs_on_yarn(hadoop: Hadoop, url: str, tmp_path: Path) -> None:
    asked = mqstore.open(opened(CASE)).to_arrow(["topic", "keys"]).to_pylist()
    (tmp_path / "keys.txt").write_text("".join(f"{row['topic']}\t{key}\n" for row in asked for key in row["keys"] or ()))
    (commands,) = blocks("sh yarn")
    told = {}
    for line in commands.replace("webhdfs://namenode:9870/stores/orders", url).splitlines():
        words = shlex.split(line)
        done = subprocess.run(
            [sys.executable, "-m", *words], env=hadoop.environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        told[words[1]] = done.stdout
    assert told["verify"].startswith("Intact: nothing is damaged.\nChecked 511 messages in 519 records of log")
    export(opened(CASE), tmp_path / "expected", threads=2)
    assert rows(tmp_path / "messages") == rows(tmp_path / "expected")
    lookup(opened(CASE), tmp_path / "keys.txt", tmp_path / "found.parquet", by="scan", threads=2)
    assert rows(tmp_path / "answers.parquet") == rows(tmp_path / "found.parquet")


def test_a_frame_is_read_from_hdfs_and_written_to_hdfs(driver: Driver, hadoop: Hadoop, url: str) -> None:
    written = driver.run("copy", store=url, to=f"{hadoop.hdfs}/tables/orders", columns=["topic", "queue_id", "queue_offset", "size"])
    expected = mqstore.open(opened(CASE)).to_arrow(["topic", "queue_id", "queue_offset", "size"]).to_pylist()
    assert written == sorted([list(row.values()) for row in expected])


@pytest.mark.parametrize("files", [2_000, 20_000])
def test_a_log_of_2_and_20_tb_is_planned_and_partly_read_on_yarn(files: int, driver: Driver, tmp_path: Path) -> None:
    """A sparse log, in a directory that all hosts share; the range leaves ten tasks of the 8,000, and of the 10,000."""
    store, step = sparse_store(tmp_path / "store", files), files // 1000
    begin, end = 5 * step * FILE_SIZE, (5 * step + 5 * step // 2) * FILE_SIZE
    partitions, offsets = driver.run("scan", store=store, startingOffsets=str(begin), endingOffsets=str(end))
    assert 10 <= partitions <= 26
    assert offsets == list(range(begin, end, FILE_SIZE))
    asked = driver.run("scan", store=store, keys="k7", useDerivedFiles="false", endingOffsets=str(20 * FILE_SIZE))
    assert asked[1] == [7 * FILE_SIZE]


@needs_streams
def test_a_stream_writes_to_hdfs_with_its_checkpoint_there(driver: Driver, hadoop: Hadoop) -> None:
    to, checkpoint = f"{hadoop.hdfs}/tables/streamed", f"{hadoop.hdfs}/checkpoints/streamed"
    expected = sorted(mqstore.open(opened(CASE)).to_arrow(["physical_offset"]).column(0).to_pylist())
    for _ in range(2):  # the second run finds nothing new
        assert driver.run("stream", store=opened(CASE), to=to, checkpoint=checkpoint) == expected


def test_a_stopped_node_manager_costs_time_and_nothing_else(driver: Driver, hadoop: Hadoop, tmp_path: Path) -> None:
    rebuild(opened(CASE), tmp_path / "expected", threads=2)
    hold = Hold(tmp_path / "hold")
    driver.begin("rebuild", store=opened(CASE), to=tmp_path / "rebuilt", hold=hold.at(20))
    hold.first()
    # with its application master an application of YARN would begin again, and a session ends
    (master,) = hadoop.nodes_of("ExecutorLauncher")
    other = until(lambda: next((node for node in hadoop.nodes_of("YarnCoarseGrainedExecutorBackend") if node != master), None), "executors")
    hadoop.stop_node_manager(other)
    until(lambda: True if hadoop.nodes_of("YarnCoarseGrainedExecutorBackend") <= {master} else None, "the end of its executors")
    hold.release()
    driver.result()
    assert store_contents(tmp_path / "rebuilt") == store_contents(tmp_path / "expected")


def test_yarn_without_its_configuration_is_one_sentence(hadoop: Hadoop) -> None:
    environment = {name: value for name, value in hadoop.environment.items() if name not in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")}
    command = [sys.executable, "-m", "mqstore", "usage", str(opened(CASE)), "--master", "yarn"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "HADOOP_CONF_DIR or YARN_CONF_DIR must be set" in done.stderr
