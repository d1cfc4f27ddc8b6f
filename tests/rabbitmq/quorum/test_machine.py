"""The machine of quorum queues: the states that real nodes of four versions had in memory, and each rule on its own."""

from __future__ import annotations

from typing import Any

import pytest
from support import quorum

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.erlang.etf import EtfError, decode
from mqstore.rabbitmq.erlang.terms import Atom, ImproperList, Pairs, Term, encode
from mqstore.rabbitmq.quorum import machine_state
from mqstore.rabbitmq.quorum.commands import Membership, MessageFacts, Noop, Pid, UserCommand, message_facts, order_of, read_entry
from mqstore.rabbitmq.quorum.dispatch import apply_command
from mqstore.rabbitmq.quorum.entities import Consumer, Message, dead_letter_handler
from mqstore.rabbitmq.quorum.machine import Machine
from mqstore.rabbitmq.quorum.queue import QuorumQueue, Replay
from mqstore.rabbitmq.quorum.raft_log import raft_systems

ONE, TWO = Pid(0, 1, "rabbit@one", 1), Pid(0, 2, "rabbit@two", 1)
AUTO = Atom("auto")


def prefetch(number: int, version: int) -> Term:
    return (AUTO, (Atom("simple_prefetch"), number)) if version >= 4 else (AUTO, number, Atom("simple_prefetch"))


def filled(version: int, count: int = 3, **config: Any) -> Machine:
    """Return a machine with messages 1 to count of 5 bytes of body and 2 of properties."""
    machine = Machine(version)
    for name, value in config.items():
        setattr(machine.config, name, value)
    for index in range(1, count + 1):
        machine.enqueue(index, 0, None, None, MessageFacts(2, 5, None, None, None))
    return machine


def ready(machine: Machine) -> list[int]:
    return [message.index for message in machine.ready]


def in_hand(machine: Machine) -> list[tuple[int, bytes]]:
    return [(message.index, consumer.tag) for message, consumer in machine.in_hand()]


def consume(machine: Machine, index: int, tag: bytes, pid: Pid = ONE, number: int = 10, **meta: Term) -> Term:
    """Let a consumer come and return its key."""
    settings = {Atom(name): value for name, value in meta.items()}
    machine.checkout(index, 0, (tag, pid), prefetch(number, machine.version), settings)
    return index if machine.version >= 4 else (tag, pid)


@pytest.mark.parametrize("version", range(9))
def test_a_settle_takes_the_messages_that_the_consumer_was_given_by_its_own_numbers(version: int) -> None:
    machine = filled(version, 5)
    one = consume(machine, 6, b"one", number=2)
    two = consume(machine, 7, b"two", TWO, number=2)
    assert in_hand(machine) == [(1, b"one"), (2, b"one"), (3, b"two"), (4, b"two")]
    machine.settle(8, 0, two, [0])
    assert in_hand(machine) == [(1, b"one"), (2, b"one"), (4, b"two"), (5, b"two")]
    machine.settle(9, 0, one, [1, 77])
    machine.settle(10, 0, (b"stranger", ONE), [0])
    assert in_hand(machine) == [(1, b"one"), (4, b"two"), (5, b"two")]


@pytest.mark.parametrize("version", range(9))
def test_returned_messages_come_first_and_count(version: int) -> None:
    machine = filled(version, 3)
    key = consume(machine, 4, b"one", number=2)
    machine.checkout(5, 0, (b"one", ONE), Atom("cancel"), {})
    machine.give_back(6, 0, key, [1, 0])
    assert ready(machine) == ([2, 1, 3] if version >= 4 else [1, 2, 3])
    counts = {message.index: (message.delivery_count, message.acquired_count) for message in machine.ready}
    assert counts[1] == ((None, 1) if version >= 4 else (1, None))


@pytest.mark.parametrize(("version", "gone_after"), [(0, 2), (3, 2), (4, 2), (7, 2), (8, None)])
def test_the_delivery_limit_is_compared_with_the_count_of_the_version(version: int, gone_after: int | None) -> None:
    machine = filled(version, 1, delivery_limit=1)
    key = consume(machine, 2, b"one")
    rounds = 0
    while rounds < 5 and list(machine.in_hand()):
        consumer = next(iter(machine.consumers.values()))
        rounds += 1
        machine.give_back(2 + rounds, 0, key, [consumer.next_id - 1])
    assert rounds == (gone_after or 5)


@pytest.mark.parametrize("version", range(9))
def test_a_repeated_number_of_a_publisher_is_ignored_and_a_gap_waits_only_in_old_versions(version: int) -> None:
    machine = Machine(version)
    facts = MessageFacts(0, 1, None, None, None)
    for index, number in enumerate((1, 1, 3, 2), 1):
        machine.enqueue(index, 0, ONE, number, facts)
    assert ready(machine) == ([1, 4, 3] if version < 2 else [1, 4])


