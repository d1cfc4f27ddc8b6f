"""Ctrl-C on real commands: status 130, one sentence that says what was done and how to go on, and nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.golden import case_named, opened

# The command is interrupted at the first progress that it reports, so that the time does not matter.
DRIVER = """
import os, signal, sys
from mqstore.cli import entry
from mqstore.cli.common import progress

def interrupting(title, **options):
    import contextlib

    @contextlib.contextmanager
    def bar():
        with original(title, **options) as report:
            def first(done, total):
                report(done, total)
                os.kill(os.getpid(), signal.SIGINT)
            yield first
    return bar()

original = progress.progress_bar
from mqstore.cli.common import output
output.progress_bar = interrupting
entry.main()
"""
UNCHANGED = "the store is unchanged; run it again"
NOTHING_LEFT = "nothing half-written is left; run it again"
ROCKETMQ, RABBITMQ = "4.9.3/b-kill9", "3.10.8/f-mixed-features"

COMMANDS = [
    (ROCKETMQ, ["verify"], "verifying", UNCHANGED),
    (ROCKETMQ, ["usage", "--threads", "2"], "counting", UNCHANGED),
    (ROCKETMQ, ["find", "order", "--threads", "2"], "searching", UNCHANGED),
    (ROCKETMQ, ["diagnose"], "diagnosing", UNCHANGED),
    (ROCKETMQ, ["rebuild", "--to", "OUT", "--threads", "2"], "rebuilding", UNCHANGED),
    (ROCKETMQ, ["export", "--to", "OUT", "--threads", "2", "--splits", "8"], "exporting", NOTHING_LEFT),
    (ROCKETMQ, ["salvage", "--to", "OUT.jsonl", "--as", "rocketmq"], "carving", NOTHING_LEFT),
    (RABBITMQ, ["verify"], "verifying", UNCHANGED),
    (RABBITMQ, ["diagnose"], "diagnosing", UNCHANGED),
    (RABBITMQ, ["find", "order", "--threads", "2"], "searching", UNCHANGED),
    (RABBITMQ, ["export", "--to", "OUT", "--threads", "2"], "exporting", NOTHING_LEFT),
    (RABBITMQ, ["convert", "--to", "OUT", "--queue-version", "2"], "converting", NOTHING_LEFT),
]


QUICK = ("verify", "export", "convert")
CASES = [
    pytest.param(*case, id=f"{case[0].partition('/')[0]}-{case[1][0]}", marks=[] if case[1][0] in QUICK else [pytest.mark.long])
    for case in COMMANDS
]


@pytest.mark.parametrize(("store", "command", "doing", "ends"), CASES)
def test_an_interrupted_command_says_what_it_did_and_leaves_nothing(
    tmp_path: Path, store: str, command: list[str], doing: str, ends: str
) -> None:
    words = [word.replace("OUT", str(tmp_path / "out")) for word in command]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, words[0], str(opened(case_named(store))), *words[1:]],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"mqstore: interrupted while {doing}")
    assert ends in last
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_from_outside_while_a_reader_waits() -> None:
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "mqstore", "messages", str(opened(case_named(ROCKETMQ))), "-o", "jsonl", "--body", "base64"],
        stdout=writing, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writing)
    assert os.read(reading, 1)  # it has begun, and soon waits for its reader
    time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    os.close(reading)
    assert child.returncode == 130
    assert said == f"mqstore: interrupted; {UNCHANGED}\n"
