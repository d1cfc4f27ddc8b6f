"""Messages in the state of a machine, in the forms of each version, and terms that are none."""

from __future__ import annotations

from typing import Any

import pytest

from mqstore.rabbitmq.erlang.terms import Atom, ImproperList, Pairs, Term
from mqstore.rabbitmq.quorum import machine_state
from mqstore.rabbitmq.quorum.commands import MessageFacts, Pid
from mqstore.rabbitmq.quorum.machine import Machine
from mqstore.rabbitmq.quorum.machine_state import BadStateError, read_message

PACKED = 5 << 44 | 7  # 5 bytes, index 7


@pytest.mark.parametrize("term", [PACKED, ImproperList((7,), 5), ImproperList((7, 5), {})])
def test_a_message_is_a_number_or_its_index_before_its_header(term: Term) -> None:
    message = read_message(term)
    assert (message.index, message.size) == (7, 5)


@pytest.mark.parametrize("term", [Atom("empty"), (7, 5), [7, 5], ImproperList((Atom("x"),), 5)])
def test_another_term_is_no_message(term: Term) -> None:
    with pytest.raises(BadStateError, match="a message is"):
        read_message(term)


@pytest.mark.parametrize("term", [ImproperList((Atom("expired"),), PACKED), ImproperList((Atom("expired"), 7), 5)])
def test_a_dead_letter_is_its_reason_before_the_message(term: Term) -> None:
    reason, message = machine_state._dead_letter(term)
    assert (reason, message.index, message.size) == ("expired", 7, 5)


@pytest.mark.parametrize("term", [PACKED, ImproperList((7,), 5), [Atom("expired"), PACKED]])
def test_a_term_without_a_reason_is_no_dead_letter(term: Term) -> None:
    with pytest.raises(BadStateError, match="a dead letter is"):
        machine_state._dead_letter(term)


# whole states

ONE = Pid(0, 1, "rabbit@one", 1)
NONE = Atom("undefined")
EMPTY: Term = ([], [])
DEAD = ImproperList((Atom("rejected"),), PACKED)


def state(version: int, parts: dict[int, Term] | None = None, **config: Term) -> Term:
    """Return the state of an empty queue of version 2 or newer with other parts, by place. config: places of it as `at7`."""
    configuration: list[Term] = [NONE] * 15
    for place, value in config.items():
        configuration[int(place.removeprefix("at"))] = value
    ready: Term = EMPTY if version < 4 else (Atom("q"), EMPTY, EMPTY, NONE, 0) if version < 8 else (Atom("q"), {})
    items: list[Term] = [NONE] * 18
    items[:3] = [Atom("rabbit_fifo"), tuple(configuration), ready]
    items[4], items[6], items[9], items[10], items[12], items[14] = EMPTY, {}, {}, EMPTY, 0, []
    items[11] = (Atom("rabbit_fifo_dlx"), NONE, EMPTY)
    for place, value in (parts or {}).items():
        items[place] = value
    return tuple(items)


def old_state(version: int, parts: dict[int, Term]) -> Term:
    """Return a state of version 0 or 1, by the places of version 0."""
    configuration: list[Term] = [NONE] * 11
    items: list[Term] = [NONE] * 16
    items[0], items[1], items[2] = Atom("rabbit_fifo"), tuple(configuration), {} if version == 0 else EMPTY
    items[5], items[7], items[10], items[11], items[12], items[13], items[15] = EMPTY, {}, {}, EMPTY, ([], []), 0, []
    for place, value in parts.items():
        items[place] = value
    if version == 1:
        del items[4]
    return tuple(items)


def consumer(version: int, in_hand: dict[Term, Term]) -> Term:
    settings = (Atom("cfg"), {Atom("prefetch"): 7}, ONE, b"tag", (Atom("simple_prefetch"), 3), Atom("auto"), 2, 5000)
    return Atom("consumer"), settings if version >= 8 else settings[:7], Atom("up"), 4, in_hand, 1, 6, NONE, [1]


@pytest.mark.parametrize("item", [(9000, PACKED), ImproperList((9000,), PACKED), ImproperList((9000, 7), 5)])
def test_a_consumer_of_version_8_has_a_deadline_for_each_message(item: Term) -> None:
    found = machine_state.load(state(8, {9: {4: consumer(8, {1: item})}}), 8).consumers[4]
    assert [(message.index, message.size) for message in found.in_hand.values()] == [(7, 5)]
    assert (found.deadlines, found.timeout, found.timed_out) == ({1: 9000}, 5000, [1])


def test_a_message_in_hand_without_a_deadline_is_refused() -> None:
    with pytest.raises(BadStateError, match="a message in hand is"):
        machine_state.load(state(8, {9: {4: consumer(8, {1: PACKED})}}), 8)


def test_a_map_may_be_pairs_and_a_fifo_in_three_forms() -> None:
    for form in (([], [PACKED]), (1, [], [PACKED]), (1, ([PACKED], []))):
        machine = machine_state.load(state(3, {2: form, 9: Pairs(((4, consumer(3, {})),))}), 3)
        assert [message.index for message in machine.ready] == [7]
        assert list(machine.consumers) == [4]
    for parts, says in (({2: (1, 2, 3)}, "a FIFO is"), ({2: 5}, "a FIFO is"), ({9: []}, "a map belongs here")):
        with pytest.raises(BadStateError, match=says):
            machine_state.load(state(3, parts), 3)


@pytest.mark.parametrize("version", range(4, 8))
def test_versions_4_to_7_have_messages_of_two_priorities(version: int) -> None:
    two: Term = (Atom("q"), ([], [PACKED]), ([ImproperList((8,), 5)], []), NONE, 1)
    ready = machine_state.load(state(version, {2: two}), version).ready
    assert {level: [message.index for message in queue] for level, queue in ready.levels.items()} == {1: [7], 0: [8]}
    assert ready.turn == 1


