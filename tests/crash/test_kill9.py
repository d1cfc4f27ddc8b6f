"""kill -9: a store in use by several threads dies at a random moment, again and again, and the next process takes it over.

The processes that die (`support.crash_life`) write to files outside of the store what they send and what was acknowledged. After each
death: every message that the store had acknowledged, with or without a sync, is at its offsets unless retention has removed it;
there is nothing that was not sent; queues and index agree with the log (`crash_engine.check_store`). The seed is printed.
`--kills N` ends N processes of both versions together.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.crash_engine import Run, check_store, log_records
from support.crash_life import settings

from mqstore.files.recorder import RecordedWrites
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.record import Record

CI_LIVES = 16  # of both versions together
TESTS = Path(__file__).parent.parent


class Oracle:
    """What all processes sent to a store, and what it acknowledged: body -> (topic, queue id, queue offset, physical offset)."""

    def __init__(self, place: Path, version: str) -> None:
        self.place = place
        self.run = Run(RecordedWrites(), settings(version))
        self.kept: dict[bytes, tuple[str, int, int, int]] = {}

    def read(self, life: int) -> None:
        """Take in what a life has said. The last line of a file may be cut off: it was never finished."""
        for path in self.place.glob(f"{life}-[0-9]*"):
            for line in path.read_bytes().split(b"\n")[:-1]:
                said = json.loads(line)
                if "sent" in said:
                    self.run.sent[said["sent"].encode()] = said["topic"], said["properties"].encode()
                else:
                    self.kept[said["kept"].encode()] = (*said["queue"], said["queue_offset"], said["physical_offset"])

    def check(self, store: MessageStore) -> None:
        """Everything that the module's docstring says of a life's end. What retention has removed is no longer looked for."""
        bodies = check_store(store, self.run)
        found = {each.body: place_of(each) for each, _ in log_records(store)}
        for body, place in list(self.kept.items()):
            if place[3] < store.log_min:
                del self.kept[body]
                continue
            assert body in bodies, f"{body[:20]!r} was acknowledged at {place} and is lost; the log is {store.log_min} to {store.log_max}"
            assert found[body] == place, f"{body[:20]!r} was acknowledged at {place} and is at {found[body]}"


def place_of(message: Record) -> tuple[str, int, int, int]:
    return message.topic, message.queue_id, message.queue_offset, message.physical_offset


def begin(store: Path, oracle: Path, life: int, seed: int, version: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "support.crash_life", str(store), str(oracle), str(life), str(seed), version]
    paths = os.pathsep.join([str(TESTS), *sys.path])
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, stderr=subprocess.PIPE)


def wait_for(path: Path, program: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert program.poll() is None, ((program.stderr and program.stderr.read()) or b"").decode()
        assert time.monotonic() < end, f"{path.name} does not come"
        time.sleep(0.005)


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_store_killed_at_any_moment_keeps_what_it_acknowledged(version: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place, said = tmp_path / "store", tmp_path / "oracle"
    place.mkdir()
    said.mkdir()
    oracle = Oracle(said, version)
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    lives = (request.config.getoption("kills") or CI_LIVES) // 2
    for life in range(lives):
        program = begin(place, said, life, seed, version)
        try:
            if chance.random() < 0.2:
                time.sleep(chance.random())  # while it starts and recovers, more likely than not
            else:
                wait_for(said / f"{life}-open", program)
                time.sleep(chance.random() ** 2)
            assert program.poll() is None, ((program.stderr and program.stderr.read()) or b"").decode()
        finally:
            program.kill()
            program.communicate()
        oracle.read(life)
        if not oracle.kept or (chance.random() < 0.3 and life + 1 < lives):
            continue  # the next process finds what the dead one left
        store = MessageStore.open(place, settings(version, services=False))
        oracle.check(store)
        store.close() if chance.random() < 0.5 else store.abandon()
    assert len(oracle.run.sent) > 10 * lives
    request.node.user_properties.append(("kills", lives))


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_store_that_is_interrupted_closes_in_order(version: str, ended_by: signal.Signals, tmp_path: Path) -> None:
    place, said = tmp_path / "store", tmp_path / "oracle"
    place.mkdir()
    said.mkdir()
    program = begin(place, said, 0, 1, version)
    wait_for(said / "0-open", program)
    time.sleep(0.5)
    assert (place / "abort").exists()
    program.send_signal(ended_by)
    error = program.communicate(timeout=300)[1].decode()
    assert (program.returncode, error) == (0, "")
    assert (said / "0-closed").exists()
    assert not (place / "abort").exists()
    oracle = Oracle(said, version)
    oracle.read(0)
    with MessageStore.open(place, settings(version, services=False)) as store:
        assert store.notes == ()
        assert store.dispatch_now() == 0
        oracle.check(store)
