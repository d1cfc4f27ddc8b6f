"""Delay levels: the waiting form, the delivered form, and delivery."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.broker_records import all_of, differing, golden
from support.golden import case_named, unpack

from mqstore.rocketmq.append.delay import asks_for_timer, delay_level, delayed, deliverable
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.dispatch.dispatcher import parse_delays
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message, PutStatus
from mqstore.rocketmq.format.record import Record, encode_properties
from mqstore.rocketmq.format.system_topics import HALF_TOPIC, SCHEDULE_TOPIC

LEVELS = parse_delays()
START = 1_795_230_000_000
VERSIONS = pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])


class Clock:
    """A clock that stays at one time until it is set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


def config(version: str, clock: Clock, **fields: object) -> StoreConfig:
    sizes = {"commit_log_file_size": 65536, "consume_queue_file_size": 2000, "max_hash_slot_num": 100, "max_index_num": 400}
    return StoreConfig(**{"version": version, "clock": clock, "services": False, **sizes, **fields})  # type: ignore[arg-type]


def late(level: int, body: bytes = b"late", topic: str = "orders", queue_id: int = 1) -> Message:
    return Message(topic, body, queue_id=queue_id, properties={"DELAY": str(level)}, born_timestamp=START)


def bodies(store: MessageStore, topic: str = "orders", queue_id: int = 1) -> list[bytes]:
    store.wait_dispatched()
    return [found.body for found in store.get("g", topic, queue_id, 0).records()] if store.max_offset(topic, queue_id) else []


# forms


@pytest.mark.parametrize(("version", "least"), [("4.9.3", 110), ("5.3.3", 10)])
def test_a_message_is_delivered_as_the_broker_delivered_it(version: str, least: int) -> None:
    """What the broker stored after the delay, from what it stored before."""
    waiting = {
        (each.property_map()["REAL_TOPIC"], each.property_map()["UNIQ_KEY"]): each
        for each in all_of(version)
        if each.topic == SCHEDULE_TOPIC
    }
    delivered = [
        each
        for each in all_of(version)
        if each.property_map().get("REAL_TOPIC") == each.topic and b"\x02DELAY\x01" in b"\x02" + each.properties and not each.sys_flag & 8
    ]
    assert len(delivered) >= least
    for each in delivered:
        message = deliverable(waiting[each.topic, each.property_map()["UNIQ_KEY"]], version)
        assert differing(message, each) == {}
        assert message.store_host == each.store_host


def test_a_level_beyond_the_last_is_the_last_one_in_the_text_too() -> None:
    """As 4.9.3 stored the messages that were sent with level 30."""
    found = [each for each in golden("4.9.3/e-delay-transaction-batch") if each.topic == SCHEDULE_TOPIC and each.queue_id == 17]
    assert {each.property_map()["DELAY"] for each in found} == {"18"}
    assert len(found) == 20  # ten of level 18, ten of level 30
    message = delayed(late(30), LEVELS, "4.9.3")
    assert (message.queue_id, message.property_map()["DELAY"]) == (17, "18")


@VERSIONS
@pytest.mark.parametrize("sys_flag", [0x4, 0xC])
def test_prepared_and_rolled_back_messages_never_wait(version: str, sys_flag: int) -> None:
    message = late(3).replaced(sys_flag=sys_flag)
    assert delayed(message, LEVELS, version) is message
    assert delayed(message.replaced(sys_flag=0x8), LEVELS, version).topic == SCHEDULE_TOPIC


@VERSIONS
@pytest.mark.parametrize("level", [None, "0", "-3"])
def test_without_a_level_above_zero_a_message_is_left_as_it_is(version: str, level: str | None) -> None:
    message = Message("T", properties={"KEYS": "k"} | ({} if level is None else {"DELAY": level}))
    assert delayed(message, LEVELS, version) is message


@pytest.mark.parametrize("text", ["x", "1.5", " 3", "99999999999"])
def test_a_level_that_is_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="which is not a delay level"):
        delay_level(encode_properties({"DELAY": text}))
    assert delay_level(encode_properties({"DELAY": "+3"})) == 3
    assert delay_level(b"MYDELAY\x01x") == 0