def test_consumers_are_served_by_their_priority() -> None:
    levels: Term = (Atom("pqueue"), [(-2, (Atom("queue"), [4], [])), (Atom("infinity"), (Atom("queue"), [5], []))])
    assert dict(machine_state.load(state(3, {10: levels}), 3).service) == {2: machine_state.deque([4]), 0: machine_state.deque([5])}


def test_publishers_that_are_no_processes_are_left_out() -> None:
    machine = machine_state.load(state(3, {6: {Atom("x"): (Atom("enqueuer"), 3), ONE: (Atom("enqueuer"), 5)}}), 3)
    assert {pid: enqueuer.next_seq for pid, enqueuer in machine.enqueuers.items()} == {ONE: 5}


def test_dead_letters_are_in_the_hands_of_their_worker_or_wait() -> None:
    held: Term = (Atom("rabbit_fifo_dlx"), (Atom("dlx_consumer"), ONE, 10, {3: DEAD}, 4), ([], [DEAD]))
    machine = machine_state.load(state(3, {11: held}), 3)
    assert [(reason, message.index) for reason, message in machine.held] == [("rejected", 7)] * 2
    assert machine.held.worker is not None
    assert (machine.held.worker.pid, list(machine.held.worker.in_hand)) == (ONE, [3])
    assert machine.held.bytes == 10


def test_delayed_messages_of_version_8_have_their_times_and_tokens() -> None:
    nil = Atom("nil")
    later, earlier = ImproperList((900,), 7), ImproperList((300,), 8)
    tree: Term = (later, PACKED, (earlier, ImproperList((8,), 5), nil, nil), nil)
    delayed: Term = (Atom("delayed"), (2, tree), NONE, {b"token": later, Atom("x"): earlier})
    retry: Term = (Atom("all"), 10, 20)
    machine = machine_state.load(state(8, {17: delayed}, at14=retry, at12=60), 8)
    assert [(at, index) for at, index, _ in machine.delayed] == [(300, 8), (900, 7)]
    assert machine.deferred == {b"token": (900, 7)}
    assert (machine.config.delayed_retry, machine.config.message_ttl) == (("all", 10, 20), 60)


@pytest.mark.parametrize(
    ("term", "index"),
    [
        ((Atom("$prefix_msg"), 5), -1),
        ((Atom("$empty_msg"), 5), -1),
        ((5, Atom("empty")), -1),
        (5, -1),
        ((7, (5, b"body")), 7),
        ((1, (7, (5, b"body"))), 7),
        ((b"x", 5), -1),
    ],
)
def test_a_message_of_version_0_or_1_is_its_size_or_has_its_index(term: Term, index: int) -> None:
    message = machine_state._placeholder(term)
    assert (message.index, message.size) == (index, 0 if term == (b"x", 5) else 5)


@pytest.mark.parametrize("version", [0, 1])
def test_what_publishers_of_old_versions_sent_early_waits_with_them(version: int) -> None:
    content: Term = (Atom("content"), 60, NONE, b"\x10\0", NONE, [b"body"])
    message: Term = (Atom("basic_message"), NONE, [], content, b"", Atom("true"))
    early: Term = (Atom("enqueuer"), 5, [(7, 40, message)])
    old = (Atom("consumer"), {}, {0: 3}, 1, 0, 1, Atom("simple_prefetch"), Atom("auto"), Atom("up"), 2)
    parts: dict[int, Term] = {7: {ONE: early, Atom("x"): early}, 10: {(b"tag", ONE): old}, 12: (1, [5], 1, [5])}
    machine = machine_state.load(old_state(version, parts), version)
    assert [item[:2] for item in machine.enqueuers[ONE].pending] == [(7, 40)]
    assert list(machine.enqueuers) == [ONE]
    assert machine.consumers[b"tag", ONE].priority == 2
    assert machine.placeholders == 3
    machine_state.convert(machine, 2, 0)
    assert [(message.index, message.size) for message in machine.ready][-1] == (40, 4)
    assert not machine.enqueuers[ONE].pending


def test_a_state_that_names_no_queue_is_of_none() -> None:
    assert machine_state.queue_of((Atom("rabbit_fifo"),)) == (None, None)


def test_consumers_and_messages_of_older_versions_get_what_newer_ones_have() -> None:
    machine = Machine(2)
    for index in (1, 2):
        machine.enqueue(index, 0, None, None, MessageFacts(0, 1, None, None, None))
    settings: Any = {Atom("prefetch"): 7}
    machine.checkout(3, 0, (b"one", ONE), (Atom("auto"), 1, Atom("simple_prefetch")), settings)
    (one,) = machine.consumers.values()
    machine.checkout(4, 0, (b"two", ONE), (Atom("auto"), 1, Atom("credited")), {})
    one.in_hand[0].delivery_count, one.status = 5, "suspected_down"
    machine_state.convert(machine, 8, 100)
    assert machine.consumers[b"two", ONE].status == "up"
    assert (one.prefetch, one.in_hand[0].acquired_count, one.status) == (7, 5, ("suspected_down", "up"))
    assert one.deadlines == {0: 100 + one.timeout}
    machine_state.convert(machine, 8, 100)
    assert machine.version == 8


def test_the_two_levels_of_version_7_are_two_priorities_of_version_8() -> None:
    machine = Machine(7)
    for index, priority in ((1, None), (2, 9)):
        machine.enqueue(index, 0, None, None, MessageFacts(0, 1, None, priority, None))
    machine_state.convert(machine, 8, 100)
    machine.enqueue(3, 0, None, None, MessageFacts(0, 1, None, 5, None))
    assert [message.index for message in machine.ready] == [2, 3, 1]
