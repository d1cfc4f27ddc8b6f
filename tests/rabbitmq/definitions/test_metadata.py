"""Definitions as a real node left them in Mnesia, against the contents of the node itself; names found in any bytes."""

from __future__ import annotations

import base64
import json
import tarfile
import time
from pathlib import Path

import pytest
from support import golden as goldenkit
from support.archives import extract_all

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rabbitmq.definitions import metadata
from mqstore.rabbitmq.erlang import disk_log
from mqstore.rabbitmq.erlang.etf import decode
from mqstore.rabbitmq.erlang.terms import Atom, Term, encode
from mqstore.rabbitmq.format.names import priority_name, queue_directory

DEFINITIONS = goldenkit.GOLDEN / "rabbitmq-definitions"
STATES = ("logged", "dumped", "stopped")
VHOST = "Ünïcode vhost".encode()


# place in the record of a queue
STATE = 14


def without_state(record: metadata.Record) -> metadata.Record:
    return (*record[:STATE], *record[STATE + 1 :]) if record[0] == "amqqueue" else record


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def unpacked(name: str, target: Path) -> Path:
    with tarfile.open(DEFINITIONS / f"{name}.tar.xz") as archive:
        extract_all(archive, target)
    (target / "schema.DAT").touch()  # the archives have the first four tables alone
    for table in metadata.TABLES[4:]:
        (target / f"{table}.DCD").write_bytes(disk_log.write_log([]))
    return target


def test_every_table_is_replayed_to_the_contents_of_the_node(state: str, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in unpacked(state, tmp_path).iterdir()}
    tables = metadata.replay(files, metadata.TABLES[:4])
    assert tables.damage == ()
    records = [record for table in tables.records.values() for record in table]
    wanted = [decode(base64.b64decode(text))[0] for text in json.loads((DEFINITIONS / f"{state}.json").read_text())]
    if state == "stopped":
        # the stop itself wrote last: it changed the state of queues
        assert {record[STATE] for record in records if record[0] == "amqqueue"} == {"live", "stopped"}
        records, wanted = ([without_state(record) for record in some] for some in (records, wanted))
    assert sorted(map(encode, records)) == sorted(map(encode, wanted))
    assert len(tables.records["rabbit_durable_queue"]) >= 6


def test_queues_are_read_with_their_properties(tmp_path: Path) -> None:
    found = metadata.read_definitions(ReadOnlyDirectory(unpacked("logged", tmp_path)))
    assert found.damage == ()
    assert set(found.vhosts) == {b"/", VHOST}
    queues = {(queue.vhost, queue.name): queue for queue in found.queues}
    assert set(queues) == {(b"/", name) for name in (b"plain", b"prio", b"two", b"dropped", b"quorum")} | {(VHOST, "Schlange ✓".encode())}
    prio = queues[b"/", b"prio"]
    assert prio.arguments == [
        [b"x-max-priority", "signedint", 5],
        [b"x-message-ttl", "signedint", 60000],
        [b"x-queue-mode", "longstr", b"lazy"],
    ]
    assert (prio.priorities, prio.version, prio.durable, prio.auto_delete, prio.exclusive) == (5, None, True, False, False)
    assert list(prio.directories()) == [(level, queue_directory(b"/", priority_name(b"prio", level))) for level in range(6)]
    assert queues[b"/", b"two"].version == 2
    assert list(queues[b"/", b"plain"].directories()) == [(None, queue_directory(b"/", b"plain"))]
    assert queues[VHOST, "Schlange ✓".encode()].auto_delete
    assert list(queues[b"/", b"quorum"].directories()) == []
    assert {(exchange.vhost, exchange.name, exchange.type) for exchange in found.exchanges} >= {
        (b"/", b"", "direct"),
        (b"/", b"fan", "fanout"),
    }
    assert {(binding.source, binding.key, binding.destination_type, binding.destination) for binding in found.bindings} == {
        (b"fan", b"", "queue", b"plain"),
        (b"fan", b"key", "queue", b"prio"),
    }


def test_a_policy_gives_a_queue_its_version(tmp_path: Path) -> None:
    found = metadata.read_definitions(ReadOnlyDirectory(unpacked("stopped", tmp_path)))
    (plain,) = (queue for queue in found.queues if queue.name == b"plain")
    assert plain.policy == {"queue-version": 2}
    assert plain.version == 2
    assert {queue.name for queue in found.queues} == {b"plain", b"prio", b"later", b"last", b"quorum", "Schlange ✓".encode()}


def test_the_absence_of_definitions_is_not_damage(tmp_path: Path) -> None:
    unpacked("dumped", tmp_path / "mnesia" / "rabbit@host")
    assert len(metadata.read_definitions(ReadOnlyDirectory(tmp_path / "mnesia" / "rabbit@host")).queues) == 6
    assert metadata.read_definitions(ReadOnlyDirectory(tmp_path)) == metadata.Definitions()


