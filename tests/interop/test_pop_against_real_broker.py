"""Messages that are popped from real brokers: what they leave in hand is what a broker that is started again delivers again.

Of 20 messages 12 are popped for a minute, and 5 of them acknowledged (`popping/Pop.java`). The broker is stopped, or killed; the files say
what is in hand; then it is started again, and what comes into the retry topic is compared with that.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from interop.realbroker import JVM, ORACLE, java, why_not
from support.golden import run_cli

from mqstore.places import open_rocketmq

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

IN_HAND_MS, PATIENCE_S = 60_000, 300
QUEUE = ("billing", "orders", 0)


def _run(version: str, *arguments: object) -> dict[str, Any]:
    store = Path(str(arguments[1]))
    program = [str(Path(__file__).with_name("popping") / "Pop.java"), *map(str, arguments)]
    command = [str(java()), *JVM, f"-Duser.home={store.parent}", "-cp", f"{ORACLE}/target/{version}/lib/*", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, cwd=store.parent, check=False)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout.rstrip().splitlines()[-1])
    return outcome


class _Run(NamedTuple):
    """made, again: what the broker printed of the making, and when it was started again. before: a copy of the store from between."""

    made: dict[str, Any]
    before: Path
    again: dict[str, Any]


def _made_and_resumed(version: str, kept: str, end: str, place: Path) -> _Run:
    store, before = place / "store", place / "before"
    made = _run(version, "make", store, kept, IN_HAND_MS, end)
    shutil.copytree(store, before)
    return _Run(made, before, _run(version, "resume", store, kept, PATIENCE_S))


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, ...], Future[_Run]]]:
    """The runs of all cases, at the same time: they wait for most of two minutes."""
    cases = {
        (call.params["version"], call.params["kept"], call.params["end"])
        for item in request.session.items
        if item.path == request.path and (call := getattr(item, "callspec", None)) is not None
    }
    runnable = [case for case in sorted(cases) if why_not(case[0]) is None]
    with ThreadPoolExecutor(len(runnable) or 1) as pool:
        yield {case: pool.submit(_made_and_resumed, *case, tmp_path_factory.mktemp("pop")) for case in runnable}


@pytest.mark.parametrize(
    ("version", "kept", "end"),
    [
        ("5.3.3", "file", "stop"),
        ("5.3.3", "file", "kill"),
        ("5.5.0", "file", "stop"),
        ("5.5.0", "kv", "stop"),
    ],
)
def test_what_is_in_hand_is_what_comes_again(version: str, kept: str, end: str, runs: dict[tuple[str, ...], Future[_Run]]) -> None:
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    if kept == "kv":
        pytest.importorskip("rocksdict")
    made, store, resumed = runs[version, kept, end].result()
    assert made["popped"] == 12
    held = open_rocketmq(store).view().pops.held
    assert held.keys() == {QUEUE}
    assert sorted(held[QUEUE]) == list(range(5, 12))
    until = max(held[QUEUE].values())
    assert until <= made["until"]
    for at, counts in ((until - 1, (7, 0)), (until, (0, 7))):
        (row,) = run_cli("groups", store, "--topic", "orders", "--at", at, "-o", "jsonl").rows
        assert (row["in_hand"], row["waiting"]) == counts
    assert run_cli("diagnose", store, "--for", version, "-o", "json").document["redelivers"] == 7
    assert sorted(resumed["again"]) == sorted(f"o-{number}" for number in held[QUEUE])
    settled = open_rocketmq(store.with_name("store")).view()
    assert QUEUE not in settled.pops.held
    assert sum(queue.max_offset for queue in settled.queues() if queue.topic.startswith("%RETRY%billing")) == 7
