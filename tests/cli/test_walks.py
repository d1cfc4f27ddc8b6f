"""From "it does not start" to "the messages are back" by nothing but what the commands print: at most four commands.

Each walk begins with `diagnose STORE`, and runs the command below `Next:` of what is printed, as a person would copy it into a shell.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import quorum, rabbitmq_states, rocketmq_states, streams
from support.golden import DAMAGED, OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, case_named, run_cli, unpack

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.quorum.queue import QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import RaftDirectory

BROKER = {"rocketmq": "sh bin/mqbroker -c conf/broker.conf", "rabbitmq": "rabbitmq-server"}
MOST = 4
_FOUND = re.compile(r"^(kind +findings +bytes|verdict +messages +meaning)", re.MULTILINE)
_NEXT = re.compile(r"^Next: .*\n {6}(\S.*)$", re.MULTILINE)


def walk(store: Path, family: str, *options: object) -> tuple[list[str], Path]:
    """Return the commands until a broker is to be started, and the store that it is to be started on."""
    commands = [shlex.join(["mqstore", "diagnose", str(store)])]
    while len(commands) <= MOST:
        words = shlex.split(commands[-1])
        done = run_cli(*words[1:], *options)
        following = _NEXT.findall(done.stdout)
        assert following, (commands, done.stdout, done.stderr)
        if "--to" in words and words[1] != "salvage":
            store = Path(words[words.index("--to") + 1])
        if following[-1] == BROKER[family]:
            # a rebuild or a salvage of what is damaged ends with 1, and names what it found
            listed = words[1] == "diagnose" or _FOUND.search(done.stdout)
            assert done.status == 0 or (done.status <= 2 and listed), (commands, done.stdout)
            return commands, store
        commands.append(following[-1])
    raise AssertionError(commands)


def intact_rocketmq(store: Path, *options: object) -> Counter[str]:
    rows = run_cli("messages", store, "-o", "jsonl", "--body", "none", *options).rows
    return Counter(row["msg_id"] for row in rows if row["verdict"] in ("intact", "unindexed"))


def delivered_rabbitmq(store: Path) -> Counter[tuple[str, str, str]]:
    rows = run_cli("messages", store, "-o", "jsonl").rows
    return Counter((row["vhost"], row["queue"], row["payload_sha256"]) for row in rows if row["recovered"] and row["persistent"])


def check_rocketmq(case: GoldenCase, store: Path) -> list[str]:
    config = ("--config", case.config) if case.config.exists() else ()
    before = intact_rocketmq(store, *config)
    commands, made = walk(store, "rocketmq", *config)
    assert intact_rocketmq(made, "--view", "recovered", *config) >= before
    return commands


@pytest.mark.parametrize("case", DAMAGED, ids=case_id)
def test_a_damaged_golden_store_of_rocketmq_has_its_messages_back(case: GoldenCase, tmp_path: Path) -> None:
    store = tmp_path / "a broker's store"
    unpack(case, store)
    assert len(check_rocketmq(case, store)) == 3


@pytest.mark.parametrize("state", sorted(rocketmq_states.STATES.keys() - {"no_log"}))  # without its log nothing can come back
def test_a_store_of_rocketmq_that_was_damaged_has_its_messages_back(state: str, tmp_path: Path) -> None:
    case, store = case_named("4.9.3/f-broker-offsets"), tmp_path / "a broker's store"
    unpack(case, store)
    rocketmq_states.STATES[state](store)
    check_rocketmq(case, store)


@pytest.mark.parametrize("case", [*RABBITMQ, *OTHER_RABBITMQ], ids=case_id)
def test_a_golden_store_of_rabbitmq_has_its_messages_back(case: GoldenCase, tmp_path: Path) -> None:
    store = tmp_path / "a node's store"
    unpack(case, store)
    before = delivered_rabbitmq(store)
    commands, made = walk(store, "rabbitmq")
    assert len(commands) == (3 if case.name.startswith("e3") else 1)
    assert delivered_rabbitmq(made) >= before


@pytest.mark.parametrize("state", sorted(rabbitmq_states.STATES))
def test_a_store_of_rabbitmq_that_was_damaged_has_its_messages_back(state: str, tmp_path: Path) -> None:
    unpack(case_named(f"3.10.8/{rabbitmq_states.STATES[state].case}"), tmp_path / "golden")
    golden = delivered_rabbitmq(tmp_path / "golden")
    commands, made = walk(rabbitmq_states.made(state, tmp_path / "a node's store"), "rabbitmq")
    assert len(commands) <= 3
    assert golden.total() - delivered_rabbitmq(made).total() <= rabbitmq_states.STATES[state].lost


# quorum queues and streams: what can be read of the damaged node is delivered after the walk, or saved beside it


def largest(node: Path, pattern: str) -> Path:
    return max(node.glob(pattern), key=lambda path: (path.stat().st_size, path))


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x40
    path.write_bytes(bytes(raw))


def change_log(node: Path, at: Callable[[int], int]) -> None:
    """Change a bit of the write-ahead log. at: of its written length, the position."""
    path = largest(node, "quorum/*/*.wal")
    flip(path, at(len(path.read_bytes().rstrip(b"\0"))))


def flip_first_message(node: Path) -> None:
    """Change a bit of the first message of a queue: a repair ends the queue before it."""
    path = largest(node, "quorum/*/*.wal")
    system = RaftDirectory(ReadOnlyDirectory(node), path.parent.relative_to(node).as_posix())
    [uid] = [uid for uid in system.uids if QuorumQueue(system.member(uid)).name[1] == "fan.b"]
    records = dict(system.write_ahead_logs)[f"{system.place}/{path.name}"].of(uid)
    row = next(row for row in range(len(records)) if records["length"][row] > 1000)
    flip(path, int(records["position"][row] + records["length"][row] // 2))


def cut_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


MIX, SNAPSHOTS, CLEAN = "4.3.6/a-quorum-mix-kill9", "4.3.6/c-quorum-snapshots-kill9", "4.3.6/f-quorum-snapshots-clean"
OF_QUORUM: dict[str, tuple[str, Callable[[Path], None]]] = {
    "middle of the log": (MIX, lambda node: change_log(node, lambda size: size // 2)),
    "first message of a queue": (MIX, flip_first_message),
    "beginning of the log": (MIX, lambda node: change_log(node, lambda _: 2)),
    "log cut": (MIX, lambda node: cut_half(largest(node, "quorum/*/*.wal"))),
    "log gone": (MIX, lambda node: largest(node, "quorum/*/*.wal").unlink()),
    "log empty": (MIX, lambda node: largest(node, "quorum/*/*.wal").write_bytes(b"")),
    "names gone": (MIX, lambda node: largest(node, "quorum/*/names.dets").unlink()),
    "config gone": (MIX, lambda node: largest(node, "quorum/*/2F_ALOB*/config").unlink()),
    "member gone": (MIX, lambda node: shutil.rmtree(largest(node, "quorum/*/2F_ALOB*"))),
    "snapshot cut": (SNAPSHOTS, lambda node: cut_half(largest(node, "quorum/*/*/snapshots/*/snapshot.dat"))),
    "entry of a segment": (CLEAN, lambda node: flip(path := largest(node, "quorum/*/*/*.segment"), path.stat().st_size * 3 // 4)),
    "segment gone": (CLEAN, lambda node: largest(node, "quorum/*/*/*.segment").unlink()),
}
SMALL = "stream/__s_small_*"
OF_STREAMS: dict[str, Callable[[Path], None]] = {
    "chunk": lambda node: flip(path := largest(node, f"{SMALL}/*.segment"), path.stat().st_size // 2),
    "segment cut": lambda node: cut_half(largest(node, "stream/__s_plain_*/*.segment")),
    "segment gone": lambda node: sorted(node.glob(f"{SMALL}/*.segment"))[1].unlink(),
    "last segment empty": lambda node: sorted(node.glob(f"{SMALL}/*.segment"))[-1].write_bytes(b""),
    "index gone": lambda node: sorted(node.glob(f"{SMALL}/*.index"))[0].unlink(),
    "last index cut": lambda node: cut_half(sorted(node.glob(f"{SMALL}/*.index"))[-1]),
    "every index gone": lambda node: [path.unlink() for path in node.glob("stream/*/*.index")] and None,
    "stream gone": lambda node: shutil.rmtree(largest(node, SMALL)),
}


def readable(rows: list[dict[str, Any]]) -> Counter[tuple[str, str, str]]:
    return Counter((row["vhost"], row["queue"], row["payload_sha256"]) for row in rows if row["recovered"] and row["verdict"] == "intact")


def check_node(node: Path) -> None:
    before = readable(run_cli("messages", node, "-o", "jsonl").rows)
    commands, made = walk(node, "rabbitmq")
    after, saved = readable(run_cli("messages", made, "-o", "jsonl").rows), Path(f"{node}.jsonl")
    if saved.exists():
        after |= Counter(
            (row["vhost"], row["queue"], row["payload_sha256"])
            for row in map(json.loads, saved.read_text(encoding="utf-8").splitlines())
            if row["verdict"] == "intact"
        )
    assert before - after == Counter(), commands


@pytest.mark.parametrize("damage", OF_QUORUM)
def test_a_node_with_damaged_quorum_queues_has_its_messages_back(damage: str, tmp_path: Path) -> None:
    case, change = OF_QUORUM[damage]
    node = quorum.unpack(case, tmp_path / "a node's directory")
    change(node)
    check_node(node)


@pytest.mark.parametrize("damage", OF_STREAMS)
def test_a_node_with_damaged_streams_has_its_messages_back(damage: str, tmp_path: Path) -> None:
    node = streams.unpack("4.3.6-killed", tmp_path / "a node's directory")
    OF_STREAMS[damage](node)
    check_node(node)