def test_two_weighted_levels_take_two_of_the_upper_and_one_of_the_lower() -> None:
    machine = Machine(5)
    for index in range(1, 11):
        machine.enqueue(index, 0, None, None, MessageFacts(0, 1, None, 9 if index > 5 else None, None))
    expected = ready(machine)
    consume(machine, 11, b"one")
    assert [index for index, _ in in_hand(machine)] == expected == [6, 7, 1, 8, 9, 2, 10, 3, 4, 5]


def test_a_purge_begins_the_turns_of_the_two_weighted_levels_again() -> None:
    """A 4.0.5 node delivered message 13 of such a queue before 12 (life 2 of seed 2)."""
    machine = Machine(5)
    for index, ttl in enumerate((1, None), 1):
        machine.enqueue(index, 0, None, None, MessageFacts(0, 1, ttl, None, None))
    machine.timeout(3, 10, Atom("expire_msgs"))
    machine.purge(4, 10)
    for index, priority, ttl in ((5, 5, 1), (6, None, None), (7, 9, None), (8, 9, None)):
        machine.enqueue(index, 10, None, None, MessageFacts(0, 1, ttl, priority, None))
    machine.timeout(9, 20, Atom("expire_msgs"))
    assert ready(machine) == [7, 6, 8]


def test_thirty_two_priorities_are_strict_and_a_message_without_one_has_4() -> None:
    machine = Machine(8)
    for index, priority in enumerate((None, 3, 40, 5, 31), 1):
        machine.enqueue(index, 0, None, None, MessageFacts(0, 1, None, priority, None))
    assert ready(machine) == [3, 5, 4, 1, 2]


@pytest.mark.parametrize(("version", "size"), [(3, 5), (7, 5), (8, 7)])
def test_maximum_bytes_count_what_the_version_counts_and_drop_from_the_head(version: int, size: int) -> None:
    machine = filled(version, 9, max_bytes=15)
    assert len(ready(machine)) == 15 // size
    assert ready(machine)[-1] == 9
    assert ready(filled(version, 9, max_length=2)) == [8, 9]
    assert len(ready(filled(version, 9, max_length=2, reject_publish=True))) == 9


def test_expired_messages_leave_from_the_head_only() -> None:
    machine = Machine(3)
    for index, ttl in enumerate((10, None, 10), 1):
        machine.enqueue(index, 100, None, None, MessageFacts(0, 1, ttl, None, None))
    machine.timeout(4, 200, Atom("expire_msgs"))
    assert ready(machine) == [2, 3]


def test_dead_letters_at_least_once_are_held_until_their_worker_settles_them() -> None:
    machine = filled(3, 3, dead_letters="at_least_once")
    left: list[tuple[int, str]] = []
    machine.left = lambda message, why, index: left.append((message.index, why))
    key = consume(machine, 4, b"one")
    machine.discard(5, 0, key, [2, 0])
    assert [(reason, message.index) for reason, message in machine.held] == [("rejected", 3), ("rejected", 1)]
    machine.dead_letter_command(6, 0, (Atom("checkout"), None, 1))
    machine.dead_letter_command(7, 0, (Atom("settle"), [0]))
    assert [message.index for _, message in machine.held] == [1]
    assert left == [(3, "dead-lettered")]
    machine.update_config(8, 0, {Atom("dead_letter_handler"): Atom("undefined")})
    assert not list(machine.held)


@pytest.mark.parametrize("version", [2, 3])
def test_a_requeued_message_gets_the_index_of_the_command(version: int) -> None:
    machine = filled(version, 2)
    key = consume(machine, 3, b"one", number=1)
    machine.requeue(4, 0, key, 0, ImproperList((5,), 900))
    assert in_hand(machine) == [(2, b"one")]
    (again,) = machine.ready
    assert (again.index, again.delivery_count, again.expiry) == (4, 1, 900)


@pytest.mark.parametrize("version", range(9))
def test_of_single_active_consumers_the_next_one_takes_over_when_the_first_is_gone(version: int) -> None:
    machine = filled(version, 2, single_active=True)
    consume(machine, 3, b"one", number=1)
    consume(machine, 4, b"two", TWO, number=1)
    assert in_hand(machine) == [(1, b"one")]
    assert [consumer.tag for consumer in machine.waiting] == [b"two"]
    machine.down(5, 0, ONE, Atom("noproc"))
    assert in_hand(machine) == [(1, b"two")]
    assert ready(machine) == [2]


def test_a_single_active_consumer_of_a_higher_priority_waits_until_the_other_has_settled() -> None:
    machine = filled(8, 3, single_active=True)
    low = consume(machine, 4, b"low", number=1, priority=0)
    consume(machine, 5, b"high", TWO, number=1, priority=5)
    assert machine.consumers[low].status == "quiescing"
    machine.settle(6, 0, low, [0])
    assert in_hand(machine) == [(2, b"high")]
    assert [consumer.tag for consumer in machine.waiting] == [b"low"]


def test_what_one_gets_is_settled_at_once_or_stays_in_hand() -> None:
    machine = filled(5, 2)
    machine.checkout(3, 0, (b"get", ONE), (Atom("dequeue"), Atom("settled")), {})
    assert ready(machine) == [2]
    machine.checkout(4, 0, (b"get", ONE), (Atom("dequeue"), Atom("unsettled")), {})
    assert in_hand(machine) == [(2, b"get")]


