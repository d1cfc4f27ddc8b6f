"""Jobs on a cluster of several processes: whichever process dies, the result is that of a run without failures, and nothing else is left.

A task is held half-way through its job (tests/support/cluster_driver.py), so that every kill happens in the middle.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.cluster import Cluster, Driver, Held, Hold, blocks, end_of
from support.golden import case_named, opened, unpack
from support.spark_api import needs_streams
from support.stores import store_contents

import mqstore
from mqstore.jobs.export import export
from mqstore.jobs.lookup import lookup
from mqstore.jobs.rebuild import rebuild
from mqstore.pipeline.spark.shipping import package_archive
from mqstore.rocketmq.verify.verification import verify

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.xdist_group("cluster")]

CASE = case_named("4.9.3/a-clean-small")
ROWS, PARTITIONS = 900, 12
FOLLOW = pytest.param("follow", marks=needs_streams)
JOBS = ("rebuild", "export", FOLLOW, "sink")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "processes") as started:
        yield started


@pytest.fixture(scope="module")
def driver(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(cluster, tmp_path_factory.mktemp("driver") / "driver") as started:
        yield started


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of each job without failures: in threads of this process."""
    place = tmp_path_factory.mktemp("expected")
    rebuild(opened(CASE), place / "rebuilt", threads=2, copy=True)
    export(opened(CASE), place / "exported", threads=2)
    rows = table(place / "exported")
    return {
        "rebuild": store_contents(place / "rebuilt"),
        "export": rows,
        "follow": rows,
        "sink": [f"body {number}".encode() for number in range(ROWS)],
    }


def table(place: Path) -> list[dict[str, Any]]:
    rows = [row for path in sorted(place.rglob("*.parquet")) for row in pq.read_table(path, partitioning=None).to_pylist()]
    for row in rows:
        row["properties"] = sorted(row["properties"])
    return rows


def outcome(job: str, to: Path) -> Any:
    """Return what a job has written, to be compared with what is expected."""
    if job == "rebuild":
        return store_contents(to)
    if job == "sink":
        assert verify(mqstore.open(to)).damage == ()
        return [row["body"] for batch in mqstore.open(to).view().batches(("body",)) for row in batch.to_pylist()]
    if job == "follow":
        assert sorted(path.name for path in (to / "_mqstore_follow").iterdir()) == ["checkpoint", "follow.json", "lock"]
    return table(to)


def asked(job: str, to: Path) -> dict[str, Any]:
    if job == "read":
        return {"store": opened(CASE), "minPartitions": "6"}
    return {"to": to, "rows": ROWS, "partitions": PARTITIONS, "run": "orders-1"} if job == "sink" else {"store": opened(CASE), "to": to}


def half(job: str) -> int:
    """Return the task to be held: one in the middle. Those of follow are identified by their start in the log."""
    return {"rebuild": 20, "export": 20, "follow": 90_000, "sink": 5, "read": 3}[job]


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """Where a job writes; nothing else is beside it in the end."""
    (tmp_path / "place").mkdir()
    yield tmp_path / "place" / "out"
    staged = [str(path.relative_to(tmp_path)) for path in (tmp_path / "place").rglob("*mqstore-*") if path.name != "mqstore-sink.json"]
    assert (sorted(path.name for path in (tmp_path / "place").iterdir()), staged) == (["out"], [])


def is_under_way(job: str, out: Path) -> None:
    """Return whether the job is in its middle: something is staged, and its result has not appeared."""
    assert any("mqstore-" in path.name or "stage-" in path.name for path in out.parent.rglob("*"))
    if job == "follow":
        assert len([*out.glob("batch=*")]) > 0
    elif job == "sink":
        assert not (out / "commitlog").exists()
    else:
        assert not out.exists()


# the package


def test_executors_import_the_package_that_was_sent_with_its_compiled_kernels(driver: Driver) -> None:
    for found in driver.run("where"):
        assert Path(found["file"]).is_relative_to(found["directory"])
        assert package_archive().stem in found["file"]
        assert Path(found["kernel"]).is_relative_to(Path(found["file"]).parent)


