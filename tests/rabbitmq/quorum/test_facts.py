"""Damage of the directory of quorum queues: what the node makes of it, what is read nevertheless, and nothing fails."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import quorum
from support.golden import run_cli

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.erlang.terms import Atom, Term, encode
from mqstore.rabbitmq.quorum.examination import examine
from mqstore.rabbitmq.quorum.facts import REDELIVERY_FAILS, Fact
from mqstore.rabbitmq.quorum.members import compare, members_by_queue
from mqstore.rabbitmq.quorum.queue import QueueState, QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import RaftDirectory, raft_systems
from mqstore.rabbitmq.quorum.rows import build_batch, rows_of
from mqstore.rabbitmq.quorum.wal import read_wal
from mqstore.table.columns import QueueSelection

SNAPSHOTS, MIX, OLD = "4.3.6/c-quorum-snapshots-kill9", "4.3.6/a-quorum-mix-kill9", "3.10.8/a-quorum-mix-kill9"


def copied(case: str, target: Path) -> Path:
    """Copy the directory of quorum queues of a case, and return that of its node."""
    shutil.copytree(quorum.node(case) / "quorum", target / "quorum")
    return target / "quorum" / "rabbit@localhost"


def system_of(root: Path) -> RaftDirectory:
    (system,) = raft_systems(ReadOnlyDirectory(root), "quorum")
    return system


def queue_named(root: Path, name: str) -> QuorumQueue:
    system = system_of(root)
    return next(queue for queue in (QuorumQueue(system.member(uid)) for uid in system.uids) if queue.name[1] == name)


def all_facts(root: Path) -> list[Fact]:
    """Return the facts about a directory, without what only a node of 4.3 does."""
    (node,) = examine(ReadOnlyDirectory(root))
    found = [*node.facts, *(fact for queue in node.queues for fact in queue.facts)]
    return [fact for fact in found if fact.name != REDELIVERY_FAILS]


def facts(root: Path) -> dict[str, Fact]:
    return {fact.name: fact for fact in all_facts(root)}


def indexes(state: QueueState) -> list[int]:
    return [message.index for message in state.messages if message.recovered]


def whole(case: str, name: str) -> list[int]:
    return indexes(queue_named(quorum.node(case), name).replay())


def wal_of(node: Path) -> Path:
    (path,) = node.glob("*.wal")
    return path


def test_a_whole_directory_has_no_facts() -> None:
    assert all_facts(quorum.node(MIX)) == []


def test_a_wrong_bit_in_the_middle_of_the_log_stops_the_node_and_the_rest_is_read(tmp_path: Path) -> None:
    node = copied(MIX, tmp_path)
    path = wal_of(node)
    log = queue_named(tmp_path, "plain").log
    row = next(row for row in range(len(log)) if b"mc_amqpl" in log.entry(row).entry)
    entry = log.entry(row)
    data = bytearray(path.read_bytes())
    data[data.index(entry.entry) + len(entry.entry) // 2] ^= 1  # within the message
    path.write_bytes(bytes(data))
    found = facts(tmp_path)
    assert found["wal-damaged"].does == "does not start"
    queue = queue_named(tmp_path, "plain")
    state = queue.replay()
    assert indexes(state) == whole(MIX, "plain")  # the entry is still known to be a message
    (row,) = [row for row in build_batch(queue, state.messages).to_pylist() if row["verdict"] == "damaged"]
    assert row["raft_index"] == entry.index
    assert [term for rows in rows_of(queue, QueueSelection(), None) for _, term, _ in rows.stored()].count(None) == 1


def test_an_empty_log_stops_the_node_and_a_torn_one_does_not(tmp_path: Path) -> None:
    node = copied(MIX, tmp_path)
    (node / "0000000000000009.wal").touch()
    path = wal_of(node / ".") if len(list(node.glob("*.wal"))) == 1 else sorted(node.glob("*.wal"))[0]
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[:-5])
    found = facts(tmp_path)
    assert found["wal-empty"].place.endswith("0000000000000009.wal")
    assert "wal-torn" in found
    assert "wal-damaged" not in found


def test_a_record_that_seems_longer_than_the_log_ends_it_for_the_node_and_the_rest_is_read(tmp_path: Path) -> None:
    path = wal_of(copied(MIX, tmp_path))
    data = bytearray(path.read_bytes())
    wal = read_wal(np.frombuffer(bytes(data), np.uint8), path.name)
    record = wal.records[len(wal.records) // 2]
    at = int(record["position"]) - 20  # of the length of the entry, before its index and term
    assert int.from_bytes(data[at : at + 4], "big") == record["length"]
    data[at : at + 4] = b"\x7f\xff\xff\xff"
    path.write_bytes(bytes(data))
    seen = [fact.seen for fact in all_facts(tmp_path) if fact.name == "wal-torn"]
    assert seen[0] == f"a record at byte {int(record['start']):,} is damaged so that it seems longer than the file"
    assert "it has entries after the end of a write-ahead log" in seen[1:]


def test_a_log_that_does_not_begin_as_one_stops_the_node(tmp_path: Path) -> None:
    path = wal_of(copied(MIX, tmp_path))
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(bytes(data))
    fact = facts(tmp_path)["wal-damaged"]
    assert (fact.seen, fact.does) == ("it does not begin as a write-ahead log", "does not start")


def test_a_member_without_config_is_started_as_of_the_entries_of_its_segments(tmp_path: Path) -> None:
    place = tmp_path / "quorum" / "rabbit@localhost"
    (place / "U").mkdir(parents=True)
    undefined, purge = encode(Atom("undefined")), quorum.command((Atom("purge"),))
    names: list[tuple[Term, Term]] = [(Atom("q"), b"U")]
    (place / "names.dets").write_bytes(dets.write_objects(names))
    (place / "00000001.wal").write_bytes(quorum.wal(undefined, purge, purge, after=-1))
    (place / "U" / "00000001.segment").write_bytes(quorum.segment((0, 1, undefined)))
    assert facts(tmp_path)["config-missing"].does.endswith("as of entry 0 of 2: no message is lost")
    (place / "U" / "00000001.segment").unlink()
    assert facts(tmp_path)["config-missing"].does.endswith("so without any entry: no message is lost")


@pytest.mark.parametrize("damaged", [1, 2])
def test_entries_that_a_member_must_replay_and_that_are_damaged_are_counted(damaged: int, tmp_path: Path) -> None:
    place = tmp_path / "quorum" / "rabbit@localhost"
    (place / "U").mkdir(parents=True)
    raw = bytearray(quorum.segment(*[(index, 1, quorum.command((Atom("purge"),))) for index in range(1, 4)]))
    for number in range(damaged):
        raw[-1 - number * len(quorum.command((Atom("purge"),)))] ^= 1
    (place / "U" / "00000001.segment").write_bytes(raw)
    (place / "00000002.wal").write_bytes(quorum.wal())
    seen = facts(tmp_path)["entries-damaged"].seen
    assert seen == (
        "entry 3, which it must replay, is damaged" if damaged == 1 else "2 entries that it must replay are damaged, the first is 2"
    )


def test_a_missing_log_is_seen_by_what_the_node_had_applied(tmp_path: Path) -> None:
    node = copied(SNAPSHOTS, tmp_path)
    for path in node.glob("*.wal"):
        path.unlink()
    found = facts(tmp_path)
    assert "acknowledged messages come back" in found["wal-missing"].does
    system = system_of(tmp_path)
    assert any(QuorumQueue(system.member(uid)).replay().uncertain for uid in system.uids)


def test_a_missing_segment_with_live_entries_leaves_messages_without_content(tmp_path: Path) -> None:
    node = copied("4.3.6/f-quorum-snapshots-clean", tmp_path)
    queue = queue_named(tmp_path, "snap.holes")
    log, state = queue.log, queue.replay()
    expected, base = indexes(state), log.first_replayed
    by_file: dict[str, list[int]] = {}
    for row in range(len(log)):
        by_file.setdefault(log.source(row)[0], []).append(int(log.index[row]))
    path = next(path for path, found in by_file.items() if max(found) < base and set(found) & set(expected))
    (node.parents[1] / path).unlink()
    again = queue_named(tmp_path, "snap.holes")
    state = again.replay()
    assert indexes(state) == expected
    rows = build_batch(again, state.messages, ("raft_index", "verdict", "payload")).to_pylist()
    lost = [row for row in rows if row["verdict"] == "unreachable"]
    assert lost
    assert all(row["payload"] is None for row in lost)
    assert facts(tmp_path)["bodies-missing"].messages == len(lost)


def test_a_missing_segment_above_the_snapshot_makes_the_queue_uncertain(tmp_path: Path) -> None:
    node = copied("3.10.8/b-quorum-long-kill9", tmp_path)
    queue = queue_named(tmp_path, "snap.holes")
    sorted((node / queue.log.uid).glob("*.segment"))[1].unlink()
    state = queue_named(tmp_path, "snap.holes").replay()
    assert state.uncertain
    assert "entries-missing" in facts(tmp_path)
    assert Kind.MISSING_ENTRIES in {item.kind for item in state.damage}


def test_a_snapshot_that_is_cut_leaves_every_readable_message(tmp_path: Path) -> None:
    copied(SNAPSHOTS, tmp_path)
    queue = queue_named(tmp_path, "snap.fifo")
    expected = set(indexes(queue.replay()))
    for path in (tmp_path / queue.log.place).glob("*/*/snapshot.dat"):
        path.write_bytes(path.read_bytes()[:-20])
    again = queue_named(tmp_path, "snap.fifo")
    state = again.replay()
    assert expected <= set(indexes(state))
    assert state.uncertain
    assert Kind.BAD_SNAPSHOT in {item.kind for item in state.damage}


def test_a_member_without_config_is_read_by_its_name_in_names_dets(tmp_path: Path) -> None:
    copied(MIX, tmp_path)
    queue = queue_named(tmp_path, "returns")
    (tmp_path / queue.log.place / "config").unlink()
    again = queue_named(tmp_path, "returns")
    assert again.name == ("/", "returns")
    assert indexes(again.replay()) == whole(MIX, "returns")
    assert "config-missing" in facts(tmp_path)


def test_a_damaged_config_loses_what_a_missing_one_does(tmp_path: Path) -> None:
    copied(MIX, tmp_path)
    config = tmp_path / queue_named(tmp_path, "returns").log.place / "config"
    config.write_bytes(bytes(range(255, -1, -1)))
    damaged = facts(tmp_path)["config-missing"]
    config.unlink()
    missing = facts(tmp_path)["config-missing"]
    assert "cannot be read" in damaged.sentence
    assert (damaged.messages, damaged.again, damaged.does) == (missing.messages, missing.again, missing.does)


@pytest.mark.parametrize(("case", "does"), [(MIX, "skips the write-ahead log"), (OLD, "none is usable")])
def test_without_names_dets_everything_is_read(case: str, does: str, tmp_path: Path) -> None:
    node = copied(case, tmp_path)
    (node / "names.dets").unlink()
    assert does in facts(tmp_path)["names-missing"].does
    assert indexes(queue_named(tmp_path, "plain").replay()) == whole(case, "plain")


def test_without_meta_dets_nothing_is_lost(tmp_path: Path) -> None:
    node = copied(MIX, tmp_path)
    (node / "meta.dets").unlink()
    assert facts(tmp_path) == {}
    assert queue_named(tmp_path, "plain").meta is None


def test_a_queue_that_is_there_twice_is_named_and_the_unknown_one_is_lost_for_the_node(tmp_path: Path) -> None:
    node = copied(MIX, tmp_path)
    queue = queue_named(tmp_path, "plain")
    shutil.copytree(node / queue.log.uid, node / "2F_PLATWICETWICE1")
    found = facts(tmp_path)
    assert f"uses {queue.log.uid}" == found["queue-twice"].does
    assert found["member-unknown"].place.endswith("2F_PLATWICETWICE1")
    assert f"its config is that of member {queue.log.uid}" in found["member-unknown"].seen
    assert "was killed" not in found["member-unknown"].seen


def renamed(target: Path, *, queues: frozenset[str]) -> Path:
    """Return a node's data directory with a copy of its quorum queues below a second name, which has only some of them."""
    node = target / "rabbit@localhost"
    shutil.copytree(quorum.node(MIX), node)
    copy = node / "quorum" / "rabbit@new"
    shutil.copytree(node / "quorum" / "rabbit@localhost", copy)
    for queue in (queue_named(quorum.node(MIX), name) for name in {"plain", "prio", "gets"} - queues):
        shutil.rmtree(copy / queue.log.uid)
    return node