def test_5_3_3_takes_timer_properties_out_of_a_message_with_a_level() -> None:
    message = Message("T", properties={"TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": "6", "TIMER_DELAY_SEC": "7", "DELAY": "1"})
    assert sorted(delayed(message, LEVELS, "5.3.3").property_map()) == ["DELAY", "REAL_QID", "REAL_TOPIC"]
    assert "TIMER_DELAY_MS" in delayed(message, LEVELS, "4.9.3").property_map()
    assert not asks_for_timer(message, "5.3.3")


def test_which_messages_ask_for_the_timer_wheel() -> None:
    assert asks_for_timer(Message("T", properties={"TIMER_DELAY_SEC": "7"}), "5.3.3")
    assert asks_for_timer(Message("T", properties={"TIMER_DELAY_SEC": "7", "DELAY": "0"}), "5.3.3")
    assert not asks_for_timer(Message("T", properties={"TIMER_DELAY_SEC": "7"}), "4.9.3")
    assert not asks_for_timer(Message("T", properties={"TIMER_DELAY_SEC": "7", "TIMER_OUT_MS": "1"}), "5.3.3")


def test_a_delivered_message_does_not_wait_again_although_its_text_has_the_level() -> None:
    due = deliverable(
        Record(SCHEDULE_TOPIC, b"", properties=encode_properties({"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "2"})), "4.9.3"
    )
    assert (due.topic, due.queue_id, due.property_map()["DELAY"]) == ("T", 2, "1")
    assert delayed(due, LEVELS, "4.9.3") is due


@pytest.mark.parametrize("properties", [{}, {"REAL_TOPIC": "T"}, {"REAL_QID": "1"}, {"REAL_TOPIC": "T", "REAL_QID": "x"}])
def test_a_waiting_record_that_names_no_queue_cannot_be_delivered(properties: dict[str, str]) -> None:
    with pytest.raises(
        ValueError, match="the record at 77 waits in SCHEDULE_TOPIC_XXXX, but its REAL_TOPIC and REAL_QID do not name a queue"
    ):
        deliverable(Record(SCHEDULE_TOPIC, b"", physical_offset=77, properties=encode_properties(properties)), "5.3.3")


# delivery


@VERSIONS
def test_a_message_is_delivered_when_its_level_is_over_and_once_only(version: str, tmp_path: Path) -> None:
    clock = Clock()
    with MessageStore.open(tmp_path / "store", config(version, clock)) as store:
        store.put(late(1))
        store.put(late(2, b"later"))
        store.wait_dispatched()
        assert (store.delays.run_once(), bodies(store)) == (0, [])
        clock.now += 999
        assert store.delays.run_once() == 0
        clock.now += 1
        assert (store.delays.run_once(), bodies(store)) == (1, [b"late"])
        assert store.delays.run_once() == 0
        clock.now += 4000
        assert (store.delays.run_once(), bodies(store)) == (1, [b"late", b"later"])
        assert store.delays.offsets() == {1: 1, 2: 1}
        delivered = store.get("g", "orders", 1, 0).records()[0]
        assert (delivered.store_timestamp, delivered.born_timestamp) == (START + 1000, START)


@VERSIONS
def test_progress_outlives_a_clean_shutdown(version: str, tmp_path: Path) -> None:
    clock = Clock()
    with MessageStore.open(tmp_path / "store", config(version, clock)) as store:
        for _ in range(3):
            store.put(late(1))
        store.put(late(3, b"last"))
        store.wait_dispatched()
        clock.now += 1000
        assert store.delays.run_once() == 3
    table = (tmp_path / "store" / "config" / "delayOffset.json").read_text()
    assert '"offsetTable":{1:3\n\t}' in table
    assert ("dataVersion" in table) is (version != "4.9.3")
    with MessageStore.open(tmp_path / "store", config(version, clock)) as store:
        clock.now += 60_000
        assert (store.delays.run_once(), bodies(store)) == (1, [b"late", b"late", b"late", b"last"])


@VERSIONS
def test_after_a_crash_messages_come_at_least_once(version: str, tmp_path: Path) -> None:
    clock = Clock()
    store = MessageStore.open(tmp_path / "store", config(version, clock))
    for n in range(4):
        store.put(late(1, b"%d" % n))
    store.wait_dispatched()
    clock.now += 1000
    assert store.delays.run_once() == 4
    store.abandon()
    with MessageStore.open(tmp_path / "store", config(version, clock)) as store:
        store.wait_dispatched()
        store.delays.run_once()
        assert set(bodies(store)) == {b"0", b"1", b"2", b"3"}
        assert bodies(store)[:4] == [b"0", b"1", b"2", b"3"]


def test_a_saved_progress_is_moved_into_its_queue(tmp_path: Path) -> None:
    clock = Clock()
    with MessageStore.open(tmp_path / "store", config("5.3.3", clock)) as store:
        store.put(late(1))
        store.put(late(2))
    saved = tmp_path / "store" / "config" / "delayOffset.json"
    saved.write_text('{"offsetTable":{1:-7,2:99}}')
    clock.now += 5000
    with MessageStore.open(tmp_path / "store", config("5.3.3", clock)) as store:
        assert store.delays.run_once() == 1
        assert store.delays.offsets() == {1: 1, 2: 1}
        store.put(late(2, b"new"))
        store.wait_dispatched()
        clock.now += 5000
        assert (store.delays.run_once(), bodies(store)) == (1, [b"late", b"new"])


def test_a_message_that_is_due_waits_for_those_before_it(tmp_path: Path) -> None:
    """The clock went back between the two puts: the second is due first, but a queue is delivered in order."""
    clock = Clock()
    with MessageStore.open(tmp_path / "store", config("5.3.3", clock)) as store:
        store.put(late(1, b"first"))
        clock.now -= 500
        store.put(late(1, b"second"))
        store.wait_dispatched()
        clock.now = START + 600
        assert store.delays.run_once() == 0
        clock.now = START + 1000
        assert (store.delays.run_once(), bodies(store)) == (2, [b"first", b"second"])


def test_a_time_further_ahead_than_the_delay_counts_as_now(tmp_path: Path) -> None:
    clock = Clock()
    with MessageStore.open(tmp_path / "store", config("4.9.3", clock)) as store:
        store.put(late(1))
        store.wait_dispatched()
        clock.now -= 1
        assert (store.delays.run_once(), bodies(store)) == (1, [b"late"])


def test_a_half_message_that_waits_is_dropped_as_is_one_that_names_no_queue(tmp_path: Path) -> None:
    clock = Clock()
    with MessageStore.open(tmp_path / "store", config("4.9.3", clock)) as store:
        store.put(late(1, topic=HALF_TOPIC, queue_id=0))
        store.put_stored(Record(SCHEDULE_TOPIC, b"lost", properties=encode_properties({"DELAY": "1"}), store_host="127.0.0.1:1"))
        store.put(late(1, b"good"))
        store.wait_dispatched()
        clock.now += 1000
        assert (store.delays.run_once(), store.delays.dropped) == (1, 2)
        assert "do not name a queue" in store.delays.failure
        assert (bodies(store), store.max_offset(HALF_TOPIC, 0)) == ([b"good"], 0)
        assert store.delays.offsets() == {1: 3}


def test_a_message_that_cannot_be_put_is_tried_again_and_holds_up_its_level_only(tmp_path: Path) -> None:
    clock = Clock()
    with MessageStore.open(tmp_path / "store", config("5.3.3", clock)) as store:
        wrong = encode_properties({"DELAY": "1", "REAL_TOPIC": "a/b", "REAL_QID": "0"})
        store.put_stored(Record(SCHEDULE_TOPIC, b"", properties=wrong, store_host="127.0.0.1:1"))
        store.put(late(1))
        store.put(late(2, b"other"))
        store.wait_dispatched()
        clock.now += 5000
        for delivered in (1, 0):
            assert store.delays.run_once() == delivered
            assert store.delays.failure.startswith("level 1 is blocked at its message 0: MESSAGE_ILLEGAL")
        assert (bodies(store), store.delays.offsets()) == ([b"other"], {2: 1})


def test_a_level_that_is_not_a_number_makes_an_illegal_message(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", config("5.3.3", Clock())) as store:
        put = store.put(Message("T", properties={"DELAY": "soon"}))
        assert (put.status, put.stored) == (PutStatus.MESSAGE_ILLEGAL, False)


def test_own_levels_are_delivered_by_their_times(tmp_path: Path) -> None:
    clock = Clock()
    with MessageStore.open(tmp_path / "store", config("5.3.3", clock, message_delay_level="2s 1m")) as store:
        store.put(late(1, b"1"))
        store.put(late(9, b"9"))
        store.wait_dispatched()
        clock.now += 2000
        assert store.delays.run_once() == 1
        clock.now += 58_000
        assert (store.delays.run_once(), bodies(store)) == (1, [b"1", b"9"])


def test_delivery_goes_on_over_more_entries_than_are_read_at_once(tmp_path: Path) -> None:
    clock = Clock()
    with MessageStore.open(tmp_path / "store", config("5.3.3", clock, commit_log_file_size=1 << 20)) as store:
        for n in range(1100):
            store.put(late(1, b"%d" % n))
        store.wait_dispatched()
        clock.now += 1000
        assert store.delays.run_once() == 1100
        store.wait_dispatched()
        assert store.max_offset("orders", 1) == 1100
        assert store.delays.offsets() == {1: 1100}


def test_what_a_broker_left_waiting_is_delivered_after_taking_its_store_over(tmp_path: Path) -> None:
    """e: levels 1 to 3 were delivered by the broker, 4, 17 and 18 were still waiting."""
    case = case_named("4.9.3/e-delay-transaction-batch")
    found = [each for each in golden(case.id) if each.topic == SCHEDULE_TOPIC]
    saved = {1: 3, 2: 2, 3: 29}
    clock = Clock()
    clock.now = max(each.store_timestamp for each in golden(case.id)) + 1
    unpack(case, tmp_path / "store")
    settings = config("4.9.3", clock, commit_log_file_size=131072, max_hash_slot_num=1000, max_index_num=4000)
    with MessageStore.open(tmp_path / "store", settings) as store:
        assert store.delays.offsets() == saved
        clock.now += LEVELS[-1]
        waiting = [each for each in found if each.queue_offset >= saved.get(each.queue_id + 1, 0)]
        assert store.delays.run_once() == len(waiting)
        store.wait_dispatched()
        last = store.log_max
        assert store.delays.run_once() == 0
        assert store.log_max == last
        assert store.delays.offsets() == {level: store.max_offset(SCHEDULE_TOPIC, level - 1) for level in (1, 2, 3, 4, 17, 18)}


def test_a_store_that_delays_nothing_gets_no_file_of_progress(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", config("5.3.3", Clock())) as store:
        store.put(Message("T", b"x"))
        store.wait_dispatched()
        assert store.delays.run_once() == 0
    assert not (tmp_path / "store" / "config" / "delayOffset.json").exists()


def test_the_file_is_written_only_when_progress_was_made(tmp_path: Path) -> None:
    clock = Clock()
    with MessageStore.open(tmp_path / "store", config("4.9.3", clock)) as store:
        store.put(late(1))
        store.wait_dispatched()
        clock.now += 1000
        store.delays.run_once()
        assert [store.delays.persist(), store.delays.persist()] == [True, False]
    assert json.loads((tmp_path / "store/config/delayOffset.json").read_text().replace("{1:", '{"1":')) == {"offsetTable": {"1": 1}}


def test_the_thread_of_a_store_delivers_and_persists(tmp_path: Path) -> None:
    settings = replace(config("5.3.3", Clock(), message_delay_level="1s", flush_delay_offset_interval=1), services=True, clock=real_time)
    with MessageStore.open(tmp_path / "store", settings) as store:
        put = store.put(late(1).replaced(born_timestamp=None))
        end = time.monotonic() + 20
        while not (tmp_path / "store/config/delayOffset.json").exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert bodies(store) == [b"late"]
        assert store.get("g", "orders", 1, 0).records()[0].store_timestamp >= put.store_timestamp + 1000
    assert [thread for thread in threading.enumerate() if thread.name == "mqstore-delay"] == []


def real_time() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("lost", [False, True])
def test_a_time_in_the_extended_queue_is_found_there_or_recomputed(lost: bool, tmp_path: Path) -> None:
    clock = Clock()
    settings = config("4.9.3", clock, enable_consume_queue_ext=True, consume_queue_ext_file_size=300)
    with MessageStore.open(tmp_path / "store", settings) as store:
        store.put(late(1))
        store.wait_dispatched()
        file = tmp_path / "store/consumequeue_ext" / SCHEDULE_TOPIC / "0" / f"{0:020d}"
        assert file.read_bytes()[2:10] == (START + 1000).to_bytes(8, "big")
        if lost:
            with file.open("r+b") as unit:
                unit.write(bytes(20))
        clock.now += 999
        assert store.delays.run_once() == 0
        clock.now += 1
        assert (store.delays.run_once(), bodies(store)) == (1, [b"late"])
