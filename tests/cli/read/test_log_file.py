"""One file of a commit log in place of a store: read as the log only; what the rest of the store would say is unknown, not missing."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.golden import case_named, opened, run_cli

import mqstore
from mqstore.errors import CannotOpenError, MqstoreError, UnsupportedError

STORES = ("4.3.0/a-clean", "4.9.3/b-kill9", "4.9.3/d-rolled", "5.1.4/a-clean", "5.3.3/i-v2-codecs-crc", "5.5.0/a-clean")


def log_files(name: str) -> list[Path]:
    return sorted((opened(case_named(name)) / "commitlog").iterdir())


def second_file() -> Path:
    return log_files("4.9.3/b-kill9")[1]


@pytest.mark.parametrize("name", STORES)
def test_the_messages_of_each_file_are_those_of_the_store_in_that_file_judged_by_their_own_checks(name: str) -> None:
    whole = mqstore.open(opened(case_named(name))).to_arrow().to_pylist()
    for file in log_files(name):
        alone = mqstore.open(file).to_arrow().to_pylist()
        expected = [row for row in whole if row["store_file"] == f"commitlog/{file.name}"]
        assert [row | {"verdict": None} for row in alone] == [row | {"verdict": None} for row in expected]
        assert {row["verdict"] for row in alone} <= {"intact", "damaged"}
        damaged = [row["verdict"] == "damaged" for row in alone]
        assert damaged == [row["verdict"] == "damaged" for row in expected]


@pytest.mark.parametrize("name", STORES)
def test_verify_finds_in_each_file_what_it_finds_there_in_the_store(name: str) -> None:
    whole = mqstore.open(opened(case_named(name))).verify()
    for file in log_files(name):
        report = mqstore.open(file).verify()
        place = f"commitlog/{file.name}"
        assert {(item.offset, item.kind) for item in report.damage} == {
            (item.offset, item.kind) for item in whole.damage if item.file == place
        }
        assert any("are not known" in note for note in report.notes)
        assert not any("key queries" in note for note in report.notes)
        assert not report.coverage.complete


@pytest.mark.parametrize("suffix", [".bin", ".gz", ".bz2", ".xz", ".zst"])
def test_a_renamed_or_compressed_file_is_known_by_its_records(tmp_path: Path, suffix: str) -> None:
    import zstandard

    raw = second_file().read_bytes()
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}
    copy = tmp_path / f"copy{suffix}"
    copy.write_bytes(pack.get(suffix, bytes)(raw))
    store, original = mqstore.open(copy), mqstore.open(second_file())
    assert store.path == copy
    assert store.log.start == original.log.start == int(second_file().name)
    assert store.to_arrow(("physical_offset", "msg_id", "store_file")) == original.to_arrow(("physical_offset", "msg_id", "store_file"))
    assert not store.findings


def test_a_file_with_the_name_of_another_is_a_finding(tmp_path: Path) -> None:
    wrong = shutil.copyfile(second_file(), tmp_path / "00000000000000777777")
    report = mqstore.open(wrong).verify()
    assert [str(item.kind) for item in report.damage] == ["stray-file"]
    assert f"its records are those of {second_file().name}" in report.damage[0].detail


def test_a_torn_file_loses_its_last_record_only(tmp_path: Path) -> None:
    rows = mqstore.open(second_file()).to_arrow(("physical_offset", "size")).to_pylist()
    cut = rows[-1]["physical_offset"] - int(second_file().name) + rows[-1]["size"] // 2
    torn = tmp_path / second_file().name
    torn.write_bytes(second_file().read_bytes()[:cut])
    store = mqstore.open(torn)
    assert store.to_arrow(("physical_offset",)).num_rows == len(rows) - 1
    assert [str(item.kind) for item in store.verify().damage] == ["torn-record"]


@pytest.mark.parametrize("size", [0, 65536])
def test_an_empty_or_unwritten_file_with_the_name_of_a_log_file_has_no_messages(tmp_path: Path, size: int) -> None:
    file = tmp_path / "00000000000000065536"
    file.write_bytes(bytes(size))
    store = mqstore.open(file)
    assert (store.log.start, len(store.messages())) == (65536, 0)
    assert store.verify().ok


def test_inspect_query_find_usage_and_sql_answer_for_one_file() -> None:
    file = second_file()
    found = run_cli("inspect", file, "-o", "json").document
    assert (found["log_only"], found["shutdown"], found["messages"], found["log"]["min_offset"]) == (True, "unknown", None, int(file.name))
    text = run_cli("inspect", file).stdout
    assert "are not known" in text
    assert not [word for word in ("none", "rebuild", "Clean", "mappedFileSize") if word in text]

    row = next(row for row in mqstore.open(file).to_arrow(("topic", "uniq_key", "physical_offset")).to_pylist() if row["uniq_key"])
    answer = run_cli("query", file, "-t", row["topic"], "-k", row["uniq_key"], "-o", "json").document
    assert [each["physical_offset"] for each in answer["messages"]] == [row["physical_offset"]]
    assert answer["complete"] is False

    hits = run_cli("find", file, row["uniq_key"], "--threads", "1", "-o", "jsonl").rows
    assert [(each["verdict"], each["state"], each["indexed"]) for each in hits] == [("intact", "unknown", None)]

    counted = run_cli("usage", file, "--threads", "1", "-o", "json").document
    listed = run_cli("messages", file, "-o", "jsonl").rows
    assert {each["topic"]: each["messages"] for each in counted["by"]["topic"]} == Counter(each["topic"] for each in listed)
    by_verdict = mqstore.open(file).sql("select verdict, count(*) as n from messages group by 1").to_arrow().to_pylist()
    assert {each["verdict"]: each["n"] for each in by_verdict} == Counter(each["verdict"] for each in listed)


@pytest.mark.parametrize(
    "command",
    [
        ["topics"],
        ["groups"],
        ["queue", "orders", "0"],
        ["timers"],
        ["diagnose"],
        ["repair"],
        ["rebuild", "--to", "NEW"],
        ["put", "-t", "orders", "--body", "text"],
        ["messages", "--view", "recovered"],
        ["groups", "--reset", "g", "--topic", "orders", "--to", "earliest"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_what_needs_the_whole_store_says_so(tmp_path: Path, command: list[str]) -> None:
    file = shutil.copyfile(second_file(), tmp_path / second_file().name)
    before = file.read_bytes()
    done = run_cli(command[0], file, *[str(tmp_path / word) if word == "NEW" else word for word in command[1:]])
    assert done.status in (2, 3)
    assert "one file of" in done.stderr
    assert "give the directory of the store" in done.stderr
    assert done.stderr.count("is one file of") == 1
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("consumequeue/*/*/0*", "is a file of the consume queue and holds no messages; give the store"),
        ("index/*", "is a file of the key index and holds no messages; give the store"),
        ("abort", "it is empty"),
        ("checkpoint", "no record of a commit log is in it"),
    ],
)
def test_other_files_of_a_store_are_named(place: str, words: str) -> None:
    file = next(iter(sorted(opened(case_named("4.9.3/b-kill9")).glob(place))))
    with pytest.raises(MqstoreError) as raised:
        mqstore.open(file)
    assert words in str(raised.value)


def test_a_file_of_rabbitmq_and_what_is_no_log_are_answered_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "0.rdq").write_bytes(bytes(64))
    with pytest.raises(UnsupportedError, match=r"one file of a RabbitMQ message store.*mqstore salvage .*0\.rdq --to OUT"):
        mqstore.open(tmp_path / "0.rdq")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "notes.txt.gz").write_bytes(gzip.compress(b"hello"))
    (tmp_path / "empty").touch()
    with pytest.raises(CannotOpenError, match="no record of a commit log is in it"):
        mqstore.open(tmp_path / "notes.txt")
    with pytest.raises(CannotOpenError, match=r"notes.txt.gz is unpacked, but notes.txt is a file"):
        mqstore.open(tmp_path / "notes.txt.gz")
    with pytest.raises(CannotOpenError, match="it is empty"):
        mqstore.open(tmp_path / "empty")


def test_it_shows_what_it_is() -> None:
    shown = repr(mqstore.open(second_file()))
    assert "RocketMQ log file" in shown
    assert "not known" in shown


def test_a_view_of_one_file_says_that_its_queues_are_not_known() -> None:
    store = mqstore.open(second_file())
    assert repr(store.view()) == f"<disk view of RocketMQ log file {str(second_file())!r}: queues not known>"
    assert "not known" in store.view()._repr_html_()  # type: ignore[attr-defined]
