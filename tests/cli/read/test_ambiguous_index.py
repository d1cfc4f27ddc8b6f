"""An index file of which the geometry is ambiguous: the log is read in its place, and nothing is written to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import run_cli, unchanged

import mqstore
from mqstore.errors import RefusedError, UnsupportedError
from mqstore.rocketmq import MessageStore, StoreConfig

SMALL = "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=50\nmaxIndexNum=410\n"
KEY = "ogaQmc"  # in topic TopicTest its hash is 0: as the first key of a store it makes an entry of zeros


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(SMALL)
    return path


@pytest.fixture
def store(tmp_path: Path, config: Path) -> Path:
    root = tmp_path / "store"
    assert run_cli("put", root, "-t", "TopicTest", "--body", "first", "-k", KEY, "--create", "--config", config).status == 0
    return root


def test_verify_says_that_it_is_ambiguous_and_not_that_it_is_damaged(store: Path, config: Path) -> None:
    found = run_cli("verify", store)
    assert found.status == 0
    assert "geometry is ambiguous" in found.stdout
    assert "maxHashSlotNum=100 with maxIndexNum=400" in found.stdout
    assert "--config" in found.stdout
    assert not found.stdout.startswith("Intact")
    report = run_cli("verify", store, "-o", "json").document
    assert (report["ok"], report["coverage"]["complete"]) == (True, False)
    sure = run_cli("verify", store, "--config", config)
    assert (sure.status, sure.stdout.startswith("Intact")) == (0, True)


def test_a_key_is_found_by_reading_the_log(store: Path) -> None:
    assert "the log is read instead of the index" in run_cli("query", store, "-t", "TopicTest", "-k", KEY).stderr
    found = run_cli("query", store, "-t", "TopicTest", "-k", KEY, "-o", "json").document
    assert ([row["physical_offset"] for row in found["messages"]], found["reason"]) == ([0], None)
    again = run_cli("query", store, "-t", "TopicTest", "-k", KEY, "--view", "recovered", "-o", "json").document
    assert [row["physical_offset"] for row in again["messages"]] == [0]
    keys = store.with_name("keys")
    keys.write_text(f"TopicTest\t{KEY}\n")
    assert run_cli("lookup", store, "--keys", keys, "--to", store.with_name("found.jsonl")).status == 0
    assert store.with_name("found.jsonl").read_text().count("\n") == 1


def test_inspect_names_it(store: Path) -> None:
    found = run_cli("inspect", store).stdout
    assert "geometry is ambiguous" in found
    assert "1 key in 1 file" in found


def test_the_rows_of_its_entries_are_refused(store: Path) -> None:
    opened = mqstore.open(store)
    from mqstore.pipeline.source.derived import _index_parts

    with pytest.raises(UnsupportedError, match="ambiguous"):
        list(_index_parts(str(store), None, opened, None))  # type: ignore[arg-type]


def test_nothing_is_put_without_the_geometry(store: Path, config: Path) -> None:
    with unchanged(store):
        refused = run_cli("put", store, "-t", "TopicTest", "--body", "second", "-k", "b")
    assert refused.status == 2
    assert "cannot be continued" in refused.stderr
    assert "--config" in refused.stderr
    assert run_cli("put", store, "-t", "TopicTest", "--body", "second", "-k", "b", "--config", config).status == 0
    assert run_cli("verify", store, "--config", config).status == 0
    assert run_cli("put", store, "-t", "TopicTest", "--body", "third", "-k", "c").status == 0  # the second entry shows it
    assert run_cli("verify", store, "--config", config).stdout.startswith("Intact")


def test_nothing_is_put_against_the_geometry_of_the_entries(store: Path, config: Path, tmp_path: Path) -> None:
    assert run_cli("put", store, "-t", "TopicTest", "--body", "second", "-k", "b", "--config", config).status == 0
    with pytest.raises(RefusedError, match="laid out for 50 slots and 410 positions"):
        MessageStore.open(store, StoreConfig(max_hash_slot_num=100, max_index_num=400, services=False))
    other = tmp_path / "other.conf"
    other.write_text(SMALL.replace("=50", "=100").replace("=410", "=400"))
    found = run_cli("verify", store, "--config", other)
    assert found.status == 1
    assert "a broker with this configuration misreads the file" in found.stdout


def test_a_rebuild_says_which_geometry_it_assumed(store: Path, config: Path, tmp_path: Path) -> None:
    beside = run_cli("rebuild", store, "--to", tmp_path / "beside", "-o", "json").document
    assert beside["notes"] == []  # the configuration beside the store decides
    config = config.rename(tmp_path / "elsewhere.conf")
    assumed = run_cli("rebuild", store, "--to", tmp_path / "assumed", "-o", "json").document
    assert "5000000 slots and 20000000 positions, the broker's default" in " ".join(assumed["notes"])
    known = run_cli("rebuild", store, "--to", tmp_path / "known", "--config", config, "-o", "json").document
    assert known["notes"] == []
    for name in ("beside", "known"):
        assert [path.stat().st_size for path in (tmp_path / name / "index").iterdir()] == [8440]