def test_credit_is_counted_from_what_the_consumer_has_seen_and_a_drain_takes_the_rest() -> None:
    machine = filled(5, 2)
    machine.checkout(3, 0, (b"one", ONE), (AUTO, (Atom("credited"), (1 << 32) - 1)), {})
    assert not in_hand(machine)
    machine.credit(4, 0, 3, 5, (1 << 32) - 1, True)
    assert in_hand(machine) == [(1, b"one"), (2, b"one")]
    assert (machine.consumers[3].credit, machine.consumers[3].delivery_count) == (0, 4)


def test_a_returned_message_may_wait_for_its_next_delivery() -> None:
    machine = filled(8, 1, delayed_retry=("all", 300, 1000))
    key = consume(machine, 2, b"one", number=1)
    machine.give_back(3, 5000, key, [0])
    assert [(at, index) for at, index, _ in machine.delayed] == [(5300, 1)]
    machine.timeout(4, 5299, (Atom("expire_msgs"), Atom("shallow")))
    assert not in_hand(machine)
    machine.timeout(5, 5300, (Atom("expire_msgs"), Atom("shallow")))
    assert in_hand(machine) == [(1, b"one")]


def test_a_consumer_that_takes_too_long_loses_its_messages_until_it_settles() -> None:
    machine = filled(8, 2)
    slow = consume(machine, 3, b"slow", number=1, timeout=100)
    machine.timeout(4, 100, Atom("evaluate_consumer_timeout"))
    assert machine.consumers[slow].status == ("timeout", "up")
    assert ready(machine) == [2, 1] or ready(machine) == [1, 2]
    machine.settle(5, 200, slow, [0])
    assert machine.consumers[slow].status == "up"


NODES = {Atom("a"): b"x"}


@pytest.mark.parametrize(
    ("term", "entry"),
    [
        (Atom("undefined"), None),
        ((Atom("noop"), {Atom("ts"): 5}, 8), Noop(5, 8)),
        ((Atom("noop"), {}, Atom("x")), None),
        ((Atom("$ra_cluster_change"), {}, NODES), Membership(NODES, False)),
        ((Atom("$ra_join"), {}, NODES), Membership(None, False)),
        ((Atom("$ra_leave"), {}, NODES), Membership(None, False)),
        ((Atom("$ra_cluster"), {}, Atom("delete")), Membership(None, True)),
        ((Atom("$from_the_future"),), None),
        ((Atom("$usr"), {Atom("ts"): 5}, Atom("purge"), Atom("noreply")), UserCommand(5, "purge", ())),
    ],
)
def test_an_entry_is_a_command_a_change_of_the_members_or_nothing(term: Term, entry: Any) -> None:
    assert read_entry(encode(term)) == entry


@pytest.mark.parametrize("term", [5, (1, 2), (Atom("$usr"), {}, 5, Atom("noreply")), (Atom("$usr"), {}, (5,), Atom("noreply"))])
def test_an_entry_without_a_name_is_refused(term: Term) -> None:
    with pytest.raises(EtfError, match="a tuple that begins with its"):
        read_entry(encode(term))


CONTENT: Term = (Atom("content"), 60, Atom("none"), b"\x10\0", Atom("x"), [b"body"])


@pytest.mark.parametrize(
    ("message", "facts"),
    [
        (5, (0, 0, None)),
        ((Atom("other"), 1), (0, 0, None)),
        ((Atom("basic_message"), Atom("x"), [], (Atom("content"),), b"", True), (0, 0, None)),
        ((Atom("mc"), Atom("mc_amqpl"), CONTENT, {Atom("ttl"): 7}), (2, 4, 7)),
        ((Atom("mc"), Atom("mc_amqpl"), CONTENT, Pairs(((Atom("ttl"), 7), ([], 1)))), (2, 4, 7)),
        ((Atom("mc"), Atom("mc_mqtt"), (1, 2), {}), (0, 0, None)),
        ((Atom("mc"), Atom("mc_amqp"), (Atom("msg"), [], [], [], [], [5]), {}), (0, 0, None)),
    ],
)
def test_the_sizes_of_a_message_that_is_of_no_known_form_are_0(message: Term, facts: tuple[int, int, int | None]) -> None:
    found = message_facts(message)
    assert (found.meta, found.body, found.ttl) == facts


def test_sizes_that_an_entry_does_not_state_as_numbers_are_0() -> None:
    term: Term = (Atom("$usr"), {}, (Atom("e"), 1, (Atom("other"), 1), Atom("x")), Atom("noreply"))
    command = read_entry(encode(term))
    assert isinstance(command, UserCommand)
    assert command.fields[1] == MessageFacts(0, 0, None, None, None)


def test_an_unknown_command_changes_nothing_and_is_named() -> None:
    machine = filled(8, 1)
    apply_command(machine, 2, 0, "from_the_future", (1,))
    assert ready(machine) == [1]
    assert machine.unknown == {"from_the_future"}


