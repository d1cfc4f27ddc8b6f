"""Publishes and settles applied many at once: the machine is as if they had been applied one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mqstore.kernels.rabbitmq import raft_commands as raft
from mqstore.rabbitmq.erlang.etf import decode
from mqstore.rabbitmq.erlang.terms import Atom, Opaque, Term, encode
from mqstore.rabbitmq.quorum.batch import apply_batch, message_ids
from mqstore.rabbitmq.quorum.commands import MessageFacts, key_of, pid_of
from mqstore.rabbitmq.quorum.machine import Machine

NO_REPLY = Atom("noreply")


def process(number: int) -> Opaque:
    return Opaque(b"Xw\x01n" + number.to_bytes(4, "big") + bytes(8))


def entry(ts: int, command: tuple[Term, ...], mode: Term = NO_REPLY) -> bytes:
    return encode((Atom("$usr"), {Atom("ts"): ts}, command, mode))


class Life:
    """Commands drawn from a seed, with what a client of the queue knows: which ids it was given."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.version = self.random.choice((0, 1, 2, 3, 4, 5, 7, 8))
        self.consumers = self.random.randrange(4)
        self.next_seq = dict.fromkeys(range(3), 1)
        self.index = 0

    def publish(self, ts: int) -> bytes:
        draw = self.random
        annotations: dict[Term, Term] = {Atom("p"): draw.randrange(9)} if not draw.randrange(400) else {}
        if not draw.randrange(600):
            annotations[Atom("ttl")] = draw.randrange(1, 5000)
        content = (Atom("content"), 60, Atom("none"), b"\x10\0", Atom("x"), [bytes(draw.randrange(30))])
        message = (Atom("mc"), Atom("mc_amqpl"), content, annotations)
        who = draw.randrange(4)
        if who == 3:
            return entry(ts, (Atom("e"), 5, message, (2, len(content[5][0]))))
        seq = self.next_seq[who] + (not draw.randrange(300))
        self.next_seq[who] = max(self.next_seq[who], seq + 1)
        return entry(ts, (Atom("e"), seq, message, (2, len(content[5][0]))), (Atom("notify"), 0, process(who)))

    def settle(self, ts: int, key: Term, given: int) -> bytes:
        draw = self.random
        newest = max(1, given + draw.randrange(2))
        ids = [draw.randrange(max(0, newest - 40), newest) for _ in range(draw.choice((1, 1, 1, 3)))]
        return entry(ts, (Atom("settle"), key, ids))


