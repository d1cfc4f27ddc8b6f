"""Delayed messages that a real broker delivers a second time, as `diagnose` counts them, and none after `repair`."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from interop.realbroker import JVM, ORACLE, java, why_not
from support.golden import run_cli, unpack_site

from mqstore.places import open_rocketmq
from mqstore.rocketmq.format.system_topics import SCHEDULE_TOPIC

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

VERSION = "4.9.3"
Copies = Counter[tuple[str, str, int]]


def _copies(store: Path) -> Copies:
    """Return how often each delayed message is in its topic: by topic, unique key and attempt."""
    found: Copies = Counter()
    names = ("topic", "uniq_key", "reconsume_times", "properties")
    for batch in open_rocketmq(store).view().batches(names, milliseconds=True):
        for row in batch.to_pylist():
            if row["topic"] != SCHEDULE_TOPIC and "REAL_TOPIC" in dict(row["properties"]) and row["uniq_key"]:
                found[row["topic"], row["uniq_key"], row["reconsume_times"]] += 1
    return found


@pytest.mark.parametrize(("repaired", "again"), [(False, 122), (True, 0)])
def test_a_broker_delivers_again_what_diagnose_counts(repaired: bool, again: int, tmp_path: Path) -> None:
    """apache/rocketmq #6881: `delayOffset.json` is emptied."""
    if (reason := why_not(VERSION)) is not None:
        pytest.skip(reason)
    store = unpack_site("delay-offset-emptied", tmp_path)
    if repaired:
        assert run_cli("repair", store, "--apply").status == 0
    before = _copies(store)
    assert run_cli("diagnose", store, "-o", "json").document["redelivers"] == again
    program = str(Path(__file__).with_name("delayed") / "Start.java")
    command = [str(java()), *JVM, f"-Duser.home={tmp_path}", "-cp", f"{ORACLE}/target/{VERSION}/lib/*", program, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    new = _copies(store) - before
    assert sum(number for copy, number in new.items() if copy in before) == again
    assert sum(number for copy, number in new.items() if copy not in before) == 40  # their time has come by now
