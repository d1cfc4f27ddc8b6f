"""States that operators of RocketMQ reported, made from a store of a real 4.9.3: what is said of each, and what must not be."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from support.golden import run_cli, unpack_site

ENTRY = struct.Struct(">qiq")
GARBAGE = bytes((37 * number + 11) % 256 for number in range(200))
_TOPIC = {"topicName": "orders", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "attributes": {"cleanup.policy": "COMPACTION"}}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """1,500 messages of topic `orders` in seven log files; queue files of 300 entries, 375 in each queue; group `billing` is at 300."""
    store = unpack_site("separate-commitlog", tmp_path)
    shutil.move(tmp_path / "logdisk" / "commitlog", store / "commitlog")
    (tmp_path / "broker.conf").unlink()
    return store


def _said(store: Path, *options: object) -> dict[str, Any]:
    document: dict[str, Any] = run_cli("diagnose", store, "-o", "json", *options).document
    return document


def _details(said: dict[str, Any], finding: str) -> str:
    return " ".join(item["detail"] for item in said["evidence"] if item["finding"] == finding)


def _last_file(store: Path, queue_id: int) -> Path:
    return sorted((store / "consumequeue" / "orders" / str(queue_id)).iterdir())[-1]


def _keep(file: Path, entries: int) -> None:
    file.write_bytes(file.read_bytes()[: entries * ENTRY.size].ljust(file.stat().st_size, b"\0"))


def test_1231_a_log_path_that_names_the_directory_above_the_log(store: Path) -> None:
    conf = store.parent / "broker.conf"
    conf.write_text(f"storePathRootDir={store}\nstorePathCommitLog={store}\n")
    said = _said(store)
    assert not _details(said, "absent-part")
    assert f"let that line name {store}/commitlog" in said["why"]
    assert "must have 0" not in json.dumps(said)
    report = run_cli("verify", store, "-o", "json")
    assert (report.status, report.document["messages"]["affected"]) == (1, 0)
    (log,) = (part for part in run_cli("inspect", store, "-o", "json").document["site"] if part["part"] == "log")
    assert (log["path"], log["state"]) == (f"{store}/commitlog", "elsewhere")
    conf.write_text(f"storePathRootDir={store}\nstorePathCommitLog={store}/commitlog\n")
    assert run_cli("verify", store).status == 0


def test_1231_a_root_that_names_the_directory_above_the_store(store: Path) -> None:
    conf = store.parent / "broker.conf"
    conf.write_text(f"storePathRootDir={store.parent}\n")
    said = _said(store)
    assert f"names {store.parent}, where no store is; this one is below it, in {store}" in said["unknown"][0]
    assert f"let that line name {store}" in said["why"]
    conf.write_text(f"storePathRootDir={store}\n")
    assert (_said(store)["loses"], _said(store)["unknown"]) == (0, [])


def test_2141_a_log_file_in_the_middle_that_nobody_deleted(store: Path) -> None:
    sorted((store / "commitlog").iterdir())[2].unlink()
    said = _said(store)
    assert said["loses"] == 248
    assert "whatever is done" not in json.dumps(said)
    assert "look for these files in a backup, a replica or on another disk before anything is changed" in _details(said, "gone")


def test_2141_what_a_missing_file_had_may_be_found(store: Path) -> None:
    (store / "commitlog/00000000000000131072").unlink()
    shown = " ".join(run_cli("repair", store).stdout.split())
    assert "Cost: what is in the file, if it is found later: look for it in a backup, a replica or on another disk first." in shown
    assert "lost already" not in shown


def test_3900_several_paths_whose_text_became_a_directory_in_the_first(store: Path) -> None:
    """apache/rocketmq #3900: 4.9.3 takes the directory `,` for a log file. A repair, which refuses, is not advised."""
    disks = [store.parent / f"ssd{number}/commitlog" for number in (2, 3, 4)]
    for disk in disks:
        disk.mkdir(parents=True)
    for number, file in enumerate(sorted((store / "commitlog").iterdir())):
        shutil.move(file, disks[number % 3] / file.name)
    (store / "commitlog").rmdir()
    paths = ",".join(f"{disk}/" for disk in disks)
    (store.parent / "broker.conf").write_text(f"storePathRootDir={store}\nstorePathCommitLog={paths}\n")
    assert (_said(store)["starts"], _said(store)["loses"]) == (True, 0)
    Path(paths).mkdir(parents=True)
    said = _said(store)
    assert said["starts"] is False
    assert "commitlog/, is a directory, which 4.9.3 treats as a file of the wrong size; move it away" in _details(said, "stray-file")
    for command in ("diagnose", "verify"):
        assert f"mqstore rebuild {store} --to {store}.new" in run_cli(command, store).stdout, command


