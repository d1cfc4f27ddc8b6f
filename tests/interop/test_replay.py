"""Replay into a real RocketMQ broker, through its name server, killed and resumed, compared message by message with what it stored."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from interop.clientoracle import CLIENTS, why_not
from interop.killing import Killing, by_source, renamed
from interop.realbroker import java
from support.certificates import server_files
from support.golden import case_named, opened, run_cli
from support.ports import free_port
from support.proxy import Proxy

from mqstore.places import open_rocketmq
from mqstore.replay.sources import DEFAULT_VERDICTS, rocketmq_messages
from mqstore.rocketmq import Message, MessageStore
from mqstore.table.columns import Selection
from mqstore.table.text import columns_for, python_rows

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-clients")]

LOG, QUEUES = case_named("4.9.3/f-broker-offsets"), case_named("3.10.8/f-mixed-features")
OWN = {"MQSTORE_FROM", "CLUSTER", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MSG_REGION", "TRACE_ON"}


@contextmanager
def real_brokers(version: str, place: Path, *options: str, properties: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Run the real name server and broker of a version on place/store; yield their addresses."""
    target = CLIENTS / "target" / version
    command = [
        str(java()),
        "-Xmx1g",
        "-XX:MaxDirectMemorySize=512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Duser.home={place}",
        *properties,
    ]
    command += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang", "java.util")]
    command += [f"--add-exports=java.base/{name}=ALL-UNNAMED" for name in ("jdk.internal.ref", "sun.nio.ch")]
    command += ["-cp", f"{target}/rocketmq-clients.jar:{target}/lib/*", "mqstore.oracle.LocalCluster", "--store", str(place / "store")]
    names, broker = free_port(), free_port()
    command += ["--namesrv-port", str(names), "--broker-port", str(broker), "--seconds", "600", *options]
    with (place / "cluster.log").open("wb") as errors:
        running = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert running.stdout is not None
    _RUNNING[f"127.0.0.1:{broker}"] = running
    try:
        for line in running.stdout:
            if '"namesrv"' in line:
                break
        else:
            raise AssertionError((place / "cluster.log").read_text()[-3000:])
        yield f"127.0.0.1:{names}", f"127.0.0.1:{broker}"
    finally:
        running.kill()
        running.wait(60)
        running.stdout.close()


_RUNNING: dict[str, subprocess.Popen[str]] = {}


def end_of(broker: str) -> None:
    """Kill the processes of a broker."""
    _RUNNING[broker].kill()


def rows_of(store: Path) -> list[dict[str, Any]]:
    batches = open_rocketmq(store).to_batches(columns_for("sha256"), milliseconds=True)
    return [row for batch in batches for row in python_rows(batch, "sha256")]


def comparable(row: dict[str, Any]) -> tuple[object, ...]:
    own = sorted((name, value) for name, value in row["properties"].items() if name not in OWN)
    return (*(row[name] for name in ("topic", "body_sha256", "flag", "born_timestamp", "reconsume_times")), own)


def wanted_of(rows: list[dict[str, Any]]) -> dict[str, list[tuple[object, ...]]]:
    found = defaultdict(list)
    for row in rows:
        if not row["topic"].startswith(("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_")):
            found[f"{row['topic']}/{row['queue_id']}"].append(comparable(row))
    return found


