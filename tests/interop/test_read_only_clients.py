"""Real clients on a read-only broker: they receive every message, and a send says that the broker is read-only."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop.clientoracle import CLIENTS, why_not
from interop.realbroker import java
from support.golden import case_named, opened, run_cli

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-clients")]

# with IPv6 hosts, compressed bodies, a killed broker's undispatched messages, an old start of the log, damaged records
STORES = ("4.9.3/e-delay-transaction-batch", "4.9.3/b-kill9", "5.3.3/k-rolled", "4.9.3/m-damaged/06-length-fields")
CPP = """
import json, sys
from rocketmq.client import PullConsumer
consumer = PullConsumer("readers"); consumer.set_namesrv_addr(sys.argv[1]); consumer.start()
for topic in sys.argv[2:]:
    for message in consumer.pull(topic):
        print(json.dumps([topic, message.queue_offset]), flush=True)
consumer.shutdown()
"""


@contextmanager
def serving(store: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "mqstore", "serve", str(store), "--listen", "127.0.0.1:0", "--read-only"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as broker:
        assert broker.stdout is not None
        try:
            yield next(found[0] for line in broker.stdout if (found := re.search(r"127\.0\.0\.1:\d+", line)))
        finally:
            broker.terminate()


def drain(version: str, tmp_path: Path, *arguments: str) -> str:
    libraries = CLIENTS / "target" / version / "lib"
    if java() is None or not libraries.is_dir():
        pytest.skip(why_not(version) or f"there is no {libraries}")
    source = Path(__file__).parent / "readonly" / "Drain.java"
    command = [
        str(java()),
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        f"-Duser.home={tmp_path}",
        "-cp",
        f"{libraries}/*",
        str(source),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(name: str) -> dict[tuple[str, int, int], tuple[int, str]]:
    """Return physical offset and body of each message by topic, queue id and queue offset; prepared transactions are in no queue."""
    rows = run_cli("messages", opened(case_named(name)), "-o", "jsonl", "--body", "base64", "--view", "disk").rows
    return {
        (row["topic"], row["queue_id"], row["queue_offset"]): (row["physical_offset"], row["body"])
        for row in rows
        if row["sys_flag"] & 0xC in (0, 8)
    }


def in_queues(name: str) -> set[tuple[str, int, int]]:
    """Return the places in queues that hold a readable message, after the dispatch that a broker does when it loads the store."""
    store = opened(case_named(name))
    view = "disk" if "damaged" in name else "recovered"
    messages = listed(name)
    places = set()
    for row in run_cli("topics", store, "--view", view, "-o", "jsonl").rows:
        places |= {(row["topic"], row["queue_id"], offset) for offset in range(row["min_offset"], row["max_offset"])}
    return places & messages.keys()


@pytest.mark.parametrize("name", STORES)
def test_a_java_client_receives_every_message_of_a_read_only_broker(name: str, tmp_path: Path) -> None:
    wanted, messages = in_queues(name), listed(name)
    topics = sorted({topic for topic, _, _ in wanted})
    with serving(opened(case_named(name))) as address:
        told = drain("4.9.3", tmp_path, address, "pull", *topics)
    assert "stuck" not in told
    found = {}
    for line in told.splitlines():
        if line.startswith("> "):
            _, queue_id, offset, physical, body, topic = line.split(" ", 5)
            found[topic, int(queue_id), int(offset)] = (int(physical), base64.b64decode(body[1:]))
    assert found.keys() == wanted
    for place, (physical, body) in found.items():
        assert (physical, base64.b64encode(body).decode()) == messages[place]


@pytest.mark.parametrize("name", STORES)
def test_the_cpp_client_receives_every_message_of_a_read_only_broker(name: str) -> None:
    if importlib.util.find_spec("rocketmq") is None:
        pytest.skip("the wheel rocketmq 0.4.4 is not installed; `pip install rocketmq==0.4.4` installs the C++ client (x86_64 Linux)")
    wanted = in_queues(name)
    topics = sorted({topic for topic, _, _ in wanted})
    with serving(opened(case_named(name))) as address:
        command = [sys.executable, "-c", CPP, address, *topics]
        told = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    found = sorted(tuple(json.loads(line)) for line in told.splitlines() if line.startswith("["))
    assert found == sorted((topic, offset) for topic, _, offset in wanted)


@pytest.mark.parametrize("topic", ["s61_plain", "no-such-topic"])
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_java_producer_shows_that_the_broker_is_read_only(version: str, topic: str, tmp_path: Path) -> None:
    with serving(opened(case_named(STORES[0]))) as address:
        told = drain(version, tmp_path, address, "send", topic)
    assert "refused" in told
    assert "CODE: 14" in told
    assert "this broker is read-only" in told
