"""Recorded runs of the queue engine, and what must hold for the store after any crash in them.

`record_run(place, seed)` drives queues of both versions through publishes with fan-out, deliveries, acknowledgements in any order,
requeues, purges, flushes, rolled and merged message store files, clean and unclean reopenings, every write recorded and every promise
noted. `check_state` opens what a crash has left:

* it opens, whatever is missing;
* no message is lost that was confirmed and whose acknowledgement has not begun;
* no message is back whose acknowledgement was on the disk, and none is there twice in a queue;
* what was confirmed has the bytes that were sent; each queue keeps the order of publishing;
* opening it again, after another crash or (every other state) a clean close, finds the same under the same sequence ids, and a message
  more if one was confirmed meanwhile.

An acknowledged message may be back under the broker's own rules, and these alone: AMQP confirms publishes, not acknowledgements, and
the broker appends the record of one to `journal.jif` without a sync (version 2 keeps it in memory until the next write of its index).
So it may be back as long as nothing was synced since; after the next sync of its queue it may not. A broker also brings back what
was in a segment whose removal, or in a journal whose truncation, did not reach the disk; that is its own loss (docs/decisions/0009)
and is not allowed here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pytest

from mqstore.files.recorder import Create, RecordedWrites, Remove
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.live_message_store import DRAFT
from mqstore.rabbitmq.engine.queue_store import Delivery, QueueStore
from mqstore.rabbitmq.message.message_term import read_message
from mqstore.testing.crashes import CrashState, CrashStates, run_states

QUEUES = {"one": 1, "other": 1, "two": 2}
PRIORITIES = {"x-max-priority": 1}
EMBED_BELOW = 300
SMALL_STATES = 150  # of a run, without --all


@dataclass
class Run:
    """A recorded run. sent: bodies by tag; merged: how often the message store merged files."""

    recorded: RecordedWrites
    sent: dict[str, bytes] = field(default_factory=dict)
    merged: int = 0


def settings(recorder: RecordedWrites | None = None) -> EngineConfig:
    return EngineConfig(
        queue_index_embed_msgs_below=EMBED_BELOW,
        queue_index_segment_entry_count=16,
        queue_index_max_journal_entries=24,
        msg_store_file_size_limit=2200,
        classic_queue_index_v2_segment_entry_count=12,
        recorder=recorder,
    )


def tag_of(delivery: Delivery) -> str:
    return body_of(delivery.term).partition(b":")[0].decode()


@lru_cache(4096)
def body_of(term: bytes) -> bytes:
    return read_message(term).body


class _Script:
    """The run in progress. Promises are (queue, tag)."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place = place
        self.chance = random.Random(seed)
        self.recorded = RecordedWrites()
        self.run = Run(self.recorded)
        self.number = 0
        self.out: dict[str, list[Delivery]] = {}
        self.published: list[tuple[str, str]] = []
        self.gone: list[tuple[str, str]] = []
        self.reopen()

    def reopen(self) -> None:
        self.store = QueueStore.open(self.place, "/", settings(self.recorded))
        declare(self.store)
        self.out = {queue: [] for queue in QUEUES}

    def publish(self) -> None:
        chance = self.chance
        queues = chance.sample(sorted(QUEUES), chance.choice([1, 1, 1, 2, 3]))
        tag = str(self.number)
        self.number += 1
        size = chance.choice([12, 40, EMBED_BELOW - 1, EMBED_BELOW, 400, 500])
        body = self.run.sent[tag] = f"{tag}:".encode().ljust(size, b"%c" % (97 + self.number % 26))
        properties = {"delivery_mode": 2, "priority": chance.choice([0, 1])}
        self.published += [(queue, tag) for queue in queues]
        confirm = chance.random() < 0.15
        self.store.publish(queues, body, properties=properties, confirm=confirm)
        if confirm:
            self.promise()

    def promise(self) -> None:
        """Note that everything done before is on the disk."""
        for each in self.published:
            self.recorded.mark("acknowledged", each)
        for each in self.gone:
            self.recorded.mark("acknowledged", ("gone", *each))
        self.published, self.gone = [], []

    def forget(self, queue: str, deliveries: list[Delivery]) -> None:
        """Note that these are about to be acknowledged."""
        for delivery in deliveries:
            each = queue, tag_of(delivery)
            self.recorded.mark("forgetting", each)
            self.gone.append(each)

    def acknowledge(self) -> None:
        queue = self.chance.choice(sorted(QUEUES))
        held = self.out[queue]
        self.chance.shuffle(held)
        count = self.chance.randint(0, len(held))
        chosen, self.out[queue] = held[:count], held[count:]
        self.forget(queue, chosen)
        self.store.acknowledge(chosen)

    def requeue(self) -> None:
        queue = self.chance.choice(sorted(QUEUES))
        self.store.requeue(self.out[queue])
        self.out[queue] = []

    def purge(self) -> None:
        queue = self.chance.choice(sorted(QUEUES))
        waiting = self.store.deliver(queue, 1 << 20)
        self.forget(queue, waiting)
        self.store.requeue(waiting)
        assert self.store.purge(queue) == len(waiting)

    def end(self, *, clean: bool) -> None:
        self.run.merged += self.store.messages.merged
        if clean:
            self.store.close()
            self.promise()
        else:
            self.store.abandon()
        # what was not on the disk may or may not be lost: nothing is promised
        self.published, self.gone = [], []

    def step(self) -> None:
        names = ["publish", "take", "acknowledge", "requeue", "purge", "sync", "idle", "clean", "killed"]
        match self.chance.choices(names, [60, 22, 26, 1, 0.4, 5, 3, 1.2, 1.2])[0]:
            case "publish":
                self.publish()
            case "take":
                queue = self.chance.choice(sorted(QUEUES))
                self.out[queue] += self.store.deliver(queue, self.chance.choice([1, 4, 30]))
            case "acknowledge":
                self.acknowledge()
            case "requeue":
                self.requeue()
            case "purge":
                self.purge()
            case "sync":
                self.store.sync()
                self.promise()
            case "idle":
                self.store.idle()
                self.promise()
            case "clean":
                self.end(clean=True)
                self.reopen()
            case "killed":
                self.end(clean=False)
                self.reopen()


