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
from support.spark_api import needs_tables

from mqstore.cli.write.target import Interrupts

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
    (ROCKETMQ, ["rebuild", "--to", "OUT", "--threads", "2"], "rebuilding", NOTHING_LEFT),
    (ROCKETMQ, ["export", "--to", "OUT", "--threads", "2", "--splits", "8"], "exporting", NOTHING_LEFT),
    (ROCKETMQ, ["salvage", "--to", "OUT.jsonl", "--as", "rocketmq"], "carving", NOTHING_LEFT),
    (ROCKETMQ, ["salvage", "--to", "OUT.parquet"], "salvaging", NOTHING_LEFT),
    (ROCKETMQ, ["lookup", "--keys", "KEYS", "--to", "OUT.jsonl"], "looking up", NOTHING_LEFT),
    (RABBITMQ, ["salvage", "--to", "OUT.jsonl"], "salvaging", NOTHING_LEFT),
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
    (keys := tmp_path / "keys.txt").write_text("orders\tk1\n")
    words = [word.replace("OUT", str(tmp_path / "out")).replace("KEYS", str(keys)) for word in command]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, words[0], str(opened(case_named(store))), *words[1:]],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"mqstore: interrupted while {doing}")
    assert ends in last
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [keys]


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


def python(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False, timeout=120)


INTERRUPT = "import os, signal\ndef interrupt():\n    os.kill(os.getpid(), signal.SIGINT)\n"


@needs_tables
@pytest.mark.versions
@pytest.mark.parametrize("where", ["_filtered", "_read"])
def test_a_query_that_is_interrupted_while_duckdb_reads_a_table_prints_no_traceback(where: str) -> None:
    made = {"_filtered": "interrupt() or original(*given)", "_read": "(interrupt() or batch for batch in original(*given))"}[where]
    owner = "duck._Scan" if where == "_filtered" else "duck"
    done = python(
        f"{INTERRUPT}from mqstore.pipeline.queries import duck\noriginal = {owner}.{where}\n"
        f"{owner}.{where} = lambda *given: {made}\nfrom mqstore.cli import entry\nentry.main()",
        "sql", opened(case_named(ROCKETMQ)), "select topic, count(*) from messages where size > 3 group by all",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, f"mqstore: interrupted while running the query; {UNCHANGED}\n")


def test_an_interruption_while_the_options_are_parsed_is_not_silent() -> None:
    done = python(
        f"{INTERRUPT}from mqstore.cli.common import command\ncommand.join_ranges = lambda words: interrupt() or words\n"
        "from mqstore.cli import entry\nentry.main()",
        "topics", opened(case_named(ROCKETMQ)),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, f"mqstore: interrupted; {UNCHANGED}\n")


def test_an_interruption_after_the_work_changes_nothing() -> None:
    code = f"{INTERRUPT}import atexit\nfrom mqstore.cli import entry\natexit.register(interrupt)\nentry.main()"
    done = python(code, "topics", opened(case_named(ROCKETMQ)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_an_interruption_of_the_imports_has_the_status_130_and_a_sentence() -> None:
    """An interrupted `exec`, as for each dataclass, makes Python end by the signal unless it is forgotten."""
    done = python(f"{INTERRUPT}from mqstore.cli import entry\nentry._run = lambda: exec('interrupt()', globals())\nentry.main()")
    assert (done.returncode, done.stderr) == (130, "mqstore: interrupted before it began; nothing was done\n")


@pytest.mark.parametrize("until_asked", [False, True])
def test_an_interrupt_of_a_held_block_takes_effect_after_it_or_where_it_is_asked_for(until_asked: bool) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        with interrupts.held(until_asked=until_asked):
            signal.raise_signal(signal.SIGINT)
            done.append("block")
        done.append("after it")
        interrupts.ask()
        done.append("asked")
    assert done == (["block", "after it"] if until_asked else ["block"])
