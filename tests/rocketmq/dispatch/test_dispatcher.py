"""What one record asks of queues and index."""

from __future__ import annotations

import numpy as np
import pytest
from support.golden import case_named, opened

import mqstore
from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, dispatch_positions, dispatch_request, merge_runs, parse_delays
from mqstore.rocketmq.format.batch_consume_queue import UNIT
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.java_text import java_hash
from mqstore.rocketmq.format.record import Record, encode, encode_properties

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def asked(topic: str = "T", rules: DispatchRules | None = None, sys_flag: int = 0, queue_offset: int = 7, **properties: str) -> object:
    record = Record(
        topic, b"", queue_id=5, queue_offset=queue_offset, store_timestamp=1000, sys_flag=sys_flag, properties=encode_properties(properties)
    )
    return dispatch_request(record, rules or DispatchRules())


def test_delays_are_read_with_their_units() -> None:
    assert parse_delays("1s 2m  3h 4d") == (1000, 120_000, 10_800_000, 345_600_000)
    assert parse_delays("") == ()
    assert len(parse_delays()) == 18


@pytest.mark.parametrize("text", ["1", "s", "1w", "-1s", "1.5s", "x1s"])
def test_a_malformed_delay_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a delay"):
        parse_delays(f"1s {text}")


def test_the_tags_code_is_the_hash_of_the_tags() -> None:
    assert asked(TAGS="TagA").tags_code == java_hash("TagA") == 2598919
    assert asked().tags_code == 0


def test_a_waiting_message_is_listed_by_its_delivery_time() -> None:
    assert asked(SCHEDULE, DELAY="3", TAGS="a").tags_code == 1000 + 10_000
    assert asked(SCHEDULE, DELAY="99").tags_code == 1000 + 7_200_000
    assert asked(SCHEDULE, DELAY="0", TAGS="a").tags_code == java_hash("a")
    assert asked(SCHEDULE, DELAY="soon", TAGS="a").tags_code == java_hash("a")
    assert asked("T", DELAY="3", TAGS="a").tags_code == java_hash("a")
    assert asked(SCHEDULE, DispatchRules(delays=()), DELAY="3", TAGS="a").tags_code == java_hash("a")


def test_keys_are_the_unique_key_and_the_parts_of_keys() -> None:
    assert asked(KEYS=" a  b ", UNIQ_KEY="u u").keys == ("u u", "a", "b")
    assert asked(KEYS="a a").keys == ("a", "a")
    assert asked(KEYS="a", sys_flag=12).keys == ()
    assert asked(KEYS="a", sys_flag=4).keys == ("a",)


MULTI = {"INNER_MULTI_DISPATCH": "a,%LMQ%b,c/d", "INNER_MULTI_QUEUE_OFFSET": "1,2,3"}


def test_further_queues_are_those_the_record_names() -> None:
    assert asked(**MULTI).further_queues == ()
    assert asked(rules=DispatchRules(multi_dispatch=True), **MULTI).further_queues == (("a", 5, 1), ("%LMQ%b", 5, 2), ("c/d", 5, 3))
    assert asked(rules=DispatchRules(multi_dispatch=True, lmq=True), **MULTI).further_queues == (
        ("a", 5, 1),
        ("%LMQ%b", 0, 2),
        ("c/d", 5, 3),
    )
    assert asked(rules=DispatchRules(multi_dispatch=True, only_light_queues=True), **MULTI).further_queues == (
        ("a", 5, 1),
        ("%LMQ%b", 5, 2),
    )
    assert asked("%RETRY%g", DispatchRules(multi_dispatch=True, only_light_queues=True), **MULTI).further_queues == ()
    assert asked(rules=DispatchRules(multi_dispatch=True), sys_flag=4, **MULTI).further_queues == ()
    assert asked(rules=DispatchRules(multi_dispatch=True), INNER_MULTI_DISPATCH="a,b", INNER_MULTI_QUEUE_OFFSET="1").further_queues == ()
    assert asked(rules=DispatchRules(multi_dispatch=True), INNER_MULTI_DISPATCH="a,,", INNER_MULTI_QUEUE_OFFSET="1").further_queues == (
        ("a", 5, 1),
    )


def test_an_inner_batch_has_a_base_and_a_count() -> None:
    assert (asked().base, asked().count) == (7, 1)
    batch = asked(INNER_BASE="100", INNER_NUM="12")
    assert (batch.base, batch.count) == (100, 12)
    assert asked(INNER_BASE="x", INNER_NUM="12").count == 1


@pytest.mark.parametrize(("base", "count"), [("100", "32768"), (str(1 << 63), "12"), ("1", "-32769")])
def test_numbers_of_a_batch_that_no_broker_takes_make_a_single_message(base: str, count: str) -> None:
    """They did not fit into a unit of the queue, and ended the dispatch."""
    properties = b"INNER_BASE\x01%b\x02INNER_NUM\x01%b\x02" % (base.encode(), count.encode())
    raw = np.frombuffer(encode(Record("batched", b"x", properties=properties, queue_offset=7)), np.uint8)
    (run,) = dispatch_positions(raw, np.zeros(1, np.int64), DispatchRules(batch_topics=frozenset({"batched"}))).runs
    (unit,) = run.entries.view(UNIT)
    assert (unit["base_offset"], unit["count"]) == (7, 1)


def test_a_further_place_that_no_queue_can_have_is_left_out() -> None:
    further = asked(rules=DispatchRules(multi_dispatch=True), INNER_MULTI_DISPATCH="a,b", INNER_MULTI_QUEUE_OFFSET=f"{1 << 63},2")
    assert further.further_queues == (("b", 5, 2),)


def test_units_of_a_batch_queue_are_those_the_broker_wrote() -> None:
    case = case_named("5.3.3/o-batch-queue")
    store = mqstore.open(opened(case), config=case.config)
    runs = []
    for event in store.log.scan():
        if isinstance(event, Records):
            runs += dispatch_positions(event.data, event.positions, store.rules()).runs
    made = {(run.topic, run.queue_id): run for run in merge_runs(runs) if run.batch}
    assert {(queue.topic, queue.queue_id) for queue in store.batch_queues()} == set(made)
    for queue in store.batch_queues():
        stored = queue.entries(queue.min_offset, queue.max_offset)
        run = made[queue.topic, queue.queue_id]
        assert len(run) == len(stored) > 0
        assert run.entries.view(UNIT).tobytes() == np.ascontiguousarray(stored).tobytes()