def test_queues_below_the_names_of_two_nodes_are_named_and_those_of_the_other_name_are_lost_for_the_node(tmp_path: Path) -> None:
    node = renamed(tmp_path, queues=frozenset({"prio"}))
    first, second = examine(ReadOnlyDirectory(node))
    assert first.facts == ()
    (fact,) = second.facts
    assert (fact.name, fact.place) == ("queue-twice", "quorum/rabbit@new")
    assert fact.seen.endswith("other queues are also in quorum/rabbit@localhost")
    found = run_cli("diagnose", node, "-o", "json").document
    assert found["loses"] == 0  # each is below the node's own name
    assert any(sentence.startswith("what quorum/rabbit@new has of quorum queue") for sentence in found["unknown"])
    other = node.rename(tmp_path / "rabbit@new")
    lost = sum(len(whole(MIX, name)) for name in ("plain", "gets"))
    assert run_cli("diagnose", other, "-o", "json").document["loses"] == lost > 20
    found = run_cli("diagnose", other.rename(tmp_path / "backup"), "-o", "json").document
    assert found["loses"] == 0
    assert any(sentence.startswith("which of quorum/rabbit@localhost and") for sentence in found["unknown"])


def test_other_queues_below_the_name_of_another_node_are_not_named(tmp_path: Path) -> None:
    copied(MIX, tmp_path)
    other = tmp_path / "quorum" / "rabbit@other"
    (other / "U").mkdir(parents=True)
    (other / "00000001.wal").write_bytes(quorum.wal(quorum.command((Atom("purge"),))))
    assert [node.place for node in examine(ReadOnlyDirectory(tmp_path))] == ["quorum/rabbit@localhost", "quorum/rabbit@other"]
    assert "queue-twice" not in facts_of_nodes(tmp_path)