def state(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in vars(machine).items():
        if name != "left":
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    if hasattr(value, "__slots__") and not isinstance(value, tuple | str | bytes):
        return {name: _plain(getattr(value, name)) for name in type(value).__slots__}
    if isinstance(value, tuple | str | bytes | int | float | set | frozenset) or value is None:
        return value
    return [_plain(item) for item in value]


def started(life: Life, left: Callable[..., None]) -> Machine:
    """Return a machine with consumers, some messages in it and in their hands."""
    machine = Machine(life.version, left)
    draw = random.Random(life.version * 7 + life.consumers)
    if draw.randrange(4) == 0:
        machine.config.max_length = 50
    for index in range(1, 30):
        machine.enqueue(index, 5, None, None, MessageFacts(1, index, None, None, None))
    for number in range(life.consumers):
        identity = (b"c%d" % number, pid_of(process(50 + number)))
        spec: tuple[Term, ...] = (Atom("auto"), draw.choice((1, 3, 20)), Atom("simple_prefetch"))
        if life.version >= 4:
            spec = (spec[0], (spec[2], spec[1]))
        machine.checkout(40 + number, 6, identity, spec, {})
        if number == 1:
            machine.give_back(45, 7, key(life, number), [0])
    return machine


def key(life: Life, number: int) -> Any:
    return 40 + number if life.version >= 4 else (b"c%d" % number, pid_of(process(50 + number)))


def stored_key(life: Life, number: int) -> Term:
    return 40 + number if life.version >= 4 else (b"c%d" % number, process(50 + number))


@pytest.mark.parametrize("seed", range(24))
def test_a_batch_leaves_the_machine_as_its_commands_one_by_one(seed: int) -> None:
    life = Life(seed)
    gone: list[tuple[int, str, int]] = []
    noted: list[tuple[int, str, int]] = []
    single = started(life, lambda message, why, at: gone.append((message.index, why, at)))
    batched = started(life, lambda message, why, at: noted.append((message.index, why, at)))
    applied = 0
    for block in range(6):
        entries = []
        for step in range(300):
            ts = 1000 * block + step
            if life.consumers and life.random.randrange(5) > 1:
                number = life.random.randrange(life.consumers)
                there = single.consumers.get(key(life, number))
                entries.append(life.settle(ts, stored_key(life, number), there.next_id + step // 4 if there else 5))
            else:
                entries.append(life.publish(ts))
        data = np.frombuffer(b"".join(entries), np.uint8)
        length = np.array([len(each) for each in entries])
        columns = np.zeros((len(entries), raft.COLUMNS), np.int64)
        raft.commands(data, np.cumsum(length) - length, length, columns)
        assert (columns[:, raft.KIND] != raft.OTHER).all()
        spans = zip(columns[:, raft.KEY_START].tolist(), columns[:, raft.KEY_LENGTH].tolist(), strict=True)
        octets = [data[at : at + size].tobytes() for at, size in spans]
        index = np.arange(100 + 300 * block, 400 + 300 * block)

        def one(machine: Machine, row: int) -> None:
            _, ts, seq, meta, body, ttl, priority, count = columns[row, : raft.KEY_START].tolist()  # noqa: B023
            who = term(octets[row]) if octets[row] else None  # noqa: B023
            if columns[row, raft.KIND] == raft.PUBLISH:  # noqa: B023
                facts = MessageFacts(meta, body, *(each if each >= 0 else None for each in (ttl, priority, count)))
                machine.enqueue(int(index[row]), ts, who, seq, facts)  # noqa: B023
            else:
                numbers = message_ids(data, columns[row : row + 1]).tolist()  # noqa: B023
                machine.settle(int(index[row]), ts, seq if who is None else who, numbers)  # noqa: B023

        for row in range(len(entries)):
            one(single, row)
        row = 0
        while row < len(entries):
            taken = apply_batch(
                batched,
                index[row:],
                columns[row:],
                octets[row:],
                data,
                term,
                lambda messages, at: noted.extend((one, "consumed", two) for one, two in zip(messages.tolist(), at.tolist(), strict=True)),
            )
            applied += taken
            row += taken
            if row < len(entries):
                one(batched, row)
                row += 1
        assert state(batched) == state(single)
    assert sorted(noted) == sorted(gone)
    if single.config.max_length is None and not single.timed and life.version < 8 and life.version not in (4, 5, 7):
        assert applied > 1000


def test_an_old_message_in_a_consumers_hand_takes_no_room_of_newer_ones() -> None:
    machine = Machine(8, lambda message, why, at: None)
    content = (Atom("content"), 60, Atom("none"), b"", Atom("x"), [b"body"])
    publish = entry(9, (Atom("e"), 5, (Atom("mc"), Atom("mc_amqpl"), content, {}), (0, 4)))
    machine.checkout(2, 6, (b"c", pid_of(process(50))), (Atom("auto"), (Atom("simple_prefetch"), 5)), {})
    machine.enqueue(3, 5, None, None, MessageFacts(1, 1, None, None, None))
    (consumer,) = machine.consumers.values()
    consumer.next_id = newest = 1 << 40
    entries = [each for step in range(64) for each in (publish, entry(9, (Atom("settle"), 2, [newest + step])))] + [publish]
    assert applied(machine, entries) == len(entries)
    assert list(consumer.in_hand) == [0, newest + 64]
    assert applied(machine, [entry(9, (Atom("settle"), 2, [0])), publish]) == 0  # one by one: the ids between would need room


def applied(machine: Machine, entries: list[bytes]) -> int:
    """Apply entries from index 10 on at once; return how many were."""
    data, length = np.frombuffer(b"".join(entries), np.uint8), np.array([len(each) for each in entries])
    columns = np.zeros((len(entries), raft.COLUMNS), np.int64)
    raft.commands(data, np.cumsum(length) - length, length, columns)
    return apply_batch(machine, np.arange(10, 10 + len(entries)), columns, [b""] * len(entries), data, term, lambda *settled: None)


def test_consumers_of_different_priorities_are_served_one_by_one() -> None:
    for priorities, count in (((1, 1), 2), ((1, 5), 0)):
        machine = Machine(8, lambda message, why, at: None)
        for number, priority in enumerate(priorities):
            settings: dict[Term, Term] = {Atom("priority"): priority}
            machine.checkout(2 + number, 6, (b"c%d" % number, None), (Atom("auto"), (Atom("simple_prefetch"), 0)), settings)
        content = (Atom("content"), 60, Atom("none"), b"", Atom("x"), [b"body"])
        publish = entry(9, (Atom("e"), 5, (Atom("mc"), Atom("mc_amqpl"), content, {}), (0, 4)))
        assert applied(machine, [publish, publish]) == count


def term(octets: bytes) -> Any:
    return key_of(decode(b"\x83" + octets)[0])