def test_a_state_of_another_form_is_refused_with_a_sentence() -> None:
    for state in (Atom("x"), (Atom("rabbit_fifo"), 1), (Atom("rabbit_fifo"), *(b"" for _ in range(17)))):
        for version in (*range(9), 99):
            with pytest.raises(machine_state.BadStateError):
                machine_state.load(state, version)


# consumers that come again, ask for more, or cannot be reached


@pytest.mark.parametrize("version", range(9))
def test_a_consumer_that_comes_again_keeps_what_it_has_and_gets_the_rest_of_its_new_number(version: int) -> None:
    machine = filled(version, 5)
    consume(machine, 6, b"one", number=1)
    again = consume(machine, 7, b"one", number=3)
    assert in_hand(machine) == [(1, b"one"), (2, b"one"), (3, b"one")]
    assert len(machine.consumers) == 1
    machine.settle(8, 0, (b"one", ONE) if version >= 4 else again, [0])
    assert in_hand(machine)[:2] == [(2, b"one"), (3, b"one")]


@pytest.mark.parametrize("version", range(2, 9))
def test_an_active_consumer_that_comes_again_stays_the_active_one(version: int) -> None:
    machine = filled(version, 5, single_active=True)
    consume(machine, 6, b"one", number=1)
    consume(machine, 7, b"one", number=3)
    assert in_hand(machine) == [(1, b"one"), (2, b"one"), (3, b"one")]
    assert not machine.waiting


def test_a_cancelled_consumer_that_waits_again_keeps_what_it_has_when_its_turn_comes() -> None:
    machine = filled(3, 4, single_active=True)
    consume(machine, 5, b"one", number=1)
    machine.checkout(6, 0, (b"one", ONE), Atom("cancel"), {})
    consume(machine, 7, b"two", TWO, number=1)
    consume(machine, 8, b"one", number=2)
    assert [consumer.tag for consumer in machine.waiting] == [b"one"]
    machine.down(9, 0, TWO, Atom("noproc"))
    assert not machine.waiting
    assert (1, b"one") in in_hand(machine)
    assert {consumer.tag: consumer.prefetch for consumer in machine.consumers.values()} == {b"one": 2}


def test_no_consumer_takes_over_if_all_that_wait_cannot_be_reached() -> None:
    machine = filled(3, 2, single_active=True)
    consume(machine, 3, b"one", number=1)
    consume(machine, 4, b"two", TWO, number=1)
    machine.down(5, 0, TWO, Atom("noconnection"))
    machine.down(6, 0, ONE, Atom("noproc"))
    assert not in_hand(machine)
    assert [consumer.status for consumer in machine.waiting] == ["suspected_down"]


def test_a_consumer_that_is_not_specified_as_one_is_refused() -> None:
    for spec in (5, (AUTO,), (AUTO, 1, 2, 3)):
        with pytest.raises(ValueError, match="a tuple of two or three"):
            filled(5).checkout(4, 0, (b"one", ONE), spec, {})


@pytest.mark.parametrize("version", [0, 3, 5, 8])
def test_one_who_gets_from_an_empty_queue_gets_nothing_and_does_not_stay(version: int) -> None:
    machine = filled(version, 0)
    machine.checkout(1, 0, (b"get", ONE), (Atom("dequeue"), Atom("unsettled")), {})
    assert not machine.consumers


def test_one_who_gets_a_message_whose_time_is_over_gets_nothing_and_does_not_stay() -> None:
    machine = Machine(3)
    machine.enqueue(1, 0, None, None, MessageFacts(0, 1, 10, None, None))
    machine.checkout(2, 11, (b"get", ONE), (Atom("dequeue"), Atom("unsettled")), {})
    assert not machine.consumers
    assert not ready(machine)


@pytest.mark.parametrize("version", [0, 3])
def test_credit_of_old_versions_counts_what_the_consumer_has_seen(version: int) -> None:
    machine = filled(version, 5)
    machine.checkout(6, 0, (b"one", ONE), (AUTO, 1, Atom("credited")), {})
    machine.credit(7, 0, (b"one", ONE), 2, 0, False)
    machine.credit(8, 0, (b"stranger", ONE), 2, 0, False)
    assert [index for index, _ in in_hand(machine)] == [1, 2]


@pytest.mark.parametrize("version", [3, 5])
def test_credit_for_a_consumer_that_waits_brings_it_to_the_front(version: int) -> None:
    machine = filled(version, 3, single_active=True)
    for index, (tag, pid) in enumerate(((b"one", ONE), (b"two", TWO), (b"three", TWO)), 4):
        machine.checkout(index, 0, (tag, pid), (AUTO, 0, Atom("credited")) if version < 4 else (AUTO, (Atom("credited"), 0)), {})
    key = 6 if version >= 4 else (b"three", TWO)
    machine.credit(7, 0, key, 2, 0, False)
    assert [(consumer.tag, consumer.credit) for consumer in machine.waiting] == [(b"three", 2), (b"two", 0)]
    machine.credit(8, 0, key, 2, 0, True)
    (three,) = (consumer for consumer in machine.waiting if consumer.tag == b"three")
    assert three.credit == (0 if version >= 4 else 2)


