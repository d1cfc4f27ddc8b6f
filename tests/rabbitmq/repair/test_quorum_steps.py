"""Repair of quorum queues: the plan, what it costs, what is read afterwards, and the way back. Nodes judge in tests/interop."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support import quorum
from support.golden import run_cli, unchanged

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.quorum.queue import QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import RaftDirectory, raft_systems
from mqstore.rabbitmq.quorum.wal import read_wal

MIX, OLD, LONG = "4.3.6/a-quorum-mix-kill9", "3.10.8/a-quorum-mix-kill9", "4.3.6/c-quorum-snapshots-kill9"


def shared(node: Path) -> Path:
    return node / "quorum" / "rabbit@localhost"


def wal_of(node: Path) -> Path:
    return max(shared(node).glob("*.wal"), key=lambda path: path.stat().st_size)


def system_of(node: Path) -> RaftDirectory:
    (system,) = raft_systems(ReadOnlyDirectory(node), "quorum")
    return system


def contents(node: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Return index and entry of every message that a restarted node delivers, by member."""
    found = {}
    system = system_of(node)
    for uid in system.uids:
        queue = QuorumQueue(system.member(uid))
        messages = [message for message in queue.replay().messages if message.recovered]
        found[uid] = [(message.index, queue.log.entry(message.row).entry) for message in messages]
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("case", [MIX, OLD, LONG, "4.0.5/a-quorum-mix-kill9", "3.8.9/a-quorum-mix-kill9"])
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_record_costs_its_own_queue_what_the_plan_says_and_no_other_anything(case: str, seed: int, tmp_path: Path) -> None:
    node = quorum.unpack(case, tmp_path)
    before = contents(node)
    path = wal_of(node)
    luck = random.Random(f"{case} {seed}")
    wal = read_wal(ReadOnlyDirectory(shared(node)).mapped(path.name).load(0, path.stat().st_size), path.name)
    record = wal.records[luck.randrange(len(wal.records) // 2)]
    hit = wal.uids[int(record["uid"])].decode()
    flip(path, luck.randrange(int(record["start"]) + 3, int(record["position"] + record["length"])))
    assert run_cli("diagnose", node, "-o", "json").document["starts"] is False
    steps = mqstore.open(node).repair(journal=tmp_path / "undo").as_dict()["steps"]
    (step,) = [step for step in steps if step["step"] == "wal-record"]
    with unchanged(node):
        run_cli("repair", node, "--plan", "--journal", tmp_path / "undo")
    damaged = path.read_bytes()
    done = run_cli("repair", node, "--apply", "--journal", tmp_path / "undo")
    assert done.status == 0, done.stderr
    again = run_cli("diagnose", node, "-o", "json").document
    assert again["starts"], again["evidence"]
    after = contents(node)
    assert {uid: messages for uid, messages in after.items() if uid != hit} == {
        uid: messages for uid, messages in before.items() if uid != hit
    }
    lost = {index for index, _ in before[hit]} - {index for index, _ in after[hit]}
    assert not lost or step["loss"]
    assert dict(after[hit]).items() <= all_entries(case, hit).items()
    assert run_cli("repair", node, "--undo", "--journal", tmp_path / "undo").status == 0
    assert path.read_bytes() == damaged


def all_entries(case: str, uid: str) -> dict[int, bytes]:
    log = system_of(quorum.node(case)).member(uid)
    return {int(log.index[row]): log.entry(row).entry for row in range(len(log))}


def test_a_log_of_0_bytes_is_taken_out_and_nothing_is_lost(tmp_path: Path) -> None:
    node = quorum.unpack(MIX, tmp_path)
    before = contents(node)
    empty = shared(node) / "0000000000000009.wal"
    empty.touch()
    assert run_cli("diagnose", node, "-o", "json").document["next"].startswith("mqstore repair")
    assert run_cli("repair", node, "--apply", "--journal", tmp_path / "undo").status == 0
    assert not empty.exists()
    assert contents(node) == before
    assert run_cli("diagnose", node, "-o", "json").document["loses"] == 0
    assert run_cli("repair", node, "--undo", "--journal", tmp_path / "undo").status == 0
    assert empty.exists()


@pytest.mark.parametrize("case", [MIX, OLD])
def test_members_that_names_dets_lacks_are_written_into_it(case: str, tmp_path: Path) -> None:
    node = quorum.unpack(case, tmp_path)
    names = system_of(node).names
    content = (shared(node) / "names.dets").read_bytes()
    (shared(node) / "names.dets").unlink()
    document = run_cli("diagnose", node, "-o", "json").document
    assert (document["loses"] > 0, document["next"].startswith("mqstore repair")) == (True, True)
    assert run_cli("repair", node, "--apply", "--journal", tmp_path / "undo").status == 0
    assert system_of(node).names == names
    document = run_cli("diagnose", node, "-o", "json").document
    assert (document["starts"], document["loses"]) == (True, 0)
    assert run_cli("repair", node, "--undo", "--journal", tmp_path / "undo").status == 0
    assert not (shared(node) / "names.dets").exists()
    (shared(node) / "names.dets").write_bytes(content)
    assert run_cli("repair", node, "-o", "json").document == []


def test_damage_without_a_remedy_has_no_step_and_repair_is_not_advised(tmp_path: Path) -> None:
    node = quorum.unpack("3.10.8/b-quorum-long-kill9", tmp_path)
    member = next(path for path in shared(node).iterdir() if len(list(path.glob("*.segment"))) > 3)
    sorted(member.glob("*.segment"))[1].unlink()
    document = run_cli("diagnose", node, "-o", "json").document
    assert document["loses"] > 0
    assert not document["next"].startswith("mqstore repair")
    assert not any(way["command"].startswith("mqstore repair") for way in document["ways"])
