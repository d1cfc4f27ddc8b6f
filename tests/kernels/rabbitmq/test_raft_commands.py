"""Entries of quorum queues parsed in place, against the decoder: on those of real nodes, and on changed ones."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from support import quorum

from mqstore.files import ReadOnlyDirectory
from mqstore.kernels.rabbitmq import raft_commands as kernel
from mqstore.rabbitmq.erlang.etf import EtfError, decode
from mqstore.rabbitmq.erlang.terms import Atom, encode
from mqstore.rabbitmq.quorum.commands import UserCommand, key_of, read_entry
from mqstore.rabbitmq.quorum.raft_log import raft_systems

TAGS = (0, 97, 98, 104, 107, 108, 109, 110, 116, 119, 255)


def entries(case: str) -> list[bytes]:
    (system,) = raft_systems(ReadOnlyDirectory(quorum.node(case)), "quorum")
    return [entry.entry for uid in system.uids for entry in system.member(uid).entries()]


def parsed(entry: bytes, before: bytes = b"", after: bytes = b"") -> list[int]:
    """Return the columns of an entry that has other bytes on both sides."""
    out = np.full((1, kernel.COLUMNS), 99, np.int64)
    octets = np.frombuffer(before + entry + after, np.uint8)
    kernel.commands(octets, np.array([len(before)]), np.array([len(entry)]), out)
    row: list[int] = out[0].tolist()
    return row


def check(entry: bytes, command: object) -> int:
    """Compare the columns of an entry with the decoded command; return its kind."""
    row = parsed(entry, b"\x83h\x04", b"\x83m")
    kind = row[kernel.KIND]
    if kind == kernel.OTHER:
        return kind
    assert isinstance(command, UserCommand)
    octets = b"\x83h\x04" + entry
    start, length = row[kernel.KEY_START], row[kernel.KEY_LENGTH]
    key = key_of(decode(b"\x83" + octets[start : start + length])[0]) if length else None
    assert row[kernel.TS] == command.ts
    if kind == kernel.PUBLISH:
        assert command.name in ("e", "enqueue")
        assert key == command.pid
        facts = command.fields[1]
        assert row[kernel.SEQ] == command.fields[0]
        assert (row[kernel.META], row[kernel.BODY]) == (facts.meta, facts.body)
        for column, value in ((kernel.TTL, facts.ttl), (kernel.PRIORITY, facts.priority), (kernel.COUNT, facts.delivery_count)):
            assert row[column] == (kernel.NOTHING if value is None else value)
    else:
        assert command.name == "settle"
        assert (key if length else row[kernel.SEQ]) == command.fields[0]
        ids = np.full((row[kernel.IDS_COUNT], 1), 99, np.int64)
        data = np.frombuffer(octets + b"\x83m", np.uint8)
        assert kernel.message_ids(data, np.array([row]), ids) == len(ids)
        assert ids[:, 0].tolist() == command.fields[1]
        assert len(ids) != 1 or row[kernel.BODY] == ids[0]
    return kind


@pytest.mark.parametrize("case", quorum.CASES)
def test_every_entry_of_a_real_node_is_parsed_as_it_is_decoded(case: str) -> None:
    kinds: Counter[int] = Counter()
    for entry in entries(case):
        command = read_entry(entry)
        kinds[check(entry, command)] += 1
    assert kinds[kernel.PUBLISH] > 0
    assert kinds[kernel.PUBLISH] + kinds[kernel.SETTLE] > sum(kinds.values()) // 3


@pytest.mark.parametrize("case", ["3.10.8/a-quorum-mix-kill9", "4.0.5/a-quorum-mix-kill9", "4.3.6/a-quorum-mix-kill9"])
def test_a_changed_entry_is_left_to_the_decoder_or_parsed_as_it_is_decoded(case: str) -> None:
    luck = random.Random(3)
    for entry in luck.sample(entries(case), 120):
        for _ in range(30):
            changed = bytearray(entry)
            for _ in range(luck.randrange(1, 4)):
                changed[luck.randrange(len(changed))] = luck.choice(
                    (0, 97, 98, 104, 107, 108, 109, 110, 116, 119, 255, luck.randrange(256))
                )
            octets = bytes(changed[: luck.choice((len(changed), len(changed), luck.randrange(len(changed))))])
            try:
                command = read_entry(octets)
            except EtfError:
                parsed(octets)
                continue
            check(octets, command)


def test_the_messages_of_both_forms_are_parsed() -> None:
    for case in ("3.10.8/a-quorum-mix-kill9", "4.3.6/a-quorum-mix-kill9"):
        assert kernel.PUBLISH in {parsed(entry)[kernel.KIND] for entry in entries(case)}


def test_an_entry_outside_the_buffer_is_not_read() -> None:
    out = np.zeros((3, kernel.COLUMNS), np.int64)
    kernel.commands(np.zeros(10, np.uint8), np.array([-1, 5, 11]), np.array([4, 6, 0]), out)
    assert out[:, kernel.KIND].tolist() == [kernel.OTHER] * 3


@pytest.mark.parametrize("ids", [[0, 255], [255, 256], [300, 1, 1 << 40], list(range(70_000))])
def test_the_message_ids_of_a_settle_may_be_of_any_size(ids: list[int]) -> None:
    entry = encode((Atom("$usr"), {Atom("ts"): 9}, (Atom("settle"), 15, ids), Atom("noreply")))
    assert check(entry, read_entry(entry)) == kernel.SETTLE


def test_message_ids_that_do_not_fit_are_not_stored() -> None:
    entry = encode((Atom("$usr"), {Atom("ts"): 9}, (Atom("settle"), 15, [300, 400]), Atom("noreply")))
    row, out = np.array([parsed(entry)]), np.zeros((1, 1), np.int64)
    assert kernel.message_ids(np.frombuffer(entry, np.uint8), row, out) == 0
    row[0, kernel.IDS_START] = len(entry) - 1
    assert kernel.message_ids(np.frombuffer(entry, np.uint8), row, np.zeros((2, 1), np.int64)) == 0


@pytest.mark.parametrize(
    ("name", "other"),
    [("mc_amqpl", "xmc_amqpl"), ("mc", "\0mc"), ("content", "\0content"), ("ts", "\0\0ts"), ("$usr", "\0$usr"), ("none", "\0none")],
)
def test_an_atom_that_only_ends_as_a_name_does_is_left_to_the_decoder(name: str, other: str) -> None:
    atoms = [bytes((119, len(text))) + text.encode() for text in (name, other)]
    named = [entry for entry in entries("4.3.6/a-quorum-mix-kill9") if atoms[0] in entry and parsed(entry)[kernel.KIND] == kernel.PUBLISH]
    assert named
    assert {parsed(entry.replace(*atoms, 1))[kernel.KIND] for entry in named} == {kernel.OTHER}


def test_a_settle_of_a_consumer_that_is_not_there_ends_the_run() -> None:
    def head_after(*who: int) -> int:
        consumers = np.array([[1, 0, 0, 0], [0, 0, 0, 0]])
        none, where = np.zeros(len(who), np.int64), np.full(4, kernel.NOTHING)
        messages = np.zeros((1, kernel.MESSAGE_COLUMNS), np.int64)
        ids, turns = np.zeros(0, np.int64), np.zeros(1, np.int64)
        return kernel.deliver(np.array(who), none, none, ids, consumers[:1], where, turns, 1, messages, 0, 0)[0]

    assert head_after(0, kernel.NOTHING) == 1
    assert head_after(1, kernel.NOTHING) == 0
