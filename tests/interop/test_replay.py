"""Replay into a real RocketMQ broker, through its name server, killed and resumed, compared message by message with what it stored."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from interop.clientoracle import CLIENTS, why_not
from interop.realbroker import java
from support.golden import case_named, opened
from support.ports import free_port

from mqstore.opening import open_rocketmq
from mqstore.table.text import columns_for, python_rows

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-clients")]

LOG = case_named("4.9.3/f-broker-offsets")
PATIENCE = 120
OWN = {"MQSTORE_FROM", "CLUSTER", "WAIT", "DELAY", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MSG_REGION", "TRACE_ON"}


@contextmanager
def real_brokers(version: str, place: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Run the real name server and broker of a version on place/store; yield their addresses."""
    target = CLIENTS / "target" / version
    command = [str(java()), "-Xmx1g", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={place}"]
    command += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang", "java.util")]
    command += [f"--add-exports=java.base/{name}=ALL-UNNAMED" for name in ("jdk.internal.ref", "sun.nio.ch")]
    command += ["-cp", f"{target}/rocketmq-clients.jar:{target}/lib/*", "mqstore.oracle.LocalCluster", "--store", str(place / "store")]
    names, broker = free_port(), free_port()
    command += ["--namesrv-port", str(names), "--broker-port", str(broker), "--seconds", "600", *options]
    with (place / "cluster.log").open("wb") as errors:
        running = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert running.stdout is not None
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


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_real_broker_has_each_message_once_after_a_replay_that_was_killed(version: str, tmp_path: Path, kills: int) -> None:
    if reason := why_not(version):
        pytest.skip(reason)
    wanted = wanted_of(rows_of(opened(LOG)))
    total = sum(map(len, wanted.values()))
    journal = tmp_path / "sent.journal"
    with real_brokers(version, tmp_path) as (names, _):
        command = [sys.executable, "-m", "mqstore", "replay", str(opened(LOG)), "--to", f"rocketmq://{names}"]
        command += ["--resume", str(journal), "-o", "json"]
        killed = 0
        for round_ in range(1, kills + 1):
            running = subprocess.Popen([*command, "--rate", "400"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            goal = total * round_ // (kills + 1)
            begun = time.monotonic()
            while running.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < goal):
                assert time.monotonic() - begun < PATIENCE
                time.sleep(0.001)
            running.send_signal(signal.SIGKILL)
            _, errors = running.communicate()
            killed += running.returncode == -signal.SIGKILL
            assert running.returncode in (0, -signal.SIGKILL), errors
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert killed > 0
        last = json.loads(done.stdout)
        assert last["sent"] + last["skipped"] == total
        assert last["in_doubt"] == 0
        # as if the last confirmation had not been written: the message is found by its mark in the broker's queue
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
        again = json.loads(subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE).stdout)
        assert (again["sent"], again["arrived_before"]) == (0, 1)
    assert arrived_of(rows_of(tmp_path / "store")) == wanted
