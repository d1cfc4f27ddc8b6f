"""`lookup` from the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.golden import case_named, expected, keys_of, opened, run_cli, unchanged
from support.stores import Store, message

KILLED = case_named("4.9.3/b-kill9")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text("late\tOrderID392\norders\tOrderID1\norders\tnope\nlate\tOrderID392\n")
    return path


@pytest.fixture(params=["threads", "spark"])
def where(request: pytest.FixtureRequest) -> tuple[object, ...]:
    """Return options that run a job in this process, or on the Spark session of all tests."""
    if request.param == "threads":
        return ("--threads", 2)
    request.getfixturevalue("spark")
    return ("--master", "local[2]")


@pytest.mark.spark
@pytest.mark.parametrize("by", ["auto", "probe", "sweep", "scan"])
def test_lookup_writes_the_messages_and_reports_its_work(by: str, where: tuple[object, ...], keys: Path, tmp_path: Path) -> None:
    store = opened(KILLED)
    with unchanged(store):
        outcome = run_cli("lookup", store, "--keys", keys, "--to", tmp_path / "out", "--by", by, *where, "-o", "json")
    assert outcome.status == 0, outcome.stderr
    report = outcome.document
    wanted = {
        (topic, key, row["physical_offset"])
        for row in expected(KILLED)
        for topic, key in (("late", "OrderID392"), ("orders", "OrderID1"))
        if row["topic"] == topic and key in keys_of(row)
    }
    rows = [row for path in sorted((tmp_path / "out").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert {(row["topic"], row["key"], row["physical_offset"]) for row in rows if row["found"]} == wanted
    assert [row["key"] for row in rows if not row["found"]] == ["nope"]
    assert (report["keys"], report["repeated_keys"], report["found_keys"], report["hits"]) == (3, 1, 2, len(wanted))
    assert report["misses"] == {"not-in-store" if by == "scan" else "no-index-entry": 1}
    assert report["plan"] == (by if by != "auto" else "probe")
    assert (report["store"], report["to"]) == (str(store), str(tmp_path / "out"))


def test_text_output_shows_what_was_found_what_was_not_and_how(keys: Path, tmp_path: Path) -> None:
    outcome = run_cli("lookup", opened(KILLED), "--keys", keys, "--to", tmp_path / "out.jsonl", "--by", "scan")
    assert outcome.status == 0
    told = "".join(outcome.stdout.split())  # line breaks depend on the length of the path
    assert told.startswith(f"Written to {tmp_path}/out.jsonl 3 keys (1 repetition left out): 2 messages of 2 keys.".replace(" ", ""))
    assert "not-in-store1" in told
    assert "Byscan:requested;765,528bytesoflogarereadfor3keys." in told
    assert len((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()) == 3


def test_machine_formats_are_one_document(keys: Path, tmp_path: Path) -> None:
    lines = run_cli("lookup", opened(KILLED), "--keys", keys, "--to", tmp_path / "a", "-o", "jsonl")
    cells = run_cli("lookup", opened(KILLED), "--keys", keys, "--to", tmp_path / "b", "-o", "csv")
    assert len(lines.rows) == 1
    assert dict(csv.reader(io.StringIO(cells.stdout)))["hits"] == str(lines.rows[0]["hits"]) == "2"


def test_columns_and_the_newest_messages_can_be_chosen(keys: Path, tmp_path: Path) -> None:
    keys.write_text("orders\tOrderID1\n")
    to = tmp_path / "out.jsonl"
    outcome = run_cli("lookup", opened(KILLED), "--keys", keys, "--to", to, "--columns", "tags,physical_offset", "--max-per-key", 1)
    assert outcome.status == 0, outcome.stderr
    (row,) = [json.loads(line) for line in to.read_text(encoding="utf-8").splitlines()]
    assert list(row) == ["topic", "key", "found", "tags", "physical_offset", "reason"]


def test_an_archive_is_searched_like_the_directory_in_it(keys: Path, tmp_path: Path) -> None:
    outcome = run_cli("lookup", KILLED.path / "store.tar.xz", "--keys", keys, "--to", tmp_path / "out", "-o", "json")
    assert outcome.document["hits"] == 2


def test_damage_gives_status_1_and_failfast_a_one_sentence_error(tmp_path: Path) -> None:
    made = Store(tmp_path / "store")
    made.put(*[message("t", bytes(100), keys=f"k{number}") for number in range(20)])
    made.write()
    made.patch_log(made.puts[7].offset, bytes(4))
    (tmp_path / "keys").write_text("t\tk3\nt\tk7\n")
    base = ("lookup", tmp_path / "store", "--keys", tmp_path / "keys", "--by", "scan", "--to")
    holed = run_cli(*base, tmp_path / "a")
    assert holed.status == 1
    assert "Not read: 1 range of the log" in holed.stdout
    assert "key-never-seen" in holed.stdout
    failed = run_cli(*base, tmp_path / "b", "--mode", "failfast")
    assert failed.status == 2
    assert failed.stderr.startswith("mqstore: commitlog/00000000000000000000 is damaged at ")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--by", "magic"), "magic"),
        (("--mode", "loud"), "loud"),
        (("--max-per-key", "0"), "max-per-key"),
        (("--columns", "colour"), "there is no column 'colour'"),
        (("--threads", "2", "--master", "local[1]"), "give only one of them"),
        (("--keys", "missing"), "missing cannot be read: no such file"),
        (("--to", "answers.csv"), "choose such a name"),
    ],
)
def test_an_impossible_request_gives_a_one_sentence_error_and_status_2(
    options: tuple[str, ...], sentence: str, keys: Path, tmp_path: Path
) -> None:
    given = dict(zip(options[::2], options[1::2], strict=True))
    words = {"--keys": str(keys), "--to": str(tmp_path / "out")} | given
    outcome = run_cli("lookup", opened(KILLED), *(word for pair in words.items() for word in pair))
    assert outcome.status == 2
    assert sentence in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["keys.txt"]


def test_bad_lines_of_the_keys_file_are_named_by_number(keys: Path, tmp_path: Path) -> None:
    keys.write_text("t\tk\njust-a-key\n")
    outcome = run_cli("lookup", opened(KILLED), "--keys", keys, "--to", tmp_path / "out")
    assert outcome.status == 2
    assert "line 2 has no tab" in outcome.stderr
