"""Multi-dispatch at put: the offsets of other queues."""

from __future__ import annotations

from support.broker_records import golden
from support.golden import case_named, queues

from mqstore.rocketmq.append.appender import needs_queue_offsets, queue_key, with_queue_offsets
from mqstore.rocketmq.append.send_path import as_sent
from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, dispatch_request
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.record import Record, encode_properties

CASE = "4.9.3/n-ext-multidispatch"


def text(**properties: str) -> bytes:
    return encode_properties(properties)


def test_the_records_of_a_broker_come_out_byte_for_byte() -> None:
    table: dict[str, int] = {}
    several = 0
    for found in golden(CASE):
        properties = found.property_map()
        if properties.pop("INNER_MULTI_QUEUE_OFFSET", None) is None:
            continue
        several += "," in properties["INNER_MULTI_DISPATCH"]
        stored, keys = with_queue_offsets(encode_properties(properties), found.queue_id, table.get, "4.9.3", True)
        assert stored == found.properties
        for key in keys:
            table[key] = table.get(key, 0) + 1
    assert several > 20
    maxima = {f"{row['topic']}-{row['queue_id']}": row["max_offset"] for row in queues(case_named(CASE))}
    assert {key: maxima[key] for key in table} == table


def test_what_is_stored_is_what_dispatch_reads() -> None:
    stored, _ = with_queue_offsets(text(INNER_MULTI_DISPATCH="%LMQ%a,mirror"), 3, {"%LMQ%a-0": 7, "mirror-3": 9}.get, "4.9.3", True)
    found = dispatch_request(Record("T", b"", queue_id=3, properties=stored), DispatchRules(multi_dispatch=True, lmq=True))
    assert found.further_queues == (("%LMQ%a", 0, 7), ("mirror", 3, 9))


def test_a_light_queue_has_one_offset_for_all_queue_ids_only_with_lmq() -> None:
    assert [queue_key("%LMQ%a", 3, lmq=lmq) for lmq in (True, False)] == ["%LMQ%a-0", "%LMQ%a-3"]
    assert queue_key("mirror", 3, lmq=True) == "mirror-3"


def test_a_queue_named_twice_gets_one_offset_and_is_advanced_twice() -> None:
    stored, keys = with_queue_offsets(text(INNER_MULTI_DISPATCH="a,a"), 0, {"a-0": 5}.get, "4.9.3", False)
    assert b"INNER_MULTI_QUEUE_OFFSET\x015,5" in stored
    assert keys == ("a-0", "a-0")


def test_5_3_3_gives_offsets_to_light_queues_only() -> None:
    stored, keys = with_queue_offsets(text(INNER_MULTI_DISPATCH="a,%LMQ%b,c"), 4, {"%LMQ%b-0": 8}.get, "5.3.3", True)
    assert b"INNER_MULTI_QUEUE_OFFSET\x01,8,\x02" in stored
    assert keys == ("%LMQ%b-0",)


def test_trailing_commas_name_no_queue_as_in_java() -> None:
    assert with_queue_offsets(text(INNER_MULTI_DISPATCH="a,,b,,"), 0, {}.get, "4.9.3", False)[1] == ("a-0", "-0", "b-0")


def test_a_message_that_names_no_queue_is_left_as_it_is() -> None:
    for properties in (b"", text(KEYS="k", WAIT="true"), text(INNER_MULTI_DISPATCH=" ")):
        assert with_queue_offsets(properties, 0, {}.get, "4.9.3", True) == (properties, ())


def test_4_9_3_drops_wait_at_the_latest_here() -> None:
    message = Message("T", properties={"INNER_MULTI_DISPATCH": "a", "WAIT": "true"})
    kept = as_sent(message, "4.9.3", multi_dispatch=True).encoded_properties(trailing_separator=False)
    assert b"WAIT" in kept
    assert b"WAIT" not in with_queue_offsets(kept, 0, {}.get, "4.9.3", True)[0]


def test_which_messages_it_applies_to() -> None:
    named = text(INNER_MULTI_DISPATCH="%LMQ%a")
    assert needs_queue_offsets("%RETRY%g", named, "4.9.3", multi_dispatch=True, lmq=False)
    assert not needs_queue_offsets("T", named, "4.9.3", multi_dispatch=False, lmq=True)
    assert needs_queue_offsets("T", named, "5.3.3", multi_dispatch=False, lmq=True)
    assert not needs_queue_offsets("T", named, "5.3.3", multi_dispatch=True, lmq=False)
    for topic in ("%RETRY%g", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"):
        assert not needs_queue_offsets(topic, named, "5.3.3", multi_dispatch=True, lmq=True)
    assert not needs_queue_offsets("T", text(KEYS="k"), "4.9.3", multi_dispatch=True, lmq=True)