@pytest.mark.parametrize("version", range(9))
def test_a_consumer_that_waits_and_is_cancelled_waits_no_longer(version: int) -> None:
    machine = filled(version, 2, single_active=True)
    consume(machine, 3, b"one", number=1)
    consume(machine, 4, b"two", TWO, number=1)
    machine.checkout(5, 0, (b"two", TWO), Atom("cancel"), {})
    assert not machine.waiting
    machine.checkout(6, 0, (b"stranger", TWO), Atom("cancel"), {})
    assert in_hand(machine) == [(1, b"one")]


@pytest.mark.parametrize("version", range(9))
def test_what_a_consumer_of_a_node_has_that_cannot_be_reached_comes_back_but_in_version_8(version: int) -> None:
    machine = filled(version, 4)
    consume(machine, 5, b"one", number=1)
    far = consume(machine, 6, b"far", TWO, number=2)
    apply_command(machine, 7, 0, "down", (TWO, Atom("noconnection")))
    here = [(index, tag) for index, tag in in_hand(machine) if tag == b"one"]
    assert here == [(1, b"one")]
    assert ready(machine) == ([4] if version == 8 else [2, 3, 4])
    assert machine.consumers[far].status == (("suspected_down", "up") if version == 8 else "suspected_down")
    machine.down(8, 0, TWO, Atom("noconnection"))
    apply_command(machine, 9, 0, "nodeup", (Atom("rabbit@two"),))
    assert sorted(index for index, tag in in_hand(machine) if tag == b"far") == [2, 3]
    assert [consumer.status for consumer in machine.consumers.values()] == ["up", "up"]


@pytest.mark.parametrize("version", range(9))
def test_of_single_active_consumers_the_next_takes_over_when_the_node_of_the_first_cannot_be_reached(version: int) -> None:
    machine = filled(version, 2, single_active=True)
    consume(machine, 3, b"one", number=1)
    consume(machine, 4, b"two", TWO, number=1)
    machine.down(5, 0, ONE, Atom("noconnection"))
    assert in_hand(machine) == ([(1, b"one")] if version == 8 else [(1, b"two")])
    machine.nodeup(6, 0, "rabbit@one")
    assert {consumer.tag: consumer.status for consumer in (*machine.waiting, *machine.consumers.values())} == {b"one": "up", b"two": "up"}


@pytest.mark.parametrize("version", range(9))
def test_the_consumers_and_publishers_of_nodes_that_have_left_are_gone(version: int) -> None:
    machine = filled(version, 2, single_active=True)
    consume(machine, 3, b"one", number=1)
    consume(machine, 4, b"two", TWO, number=1)
    machine.enqueue(5, 0, ONE, 1, MessageFacts(0, 1, None, None, None))
    machine.enqueue(6, 0, ONE, 3, MessageFacts(0, 1, None, None, None))
    apply_command(machine, 7, 0, "purge_nodes", ([Atom("rabbit@one"), Atom("rabbit@none")],))
    assert not machine.enqueuers
    assert b"one" not in {consumer.tag for consumer in (*machine.consumers.values(), *machine.waiting)}
    # what came early is there now, in the versions that keep it
    assert sorted([*ready(machine), *(index for index, _ in in_hand(machine))]) == [1, 2, 5, *([6] if version < 2 else [])]


