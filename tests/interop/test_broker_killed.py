"""A broker killed under load: the real Java client sends with sync flush and consumes, our broker is killed with -9 and started again.

Everything acknowledged is there afterwards, each message in its position; the consumer continues from the offsets that were on disk and
sees every message; and the real store opens what the killed broker left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop.realbroker import ORACLE, Job, java, run, why_not
from support.broker import Wire, records
from support.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

TOPIC = "killed"
SETTINGS = {"mappedFileSizeCommitLog": "1048576", "mappedFileSizeConsumeQueue": "60000", "maxHashSlotNum": "1000", "maxIndexNum": "4000"}
PATIENCE = 600.0  # seconds on a busy machine
KILLS = 2

Place = tuple[int, int, int]  # queue id, queue offset, physical offset


class Child:
    """A child process whose output lines are kept as they arrive."""

    def __init__(self, command: list[str], directory: Path) -> None:
        with (directory / "errors.txt").open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=directory, start_new_session=True
            )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout if line.endswith("\n"))

    def told(self) -> list[list[str]]:
        """Return the words of the lines that begin with >."""
        return [line[2:].split(" ") for line in list(self.lines) if line.startswith("> ")]

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def end(self) -> None:
        """Let the process finish by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0
        self._reader.join()


def until(come: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not come():
        assert time.monotonic() < end, f"timed out waiting for {what}"
        time.sleep(0.05)


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Yield a list for child processes, which are killed after the test."""
    started: list[Child] = []
    yield started
    for child in started:
        child.kill()


def committed(store: Path) -> dict[int, int]:
    """Return the consumer's offsets on disk by queue id."""
    file = store / "config" / "consumerOffset.json"
    if not file.exists():
        return {}
    from mqstore.rocketmq.config import fastjson

    try:
        table = fastjson.parse(file.read_text(encoding="utf-8"))["offsetTable"]
    except (ValueError, KeyError):
        return {}  # the file is being written
    return {int(queue): offset for queue, offset in table.get(f"{TOPIC}@killed-consumers", {}).items()}


@pytest.mark.parametrize("version", ["4.9.3", pytest.param("5.3.3", marks=pytest.mark.slow)])
def test_what_was_acknowledged_is_there_after_kill_9_and_consumers_go_on(version: str, children: list[Child], tmp_path: Path) -> None:
    reason = why_not(version)
    if reason is not None:
        pytest.skip(reason)
    store, port = tmp_path / "store", free_port()
    address = f"127.0.0.1:{port}"
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))

    def broker() -> Child:
        options = [
            "--listen",
            address,
            "--sync",
            "--auto-create-topics",
            "--as-version",
            version,
            "--config",
            str(tmp_path / "broker.conf"),
        ]
        child = Child([sys.executable, "-m", "mqstore", "serve", str(store), *options], tmp_path)
        children.append(child)
        until(lambda: bool(child.lines) or child.process.poll() is not None, "the start of the broker")
        assert child.process.poll() is None, (tmp_path / "errors.txt").read_text(encoding="utf-8")
        return child

    def client(what: str) -> Child:
        flags = ["-Xmx256m", f"-Duser.home={tmp_path}", "-Drocketmq.client.logUseSlf4j=true"]
        command = [str(java()), *flags, "-cp", f"{ORACLE / 'target' / version / 'lib'}/*"]
        child = Child([*command, str(Path(__file__).parent / "killed" / "Load.java"), address, what, TOPIC], tmp_path)
        children.append(child)
        return child

    running = broker()
    producer = client("produce")
    until(lambda: len(producer.told()) > 0 or producer.process.poll() is not None, "the first message")
    consumer = client("consume")
    until(lambda: sum(committed(store).values()) > 0, "an offset on disk")
    for _ in range(KILLS):
        before = len(producer.told())
        until(lambda at=before: len(producer.told()) > at + 200, "200 more messages")
        running.kill()
        on_disk = committed(store)
        running = broker()
        with Wire(address) as wire:
            for queue, offset in on_disk.items():
                asked = {"consumerGroup": "killed-consumers", "topic": TOPIC, "queueId": str(queue)}
                assert int(wire.call(14, asked).field("offset")) >= offset
    before = len(producer.told())
    until(lambda: len(producer.told()) > before + 50, "messages after the last start")
    producer.end()
    acknowledged = {body: (int(queue), int(offset), int(ident[-16:], 16)) for body, queue, offset, ident in producer.told()}
    until(lambda: acknowledged.keys() <= {body for (body,) in consumer.told()}, "every message to the consumer")
    with Wire(address) as wire:
        for body, (queue, offset, position) in acknowledged.items():
            (found,) = records(wire.call(33, {"offset": str(position)}).body)
            assert (found.body.decode(), found.queue_id, found.queue_offset) == (body, queue, offset)
    consumer.end()
    running.kill()
    opened = run(version, [Job("dump", ("dump", str(shutil.copytree(store, tmp_path / "opened"))), SETTINGS)], tmp_path / "work")["dump"]
    assert opened.code == 0, opened.error
    dumped: set[Place] = {(row["queue_id"], row["queue_offset"], row["physical_offset"]) for row in opened.rows if row["topic"] == TOPIC}
    assert set(acknowledged.values()) <= dumped
