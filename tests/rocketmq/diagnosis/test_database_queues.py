"""Diagnoses of stores with queues in RocksDB. What the real store of 5.5.0 makes of the same states: tests/interop."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support.golden import GoldenCase, case_id, case_named, opened, run_cli, unchanged
from support.rocksdb import flip, tables
from support.rocksdb_states import made

from mqstore.diagnosis import Diagnosis
from mqstore.errors import UnsupportedError
from mqstore.places import open_rocketmq
from mqstore.rocketmq.diagnosis.diagnosis import START, diagnose

CLEAN, KILLED = case_named("5.5.0/c-rocksdb-queues-clean"), case_named("5.5.0/i-rocksdb-kill9")
LIGHT, CONFIG = case_named("5.5.0/d-rocksdb-light-queues"), case_named("5.5.0/e-rocksdb-config-v1")
ROLLED, CONFIG_2 = case_named("5.5.0/j-rocksdb-rolled"), case_named("5.5.0/h-rocksdb-config-v2")


def of(case: GoldenCase, place: Path | None = None, version: str = "5.5.0") -> Diagnosis:
    return diagnose(open_rocketmq(place or opened(case), config=case.config), version)


@pytest.mark.parametrize("case", [CLEAN, KILLED, LIGHT, CONFIG, ROLLED, CONFIG_2], ids=case_id)
def test_a_broker_starts_on_what_a_broker_left_and_loses_nothing_of_it(case: GoldenCase) -> None:
    with unchanged(opened(case)):
        found = of(case)
    assert (found.starts, found.loses, found.rules) == (True, 0, "5.5.0")


@pytest.mark.parametrize("case", [CLEAN, LIGHT, ROLLED], ids=case_id)
def test_a_sound_store_gets_the_advice_to_start_the_broker(case: GoldenCase) -> None:
    found = of(case)
    assert (found.status, found.unknown, found.next) == (0, (), START)


@pytest.mark.parametrize(
    "state",
    ["no_manifest", "damaged_manifest", "no_current", "empty_current", "current_of_another", "no_table", "cut_table", "damaged_bounds",
     "file_in_its_place"],
)  # fmt: skip
def test_a_database_that_cannot_be_opened_keeps_the_broker_from_starting(state: str, tmp_path: Path) -> None:
    store = made(state, CLEAN, tmp_path / "store")
    found = of(CLEAN, store)
    assert (found.starts, found.status, found.loses) == (False, 2, 0)
    assert (found.evidence[0].finding, found.evidence[0].file) == ("bad-database", "consumequeue")
    assert "does not start" in found.evidence[0].detail
    assert found.next == f"mqstore rebuild {store} --to {store}.new --queues rocksdb --for 5.5.0 --config {CLEAN.config}"


@pytest.mark.parametrize(("case", "loses"), [(CLEAN, 1), (KILLED, 0), (ROLLED, 0)], ids=case_id)
def test_without_a_database_the_log_is_listed_again_but_for_its_first_message_after_a_clean_exit(
    case: GoldenCase, loses: int, tmp_path: Path
) -> None:
    found = of(case, made("no_database", case, tmp_path / "store"))
    assert (found.starts, found.loses, found.status) == (True, loses, 1 if loses else 0)
    assert any(change.startswith("makes a new database of queues") for change in found.changes)
    assert any("except its first message" in change for change in found.changes) is bool(loses)


def test_what_a_broker_passes_over_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    for state in ("foreign_files", "damaged_write_ahead_log", "no_options"):
        found = of(CLEAN, made(state, CLEAN, tmp_path / state))
        assert (state, found.starts, found.loses) == (state, True, 0)


def test_entries_that_cannot_be_read_get_no_answer(tmp_path: Path) -> None:
    store = made("damaged_entries", CLEAN, tmp_path / "store")
    with pytest.raises(UnsupportedError, match="cannot be determined"):
        of(CLEAN, store)
    found = run_cli("diagnose", store, "--for", "5.5.0", "--config", CLEAN.config)
    assert (found.status, found.stdout) == (3, "")
    assert f"mqstore rebuild {store} --to {store}.new --queues rocksdb" in " ".join(found.stderr.split())


def test_damaged_configuration_in_a_database_gets_no_answer(tmp_path: Path) -> None:
    store = made("as_it_is", CONFIG, tmp_path / "store")
    flip(tables(store / "config" / "topics")[-1], 60)
    with pytest.raises(UnsupportedError, match=r"it cannot be determined whether a broker starts on .*config/topics"):
        of(CONFIG, store)


def test_a_message_in_light_queues_is_lost_once(tmp_path: Path) -> None:
    found = of(LIGHT, made("missing_log_file", LIGHT, tmp_path / "store"))
    assert (found.starts, found.loses) == (True, 38)


def test_a_cut_log_without_a_crash_leaves_open_whether_each_queue_loses_one_message_more(tmp_path: Path) -> None:
    found = of(CLEAN, made("body_flip", CLEAN, tmp_path / "cut"))
    assert (found.loses, found.status) == (50, 1)
    assert any("one message more" in sentence for sentence in found.unknown)
    after_a_kill = of(CLEAN, made("body_flip_after_a_kill", CLEAN, tmp_path / "killed"))
    assert (after_a_kill.loses, after_a_kill.unknown) == (50, ())


def test_the_index_shows_that_a_log_without_queues_has_lost_its_end(tmp_path: Path) -> None:
    found = of(CLEAN, made("no_database+missing_log_file", CLEAN, tmp_path / "store"))
    assert any("the index has entries up to 109295" in sentence for sentence in found.unknown)


def test_a_database_that_is_lost_without_a_trace_is_asked_about(tmp_path: Path) -> None:
    store = made("no_database", CLEAN, tmp_path / "store")
    found = diagnose(open_rocketmq(store), "5.5.0")
    assert any("storeType=defaultRocksDB" in sentence for sentence in found.unknown)
    assert found.status == 1


def test_other_versions_and_queues_of_both_kinds_get_no_answer(tmp_path: Path) -> None:
    for version in ("4.9.3", "5.3.3"):
        with pytest.raises(UnsupportedError, match=rf"what a {version} broker makes of it is not known; `--for 5\.5\.0`"):
            of(CLEAN, version=version)
    store = made("as_it_is", CLEAN, tmp_path / "store")
    (store / "consumequeue" / "topic" / "0").mkdir(parents=True)
    with pytest.raises(UnsupportedError, match="as files and in a RocksDB database"):
        of(CLEAN, store)


def test_without_the_extra_the_sentence_says_which_one_brings_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.rocketmq.store.databases.is_installed", lambda: False)
    for case in (CLEAN, CONFIG):
        with pytest.raises(UnsupportedError, match=r"cannot be determined.*`pip install 'mqstore\[rocksdb\]'`"):
            of(case)


def test_the_advised_rebuild_makes_a_store_on_which_a_broker_starts_and_keeps_everything(tmp_path: Path) -> None:
    store = made("no_current", CLEAN, tmp_path / "a broker's store")
    words = shlex.split(of(CLEAN, store).next)
    assert words[:2] == ["mqstore", "rebuild"]
    assert run_cli(*words[1:]).status == 0
    found = of(CLEAN, Path(words[words.index("--to") + 1]))
    assert (found.status, found.loses, found.next) == (0, 0, START)


def test_a_queue_offset_that_no_broker_gives_is_told_and_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    store = made("no_database", CLEAN, tmp_path / "store")
    rows = open_rocketmq(store, config=CLEAN.config).view().batches(("topic", "queue_id", "queue_offset", "physical_offset"))
    message = next(row for batch in rows for row in batch.to_pylist() if row["queue_offset"] > 2)
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(message["physical_offset"] + 20)
        file.write((1 << 61).to_bytes(8, "big"))
    found = of(CLEAN, store)
    where = f"queue {message['queue_id']} of topic {message['topic']!r}"
    assert any(where in sentence and "more than 1,048,576 from the others" in sentence for sentence in found.unknown), found.unknown
    assert found.status == 1