def test_a_publisher_without_a_process_is_not_registered() -> None:
    machine = Machine(5)
    apply_command(machine, 1, 0, "register_enqueuer", (Atom("none"),))
    assert not machine.enqueuers


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("settle", (1, [b"x"]), "a list of numbers"),
        ("settle", ([1], [1]), "a consumer is a number"),
        ("credit", (1, b"x", 0, Atom("false")), "credit is a number"),
        ("down", (Atom("x"), Atom("noproc")), "is a process"),
        ("purge_nodes", (Atom("x"),), "nodes are a list"),
        ("settle", (1, Atom("x")), "a list of numbers"),
    ],
)
def test_fields_of_another_kind_are_refused(name: str, fields: tuple[Term, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        apply_command(filled(8), 4, 0, name, fields)


@pytest.mark.parametrize("version", range(8))
def test_a_consumer_whose_node_is_away_has_the_credit_that_it_came_with(version: int) -> None:
    machine = filled(version, 2)
    key = consume(machine, 3, b"far", TWO, number=2)
    assert machine.consumers[key].credit == 0
    machine.down(4, 0, TWO, Atom("noconnection"))
    assert machine.consumers[key].credit == 2


@pytest.mark.parametrize(("exchange", "handler"), [(Atom("undefined"), ""), (b"dead", "at_most_once")])
def test_before_3_10_a_queue_has_a_handler_for_dead_letters_whether_or_not_it_has_an_exchange(exchange: Term, handler: str) -> None:
    term = (Atom("rabbit_quorum_queue"), Atom("dead_letter_publish"), [exchange, Atom("undefined"), b"queue"])
    assert dead_letter_handler(term) == handler


# version 8: timeouts, and messages that wait for their next delivery


@pytest.mark.parametrize("single_active", [False, True])
def test_what_a_consumer_has_comes_back_when_its_node_was_away_for_too_long(single_active: bool) -> None:
    machine = filled(8, 2, single_active=single_active)
    key = consume(machine, 3, b"one", number=1)
    over = (Atom("consumer_disconnected_timeout"), key)
    machine.timeout(4, 0, over)
    assert in_hand(machine) == [(1, b"one")]
    machine.down(5, 0, ONE, Atom("noconnection"))
    machine.timeout(6, 0, over)
    assert not in_hand(machine)
    assert sorted(ready(machine)) == [1, 2]
    assert [consumer.tag for consumer in machine.waiting] == ([b"one"] if single_active else [])
    machine.timeout(7, 0, Atom("another_timer"))
    assert sorted(ready(machine)) == [1, 2]


def test_a_cancelled_consumer_whose_node_was_away_for_too_long_does_not_wait() -> None:
    machine = filled(8, 2, single_active=True)
    key = consume(machine, 3, b"one", number=1)
    machine.checkout(4, 0, (b"one", ONE), Atom("cancel"), {})
    machine.down(5, 0, ONE, Atom("noconnection"))
    machine.timeout(6, 0, (Atom("consumer_disconnected_timeout"), key))
    assert (list(machine.consumers), machine.waiting) == ([], [])


@pytest.mark.parametrize(("token", "index"), [(b"mine", 1), (b"other", 2)])
def test_a_message_with_a_token_waits_until_its_time_or_until_it_is_asked_for(token: bytes, index: int) -> None:
    machine = filled(8, 2)
    key = consume(machine, 3, b"one", number=2)
    for number, own in enumerate((b"mine", b"other")):
        stated: Term = {b"x-opt-delivery-time": 1000, b"x-opt-deferral-token": own}
        apply_command(machine, 4 + number, 0, "modify", (key, [number], Atom("false"), Atom("false"), stated))
    assert not in_hand(machine)
    assert machine.deferred == {b"mine": (1000, 1), b"other": (1000, 2)}
    apply_command(machine, 6, 0, "delayed_cmd", ((Atom("assign_deferred"), key, [b"unknown"]),))
    apply_command(machine, 7, 0, "delayed_cmd", ((Atom("assign_deferred"), 77, [token]),))
    apply_command(machine, 8, 0, "delayed_cmd", (Atom("nothing"),))
    apply_command(machine, 9, 0, "delayed_cmd", ((Atom("from_the_future"),),))
    assert not in_hand(machine)
    apply_command(machine, 10, 0, "delayed_cmd", ((Atom("assign_deferred"), key, [token]),))
    assert in_hand(machine) == [(index, b"one")]
    assert len(machine.delayed) == len(machine.deferred) == 1


@pytest.mark.parametrize(("wanted", "count"), [(Atom("all"), 3), (2, 2), (9, 3), (Atom("none"), 0)])
def test_delayed_messages_come_back_at_once_if_wanted(wanted: Term, count: int) -> None:
    machine = filled(8, 3, delayed_retry=("all", 300, 1000))
    key = consume(machine, 4, b"one", number=3)
    machine.give_back(5, 0, key, [0, 1, 2])
    machine.checkout(6, 0, (b"one", ONE), Atom("cancel"), {})
    machine.delayed_command(7, 0, (Atom("retry"), wanted))
    assert len(ready(machine)) == count
    assert len(machine.delayed) == 3 - count


def test_a_requeued_message_counts_as_acquired_since_version_4() -> None:
    machine = filled(4, 1)
    key = consume(machine, 2, b"one", number=1)
    machine.checkout(3, 0, (b"one", ONE), Atom("cancel"), {})
    machine.requeue(4, 0, key, 0, None)
    (again,) = machine.ready
    assert (again.index, again.acquired_count, again.delivery_count) == (4, 1, None)


def test_an_active_consumer_without_messages_gives_way_to_a_higher_priority_at_once() -> None:
    machine = filled(8, 0, single_active=True)
    consume(machine, 1, b"low", number=1, priority=0)
    high = consume(machine, 2, b"high", TWO, number=1, priority=5)
    assert list(machine.consumers) == [high]
    assert [consumer.tag for consumer in machine.waiting] == [b"low"]


def test_a_dead_letter_command_of_another_kind_changes_nothing() -> None:
    machine = filled(3, 1, dead_letters="at_least_once")
    key = consume(machine, 2, b"one")
    machine.discard(3, 0, key, [0])
    machine.dead_letter_command(4, 0, (Atom("from_the_future"), 1))
    assert [message.index for _, message in machine.held] == [1]


def test_what_a_dead_letter_worker_had_waits_again_when_another_one_comes() -> None:
    machine = filled(3, 3, dead_letters="at_least_once")
    key = consume(machine, 4, b"one")
    machine.discard(5, 0, key, [0, 1, 2])
    for index in (6, 7):
        machine.dead_letter_command(index, 0, (Atom("checkout"), None, 2))
        assert machine.held.worker is not None
        assert [message.index for _, message in machine.held.worker.in_hand.values()] == [1, 2]
    assert sorted(message.index for _, message in machine.held) == [1, 2, 3]


@pytest.mark.parametrize("worker", [False, True])
def test_a_purge_of_version_8_drops_dead_letters_whether_a_worker_has_them_or_not(worker: bool) -> None:
    machine = filled(8, 2, dead_letters="at_least_once")
    key = consume(machine, 3, b"one")
    machine.discard(4, 0, key, [0, 1])
    if worker:
        machine.dead_letter_command(5, 0, (Atom("checkout"), None, 1))
    machine.purge(6, 0)
    assert not list(machine.held)


def test_of_single_active_consumers_one_that_was_late_is_active_again_once_it_has_settled() -> None:
    machine = filled(8, 2, single_active=True)
    slow = consume(machine, 3, b"slow", number=1, timeout=100)
    machine.timeout(4, 100, Atom("evaluate_consumer_timeout"))
    assert [consumer.tag for consumer in machine.waiting] == [b"slow"]
    machine.settle(5, 200, (b"stranger", ONE), [0])
    assert not in_hand(machine)
    machine.settle(6, 200, slow, [0])
    assert [tag for _, tag in in_hand(machine)] == [b"slow"]


def test_two_consumers_of_version_8_of_which_one_cannot_be_reached_and_comes_back_late() -> None:
    machine = filled(8, 2)
    near, far = consume(machine, 3, b"near", number=1), consume(machine, 4, b"far", TWO, number=1, timeout=100)
    machine.timeout(5, 100, Atom("evaluate_consumer_timeout"))
    assert machine.consumers[far].status == ("timeout", "up")
    machine.down(6, 100, TWO, Atom("noconnection"))
    assert machine.consumers[far].status == ("suspected_down", "up")
    machine.nodeup(7, 100, "rabbit@one")
    assert machine.consumers[near].status == "up"
    machine.nodeup(8, 100, "rabbit@two")
    assert machine.consumers[far].status == ("timeout", "up")  # it is late with a message
    machine.settle(9, 100, far, [77])
    assert machine.consumers[far].status == ("timeout", "up")


def test_of_single_active_consumers_one_that_waits_is_late_until_it_has_settled_all() -> None:
    machine = filled(8, 3, single_active=True)
    slow = consume(machine, 4, b"slow", number=2, timeout=100)
    consume(machine, 5, b"next", TWO, number=1)
    machine.timeout(6, 100, Atom("evaluate_consumer_timeout"))
    assert [tag for _, tag in in_hand(machine)] == [b"next"]
    for number, status in ((0, ("timeout", "up")), (1, "up")):
        machine.settle(7 + number, 100, slow, [number])
        assert [(consumer.tag, consumer.status) for consumer in machine.waiting] == [(b"slow", status)]
    machine.settle(9, 100, (b"slow", ONE), [0])
    assert len(machine.waiting) == 1


def test_a_late_message_does_not_make_those_of_the_others_late() -> None:
    machine = filled(8, 2, single_active=True)
    consume(machine, 3, b"one", number=2, timeout=100)
    machine.consumers[3].deadlines[1] = 500
    machine.timeout(4, 100, Atom("evaluate_consumer_timeout"))
    assert in_hand(machine) == [(2, b"one")]
    assert list(machine.consumers) == [3]


@pytest.mark.parametrize("version", [2, 8])
def test_a_change_of_the_configuration_that_is_not_of_dead_letters_keeps_them(version: int) -> None:
    machine = filled(version, 1, dead_letters="at_least_once")
    key = consume(machine, 2, b"one")
    machine.discard(3, 0, key, [0])
    machine.update_config(4, 0, {Atom("max_length"): 5})
    assert (len(list(machine.held)), machine.config.max_length) == (1, 5)


def test_a_dead_letter_command_without_a_handler_changes_nothing() -> None:
    machine = filled(3, 1)
    machine.dead_letter_command(2, 0, (Atom("checkout"), None, 1))
    assert machine.held.worker is None


def test_what_has_expired_at_the_head_leaves_all_priorities_of_version_8() -> None:
    machine = Machine(8)
    for index, priority in enumerate((4, 9), 1):
        machine.enqueue(index, 0, None, None, MessageFacts(0, 1, 10, priority, None))
    machine.enqueue(3, 11, None, None, MessageFacts(0, 1, None, None, None))
    consume(machine, 4, b"one")
    machine.timeout(5, 11, Atom("expire_msgs"))
    assert [index for index, _ in in_hand(machine)][-1] == 3


def test_a_message_with_a_token_that_was_delivered_by_its_time_is_not_assigned_again() -> None:
    machine = filled(8, 1)
    key = consume(machine, 2, b"one", number=1)
    machine.give_back(3, 0, key, [0], annotations={b"x-opt-delivery-time": 100, b"x-opt-deferral-token": b"mine"})
    machine.delayed.clear()
    machine.delayed_command(4, 0, (Atom("assign_deferred"), key, [b"mine"]))
    assert not in_hand(machine)


@pytest.mark.parametrize(
    ("spec", "mode"),
    [((AUTO, 3, Atom("credited")), "credited"), ((AUTO, Atom("odd")), "credited"), ((AUTO, (Atom("credited"), 3)), "credited")],
)
def test_the_mode_of_a_consumer_is_stated_in_several_forms(spec: Term, mode: str) -> None:
    machine = filled(3, 0)
    machine.checkout(1, 0, (b"one", ONE), spec, {})
    assert [consumer.mode for consumer in machine.consumers.values()] == [mode]


def test_before_version_4_the_priority_of_a_consumer_is_an_argument() -> None:
    machine = filled(3, 1)
    arguments = [(b"x-other", Atom("long"), 7), (b"x-priority", Atom("long"), 5)]
    for index, (tag, args) in enumerate(((b"low", []), (b"high", arguments)), 2):
        machine.checkout(index, 0, (tag, ONE), prefetch(1, 3), {Atom("args"): args})
    assert {consumer.tag: consumer.priority for consumer in machine.consumers.values()} == {b"low": 0, b"high": 5}


# real nodes


def described(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in ("index", "size", "delivery_count", "acquired_count", "expiry")}


def state_of(machine: Machine) -> dict[str, Any]:
    """Return a state in the form of the golden files."""

    def status(consumer: Consumer) -> str:
        return consumer.status if isinstance(consumer.status, str) else " ".join(consumer.status)

    consumers = [machine.consumers[key] for key in sorted(machine.consumers, key=order_of)]
    return {
        "machine_version": machine.version,
        "ready": [described(message) for message in machine.ready],
        "returns": len(machine.ready.returns),
        "checked_out": [
            {"consumer": consumer.tag.decode(), "id": number, **described(consumer.in_hand[number])}
            for consumer in consumers
            for number in sorted(consumer.in_hand)
        ],
        "consumers": [
            {"tag": each.tag.decode(), "status": status(each), "credit": each.credit, "next_id": each.next_id} for each in consumers
        ],
        "waiting": [consumer.tag.decode() for consumer in machine.waiting],
        "dead_letters_held": [{"reason": reason, "index": message.index} for reason, message in machine.held],
        "delayed": [[at, index] for at, index, _ in machine.delayed],
        "bytes_ready": machine.ready.bytes,
    }


@pytest.mark.parametrize("case", [case for case in quorum.CASES if quorum.states(case, "before")])
def test_every_state_is_that_which_the_node_had_in_memory_before_it_stopped(case: str) -> None:
    compared = 0
    for uid, wanted in quorum.states(case, "before").items():
        (system,) = raft_systems(ReadOnlyDirectory(quorum.node(case)), "quorum")
        log = system.member(uid)
        if log.base is not None and log.base.snapshot.index > wanted["applied_index"]:
            compared += 1  # a clean stop has written a checkpoint after this state
            continue
        run = Replay(QuorumQueue(log), wanted["applied_index"])
        found = state_of(run.machine())
        assert {name: found[name] for name in found} == {name: wanted[name] for name in found}, uid
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize("case", quorum.CASES)
def test_every_state_is_that_of_the_restarted_node(case: str) -> None:
    for uid, wanted in quorum.states(case, "after").items():
        (system,) = raft_systems(ReadOnlyDirectory(quorum.node(case)), "quorum")
        found = QuorumQueue(system.member(uid)).replay()
        delivered = [message for message in found.messages if message.recovered]
        keys = ("index", "size", "delivery_count", "acquired_count", "expiry")
        got = [{key: getattr(message, key) for key in keys} for message in delivered]
        delayed = [message.index for message in found.messages if message.state == "delayed" or not message.recovered]
        if wanted["delayed"] or any(message.pos is None and message.reason is None for message in found.messages):
            # the time of the restart decides which of the delayed ones are back
            assert {item["index"] for item in wanted["ready"]} | {index for _, index in wanted["delayed"]} == {
                item["index"] for item in got
            } | set(delayed)
            continue
        assert got == wanted["ready"], (case, uid)
        assert found.version == wanted["machine_version"]
        held = [{"reason": message.reason, "index": message.index} for message in found.messages if message.state == "dead-letter-held"]
        assert held == wanted["dead_letters_held"]
        assert not found.uncertain
        assert not found.damage


@pytest.mark.parametrize("case", ["4.0.5/a-quorum-mix-kill9", "4.3.6/a-quorum-mix-kill9"])
def test_the_sizes_of_a_message_are_those_that_the_node_states_with_it(case: str) -> None:
    """`enqueue` and `requeue` have the same messages without sizes: AMQP 1.0 with annotations counts 100 bytes of properties."""
    compared: set[tuple[str, bool]] = set()
    for system in raft_systems(ReadOnlyDirectory(quorum.node(case)), "quorum"):
        for uid in system.uids:
            for entry in system.member(uid).entries():
                term: Any = decode(entry.entry)[0]
                if type(term) is tuple and len(term) == 4 and type(term[2]) is tuple and term[2][0] == "e":
                    _, _, message, sizes = term[2]
                    facts = message_facts(message)
                    assert (facts.meta, facts.body) == sizes, message
                    compared.add((str(message[1]), bool(sizes[0])))
    assert {("mc_amqp", True), ("mc_amqp", False), ("mc_amqpl", True)} <= compared
