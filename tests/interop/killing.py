"""Replays that are killed, over and over, at a random byte of their connection or a random line of their resume file."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from support.proxy import Proxy

PATIENCE = 120
PRELOADED = [  # what a replay imports: a child is a copy of a process that has it
    "mqstore.cli.main",
    "mqstore.cli.jobs.replay",
    "mqstore.places",
    "mqstore.replay.running",
    "mqstore.replay.sources",
    "mqstore.replay.targets",
    "pandas",
    "pika",
    "pyarrow.compute",
    "rich.console",
]


def run(argv: list[str], errors: str) -> None:
    """Run the command in a process of its own."""
    from mqstore.cli.main import run as main

    out = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os._exit(main(argv))


class Killing:
    """Kills replays with SIGKILL, and knows after each which messages were in doubt.

    sources: for each queue of the source the positions and marks of its messages, in their order. doubted: marks of all messages that were
    in doubt after a kill.
    """

    def __init__(self, journal: Path, proxy: Proxy, sources: dict[str, list[tuple[int, str]]], seed: int) -> None:
        self.journal, self.proxy, self.sources = journal, proxy, sources
        self.killed = 0
        self.at_bytes = 0
        self.doubted: set[str] = set()
        self._random = random.Random(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._log = journal.with_suffix(".log")

    def lives(self, argv: Sequence[str], number: int, octets: int, *, may_fail: bool = False) -> None:
        """Start the replay so many times, and kill it at a random place. octets: some, that a whole run exchanges."""
        lines = sum(map(len, self.sources.values()))
        for life in range(number):
            child = self._context.Process(target=run, args=([*argv], str(self._log)))
            begun = self._lines()
            child.start()
            if life % 2:
                self.proxy.after(1 + self._random.randrange(max(2, 2 * octets // number)), child.kill)
                child.join(PATIENCE)
                self.proxy.after(None)
            else:
                goal = begun + 1 + self._random.randrange(max(2, 2 * lines // number))
                until = time.monotonic() + PATIENCE
                while child.exitcode is None and self._lines() < goal:
                    assert time.monotonic() < until
                    time.sleep(0.002)
                child.kill()
                child.join(PATIENCE)
            was_killed = child.exitcode == -signal.SIGKILL
            assert was_killed or child.exitcode in ((0, 2) if may_fail else (0,)), self._log.read_text()[-2000:]
            self.killed += was_killed
            self.at_bytes += was_killed and life % 2
            self._doubts()

    def _lines(self) -> int:
        return self.journal.read_bytes().count(b"\n") if self.journal.exists() else 0

    def _doubts(self) -> None:
        """Note the message of each queue that is in doubt: the first one after the last line of its queue."""
        states: dict[str, int] = {}
        for line in self.journal.read_bytes().split(b"\n")[1:-1] if self.journal.exists() else ():
            state = json.loads(line)
            if "queue" in state:
                states[state["queue"]] = state["position"]
        for queue, position in states.items():
            following = next((mark for place, mark in self.sources[queue] if place > position), None)
            if following is not None:
                self.doubted.add(following)


def by_source(messages: Iterable[Any]) -> dict[str, list[tuple[int, str]]]:
    """Return the positions and marks of messages by the queue that they come from."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for each in messages:
        found[each.source].append((each.position, each.mark))
    return dict(found)


def renamed(old: int, new: int) -> Callable[[bytes], bytes]:
    """Return a change of what a name server answers: the port of the broker becomes that of the proxy in front of it."""
    assert len(str(old)) == len(str(new)), "the length of a frame would change"
    return lambda piece: piece.replace(b"127.0.0.1:%d" % old, b"127.0.0.1:%d" % new)
