"""Random lives of queues: scripts that a real node and our engine both run.

A script is a vhost with a few queues and some phases of operations; between two phases everything stops or is killed. Operations name
messages by their tags, so that both sides acknowledge the same ones even if their ids differ. The generator keeps a plain model
of the queues, which also gives the final contents.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

EMBED_BELOW = 600
SETTINGS = {
    "queue_index_embed_msgs_below": EMBED_BELOW,
    "queue_index_max_journal_entries": 70,
    "queue_index_segment_entry_count": 48,
    "msg_store_file_size_limit": 12000,
    "classic_queue_index_v2_segment_entry_count": 40,
}


@dataclass(frozen=True, slots=True)
class Publish:
    """queues: the first by its name, the others by a CC header."""

    queues: tuple[str, ...]
    tag: str
    size: int
    persistent: bool
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Take:
    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    queue: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Requeue:
    queue: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Purge:
    queue: str


@dataclass(frozen=True, slots=True)
class Idle:
    """Engine only: flush journals to segments. A real queue decides this itself."""


Operation = Publish | Take | Acknowledge | Requeue | Purge | Idle


@dataclass(frozen=True, slots=True)
class Script:
    """queues: arguments by name. expected: tags by queue in the order of delivery after the last phase."""

    number: int
    vhost: str
    queues: dict[str, dict[str, Any]]
    phases: tuple[tuple[Operation, ...], ...]
    expected: dict[str, list[str]]


@dataclass(slots=True)
class _Queue:
    """Messages as (level, number of the publish), with their tags. out: unacknowledged ones."""

    most: int | None
    ready: dict[tuple[int, int], str] = field(default_factory=dict)
    out: dict[str, tuple[int, int]] = field(default_factory=dict)


class _Writer:
    def __init__(self, seed: int, number: int, versions: Sequence[int]) -> None:
        self.chance = random.Random(seed * 1_000_003 + number)
        self.number = number
        self.count = 0
        self.versions = versions
        names = [f"q{place}" for place in range(self.chance.randint(2, 4))]
        self.arguments: dict[str, dict[str, Any]] = {name: self._arguments() for name in names}
        self.queues = {name: _Queue(arguments.get("x-max-priority")) for name, arguments in self.arguments.items()}
        self.transient: set[str] = set()

    def _arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {"x-queue-version": self.chance.choice(self.versions)}
        if self.chance.random() < 0.15:
            given["x-max-priority"] = 2
        return given

    def publish(self) -> Publish:
        chance = self.chance
        queues = tuple(chance.sample(sorted(self.queues), 1 if chance.random() < 0.6 else chance.randint(1, len(self.queues))))
        around = EMBED_BELOW - chance.choice([70, 60, 50, 40])  # properties count, too
        size = chance.choice([0, 1, 30, 200, around, EMBED_BELOW - 1, EMBED_BELOW, EMBED_BELOW + 1, 1500, 4000])
        persistent = chance.random() < 0.93
        priority = chance.choice([None, 0, 1, 2, 9])
        self.count += 1
        tag = f"{self.number}-{self.count}"
        if not persistent:
            self.transient.add(tag)
        for name in queues:
            queue = self.queues[name]
            level = 0 if queue.most is None else min(priority or 0, queue.most)
            queue.ready[-level, self.count] = tag
        return Publish(queues, tag, size, persistent, priority)

    def take(self) -> Take:
        name = self.chance.choice(sorted(self.queues))
        queue = self.queues[name]
        count = min(len(queue.ready), self.chance.choice([1, 3, 10, 40]))
        for key in sorted(queue.ready)[:count]:
            queue.out[queue.ready.pop(key)] = key
        return Take(name, count)

    def _some(self, queue: _Queue) -> tuple[str, ...]:
        tags = sorted(queue.out, key=lambda tag: queue.out[tag])
        match self.chance.choice(["all", "first", "some", "backwards"]):
            case "all":
                return tuple(tags)
            case "first":
                return tuple(tags[: self.chance.randint(0, len(tags))])
            case "some":
                return tuple(tag for tag in tags if self.chance.random() < 0.6)
            case _:
                return tuple(tags[::-1][: self.chance.randint(0, len(tags))])

    def acknowledge(self) -> Acknowledge:
        name = self.chance.choice(sorted(self.queues))
        tags = self._some(self.queues[name])
        for tag in tags:
            del self.queues[name].out[tag]
        return Acknowledge(name, tags)

    def requeue(self) -> Requeue:
        name = self.chance.choice(sorted(self.queues))
        queue = self.queues[name]
        tags = self._some(queue)
        for tag in tags:
            queue.ready[queue.out.pop(tag)] = tag
        return Requeue(name, tags)

    def purge(self) -> Purge:
        name = self.chance.choice(sorted(self.queues))
        self.queues[name].ready.clear()
        return Purge(name)

    def phase(self) -> tuple[Operation, ...]:
        kinds = [self.publish, self.take, self.acknowledge, self.requeue, self.purge, Idle]
        weights = [55, 9, 14, 3, 0.6, 3]
        done: list[Operation] = []
        for _ in range(self.chance.randint(15, 45)):
            done += [kind() for kind in [self.chance.choices(kinds, weights)[0]] for _ in range(4 if kind == self.publish else 1)]
        for queue in self.queues.values():  # a restart: unacknowledged messages are ready again, transient messages are gone
            queue.ready.update({key: tag for tag, key in queue.out.items()})
            queue.out.clear()
            queue.ready = {key: tag for key, tag in queue.ready.items() if tag not in self.transient}
        return tuple(done)


def script(seed: int, number: int, phases: int, versions: Sequence[int] = (1, 1, 2)) -> Script:
    """Return the script of that number. versions: queue versions to draw from; a repeated one is drawn more often."""
    writer = _Writer(seed, number, versions)
    done = tuple(writer.phase() for _ in range(phases))
    expected = {name: [queue.ready[key] for key in sorted(queue.ready)] for name, queue in writer.queues.items()}
    return Script(number, f"script {number}", writer.arguments, done, expected)


def scripts(seed: int, first: int, count: int, phases: int, versions: Sequence[int]) -> list[Script]:
    return [script(seed, number, phases, versions) for number in range(first, first + count)]


def body(publish: Publish) -> bytes:
    """Return the bytes of a message: its tag, repeated."""
    return (publish.tag.encode() * (publish.size // len(publish.tag) + 1))[: publish.size]
