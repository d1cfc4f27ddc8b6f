"""Transactions: the forms of their messages, and the fate of half messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.broker_records import all_of, brokerrun, differing
from support.golden import case_named, unpack

from mqstore.errors import NotFoundError, RefusedError
from mqstore.rocketmq.append.transactions import CheckRun, Decision, Transactions
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.half_message import (
    CHECK_TIMES,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    IMMUNITY,
    OP_TOPIC,
    PREPARED_QUEUE_OFFSET,
    committed,
    given_up,
    half,
    op_message,
    renewed,
    settled_by,
)
from mqstore.rocketmq.format.message import Message, PutResult
from mqstore.rocketmq.format.record import Record, encode_properties
from mqstore.rocketmq.format.system_topics import CHECK_GROUP

START = 1_795_230_000_000
VERSIONS = pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])


class Clock:
    """A clock that stays at one time until it is set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opening(clock: Clock, tmp_path: Path) -> Callable[..., MessageStore]:
    def opening(version: str, **fields: object) -> MessageStore:
        sizes = {"commit_log_file_size": 131072, "consume_queue_file_size": 2000, "max_hash_slot_num": 1000, "max_index_num": 4000}
        settings = StoreConfig(**{"version": version, "clock": clock, "services": False, **sizes, **fields})  # type: ignore[arg-type]
        return MessageStore.open(tmp_path / "store", settings)

    return opening


def message(body: bytes = b"paid", **properties: str) -> Message:
    return Message("orders", body, queue_id=1, sys_flag=4, born_timestamp=None, properties={"PGROUP": "shop", **properties})


def bodies(store: MessageStore, topic: str = "orders", queue_id: int = 1) -> list[bytes]:
    store.wait_dispatched()
    return [found.body for found in store.get("g", topic, queue_id, 0).records()] if store.max_offset(topic, queue_id) else []


def progress(store: MessageStore) -> tuple[int, int]:
    return store.offsets.query(CHECK_GROUP, HALF_TOPIC, 0), store.offsets.query(CHECK_GROUP, OP_TOPIC, 0)


# forms


@pytest.mark.parametrize(("version", "least"), [("4.9.3", 28), ("5.3.3", 4)])
def test_a_commit_stores_what_the_broker_stored(version: str, least: int) -> None:
    halves = {(each.store_host, each.physical_offset): each for each in all_of(version) if each.topic == HALF_TOPIC}
    commits = [each for each in all_of(version) if each.sys_flag & 0xC == 8]
    assert len(commits) >= least
    for each in commits:
        assert differing(committed(halves[each.store_host, each.prepared_transaction_offset], version), each) == {}


@VERSIONS
def test_op_messages_are_those_of_the_broker(version: str) -> None:
    found = [each for each in all_of(version) if each.topic == OP_TOPIC]
    assert len(found) == (72 if version == "4.9.3" else 1)
    assert sum(len(settled_by(each)) for each in found) == (72 if version == "4.9.3" else 36)
    for each in found:
        ours = op_message(settled_by(each), version, born_host=each.store_host).replaced(born_timestamp=each.born_timestamp)
        assert differing(ours, each) == {}


def test_an_op_message_of_4_9_3_names_one_half_message() -> None:
    with pytest.raises(ValueError, match="names one half message, not 2"):
        op_message([1, 2], "4.9.3")


@pytest.mark.parametrize(
    ("body", "tags", "named"), [(b"7", "d", (7,)), (b"7,9,", "d", (7, 9)), (b"7", "x", ()), (b"", "d", ()), (b"7,x,-1,9", "d", (7, 9))]
)
def test_what_an_op_record_names(body: bytes, tags: str, named: tuple[int, ...]) -> None:
    assert settled_by(Record(OP_TOPIC, body, properties=encode_properties({"TAGS": tags}))) == named


def test_an_op_record_without_the_tag_names_nothing() -> None:
    assert settled_by(Record(OP_TOPIC, b"7")) == ()


