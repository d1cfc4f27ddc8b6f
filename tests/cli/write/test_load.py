"""`load`: tables of messages into a store, and the reported position when it has to stop."""

from __future__ import annotations

import base64
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.golden import Outcome, case_named, opened, run_cli

from mqstore.jobs.export import export
from mqstore.rocketmq import MessageStore

SMALL = "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=100\nmaxIndexNum=400\n"
NEW = {"physical_offset", "queue_offset", "store_timestamp", "msg_id", "store_file", "size", "sys_flag", "body_crc", "verdict"}
STORES = ["4.9.3/a-clean-small", "5.3.3/g-clean-small", "5.3.3/i-v2-codecs-crc"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Write broker settings that give small files."""
    path = tmp_path / "broker.conf"
    path.write_text(SMALL)
    return path


def sentence(outcome: Outcome, status: int = 2) -> str:
    """Return the one-sentence error of a command that failed."""
    assert outcome.status == status, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.count("\n") == 1, outcome
    assert "Traceback" not in outcome.stderr
    return outcome.stderr.removeprefix("mqstore: ").strip()


def lines(path: Path, *rows: object) -> Path:
    """Write a file of JSON lines; strings are written unchanged."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def load(root: Path, source: object, *more: object) -> Outcome:
    return run_cli("load", root, "--from", source, *more)


def bodies(root: Path) -> list[str]:
    return [row["body"] for row in run_cli("messages", root, "-o", "jsonl", "--body", "text").rows]


def kept(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fields of rows that stay the same in another store; a checksum over the whole record does not."""
    found = [{name: value for name, value in row.items() if name not in NEW} for row in rows]
    for row in found:
        row["properties"] = {name: value for name, value in (row["properties"] or {}).items() if name != "__CRC32#"}
    return found


def plain(number: int) -> Iterator[dict[str, object]]:
    for k in range(number):
        yield {"topic": "orders", "queue_id": k % 3, "keys": f"k{k}", "body": f"body {k}"}


# round trips


def plain_text(row: dict[str, Any]) -> bool:
    """Return whether a row with its body in base64 can be printed with the body as text."""
    body = base64.b64decode(row["body"])
    return body.decode("utf-8", "replace").encode() == body


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("form", ["base64", "text"])
def test_what_messages_prints_is_loaded_as_it_was(name: str, form: str, tmp_path: Path) -> None:
    case = case_named(name)
    wanted = run_cli("messages", opened(case), "-o", "jsonl", "--body", "base64").rows
    rows = wanted
    if form == "text":
        wanted = [row for row in wanted if plain_text(row)]
        rows = [{**row, "body": base64.b64decode(row["body"]).decode()} for row in wanted]
        assert wanted
    lines(tmp_path / "rows.jsonl", *rows)
    told = load(tmp_path / "new", tmp_path / "rows.jsonl", "--create", "--config", case.config, "--as", case.version, "-o", "json")
    assert told.status == 0, told
    found = run_cli("messages", tmp_path / "new", "-o", "jsonl", "--body", "base64").rows
    assert kept(found) == kept(wanted)
    assert told.document["messages"] == len(wanted)
    assert told.document["bytes"] == sum(row["size"] for row in found)
    assert told.document["first_physical_offset"] == found[0]["physical_offset"]
    assert told.document["last_physical_offset"] == found[-1]["physical_offset"]
    assert run_cli("verify", tmp_path / "new").status == 0


def test_a_checksum_of_another_store_is_not_copied(tmp_path: Path) -> None:
    case = case_named("5.3.3/i-v2-codecs-crc")
    rows = run_cli("messages", opened(case), "-o", "jsonl", "--body", "base64").rows
    assert all("__CRC32#" in row["properties"] for row in rows)
    lines(tmp_path / "rows.jsonl", *rows)
    assert load(tmp_path / "new", tmp_path / "rows.jsonl", "--create").status == 0
    found = run_cli("messages", tmp_path / "new", "-o", "jsonl", "--body", "base64").rows
    assert not any("__CRC32#" in row["properties"] for row in found)
    assert run_cli("verify", tmp_path / "new").status == 0


@pytest.mark.parametrize("by", [(), ("topic", "queue_id")])
def test_what_export_writes_is_loaded_as_it_was(by: tuple[str, ...], tmp_path: Path) -> None:
    case = case_named("4.9.3/a-clean-small")
    export(opened(case), tmp_path / "table", threads=1, splits=3, partition_by=by)
    told = load(tmp_path / "new", tmp_path / "table", "--create", "--config", case.config, "--as", case.version)
    assert told.status == 0, told
    order = lambda row: (row["topic"], row["queue_id"], row["queue_offset"])  # noqa: E731
    wanted = run_cli("messages", opened(case), "-o", "jsonl", "--body", "base64").rows
    found = run_cli("messages", tmp_path / "new", "-o", "jsonl", "--body", "base64").rows
    if by:
        wanted, found = sorted(wanted, key=order), sorted(found, key=order)
    assert kept(found) == kept(wanted)


def test_one_parquet_file_is_loaded_and_rows_are_skipped_by_number(tmp_path: Path, small: Path) -> None:
    table = pa.table({"topic": ["a"] * 100, "body": [b"%d" % k for k in range(100)], "keys": [[f"k{k}"] for k in range(100)]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=30)
    told = load(tmp_path / "new", tmp_path / "rows.parquet", "--create", "--skip", 65, "--config", small)
    assert "Loaded 35 messages" in told.stdout
    assert bodies(tmp_path / "new") == [str(k) for k in range(65, 100)]


def test_a_delayed_message_is_loaded_as_delayed_and_a_delivered_one_as_delivered(tmp_path: Path, small: Path) -> None:
    first = tmp_path / "first"
    run_cli("put", first, "-t", "orders", "--body", "later", "--delay", 3, "--create", "--config", small)
    waiting = run_cli("messages", first, "-o", "jsonl", "--body", "base64").rows[0]
    delivered = {**waiting, "topic": "orders", "queue_id": 0}
    lines(tmp_path / "rows.jsonl", waiting, delivered)
    assert load(tmp_path / "new", tmp_path / "rows.jsonl", "--create", "--config", small).status == 0
    found = run_cli("messages", tmp_path / "new", "-o", "jsonl", "--body", "base64").rows
    assert [(row["topic"], row["queue_id"]) for row in found] == [("SCHEDULE_TOPIC_XXXX", 2), ("orders", 0)]
    assert [row["properties"] for row in found] == [waiting["properties"]] * 2


def test_a_new_message_that_asks_for_a_delay_gets_it(tmp_path: Path, small: Path) -> None:
    lines(tmp_path / "rows.jsonl", {"topic": "orders", "body": "later", "properties": {"DELAY": "2"}})
    assert load(tmp_path / "new", tmp_path / "rows.jsonl", "--create", "--config", small).status == 0
    assert run_cli("messages", tmp_path / "new", "-o", "jsonl").rows[0]["topic"] == "SCHEDULE_TOPIC_XXXX"


# lines


def test_topic_and_body_are_enough_for_a_line(tmp_path: Path, small: Path) -> None:
    source = lines(tmp_path / "rows.jsonl", {"topic": "a", "body": "bezahlt ✓"}, "", {"topic": "a"}, {"topic": "a", "keys": ["a", "b"]})
    told = load(tmp_path / "new", source, "--create", "--config", small)
    assert told.status == 0, told
    assert bodies(tmp_path / "new") == ["bezahlt ✓", "", ""]
    assert run_cli("messages", tmp_path / "new", "-o", "jsonl").rows[2]["keys"] == "a b"


def test_lines_come_through_a_pipe(tmp_path: Path, small: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in plain(20_000))
    argv = [sys.executable, "-m", "mqstore", "load", str(tmp_path / "new"), "--from", "-", "--create", "--config", str(small), "--progress"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "Loaded 20,000 messages" in done.stdout
    assert run_cli("verify", tmp_path / "new").status == 0
    assert bodies(tmp_path / "new") == [f"body {k}" for k in range(20_000)]


def test_a_named_pipe_is_read_to_its_end(tmp_path: Path, small: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    argv = [sys.executable, "-m", "mqstore", "load", str(tmp_path / "new"), "--from", str(pipe), "--create", "--config", str(small)]
    loading = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    lines(pipe, *plain(10))
    assert "Loaded 10 messages" in loading.communicate(timeout=300)[0]
    assert bodies(tmp_path / "new") == [f"body {k}" for k in range(10)]


@pytest.mark.long
def test_memory_does_not_grow_with_what_is_loaded(tmp_path: Path) -> None:
    program = """
import json, sys
from mqstore.cli.main import run
def peak():  # not ru_maxrss: a process inherits that of its parent
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
root, source = sys.argv[1:]
assert run(["load", root, "--from", source, "--create"]) == 0
before = peak()
for _ in range(3):
    assert run(["load", root, "--from", source]) == 0
print(peak() - before)
"""
    source = lines(tmp_path / "rows.jsonl", *({"topic": "orders", "body": "x" * 4000} for _ in range(25_000)))
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "new"), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    # 300 MB more of log; up to two ranges of 64 MiB between syncs may be mapped at once, and allocators keep some memory
    assert int(done.stdout.split()[-1]) < 200 << 10


def test_a_body_is_base64_if_the_line_says_so(tmp_path: Path, small: Path) -> None:
    lines(tmp_path / "rows.jsonl", {"topic": "a", "body": "cGFpZA=="})
    assert load(tmp_path / "new", tmp_path / "rows.jsonl", "--create", "--config", small, "--body", "base64").status == 0
    assert load(tmp_path / "new", tmp_path / "rows.jsonl", "--config", small).status == 0
    assert bodies(tmp_path / "new") == ["paid", "cGFpZA=="]


def test_messages_are_appended_after_the_existing_ones(tmp_path: Path, small: Path) -> None:
    run_cli("put", tmp_path / "new", "-t", "orders", "--body", "first", "--create", "--config", small)
    lines(tmp_path / "rows.jsonl", {"topic": "orders", "body": "second"})
    assert load(tmp_path / "new", tmp_path / "rows.jsonl", "--config", small).status == 0
    assert [row["queue_offset"] for row in run_cli("messages", tmp_path / "new", "-o", "jsonl").rows] == [0, 1]


def test_damaged_and_duplicate_rows_are_counted_in_the_report(tmp_path: Path, small: Path) -> None:
    rows = [{"topic": "a", "body": "x", "verdict": verdict} for verdict in ("intact", "damaged", "duplicate")]
    lines(tmp_path / "rows.jsonl", *rows)
    told = load(tmp_path / "new", tmp_path / "rows.jsonl", "--create", "--config", small)
    assert "2 rows had the verdict damaged or duplicate" in told.stderr


def test_an_empty_file_loads_nothing(tmp_path: Path, small: Path) -> None:
    lines(tmp_path / "rows.jsonl")
    told = load(tmp_path / "new", tmp_path / "rows.jsonl", "--create", "--config", small)
    assert told.status == 0
    assert "nothing was loaded" in " ".join(told.stdout.split())


# bad input


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "it is not a JSON object"),
        ('[{"topic": "a"}]', "JSON lines are wanted"),
        ("17", "it is not a JSON object"),
        ({"topic": "a", "boddy": "x"}, "there is no column 'boddy'"),
        ({"body": "x"}, "it names no topic"),
        ({"topic": 7}, "column topic must be text, not 7"),
        ({"topic": "a/b"}, "column topic: 'a/b' cannot be the name of a directory"),
        ({"topic": ".."}, "column topic: '..' cannot be the name of a directory"),
        ({"topic": "t" * 300}, "column topic: a topic of 300 bytes is longer"),
        ({"topic": "a", "queue_id": "3"}, 'column queue_id must be a whole number of 64 bits, not "3"'),
        ({"topic": "a", "queue_id": -1}, "column queue_id: a queue id is not negative"),
        ({"topic": "a", "queue_id": 1 << 40}, "column queue_id: 1099511627776 does not fit"),
        ({"topic": "a", "flag": True}, "column flag must be a whole number of 64 bits, not true"),
        ({"topic": "a", "born_timestamp": 1 << 70}, "column born_timestamp must be a whole number of 64 bits"),
        ({"topic": "a", "born_host": "nowhere"}, "column born_host: 'nowhere' is not ip:port"),
        ({"topic": "a", "properties": "k=v"}, "column properties must be an object of texts"),
        ({"topic": "a", "properties": {"k": 1}}, "column properties must be text, not 1"),
        ({"topic": "a", "properties": {"k": "v" * 40_000}}, "column properties: a text of 40003 bytes"),
        ({"topic": "a", "properties": {"k": "\x02"}}, "column properties: a byte 02"),
        ({"topic": "a", "body": 1}, "column body must be text, not 1"),
        ('{"topic": "a", "body": "\\ud800"}', "column body holds half a character"),
        ({"topic": "a", "body": "x" * 70_000}, "column body: a record of 70"),
        ({"topic": "a", "body": "x", "body_sha256": "00"}, "its body fits body_sha256 neither as base64 nor as text"),
        ({"topic": "a", "body_len": 4, "body_sha256": "00"}, "without its body; print it with --body base64"),
        ({"topic": "a", "properties": {"DELAY": "soon"}}, "DELAY is 'soon', which is not a delay level"),
    ],
)
def test_a_bad_line_is_named_and_everything_before_it_is_stored(tmp_path: Path, small: Path, line: object, told: str) -> None:
    rows = list(plain(5))
    source = lines(tmp_path / "rows.jsonl", *rows[:3], "", line, *rows[3:])
    said = sentence(load(tmp_path / "new", source, "--create", "--config", small))
    assert said.startswith(f"{source}, line 5: "), said
    assert told in said
    assert said.endswith("; 3 messages are stored: correct line 5 and continue with --skip 4"), said
    assert bodies(tmp_path / "new") == ["body 0", "body 1", "body 2"]
    assert not (tmp_path / "new" / "abort").exists()
    lines(source, *rows[:3], "", {"topic": "orders", "body": "mended"}, *rows[3:])
    assert load(tmp_path / "new", source, "--skip", 4).status == 0
    assert bodies(tmp_path / "new") == ["body 0", "body 1", "body 2", "mended", "body 3", "body 4"]


def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path, small: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"topic": "a"}\n{"topic": "\xff"}\n')
    assert "line 2: it is not UTF-8 at byte 11; 1 message is stored" in sentence(
        load(tmp_path / "new", tmp_path / "rows.jsonl", "--create", "--config", small)
    )


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"topic": ["a"], "colour": [1]}, "there is no column 'colour'"),
        ({"body": [b"a"]}, "there is no column topic"),
        ({"topic": ["a"], "physical_offset": [0]}, "without their bodies"),
    ],
)
def test_parquet_with_wrong_columns_is_refused_before_a_store_is_created(tmp_path: Path, table: dict[str, list[Any]], told: str) -> None:
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    assert told in sentence(load(tmp_path / "new", tmp_path / "rows.parquet", "--create"))
    assert not (tmp_path / "new").exists()


def test_a_row_whose_body_its_store_had_lost_is_named(tmp_path: Path, small: Path) -> None:
    pq.write_table(pa.table({"topic": ["a", "b"], "physical_offset": [0, 100], "body": [b"x", None]}), tmp_path / "rows.parquet")
    said = sentence(load(tmp_path / "new", tmp_path / "rows.parquet", "--create", "--config", small))
    assert "row 2: the store it comes from could not read its body" in said
    assert "1 message is stored: correct row 2 and continue with --skip 1" in said


def test_a_source_that_cannot_be_read_creates_no_store(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in sentence(load(tmp_path / "new", tmp_path / "none", "--create"))
    (tmp_path / "empty").mkdir()
    assert "contains no Parquet files" in sentence(load(tmp_path / "new", tmp_path / "empty", "--create"))
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    assert "cannot be read as Parquet" in sentence(load(tmp_path / "new", tmp_path / "cut.parquet", "--create"))
    assert not (tmp_path / "new").exists()


def test_without_create_no_store_is_created(tmp_path: Path) -> None:
    assert "--create creates a store there" in sentence(load(tmp_path / "new", lines(tmp_path / "rows.jsonl", *plain(1))))
    assert not (tmp_path / "new").exists()


def test_a_store_that_is_open_elsewhere_is_left_alone(tmp_path: Path, small: Path) -> None:
    source = lines(tmp_path / "rows.jsonl", *plain(2))
    load(tmp_path / "new", source, "--create", "--config", small)
    with MessageStore.open(tmp_path / "new"):
        argv = [sys.executable, "-m", "mqstore", "load", str(tmp_path / "new"), "--from", str(source)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is in use by another process" in done.stderr
    assert len(bodies(tmp_path / "new")) == 2


@pytest.mark.parametrize("room", [0, 1, 3, 6])
def test_on_a_full_disk_what_fitted_is_stored_and_the_rest_can_follow(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    source = lines(tmp_path / "rows.jsonl", *({"topic": "orders", "body": f"{k:0200d}"} for k in range(2000)))
    real, calls = os.posix_fallocate, []

    def reserve(descriptor: int, start: int, length: int) -> None:
        calls.append(length)
        if len(calls) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, start, length)

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", reserve)
        said = sentence(load(tmp_path / "new", source, "--create", "--config", small))
    assert "free some space" in said
    found = len(bodies(tmp_path / "new"))
    assert found < 2000
    assert (found > 0) is (room > 0)
    assert f"; {found:,} messages are stored, all up to line {found} of {source}" in said
    assert f"continue with --skip {found}" in said
    assert load(tmp_path / "new", source, "--skip", found, "--config", small).status == 0
    assert bodies(tmp_path / "new") == [f"{k:0200d}" for k in range(2000)]
    assert run_cli("verify", tmp_path / "new").status == 0


# termination by a signal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_stored_and_closes_the_store_cleanly(tmp_path: Path, small: Path, number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "mqstore", "load", str(tmp_path / "new"), "--from", "-", "--create", "--config", str(small)]
    loading = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert loading.stdin is not None
    loading.stdin.write("".join(json.dumps(row) + "\n" for row in plain(30_000)).encode())
    loading.stdin.flush()
    end = time.monotonic() + 60
    while not list(tmp_path.glob("new/commitlog/*")):
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.5)
    loading.send_signal(number)  # while it waits for more lines or stores some
    out, err = loading.communicate(timeout=300)
    assert loading.returncode == 130, (out, err)
    found = len(bodies(tmp_path / "new"))
    assert found > 0
    assert err.decode().strip() == (
        f"mqstore: interrupted; {found:,} messages are stored, all up to line {found} of standard input: continue with --skip {found}"
    )
    assert not (tmp_path / "new" / "abort").exists()
    assert bodies(tmp_path / "new") == [f"body {k}" for k in range(found)]
    assert run_cli("verify", tmp_path / "new").status == 0


def test_a_killed_load_loses_no_line_that_its_store_holds(tmp_path: Path, small: Path) -> None:
    source = lines(tmp_path / "rows.jsonl", *plain(60_000))
    argv = [sys.executable, "-m", "mqstore", "load", str(tmp_path / "new"), "--from", str(source), "--create", "--config", str(small)]
    loading = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list(tmp_path.glob("new/commitlog/*"))) < 3 and loading.poll() is None:
        time.sleep(0.005)
    loading.kill()
    loading.wait()
    lines(tmp_path / "more.jsonl", {"topic": "orders", "body": "after"})
    # the kill may leave an index file that does not show its geometry yet: the settings of the first run are given again
    assert load(tmp_path / "new", tmp_path / "more.jsonl", "--config", small).status == 0
    found = bodies(tmp_path / "new")
    assert found == [*(f"body {k}" for k in range(len(found) - 1)), "after"]


def test_an_index_file_that_a_kill_left_empty_is_continued_with_the_configuration(tmp_path: Path, small: Path) -> None:
    new = tmp_path / "new"
    assert load(new, lines(tmp_path / "rows.jsonl", *plain(20)), "--create", "--config", small).status == 0
    (new / "abort").touch()
    (index,) = (new / "index").iterdir()
    index.write_bytes(bytes(index.stat().st_size))
    more = lines(tmp_path / "more.jsonl", {"topic": "orders", "body": "after", "keys": "last"})
    assert "--config" in sentence(load(new, more))
    assert load(new, more, "--config", small).status == 0
    assert bodies(new) == [*(f"body {k}" for k in range(20)), "after"]
    assert [row["body"] for row in run_cli("query", new, "-t", "orders", "-k", "last", "-o", "jsonl", "--body", "text").rows] == ["after"]
