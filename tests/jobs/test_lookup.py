"""Bulk lookup: every plan finds exactly the messages that have the asked keys, and says why a key has none."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.golden import CASES, GoldenCase, case_id, case_named, opened, unchanged
from support.stores import Put, Store, message

import mqstore
from mqstore.errors import CannotOpenError, PipelineError, TargetError, UsageError
from mqstore.jobs.lookup import lookup
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.format.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, encode_properties
from mqstore.rocketmq.lookup.answer import MANIFEST
from mqstore.rocketmq.lookup.tasks import RECORDS_AT_ONCE, LookupResult, ScanTask, scan_range
from mqstore.table.columns import ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
Pair = tuple[str, str]
PLANS = ("probe", "sweep", "scan")
SOUND = case_named("4.9.3/a-clean-small")


@cache
def table(case: GoldenCase) -> list[Row]:
    return [row for batch in mqstore.open(opened(case), config=case.config).view().batches() for row in batch.to_pylist()]


def pairs_of(row: Row) -> Iterator[Pair]:
    if row["sys_flag"] & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
        for key in dict.fromkeys([*([row["uniq_key"]] if row["uniq_key"] else []), *(row["keys"] or [])]):
            yield row["topic"], key


def truth(rows: list[Row], asked: list[Pair]) -> list[tuple[str, str, int]]:
    """(topic, key, physical offset) of every hit, in the order of an answer."""
    rank = {pair: number for number, pair in reversed(list(enumerate(asked)))}
    return [
        (*pair, row["physical_offset"])
        for row in rows
        for pair in sorted((pair for pair in pairs_of(row) if pair in rank), key=rank.__getitem__)
    ]


def answer(to: Path) -> list[Row]:
    if to.suffix == ".jsonl":
        return [json.loads(line) for line in to.read_text(encoding="utf-8").splitlines()]
    paths = [to] if to.is_file() else sorted(to.glob("*.parquet"))
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def hits(rows: list[Row]) -> list[tuple[str, str, int]]:
    return [(row["topic"], row["key"], row["physical_offset"]) for row in rows if row["found"]]


def everything(case: GoldenCase) -> list[Pair]:
    """All keys of all messages, and some that nobody put."""
    pairs = dict.fromkeys(pair for row in table(case) for pair in pairs_of(row))
    absent = [
        (topic, f"absent-{number}") for number, topic in enumerate(dict.fromkeys([*(row["topic"] for row in table(case)), "no topic"]))
    ]
    crossed = [("no topic", key) for _, key in list(pairs)[:5]]
    return [pair for pair in dict.fromkeys([*pairs, *absent, *crossed]) if all(pair)]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_three_plans_find_what_the_message_table_holds(case: GoldenCase, tmp_path: Path) -> None:
    source, asked = opened(case), everything(case)
    wanted = truth(table(case), asked)
    by_offset = {row["physical_offset"]: row for row in table(case)}
    missed = sorted(set(asked) - {(topic, key) for topic, key, _ in wanted})
    with unchanged(source):
        for plan in PLANS:
            report = lookup(source, asked, tmp_path / plan, by=plan, threads=2, config=case.config)
            rows = answer(tmp_path / plan)
            assert hits(rows) == wanted, (plan, report.notes)
            assert sorted((row["topic"], row["key"]) for row in rows if not row["found"]) == missed
            assert (report.hits, report.found, report.keys) == (len(wanted), len(asked) - len(missed), len(asked))
            assert sum(report.misses.values()) == len(missed)
            for row in rows:
                assert (row["reason"] is None) is row["found"]
                nothing = dict.fromkeys(ROCKETMQ_COLUMNS) | {"topic": row["topic"]}
                wanted_row = by_offset[row["physical_offset"]] if row["found"] else nothing
                assert {name: row[name] for name in ROCKETMQ_COLUMNS} == wanted_row


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_number_of_splits_does_not_change_the_answer(case: GoldenCase, tmp_path: Path) -> None:
    asked = everything(case)
    answers = []
    for count in (1, 3, 7):
        to = tmp_path / f"{count}.jsonl"
        lookup(opened(case), asked, to, by="scan", splits=count, threads=2, config=case.config)
        answers.append(to.read_bytes())
    assert answers[0] == answers[1] == answers[2]


def made(root: Path, count: int = 300, **fields: Any) -> Store:
    """A store of three index files and several log files. Message n has the keys `k<n>` and `even` or `odd`."""
    store = Store(root, file_size=8192, positions=fields.pop("positions", 200), **fields)
    for number in range(count):
        store.put(message(("orders", "bills")[number % 2], b"x" * (number % 90), keys=f"k{number} {('even', 'odd')[number % 2]}"))
    return store


def some(count: int = 300) -> list[Pair]:
    return [("orders", f"k{number}") for number in range(0, count, 7)] + [("bills", "odd"), ("orders", "odd"), ("nowhere", "k1")]


@pytest.mark.versions
@pytest.mark.parametrize("plan", PLANS)
def test_spark_writes_the_rows_that_threads_write(plan: str, tmp_path: Path, spark: SparkSession) -> None:
    source = made(tmp_path / "store").write()
    on_spark = lookup(source, some(), tmp_path / "a", by=plan, spark=spark, splits=5)
    in_process = lookup(source, some(), tmp_path / "b", by=plan, threads=1, splits=5)
    assert answer(tmp_path / "a") == answer(tmp_path / "b")
    assert on_spark.misses == in_process.misses
    assert (on_spark.plan, on_spark.hits, on_spark.log_bytes, on_spark.index_bytes) == (
        plan,
        in_process.hits,
        in_process.log_bytes,
        in_process.index_bytes,
    )
    # a chain is followed sooner than a session starts
    assert on_spark.runs_on.endswith("threads of this process" if plan == "probe" else "tasks of Spark at once")


def test_attempts_that_died_after_they_wrote_leave_no_row(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def dies_at_first(task: ScanTask) -> LookupResult:
        result = scan_range(task)
        mark = marks / str(task.split.number)
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return result

    source = made(tmp_path / "store").write()
    lookup(source, some(), tmp_path / "a", by="scan", threads=1)
    monkeypatch.setattr("mqstore.jobs.lookup.scan_range", dies_at_first)
    lookup(source, some(), tmp_path / "b", by="scan", spark=spark, splits=3)
    assert answer(tmp_path / "a") == answer(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "marks", "store"]


@pytest.mark.parametrize("to", ["out", "out.parquet", "out.jsonl"])
@pytest.mark.parametrize("plan", PLANS)
def test_the_newest_messages_of_a_key_are_kept_where_there_are_more_than_asked(plan: str, to: str, tmp_path: Path) -> None:
    store = made(tmp_path / "store")
    asked = [("orders", "even"), ("bills", "odd"), ("bills", "k7")]
    report = lookup(store.write(), asked, tmp_path / to, by=plan, max_per_key=3, splits=4, threads=2)
    offsets = [put.offset for put in store.puts]
    wanted = [("bills", "k7", offsets[7]), *zip(("orders", "bills") * 3, ("even", "odd") * 3, offsets[-6:], strict=True)]
    assert hits(answer(tmp_path / to)) == wanted
    assert (report.hits, report.found) == (7, 3)
    # how many a task leaves out itself depends on its split; what the answer holds does not
    assert report.cut <= 300 - 6


@pytest.mark.parametrize("to", ["out", "out.parquet", "out.jsonl"])
def test_an_answer_is_a_directory_or_one_file_with_the_same_rows(to: str, tmp_path: Path) -> None:
    source = made(tmp_path / "store").write()
    report = lookup(source, some(), tmp_path / to, columns=["topic", "queue_offset", "verdict"], threads=2)
    rows = answer(tmp_path / to)
    assert list(rows[0]) == ["topic", "key", "found", "queue_offset", "verdict", "reason"]
    assert len(rows) == report.hits + sum(report.misses.values())
    found = [(row["topic"], row["key"]) for row in rows if row["found"]]
    assert found.count(("bills", "odd")) == 150
    assert [(row["topic"], row["key"]) for row in rows if not row["found"]] == [
        (topic, key) for topic, key in some() if (topic, key) not in found
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([to, "store"])
    if to == "out":
        document = json.loads((tmp_path / to / MANIFEST).read_text())
        assert (document["hits"], document["files"]) == (report.hits, list(report.files))


def test_a_message_that_has_a_key_twice_is_one_row_and_one_that_two_keys_ask_for_is_two(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put(message("t", properties=b"UNIQ_KEY\x01a\x02KEYS\x01a b a\x02"))
    lookup(store.write(), [("t", "b"), ("t", "a")], tmp_path / "o", threads=1)
    assert hits(answer(tmp_path / "o")) == [("t", "b", 0), ("t", "a", 0)]


# brute force: what was put, message by message


def put_at_random(root: Path, count: int, seed: int, *, positions: int) -> Store:
    """A store whose messages have up to six of few keys: keys of many messages, keys that a message has twice, keys of one hash."""
    chosen = random.Random(seed)
    store = Store(root, file_size=1 << 20, slots=997, positions=positions, queue_entries=count)
    for _ in range(count):
        keys = [f"k{chosen.randrange(count)}{chosen.choice(('Aa', 'BB'))}" for _ in range(chosen.randrange(5))]
        keys += chosen.choices((*keys, "common", "rareAa", "rareBB"), k=chosen.randrange(3))
        unique = {"UNIQ_KEY": chosen.choice((*keys, f"u{chosen.randrange(count)}"))} if chosen.random() < 0.7 else {}
        properties = encode_properties(unique | {"KEYS": " ".join(keys)})
        store.put(message(chosen.choice(("orders", "bills")), b"x" * chosen.randrange(90), properties=properties))
    return store


def put_keys(put: Put) -> set[str]:
    properties = put.record.property_map()
    return {properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")} - {""}


def brute_force(store: Store, asked: list[Pair]) -> list[tuple[str, str, int]]:
    """(topic, key, physical offset) of every hit, in the order of an answer."""
    rank = {pair: number for number, pair in enumerate(asked)}
    found = []
    for put in store.puts:
        pairs = [(put.record.topic, key) for key in put_keys(put) if (put.record.topic, key) in rank]
        found += [(*pair, put.offset) for pair in sorted(pairs, key=rank.__getitem__)]
    return found


def asked_of(store: Store, chosen: random.Random) -> list[Pair]:
    """Most keys of a store, keys that only have the hash of one, and keys that nobody put."""
    every = sorted(set[str]().union(*map(put_keys, store.puts)))
    other = [key[:-2] + ("BB" if key.endswith("Aa") else "Aa") for key in every[::5]]
    asked = [(topic, key) for topic in ("orders", "bills") for key in dict.fromkeys([*every, *other, "absent"])]
    chosen.shuffle(asked)
    return asked[len(asked) // 10 :]


MANY = 4000  # messages: with their keys more candidates than a task compares at once


@pytest.mark.real_sizes
@pytest.mark.parametrize(("seed", "positions"), [(1, 40_000), (2, 40_000), (3, 3000)])
def test_every_plan_finds_what_was_put_and_each_once_in_a_store_of_many_candidates(seed: int, positions: int, tmp_path: Path) -> None:
    store = put_at_random(tmp_path / "store", MANY, seed, positions=positions)
    assert len(list(store.keys())) > RECORDS_AT_ONCE
    asked = asked_of(store, random.Random(seed))
    wanted = brute_force(store, asked)
    source = store.write()
    for plan in ("auto", *PLANS):
        report = lookup(source, asked, tmp_path / plan, by=plan, columns=["physical_offset"], splits=3, threads=2)
        assert hits(answer(tmp_path / plan)) == wanted, plan
        assert (report.hits, report.found) == (len(wanted), len({pair[:2] for pair in wanted}))
        assert not report.notes
        limited = lookup(source, asked, tmp_path / f"{plan}-2", by=plan, columns=["physical_offset"], max_per_key=2, threads=2)
        newest = {pair: [hit for hit in wanted if hit[:2] == pair][-2:] for pair in asked[:50]}
        got = hits(answer(tmp_path / f"{plan}-2"))
        assert {pair: [hit for hit in got if hit[:2] == pair] for pair in newest} == newest
        assert limited.hits == sum(min(2, count) for count in Counter(hit[:2] for hit in wanted).values())


@pytest.mark.real_sizes
def test_every_plan_finds_what_was_put_and_each_once_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    store = put_at_random(tmp_path / "store", MANY, 4, positions=40_000)
    asked = asked_of(store, random.Random(4))
    wanted = brute_force(store, asked)
    source = store.write()
    for plan in PLANS:
        lookup(source, asked, tmp_path / plan, by=plan, columns=["physical_offset"], spark=spark, splits=3)
        assert hits(answer(tmp_path / plan)) == wanted, plan


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.integers(3, 60))
def test_no_cut_by_a_count_changes_an_answer(seed: int, count: int, records: int, dispatched: int, positions: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as lowered:
        lowered.setattr("mqstore.rocketmq.lookup.tasks.RECORDS_AT_ONCE", records)
        lowered.setattr("mqstore.rocketmq.lookup.tasks.DISPATCHED_AT_ONCE", dispatched)
        lowered.setattr("mqstore.jobs.lookup.LEAST_PER_TASK", records)
        lowered.setattr("mqstore.jobs.lookup.MOST_PER_TASK", records)
        lowered.setattr("mqstore.rocketmq.lookup.index_probe.BLOCK", dispatched)
        store = put_at_random(Path(scratch, "store"), count, seed, positions=positions)
        asked = asked_of(store, random.Random(seed))
        source = store.write()
        for plan in PLANS:
            lookup(source, asked, Path(scratch, plan), by=plan, columns=["physical_offset"], threads=1)
            assert hits(answer(Path(scratch, plan))) == brute_force(store, asked), plan


# the index is believed as far as it can be


def test_what_the_index_does_not_reach_is_read_in_the_log(tmp_path: Path) -> None:
    store = made(tmp_path / "store", indexed=120)
    source = store.write()
    asked = [("orders", "k4"), ("orders", "k118"), ("orders", "k120"), ("bills", "k299"), ("bills", "k300")]
    for plan in ("probe", "sweep"):
        report = lookup(source, asked, tmp_path / plan, by=plan, threads=1)
        assert [key for _, key, _ in hits(answer(tmp_path / plan))] == ["k4", "k118", "k120", "k299"]
        assert report.plan == plan
        assert 0 < report.log_bytes < 300 * 200
        assert report.misses == {"no-index-entry": 1}


@pytest.mark.parametrize("plan", PLANS)
def test_progress_counts_what_the_index_answers_for_and_what_is_read(plan: str, tmp_path: Path) -> None:
    source = made(tmp_path / "store", indexed=120).write()
    asked = [("orders", f"k{number}") for number in range(0, 300, 2)]
    reported: list[tuple[int, int]] = []
    lookup(
        source,
        asked,
        tmp_path / "o",
        by=plan,
        splits=5,
        threads=1,
        progress=lambda done, total: reported.append((done, total)),
    )
    (total,) = {each for _, each in reported}
    assert total == lookup(source, asked, tmp_path / "whole", by="scan", threads=1).log_bytes
    amounts = [done for done, _ in reported]
    assert amounts == sorted(amounts)
    assert amounts[-1] == total
    if plan != "scan":  # the index reaches over 120 of 300 messages
        assert any(0.35 * total < done < 0.45 * total for done in amounts)


def test_a_lost_index_file_between_others_is_a_stretch_that_is_read(tmp_path: Path) -> None:
    source = made(tmp_path / "store", positions=100).write()
    files = sorted((source / "index").iterdir())
    assert len(files) > 4
    files[2].unlink()
    asked = [("orders", f"k{number}") for number in range(0, 300, 2)]
    for plan in PLANS:
        report = lookup(source, asked, tmp_path / plan, by=plan, threads=1)
        assert (report.found, report.misses) == (150, {})


@pytest.mark.parametrize("damage", ["slot to zero", "slot to an entry of another chain", "hash", "offset", "header"])
@pytest.mark.parametrize("plan", ["probe", "sweep"])
def test_an_index_file_that_cannot_be_believed_is_not_used(damage: str, plan: str, tmp_path: Path) -> None:
    store = made(tmp_path / "store", positions=1000)
    source = store.write()
    name = next((source / "index").iterdir()).name
    entries = 40 + 4 * store.slots
    slot = 40 + 4 * (index_hash("orders", "k298") % store.slots)
    number = 2 * 298 + 1
    place, raw = {
        "slot to zero": (slot, bytes(4)),
        "slot to an entry of another chain": (slot, (number - 1).to_bytes(4, "big")),
        "hash": (entries + 20 * number, (77).to_bytes(4, "big")),
        "offset": (entries + 20 * number + 4, store.puts[10].offset.to_bytes(8, "big")),
        "header": (24, (1 << 40).to_bytes(8, "big")),
    }[damage]
    store.patch(f"index/{name}", place, raw)
    report = lookup(source, [("orders", "k298"), ("orders", "k10")], tmp_path / "o", by=plan, threads=1)
    assert hits(answer(tmp_path / "o")) == [("orders", f"k{number}", store.puts[number].offset) for number in (10, 298)]
    assert any(name in told for told in (*report.notes, report.why))


# why a key has no message


def reason(source: Path, pair: Pair, to: Path, plan: str) -> str:
    lookup(source, [pair], to, by=plan, threads=1)
    (row,) = answer(to)
    return str(row["reason"])


def test_each_miss_has_its_reason(tmp_path: Path) -> None:
    store = made(tmp_path / "store")
    store.put(message("orders", keys="Aa"))
    source = store.write()
    assert index_hash("orders", "Aa") == index_hash("orders", "BB")
    for number, (pair, plan, wanted) in enumerate(
        [
            (("orders", "nope"), "scan", "not-in-store"),
            (("orders", "nope"), "probe", "no-index-entry"),
            (("orders", "nope"), "sweep", "no-index-entry"),
            (("nowhere", "k1"), "scan", "topic-never-seen"),
            (("orders", "BB"), "scan", "hash-collisions-only"),
            (("orders", "BB"), "probe", "hash-collisions-only"),
            (("orders", "BB"), "sweep", "hash-collisions-only"),
        ]
    ):
        assert reason(source, pair, tmp_path / str(number), plan) == wanted


def test_a_message_that_retention_removed_is_told_by_the_index(tmp_path: Path) -> None:
    store = made(tmp_path / "store", positions=2000)
    source = store.write()
    (source / "commitlog" / f"{0:020d}").unlink()
    for plan in ("probe", "sweep"):
        assert reason(source, ("orders", "k2"), tmp_path / plan, plan) == "removed-by-retention"
    assert reason(source, ("orders", "k2"), tmp_path / "scan", "scan") == "not-in-store"


def test_damage_is_told_and_a_key_that_may_stand_in_it_is_not_called_absent(tmp_path: Path) -> None:
    store = made(tmp_path / "store", positions=2000)
    source = store.write()
    store.patch_log(store.puts[100].offset + 4, bytes(4))
    for plan, wanted in (("probe", "record-damaged"), ("sweep", "record-damaged"), ("scan", "key-never-seen")):
        assert reason(source, ("orders", "k100"), tmp_path / plan, plan) == wanted
    report = lookup(source, [("orders", "k100"), ("orders", "k98")], tmp_path / "o", by="scan", threads=1)
    assert [item.offset for item in report.damage] == [store.puts[100].offset % 8192]
    assert not report.ok
    assert not report.coverage.complete
    assert report.hits == 1
    # what an index leads past is not read
    assert lookup(source, [("orders", "k298")], tmp_path / "p", by="probe", threads=1).ok


@pytest.mark.parametrize("where", ["threads", "spark"])
def test_failfast_ends_at_damage_and_leaves_nothing(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    runner = {"threads": 2} if where == "threads" else {"spark": request.getfixturevalue("spark")}
    store = made(tmp_path / "store")
    store.write()
    store.patch_log(store.puts[100].offset + 4, bytes(4))
    with pytest.raises(PipelineError, match=r"^commitlog/\d+ is damaged at \d+, \d+ bytes: bad-frame; `mqstore verify` maps"):
        lookup(store.root, some(), tmp_path / "o", by="scan", mode="FAILFAST", **runner)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_store_without_messages_answers_that_nothing_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    report = lookup(tmp_path / "store", [("t", "k")], tmp_path / "o", threads=1)
    assert (report.plan, report.misses) == ("scan", {"topic-never-seen": 1})


# the choice


def test_the_plan_with_the_least_work_is_taken_and_says_why(tmp_path: Path) -> None:
    source = made(tmp_path / "store", count=3000, positions=20_000).write()
    few = lookup(source, [("orders", "k4")], tmp_path / "few", threads=1)
    many = lookup(source, [("orders", f"k{number}") for number in range(3000)], tmp_path / "many", threads=1)
    shutil.rmtree(source / "index")
    none = lookup(source, [("orders", "k4")], tmp_path / "none", threads=1)
    assert (few.plan, many.plan, none.plan) == ("probe", "sweep", "scan")
    assert few.why.startswith("the least work; 1 key, 1 index file of 6,000 entries")
    assert none.why.startswith("no index file can be used: there is none")


# refusals


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"by": "magic"}, "there is no plan 'magic'; the plans are auto, probe, sweep, scan"),
        ({"mode": "LOUD"}, "the modes are PERMISSIVE and FAILFAST"),
        ({"columns": ["colour"]}, "no column 'colour'"),
        ({"max_per_key": 0}, "max_per_key must be at least 1"),
        ({"to": "answers.csv"}, "choose such a name"),
        ({"keys": []}, "there are no keys to look up"),
        ({"keys": [("t", "")]}, "pair 1 has no key"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_written(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    keys, to = options.pop("keys", [("t", "k")]), tmp_path / options.pop("to", "o")
    with pytest.raises(UsageError, match=sentence):
        lookup(opened(SOUND), keys, to, threads=1, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_exists_or_lies_in_the_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "o").write_text("mine")
    with pytest.raises(TargetError, match="exists already"):
        lookup(opened(SOUND), [("t", "k")], tmp_path / "o", threads=1)
    assert (tmp_path / "o").read_text() == "mine"
    store = made(tmp_path / "store", count=3).write()
    for name in ("o", "o.jsonl"):
        with pytest.raises(TargetError, match="is inside the store"):
            lookup(store, [("t", "k")], store / name, threads=1)
    with pytest.raises(CannotOpenError, match="cannot be read: no such file"):
        lookup(store, tmp_path / "missing", tmp_path / "p", threads=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o", "store"]