def declare(store: QueueStore) -> None:
    for queue, version in QUEUES.items():
        store.declare(queue, {"x-queue-version": version} | (PRIORITIES if queue == "other" else {}))


def record_run(place: Path, seed: int, steps: int = 300) -> Run:
    """Record a run of `steps` random steps, ended by a clean close."""
    script = _Script(place, seed)
    for _ in range(steps):
        script.step()
    script.end(clean=True)
    return script.run


CI_STATES = 2_800  # of all seeds together
SEEDS = (1, 2, 4, 5, 6, 8, 9, 10, 12, 18, 21, 24, 26, 28)  # in both test files; message store files are merged in each of these runs


def prove(seed: int, place: Path, request: pytest.FixtureRequest) -> None:
    """Record a run, lay out what a crash at each of its points may leave, and open it. The counts are printed at the end."""
    wanted = request.config.getoption("crash_states")
    place.mkdir()
    run = record_run(place, seed)
    limit = None if wanted == 0 else (wanted or CI_STATES) // len(SEEDS)
    if wanted is None and not request.config.getoption("all"):
        limit = SMALL_STATES
    states = CrashStates(run.recorded, limit=limit, seed=seed, whole_sectors=True)
    done = run_states(states, lambda directory, state: check_state(directory, state, run), workers=1)
    assert sum(done.checked.values()) == len(states)
    request.node.user_properties.append(("crash_states", len(states)))
    if limit is None or limit >= CI_STATES // len(SEEDS):
        merging = _while_merging(states)
        assert merging, "no merge of message store files is among the crash points"
        request.node.user_properties.append(("merge_states", merging))


def _while_merging(states: CrashStates) -> int:
    """Return how many of the states are crashes between the draft of a merged file and the removal of the file that it absorbs."""
    inside: list[bool] = [False]
    for operation in states.operations:
        match operation:
            case Create(path) if DRAFT in path and "msg_store_persistent" in path:
                inside.append(True)
            case Remove(path) if path.endswith(".rdq"):
                inside.append(False)
            case _:
                inside.append(inside[-1])
    return sum(inside[done] for done, _ in states.chosen)


def contents(store: QueueStore) -> dict[str, list[Delivery]]:
    return {queue: store.deliver(queue, 1 << 20) for queue in QUEUES}


def places(found: dict[str, list[Delivery]]) -> dict[str, list[tuple[int | None, int, bytes]]]:
    return {queue: [(each.level, each.seq, each.term) for each in deliveries] for queue, deliveries in found.items()}


def check_state(directory: Path, state: CrashState, run: Run) -> None:
    """Check everything that the module's docstring names."""
    store = QueueStore.open(directory, "/", settings())
    declare(store)
    found = contents(store)
    first = places(found)
    confirmed = {each for each in state.acknowledged if each[0] != "gone"}
    gone = {each[1:] for each in state.acknowledged if each[0] == "gone"}
    there = [(queue, tag_of(each)) for queue, deliveries in found.items() for each in deliveries]
    lost = confirmed - set(state.marked("forgetting")) - set(there)
    assert not lost, f"{len(lost)} confirmed messages are lost, one is {min(lost)}"
    back = gone.intersection(there)
    assert not back, f"{len(back)} messages are back although their acknowledgement was on the disk, one is {min(back)}"
    assert len(set(there)) == len(there), "a message is in a queue twice"
    for queue, deliveries in found.items():
        order = [(-(each.level or 0), each.seq) for each in deliveries]
        assert order == sorted(order)
        numbers = [(-(each.level or 0), int(tag_of(each))) for each in deliveries]
        assert numbers == sorted(numbers), f"queue {queue} does not keep the order of publishing"
        for each in deliveries:
            if (queue, tag_of(each)) in confirmed:
                assert body_of(each.term) == run.sent[tag_of(each)], f"message {tag_of(each)} is not as it was sent"
    clean = state.operations_done % 2 == 0
    if clean:
        store.publish(["one", "two"], b"new", confirm=True)
        store.close()
    else:
        store.abandon()
    again = QueueStore.open(directory, "/", settings())
    found = contents(again)
    if clean:
        assert [body_of(found[queue].pop().term) for queue in ("one", "two")] == [b"new", b"new"]
    assert places(found) == first, f"opening it after {'a clean close' if clean else 'another crash'} finds something else"
    again.abandon()
