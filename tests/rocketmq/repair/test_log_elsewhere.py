"""Stores whose log is elsewhere, in part or under another name: nothing is repaired after a part of the log alone.

On a store whose broker kept its log on another disk, `repair` overwrote queue entries and set the offsets of consumers to 0; in place
of a log file that was called `….bak` it put one without messages.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.golden import case_named, run_cli, tree_checksum, unpack, unpack_site

from mqstore.errors import UnsupportedError
from mqstore.places import open_rocketmq
from mqstore.repair.journal import apply
from mqstore.rocketmq.repair.plan import LOCKING, plan
from mqstore.rocketmq.store.log_site import log_elsewhere, renamed_log_files

CASE = case_named("4.9.3/m-damaged/0-clean")
FILE = "00000000000000131072"


def _configuration(path: Path, **lines: object) -> Path:
    path.write_text(CASE.config.read_text() + "".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


def _refused(store: Path, place: object, *options: object) -> None:
    """Check that `repair` refuses in one sentence that names the place of the log, and that no other command advises it."""
    before = tree_checksum(store)
    for direction in ((), ("--plan",), ("--apply",)):
        done = run_cli("repair", store, *direction, *options)
        assert (done.status, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done
        assert f"cannot be told without the log at {place}" in done.stderr
        assert "nothing is changed" in done.stderr
    for name in ("diagnose", "verify", "inspect"):
        found = run_cli(name, store, "-o", "json", *options).document
        assert "mqstore repair" not in found["next"], name
        if name != "inspect":
            assert f"cannot be told without the log at {place}" in found["why"], name
    assert tree_checksum(store) == before
    assert not store.with_name("store.undo").exists()


def test_a_log_on_another_disk_is_read_there_and_not_repaired(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    moved = tmp_path / "elsewhere.conf"
    for given in ((), ("--config", moved)):
        if given:
            shutil.move(tmp_path / "broker.conf", moved)
        assert run_cli("diagnose", store, "-o", "json", *given).document["loses"] == 0
        assert len(run_cli("messages", store, "-o", "jsonl", *given).rows) == 1500
        assert plan(open_rocketmq(store, config=given[1] if given else None)) == []
    log = tmp_path / "logdisk" / "commitlog" / f"{65536:020d}"
    log.write_bytes(bytes(100) + log.read_bytes()[100:])
    done = run_cli("repair", store, "--apply", "--config", moved)
    assert (done.status, len(done.stderr.splitlines())) == (2, 1)
    assert f"is at {tmp_path}/logdisk/commitlog, and repair changes files of one directory only" in done.stderr


def test_a_log_that_is_not_where_the_configuration_has_it_makes_repair_refuse(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    shutil.move(tmp_path / "logdisk", tmp_path / "away")
    _refused(store, tmp_path / "logdisk" / "commitlog")
    (tmp_path / "broker.conf").unlink()
    _refused(store, tmp_path / "away" / "commitlog")  # which is found beside the store
    shutil.rmtree(tmp_path / "away")
    _refused(store, store / "commitlog")
    (store / "commitlog").mkdir()
    _refused(store, store / "commitlog")


def test_with_its_log_put_into_it_the_same_store_has_nothing_to_repair(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    (tmp_path / "logdisk" / "commitlog").rename(store / "commitlog")
    _configuration(tmp_path / "broker.conf", storePathCommitLog=store / "commitlog", mappedFileSizeCommitLog=65536)
    assert plan(open_rocketmq(store)) == []


def test_offsets_alone_show_that_there_was_a_log(tmp_path: Path) -> None:
    store = unpack_site("config-only", tmp_path)
    _refused(store, store / "commitlog")
    assert "group 'billing' is at 793" in run_cli("repair", store).stderr


@pytest.mark.parametrize("where", ["store", "beside", "conf", "given"])
@pytest.mark.parametrize(
    "lines",
    [
        {"storePathCommitLog": "/data/log1"},
        {"storePathCommitLog": "{store}/commitlog,/data/log1"},
        {"storePathCommitLog": "{store}/commitlog:/data/log1"},
        {"storePathCommitLog": "{store}/commitlog", "readOnlyCommitLogStorePaths": "/data/log1"},
        {"readOnlyCommitLogStorePaths": "/data/log1"},
        {"storePathRootDir": "/no/such/root", "storePathCommitLog": "/data/log1"},
    ],
    ids=lambda lines: ",".join(lines),
)
def test_a_configuration_that_names_other_paths_of_the_log_is_believed(lines: dict[str, str], where: str, tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    place = {"store": store, "beside": tmp_path, "conf": tmp_path / "conf", "given": tmp_path / "x"}[where]
    place.mkdir(exist_ok=True)
    path = _configuration(place / "broker.conf", **{name: value.format(store=store) for name, value in lines.items()})
    given = ("--config", path) if where == "given" else ()
    before = tree_checksum(store)
    done = run_cli("repair", store, "--apply", *given)
    assert (done.status, len(done.stderr.splitlines())) == (2, 1)
    assert "cannot be told without the log at /data/log1: " in done.stderr
    assert tree_checksum(store) == before


def test_a_root_that_is_another_directory_of_this_machine_is_another_store(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    (tmp_path / "live").mkdir()
    _refused(store, tmp_path / "live", "--config", _configuration(tmp_path / "conf", storePathRootDir=tmp_path / "live"))
    log = tmp_path / "live" / "commitlog"
    _refused(store, log, "--config", _configuration(tmp_path / "conf", storePathRootDir=tmp_path / "live", storePathCommitLog=log))


def test_the_configuration_of_a_copy_from_another_machine_is_that_of_the_copy(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    lines = {"storePathRootDir": "/no/such/place/store", "storePathCommitLog": "/no/such/place/store/commitlog"}
    assert log_elsewhere(open_rocketmq(store, config=_configuration(tmp_path / "broker.conf", **lines))) is None
    assert log_elsewhere(open_rocketmq(store)) is None
    link = tmp_path / "link"
    link.symlink_to(store)
    lines = {"storePathRootDir": str(link), "storePathCommitLog": f"{link}/commitlog"}
    assert log_elsewhere(open_rocketmq(store, config=_configuration(tmp_path / "broker.conf", **lines))) is None


@pytest.mark.parametrize(("paths", "kept"), [(2, {0}), (2, {1}), (3, {0, 1})])
def test_a_log_of_several_paths_of_which_one_is_missing_is_not_filled_with_blank_files(paths: int, kept: set[int], tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    (store / "commitlog" / f"{FILE}.bak").rename(store / "commitlog" / FILE)
    files = sorted((store / "commitlog").iterdir())
    for number in range(len(files), 12):
        raw = bytearray(65536)
        raw[:8] = (65536).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        files.append(store / "commitlog" / f"{number * 65536:020d}")
        files[-1].write_bytes(raw)
    for number, file in enumerate(files):
        if number % paths not in kept:
            file.unlink()
    _refused(store, "the other paths")


def test_single_missing_files_are_no_path_of_a_log(tmp_path: Path) -> None:
    for missing in ((2,), (2, 3), (1, 4)):
        store = unpack_site("log-file-renamed-bak", tmp_path / str(missing))
        (store / "commitlog" / f"{FILE}.bak").rename(store / "commitlog" / FILE)
        for number in missing:
            (store / "commitlog" / f"{number * 65536:020d}").unlink()
        assert log_elsewhere(open_rocketmq(store)) is None
        steps = [step for step in plan(open_rocketmq(store)) if step.kind == "blank-file"]
        assert [(step.file, step.offset, step.length) for step in steps] == [
            (f"commitlog/{number * 65536:020d}", 0, 65536) for number in missing
        ]


@pytest.mark.parametrize(
    "name", [f"{FILE}.bak", f"{FILE}.1", f"{FILE} (copy)", f"Copy of {FILE}", "00131072", "00000000000000131073", "lost+found.3"]
)
def test_a_log_file_under_another_name_gets_its_name_and_nothing_is_blank(name: str, tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    (store / "commitlog" / f"{FILE}.bak").rename(store / "commitlog" / name)
    steps = plan(open_rocketmq(store))
    assert [(step.kind, step.file, step.changes[0].to) for step in steps] == [("rename", f"commitlog/{name}", f"commitlog/{FILE}")]
    before = tree_checksum(store)
    assert run_cli("repair", store, "--apply").status == 0
    assert plan(open_rocketmq(store)) == []
    found = run_cli("diagnose", store, "-o", "json").document
    assert (found["starts"], found["loses"]) == (True, 0)
    assert run_cli("repair", store, "--undo").status == 0
    shutil.rmtree(tmp_path / "store.undo", ignore_errors=True)
    assert _without_times(store) == _without_times(_named(name, tmp_path / "again"))
    assert before


def test_damage_in_a_log_file_under_another_name_is_repaired_once_it_has_its_name(tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    path = store / "commitlog" / f"{FILE}.bak"
    raw = bytearray(path.read_bytes())
    raw[10_000:10_100] = b"x" * 100
    path.write_bytes(raw)
    steps = plan(open_rocketmq(store))
    assert [step.kind for step in steps if step.file.startswith("commitlog/")] == ["rename"]
    apply(store, tmp_path / "undo", steps, LOCKING)
    assert [step.file for step in plan(open_rocketmq(store)) if step.kind == "filler"] == [f"commitlog/{FILE}"]


def _named(name: str, target: Path) -> Path:
    store = unpack_site("log-file-renamed-bak", target)
    (store / "commitlog" / f"{FILE}.bak").rename(store / "commitlog" / name)
    return store


def _without_times(store: Path) -> dict[str, bytes]:
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_a_whole_log_under_names_of_eight_digits_is_found(tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    for path in sorted((store / "commitlog").iterdir()):
        path.rename(path.with_name(f"{int(path.name.partition('.')[0]):08d}"))
    steps = plan(open_rocketmq(store))
    assert {step.kind for step in steps} == {"rename"}
    assert len(steps) == 7
    apply(store, tmp_path / "undo", steps, LOCKING)
    assert plan(open_rocketmq(store)) == []


def test_of_two_files_with_the_same_records_the_one_that_holds_more_is_taken(tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    whole = store / "commitlog" / f"{FILE}.bak"
    raw = bytearray(whole.read_bytes())
    raw[30_000:] = bytes(len(raw) - 30_000)
    (store / "commitlog" / f"{FILE}.1").write_bytes(raw)
    (found,) = renamed_log_files(open_rocketmq(store))
    assert found.relative == f"commitlog/{whole.name}"


def test_a_file_of_another_store_or_far_from_the_log_is_not_given_a_name(tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    path = store / "commitlog" / f"{FILE}.bak"
    queue = store / "consumequeue" / "orders" / "0" / "00000000000000000000"
    raw = bytearray(queue.read_bytes())
    at = next(at for at in range(0, len(raw), 20) if int.from_bytes(raw[at : at + 8], "big") == 131072)
    raw[at : at + 8] = (131073).to_bytes(8, "big")  # the place of its first message has another one
    whole = queue.read_bytes()
    queue.write_bytes(raw)
    assert renamed_log_files(open_rocketmq(store)) == []
    queue.write_bytes(whole)
    assert len(renamed_log_files(open_rocketmq(store))) == 1
    for name in sorted(path.parent.iterdir()):
        if name.name > f"{65536:020d}" and name != path:
            name.unlink()
    (path.parent / f"{65536:020d}").unlink()  # what is left is one file at 0, and the records from 131072 on
    assert renamed_log_files(open_rocketmq(store)) == []


def test_a_database_of_queues_is_refused_as_before() -> None:
    with pytest.raises(UnsupportedError, match="RocksDB"):
        plan(open_rocketmq(case_named("5.5.0/c-rocksdb-queues-clean").archive))