def test_5905_a_power_cut_emptied_the_configuration_and_spared_the_bak(store: Path) -> None:
    """apache/rocketmq #5905."""
    files = sorted((store / "config").glob("*.json"))
    for file in files:
        shutil.copy(file, f"{file}.bak")
        file.write_bytes(b"")
    said = _said(store)
    assert (said["starts"], said["loses"]) == (True, 0)
    assert _details(said, "bad-config").count("the file is empty: the broker loads the .bak, an older state") == len(files)
    found = run_cli("verify", store, "-o", "json").document["damage"]
    assert {item["file"] for item in found} == {f"config/{file.name}" for file in files}


@pytest.mark.parametrize("name", ["delayOffset.json", "consumerFilter.json"])
def test_1498_a_file_that_keeps_the_broker_from_starting_is_damage(name: str, store: Path) -> None:
    """apache/rocketmq #1498: `verify` said that nothing is damaged, and `diagnose` that no broker starts."""
    for file in (store / "config" / name, store / "config" / f"{name}.bak"):
        file.write_bytes(bytes(21))
    said = _said(store)
    assert said["starts"] is False
    assert _details(said, "bad-config").count("the file is full of zeros") == 1
    found = run_cli("verify", store, "-o", "json").document
    assert (found["ok"], [item["file"] for item in found["damage"]]) == (False, [f"config/{name}", f"config/{name}.bak"])
    run_cli("repair", store, "--apply", "--journal", store.parent / "journal")
    assert run_cli("verify", store, "-o", "json").document["ok"]


def test_1560_a_file_size_under_a_name_that_only_older_brokers_know(store: Path) -> None:
    """apache/rocketmq #1560: after the update to 4.5.2, "length not matched message store config value"."""
    conf = store.parent / "broker.conf"
    conf.write_text("mapedFileSizeCommitLog=65536\nmapedFileSizeConsumeQueue=6000\n")
    said = _said(store, "--for", "4.9.3")
    assert said["starts"] is False
    line = f"mapedFileSizeConsumeQueue in {conf}, line 2"
    assert f"{line} is a name that 4.9.3 does not know: it takes 6000000, and does not load files of 6000" in _details(said, "refused")
    assert f"write mappedFileSizeConsumeQueue instead of {line}" in said["why"]
    assert _said(store, "--for", "4.3.2")["starts"]
    conf.write_text(conf.read_text().replace("mapedF", "mappedF"))
    assert _said(store, "--for", "4.9.3")["starts"]
    assert "is a name that 4.3.2 does not know" in _details(_said(store, "--for", "4.3.2"), "refused")


def test_2179_a_broker_that_never_stored_a_message(tmp_path: Path) -> None:
    """apache/rocketmq #2179: no directory `commitlog` is there, and nothing says that there was one."""
    store = tmp_path / "store"
    (store / "config").mkdir(parents=True)
    (store / "checkpoint").write_bytes(bytes(4096))
    (store / "abort").touch()
    for name in ("topics", "subscriptionGroup", "consumerOffset"):
        (store / "config" / f"{name}.json").write_text("{}")
    said = _said(store)
    assert (said["starts"], said["loses"], said["unknown"]) == (True, 0, [])


def test_2260_settings_of_templates_that_no_broker_reads(store: Path) -> None:
    """apache/rocketmq #1715, #2260: queues, index and checkpoint are in the root, whatever a configuration says of them."""
    names = ("storePathConsumeQueue", "storePathIndex", "storeCheckpoint", "abortFile")
    lines = "".join(f"{name}={store.parent}/elsewhere\n" for name in names)
    (store.parent / "broker.conf").write_text(f"storePathRootDir={store}\n{lines}")
    assert f"that are not used: {', '.join(names)}." in " ".join(run_cli("inspect", store).stdout.split())
    assert (_said(store)["starts"], _said(store)["loses"], _said(store)["unknown"]) == (True, 0, [])


def test_9728_and_10108_a_queue_whose_last_file_is_empty(store: Path) -> None:
    """A real 5.3.3 ends with an IllegalArgumentException if nothing is dispatched into that file before its minimum is corrected."""
    _last_file(store, 0).write_bytes(bytes(6000))
    assert _said(store, "--for", "5.3.3")["starts"]  # the record at the end of the queues truncates that file to one entry
    last = max((3, 2, 1), key=lambda number: max(ENTRY.iter_unpack(_last_file(store, number).read_bytes())))
    _keep(_last_file(store, last), 74)
    said = _said(store, "--for", "5.3.3")
    assert (said["starts"], said["loses"]) == (False, 0)
    assert "consumequeue/orders/0/00000000000000006000" in _details(said, "refused")
    assert _said(store, "--for", "4.9.3")["starts"]
    assert run_cli("repair", store, "--apply").status == 0
    said = _said(store, "--for", "5.3.3")
    assert (said["starts"], said["loses"]) == (True, 0)