def test_a_damaged_file_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    unpacked("dumped", tmp_path)
    whole = metadata.read_definitions(ReadOnlyDirectory(tmp_path))
    path = tmp_path / "rabbit_durable_queue.DCL"
    path.write_bytes(path.read_bytes()[:-10])
    found = metadata.read_definitions(ReadOnlyDirectory(tmp_path))
    assert [(item.file, item.kind) for item in found.damage] == [("rabbit_durable_queue.DCL", Kind.BAD_SIDE_FILE)]
    assert found.exchanges == whole.exchanges
    assert found.queues


def test_changing_any_byte_causes_at_most_findings(tmp_path: Path) -> None:
    unpacked("dumped", tmp_path)
    path = tmp_path / "rabbit_durable_queue.DCD"
    sound = path.read_bytes()
    directory = ReadOnlyDirectory(tmp_path)
    for at in range(0, len(sound), 11):
        for value in (0, 0x68, 0xFF):
            path.write_bytes(sound[:at] + bytes([value]) + sound[at + 1 :])
            found = metadata.read_definitions(directory)
            assert len(found.exchanges) == 15


def changed(*changes: Term, decision: Term = Atom("presume_commit"), more: tuple[Term, ...] = ()) -> bytes:  # noqa: B008
    return disk_log.write_log(
        [(Atom("log_header"), Atom("trans_log")), (Atom("commit"), Atom("n"), decision, [], list(changes), [], [], []), *more]
    )


def change(key: int, action: str) -> Term:
    return ((Atom("t"), key), (Atom("record"), key), Atom(action))


def test_deletions_and_undecided_transactions_do_not_count() -> None:
    def keys(**files: bytes) -> list[Term]:
        return [
            record[1]
            for record in metadata.replay({name.replace("_LOG", ".LOG"): data for name, data in files.items()}, ["t"]).records["t"]
        ]

    assert keys(LATEST_LOG=changed(change(1, "write"), change(2, "write"), change(1, "delete"))) == [2]
    assert keys(PREVIOUS_LOG=changed(change(1, "write")), LATEST_LOG=changed(change(1, "delete"), change(3, "write"))) == [3]
    assert keys(PREVIOUS_LOG=changed(change(1, "write")), LATEST_LOG=changed(((Atom("t"), 0), 0, Atom("clear_table")))) == []
    decision = (Atom("decision"), (Atom("tid"), 7), Atom("presume_abort"), [], [])
    assert keys(LATEST_LOG=changed(change(1, "write"), decision=decision)) == []
    assert keys(
        LATEST_LOG=changed(change(1, "write"), decision=decision, more=((Atom("decision"), (Atom("tid"), 7), Atom("committed"), [], []),))
    ) == [1]
    assert (
        keys(
            LATEST_LOG=changed(change(1, "write"), decision=decision, more=((Atom("decision"), (Atom("tid"), 7), Atom("aborted"), [], []),))
        )
        == []
    )
    assert keys(LATEST_LOG=changed(1, (1, 2, 3), ((b"t", 1), 2, 3), ((Atom("other"), 1), (1,), Atom("write")))) == []


@pytest.mark.parametrize("atoms", ["latin1", "utf8"])
def test_names_are_found_in_any_bytes(atoms: str) -> None:
    term = encode([(Atom("resource"), b"/", Atom("queue"), b"q\x00\x05"), (Atom("resource"), b"/", Atom("exchange"), b"x")], atoms)  # type: ignore[arg-type]
    noise = bytes(range(256)) * 3
    assert list(metadata.resource_names(noise + term + noise + term[:-30])) == [(b"/", b"q\x00\x05")] * 2
    assert list(metadata.resource_names(term[: term.index(b"queue") + 12])) == []


def test_hostile_bytes_are_searched_quickly() -> None:
    head = b"h\x04w\x08resourcem\x00\x00\xff\xff"
    started = time.perf_counter()
    assert list(metadata.resource_names(head * 200_000)) == []
    assert time.perf_counter() - started < 10


def test_names_are_found_in_a_raft_log(tmp_path: Path) -> None:
    (tmp_path / "coordination" / "node").mkdir(parents=True)
    names = [(b"/", b"plain"), (b"/", b"prio"), (VHOST, b"other")]
    log = b"RAWA\x01" + b"".join(encode((Atom("put"), (Atom("resource"), vhost, Atom("queue"), name)), "utf8")[1:] for vhost, name in names)
    (tmp_path / "coordination" / "node" / "0000001.wal").write_bytes(log)
    assert metadata.search_names(ReadOnlyDirectory(tmp_path)) == set(names)


@pytest.mark.parametrize(
    ("name", "directory"), [([115, 0x10FFFF], "s\U0010ffff"), ([0], "\0"), ([115, 0x110000], None), ([-1], None), (b"s", None)]
)
def test_the_directory_of_a_stream_is_a_list_of_characters(name: Term, directory: str | None) -> None:
    record: list[Term] = [Atom("undefined")] * 21
    record[:2] = Atom("amqqueue"), (Atom("resource"), b"/", Atom("queue"), b"s")
    record[4:6] = Atom("none"), []
    record[19:] = Atom("rabbit_stream_queue"), {Atom("name"): name}
    assert metadata._queue(tuple(record)).stream_directory == directory
