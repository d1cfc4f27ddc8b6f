"""The whole-store jobs from the command line, and the demo that shows them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from support.golden import case_named, expected, opened, run_cli, unchanged
from support.stores import Store, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLED = case_named("4.9.3/b-kill9")
TORN = case_named("4.9.3/b3-kill9-torn")


@pytest.fixture(params=["threads", "spark"])
def where(request: pytest.FixtureRequest) -> tuple[object, ...]:
    """Return options that run a job in this process, or on the Spark session of all tests."""
    if request.param == "threads":
        return ("--threads", 2)
    request.getfixturevalue("spark")
    return ("--master", "local[2]")


@pytest.mark.spark
def test_rebuild_completes_the_store_and_reports_its_work(where: tuple[object, ...], tmp_path: Path) -> None:
    store = opened(KILLED)
    with unchanged(store):
        outcome = run_cli("rebuild", store, "--to", tmp_path / "new", "--copy", *where, "-o", "json")
    assert outcome.status == 0, outcome.stderr
    report = outcome.document
    assert (report["messages"], report["queue_entries"], report["ok"]) == (1639, 1639, True)
    assert (report["store"], report["to"]) == (str(store), str(tmp_path / "new"))
    assert run_cli("verify", tmp_path / "new").status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_small_log_is_rebuilt_in_this_process_and_the_command_reports_that(tmp_path: Path) -> None:
    told = run_cli("rebuild", opened(KILLED), "--to", tmp_path / "a")
    words = " ".join(told.stdout.split())  # line breaks depend on the length of the path
    assert re.search(r"with \d+ threads? of this process: less than 10 GiB does not justify starting Spark\.", words)
    report = run_cli("rebuild", opened(KILLED), "--to", tmp_path / "b", "-o", "json").document
    assert report["runs_on"].endswith("of this process")
    assert report["why"] == "less than 10 GiB does not justify starting Spark"


@pytest.mark.spark
def test_a_given_master_or_number_of_threads_is_used(where: tuple[object, ...], tmp_path: Path) -> None:
    report = run_cli("rebuild", opened(KILLED), "--to", tmp_path / "new", *where, "-o", "json").document
    wanted = "2 threads of this process" if where[0] == "--threads" else r"\d+ tasks? of Spark at once"
    assert re.fullmatch(wanted, report["runs_on"])
    assert report["why"] == "as requested"


def test_a_master_and_threads_exclude_each_other(tmp_path: Path) -> None:
    outcome = run_cli("rebuild", opened(KILLED), "--to", tmp_path / "new", "--threads", 1, "--master", "local[1]")
    assert outcome.status == 2
    assert "give only one of them" in outcome.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.spark
@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_export_writes_the_table(form: str, where: tuple[object, ...], tmp_path: Path) -> None:
    store = opened(KILLED)
    with unchanged(store):
        outcome = run_cli("export", store, "--to", tmp_path / "out", "--format", form, "--topic", "orders", *where, "-o", "json")
    assert outcome.status == 0, outcome.stderr
    wanted = [row["physical_offset"] for row in expected(KILLED) if row["topic"] == "orders"]
    files = sorted((tmp_path / "out").rglob(f"*.{form}"))
    if form == "parquet":
        found = [offset for file in files for offset in pq.read_table(file, columns=["physical_offset"]).column(0).to_pylist()]
    elif form == "jsonl":
        found = [json.loads(line)["physical_offset"] for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    else:
        found = [int(row["physical_offset"]) for file in files for row in csv.DictReader(file.open(encoding="utf-8", newline=""))]
    assert sorted(found) == wanted
    assert outcome.document["messages"] == len(wanted)


@pytest.mark.spark
def test_an_archive_is_rebuilt_like_the_directory_in_it(tmp_path: Path) -> None:
    outcome = run_cli("rebuild", KILLED.path / "store.tar.xz", "--to", tmp_path / "new", "--threads", 1, "-o", "json")
    assert outcome.document["messages"] == 1639
    assert run_cli("verify", tmp_path / "new").status == 0


def test_a_log_that_cannot_be_read_completely_is_reported_with_status_1(tmp_path: Path) -> None:
    torn = run_cli("rebuild", opened(TORN), "--to", tmp_path / "torn", "--copy", "--threads", 1)
    assert torn.status == 1
    assert "Left out: the last record of the log" in torn.stdout
    made = Store(tmp_path / "store")
    made.put(*[message("t", bytes(100)) for _ in range(20)])
    made.write()
    made.patch_log(made.puts[7].offset, bytes(4))
    holed = run_cli("rebuild", tmp_path / "store", "--to", tmp_path / "holed", "--threads", 1)
    assert holed.status == 1
    assert "Not read: 1 range of the log" in holed.stdout
    assert "19 messages" in holed.stdout


def test_what_a_rebuild_takes_over_is_repaired_and_the_store_itself_is_not(tmp_path: Path) -> None:
    source = opened(case_named("4.9.3/m-damaged/06-length-fields"))  # with damage in its log, and offsets after the end of their queues
    with unchanged(source):
        rebuilt = run_cli("rebuild", source, "--to", tmp_path / "new", "--check-crc", "--threads", 1)
    assert "config/consumerOffset.json: offsets after the end of their queue are set to it" in " ".join(rebuilt.stdout.split())
    assert "Next: start a broker with this directory" in rebuilt.stdout
    assert run_cli("repair", tmp_path / "new").stdout == f"There is nothing to repair in {tmp_path / 'new'}.\n"


def test_a_job_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for verb in ("rebuild", "export"):
        outcome = run_cli(verb, opened(KILLED), "--to", tmp_path / "there", "--threads", 1)
        assert outcome.status == 2
        assert "exists already" in outcome.stderr
    assert list((tmp_path / "there").iterdir()) == []


def test_progress_is_reported_on_request(tmp_path: Path) -> None:
    asked = run_cli("rebuild", opened(KILLED), "--to", tmp_path / "a", "--threads", 1, "--progress", "-o", "json")
    assert re.search(r"^rebuilding: 100% ", asked.stderr, re.MULTILINE)
    silent = run_cli("rebuild", opened(KILLED), "--to", tmp_path / "b", "--threads", 1, "-o", "json")
    assert silent.stderr == ""


@pytest.mark.spark
def test_the_demo_tells_the_whole_story(spark: SparkSession, tmp_path: Path) -> None:
    outcome = run_cli("demo", "--keep", tmp_path / "story")
    assert outcome.status == 0, outcome.stderr
    told = outcome.stdout
    order = [
        "1  What is in it?",
        "Unclean shutdown",
        "2  What is damaged?",
        "torn-record",
        "3  Why does a query find nothing?",
        "No message for key 'OrderID421' in topic 'orders': after-index-end.",
        "4  Rebuild what is missing.",
        "Rebuilt",
        "5  Ask again.",
        "1 message with key 'OrderID421' in topic 'orders'.",
        "6  The log as a table.",
        "SQL> SELECT topic",
        "orders",
        "7  The other broker: RabbitMQ's queues.",
        "solo.d",
        "8  Queues as a table.",
        "SQL> SELECT queue",
        "9  Queues of version 2.",
        "Converted to version 2",
        "That is all it takes.",
    ]
    places = [told.index(part) for part in order[:1]]
    for part in order[1:]:
        places.append(told.index(part, places[-1]))
    assert {path.name for path in (tmp_path / "story").iterdir()} == {
        "store",
        "rebuilt",
        "messages",
        "msg_stores",
        "queued",
        "msg_stores-v2",
    }
    again = run_cli("demo", "--keep", tmp_path / "story")
    assert again.status == 2
    assert "exists already" in again.stderr


def test_the_stores_of_the_demo_are_golden_stores() -> None:
    from mqstore.cli.demo import ARCHIVE, QUEUES

    assert ARCHIVE.read_bytes() == (TORN.path / "store.tar.xz").read_bytes()
    assert QUEUES.read_bytes() == case_named("3.10.8/e2-gc-interrupted").archive.read_bytes()