def arrived_of(rows: list[dict[str, Any]]) -> dict[str, list[tuple[object, ...]]]:
    found = defaultdict(list)
    for row in rows:
        mark = row["properties"].get("MQSTORE_FROM")
        if mark is not None:
            found[mark.partition("#")[2].rpartition("/")[0]].append(comparable(row))
    return found


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3", "5.5.0"])
def test_a_real_broker_has_each_message_once_after_a_replay_that_was_killed(version: str, tmp_path: Path, kills: int) -> None:
    """Killed at random bytes and lines, the connection cut at others; then messages of RabbitMQ, and the end of the broker in mid-run."""
    if reason := why_not(version):
        pytest.skip(reason)
    rows = rows_of(opened(LOG))
    wanted = wanted_of(rows)
    total = sum(map(len, wanted.values()))
    octets = sum(row["size"] for row in rows) + 1000 * total
    store = open_rocketmq(opened(LOG))
    sources = by_source(rocketmq_messages(store, Selection(), DEFAULT_VERDICTS, None, Counter()))
    journal = tmp_path / "sent.journal"
    with (
        real_brokers(version, tmp_path) as (names, broker),
        Proxy(port_of(broker)) as proxy,
        Proxy(port_of(names), answers=renamed(port_of(broker), proxy.port)) as route,
    ):
        to = ["--to", f"rocketmq://127.0.0.1:{route.port}"]
        argv = ["replay", str(opened(LOG)), *to, "--resume", str(journal), "-o", "json"]
        killing = Killing(journal, proxy, sources, seed=7)
        killing.lives(argv, kills, octets // 2)
        cut_again(proxy, 3, 5000)
        done = run_cli(*argv)
        proxy.after(None)
        assert done.status == 0, done.stderr
        last = done.document
        assert last["sent"] + last["skipped"] == total
        assert killing.killed >= kills // 2
        assert killing.at_bytes >= kills // 5
        # as if the last confirmation had not been written: the message is found by its mark in the broker's queue
        journal.write_bytes(b"".join(line for line in journal.read_bytes().splitlines(keepends=True) if b"settled" not in line)[:-2])
        again = run_cli(*argv).document
        assert (again["sent"], again["arrived_before"]) == (0, 1)
        queued = run_cli("replay", opened(QUEUES), "--vhost", "/", *to, "-o", "json")
        assert queued.status == (0 if version == "4.9.3" else 1), queued.stderr
        assert all("its body is empty" in each["why"] for each in queued.document["refusals"])
        assert run_cli("replay", compressed_in(tmp_path / "compressed"), *to).status == 0
        proxy.after(octets // 3, lambda: end_of(broker))
        died = run_cli("replay", opened(LOG), *to, "--set", "topic=afterwards", "--resume", tmp_path / "second.journal")
        assert died.status == 2
        assert "run again with --resume" in died.stderr
        assert "Traceback" not in died.stderr
    found = rows_of(tmp_path / "store")
    mine = [row for row in found if row["topic"].startswith("s62_")]
    assert arrived_of(mine) == wanted
    check_queues_as_topics(found, with_empty=version == "4.9.3")
    (big,) = [row for row in found if row["topic"] == "compressed"]
    assert big["sys_flag"] & 1
    assert big["body_sha256"] == hashlib.sha256(BIG).hexdigest()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def cut_again(proxy: Proxy, times: int, every: int) -> None:
    """Cut the connections so often, each time after some bytes."""
    proxy.after(every if times else None, lambda: cut_again(proxy, times - 1, every))


BIG = b"compressed by the client " * 2000


def compressed_in(path: Path) -> Path:
    with MessageStore.open(path) as store:
        assert store.put(Message("compressed", zlib.compress(BIG), sys_flag=1)).stored
    return path


def check_queues_as_topics(found: list[dict[str, Any]], *, with_empty: bool) -> None:
    """Compare what came from queues of RabbitMQ with the rows of `messages`, by the mapping that the guide names."""
    expected: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for row in run_cli("messages", opened(QUEUES), "-o", "jsonl").rows:
        if row["verdict"] == "intact" and row["vhost"] == "/" and (row["payload_len"] or with_empty):
            given = dict(row["properties"] or {})
            own = {f"header.{name}": text_of(value) for name, _, value in given.pop("headers", None) or () if value is not None}
            own |= {"KEYS" if name == "message_id" else name: text_of(value) for name, value in given.items()}
            if row["exchange"]:
                own |= {"exchange": row["exchange"], "routing_key": row["routing_keys"][0]}
            born = given["timestamp"] * 1000 if 0 < given.get("timestamp", 0) < 1 << 33 else None
            source = f"//{row['queue']}"
            topic = re.sub("[^%|a-zA-Z0-9_-]", "_", row["queue"])
            own = {name: value for name, value in own.items() if value}  # brokers drop a property without a value
            expected[source].append((topic, row["payload_sha256"], own, born))
    arrived: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for row in found:
        place = row["properties"].get("MQSTORE_FROM", "").partition("#")[2]
        source = max((each for each in expected if place.startswith(f"{each}/")), key=len, default="")
        if source:
            own = {name: text for name, text in row["properties"].items() if text and name not in OWN | {"UNIQ_KEY"}}  # 5.x adds one
            wanted = expected[source][len(arrived[source])]
            arrived[source].append((row["topic"], row["body_sha256"], own, row["born_timestamp"] if wanted[3] is not None else None))
    assert arrived == expected
    assert any(each[2] for rows in expected.values() for each in rows)


def text_of(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_real_broker_with_access_control_takes_signed_messages_over_tls(version: str, tmp_path: Path) -> None:
    if reason := why_not(version):
        pytest.skip(reason)
    (tmp_path / "certificates").mkdir()
    files = server_files(tmp_path / "certificates")
    tls = [f"-Dtls.server.certPath={files.certificate}", f"-Dtls.server.keyPath={files.key}", "-Dtls.test.mode.enable=false"]
    secret = tmp_path / "secret"
    secret.write_text("the operator's key\n")
    with real_brokers(version, tmp_path, "--acl", str(CLIENTS / "plain_acl.yml"), properties=tls) as (names, _):
        to = ("--to", f"rocketmq://{names}", "--topic", "s62_bills", "--limit", "5")
        keys = ("--access-key", "operator", "--secret-key-file", secret)
        trusted = ("--tls-ca", files.authority.certificate)
        done = run_cli("replay", opened(LOG), *to, *keys, *trusted)
        assert done.status == 0, done.stderr
        stranger = run_cli("replay", opened(LOG), *to, *keys, "--tls")
        assert stranger.status == 2
        assert "certificate" in stranger.stderr
        unsigned = run_cli("replay", opened(LOG), *to, *trusted)
        assert unsigned.status == 2
        secret.write_text("another key")
        wrong = run_cli("replay", opened(LOG), *to, *keys, *trusted)
        assert wrong.status == 2
        for each in (stranger, unsigned, wrong):
            assert len(each.stderr.splitlines()) == 1, each.stderr
    found = [row for row in rows_of(tmp_path / "store") if row["topic"] == "s62_bills"]
    assert len(found) == 5