def test_the_shipped_package_says_where_its_kernels_do_not_fit(tmp_path: Path) -> None:
    with zipfile.ZipFile(package_archive()) as archive:
        archive.extractall(tmp_path / "sent")
    for path in (tmp_path / "sent").rglob("*.so"):
        path.rename(path.with_name(path.name.replace("linux", "elsewhere")))  # made for another system
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "sent")}
    done = subprocess.run(
        [sys.executable, "-c", "import mqstore"], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: mqstore has no compiled kernels for this Python")


# attempts side by side, while each worker has one executor of the driver


@pytest.mark.parametrize(
    "jobs",
    [("read", "rebuild", "sink"), pytest.param(("export", "follow"), marks=[pytest.mark.slow, needs_streams])],
    ids=lambda jobs: "-".join(jobs),
)
def test_a_speculative_attempt_beside_a_slow_one_adds_nothing(
    jobs: tuple[str, ...], cluster: Cluster, tmp_path: Path, expected: dict[str, Any]
) -> None:
    settings = {"spark.speculation": "true", "spark.speculation.quantile": "0.3", "spark.speculation.task.duration.threshold": "1s"}
    with Driver(cluster, tmp_path / "driver", **settings) as driver:
        for job in jobs:
            place = tmp_path / job
            place.mkdir()
            hold = Hold(tmp_path / f"hold-{job}")
            # the slow attempt never ends: without another one, neither would the job
            answer = driver.run(job, **asked(job, place / "out"), hold=hold.at(half(job)))
            assert hold.attempts(hold.first().number) > 1
            hold.release()
            if job == "read":
                assert answer == [row["physical_offset"] for row in expected["export"]]
                continue
            assert outcome(job, place / "out") == expected[job]
            assert [path.name for path in place.iterdir()] == ["out"]


# deaths


def survives(job: str, driver: Driver, out: Path, hold: Hold, kill: Any, expected: Any) -> None:
    driver.begin(job, **asked(job, out), hold=hold.at(half(job)))
    first = hold.first()
    is_under_way(job, out)
    kill(first)
    hold.release()  # a task that has lost its executor continues, if it can
    driver.result()
    assert hold.attempts(first.number) > 1
    assert outcome(job, out) == expected


@pytest.mark.parametrize("job", JOBS)
def test_an_executor_that_is_killed_leaves_no_trace(job: str, driver: Driver, out: Path, tmp_path: Path, expected: dict[str, Any]) -> None:
    survives(job, driver, out, Hold(tmp_path / "hold"), lambda first: end_of(first.executor), expected[job])


@pytest.mark.parametrize("job", [FOLLOW, *(pytest.param(job, marks=pytest.mark.slow) for job in ("sink", "rebuild", "export"))])
@pytest.mark.parametrize("done", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["written", "unwritten"])
def test_a_driver_that_is_killed_is_run_again_and_nothing_is_there_twice(
    job: str, done: bool, cluster: Cluster, driver: Driver, out: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    hold = Hold(tmp_path / "hold")
    with Driver(cluster, tmp_path / "driver") as dies:
        dies.begin(job, **asked(job, out), hold=hold.at(half(job), done=done))
        hold.first()
        is_under_way(job, out)
        dies.kill()
    hold.release()
    driver.run(job, **asked(job, out))
    assert outcome(job, out) == expected[job]


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("then", ["fail", pytest.param("die", marks=pytest.mark.slow)])
def test_a_task_whose_first_attempt_fails_after_its_work_leaves_no_trace(
    job: str, then: str, driver: Driver, out: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    hold = Hold(tmp_path / "hold")
    driver.run(job, **asked(job, out), hold=hold.at(half(job), then))
    assert hold.attempts(hold.first().number) > 1
    assert outcome(job, out) == expected[job]


# a file that is removed


def test_a_log_file_removed_in_mid_read_fails_the_query_by_default(cluster: Cluster, tmp_path: Path, expected: dict[str, Any]) -> None:
    # with one core the held task blocks all later ones, so the file, which is not in the first task, is removed before it is read
    with Driver(cluster, tmp_path / "driver", **{"spark.cores.max": "1"}) as driver:
        for lenient in (False, True):
            store = unpack(CASE, tmp_path / f"store-{lenient}")
            whole = [row["physical_offset"] for row in expected["export"]]
            last = max(path for path in (store / "commitlog").iterdir() if any(path.read_bytes()))
            hold = Hold(tmp_path / f"hold-{lenient}")
            options = {"failOnDataLoss": str(not lenient).lower(), "useDerivedFiles": "false", "minPartitions": "6"}
            driver.begin("read", store=store, hold=hold.at(0, done=False), **options)
            hold.first()
            last.unlink()
            hold.release()
            if lenient:
                assert driver.result() == [offset for offset in whole if offset < int(last.name)]
            else:
                assert f"{last.name} was removed after the read was planned; failOnDataLoss=false reads the rest" in driver.error()


# the commands


COMMANDS = """
import sys
from mqstore.cli.main import run
for line in sys.stdin:
    words = line.split()
    print(f"{words[1]} {run(words[1:])}", file=sys.stderr, flush=True)
print("the guide's session", flush=True)
exec(sys.argv[1])
"""


@needs_streams
def test_the_commands_and_the_session_of_the_guide_give_on_the_cluster_what_threads_give(
    cluster: Cluster, tmp_path: Path, expected: dict[str, Any]
) -> None:
    unpack(CASE, tmp_path / "store")
    (tmp_path / "keys.txt").write_text("".join(f"{row['topic']}\t{key}\n" for row in expected["export"] for key in row["keys"] or ()))
    lines = [line.replace("spark://127.0.0.1:7077", cluster.url) for line in blocks("sh jobs")[0].splitlines()]
    before = cluster.applications()
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, blocks("python")[0].replace("spark://127.0.0.1:7077", cluster.url)],
        input="\n".join(lines),
        env=cluster.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,  # seven applications, one after the other; each starts a driver's JVM and two executors
    )
    told = [line.rsplit(" ", 1) for line in done.stderr.splitlines() if line.rpartition(" ")[0] in {words.split()[1] for words in lines}]
    assert [*map(tuple, told)] == [(line.split()[1], "0") for line in lines], done.stderr[-3000:]
    listed = sum(queue.max_offset - queue.min_offset for queue in mqstore.open(tmp_path / "store").consume_queues())
    assert done.stdout.partition("the guide's session\n")[2].split() == ["511", str(listed)]
    assert len(cluster.applications() - before) == len(lines) + 1
    assert store_contents(tmp_path / "rebuilt") == expected["rebuild"]
    assert table(tmp_path / "messages") == expected["export"]
    assert outcome("follow", tmp_path / "followed") == expected["follow"]
    lookup(tmp_path / "store", tmp_path / "keys.txt", tmp_path / "threads.parquet", by="scan", threads=2)
    answers = pq.read_table(tmp_path / "answers.parquet")
    assert answers.num_rows > 100
    assert answers.equals(pq.read_table(tmp_path / "threads.parquet"))


@pytest.mark.slow
def test_without_the_package_the_job_ends_with_the_name_of_what_is_missing(cluster: Cluster, tmp_path: Path) -> None:
    with Driver(cluster, tmp_path / "driver", **{"spark.mqstore.ship": "false"}) as driver:
        driver.begin("where")
        assert "No module named 'mqstore'" in driver.error()


# the last one: it leaves all executors of the driver on one worker


@pytest.mark.parametrize(
    "job",
    [
        "export",
        *(
            pytest.param(job, marks=[pytest.mark.slow, *marks])
            for job, marks in (("rebuild", ()), ("follow", [needs_streams]), ("sink", ()))
        ),
    ],
)
def test_a_worker_that_is_killed_with_its_executor_leaves_no_trace(
    job: str, cluster: Cluster, driver: Driver, out: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    def kill(first: Held) -> None:
        cluster.kill_worker(cluster.worker_of(first.executor))
        end_of(first.executor)

    survives(job, driver, out, Hold(tmp_path / "hold"), kill, expected[job])
    cluster.mend()
