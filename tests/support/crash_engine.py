"""Recorded runs of the engine, and what must hold for a store after any crash in them.

`record_run(place, seed, version)` drives a store through puts, batches, rolls, dispatch, flushes, retention, clean and unclean reopenings
from a seed, recording every write and noting every promise. `check(directory, state)` opens what a crash has left:

* it opens, whatever is missing;
* no message is lost that was acknowledged with its sync; there is none that was not sent, and each is as it was sent;
* every queue holds exactly the records of the log that belong to it, in order, without a gap;
* every entry of every index file points at a record with a key of that hash, and is reachable along its chain;
* opening it again, after another crash or a clean close, finds the same.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mqstore.files.recorder import RecordedWrites
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, dispatch_request
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.format.message import Inner, Message, MessageBatch
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.record import Record
from mqstore.testing.crashes import CrashState

BEGIN = 1_640_995_200_000
TOPICS = ("a", "orders", "%RETRY%g")


@dataclass
class Clock:
    now: int = BEGIN

    def __call__(self) -> int:
        return self.now


@dataclass
class Run:
    """A recorded run. sent: every body that was put, with its topic and properties."""

    recorded: RecordedWrites
    config: StoreConfig
    sent: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)


def settings(version: str, clock: Clock, **changes: Any) -> StoreConfig:
    small = StoreConfig(
        version=version,
        services=False,
        clock=clock,
        commit_log_file_size=4096,
        consume_queue_file_size=200,
        max_hash_slot_num=8,
        max_index_num=24,
        flush_disk_type="SYNC_FLUSH",
    )
    return StoreConfig(**{name: getattr(small, name) for name in StoreConfig.__slots__} | changes)


class _Script:
    """The run in progress."""

    def __init__(self, place: Path, seed: int, version: str) -> None:
        self.place = place
        self.chance = random.Random(seed)
        self.clock = Clock()
        self.recorded = RecordedWrites()
        self.config = settings(version, self.clock, recorder=self.recorded)
        self.run = Run(self.recorded, settings(version, self.clock))
        self.number = 0
        self.store = MessageStore.open(place, self.config)

    def body(self, size: int) -> bytes:
        self.number += 1
        return (b"%d:" % self.number).ljust(size, b"%c" % (97 + self.number % 26))

    def properties(self) -> bytes:
        named = {}
        if self.chance.random() < 0.8:
            named["KEYS"] = " ".join(f"k{self.chance.randrange(12)}" for _ in range(self.chance.randint(1, 2)))
        if self.chance.random() < 0.5:
            named["TAGS"] = self.chance.choice(["x", "yy"])
        if self.chance.random() < 0.15:
            named["note"] = "n" * self.chance.randint(300, 1200)
        return record.encode_properties(named, trailing=self.run.config.version != "4.9.3")

    def put(self) -> None:
        topic, properties = self.chance.choice(TOPICS), self.properties()
        body = self.body(self.chance.choice([8, 60, 200, 700]))
        kind = self.chance.choice([0, 0, 0, 0, record.TRANSACTION_PREPARED, record.TRANSACTION_COMMIT, record.TRANSACTION_ROLLBACK])
        self.run.sent[body] = (topic, properties)
        result = self.store.put(Message(topic, body, queue_id=self.chance.randrange(2), properties=properties, sys_flag=kind))
        if result.status.value == "PUT_OK":
            self.recorded.mark("acknowledged", body)

    def batch(self) -> None:
        topic = self.chance.choice(TOPICS)
        inner = [Inner(self.body(40), self.properties()) for _ in range(self.chance.randint(2, 5))]
        self.run.sent.update({each.body: (topic, each.properties) for each in inner})
        if self.store.put_messages(MessageBatch(Message(topic), inner)).status.value == "PUT_OK":
            for each in inner:
                self.recorded.mark("acknowledged", each.body)

    def reopen(self, *, clean: bool) -> None:
        self.recorded.mark("closing" if clean else "killed")
        self.store.close() if clean else self.store.abandon()
        self.store = MessageStore.open(self.place, self.config)

    def step(self) -> None:
        self.clock.now += self.chance.choice([0, 1, 40, 900, 5000, 5000, -4000])
        match self.chance.choices(["put", "batch", "dispatch", "flush", "offsets", "clean", "killed"], [60, 8, 25, 6, 3, 2, 2])[0]:
            case "put":
                self.put()
            case "batch":
                self.batch()
            case "dispatch":
                self.store.dispatch_now()
            case "flush":
                self.store.dispatch_now()
                self.store.flush()
            case "offsets":
                self.store.offsets.commit("g", "a", 0, self.chance.randrange(50))
                self.store.persist()
            case "clean":
                self.reopen(clean=True)
            case "killed":
                self.reopen(clean=False)


def record_run(place: Path, seed: int, version: str, steps: int = 120) -> Run:
    """Record a run of `steps` random steps, ended by a clean close."""
    script = _Script(place, seed, version)
    for _ in range(steps):
        script.step()
    script.store.close()
    return script.run


def log_records(store: MessageStore) -> list[tuple[Record, int]]:
    """Return (record, size) of everything in the log, in order."""
    found = []
    for file in store.log.files:
        at = 0
        view = store.log.view(file)
        while at < file.written:
            size = int.from_bytes(view[at : at + 4], "big")
            if view[at + 4 : at + 8] == b"\xcb\xd4\x31\x94":
                break
            found.append((record.decode(view[at : at + size]), size))
            at += size
    return found


def state_of(store: MessageStore) -> dict[Any, Any]:
    """Return the contents of a store: log, queues and index files, as values."""
    queues = {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset, queue.entries(queue.min_offset, queue.max_offset).tobytes())
        for queue in store.queues()
        if queue.files
    }
    return {"log": (store.log_min, store.log_max), "queues": queues}


def check_store(store: MessageStore, run: Run) -> dict[bytes, int]:
    """Check that log, queues and index agree and hold nothing that was not sent. Returns body -> physical offsets."""
    store.dispatch_now()
    rules = DispatchRules(only_light_queues=version_rules(store.version).only_light_queues)
    listed: dict[tuple[str, int], list[tuple[int, int, int, int]]] = defaultdict(list)
    keys: dict[int, set[int]] = {}
    bodies = {}
    for message, size in log_records(store):
        topic, properties = run.sent[message.body]
        assert (message.topic, message.properties) == (topic, properties), f"the record at {message.physical_offset} is not as it was sent"
        asked = dispatch_request(message, rules)
        if message.sys_flag & record.TRANSACTION_MASK in (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT):
            row = (message.queue_offset, message.physical_offset, size, asked.tags_code)
            listed[message.topic, message.queue_id].append(row)
        keys[message.physical_offset] = {index_hash(message.topic, key) for key in asked.keys}
        bodies[message.body] = message.physical_offset
    queues = {(queue.topic, queue.queue_id): queue for queue in store.queues() if queue.files}
    for name, rows in listed.items():
        queue = queues[name]
        expected = np.array(rows, np.int64)
        entries = queue.entries(queue.min_offset, queue.max_offset)
        assert queue.max_offset == expected[-1, 0] + 1, f"{name} ends at {queue.max_offset}, its last record has {expected[-1, 0]}"
        found = np.column_stack([entries[column].astype(np.int64) for column in ("physical_offset", "size", "tags_code")])
        lowest = expected[0, 0] - queue.min_offset
        assert lowest >= 0, f"{name} begins at {queue.min_offset}, the log with {expected[0, 0]}"
        assert (found[lowest:] == expected[:, 1:]).all(), f"{name} lacks entries for records of the log"
    for name, queue in queues.items():
        assert name in listed or queue.max_offset == queue.min_offset or store.log_min > 0, (
            f"{name} has entries without a record in the log"
        )
    for file in store.index_files():
        for number in range(1, file.index_count):
            entry = file.entry(number)
            if entry.physical_offset >= store.log_min:
                assert entry.key_hash in keys[entry.physical_offset], f"{file.name}: entry {number} points at a record without that key"
            assert entry.previous < number, f"{file.name}: entry {number} links to {entry.previous}"
    return bodies


def check_state(directory: Path, state: CrashState, run: Run) -> None:
    """Check everything that the module's docstring names."""
    config = settings(run.config.version or "", Clock(run.config.clock() + 60_000))
    store = MessageStore.open(directory, config)
    bodies = check_store(store, run)
    lost = [body[:12] for body in state.acknowledged if body not in bodies]
    assert not lost, f"{len(lost)} acknowledged messages are lost, the first is {lost[0]!r}"
    first = state_of(store)
    store.abandon()
    again = MessageStore.open(directory, config)
    check_store(again, run)
    assert state_of(again) == first, "opening it after another crash finds something else"
    again.close()
    last = MessageStore.open(directory, config)
    assert state_of(last) == first, "opening it after a clean close finds something else"
    assert check_store(last, run) == bodies
    last.abandon()
