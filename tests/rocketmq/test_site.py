"""The site of a store: each part with its place and state, and who says that it should be there."""

from __future__ import annotations

import ast
import bz2
import gzip
import json
import lzma
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from support.golden import CASES, FURTHER, GoldenCase, case_id, case_named, opened, run_cli, unchanged, unpack, unpack_site

import mqstore
from mqstore.places import open_rocketmq
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.get import consumers_of


def _site(store: Path, *options: object) -> dict[str, list[dict[str, str]]]:
    """Return the parts by name."""
    found: dict[str, list[dict[str, str]]] = {}
    for part in run_cli("inspect", store, "-o", "json", *options).document["site"]:
        assert list(part) == ["part", "path", "state", "known_from"]
        assert part["state"] in ("here", "partly", "absent", "elsewhere", "not-read")
        found.setdefault(part["part"], []).append(part)
    return found


def _states(store: Path, *options: object) -> dict[str, str]:
    return {name: "+".join(part["state"] for part in parts) for name, parts in _site(store, *options).items()}


def test_a_log_on_another_disk_is_here_by_the_configuration_and_elsewhere_without_it(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    (log,) = _site(store)["log"]
    assert log["state"] == "here"
    assert log["path"] == str(tmp_path / "logdisk" / "commitlog")
    assert log["known_from"] == f"storePathCommitLog in {tmp_path}/broker.conf, line 5"
    shutil.move(tmp_path / "logdisk", tmp_path / "away")
    (log,) = _site(store)["log"]
    assert (log["state"], log["path"]) == ("elsewhere", str(tmp_path / "logdisk" / "commitlog"))
    assert "storePathCommitLog" in log["known_from"]
    (tmp_path / "broker.conf").unlink()
    (log,) = _site(store)["log"]
    assert (log["state"], log["path"]) == ("elsewhere", str(tmp_path / "away" / "commitlog"))
    shutil.rmtree(tmp_path / "away")
    (log,) = _site(store)["log"]
    assert (log["state"], log["path"]) == ("absent", str(store / "commitlog"))
    assert log["known_from"] == "queue files and consumerOffset.json and index files and checkpoint"


@pytest.mark.parametrize("where", ["above", "beside", "inside", "windows"])
def test_a_log_that_was_moved_out_of_its_place_is_found_by_its_records(where: str, tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    conf, place = tmp_path / "broker.conf", {"above": tmp_path, "beside": tmp_path / "disk", "inside": store / "old"}.get(where)
    if place is None:
        place = tmp_path / "logdisk"
        conf.write_text("storePathRootDir=E:\\\\mq\\\\store\nstorePathCommitLog=F:\\\\log\\\\commitlog\n")
    else:
        conf.unlink()
        place.mkdir(exist_ok=True)
        shutil.move(tmp_path / "logdisk" / "commitlog", place / "commitlog")
        (tmp_path / "logdisk").rmdir()
    (log,) = _site(store)["log"]
    assert (log["state"], log["path"]) == ("elsewhere", r"F:\log\commitlog" if where == "windows" else str(place / "commitlog"))
    assert f"{place / 'commitlog'} has 7 files with records of it" in log["known_from"]
    assert f"cannot be told without the log at {log['path']}" in run_cli("diagnose", store).stdout
    assert run_cli("repair", store).status == 2
    if where == "above":
        assert run_cli("inspect", tmp_path, "-o", "json").document["store"] == str(store)
    (tmp_path / "given.conf").write_text(f"storePathCommitLog={place / 'commitlog'}\nmappedFileSizeCommitLog=65536\n")
    assert run_cli("verify", store, "--config", tmp_path / "given.conf").status == 0


def test_a_log_beside_of_another_store_is_not_that_of_this_one(tmp_path: Path) -> None:
    store = unpack_site("config-only", tmp_path)
    shutil.move(unpack_site("expired-unread-533", tmp_path / "other") / "commitlog", tmp_path / "commitlog")
    assert _site(store)["log"][0]["state"] == "absent"


def test_a_file_of_the_log_in_another_directory_is_found_and_no_blank_one_takes_its_place(tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    (store / "backup").mkdir()
    (store / "commitlog/00000000000000131072.bak").rename(store / "backup/00000000000000131072")
    found = run_cli("diagnose", store)
    assert f"cannot be told without the log at {store / 'backup/00000000000000131072'}" in found.stdout
    assert "lost" not in found.stdout
    assert run_cli("repair", store).status == 2
    shutil.copy(store / "backup/00000000000000131072", store / "commitlog/00000000000000131072")
    assert run_cli("verify", store).status == 0


@pytest.mark.parametrize(
    ("start", "name", "packed"),
    [
        (131072, "00000000000000131072.gz", gzip.compress),
        (131072, "old.dat", bz2.compress),
        (393216, "00000000000000393216.xz", lzma.compress),
        (393216, "../../disk/00000000000000393216.zst", lambda raw: zstandard.compress(raw)),
        (131072, "../../disk/00000000000000131072.lz4", lambda raw: lz4.frame.compress(raw)),
        (393216, "../../disk/00000000000000393216", bytes),
    ],
    ids=["gzip", "bzip2", "xz", "zstd", "lz4", "plain"],
)
def test_a_compressed_file_of_the_log_is_named_and_not_lost(
    start: int, name: str, packed: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    (store / "commitlog/00000000000000131072.bak").rename(store / "commitlog/00000000000000131072")
    file = store / f"commitlog/{start:020d}"
    (tmp_path / "disk").mkdir()
    other = Path(os.path.normpath(store / "commitlog" / name))
    raw = file.read_bytes()
    file.unlink()
    other.write_bytes(packed(raw))
    advice = f"{'copy' if packed is bytes else 'decompress'} {other} to {file} first"
    without = f"cannot be told without the log at {other}: commitlog/{file.name} is missing"
    assert _site(store)["log"][0]["state"] == "partly"
    for command in ("inspect", "diagnose", "verify", "repair"):
        done = run_cli(command, store)
        text = " ".join((done.stdout + done.stderr).split())
        assert advice in text, command
        assert without in text, command
        assert " lost" not in text, command
    assert run_cli("diagnose", store, "-o", "json").document["loses"] == 0
    assert without in run_cli("messages", store).stderr
    file.write_bytes(raw)
    other.unlink()
    assert run_cli("verify", store).status == 0


def test_a_log_of_which_all_files_are_compressed_is_not_absent(tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    for file in list((store / "commitlog").iterdir()):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    (log,) = _site(store)["log"]
    said = f"{store}/commitlog has 7 files with records of it, compressed with gzip"
    assert (log["state"], log["path"], log["known_from"]) == ("elsewhere", f"{store}/commitlog", said)
    found = run_cli("diagnose", store, "-o", "json").document
    assert (found["loses"], found["why"].partition(":")[0]) == (0, f"decompress them to {store}/commitlog first")


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ("compaction-533", "compaction topics: of topic 'prices', consumers get 59 messages of 2 queues"),
        ("log-file-renamed-bak", "only what is left of the log is read: what is in the rest of it cannot be told without the log at"),
    ],
)
def test_sql_and_export_say_what_their_rows_are_not(site: str, said: str, tmp_path: Path) -> None:
    store = unpack_site(site, tmp_path)
    assert said in run_cli("sql", store, "SELECT count(*) FROM messages").stderr
    done = run_cli("export", store, "--to", tmp_path / "out", "--format", "jsonl", "-o", "json")
    assert any(said in note for note in done.document["notes"])


@pytest.mark.parametrize("name", ["foo.bin", "backup", "00000000000000131072"])
def test_a_directory_that_holds_one_log_file_is_that_file_whatever_its_name(name: str, tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path / "site")
    place = tmp_path / "copy"
    place.mkdir()
    shutil.copy(store / "commitlog/00000000000000131072.bak", place / name)
    assert run_cli("inspect", place, "-o", "json").document["store"] == str(place / name)
    assert len(run_cli("messages", place, "-o", "jsonl").rows) == 248
    assert "give the directory of the store" in run_cli("diagnose", place).stderr
    (place / name).write_bytes(gzip.compress((place / name).read_bytes()))
    (place / name).rename(place / f"{name}.gz")
    assert f"contains a compressed file: give its path, {place / name}.gz" in run_cli("inspect", place).stderr
    assert len(run_cli("messages", place / f"{name}.gz", "-o", "jsonl").rows) == 248


@pytest.fixture
def pieces(tmp_path: Path) -> Path:
    """A directory with the seven files of a log under other names, a copy of one, and a text."""
    store = unpack_site("log-file-renamed-bak", tmp_path / "site")
    place = tmp_path / "pieces"
    place.mkdir()
    for number, path in enumerate(sorted((store / "commitlog").iterdir())):
        shutil.copy(path, place / f"{9 - number}.bin")
    shutil.copy(place / "5.bin", place / "copy")
    (place / "README").write_text("found on the old disk")
    return place


def test_log_files_without_their_names_are_one_log(pieces: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in pieces.iterdir()}
    shown = run_cli("inspect", pieces)
    assert f"7 files of a RocketMQ commit log, {pieces}" in shown.stdout
    (log,) = _site(pieces)["log"]
    assert log["path"] == str(pieces)
    named = "9.bin is 00000000000000000000; 8.bin is 00000000000000065536; 7.bin is 00000000000000131072; 6.bin is 00000000000000196608"
    assert named in log["known_from"]
    checked = run_cli("verify", pieces, "-o", "json").document
    assert checked["checked"]["messages"] == 1500
    assert [(item["file"], item["kind"]) for item in checked["damage"]] == [
        ("commitlog/README", "stray-file"),
        ("commitlog/copy", "stray-file"),
    ]
    assert len(run_cli("messages", pieces, "-o", "jsonl").rows) == 1500
    assert run_cli("get", pieces, "--offset", 131072, "-o", "json").document["keys"] == "o-496"
    assert "what is here of the log was searched" in run_cli("find", pieces, "o-496").stdout
    shutil.make_archive(str(tmp_path / "packed"), "tar", tmp_path, "pieces")
    assert len(run_cli("messages", tmp_path / "packed.tar", "-o", "jsonl").rows) == 1500
    names = "give the directory of the store, or one that has them in commitlog/ under the names that `mqstore inspect` gives"
    for command in ("diagnose", "repair", "serve", "rebuild --to out", "put -t orders --body x", "messages --view recovered"):
        verb, *rest = command.split()
        done = run_cli(verb, pieces, *rest)
        assert (done.status, names in done.stderr) == (3 if verb == "diagnose" else 2, True), command
    assert {path.name: path.read_bytes() for path in pieces.iterdir()} == before


def test_a_topic_that_log_files_do_not_have_leads_to_their_messages(pieces: Path) -> None:
    said = " ".join(run_cli("query", pieces, "-t", "bills", "-k", "1").stdout.split())
    assert said.endswith("Next: `mqstore messages` lists the messages with their topics; the topic may be in other files of the log.")


def test_other_files_together_are_not_a_log(pieces: Path, tmp_path: Path) -> None:
    for name in ("queue", "texts"):
        (tmp_path / name).mkdir()
    queues = sorted((tmp_path / "site/store/consumequeue/orders").iterdir())
    for number, queue in enumerate(queues):
        shutil.copy(queue / f"{0:020d}", tmp_path / "queue" / f"{number:020d}")
        (tmp_path / "texts" / f"{number}.txt").write_text("text")
    assert (
        "contains the files of a log or a queue; give the directory that contains commitlog/"
        in run_cli("inspect", tmp_path / "queue").stderr
    )
    assert "is not a message store" in run_cli("inspect", tmp_path / "texts").stderr
    (pieces / "further").mkdir()
    assert "is not a message store" in run_cli("inspect", pieces).stderr


def test_a_short_file_whose_bytes_read_as_a_far_offset_is_only_stray(tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    (store / "commitlog/00000000000000131072.bak").rename(store / "commitlog/00000000000000131072")
    (store / "commitlog/notes").write_bytes(b"\xff" * 100)
    assert [item["kind"] for item in run_cli("verify", store, "-o", "json").document["damage"]] == ["stray-file"]


def test_offsets_of_consumers_alone_are_what_is_left_of_a_store(tmp_path: Path) -> None:
    store = unpack_site("config-only", tmp_path)
    (store / "checkpoint").unlink()
    assert "it loses 3,172 messages, as far as is known" in run_cli("diagnose", store).stdout
    assert "give the directory that contains it" in run_cli("diagnose", store / "config").stderr


def test_a_log_on_two_disks_has_a_part_for_each(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    first, second = tmp_path / "logdisk" / "commitlog", tmp_path / "disk2"
    second.mkdir()
    for file in sorted(first.iterdir())[1::2]:
        file.rename(second / file.name)
    lines = (tmp_path / "broker.conf").read_text().replace(f"={first}", f"={first}:{second}")
    (tmp_path / "broker.conf").write_text(lines)
    assert [(part["path"], part["state"]) for part in _site(store)["log"]] == [(str(first), "here"), (str(second), "here")]
    assert run_cli("diagnose", store, "-o", "json").document["loses"] == 0
    shutil.rmtree(second)
    assert [part["state"] for part in _site(store)["log"]] == ["partly", "elsewhere"]
    (tmp_path / "broker.conf").unlink()
    shutil.move(first, store / "commitlog")
    (log,) = _site(store)["log"]
    assert log["state"] == "partly"
    assert "every second file" in log["known_from"]


def test_tasks_of_find_export_and_lookup_read_the_log_where_a_configuration_beside_the_store_has_it(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    (found,) = run_cli("find", store, "o-7", "--whole-key", "-o", "jsonl").rows
    assert (found["keys"], found["physical_offset"]) == ("o-7", 1834)
    assert run_cli("export", store, "--to", tmp_path / "out", "--format", "jsonl").status == 0
    assert sum(len(part.read_bytes().splitlines()) for part in (tmp_path / "out").glob("*.jsonl")) == 1500
    (tmp_path / "keys").write_text("orders\to-7\n")
    assert run_cli("lookup", store, "--keys", tmp_path / "keys", "--to", tmp_path / "out.jsonl").status == 0
    assert [json.loads(line)["physical_offset"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [1834]


def test_an_answer_says_where_the_missing_records_are_and_whether_offsets_count(tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path / "renamed")
    done = run_cli("find", store, "o-7")
    name = "commitlog/00000000000000131072"
    said = f"cannot be told without the log at {store}/{name}.bak: it has the records of {name}, and is not read under that name"
    assert f"{said}: `mqstore repair` gives it back" in done.stderr
    assert "the whole log" not in done.stdout
    assert said in run_cli("messages", store).stderr
    report = run_cli("verify", store)
    assert said in " ".join(report.stdout.split())
    assert "lost" not in report.stdout
    assert [item["kind"] for item in run_cli("verify", store, "-o", "json").document["damage"]] == ["stray-file"]
    store = unpack_site("lmq-offsets", tmp_path / "lmq")
    found = run_cli("find", store, "o-7", "--whole-key")
    assert (
        "whether messages were consumed is not known: a broker with enableLmq=true does not load config/consumerOffset.json" in found.stderr
    )
    store = unpack_site("config-only", tmp_path / "config")
    assert run_cli("topics", store).stdout.strip() == "no consume queues, and no log to build them from"


def test_an_offset_of_a_pop_consumer_proves_nothing_without_the_queues_of_its_pops(tmp_path: Path) -> None:
    store = unpack_site("pop-unacked", tmp_path)
    said = "what pop consumers have in hand cannot be told without the consume queues"
    assert said not in run_cli("groups", store).stderr + run_cli("find", store, "o-7").stderr
    hit = run_cli("find", store, "o-2", "-o", "json").document["messages"][0]
    assert (hit["state"], hit["consumed_by"]) == ("consumed", [{"group": "billing", "offset": 12}])
    shutil.move(store / "consumequeue" / "rmq_sys_wheel_timer", tmp_path / "away")
    hit = run_cli("find", store, "o-2", "-o", "json").document["messages"][0]
    assert (hit["state"], hit["consumed_by"], hit["not_consumed_by"][0]["state"]) == ("unknown", [], "unproved")
    assert [each.state for each in consumers_of(open_rocketmq(store).view(), hit)] == ["unknown"]
    assert said in run_cli("groups", store).stderr
    assert said in run_cli("find", store, "o-7").stderr
    shutil.rmtree(store / "consumequeue")
    assert said in run_cli("find", store, "o-7").stderr


def test_an_acknowledgement_proves_consumption_where_the_offsets_are_gone(tmp_path: Path) -> None:
    store = unpack_site("pop-unacked", tmp_path)
    for file in (store / "config").glob("consumerOffset.json*"):
        file.unlink()
    states = {key: run_cli("find", store, key, "-o", "json").document["messages"][0]["state"] for key in ("o-2", "o-7", "o-19")}
    assert states == {"o-2": "consumed", "o-7": "redelivery", "o-19": "waiting"}


def test_a_lost_volume_of_a_broker_that_kept_its_configuration_in_a_database_is_a_store(tmp_path: Path) -> None:
    store = unpack(case_named("5.5.0/e-rocksdb-config-v1"), tmp_path / "store")
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(store / name, ignore_errors=True)
    assert _states(store)["log"] == "absent"
    assert run_cli("diagnose", store, "-o", "json").document["loses"] > 0


def test_salvage_into_a_new_store_carves_the_log_on_another_disk(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    done = run_cli("salvage", store, "--to", tmp_path / "new", "--as", "rocketmq", "-o", "json")
    assert (done.document["messages"], done.document["verdicts"]["intact"]) == (1500, 1500)
    shutil.move(tmp_path / "logdisk", tmp_path / "away")
    done = run_cli("salvage", store, "--to", tmp_path / "rows.jsonl")
    assert done.status == 2
    assert f"cannot be told without the log at {tmp_path}/logdisk/commitlog" in done.stderr


@pytest.mark.parametrize("state", ["empty", "root", "link", "directory"])
def test_a_place_without_a_log_that_a_configuration_names_is_no_loss_and_no_endless_walk(state: str, tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    conf = tmp_path / "broker.conf"
    shutil.rmtree(tmp_path / "logdisk")
    (tmp_path / "logdisk" / "commitlog").mkdir(parents=True)  # a disk that is not mounted
    place = str(tmp_path / "logdisk" / "commitlog")
    if state == "root":
        conf.write_text("storePathCommitLog=/\n")
        place = "/"
    elif state != "empty":
        conf.unlink()
        conf.mkdir() if state == "directory" else conf.symlink_to(tmp_path / "nowhere")
        place = "the place that the configuration names"
    said = f"cannot be told without the log at {place}: "
    if state in ("empty", "root"):
        (log,) = _site(store)["log"]
        assert (log["path"], log["state"]) == (place, "elsewhere")
    for command in ("topics", "timers", "usage", "find o-7", "verify", "groups", "diagnose"):
        name, *rest = command.split()
        done = run_cli(name, store, *rest)
        assert said in " ".join((done.stdout + done.stderr).split()), command
        assert done.status == (0 if name == "groups" else 2 if (name, state) == ("diagnose", "root") else 1), command
        assert "the whole log was searched" not in done.stdout
    found = run_cli("diagnose", store, "-o", "json").document
    assert (found["loses"], [item for item in found["evidence"] if item["messages"]]) == (0, [])


@pytest.mark.parametrize("name", ["compaction", "timerlog", "kvStore", "rocksdbstore", "consumequeue_rocksdb"])
def test_a_file_in_the_place_of_a_directory_is_a_finding(name: str, tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    (store / "commitlog" / "00000000000000131072.bak").rename(store / "commitlog" / f"{131072:020d}")
    (store / name).write_text("not a directory")
    (item,) = run_cli("verify", store, "-o", "json").document["damage"]
    assert (item["file"], item["kind"], item["messages"]) == (name, "unreadable", 0)
    assert run_cli("inspect", store).status == 1
    assert any(name in sentence for sentence in run_cli("diagnose", store, "-o", "json").document["unknown"])


@pytest.mark.parametrize("name", ["timerwheel", "config/timercheck", "epochFileCheckpoint", "brokerIdentity"])
def test_a_directory_in_the_place_of_a_file_is_a_finding_and_the_rest_is_read(name: str, tmp_path: Path) -> None:
    store = unpack_site("expired-unread-533", tmp_path)
    place = store / name
    place.unlink(missing_ok=True)
    place.mkdir()
    report = run_cli("verify", store, "-o", "json")
    assert [(item["file"], item["kind"]) for item in report.document["damage"]] == [(name, "unreadable")]
    assert run_cli("inspect", store).status == 1
    assert run_cli("find", store, "no-such-text").status in (0, 1)
    assert run_cli("timers", store).status in (0, 1)
    found = run_cli("diagnose", store, "-o", "json").document
    assert found["starts"] == (not name.endswith(("timerwheel", "timercheck")))


def test_a_directory_in_the_place_of_the_lock_stops_a_broker_and_is_moved_by_hand(tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    (store / "commitlog" / "00000000000000131072.bak").rename(store / "commitlog" / f"{131072:020d}")
    (store / "lock").unlink(missing_ok=True)
    (store / "lock").mkdir()
    found = run_cli("diagnose", store, "-o", "json")  # as 4.9.3 and 5.3.3: FileNotFoundException, "Is a directory"
    assert (found.status, found.document["starts"]) == (2, False)
    (step,) = run_cli("repair", store, "-o", "json").document
    assert (step["file"], "move it away" in step["why"]) == ("lock", True)


def test_of_a_lost_volume_the_log_is_absent_and_the_offsets_say_so(tmp_path: Path) -> None:
    store = unpack_site("config-only", tmp_path)
    assert "mqstore rebuild" not in run_cli("inspect", store).stdout
    site = _site(store)
    assert site["log"][0]["state"] == "absent"
    assert site["log"][0]["known_from"] == "consumerOffset.json and checkpoint"
    assert site["consume queues"][0]["known_from"] == "consumerOffset.json"
    assert (site["checkpoint"][0]["state"], site["abort"][0]["state"], site["consumerOffset.json"][0]["state"]) == ("here",) * 3


def test_a_log_file_under_a_wrong_name_and_a_bare_log(tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path / "a")
    assert _states(store)["log"] == "partly"
    told = run_cli("inspect", store).stdout
    assert f"its records are those of {131072:020d}, and that is not its name" in told
    assert "move it away" not in told
    states = _states(unpack_site("bare-log-47", tmp_path / "b"))
    assert (states["log"], states["consume queues"], states["index"]) == ("here", "absent", "absent")
    log = next((tmp_path / "b" / "store" / "commitlog").iterdir())
    assert _states(log) == {"log": "partly"}


@pytest.mark.parametrize("case", [*CASES, *FURTHER], ids=case_id)
def test_every_part_that_is_here_exists(case: GoldenCase) -> None:
    site = _site(opened(case))
    assert {part["state"] for part in site.get("log", [])} <= {"here", "partly"}
    for parts in site.values():
        for part in parts:
            assert Path(part["path"]).exists() == (part["state"] in ("here", "partly", "not-read")) or part["state"] == "partly"


def test_settings_that_nothing_reads_are_named(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    found = run_cli("inspect", store, "-o", "json").document
    assert found["settings_not_used"] == ["brokerClusterName", "brokerName", "brokerId"]
    with (tmp_path / "broker.conf").open("a") as lines:
        lines.write("storePathIndex=/x\nenableLmq=true\ntieredStoreFilePath=/nowhere\n")
    found = run_cli("inspect", store, "-o", "json").document
    assert found["settings_not_used"][3:] == ["storePathIndex", "enableLmq"]  # of one found beside, only paths and sizes
    assert "not used: brokerClusterName, " in run_cli("inspect", store).stdout
    site = _site(store, "--config", tmp_path / "broker.conf")
    assert site["tiered storage"][0]["state"] == "elsewhere"
    assert site["offsets of light queues"][0]["known_from"].startswith("enableLmq in ")
    found = run_cli("inspect", store, "-o", "json", "--config", tmp_path / "broker.conf").document
    assert found["settings_not_used"][3:] == ["storePathIndex"]


def test_paths_that_a_semicolon_separates_are_several(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    (tmp_path / "broker.conf").write_text("storePathRootDir=D:/mq/store\nstorePathCommitLog=D:/mq/logdisk/commitlog;D:/mq/disk2\n")
    assert [(part["path"], part["state"]) for part in _site(store)["log"]] == [
        (str(tmp_path / "logdisk/commitlog"), "here"),
        ("D:/mq/disk2", "elsewhere"),
    ]
    shutil.rmtree(tmp_path / "logdisk")
    assert "names these paths, and they are not here" in _site(store)["log"][0]["known_from"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("storePathDLedgerCommitLog", "which messages are in the DLedger log at"),
        ("tieredStoreFilePath", "which messages are in tiered storage at"),
    ],
)
def test_messages_that_a_configuration_has_elsewhere_are_not_known(setting: str, said: str, tmp_path: Path) -> None:
    store = unpack_site("expired-unread-533", tmp_path)
    assert not run_cli("diagnose", store, "-o", "json").document["unknown"]
    (tmp_path / "broker.conf").write_text(f"storePathRootDir={store}\n{setting}={tmp_path}/elsewhere\n")
    found = run_cli("diagnose", store, "-o", "json").document
    assert f"{said} {tmp_path}/elsewhere, which {setting} in {tmp_path}/broker.conf, line 2 names: it is not read" in found["unknown"]
    assert "as far as is known" in run_cli("diagnose", store).stdout


def test_what_was_moved_to_tiered_storage_has_not_expired_unread(tmp_path: Path) -> None:
    store = unpack_site("expired-unread-533", tmp_path)
    behind = [row for row in run_cli("groups", store, "-o", "jsonl").rows if row["state"] == "below-min"]
    assert [row["expired_unread"] for row in behind] == [150, 250, 59, 69]
    table = {"commitLogFileSegmentTable": {"broker-a/TopicTest/0": {"0": {"baseOffset": 0, "size": 16011}}}}
    (store / "config/tieredStoreMetadata.json").write_text(json.dumps(table))
    behind = [row for row in run_cli("groups", store, "-o", "jsonl").rows if row["state"] == "below-min"]
    assert [row["expired_unread"] for row in behind] == [None] * 4
    assert "that the group has not read" not in run_cli("verify", store).stdout


def test_epochs_of_a_controller_that_lie_elsewhere_are_there_and_not_read(tmp_path: Path) -> None:
    store = unpack_site("expired-unread-533", tmp_path)
    (tmp_path / "epochs").write_text("0\n0\n")
    (tmp_path / "broker.conf").write_text(f"storePathEpochFile={tmp_path}/epochs\nstorePathBrokerIdentity={tmp_path}/identity\n")
    site = _site(store)
    assert [(part["path"], part["state"]) for part in site["epochs of the controller"]] == [(str(tmp_path / "epochs"), "not-read")]
    assert site["identity of the broker"][0]["state"] == "elsewhere"


def test_a_broker_of_a_controllers_group_may_cut_its_log(tmp_path: Path) -> None:
    store = unpack_site("expired-unread-533", tmp_path)
    (store / "brokerIdentity").write_text("DefaultCluster#broker-a#2")
    cut = "what of the end of the log a broker keeps that becomes a slave in its controller's group: it cuts what the master lacks"
    answer = run_cli("diagnose", store, "-o", "json").document
    assert cut in answer["unknown"]
    assert answer["next"] == f"mqstore salvage {store} --to {store}.jsonl"
    assert f"mqstore diagnose {store}" in run_cli("verify", store).stdout
    assert "this is broker 2 of broker-a in cluster DefaultCluster" in run_cli("inspect", store).stdout
    assert "this is broker 2 of broker-a in cluster DefaultCluster" in run_cli("find", store, "nothing").stderr


@pytest.mark.parametrize(("name", "what"), [("lock", "`lock` over the first four bytes"), ("checkpoint", "its times")])
def test_a_small_file_that_is_a_link_is_written_through(name: str, what: str, tmp_path: Path) -> None:
    """A real 5.3.3 wrote `lock` over the first four bytes of the file that `lock` was a link to."""
    store = unpack_site("expired-unread-533", tmp_path)
    (store / name).rename(tmp_path / "target")
    (store / name).symlink_to(tmp_path / "target")
    notes = [item["detail"] for item in run_cli("diagnose", store, "-o", "json").document["evidence"] if item["file"] == name]
    said = f"it is a symbolic link: a broker that starts writes {what} into {tmp_path}/target, as seen with 5.3.3"
    assert notes == [f"{said}; put a file in its place before"]


def test_offsets_of_a_static_topic_are_those_of_the_queues_here(tmp_path: Path) -> None:
    store = unpack_site("expired-unread-533", tmp_path)
    hosted = {"0": [{"bname": "broker-a", "queueId": 0, "logicOffset": 1000}]}
    mapping = {"topicQueueMappingInfoMap": {"TopicTest3": {"totalQueues": 8, "hostedQueues": hosted}}}
    (store / "config/topicQueueMapping.json").write_text(json.dumps(mapping))
    said = "static topic TopicTest3: queues and offsets are those of the files here, while clients count 8 logic queues over all brokers"
    for command in ("inspect", "diagnose", "groups", "find 7F"):
        done = run_cli(*command.split()[:1], store, *command.split()[1:])
        assert said in " ".join((done.stdout + done.stderr).split()), command
    assert said not in run_cli("groups", store, "-t", "TopicTest1").stderr


def test_every_setting_that_is_parsed_is_read_somewhere() -> None:
    package = Path(mqstore.__file__).parent
    read = {
        node.attr
        for path in package.rglob("*.py")
        if path.name not in ("broker_config.py", "store_config.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute))
        and (node.value.id if isinstance(node.value, ast.Name) else node.value.attr) in ("config", "paths_config")
    }  # fmt: skip
    assert {each.name for each in fields(BrokerConfig)} - {"lines"} <= read


# what is said of a log that is not here


def test_a_lost_volume_counts_what_the_offsets_show(tmp_path: Path) -> None:
    store = unpack_site("config-only", tmp_path)
    done = run_cli("diagnose", store, "-o", "json")
    assert (done.status, done.document["loses"]) == (1, 3172)
    (finding,) = (item for item in done.document["evidence"] if item["finding"] == "absent-part")
    assert finding["detail"] == "there is no log; 3,172 messages were in it, as is known from consumerOffset.json and checkpoint"
    assert "it loses 3,172 messages" in run_cli("diagnose", store).stdout
    report = run_cli("verify", store, "-o", "json")
    assert (report.status, report.document["ok"], report.document["messages"]) == (1, False, {"total": 3172, "affected": 3172})
    assert [(item["kind"], item["messages"]) for item in report.document["damage"]] == [("absent-part", 3172)]
    assert run_cli("inspect", store).status == 1
    assert run_cli("rebuild", store, "--to", tmp_path / "new").status == 2
    assert not (tmp_path / "new").exists()


def test_offsets_that_cannot_be_right_are_named_and_not_counted_of_a_log_that_is_gone(tmp_path: Path) -> None:
    store = unpack(case_named("4.9.3/f-broker-offsets"), tmp_path / "store")
    shutil.rmtree(store / "commitlog")
    shutil.rmtree(store / "consumequeue")
    done = run_cli("diagnose", store, "-o", "json")
    assert (done.status, done.document["loses"]) == (1, 443)
    (finding,) = (item for item in done.document["evidence"] if item["finding"] == "absent-part")
    assert "at least 443 messages were in it" in finding["detail"]
    assert finding["detail"].endswith("5000000000 in queue 11 of topic 's62_audit-log', which cannot be right and is not counted")


@pytest.mark.parametrize("wild", ["name", "entry"])
def test_a_wild_place_in_a_queue_file_is_not_counted_as_messages_of_a_log_that_is_gone(tmp_path: Path, wild: str) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    (tmp_path / "broker.conf").unlink()
    shutil.rmtree(tmp_path / "logdisk")
    queue = store / "consumequeue" / "orders" / "0"
    if wild == "name":
        shutil.copy(queue / f"{0:020d}", queue / f"{6000 * 10**13:020d}")
    else:
        with (queue / f"{6000:020d}").open("r+b") as file:
            file.seek(6000 - 20)
            file.write(struct.pack(">qiq", -5, 1 << 30, 1))
    loses = run_cli("diagnose", store, "-o", "json").document["loses"]
    assert loses in ((1500, 1800) if wild == "name" else (1500,))


def test_the_queues_count_what_was_in_a_log_that_is_gone_and_the_configuration_says_that_it_is_elsewhere(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    assert run_cli("diagnose", store, "-o", "json").document["loses"] == 0
    shutil.move(tmp_path / "logdisk", tmp_path / "away")
    done = run_cli("diagnose", store)
    assert done.status == 1
    assert f"what it keeps cannot be told without the log at {tmp_path}/logdisk/commitlog." in done.stdout
    found = run_cli("diagnose", store, "-o", "json").document
    assert (found["loses"], found["redelivers"]) == (0, 0)
    assert not [item for item in found["evidence"] if item["messages"]]
    report = run_cli("verify", store, "-o", "json").document
    assert (report["damage"], report["coverage"]["complete"]) == ([], False)
    assert "cannot be told without the log at" in run_cli("verify", store).stdout.splitlines()[0]
    (tmp_path / "broker.conf").unlink()
    shutil.rmtree(tmp_path / "away")
    found = run_cli("diagnose", store, "-o", "json").document
    assert (found["starts"], found["loses"]) == (True, 1500)
    assert run_cli("verify", store, "-o", "json").document["messages"] == {"total": 1500, "affected": 1500}


@pytest.mark.parametrize("kept", [0, 1])
def test_a_log_without_every_second_file_is_not_lost_and_what_is_here_is_still_checked(kept: int, tmp_path: Path) -> None:
    store = unpack_site("log-file-renamed-bak", tmp_path)
    log = store / "commitlog"
    (log / "00000000000000131072.bak").rename(log / "00000000000000131072")
    for number, file in enumerate(sorted(log.iterdir())):
        if number % 2 != kept and number:
            file.unlink()
    if kept:
        (log / f"{0:020d}").unlink()
    found = run_cli("diagnose", store, "-o", "json").document
    assert (found["starts"], found["loses"]) == (True, 0)
    assert any("one of" in item or "over 2 paths" in item for item in found["unknown"])
    assert not [item for item in found["evidence"] if "lost" in item["detail"]]
    assert run_cli("verify", store, "-o", "json").document["damage"] == []
    file = log / f"{65536 * (2 + kept):020d}"
    file.write_bytes(bytes(5000) + file.read_bytes()[5000:])
    kinds = {item["kind"] for item in run_cli("verify", store, "-o", "json").document["damage"]}
    assert {"zeroed", "bad-queue-entry"} <= kinds


@pytest.mark.parametrize("where", ["beside", "given"])
def test_no_second_log_is_begun_where_the_configuration_says_that_the_log_is_elsewhere(where: str, tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    options: tuple[object, ...] = ()
    if where == "given":
        shutil.move(tmp_path / "broker.conf", tmp_path / "given.conf")
        options = ("--config", tmp_path / "given.conf")
    for moved in (False, True):
        if moved:
            shutil.move(tmp_path / "logdisk", tmp_path / "away")
        with unchanged(store):
            done = run_cli("put", store, "-t", "orders", "--body", "x", *options)
        assert done.status == 2
        assert f"the log of {store} is at {tmp_path}/logdisk/commitlog, and a second one is not begun" in done.stderr
        assert not (store / "commitlog").exists()


def test_a_log_that_is_in_two_places_around_the_store_is_named_with_both(tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    (tmp_path / "broker.conf").unlink()
    first, second = tmp_path / "logdisk" / "commitlog", tmp_path / "second" / "commitlog"
    second.mkdir(parents=True)
    for file in sorted(first.iterdir())[1::2]:
        file.rename(second / file.name)
    done = run_cli("diagnose", store, "-o", "json").document
    assert any(f"{first} and {second} have 7 files with records of it" in sentence for sentence in done["unknown"])
    assert f"storePathCommitLog={first},{second}, or move the files to {store}/commitlog" in run_cli("diagnose", store).stdout
    (tmp_path / "given.conf").write_text(f"storePathCommitLog={first},{second}\n")
    assert run_cli("diagnose", store, "--config", tmp_path / "given.conf", "-o", "json").document["loses"] == 0


def test_the_older_state_of_the_offsets_alone_shows_a_store(tmp_path: Path) -> None:
    store = unpack_site("config-only", tmp_path)
    (store / "checkpoint").unlink()
    offsets = store / "config" / "consumerOffset.json"
    offsets.rename(f"{offsets}.bak")
    assert run_cli("diagnose", store, "-o", "json").document["loses"] == 3172


@pytest.mark.parametrize("state", ["missing", "twice", "file", "windows", "empty"])
def test_odd_paths_in_a_configuration_are_a_sentence_or_a_finding(state: str, tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    log = tmp_path / "logdisk" / "commitlog"
    (tmp_path / "a-file").write_text("not a directory")
    path = {"missing": "/no/such/log", "twice": f"{log},{log}:{log}", "file": tmp_path / "a-file", "windows": r"D:\\mq\\log", "empty": ""}[
        state
    ]
    (tmp_path / "broker.conf").write_text(f"storePathCommitLog={path}\n")
    for command in ("inspect", "verify", "diagnose", "messages", "topics", "groups", "repair"):
        done = run_cli(command, store)
        assert done.status in (0, 1, 2)
        assert "Traceback" not in done.stderr
    states = [part["state"] for part in _site(store)["log"]]
    assert states == {"twice": ["here"]}.get(state, ["elsewhere"])
    if state == "twice":
        assert run_cli("verify", store).status == 0


# a log and nothing else


def test_a_bare_sound_log_is_not_damaged_and_may_be_of_4(tmp_path: Path) -> None:
    store = unpack_site("bare-log-47", tmp_path)
    found = run_cli("inspect", store, "-o", "json").document
    assert (found["fits"], found["suggested_version"], found["shutdown"]) == ("4.0 to 4.8, or of 5.2 and later", "4.7.1", "unknown")
    assert "do not open it with 4.x" not in run_cli("inspect", store).stdout
    report = run_cli("verify", store)
    assert (report.status, report.stdout.splitlines()[0][:57]) == (0, "Nothing is damaged, but there is only a log: 3 messages o")
    assert run_cli("diagnose", store, "-o", "json").document["loses"] == 0
    log = next((store / "commitlog").iterdir())
    raw = bytearray(log.read_bytes())
    raw[raw.index(b"body 1")] ^= 1
    log.write_bytes(raw)
    damaged = run_cli("verify", store, "-o", "json").document
    assert (damaged["ok"], damaged["messages"]) == (False, {"total": 3, "affected": 1})


def test_a_bare_log_of_5_shows_what_5_adds(tmp_path: Path) -> None:
    store = unpack_site("pop-unacked", tmp_path)
    for entry in store.iterdir():
        if entry.name != "commitlog":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    found = run_cli("inspect", store, "-o", "json").document
    assert (found["fits"], found["shutdown"]) == ("5.x", "unknown")
    store = unpack(case_named("5.1.4/a-clean"), tmp_path / "5.1")
    for entry in store.iterdir():
        if entry.name != "commitlog":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    assert run_cli("inspect", store, "-o", "json").document["fits"] == "4.9 and later 4.x, or of 5.0 and 5.1"


# an empty answer from what is left of a log


@pytest.mark.parametrize("state", ["whole", "begins", "hole", "elsewhere", "absent"])
def test_an_empty_answer_says_first_what_of_the_log_is_not_here(state: str, tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog" if state in ("elsewhere", "absent") else "log-file-renamed-bak", tmp_path)
    log = store / "commitlog"
    if state in ("elsewhere", "absent"):
        shutil.move(tmp_path / "logdisk", tmp_path / "away")
        if state == "absent":
            (tmp_path / "broker.conf").unlink()
            shutil.rmtree(tmp_path / "away")
    else:
        (log / "00000000000000131072.bak").rename(log / "00000000000000131072")
        if state != "whole":
            (log / f"{0 if state == 'begins' else 131072:020d}").unlink()
    said = {
        "whole": None,
        "begins": "the log begins at 65536: what was before that has expired, or is not here",
        "hole": "65,536 bytes of the log are missing, the first from commitlog/00000000000000131072 on",
        "elsewhere": f"what is in the rest of it cannot be told without the log at {tmp_path}/logdisk/commitlog",
        "absent": f"what is in the rest of it cannot be told without the log at {log}",
    }[state]
    shown = run_cli("query", store, "-t", "orders", "-k", "no-such-key")
    document = run_cli("query", store, "-t", "orders", "-k", "no-such-key", "-o", "json").document
    found = run_cli("find", store, "no-such-key")
    assert document["complete"] == (state in ("whole", "begins"))
    if said is None:
        assert "not here" not in shown.stdout + found.stdout + found.stderr
        return
    text = " ".join(shown.stdout.split())
    assert said in text
    assert "spelling" not in text or text.index("cannot be found") < text.index("spelling")
    assert said in " ".join((found.stdout + found.stderr).split())


# settings that nothing shows


def test_a_queue_file_size_that_nothing_shows_is_asked_for(tmp_path: Path) -> None:
    store = unpack_site("bare-log-47", tmp_path)
    said = "mappedFileSizeConsumeQueue is assumed to be 6000000, the broker's default: no queue file shows it"
    with unchanged(store):
        for command in (("rebuild", store, "--to", tmp_path / "new"), ("repair", store, "--apply")):
            done = run_cli(*command)
            assert (done.status, len(done.stderr.splitlines())) == (2, 1)
            assert said in done.stderr
            assert done.stderr.endswith("with --config, or accept the default with --assume-defaults\n")
        row = run_cli("repair", store, "-o", "json").document[0]
        assert said in row["why"]
        assert row["why"].endswith("--assume-defaults")
        assert row["assumes"].startswith(said)
        notes = [item["detail"] for item in run_cli("diagnose", store, "-o", "json").document["evidence"]]
        assert any(note.startswith(said) and note.endswith("--assume-defaults") for note in notes)
    done = run_cli("rebuild", store, "--to", tmp_path / "new", "--assume-defaults", "-o", "json")
    assert done.status == 0
    assert any(said in note for note in done.document["notes"])
    (file,) = (tmp_path / "new" / "consumequeue" / "orders" / "0").iterdir()
    assert file.stat().st_size == 6_000_000
    conf = tmp_path / "broker.conf"
    conf.write_text("# sizes\nmappedFileSizeConsumeQueue=4000\nmaxHashSlotNum=100\n")
    with unchanged(store):
        line = f"new queue files have 4000 bytes: mappedFileSizeConsumeQueue in {conf}, line 2"
        row = run_cli("repair", store, "-o", "json").document[0]
        assert (row["why"].endswith(line), row["assumes"]) == (True, None)
        notes = [item["detail"] for item in run_cli("diagnose", store, "-o", "json").document["evidence"]]
        assert {line, f"new index files have 100 slots: maxHashSlotNum in {conf}, line 3"} <= set(notes)
    assert run_cli("rebuild", store, "--to", tmp_path / "given", "--config", conf).status == 0
    assert run_cli("rebuild", store, "--to", tmp_path / "beside").status == 0
    for name in ("given", "beside"):
        (file,) = (tmp_path / name / "consumequeue" / "orders" / "0").iterdir()
        assert file.stat().st_size == 4000
    conf.unlink()
    assert run_cli("repair", store, "--apply", "--assume-defaults").status == 0
    assert run_cli("verify", store, "-o", "json").document["messages"] == {"total": 3, "affected": 0}


@pytest.mark.parametrize("state", ["elsewhere", "partly"])
def test_verify_without_the_log_or_half_of_it_is_neither_intact_nor_damaged(tmp_path: Path, state: str) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    log = tmp_path / "logdisk" / "commitlog"
    if state == "partly":
        (tmp_path / "broker.conf").write_text((tmp_path / "broker.conf").read_text().replace(f"={log}", f"={log},{tmp_path}/disk2"))
        for file in sorted(log.iterdir())[1::2]:
            file.unlink()
    else:
        shutil.move(log, tmp_path / "away")
    report = run_cli("verify", store, "-o", "json")
    assert (report.status, report.document["ok"], report.document["damage"]) == (1, False, [])
    assert not report.document["coverage"]["complete"]
    place = f"{tmp_path}/disk2" if state == "partly" else log
    assert f"Whether messages are damaged cannot be told without the log at {place}" in run_cli("verify", store).stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("lines", "places", "said"),
    [
        ("storePathCommitLog=/no/such/place", ["/no/such/place elsewhere"], "it is not here"),
        ("storePathCommitLog={log},{log}/", ["{log} here"], ""),
        ("storePathCommitLog={log}\nreadOnlyCommitLogStorePaths={link}", ["{log} here"], ""),
        ("storePathCommitLog={file}", ["{file} elsewhere"], "a file has that place"),
        ("storePathCommitLog={log},{file}", ["{log} here", "{file} elsewhere"], "a file has that place"),
        ("storePathCommitLog=/a\\u0000b", ["/a\0b elsewhere"], "it is not here"),
        (f"storePathCommitLog=/{'a' * 5000}", [f"/{'a' * 5000} elsewhere"], "it is not here"),
    ],
    ids=["nowhere", "twice", "twice-by-link", "file", "file-as-second", "nul", "long"],
)
def test_log_paths_that_do_not_exist_are_named_twice_or_are_files(tmp_path: Path, lines: str, places: list[str], said: str) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    names = {"log": f"{tmp_path}/logdisk/commitlog", "link": f"{tmp_path}/link", "file": f"{tmp_path}/file"}
    Path(names["link"]).symlink_to(names["log"])
    Path(names["file"]).write_text("x")
    (tmp_path / "broker.conf").write_text(f"storePathRootDir={store}\n{lines.format(**names)}\n")
    assert [f"{part['path']} {part['state']}" for part in _site(store)["log"]] == [place.format(**names) for place in places]
    listed = run_cli("messages", store, "-o", "jsonl")
    verified = run_cli("verify", store, "-o", "json").document
    assert (listed.status, verified["ok"], bool(listed.rows)) == (int(bool(said)), not said, places[0] == "{log} here")
    if said:
        text = run_cli("messages", store, "--limit", "1")
        assert said in " ".join((text.stdout + text.stderr).split())
        assert run_cli("diagnose", store, "-o", "json").document["loses"] == 0
        assert run_cli("repair", store).status == 2
