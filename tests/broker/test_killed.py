"""A broker process killed with -9 while four connections send under sync flush; tests/interop/ does it with real clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.broker import Wire, records

SETTINGS = "mappedFileSizeCommitLog=262144\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"
LIVES = 3
EACH = 100  # acknowledged messages of one run

Place = tuple[int, int, int]  # queue id, queue offset, physical offset


class Serving:
    """`mqstore serve` in a separate process."""

    def __init__(self, place: Path, version: str) -> None:
        (place / "broker.conf").write_text(SETTINGS, encoding="utf-8")
        command = ["serve", "store", "--listen", "127.0.0.1:0", "--sync", "--auto-create-topics", "--as-version", version]
        command += ["--config", "broker.conf", "-o", "jsonl", "-q"]
        self.process = subprocess.Popen([sys.executable, "-m", "mqstore", *command], cwd=place, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = str(json.loads(self.process.stdout.readline())["address"])

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def keep_sending(address: str, name: str, acknowledged: dict[bytes, Place]) -> None:
    """Send until the broker has ended."""
    with contextlib.suppress(OSError, EOFError), Wire(address) as wire:
        number = 0
        while True:
            body = f"{name}-{number}".encode()
            found = wire.send("T", body, number % 4)
            assert found.code == 0
            acknowledged[body] = (int(found.field("queueId")), int(found.field("queueOffset")), int(found.field("msgId")[-16:], 16))
            number += 1


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_every_acknowledged_message_outlives_kill_9_and_offsets_that_were_on_disk_stay(version: str, tmp_path: Path) -> None:
    acknowledged: dict[bytes, Place] = {}
    running = Serving(tmp_path, version)
    try:
        for life in range(LIVES):
            wanted = len(acknowledged) + EACH
            threads = [
                threading.Thread(target=keep_sending, args=(running.address, f"{life}-{number}", acknowledged)) for number in range(4)
            ]
            for thread in threads:
                thread.start()
            while len(acknowledged) < wanted and any(thread.is_alive() for thread in threads):
                time.sleep(0.01)
            with Wire(running.address) as wire:
                wire.make_group("g")
                assert wire.call(15, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": str(life + 1)}).code == 0
                wire.make_topic(f"saves-{life}")  # creating a topic writes the offsets, too
            running.kill()
            for thread in threads:
                thread.join()
            running = Serving(tmp_path, version)
            with Wire(running.address) as wire:
                assert wire.call(14, {"consumerGroup": "g", "topic": "T", "queueId": "0"}).field("offset") == str(life + 1)
                assert wire.route(f"saves-{life}") is not None
        assert len(acknowledged) >= LIVES * EACH
        listed: dict[Place, bytes] = {}
        with Wire(running.address) as wire:
            for queue in range(4):
                at, end = 0, int(wire.call(30, {"topic": "T", "queueId": str(queue)}).field("offset"))
                while at < end:
                    found = wire.pull("T", at, queue)
                    listed |= {(one.queue_id, one.queue_offset, one.physical_offset): bytes(one.body) for one in records(found.body)}
                    at = int(found.field("nextBeginOffset"))
        assert {place: body for body, place in acknowledged.items()}.items() <= listed.items()
    finally:
        running.kill()