@pytest.mark.parametrize(("version", "least"), [("4.9.3", 6), ("5.3.3", 24)])
def test_a_check_stores_the_renewed_half_message_that_the_broker_stored(version: str, least: int) -> None:
    """Each time from the half record before it, up to the third check; then in the form in which it is put aside."""
    latest: dict[str, Record] = {}
    checked = 0
    aside = 0
    for each in brokerrun(version):
        key = each.property_map().get("UNIQ_KEY", "")
        times = each.property_map().get(CHECK_TIMES)
        if each.topic == HALF_TOPIC:
            if times is not None:
                assert differing(renewed(latest[key], version, check_times=int(times)), each) == {}
                checked += 1
            latest[key] = each
        elif each.topic == GIVEN_UP_TOPIC:
            assert times == "3"
            assert differing(given_up(latest[key], version), each) == {}
            aside += 1
    assert (checked, aside) == (least, least // 3)


@VERSIONS
def test_a_half_message_keeps_topic_and_queue_in_its_properties(version: str) -> None:
    found = half(message(UNIQ_KEY="u").replaced(sys_flag=0x10D), version)
    properties = found.property_map()
    assert (found.topic, found.queue_id, found.sys_flag) == (HALF_TOPIC, 0, 0x101)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("orders", "1")
    assert properties.get("__transactionId__") == (None if version == "4.9.3" else "u")


def test_a_record_without_a_real_queue_is_not_a_half_message() -> None:
    with pytest.raises(ValueError, match="the record at 5 is not a half message"):
        committed(Record(HALF_TOPIC, b"", physical_offset=5, properties=encode_properties({"REAL_TOPIC": "T"})), "5.3.3")


# commit and rollback


@VERSIONS
def test_a_message_is_seen_once_its_transaction_is_committed(version: str, opening: Callable[..., MessageStore]) -> None:
    with opening(version) as store:
        first, second, third = (store.transactions.prepare(message(body)) for body in (b"1", b"2", b"3"))
        assert bodies(store) == []
        assert [each.body for each in store.transactions.pending()] == [b"1", b"2", b"3"]
        put = store.transactions.commit(second.physical_offset)
        assert store.transactions.rollback(first.physical_offset).stored
        assert bodies(store) == [b"2"]
        assert [each.physical_offset for each in store.transactions.pending()] == [third.physical_offset]
        stored = store.record_at(put.physical_offset)
        assert stored is not None
        assert (stored.sys_flag & 0xC, stored.prepared_transaction_offset) == (8, second.physical_offset)
        assert [each.sys_flag for each in store.get("g", HALF_TOPIC, 0, 0).records()] == [0, 0, 0]
        assert [settled_by(each) for each in store.get("g", OP_TOPIC, 0, 0).records()] == [(1,), (0,)]


def test_prepare_marks_the_message_and_takes_a_delay_out(opening: Callable[..., MessageStore]) -> None:
    with opening("5.3.3") as store:
        put = store.transactions.prepare(message(DELAY="3"))
        found = store.record_at(put.physical_offset)
        assert found is not None
        assert (found.topic, found.property_map()["TRAN_MSG"]) == (HALF_TOPIC, "true")
        assert "DELAY" not in found.property_map()


@VERSIONS
def test_a_transaction_is_settled_once(version: str, opening: Callable[..., MessageStore]) -> None:
    with opening(version) as store:
        first, second = (store.transactions.prepare(message(body)) for body in (b"1", b"2"))
        store.transactions.commit(first.physical_offset)
        store.transactions.rollback(second.physical_offset)
        for put in (first, second):
            for settle in (store.transactions.commit, store.transactions.rollback):
                with pytest.raises(RefusedError, match="is no longer undecided"):
                    settle(put.physical_offset)
        store.transactions.check()
        assert progress(store) == (2, 2)
        with pytest.raises(RefusedError, match="is no longer undecided"):
            store.transactions.commit(first.physical_offset)
        assert bodies(store) == [b"1"]


def test_what_is_settled_stays_so_in_the_next_life(opening: Callable[..., MessageStore]) -> None:
    with opening("5.3.3") as store:
        first, second = (store.transactions.prepare(message(body)) for body in (b"1", b"2"))
        store.transactions.commit(second.physical_offset)
    with opening("5.3.3") as store:
        assert [each.body for each in store.transactions.pending()] == [b"1"]
        with pytest.raises(RefusedError):
            store.transactions.commit(second.physical_offset)
        store.transactions.commit(first.physical_offset)
        assert bodies(store) == [b"2", b"1"]


def test_only_half_messages_of_the_producers_own_group_can_be_settled(opening: Callable[..., MessageStore]) -> None:
    with opening("5.3.3") as store:
        plain = store.put(Message("T", b"x"))
        prepared = store.transactions.prepare(message())
        with pytest.raises(NotFoundError, match=f"no half message at {plain.physical_offset}, but a record of T"):
            store.transactions.commit(plain.physical_offset)
        with pytest.raises(NotFoundError, match="no half message at 99999, but no record"):
            store.transactions.rollback(99_999)
        with pytest.raises(RefusedError, match="was prepared by shop, not by thief"):
            store.transactions.commit(prepared.physical_offset, producer_group="thief")
        assert store.transactions.commit(prepared.physical_offset, producer_group="shop").stored


def test_a_commit_that_is_not_stored_leaves_the_transaction_undecided(
    opening: Callable[..., MessageStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opening("5.3.3") as store:
        prepared = store.transactions.prepare(message())
        with monkeypatch.context() as full:
            full.setattr(store.retention, "full", True)
            assert not store.transactions.commit(prepared.physical_offset).stored
            assert not store.transactions.rollback(prepared.physical_offset).stored
        assert len(store.transactions.pending()) == 1
        assert store.transactions.commit(prepared.physical_offset).stored
        assert bodies(store) == [b"paid"]


def test_of_many_threads_one_settles_a_transaction(opening: Callable[..., MessageStore]) -> None:
    with opening("5.3.3") as store:
        puts = [store.transactions.prepare(message(b"%d" % n)) for n in range(20)]
        refused: list[int] = []

        def settle_all() -> None:
            for put in puts:
                try:
                    store.transactions.commit(put.physical_offset)
                except RefusedError:
                    refused.append(put.physical_offset)

        threads = [threading.Thread(target=settle_all) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(bodies(store)) == sorted(b"%d" % n for n in range(20))
        assert len(refused) == 60


# the check


@VERSIONS
def test_a_check_asks_about_what_is_undecided_for_too_long(version: str, opening: Callable[..., MessageStore], clock: Clock) -> None:
    with opening(version) as store:
        answers: dict[bytes, Decision] = {b"yes": "commit", b"no": "rollback"}
        asked: list[Record] = []

        def hook(found: Record) -> Decision:
            asked.append(found)
            return answers.get(found.body)

        for body in (b"yes", b"settled", b"no", b"unknown"):
            put = store.transactions.prepare(message(body))
            if body == b"settled":
                store.transactions.commit(put.physical_offset)
        clock.now += 6000
        assert store.transactions.check(hook=hook) == CheckRun()
        clock.now += 1
        assert store.transactions.check(hook=hook) == CheckRun(asked=3, committed=1, rolled_back=1, settled=1)
        assert [(each.body, each.topic, each.queue_id, each.queue_offset) for each in asked] == [
            (b"yes", "orders", 1, 4),
            (b"no", "orders", 1, 5),
            (b"unknown", "orders", 1, 6),
        ]
        assert bodies(store) == [b"settled", b"yes"]
        assert progress(store) == (4, 1)
        (left,) = store.transactions.pending()
        assert (left.body, left.queue_offset, left.property_map()[CHECK_TIMES], left.flag) == (b"unknown", 6, "1", 0)
        answers[b"unknown"] = "rollback"
        assert store.transactions.check(hook=hook) == CheckRun(asked=1, rolled_back=1, settled=2)
        assert (progress(store), store.transactions.pending()) == ((7, 3), [])
        assert store.transactions.check(hook=hook) == CheckRun(settled=1)
        assert progress(store) == (8, 4)


@VERSIONS
def test_after_too_many_checks_a_message_is_put_aside(version: str, opening: Callable[..., MessageStore], clock: Clock) -> None:
    with opening(version) as store:
        store.transactions.prepare(message())
        clock.now += 7000
        for _ in range(3):
            assert store.transactions.check(max_checks=3) == CheckRun(asked=1)
        assert store.transactions.check(max_checks=3) == CheckRun(given_up=1)
        assert (bodies(store, GIVEN_UP_TOPIC, 0), bodies(store)) == ([b"paid"], [])
        assert store.get("g", GIVEN_UP_TOPIC, 0, 0).records()[0].property_map()[CHECK_TIMES] == "3"
        assert store.transactions.pending() == []
        assert store.transactions.check(max_checks=3) == CheckRun()


def test_a_message_older_than_the_log_is_kept_is_put_aside(opening: Callable[..., MessageStore], clock: Clock) -> None:
    with opening("5.3.3", file_reserved_hours=1) as store:
        store.transactions.prepare(message().replaced(born_timestamp=START))
        clock.now += 3_600_001
        assert store.transactions.check() == CheckRun(given_up=1)
        assert bodies(store, GIVEN_UP_TOPIC, 0) == [b"paid"]
        assert store.get("g", GIVEN_UP_TOPIC, 0, 0).records()[0].property_map()[CHECK_TIMES] == "1"


def test_a_check_stops_at_the_first_message_that_is_young(opening: Callable[..., MessageStore], clock: Clock) -> None:
    with opening("5.3.3") as store:
        store.transactions.prepare(message(b"young"))
        put = store.transactions.prepare(message(b"settled"))
        store.transactions.commit(put.physical_offset)
        assert store.transactions.check() == CheckRun()
        assert (progress(store), len(store.transactions.pending())) == ((-1, -1), 1)


def test_a_message_that_was_born_in_the_future_is_asked_about(opening: Callable[..., MessageStore], clock: Clock) -> None:
    with opening("5.3.3") as store:
        store.transactions.prepare(message().replaced(born_timestamp=START + 5000))
        assert store.transactions.check() == CheckRun(asked=1)


@VERSIONS
def test_within_its_immunity_time_a_message_is_put_again_but_not_asked_about(
    version: str, opening: Callable[..., MessageStore], clock: Clock
) -> None:
    with opening(version) as store:
        store.transactions.prepare(message(b"immune", **{IMMUNITY: "60"}))
        store.transactions.prepare(message(b"other"))
        clock.now += 10_000
        assert store.transactions.check() == CheckRun(asked=1, postponed=1)
        immune, other = store.transactions.pending()
        assert (immune.body, immune.property_map()[PREPARED_QUEUE_OFFSET]) == (b"immune", "0")
        assert PREPARED_QUEUE_OFFSET not in other.property_map()
        store.transactions.rollback(other.physical_offset)
        assert store.transactions.check() == CheckRun(postponed=1, settled=1)
        (again,) = store.transactions.pending()
        assert (again.property_map()[PREPARED_QUEUE_OFFSET], again.property_map()[CHECK_TIMES]) == ("0", "2")
        clock.now += 50_000
        assert store.transactions.check(hook=lambda _: "commit") == CheckRun(asked=1, committed=1)
        assert bodies(store) == [b"immune"]


@pytest.mark.parametrize("text", ["-1", "soon"])
def test_an_invalid_immunity_time_is_the_timeout(text: str, opening: Callable[..., MessageStore], clock: Clock) -> None:
    with opening("5.3.3") as store:
        store.transactions.prepare(message(**{IMMUNITY: text}))
        clock.now += 5000
        assert store.transactions.check() == CheckRun(postponed=1)
        clock.now += 5000
        assert store.transactions.check() == CheckRun(asked=1)


@VERSIONS
@pytest.mark.parametrize("immunity", [None, "60"])
def test_a_producer_may_settle_by_the_offset_it_was_given_although_a_check_put_the_message_again(
    version: str, immunity: str | None, opening: Callable[..., MessageStore], clock: Clock
) -> None:
    with opening(version) as store:
        put = store.transactions.prepare(message(**({} if immunity is None else {IMMUNITY: immunity})))
        clock.now += 10_000
        for _ in range(2):
            store.transactions.check()
        assert store.transactions.commit(put.physical_offset).stored
        assert store.transactions.pending() == []
        clock.now += 100_000
        assert store.transactions.check(hook=lambda _: "commit") == CheckRun(settled=1)
        assert bodies(store) == [b"paid"]


def test_an_op_message_for_the_first_offset_settles_a_message_put_again_within_its_immunity(
    opening: Callable[..., MessageStore], clock: Clock
) -> None:
    """A broker writes the op message for the offset that the producer knows."""
    with opening("4.9.3") as store:
        store.transactions.prepare(message(**{IMMUNITY: "60"}))
        clock.now += 10_000
        store.transactions.check()
        store.put(op_message([0], "4.9.3"))
        assert store.transactions.pending() == []
        assert store.transactions.check() == CheckRun(settled=1)
        assert progress(store) == (2, 1)


def test_a_hook_that_fails_leaves_the_message_undecided(opening: Callable[..., MessageStore], clock: Clock) -> None:
    with opening("5.3.3") as store:
        store.transactions.prepare(message(b"1"))
        store.transactions.prepare(message(b"2"))
        clock.now += 7000

        def hook(_: Record) -> Decision:
            raise ConnectionError("the producer is gone")

        with pytest.raises(ConnectionError):
            store.transactions.check(hook=hook)
        assert progress(store)[0] == 1
        assert [each.body for each in store.transactions.pending()] == [b"2", b"1"]


def test_a_check_ends_where_the_store_takes_no_messages(
    opening: Callable[..., MessageStore], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opening("5.3.3") as store:
        put = store.transactions.prepare(message(b"1"))
        store.transactions.prepare(message(b"2"))
        store.transactions.commit(put.physical_offset)
        clock.now += 7000
        with monkeypatch.context() as full:
            full.setattr(store.retention, "full", True)
            run = store.transactions.check()
        assert replace(run, failure="") == CheckRun(settled=1)
        assert run.failure.startswith("a message for RMQ_SYS_TRANS_HALF_TOPIC was not stored: SERVICE_NOT_AVAILABLE")
        assert (progress(store)[0], len(store.transactions.pending())) == (1, 1)


def test_progress_outlives_a_clean_shutdown_and_a_crash_asks_again(opening: Callable[..., MessageStore], clock: Clock) -> None:
    with opening("4.9.3") as store:
        store.transactions.prepare(message(b"1"))
        clock.now += 7000
        store.transactions.check()
    store = opening("4.9.3")
    assert progress(store)[0] == 1
    assert store.transactions.check() == CheckRun(asked=1)
    store.flush()
    store.abandon()
    with opening("4.9.3") as store:
        assert [each.property_map()[CHECK_TIMES] for each in store.transactions.pending()] == ["1", "2"]


def test_5_3_3_op_messages_of_several_halves_move_progress_when_all_are_passed(opening: Callable[..., MessageStore], clock: Clock) -> None:
    with opening("5.3.3") as store:
        for n in range(4):
            store.transactions.prepare(message(b"%d" % n))
        store.put(op_message([0, 3], "5.3.3"))
        store.put(op_message([1], "5.3.3"))
        assert [each.body for each in store.transactions.pending()] == [b"2"]
        assert store.transactions.check() == CheckRun(settled=2)
        assert progress(store) == (2, -1)
        clock.now += 7000
        assert store.transactions.check() == CheckRun(asked=1, settled=1)
        assert progress(store) == (4, 2)


def test_what_a_broker_left_undecided_is_found_and_settled(opening: Callable[..., MessageStore], tmp_path: Path, clock: Clock) -> None:
    """e: 48 transactions; every fourth got no answer, the others were committed or rolled back."""
    unpack(case_named("4.9.3/e-delay-transaction-batch"), tmp_path / "store")
    clock.now = 1_795_230_400_000
    with opening("4.9.3") as store:
        left = store.transactions.pending()
        assert [each.queue_offset for each in left] == list(range(3, 48, 4))
        run = store.transactions.check(hook=lambda found: "commit" if found.queue_offset % 2 else "rollback")
        assert run == CheckRun(asked=12, committed=6, rolled_back=6, settled=36)
        assert store.transactions.pending() == []
        assert progress(store) == (48, 36)


def test_more_transactions_than_are_read_at_once(opening: Callable[..., MessageStore], clock: Clock) -> None:
    with opening("5.3.3", commit_log_file_size=1 << 20) as store:
        puts: list[PutResult] = [store.transactions.prepare(message(b"%d" % n)) for n in range(600)]
        for put in puts[:550]:
            store.transactions.rollback(put.physical_offset)
        fresh = Transactions(store)
        assert len(fresh.pending()) == 50
        clock.now += 7000
        assert fresh.check() == CheckRun(asked=50, settled=550)
        assert progress(store) == (600, 550)
