"""Repair of quorum queues: the plan, what it costs, what is read afterwards, and the way back. Nodes judge in tests/interop."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from support import quorum
from support.golden import run_cli, unchanged

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.erlang.terms import Atom, Term, encode
from mqstore.rabbitmq.quorum.queue import QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import RaftDirectory, raft_systems
from mqstore.rabbitmq.quorum.wal import read_wal
from mqstore.rabbitmq.repair.quorum_steps import quorum_plan
from mqstore.repair.changed_directory import ChangedDirectory

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


# logs that a test writes


PURGE = quorum.command((Atom("purge"),))
UNDEFINED = encode(Atom("undefined"))


def written(root: Path, *logs: bytes, segment: bytes = b"", members: str = "UV") -> Path:
    """Return the data directory with these write-ahead logs, and the first member's segment."""
    place = root / "quorum" / "rabbit@localhost"
    for uid in members:
        (place / uid).mkdir(parents=True)
    for number, log in enumerate(logs, 1):
        (place / f"{number:08d}.wal").write_bytes(log)
    if segment:
        (place / "U" / "00000001.segment").write_bytes(segment)
    names: list[tuple[Term, Term]] = [(Atom(f"q{uid}"), uid.encode()) for uid in members]
    (place / "names.dets").write_bytes(dets.write_objects(names))
    return root


def repaired(root: Path) -> tuple[list[str], list[str]]:
    """Return the kinds of the steps, of which nothing is left when they are made, and the losses."""
    directory = ReadOnlyDirectory(root)
    steps = quorum_plan(directory).steps
    after = ChangedDirectory(directory, [change for step in steps for change in step.changes])
    assert quorum_plan(after).steps == []
    return [step.kind for step in steps], [step.loss for step in steps]


def damaged(log: bytes, at: int) -> bytes:
    return log[:at] + bytes([log[at] ^ 4]) + log[at + 1 :]


def test_a_member_that_ends_in_one_log_ends_in_the_next_ones_too(tmp_path: Path) -> None:
    first = quorum.wal(UNDEFINED, PURGE, PURGE, PURGE, after=-1)
    start = len(quorum.wal(UNDEFINED, PURGE, after=-1))
    known = quorum.record(5, PURGE, known=True)
    second = quorum.wal(PURGE, after=3) + known
    third = quorum.wal(UNDEFINED, PURGE, after=-1, uid=b"V")
    root = written(tmp_path, damaged(first, start + 40), second, third)
    kinds, (loss, later) = repaired(root)
    assert kinds == ["wal-record", "wal-record"]
    assert "ends before entry 2 of 5" in loss
    assert later == ""
    member = raft_systems(ReadOnlyDirectory(root), "quorum")[0].member("V")
    assert member.index.tolist() == [0, 1]


def test_a_member_of_which_the_second_log_lacks_an_entry_keeps_those_of_the_first(tmp_path: Path) -> None:
    first, second = quorum.wal(UNDEFINED, PURGE, PURGE, after=-1), quorum.wal(PURGE, PURGE, PURGE, after=2)
    start = len(quorum.wal(PURGE, after=2))
    kinds, (loss,) = repaired(written(tmp_path, first, damaged(second, start + 40)))
    assert kinds == ["wal-record"]
    assert "ends before entry 4 of 5" in loss


def test_a_record_that_was_the_only_one_of_its_member_costs_nothing_that_is_known(tmp_path: Path) -> None:
    alone, others = quorum.wal(UNDEFINED, after=-1), quorum.wal(UNDEFINED, PURGE, after=-1, uid=b"V", number=1)[5:]
    kinds, _ = repaired(written(tmp_path, damaged(alone, len(alone) - 3) + others))
    assert kinds == ["wal-record"]


def test_a_member_whose_entry_was_being_written_again_ends_before_the_next_one(tmp_path: Path) -> None:
    log = quorum.wal(PURGE, PURGE, PURGE, after=2)
    segment = quorum.segment(*[(index, 1, PURGE) for index in range(1, 6)])
    root = written(tmp_path, damaged(log, 5 + 3 + 2 + 1 + 4 + 7), segment=segment)  # in its index
    kinds, losses = repaired(root)
    assert kinds == ["wal-record"]
    assert "no message is lost" in losses[0]


def test_a_log_that_does_not_begin_as_one_gets_its_beginning(tmp_path: Path) -> None:
    kinds, losses = repaired(written(tmp_path, damaged(quorum.wal(UNDEFINED, PURGE, after=-1), 0)))
    assert (kinds, losses) == (["wal-header"], [""])


@pytest.mark.parametrize(("size", "kinds"), [(4, ["wal-empty"]), (5, [])])
def test_a_log_of_a_header_alone_is_whole_and_one_of_less_is_taken_out(size: int, kinds: list[str], tmp_path: Path) -> None:
    directory = ReadOnlyDirectory(written(tmp_path, quorum.wal(UNDEFINED, PURGE, after=-1)[:size]))
    assert [step.kind for step in quorum_plan(directory).steps] == kinds


def test_bytes_that_are_too_few_for_a_record_have_no_remedy(tmp_path: Path) -> None:
    log = quorum.wal(UNDEFINED, PURGE, after=-1) + b"\xff" * 10 + quorum.record(2, PURGE, known=True)
    (step,) = quorum_plan(ReadOnlyDirectory(written(tmp_path, log))).steps
    assert (step.kind, step.possible) == ("wal-record", False)
    assert "cannot be made a record" in step.why


@pytest.mark.parametrize("drops", [True, False])
def test_a_last_record_with_a_wrong_checksum_is_cut_off_for_a_node_that_does_not_drop_it(drops: bool, tmp_path: Path) -> None:
    log = quorum.wal(UNDEFINED, PURGE, PURGE, after=-1)
    directory = ReadOnlyDirectory(written(tmp_path, damaged(log, len(log) - 3)))
    steps = quorum_plan(directory, drops_wrong_last=drops).steps
    assert [step.kind for step in steps] == ([] if drops else ["wal-torn"])
    assert drops or [change.length for change in steps[0].changes] == [len(quorum.wal(UNDEFINED, PURGE, after=-1))]


def test_directories_that_names_dets_lacks_have_no_remedy_if_their_queue_is_not_known_or_has_another_one(tmp_path: Path) -> None:
    node = quorum.unpack(MIX, tmp_path)
    uid, name = next(iter(system_of(node).names.items()))
    shutil.copytree(shared(node) / uid, shared(node) / "COPY")
    shutil.copytree(shared(node) / uid, shared(node) / "UNKNOWN")
    (shared(node) / "UNKNOWN" / "config").unlink()
    steps = {step.file.rpartition("/")[2]: step for step in quorum_plan(ReadOnlyDirectory(node)).steps}
    assert {name: (step.kind, step.possible) for name, step in steps.items()} == {
        "COPY": ("queue-twice", False),
        "UNKNOWN": ("names", False),
    }
    assert f"1 further directory of queue {name}: COPY; {uid} is in names.dets" in steps["COPY"].why
    assert "its config does not say of which queue it is" in steps["UNKNOWN"].why
