"""Carving as a job: golden stores of both brokers, cut and scattered, give each whole message once; resumed and on Spark the same."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import quorum
from support.golden import CASES, FURTHER, OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, case_named, opened, run_cli
from support.images import files_of, fragments, noise_of, shuffled_image
from support.rabbitmq_index import term

from mqstore.errors import TargetError
from mqstore.jobs.runner import ThreadRunner
from mqstore.pipeline.spark.runner import SparkRunner
from mqstore.places import open_rocketmq
from mqstore.rabbitmq.format import message_file
from mqstore.rabbitmq.salvage import messages_of, open_wreck
from mqstore.rocketmq.format.record import Record, encode
from mqstore.rocketmq.salvage import rows_of
from mqstore.table.text import columns_for, python_rows, rabbitmq_columns_for
from mqstore.wreck import search as job
from mqstore.wreck.rows import write_carved_rabbitmq_rows, write_carved_rows
from mqstore.wreck.search import Wreck, carve, source_files

pytestmark = pytest.mark.spark_in_all

KILLED = case_named("4.9.3/b-kill9")
RABBIT = ("msg_id", "exchange", "routing_keys", "properties_json", "payload_sha256", "verdict", "store_file", "position")
ROCKET = columns_for("sha256")
LINEAGE = {"store_file", "verdict"}


def comparable(row: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in row.items() if name not in LINEAGE}, sort_keys=True, default=str)


def rocketmq_rows(wreck: Wreck) -> list[dict[str, Any]]:
    return [row for batch in rows_of(wreck.placed, ROCKET, milliseconds=True) for row in python_rows(batch, "sha256")]


def rocketmq_expected(cases: tuple[GoldenCase, ...]) -> list[dict[str, Any]]:
    found = []
    for case in cases:
        store = open_rocketmq(opened(case), config=case.config if case.config.exists() else None)
        found += [row for batch in store.to_batches(ROCKET, milliseconds=True) for row in python_rows(batch, "sha256")]
    return found


def rabbitmq_rows(wreck: Wreck, stage: Path) -> list[dict[str, Any]]:
    """Return the message table by digests of the bodies; stage: a directory to be made."""
    stage.mkdir()
    rows = stage.with_suffix(".jsonl")
    everything = frozenset({"unindexed", "damaged", "duplicate"})
    write_carved_rabbitmq_rows(wreck.found, rows, "jsonl", everything, ThreadRunner(2), stage, keep=False)
    found = []
    for row in map(json.loads, rows.read_text().splitlines()):
        properties = None if row["properties"] is None else json.dumps(row["properties"], ensure_ascii=False)
        digest = None if row["payload_b64"] is None else hashlib.sha256(base64.b64decode(row["payload_b64"])).hexdigest()
        found.append({**row, "properties_json": properties, "payload_sha256": digest})
    return found


def rabbitmq_key(row: dict[str, Any]) -> tuple[Any, ...]:
    # a reply-to of AMQP 1.0 is the address of a queue; since 4.2 a broker delivers its name instead, and a message alone does not say
    # which version stored it
    properties = str(row["properties_json"]).replace('"/queues/', '"')
    return row["msg_id"], row["exchange"], tuple(row["routing_keys"] or ()), properties, row["payload_sha256"]


def rabbitmq_expected(cases: tuple[GoldenCase, ...]) -> Counter[tuple[Any, ...]]:
    """Return all messages whose bytes are in the files, each once: those of whole index entries alone have none."""
    found: set[tuple[Any, ...]] = set()
    for case in cases:
        rows = [row for batch in messages_of(open_wreck(opened(case)), RABBIT) for row in batch.to_pylist()]
        found |= {rabbitmq_key(row) for row in rows if row["payload_sha256"] is not None}
    return Counter(found)


def test_a_write_ahead_log_with_nothing_around_it_gives_its_messages(tmp_path: Path) -> None:
    (log,) = quorum.unpack("4.3.6/a-quorum-mix-kill9", tmp_path / "node").glob("quorum/*/*.wal")
    image = tmp_path / "image"
    image.write_bytes(log.read_bytes())
    assert carve(source_files(image), ThreadRunner(1)).messages == sum(map(len, messages_of(open_wreck(log), ("queue",)))) == 284


def test_only_messages_of_the_same_id_are_copies(tmp_path: Path) -> None:
    ids = [first * 8 + second * 8 for first, second in ((b"a", b"b"), (b"a", b"c"), (b"d", b"b"), (b"a", b"b"))]
    image = tmp_path / "image"
    image.write_bytes(b"".join(message_file.record(own, term(own, b"body")) for own in ids))
    rows = rabbitmq_rows(carve(source_files(image), ThreadRunner(1)), tmp_path / "stage")
    assert [row["verdict"] for row in rows] == ["duplicate"] + ["unindexed"] * 3


@pytest.mark.parametrize("case", [*RABBITMQ, *OTHER_RABBITMQ], ids=case_id)
def test_an_image_of_a_rabbitmq_store_gives_each_message_once_with_its_fields(case: GoldenCase, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(shuffled_image(files_of([case]), 5))
    wreck = carve(source_files(image), ThreadRunner(1), split=200_000)
    rows = rabbitmq_rows(wreck, tmp_path / "messages")
    assert not wreck.records
    assert {row["verdict"] for row in rows} <= {"unindexed", "duplicate"}
    assert Counter(rabbitmq_key(row) for row in rows if row["verdict"] != "duplicate") == rabbitmq_expected((case,))
    assert {row["store_file"] for row in rows} == {"image"}
    raw = image.read_bytes()
    places = sorted(row["position"] for row in rows)
    for row in rows[:50]:  # where it says that it found a message, this one is
        following = places[places.index(row["position"]) + 1 :]
        assert bytes.fromhex(row["msg_id"]) in raw[row["position"] : following[0] if following else None]


def test_the_messages_of_several_files_of_a_rabbitmq_store_are_rows_together(tmp_path: Path) -> None:
    image = shuffled_image(files_of([case_named("3.10.8/a-small-clean")]), 5)
    files = [tmp_path / name for name in ("one", "two", "three")]
    for file in files:
        file.write_bytes(image)
    wreck = carve([each for file in files for each in source_files(file)], ThreadRunner(1), split=200_000)
    found = Counter(row["store_file"] for row in rabbitmq_rows(wreck, tmp_path / "messages"))
    assert found == dict.fromkeys(("one", "two", "three"), found["one"])
    assert found["one"] > 0


@pytest.mark.long
def test_all_golden_stores_of_both_brokers_in_one_image(tmp_path: Path) -> None:
    """Every file of every store in random order between noise: every whole message once, with its fields, by broker."""
    rocket = tuple(case for case in (*CASES, *FURTHER) if case.kind == "plain" and (opened(case) / "commitlog").is_dir())
    rabbit = (*RABBITMQ, *OTHER_RABBITMQ)
    image = tmp_path / "image"
    image.write_bytes(shuffled_image([*files_of(rocket, "commitlog"), *files_of(rabbit)], 17))
    wreck = carve(source_files(image), ThreadRunner(2), split=1_000_003)
    found = Counter(comparable(row) for row in rocketmq_rows(wreck) if row["verdict"] != "duplicate")
    assert found == Counter({comparable(row): 1 for row in rocketmq_expected(rocket)})
    rows = rabbitmq_rows(wreck, tmp_path / "messages")
    assert Counter(rabbitmq_key(row) for row in rows if row["verdict"] != "duplicate") == rabbitmq_expected(rabbit)


def scattered(seed: int) -> tuple[bytes, set[tuple[str, int, int]]]:
    """Return an image of fragments of the files of both brokers, and which ranges of which file are whole in it."""
    rng = random.Random(seed)
    files = [*files_of([KILLED], "commitlog"), *files_of([case_named("3.10.8/g1-v2-small-clean")])]
    pieces = [(str(path), low, raw) for path in files for low, raw in fragments(path.read_bytes(), rng, 4)]
    rng.shuffle(pieces)
    image = b"".join(noise_of(rng, 3000) + raw + b"\xfe" for _, _, raw in pieces)
    return image, {(path, low, low + len(raw)) for path, low, raw in pieces}


@pytest.mark.parametrize("seed", range(3))
def test_files_cut_at_random_points_give_what_no_cut_goes_through(seed: int, tmp_path: Path) -> None:
    image = tmp_path / "image"
    raw, ranges = scattered(seed)
    image.write_bytes(raw)
    wreck = carve(source_files(image), ThreadRunner(1), split=65_536)
    rows = rocketmq_rows(wreck)
    logs = [(int(Path(path).name), low, high) for path, low, high in ranges if "/commitlog/" in path]
    bounds = [(start + low, start + high) for start, low, high in logs]
    whole = [
        row
        for row in rocketmq_expected((KILLED,))
        if any(low <= row["physical_offset"] and row["physical_offset"] + row["size"] <= high for low, high in bounds)
    ]
    assert {comparable(row) for row in whole} <= {comparable(row) for row in rows}
    places = {row["physical_offset"] for row in whole}
    # a cut through the properties, the last part of a record, leaves its frame whole
    assert {row["verdict"] for row in rows if row["physical_offset"] not in places} <= {"damaged"}
    assert Counter(row["physical_offset"] for row in rows if row["verdict"] == "intact").most_common(1)[0][1] == 1
    found = rabbitmq_rows(wreck, tmp_path / "messages")
    # no more than the store has; how many a cut went through is the same for every split, which test_carver proves
    expected = rabbitmq_expected((case_named("3.10.8/g1-v2-small-clean"),))
    assert {rabbitmq_key(row) for row in found} <= set(expected)
    assert len(found) > len(expected) / 2


def write(wreck: Wreck, to: Path, format: str, runner: Any, stage: Path, *, keep: bool = False) -> bytes:  # noqa: A002
    stage.mkdir(exist_ok=True)
    everything = frozenset({"intact", "damaged", "duplicate"})
    write_carved_rows(wreck.placed, to, format, everything, runner, stage, keep=keep)
    return to.read_bytes()


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_run_that_was_killed_goes_on_and_writes_the_same_bytes(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: A002
    monkeypatch.setattr("mqstore.wreck.rows.FRAGMENT_RECORDS", 200)
    image = tmp_path / "image"
    image.write_bytes(scattered(1)[0])
    files = source_files(image)
    undisturbed = carve(files, ThreadRunner(2), split=100_000)
    wanted = write(undisturbed, tmp_path / f"wanted.{format}", format, ThreadRunner(2), tmp_path / "other")
    stage = tmp_path / "stage"
    stage.mkdir()
    searched = Counter[int]()
    search = job.carve_range

    def dying(image: Any, start: int, stop: int) -> Any:
        """Die after each fourth split."""
        searched[start] += 1
        if sum(searched.values()) % 4 == 0:
            raise KeyboardInterrupt
        return search(image, start, stop)

    monkeypatch.setattr(job, "carve_range", dying)
    for _ in range(20):
        try:
            wreck = carve(files, ThreadRunner(1), stage=stage, split=100_000)
            break
        except KeyboardInterrupt:
            continue
    assert wreck.resumed > 3
    assert max(searched.values()) == 2, "a split that had been searched was searched again"
    (stage / "found-000000").write_bytes((stage / "found-000000").read_bytes()[:-7])  # torn: searched again
    monkeypatch.setattr(job, "carve_range", search)
    wreck = carve(files, ThreadRunner(1), stage=stage, split=100_000)
    left = {key: value for key, value in wreck.as_dict().items() if key not in ("carving_seconds", "splits_resumed", "runs_on")}
    assert left == {key: value for key, value in undisturbed.as_dict().items() if key in left}
    # fragments of rows, too
    whole = tmp_path / f"first.{format}"
    assert write(wreck, whole, format, ThreadRunner(1), stage, keep=True) == wanted
    (stage / "rows-000001").write_bytes(b"torn")
    kept = (stage / "rows-000000").stat().st_mtime_ns
    assert write(wreck, tmp_path / f"second.{format}", format, ThreadRunner(1), stage, keep=True) == wanted
    assert (stage / "rows-000000").stat().st_mtime_ns == kept


@pytest.mark.spark
def test_spark_gives_the_same_bytes_as_threads(spark: Any, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(scattered(2)[0])
    runners = {"threads": ThreadRunner(2), "spark": SparkRunner(spark)}
    written = {}
    for name, runner in runners.items():
        wreck = carve(source_files(image), runner, split=300_000)
        found = [(each.name, each.messages.tolist()) for each in wreck.found]
        rows = write(wreck, tmp_path / f"{name}.jsonl", "jsonl", runner, tmp_path / name)
        table = write(wreck, tmp_path / f"{name}.parquet", "parquet", runner, tmp_path / name)
        written[name] = (found, rows, table, wreck.gap_bytes)
    assert written["threads"] == written["spark"]


def test_a_piece_that_cannot_be_opened_is_reported_and_the_others_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, path in enumerate(files_of([KILLED], "commitlog")[:3]):
        (tmp_path / f"piece{number}").write_bytes(path.read_bytes())
    opening = os.open

    def refused(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).endswith("piece1"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opening(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refused)
    wreck = carve(source_files(tmp_path), ThreadRunner(1))
    assert [(each.file, each.offset, each.length) for each in wreck.unreadable] == [("piece1", 0, (tmp_path / "piece1").stat().st_size)]
    assert {each.stretch.piece.name for each in wreck.placed} == {"piece0", "piece2"}
    assert not wreck.ok


def test_three_thousand_copies_of_one_record_are_one_message_and_its_copies(tmp_path: Path) -> None:
    record = encode(Record("orders", b"body" * 20, physical_offset=4096))
    image = tmp_path / "image"
    image.write_bytes((record + b"\1") * 3000)
    verdicts = Counter(row["verdict"] for row in rocketmq_rows(carve(source_files(image), ThreadRunner(1))))
    assert verdicts == {"intact": 1, "duplicate": 2999}


def test_a_fifo_and_an_endless_device_are_refused_by_the_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for source, what in ((tmp_path / "fifo", "is a FIFO"), (Path("/dev/zero"), "is a device")):
        done = run_cli("salvage", source, "--to", tmp_path / "out.jsonl")
        assert done.status == 2
        assert what in done.stderr
        assert done.stderr.count("\n") == 1


def test_nothing_half_made_stays_if_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "image"
    image.write_bytes(scattered(2)[0])
    (tmp_path / "out").mkdir()

    def full(*_: object) -> int:
        raise TargetError("no space left on the device")

    monkeypatch.setattr("mqstore.files.durable_file.DurableFile.write", full)
    done = run_cli("salvage", image, "--to", tmp_path / "out" / "rows.jsonl", "--threads", 1)
    assert done.status == 2
    assert "no space left" in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_the_command_writes_both_brokers_and_goes_on_where_it_was(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    image.write_bytes(scattered(3)[0])
    out, work = tmp_path / "found.jsonl", tmp_path / "work"
    done = run_cli("salvage", image, "--to", out, "--resume", work, "-o", "json")
    assert done.status == 1, done.stderr  # bytes belonged to nothing
    assert done.document["files"] == [str(tmp_path / "found.rocketmq.jsonl"), str(tmp_path / "found.rabbitmq.jsonl")]
    lines = {name: (tmp_path / name).read_text().splitlines() for name in ("found.rocketmq.jsonl", "found.rabbitmq.jsonl")}
    assert len(lines["found.rocketmq.jsonl"]) == done.document["records"] > 100
    assert len(lines["found.rabbitmq.jsonl"]) == done.document["rabbitmq_messages"] > 50
    assert sum(group["messages"] for group in done.document["groups"]) == done.document["rabbitmq_messages"]
    assert {json.loads(line)["queue"] for line in lines["found.rabbitmq.jsonl"]} == {None}
    assert not work.exists()
    assert run_cli("salvage", image, "--to", out, "--resume", work).status == 2  # its files exist
    text = run_cli("salvage", image, "--to", tmp_path / "again.parquet")
    assert "the queue is unknown" in text.stdout
    assert "routing key" in text.stdout


def test_nameless_files_beside_named_ones_are_not_passed_over_without_a_word(tmp_path: Path) -> None:
    path = next(path for path in files_of([case_named("3.10.8/g1-v2-small-clean")]) if path.suffix == ".qs")
    wreck = tmp_path / "wreck"
    wreck.mkdir()
    (wreck / "0.qs").write_bytes(path.read_bytes())
    assert "under other names" not in run_cli("salvage", wreck, "--to", tmp_path / "one.jsonl").stderr
    (wreck / "f0001").write_bytes(path.read_bytes())
    done = run_cli("salvage", wreck, "--to", tmp_path / "two.jsonl")
    assert "1 file under other names, such as f0001" in " ".join(done.stderr.split())


def test_carved_rabbitmq_messages_become_a_store_of_either_version(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    image.write_bytes(shuffled_image(files_of([case_named("3.10.8/f-mixed-features")]), 2))
    refused = run_cli("salvage", image, "--to", tmp_path / "fresh", "--as", "rabbitmq")
    assert refused.status == 2
    assert "--into QUEUE" in refused.stderr
    for name, options, version in (("one", ("--for", "3.8"), 1), ("two", ("--queue-version", "2"), 2)):
        to = tmp_path / name
        done = run_cli("salvage", image, "--to", to, "--as", "rabbitmq", "--into", "saved", *options, "-o", "json")
        assert done.status in (0, 1), done.stderr
        queues = run_cli("topics", to, "-o", "json")
        rows = [row for batch in messages_of(open_wreck(to), rabbitmq_columns_for("sha256")) for row in batch.to_pylist()]
        assert {row["queue"] for row in rows} == {"saved"}
        assert {row["queue_version"] for row in rows} == {version}
        assert len(rows) == done.document["messages"] > 50
        # messages that are not persistent do not survive the start of a broker
        persistent = sum('"delivery_mode": 2' in key[3] for key in rabbitmq_expected((case_named("3.10.8/f-mixed-features"),)))
        assert len(rows) == persistent
        assert sum(done.document["left_out"].values()) + len(rows) == done.document["rabbitmq_messages"]
        assert queues.status == 0


@pytest.mark.parametrize("version", ["4.3.0", "4.7.1", "5.1.4", "5.5.0"])
def test_a_fresh_store_of_any_version_is_sound_by_its_rules(version: str, tmp_path: Path) -> None:
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    for number, path in enumerate(files_of([KILLED], "commitlog")[:2]):
        (pieces / f"f{number}").write_bytes(path.read_bytes())
    done = run_cli("salvage", pieces, "--to", tmp_path / "fresh", "--as", "rocketmq", "--for", version, "-o", "json")
    assert done.status in (0, 1), done.stderr
    assert run_cli("verify", tmp_path / "fresh").status == 0
    assert run_cli("salvage", pieces, "--to", tmp_path / "other", "--as", "rocketmq", "--for", "9.9").status == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--as", "rocketmq", "--queue", "q"), "only an index knows it"),
        (("--for", "4.9.3"), "give --as"),
        (("--master", "local[1]", "--threads", "2"), "give only one of them"),
        (("--resume", "OUT/occupied"), "not the directory of an earlier salvage"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_searched(
    options: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"\1" * 100)
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "letter.txt").write_text("mine")
    given = [str(occupied) if each == "OUT/occupied" else each for each in options]
    done = run_cli("salvage", image, "--to", tmp_path / "out.jsonl", *given)
    assert done.status == 2
    assert sentence in " ".join(done.stderr.split())
    assert (occupied / "letter.txt").read_text() == "mine"
