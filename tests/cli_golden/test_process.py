"""The command as a separate process, as a shell runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.golden import case_named, opened, run_cli, unchanged

CASE = case_named("4.9.3/a-clean-small")
COMMANDS = (
    ("inspect",),
    ("messages", "-o", "jsonl", "--body", "sha256"),
    ("messages", "-o", "csv"),
    ("topics", "-o", "json"),
    ("groups", "-o", "jsonl"),
    ("verify", "-o", "json"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_process_prints_what_the_command_prints_in_this_one(command: tuple[str, ...]) -> None:
    verb, *options = command
    store = opened(CASE)
    with unchanged(store):
        alone = run_cli(verb, store, *options, subprocess_=True)
    assert alone.status == 0, alone.stderr
    assert alone.stderr == ""
    if "-o" in options:
        assert alone.stdout == run_cli(verb, store, *options).stdout


def test_a_reader_that_goes_away_ends_the_command_without_a_traceback() -> None:
    command = [sys.executable, "-m", "mqstore", "messages", str(opened(CASE)), "-o", "jsonl", "--body", "base64"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        complaint = process.stderr.read().decode()
        process.wait(60)
    assert complaint == ""
