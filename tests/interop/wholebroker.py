"""A whole real broker, with its name server, on a store of ours: the process that LocalCluster of rocketmq-clients starts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from interop.clientoracle import CLIENTS
from interop.realbroker import java

__all__ = ["FILES", "Start", "start_and_stop"]

# the sizes of the files of a LocalCluster
FILES = {"commit_log_file_size": 16 << 20, "consume_queue_file_size": 60_000, "max_hash_slot_num": 50_000, "max_index_num": 200_000}
PATIENCE = 240.0  # seconds for a start, on a busy machine
POLL = 0.1


@dataclass(frozen=True)
class Start:
    """Whether a broker started, and what it said if it did not. It was then stopped, and wrote its tables."""

    started: bool
    error: str


def start_and_stop(version: str, store: Path, work: Path) -> Start:
    """Start a broker of a version on a store, in place, and stop it as an operator does. work: a new directory for its other files."""
    home = work / "home"
    home.mkdir(parents=True)
    target = CLIENTS / "target" / version
    command = [str(java()), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}", "-Duser.timezone=UTC"]
    command += ["-cp", f"{target}/rocketmq-clients.jar:{target}/lib/*", "mqstore.oracle.LocalCluster", "--store", str(store)]
    printed, complaints = work / "out", work / "err"
    with printed.open("wb") as out, complaints.open("wb") as errors:
        running = subprocess.Popen(command, stdout=out, stderr=errors, cwd=home, env={**os.environ, "HOME": str(home)})
    try:
        end = time.monotonic() + PATIENCE
        while b'"broker"' not in printed.read_bytes():
            text = complaints.read_text(encoding="utf-8", errors="replace")
            if 'Exception in thread "main"' in text or running.poll() is not None:
                return Start(False, text)
            assert time.monotonic() < end, text
            time.sleep(POLL)
        running.send_signal(signal.SIGTERM)
        running.wait(PATIENCE)
        return Start(True, "")
    finally:
        running.kill()
        running.wait()
