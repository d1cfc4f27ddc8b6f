"""What mqstore writes from a real broker's store is intact, with and without the configuration: `rebuild`, `put`, `load`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import FURTHER, PLAIN, GoldenCase, case_id, opened, run_cli, unpack

import mqstore
from mqstore.findings import Damage
from mqstore.pipeline import rebuild
from mqstore.rocketmq.verify.verification import verify

DATABASES = ("rocksdb", "dledger")
CASES = tuple(case for case in (*PLAIN, *FURTHER) if not any(name in case.name for name in DATABASES))
TORN = ("4.9.3/b3-kill9-torn",)

each_way = pytest.mark.parametrize("configured", [False, True], ids=["inferred", "configured"])


def damage_of(place: Path, config: Path | None) -> tuple[Damage, ...]:
    return verify(mqstore.open(place, config=config)).damage


@each_way
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_rebuilt_store_has_no_damage_and_the_geometry_of_the_old_one(case: GoldenCase, configured: bool, tmp_path: Path) -> None:
    report = rebuild(opened(case), tmp_path / "new", config=case.config if configured else None, threads=1)
    assert not any("geometry" in note for note in report.notes)
    for config in (None, case.config):
        assert [item for item in damage_of(tmp_path / "new", config) if case.id not in TORN] == []
    shape = {(file.slot_count, file.positions) for file in mqstore.open(tmp_path / "new").index_files()}
    assert shape == {(int(case.properties.get("maxHashSlotNum", 5_000_000)), int(case.properties.get("maxIndexNum", 20_000_000)))}


@each_way
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_store_that_was_put_into_has_no_damage(case: GoldenCase, configured: bool, tmp_path: Path) -> None:
    store = unpack(case, tmp_path / "store")
    argv = ["put", store, "-t", "TopicTest", "--body", "later", "-k", "K1 K2 K1", "--tags", "late"]
    told = run_cli(*argv, *(["--config", case.config] if configured else []))
    assert told.status == 0, told.stderr
    for config in (None, case.config):
        assert damage_of(store, config) == ()
    found = run_cli("query", store, "-t", "TopicTest", "-k", "K2", "-o", "json").document
    assert found["messages"][-1]["tags"] == "late"


@pytest.mark.parametrize("case", [case for case in CASES if case.name in ("a-clean-small", "r-many-slots", "b-batch-queue")], ids=case_id)
def test_a_store_that_was_loaded_has_no_damage(case: GoldenCase, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(run_cli("messages", opened(case), "--body", "base64", "-o", "jsonl").stdout)
    told = run_cli("load", tmp_path / "new", "--from", rows, "--create", "--config", case.config)
    assert told.status == 0, told.stderr
    for config in (None, case.config):
        assert damage_of(tmp_path / "new", config) == ()
