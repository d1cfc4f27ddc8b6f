"""Quorum queues of a node's data directory: what `verify` and `diagnose` say of them, whole and damaged."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import quorum
from support.golden import run_cli, unchanged

import mqstore
from mqstore.findings import Kind
from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.quorum.wal import read_wal
from mqstore.rabbitmq.salvage import messages_of
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.stores.rabbitmq import RabbitMQ

PUBLISH = b"\x68\x04\x77\x01e\x61"  # a tuple {e, Number, …} with a number below 256, as it is stored
MIX, OLD, SNAPSHOTS = "4.3.6/a-quorum-mix-kill9", "3.10.8/a-quorum-mix-kill9", "4.3.6/c-quorum-snapshots-kill9"


def opened(path: Path) -> RabbitMQ:
    store = mqstore.open(path)
    assert isinstance(store, RabbitMQ)
    return store


def listed(case: str) -> dict[str, tuple[int, int, int]]:
    return {name: tuple(map(int, numbers)) for name, kind, *numbers in quorum.counts(case)["queues"] if kind == "quorum"}


def counted(node: Path) -> list[dict[str, Any]]:
    return [row for row in run_cli("topics", node, "-o", "jsonl").rows if row["type"] == "quorum" and row["start"] != "not read"]


def shared(node: Path) -> Path:
    return node / "quorum" / "rabbit@localhost"


def wal_of(node: Path) -> Path:
    (path,) = shared(node).glob("*.wal")
    return path


def diagnosed(node: Path, *options: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    done = run_cli("diagnose", node, *options, "-o", "json")
    return done.document, {each["finding"]: each for each in done.document["evidence"]}


@pytest.mark.parametrize("case", quorum.CASES)
def test_a_whole_node_is_intact_and_keeps_all(case: str) -> None:
    node = quorum.node(case)
    with unchanged(node):
        report = opened(node).verify()
        diagnosis = opened(node).diagnose()
    assert (report.damage, report.affected) == ((), 0)
    assert report.checked.messages >= sum(total for _, _, total in listed(case).values()) > 0
    assert (diagnosis.starts, diagnosis.loses, diagnosis.unknown) == (True, 0, ())
    assert diagnosis.version == case[: case.rindex(".", 0, case.index("/"))]


def test_a_wrong_bit_in_the_middle_of_the_log_keeps_the_node_from_starting(tmp_path: Path) -> None:
    node = quorum.unpack(MIX, tmp_path)
    data = bytearray(wal_of(node).read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 1
    wal_of(node).write_bytes(bytes(data))
    document, evidence = diagnosed(node)
    assert (document["starts"], document["loses"]) == (False, 0)
    assert "does not start" in evidence["wal-damaged"]["detail"]
    assert Kind.BAD_WAL in {item.kind for item in opened(node).verify().damage}


def test_a_damaged_publish_does_not_hide_the_later_ones_of_its_publisher(tmp_path: Path) -> None:
    """The number that it gave itself was believed: later ones were lower, and taken for repeats of what the queue had seen."""
    node = quorum.unpack("4.0.5/b-quorum-long-clean", tmp_path)
    (path,) = shared(node).glob("2F_SNAE6A*/00000001.segment")
    raw = bytearray(path.read_bytes())
    at = raw.index(PUBLISH)

    def reported() -> int:
        (member,) = (each for each in opened(node).quorum_queues if each.log.uid == path.parent.name)
        return len(member.replay().messages) + len(member.departures)

    before = reported()
    raw[at + len(PUBLISH)] = 0xFE
    path.write_bytes(raw)
    assert reported() == before > 100


def test_a_log_of_0_bytes_keeps_the_node_from_starting(tmp_path: Path) -> None:
    node = quorum.unpack(MIX, tmp_path)
    (shared(node) / "0000000000000009.wal").touch()
    document, evidence = diagnosed(node)
    assert not document["starts"]
    assert "removing the file loses nothing" in evidence["wal-empty"]["detail"]
    assert opened(node).verify().damage == ()


def test_a_torn_log_starts_and_is_a_note(tmp_path: Path) -> None:
    node = quorum.unpack(MIX, tmp_path)
    wal_of(node).write_bytes(wal_of(node).read_bytes().rstrip(b"\0")[:-5])
    document, evidence = diagnosed(node)
    assert document["starts"]
    assert "drops it without a word" in evidence["wal-torn"]["detail"]


@pytest.mark.parametrize(("release", "starts"), [("3.8", False), ("3.9", None), ("3.10", True), ("4.3", True)])
def test_a_last_record_with_a_wrong_checksum_stops_3_8(release: str, starts: bool | None, tmp_path: Path) -> None:
    """Seen on 3.8.9, which does not start, and on 3.10.8 and 4.3.6, which drop the record."""
    node = quorum.unpack("3.8.9/a-quorum-mix-kill9", tmp_path)
    path = max(shared(node).glob("*.wal"), key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    last = read_wal(np.frombuffer(bytes(data), np.uint8), path.name).records[-1]
    data[int(last["position"]) + int(last["length"]) - 1] ^= 1
    path.write_bytes(data)
    document = run_cli("diagnose", node, "--for", release, "-o", "json").document
    seen = f"{path.name}: the last record, at byte {int(last['start']):,}, has a wrong checksum"
    assert any(sentence.endswith(f"{seen}; 3.8 does not, 3.10 does") for sentence in document["unknown"]) is (starts is None)
    said = [each["detail"] for each in document["evidence"] if each["finding"] == "wal-torn"]
    assert [f"a {release} node does not start" in each for each in said] == {True: [False], False: [True], None: []}[starts]
    assert document["starts"] or starts is False


def test_without_names_dets_4_3_rolls_back_and_the_messages_are_counted(tmp_path: Path) -> None:
    """The write-ahead log is skipped: messages that are only in it are lost, and acknowledged ones of segments come back."""
    node = quorum.unpack(MIX, tmp_path / "mix")
    delivered = sum(queue.recovered for part in opened(node).examined_quorum for queue in part.queues)
    (shared(node) / "names.dets").unlink()
    document, evidence = diagnosed(node)
    assert document["starts"]
    assert document["loses"] == delivered >= 200
    assert "skips the write-ahead log" in evidence["names-missing"]["detail"]
    node = quorum.unpack(SNAPSHOTS, tmp_path / "snapshots")
    before, _ = diagnosed(node)
    (shared(node) / "names.dets").unlink()
    after, _ = diagnosed(node)
    assert before["loses"] == 0
    assert after["redelivers"] > before["redelivers"]


def test_without_names_dets_no_queue_of_3_10_is_usable(tmp_path: Path) -> None:
    node = quorum.unpack(OLD, tmp_path)
    (shared(node) / "names.dets").unlink()
    document, evidence = diagnosed(node)
    assert document["loses"] >= sum(len(rows) for rows in quorum.delivered(OLD).values())
    assert "without a leader" in evidence["member-unknown"]["detail"]


def test_a_missing_log_is_unknown_by_number_and_never_called_fine(tmp_path: Path) -> None:
    node = quorum.unpack(SNAPSHOTS, tmp_path)
    for path in shared(node).glob("*.wal"):
        path.unlink()
    document, evidence = diagnosed(node)
    assert "acknowledged messages come back" in evidence["wal-missing"]["detail"]
    assert any("A write-ahead log is missing" in sentence for sentence in document["unknown"])
    assert Kind.MISSING_ENTRIES in {item.kind for item in opened(node).verify().damage}


def test_a_queue_that_fails_in_recovery_counts_all_its_messages_once(tmp_path: Path) -> None:
    case = "3.10.8/b-quorum-long-kill9"
    node = quorum.unpack(case, tmp_path)
    before, _ = diagnosed(node)
    (queue,) = [each for part in opened(node).examined_quorum for each in part.queues if each.queue == "snap.holes"]
    sorted((node / queue.place).glob("*.segment"))[1].unlink()
    document, evidence = diagnosed(node)
    assert "clients see no message" in evidence["entries-missing"]["detail"]
    assert before["loses"] == 0
    assert document["loses"] == evidence["entries-missing"]["messages"] + sum(
        each["messages"] for name, each in evidence.items() if name == "bodies-missing"
    )
    assert document["unknown"]


def test_4_3_on_a_directory_of_3_10_closes_consumers_by_name_and_count() -> None:
    node = quorum.node(OLD)
    document, _ = diagnosed(node, "--for", "4.3")
    closed = [each for each in document["evidence"] if each["finding"] == "redelivery-fails"]
    assert (len(closed), document["loses"]) == (11, 121)
    assert any("quorum queue 'unacked' of vhost '/'" in each["detail"] for each in closed)
    document, evidence = diagnosed(node, "--for", "3.10")
    assert (document["loses"], "redelivery-fails" in evidence) == (0, False)
    document, evidence = diagnosed(node, "--for", "4.1")
    assert "redelivery-fails" not in evidence
    assert len([sentence for sentence in document["unknown"] if "whether 4.1 redelivers" in sentence]) == 11


def test_a_node_of_an_older_machine_is_unknown() -> None:
    document, _ = diagnosed(quorum.node(MIX), "--for", "4.0")
    assert any("its machine has version 8, and the node runs up to 5" in sentence for sentence in document["unknown"])


# usage


@pytest.mark.parametrize("case", quorum.CASES)
def test_usage_counts_every_byte_of_the_logs_and_every_message_of_the_queues(case: str) -> None:
    node = quorum.node(case)
    done = run_cli("usage", node, "-o", "json")
    assert done.status == 0
    members, logs = done.document["members"], done.document["logs"]
    files = [path for path in (node / "quorum").rglob("*") if path.suffix in (".wal", ".segment") or path.name == "snapshot.dat"]
    assert sum(log["bytes"] for log in logs) == sum(path.stat().st_size for path in files if not path.is_symlink()) > 0
    counts = {(row["vhost"], row["queue"]): row["total"] for row in counted(node)}
    assert {(each["vhost"], each["queue"]): each["messages"] for each in members} == counts
    for each in members:
        assert each["bytes"] == each["wal_bytes"] + each["segment_bytes"] >= each["live_bytes"]
        assert each["live_entries"] + each["held_dead"] <= each["entries"]
    assert sum(log["live_entries"] for log in logs) == sum(each["live_entries"] for each in members)


def test_usage_names_the_consumer_whose_message_holds_the_log() -> None:
    """The first of them was never acknowledged; a snapshot of 3.10 cannot be above it, so that everything after it stays."""
    done = run_cli("usage", quorum.node("3.10.8/b-quorum-long-kill9"), "--by", "member", "-o", "jsonl")
    (row,) = [row for row in done.rows if row["queue"] == "snap.holes"]
    assert (row["oldest"], row["state"]) == (8, "checked-out")
    assert row["consumer"].startswith("ctag1.")
    assert row["held_dead"] > 2 * row["messages"]
    text = run_cli("usage", quorum.node("3.10.8/b-quorum-long-kill9"), "--by", "log").stdout
    assert "/: snap.holes (161)" in text


def test_usage_counts_the_records_of_deleted_queues_and_a_damaged_log_is_damage(tmp_path: Path) -> None:
    node = quorum.unpack(MIX, tmp_path)
    (member, *_) = [each for part in opened(node).examined_quorum for each in part.queues if each.queue == "plain"]
    shutil.rmtree(node / member.place)
    (log,) = [log for log in run_cli("usage", node, "-o", "json").document["logs"] if log["kind"] == "wal"]
    assert log["queues"]["of deleted queues"] == member.entries
    data = bytearray(wal_of(node).read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 1
    wal_of(node).write_bytes(bytes(data))
    assert run_cli("usage", node).status == 1


# queue


def test_queue_lists_every_message_of_the_log_in_the_order_of_the_queue_and_why_others_left() -> None:
    node = quorum.node(OLD)
    rows = run_cli("queue", node, "/", "purged", "-o", "jsonl").rows
    delivered = quorum.delivered(OLD)["/", "purged"]
    assert [row["pos"] for row in rows if row["recovered"]] == list(range(len(delivered)))
    assert [row["state"] for row in rows].count("purged at index 17") == 9
    assert [row["raft_index"] for row in rows] == [4, 5, 6, 18, 19, 20, 21, *range(7, 16)]
    some = run_cli("queue", node, "/", "purged", "--from-seq", "6", "--to-seq", "19", "--view", "recovered", "-o", "jsonl").rows
    assert [row["raft_index"] for row in some] == [6, 18]
    text = run_cli("queue", node, "/", "purged")
    assert "7 ready, 0 unacknowledged, 7 in all" in text.stdout
    assert text.stdout.endswith("3 checked-out, 4 ready, 9 gone\n")


@pytest.mark.parametrize("case", quorum.CASES)
def test_the_counts_of_queue_are_those_of_topics(case: str) -> None:
    for row in counted(quorum.node(case)):
        done = run_cli("queue", quorum.node(case), row["vhost"], row["queue"], "--limit", "1")
        assert done.status == 0, (row, done.stderr)
        sums = f"{row['ready']:,} ready, {row['unacknowledged']:,} unacknowledged, {row['total']:,} in all"
        assert f"a restarted node lists {sums}" in done.stdout


def test_queue_of_a_damaged_log_notes_the_damage_and_what_is_uncertain(tmp_path: Path) -> None:
    node = quorum.unpack(SNAPSHOTS, tmp_path)
    for path in shared(node).glob("*.wal"):
        path.unlink()
    done = run_cli("queue", node, "/", "snap.fifo")
    assert done.status == 1
    assert "A write-ahead log is missing" in done.stderr
    done = run_cli("queue", node, "/", "snap.fif")
    assert (done.status, "did you mean 'snap.fifo'" in done.stderr) == (1, True)
    assert run_cli("queue", node, "/", "snap.fifo", "--priority", "1").status == 2


# members


def test_members_names_the_furthest_and_what_the_others_lack(tmp_path: Path) -> None:
    ahead, behind = quorum.unpack(MIX, tmp_path / "a"), quorum.unpack(MIX, tmp_path / "b")
    data = wal_of(behind).read_bytes().rstrip(b"\0")
    wal_of(behind).write_bytes(data[: len(data) // 3])
    done = run_cli("members", behind, ahead, "-o", "jsonl")
    assert done.status == 0, done.stderr
    by_queue: dict[str, list[dict[str, Any]]] = {}
    for row in done.rows:
        by_queue.setdefault(row["queue"], []).append(row)
    lagging = 0
    for rows in by_queue.values():
        (first, second) = rows
        assert [row["node"] for row in rows] == [str(behind), str(ahead)]
        if first["last_index"] < second["last_index"]:
            lagging += 1
            assert (first["best"], second["best"]) == (False, True)
            assert (second["missing"], first["unique"]) == (0, 0)
            assert all(index > first["last_index"] for index in second["unique_indexes"])
            assert set(second["unique_indexes"]) <= set(first["missing_indexes"])
    assert lagging >= 5


def test_members_says_what_the_furthest_lacks_with_status_1(tmp_path: Path) -> None:
    """The furthest has lost its older segments: messages that only the other has are named, by their entries."""
    case = "3.10.8/b-quorum-long-kill9"
    ahead, behind = quorum.unpack(case, tmp_path / "a"), quorum.unpack(case, tmp_path / "b")
    (queue,) = [each for part in opened(ahead).examined_quorum for each in part.queues if each.queue == "snap.other"]
    sorted((ahead / queue.place).glob("*.segment"))[0].unlink()
    data = wal_of(behind).read_bytes().rstrip(b"\0")
    wal_of(behind).write_bytes(data[: len(data) // 2])
    done = run_cli("members", ahead, behind, "--queue", "snap.other", "-o", "jsonl")
    assert done.status == 1
    (best,) = [row for row in done.rows if row["best"]]
    assert best["node"] == str(ahead)
    assert best["gaps"] > 0
    assert len(best["missing_indexes"]) == best["missing"] > 0
    text = run_cli("members", ahead, behind, "--queue", "snap.other")
    assert f"lacks {best['missing']} messages that others have" in text.stderr


def test_members_refuses_what_is_no_node_and_names_members_that_are_not_given(tmp_path: Path) -> None:
    done = run_cli("members", tmp_path)
    assert (done.status, "give the data directory of a node" in done.stderr) == (2, True)
    assert run_cli("members", quorum.node(MIX), "--queue", "no such").status == 1
    node = quorum.unpack(MIX, tmp_path)
    (queue,) = [each for part in opened(node).examined_quorum for each in part.queues if each.queue == "plain"]
    config = node / queue.place / "config"
    lone = b"initial_members => [{'%2F_plain',rabbit@localhost}]"
    assert lone in config.read_bytes()
    config.write_bytes(config.read_bytes().replace(lone, lone[:-1] + b",{'%2F_plain',rabbit@b},{'%2F_plain',rabbit@c}]"))
    (row,) = run_cli("members", node, "--queue", "plain", "-o", "jsonl").rows
    assert (row["absent"], row["held"]) == (["rabbit@b", "rabbit@c"], None)
    assert row["uncertain"] or row["last_applied"] == row["last_index"]


def test_a_damaged_log_of_the_metadata_stops_the_node_and_what_was_saved_goes_to_a_new_one(tmp_path: Path) -> None:
    node = quorum.unpack(MIX, tmp_path)
    [path] = (node / "coordination").glob("*/*.wal")
    raw = bytearray(path.read_bytes())
    raw[len(raw.rstrip(b"\0")) // 2] ^= 0x40
    path.write_bytes(bytes(raw))
    found = run_cli("diagnose", node, "-o", "json")
    assert (found.status, found.document["starts"], found.document["redelivers"]) == (2, False, 0)
    assert found.document["evidence"][0]["finding"] == "wal-damaged"
    words = shlex.split(found.document["next"])
    assert words[1] == "salvage"
    run_cli(*words[1:])
    words = shlex.split(run_cli("diagnose", node, "-o", "json").document["next"])
    assert words[1] == "rescue"
    assert run_cli(*words[1:]).status == 1  # and lists the damage
    assert (tmp_path / "node.new" / "STEPS.md").exists()


def test_a_log_that_ends_in_its_header_stops_the_node_and_is_taken_out(tmp_path: Path) -> None:
    node = quorum.unpack(MIX, tmp_path)
    (shared(node) / f"{99:016}.wal").write_bytes(b"RAW")
    assert not run_cli("diagnose", node, "-o", "json").document["starts"]
    assert run_cli("repair", node, "--apply").status == 0
    assert run_cli("diagnose", node, "-o", "json").document["starts"]


@pytest.mark.parametrize("case", [MIX, OLD])
def test_a_log_with_records_of_a_queue_whose_directory_is_gone_is_named_and_salvaged(case: str, tmp_path: Path) -> None:
    """Real nodes of 3.10.8 and 4.3.6 drop those records at their start, and start the queue empty or not at all."""
    node = quorum.unpack(case, tmp_path)
    (log,) = shared(node).glob("*.wal")
    (directory,) = (path for path in shared(node).glob("2F_UNA*") if path.is_dir())
    shutil.rmtree(directory)
    for command in ("verify", "diagnose"):
        document = run_cli(command, node, "-o", "json").document
        (said,) = {line for line in said_in(document) if directory.name in line and ".wal" in line and line.startswith("what is in")}
        assert f"{log.relative_to(node)} has records of it, which a node drops at its start: salvage writes those messages, too" in said
    assert run_cli("salvage", node, "--to", tmp_path / "rows.jsonl").status == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    found = [row for row in rows if (row["vhost"], row["queue"]) == ("/", "unacked")]
    assert sorted(row["properties"]["message_id"] for row in found) == sorted(f"u{number}" for number in range(20))
    assert {row["verdict"] for row in found} <= {"unindexed", "consumed"}
    assert {row["store_file"] for row in found} == {f"{log.relative_to(node)}"}
    for queues, number in ((frozenset({"unacked"}), len(found)), (frozenset({"other"}), 0)):
        assert sum(map(len, messages_of(RabbitMQStore(node), ("queue",), queues=queues))) == number


def test_queues_that_are_only_below_the_name_of_another_node_count_as_lost(tmp_path: Path) -> None:
    """The directory has another name here, so the metadata say which node it is."""
    node = quorum.unpack(OLD, tmp_path)
    names = {path.name for path in shared(node).iterdir() if path.is_dir()}
    (own,) = (name for name in names if name.startswith("2F_UNA"))
    shutil.copytree(shared(node), node / "quorum" / "rabbit@other", ignore=lambda *_: names - {own})
    shutil.rmtree(shared(node) / own)
    found = diagnose(RabbitMQStore(node))
    (lost,) = (item for item in found.evidence if item.finding == "other-node")
    where = "is in quorum/rabbit@other, and the node looks in quorum/rabbit@localhost (18 messages)"
    assert (lost.detail, lost.messages, found.loses) == (f"quorum queue 'unacked' of vhost '/' {where}", 18, 18)
    assert not [sentence for sentence in found.unknown if sentence.startswith("which of")]


def said_in(document: Any) -> list[str]:
    """Return all texts of a document."""
    if isinstance(document, dict | list):
        return [text for each in (document.values() if isinstance(document, dict) else document) for text in said_in(each)]
    return [document] if isinstance(document, str) else []
