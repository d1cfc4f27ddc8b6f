"""The disk refuses: the n-th change that a run of the engine makes fails, for all n, once or from then on.

The run puts single messages, batches and Arrow columns, dispatches, flushes, rolls log, queues and index, lets retention remove files,
persists offsets and closes. Whatever is refused:

* nothing but an error of this package is raised, whose text is one sentence; puts answer with a status;
* no message that was answered with PUT_OK, with a sync, is missing afterwards;
* the store opens again, holds what it must (`crash_engine.check_store`), and accepts messages.

The number of faults is printed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from support.crash_engine import Clock, Run, check_store, settings

from mqstore.errors import MqstoreError
from mqstore.files.recorder import RecordedWrites
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Inner, Message, MessageBatch, PutStatus
from mqstore.rocketmq.format.record import parse_message_id
from mqstore.testing.faults import FailingDisk, Fault, every_fault

HOUR = 3_600_000


class Answers:
    """The answers that a run got. sent: as in `crash_engine.Run`; acknowledged: bodies with their offsets; errors: raised errors."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.acknowledged: dict[bytes, int] = {}
        self.errors: list[MqstoreError] = []


class Script:
    """A fixed run. It continues after errors, as a program with many producers does."""

    def __init__(self, place: Path, version: str, disk: FailingDisk, answers: Answers) -> None:
        self.clock = Clock()
        self.place = place
        self.answers = answers
        self.number = 0
        self.run = answers.run = Run(RecordedWrites(), settings(version, self.clock))
        hours = ";".join(f"{hour:02d}" for hour in range(24))
        retained = {"file_reserved_hours": 1.0, "delete_when": hours, "disk_ratio": lambda _: 0.5}
        self.config = settings(version, self.clock, recorder=disk, **retained)
        self.store = MessageStore.open(place, self.config)

    def body(self, size: int) -> bytes:
        self.number += 1
        return (b"%d:" % self.number).ljust(size, b"x")

    def put(self, topic: str, size: int, queue_id: int = 0) -> None:
        body = self.body(size)
        properties = b"KEYS\x01k%d k" % self.number
        self.run.sent[body] = topic, properties
        result = self.store.put(Message(topic, body, queue_id=queue_id, properties=properties))
        assert result.status in _POSSIBLE, result
        assert result.stored or result.detail
        if result.status is PutStatus.PUT_OK:
            self.answers.acknowledged[body] = result.physical_offset

    def batch(self, topic: str) -> None:
        inner = [Inner(self.body(50), b"KEYS\x01b") for _ in range(3)]
        self.run.sent.update({each.body: (topic, each.properties) for each in inner})
        result = self.store.put_messages(MessageBatch(Message(topic), inner))
        if result.status is PutStatus.PUT_OK:
            ids = [parse_message_id(text)[1] for text in result.msg_id.split(",")]
            self.answers.acknowledged.update(zip((each.body for each in inner), ids, strict=True))

    def columns(self, topic: str) -> None:
        bodies = [self.body(300) for _ in range(20)]
        self.run.sent.update(dict.fromkeys(bodies, (topic, b"")))
        table = pa.table({"topic": [topic] * len(bodies), "body": bodies, "queue_id": pa.array([1] * len(bodies), pa.int32())})
        result = self.store.put_batch(table)
        if result.status is PutStatus.PUT_OK:
            self.answers.acknowledged.update(zip(bodies, result.physical_offsets.tolist(), strict=True))

    def attempt(self, work: object) -> None:
        """What may raise, and then go on."""
        assert callable(work)
        try:
            work()
        except MqstoreError as error:
            self.answers.errors.append(error)

    def play(self) -> None:
        store = self.store
        for _ in range(11):
            self.put("a", 10)
        for queue_id in (0, 1, 1):
            self.put("a", 200, queue_id)
        self.attempt(store.dispatch_now)
        self.batch("orders")
        self.clock.now += 5000
        self.columns("a")
        self.attempt(store.dispatch_now)
        self.attempt(store.flush)
        store.offsets.commit("g", "a", 0, 3)
        self.attempt(store.persist)
        self.attempt(store.log.prepare_next)
        for _ in range(9):
            self.put("a", 700)
        self.attempt(store.dispatch_now)
        self.clock.now += 1000
        first = self.place / "commitlog" / f"{0:020d}"
        if first.exists():
            os.utime(first, (0, 0))
        self.attempt(lambda: store.run_retention(3 * HOUR))
        self.put("orders", 100)
        self.attempt(store.dispatch_now)
        self.put("a", 60)
        store.close()


_POSSIBLE = {
    PutStatus.PUT_OK,
    PutStatus.FLUSH_DISK_TIMEOUT,
    PutStatus.CREATE_MAPPED_FILE_FAILED,
    PutStatus.SERVICE_NOT_AVAILABLE,
}


def play(place: Path, version: str, disk: FailingDisk) -> Answers:
    answers = Answers()
    try:
        Script(place, version, disk, answers).play()
    except MqstoreError as error:
        answers.errors.append(error)
    return answers


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_whatever_the_disk_refuses_nothing_that_was_promised_is_lost(version: str, code: int, request: pytest.FixtureRequest) -> None:
    def check(place: Path, fault: Fault[Answers]) -> None:
        answers = fault.result
        assert answers is not None
        for error in answers.errors:
            assert "\n" not in str(error), error
            assert str(error), repr(error)
        run = answers.run
        if run is None:
            run = Run(RecordedWrites(), settings(version, Clock()))
        config = settings(version, Clock(run.config.clock() + 60_000))
        store = MessageStore.open(place, config)
        bodies = check_store(store, run)
        lost = [body[:8] for body, physical in answers.acknowledged.items() if physical >= store.log_min and bodies.get(body) != physical]
        assert not lost, f"{lost} are lost, the log begins at {store.log_min}"
        assert store.put(Message("after", b"wards")).status is PutStatus.PUT_OK
        run.sent[b"wards"] = "after", b""
        check_store(store, run)
        store.close()
        assert not (place / "abort").exists()

    found = every_fault(lambda place, disk: play(place, version, disk), check, codes=[code])
    request.node.user_properties.append(("faults", found.total))


def test_the_run_without_a_fault_does_all_that_it_is_meant_to_do(tmp_path: Path) -> None:
    for version in ("4.9.3", "5.3.3"):
        place = tmp_path / version
        place.mkdir()
        answers = play(place, version, FailingDisk(0))
        assert answers.errors == []
        assert answers.run is not None
        assert len(answers.acknowledged) == len(answers.run.sent) == 48
        assert len(list((place / "index").iterdir())) >= 2
        names = sorted(path.name for path in (place / "commitlog").iterdir())
        assert len(names) >= 4
        assert names[0] != f"{0:020d}"
        assert sorted(path.name for path in (place / "consumequeue/a/0").iterdir())[0] != f"{0:020d}"
        assert not (place / "abort").exists()