def facts_of_nodes(root: Path) -> set[str]:
    return {fact.name for node in examine(ReadOnlyDirectory(root)) for fact in node.facts}


def test_after_verify_a_node_is_not_started_on_queues_of_two_names(tmp_path: Path) -> None:
    node = renamed(tmp_path, queues=frozenset())
    assert run_cli("verify", node, "-o", "json").document["next"].startswith("mqstore diagnose")


def test_members_below_two_names_of_one_directory_are_told_apart(tmp_path: Path) -> None:
    rows = run_cli("members", renamed(tmp_path, queues=frozenset()), "--queue", "prio", "-o", "jsonl").rows
    assert [row["node"].rpartition("/")[2] for row in rows] == ["rabbit@localhost"]
    rows = run_cli("members", tmp_path / "rabbit@localhost", "--queue", "returns", "-o", "jsonl").rows
    assert [row["node"].rpartition("/")[2] for row in rows] == ["rabbit@localhost", "rabbit@new"]


def test_a_member_that_two_queues_have_is_a_finding(tmp_path: Path) -> None:
    node = copied(MIX, tmp_path)
    plain, other = (queue_named(tmp_path, name).log.uid.encode() for name in ("plain", "prio"))
    table = node / "names.dets"
    table.write_bytes(table.read_bytes().replace(other, plain))
    (examined,) = examine(ReadOnlyDirectory(tmp_path))
    found = [item for item in examined.damage if item.kind is Kind.UNKNOWN_MEMBER]
    assert len(found) == 1
    assert found[0].file.endswith("/names.dets")
    assert "%2F_plain" in found[0].detail
    assert "%2F_prio" in found[0].detail
    assert {queue.queue for queue in examined.queues} >= {"plain", "prio"}