@pytest.mark.parametrize("bak", [False, True])
def test_3401_and_6096_offsets_that_a_power_cut_left_as_garbage(store: Path, bak: bool) -> None:
    offsets = store / "config" / "consumerOffset.json"
    if bak:
        shutil.copy(offsets, f"{offsets}.bak")
    offsets.write_bytes(GARBAGE)
    (store / "config" / "delayOffset.json").write_bytes(bytes(58))
    said = _said(store)
    assert (said["starts"], said["loses"]) == (True, 0)
    assert any("how far the groups in its unreadable part had come" in sentence for sentence in said["unknown"])
    assert ("the older offsets of its .bak" if bak else "no offsets at all") in " ".join(said["unknown"])


def test_7729_offsets_whose_bak_is_garbage_too_keep_the_broker_from_starting(store: Path) -> None:
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store / "config" / name).write_bytes(GARBAGE)
    said = _said(store)
    assert (said["starts"], said["loses"]) == (False, 0)
    assert run_cli("repair", store, "--apply").status in (0, 1)
    assert _said(store)["starts"]


def test_7355_the_last_file_of_a_queue_is_gone(store: Path) -> None:
    _last_file(store, 0).unlink()
    for version in ("4.9.3", "5.3.3"):
        said = _said(store, "--for", version)
        assert (said["starts"], said["loses"]) == (True, 75)
    assert run_cli("repair", store, "--apply").status == 0
    assert _said(store)["loses"] == 0


def test_2181_an_offset_one_after_the_end(store: Path) -> None:
    offsets = store / "config" / "consumerOffset.json"
    offsets.write_text(offsets.read_text().replace("0:300", "0:376"))
    assert _said(store, "--for", "4.9.3")["redelivers"] == 375
    assert _said(store, "--for", "5.3.3")["redelivers"] == 0


def test_1609_blanks_after_the_paths_of_a_configuration(store: Path) -> None:
    shutil.move(store / "commitlog", store.parent / "log")
    (store.parent / "broker.conf").write_text(f"storePathRootDir={store}  \nstorePathCommitLog={store.parent}/log \t \n")
    said = _said(store)
    assert (said["starts"], said["loses"], said["unknown"]) == (True, 0, [])


def test_7540_the_earliest_messages_of_a_compacted_topic(store: Path) -> None:
    (store / "compaction" / "compactionLog" / "orders" / "0").mkdir(parents=True)
    (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"orders": _TOPIC}}))
    said = _said(store)
    assert said["loses"] == 0
    assert any("what consumers get of topic 'orders'" in sentence for sentence in said["unknown"])


def test_678_a_checkpoint_that_is_ahead_of_the_queues_after_a_crash(store: Path) -> None:
    (store / "abort").touch()
    checkpoint = store / "checkpoint"
    raw = checkpoint.read_bytes()
    checkpoint.write_bytes(struct.pack(">3q", *(time + 600_000 for time in struct.unpack_from(">3q", raw))) + raw[24:])
    for number in range(4):
        _keep(_last_file(store, number), 20)
    said = _said(store)
    assert (said["starts"], said["loses"]) == (True, 206)
    assert run_cli("repair", store, "--apply").status == 0
    assert _said(store)["loses"] == 0


def test_9826_and_9984_topics_that_a_switch_of_the_master_deleted(store: Path) -> None:
    """Directories of queues and the topics of the configuration are gone; the log has all messages, and a broker lists none of them."""
    (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {}}))
    for number in range(1, 4):
        shutil.rmtree(store / "consumequeue" / "orders" / str(number))
    said = _said(store)
    assert (said["starts"], said["loses"]) == (
        True,
        1122,
    )  # the last record of each of them is after the end of queue 0, from where on the start lists
    assert "in the log, but not in their queues" in _details(said, "unlisted")
    assert run_cli("repair", store, "--apply", "--assume-defaults").status == 0
    assert _said(store)["loses"] == 0


def test_2784_queues_that_end_before_the_log_begins(store: Path) -> None:
    for file in sorted((store / "commitlog").iterdir())[:3]:
        file.unlink()
    for number in range(4):
        _last_file(store, number).unlink()
        _keep(_last_file(store, number), 100)
    said = _said(store)
    assert "the log begins at 196608, and what was before it has expired, or is in files that are not here" in _details(said, "gone")
    assert "whatever is done" not in json.dumps(said)


@pytest.mark.parametrize("name", ["broker.conf", "../broker.conf", "../conf/broker.conf"])
@pytest.mark.parametrize("damage", ["directory", "text"])
def test_a_configuration_that_cannot_be_read_may_say_where_the_log_is(name: str, damage: str, tmp_path: Path) -> None:
    store = unpack_site("separate-commitlog", tmp_path)
    (store / "../broker.conf").unlink()
    configuration = store / name
    configuration.parent.mkdir(exist_ok=True)
    if damage == "directory":
        configuration.mkdir()
    else:
        configuration.write_bytes(b"storePathCommitLog=/logs\nmappedFileSizeCommitLog=many\n")
    answer = run_cli("diagnose", store, "-o", "json")
    assert (answer.status, answer.document["loses"]) == (1, 0)
    (unknown,) = answer.document["unknown"]
    assert str(configuration.resolve()) in unknown
    assert "cannot be told without the log at the place that the configuration names" in unknown
