"""The state of a quorum queue from logs that a test writes: what no golden node has, and what cannot be known of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.privilege import needs_permissions, without_privilege
from support.quorum import command, snapshot, wal

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.erlang.terms import Atom, Opaque, Term, encode
from mqstore.rabbitmq.quorum import queue as queue_module
from mqstore.rabbitmq.quorum.examination import examine
from mqstore.rabbitmq.quorum.queue import QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import RaftDirectory, raft_systems

PROCESS = Opaque(b"Xw\x01n" + (50).to_bytes(4, "big") + bytes(8))
CONTENT: Term = (Atom("content"), 60, Atom("none"), b"\x10\0", Atom("x"), [b"body"])
MESSAGE: Term = (Atom("mc"), Atom("mc_amqpl"), CONTENT, {})
PUBLISH: Term = (Atom("e"), 1, MESSAGE, (2, 4))
AUTO = Atom("auto")


def noop(version: int) -> bytes:
    return encode((Atom("noop"), {Atom("ts"): 5}, version))


def queue_of(root: Path, *entries: bytes, after: int = 0) -> QuorumQueue:
    """Return the queue with these entries, from the one after `after` on."""
    (root / "U").mkdir(exist_ok=True)
    (root / "00000001.wal").write_bytes(wal(*entries, after=after))
    return QuorumQueue(RaftDirectory(ReadOnlyDirectory(root), "").member("U"))


def test_a_consumer_that_is_no_process_keeps_what_it_has_when_the_node_restarts(tmp_path: Path) -> None:
    consumer: Term = (Atom("checkout"), b"tag", (AUTO, (Atom("simple_prefetch"), 1)), {})
    state = queue_of(tmp_path, noop(5), command(PUBLISH), command(consumer)).replay()
    assert [(message.index, message.state) for message in state.messages] == [(2, "checked-out")]
    assert (state.ready, state.unacknowledged) == (0, 1)


def test_a_message_over_its_delivery_limit_leaves_when_the_node_restarts(tmp_path: Path) -> None:
    config: Term = (Atom("update_config"), {Atom("delivery_limit"): 0})
    consumer: Term = (Atom("checkout"), (b"tag", PROCESS), (AUTO, (Atom("simple_prefetch"), 1)), {})
    entries = (noop(5), command(config), command(PUBLISH), command(PUBLISH), command(consumer))
    state = queue_of(tmp_path, *entries).replay()
    assert [(message.index, message.recovered, message.reason) for message in state.messages] == [
        (4, True, None),
        (3, False, "delivery_limit"),
    ]


def test_a_message_whose_time_is_over_when_the_node_restarts_is_not_there(tmp_path: Path) -> None:
    timed: Term = (Atom("e"), 1, (Atom("mc"), Atom("mc_amqpl"), CONTENT, {Atom("ttl"): 1}), (2, 4))
    consumers = [
        command((Atom("checkout"), (b"tag", PROCESS), (AUTO, (Atom("simple_prefetch"), 1)), {})),
        command((Atom("checkout"), b"none", (AUTO, (Atom("simple_prefetch"), 1)), {}), ts=100),
    ]
    state = queue_of(tmp_path, noop(5), command(timed), *consumers).replay()
    assert (state.messages, state.total) == ([], 0)


def test_a_snapshot_whose_state_cannot_be_read_is_a_finding_and_the_log_is_replayed(tmp_path: Path) -> None:
    place = tmp_path / "U" / "snapshots" / f"{1:016X}_{1:016X}"
    place.mkdir(parents=True)
    (place / "snapshot.dat").write_bytes(snapshot(1, (Atom("rabbit_fifo"), 1), version=5))
    (place.parent / "other").mkdir()
    (place.parent / f"{1:016X}_{9:016X}").mkdir()
    state = queue_of(tmp_path, command(PUBLISH), after=1).replay()
    assert [message.index for message in state.messages] == [2]
    assert [item.detail for item in state.damage if item.kind is Kind.BAD_SNAPSHOT] == [
        "The file is not there.",
        "The state cannot be read: a state of version 5 has another form than expected (TypeError).",
    ]


def test_changes_of_the_members_and_the_deletion_are_known(tmp_path: Path) -> None:
    members = encode((Atom("$ra_cluster_change"), {}, {(Atom("q"), Atom("one")): {}, (Atom("q"), Atom("two")): {}}))
    deleted = encode((Atom("$ra_cluster"), {}, Atom("delete")))
    metas: Any = [(b"U", 1, Atom("undefined"), 3)]
    (tmp_path / "meta.dets").write_bytes(dets.write_objects(metas))
    queue = queue_of(tmp_path, noop(5), members, command(PUBLISH), deleted)
    state = queue.replay()
    assert len(queue.cluster) == 2
    assert "1 entries above 3 are not known to be committed: the queue has 2 members, and this is one of them." in state.uncertain
    assert "The queue was being deleted." in state.uncertain


def test_a_command_with_fields_of_another_kind_is_a_finding_and_findings_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = (noop(5), *(command((Atom("settle"), 1, Atom("x"))) for _ in range(3)))
    state = queue_of(tmp_path, *entries).replay()
    assert [item.detail for item in state.damage if item.kind is Kind.MISSING_ENTRIES] == [
        f"Entry {index} of the log cannot be applied: it is not a valid `settle`; what it did to the queue is not known."
        for index in (2, 3, 4)
    ]
    monkeypatch.setattr(queue_module, "MAX_FINDINGS", 1)
    assert len(queue_of(tmp_path, *entries).replay().damage) == 2  # with that of the config, which is missing


def test_messages_that_the_snapshot_only_counts_are_a_finding_if_no_entry_has_them(tmp_path: Path) -> None:
    undefined = Atom("undefined")
    items: list[Term] = [undefined] * 16
    items[0], items[1], items[2] = Atom("rabbit_fifo"), (undefined,) * 11, {}
    items[5], items[7], items[10], items[11], items[12], items[13], items[15] = ([], []), {}, {}, ([], []), ([], [5, 5]), 10, []
    place = tmp_path / "U" / "snapshots" / f"{1:016X}_{1:016X}"
    place.mkdir(parents=True)
    (place / "snapshot.dat").write_bytes(snapshot(1, tuple(items), version=0))
    state = queue_of(tmp_path, command(PUBLISH), after=1).replay()
    assert "2 messages are known by their size only: the log is not complete." in state.uncertain
    assert [item.detail for item in state.damage if item.kind is Kind.MISSING_ENTRIES] == [
        "The snapshot counts 2 messages that no entry of the log consumes."
    ]


def test_the_order_of_many_messages_that_one_command_returned_is_not_known_in_old_versions(tmp_path: Path) -> None:
    key: Term = (b"tag", PROCESS)
    consumer: Term = (Atom("checkout"), key, (AUTO, 40, Atom("simple_prefetch")), {})
    returned: Term = (Atom("return"), key, list(range(40)))
    unknown: Term = (Atom("from_the_future"), 1)
    entries = (noop(3), *(command(PUBLISH) for _ in range(40)), command(consumer), command(returned), command(unknown))
    uncertain = queue_of(tmp_path, *entries).replay().uncertain
    assert "More than 32 messages were returned by one command: which ones is certain, their order is not." in uncertain
    assert "The command `from_the_future` is not known: what it did is not known." in uncertain


# tables and files that cannot be read


def test_objects_of_another_form_in_the_tables_of_a_node_are_left_out(tmp_path: Path) -> None:
    names: Any = [(Atom("q"), b"U"), (Atom("q"), 5), (Atom("one"), b"x", 1)]
    (tmp_path / "names.dets").write_bytes(dets.write_objects(names))
    metas: Any = [(b"U", 7, Atom("undefined"), 9), (Atom("x"), 1, 2, 3), (b"U", 1)]
    (tmp_path / "meta.dets").write_bytes(dets.write_objects(metas))
    system = RaftDirectory(ReadOnlyDirectory(tmp_path), "")
    assert system.names == {"U": "q"}
    assert {uid: tuple(meta) for uid, meta in system.meta.items()} == {"U": (7, 9)}


@needs_permissions
def test_what_may_not_be_read_is_a_finding(tmp_path: Path) -> None:
    root = tmp_path / "quorum" / "rabbit@localhost"
    root.mkdir(parents=True)
    queue_of(root, noop(5), command(PUBLISH))
    (root / "U" / "00000001.segment").write_bytes(b"RASG")
    (root / "U" / "snapshots").mkdir()
    (root / "U" / "config").write_bytes(b"{}.")
    for path in (root / "00000001.wal", root / "U" / "00000001.segment", root / "U" / "snapshots", root / "U" / "config"):
        path.chmod(0)
    with without_privilege():
        (system,) = raft_systems(ReadOnlyDirectory(tmp_path), "quorum")
        log = system.member("U")
        assert (len(log), log.base) == (0, None)
        unread = {item.file.rpartition("/")[2] for item in (*log.damage, *system.damage) if item.kind is Kind.UNREADABLE}
        assert unread == {"00000001.wal", "00000001.segment", "snapshots"}
        queue = QuorumQueue(log)
        assert queue.config.queue is None
        assert "quorum/rabbit@localhost/U/config" in {item.file for item in (*queue.damage, *log.damage, *system.damage)}
        (node,) = examine(ReadOnlyDirectory(tmp_path))
        assert node.queues
        (tmp_path / "quorum").chmod(0)
        assert raft_systems(ReadOnlyDirectory(tmp_path), "quorum") == []
    (tmp_path / "quorum").chmod(0o700)
    (root / "U" / "snapshots").chmod(0o700)