def test_4_3_closes_consumers_of_messages_from_before_3_13() -> None:
    (node,) = examine(ReadOnlyDirectory(quorum.node(OLD)))
    found = [fact for queue in node.queues for fact in queue.facts]
    assert {fact.name for fact in found} == {REDELIVERY_FAILS}
    assert (len(found), sum(fact.messages for fact in found)) == (11, 121)
    (node,) = examine(ReadOnlyDirectory(quorum.node(MIX)))
    assert not any(queue.facts for queue in node.queues)


# several members


def test_of_members_that_lag_the_furthest_is_named_and_what_only_one_has(tmp_path: Path) -> None:
    ahead, behind = tmp_path / "a", tmp_path / "b"
    copied(MIX, ahead)
    node = copied(MIX, behind)
    path = wal_of(node)
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[: len(data) // 3])
    groups = members_by_queue([("b", ReadOnlyDirectory(behind)), ("a", ReadOnlyDirectory(ahead))])
    lag = 0
    for members in groups.values():
        assert len(members) == 2
        found = compare(members)
        last = {standing.name: standing.last_index for standing in found.standings}
        assert found.conflicts == ()
        if last["a"] > last["b"]:
            lag += 1
            assert found.standings[found.best].name == "a"
            assert not found.not_on_best
            for message in found.unique:
                assert message.only_on == found.best
                assert message.index > last["b"]
    assert lag >= 5


def test_members_with_entries_of_different_terms_conflict_and_the_higher_term_is_the_one_to_recover_from(tmp_path: Path) -> None:
    members: Term = {(Atom("q"), Atom(name)): {} for name in ("rabbit@a", "rabbit@b", "rabbit@c")}
    change = encode((Atom("$ra_cluster_change"), {}, members))
    for name, term, count in (("a", 2, 4), ("b", 1, 2)):
        place = tmp_path / name / "quorum" / f"rabbit@{name}"
        (place / "U").mkdir(parents=True)
        purge = quorum.command((Atom("purge"),))
        (place / "00000001.wal").write_bytes(quorum.wal(change, *[purge] * count, term=term))
    groups = members_by_queue([(name, ReadOnlyDirectory(tmp_path / name)) for name in "ab"])
    (found,) = (compare(members) for members in groups.values())
    assert found.conflicts == (1, 2, 3)
    assert found.standings[found.best].name == "a"
    assert found.sentences[-1] == "members have different entries from 1 on: those of a have the higher term at their end"


# any bytes


CHANGES: tuple[Callable[[random.Random, bytearray], bytearray], ...] = (
    lambda luck, data: data[: luck.randrange(len(data) + 1)],
    lambda luck, data: data + luck.randbytes(50),
    lambda luck, data: bytearray(len(data)),
)


@pytest.mark.parametrize("case", [MIX, SNAPSHOTS, "3.8.9/a-quorum-mix-kill9", OLD])
def test_whatever_the_files_hold_reading_ends_with_findings_and_untouched_queues_are_unchanged(case: str, tmp_path: Path) -> None:
    node = copied(case, tmp_path)
    luck = random.Random(case)
    paths = [path for path in sorted(node.rglob("*")) if path.is_file() and path.stat().st_size]
    for _ in range(12):
        path = luck.choice(paths)
        data = path.read_bytes()
        changed = bytearray(data)
        if luck.random() < 0.4:
            changed = luck.choice(CHANGES)(luck, changed)
        else:
            for _ in range(luck.randrange(1, 5)):
                changed[luck.randrange(len(changed))] = luck.randrange(256)
        path.write_bytes(bytes(changed))
        system = system_of(tmp_path)
        for uid in system.uids if path.parent == node else (path.relative_to(node).parts[0],):
            queue = QuorumQueue(system.member(uid))
            state = queue.replay()
            build_batch(queue, state.messages[:200]).validate(full=True)
            if path.suffix == ".segment" and bytes(changed[:8]) == data[:8]:
                texts = {bytes(queue.log.entry(row).entry) for row in range(len(queue.log)) if queue.log.valid[row]}
                assert b"" not in texts or len(texts) > 1
        path.write_bytes(data)


def test_a_snapshot_of_another_queue_is_not_used_and_named(tmp_path: Path) -> None:
    """Seeds 11479 and 21365 of damaged-quorum: every message up to its index seemed to have left the queue."""
    node = copied(MIX, tmp_path)
    before = whole(MIX, "fan.a")
    (taken,) = node.glob("2F_PUR*/snapshots/*")
    member = node / queue_named(tmp_path, "fan.a").log.uid
    shutil.copytree(taken, member / "snapshots" / taken.name)
    fact = facts(tmp_path)["snapshot-foreign"]
    last = int(taken.name.rpartition("_")[2], 16)
    assert fact.messages == sum(index <= last for index in before) > 0
    assert "is the state of another queue" in fact.seen
    assert indexes(queue_named(tmp_path, "fan.a").replay()) == before
