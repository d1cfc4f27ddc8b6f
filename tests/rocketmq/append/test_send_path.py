"""The send path, and messages that consumers send back."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.broker_records import all_of, brokerrun, differing, golden

from mqstore.rocketmq.append.delay import delayed
from mqstore.rocketmq.append.send_path import UniqueIds, as_sent, batch_as_sent, sent_back
from mqstore.rocketmq.dispatch.dispatcher import parse_delays
from mqstore.rocketmq.format.half_message import half
from mqstore.rocketmq.format.java_map import JavaMap, parsed
from mqstore.rocketmq.format.message import Inner, Message, MessageBatch, property_text
from mqstore.rocketmq.format.record import Record, decode_properties, encode_properties, offset_message_id, parse_host
from mqstore.rocketmq.format.system_topics import HALF_TOPIC, SCHEDULE_TOPIC

LEVELS = parse_delays()
BROKERS_OWN = ("CLUSTER", "MSG_REGION", "TRACE_ON", "REAL_TOPIC", "REAL_QID", "__transactionId__")


def sent_by_client(found: Record, version: str) -> Message:
    """Return the message whose first record this is, as its client sent it: its map had 16 buckets, and WAIT was put first."""
    properties = {"WAIT": "true"} | {name: value for name, value in found.property_map().items() if name not in BROKERS_OWN}
    real = found.property_map()
    return Message(
        real.get("REAL_TOPIC", found.topic),
        found.body,
        queue_id=int(real.get("REAL_QID", found.queue_id)),
        properties=JavaMap.of(properties).encoded(version),
        flag=found.flag,
        sys_flag=found.sys_flag | (4 if found.topic == HALF_TOPIC else 0),
        born_timestamp=found.born_timestamp,
        born_host=found.born_host,
    )


def first_records(version: str, topic_part: str) -> list[Record]:
    """Return records that are the first of their message, of topics with that text in their name."""
    return [
        found
        for found in all_of(version)
        if topic_part in found.topic and not found.body.startswith((b"batch ", b"raw ")) and b"RETRY_TOPIC" not in found.properties
    ]


@pytest.mark.parametrize(("version", "topics"), [("4.9.3", ("s61_plain", "s62_", "s7_plain")), ("5.3.3", ("s63_", "s7_plain"))])
def test_a_plain_message_is_stored_as_the_broker_stored_it(version: str, topics: tuple[str, ...]) -> None:
    found = [each for topic in topics for each in first_records(version, topic) if b"REAL_TOPIC" not in each.properties]
    assert len(found) > 400
    for each in found:
        assert differing(as_sent(sent_by_client(each, version), version), each) == {}


@pytest.mark.parametrize(("version", "least"), [("4.9.3", 80), ("5.3.3", 6)])
def test_a_message_with_a_delay_waits_as_the_broker_let_it_wait(version: str, least: int) -> None:
    found = first_records(version, SCHEDULE_TOPIC)
    assert len(found) >= least
    for each in found:
        message = as_sent(sent_by_client(each, version), version)
        assert differing(delayed(message, LEVELS, version), each) == {}


@pytest.mark.parametrize(("version", "least"), [("4.9.3", 55), ("5.3.3", 8)])
def test_a_transactional_message_becomes_the_half_message_that_the_broker_stored(version: str, least: int) -> None:
    found = [each for each in first_records(version, HALF_TOPIC) if b"TRANSACTION_CHECK_TIMES" not in each.properties]
    assert len(found) >= least
    for each in found:
        message = as_sent(sent_by_client(each, version), version)
        assert differing(half(message, version), each) == {}


@pytest.mark.parametrize(("version", "batches"), [("4.9.3", 12), ("5.3.3", 1)])
def test_the_shared_properties_of_a_batch_follow_those_of_each_message(version: str, batches: int) -> None:
    by_batch: dict[tuple[str, bytes], list[Record]] = {}
    for found in golden("4.9.3/e-delay-transaction-batch") if version == "4.9.3" else brokerrun(version):
        if found.body.startswith(b"batch ") and b"REAL_TOPIC" not in found.properties:
            by_batch.setdefault((found.topic, found.body.split(b"/")[0]), []).append(found)
    assert len(by_batch) == batches
    for members in by_batch.values():
        envelope = {"WAIT": "true"}
        if version != "4.9.3":
            envelope["UNIQ_KEY"] = members[0].property_map()["UNIQ_KEY"]
        batch = MessageBatch(Message(members[0].topic, properties=encode_properties(envelope)), [Inner(each.body) for each in members])
        shared = batch_as_sent(batch, version).envelope.properties
        assert isinstance(shared, bytes)
        assert [each.body for each in members if not each.properties.endswith(b"\x02" + shared)] == []


def test_a_unique_id_is_added_by_the_broker_of_5_3_3_only() -> None:
    ids = UniqueIds("10.0.0.1", process=1, loader=2, clock=lambda: 1_795_230_189_770)
    message = Message("T", properties={"KEYS": "k"})
    assert "UNIQ_KEY" not in as_sent(message, "4.9.3", ids=ids).property_map()
    assert "UNIQ_KEY" not in as_sent(message, "5.3.3").property_map()
    first, second = (as_sent(message, "5.3.3", ids=ids).property_map()["UNIQ_KEY"] for _ in range(2))
    assert (int(second, 16) - int(first, 16), len(first)) == (1, 32)
    given_one = as_sent(Message("T", properties={"UNIQ_KEY": "mine"}), "5.3.3", ids=ids)
    assert given_one.property_map()["UNIQ_KEY"] == "mine"


@pytest.mark.parametrize(
    ("properties", "sys_flag", "kept"),
    [
        ({}, 0, False),
        ({"DELAY": "0"}, 0, False),
        ({"DELAY": "2"}, 0, True),
        ({"DELAY": "2"}, 8, True),
        ({"DELAY": "2"}, 4, False),
        ({"TRAN_MSG": "TRUE"}, 4, True),
        ({"INNER_MULTI_DISPATCH": "a"}, 0, True),
        ({"INNER_MULTI_DISPATCH": " "}, 0, False),
    ],
)
def test_wait_is_stored_by_4_9_3_only_where_a_later_step_encodes_again(properties: dict[str, str], sys_flag: int, kept: bool) -> None:
    message = Message("T", properties={"WAIT": "false", **properties}, sys_flag=sys_flag)
    assert ("WAIT" in as_sent(message, "4.9.3", multi_dispatch=True).property_map()) is kept
    assert "WAIT" in as_sent(message, "5.3.3").property_map()


def sources(version: str) -> dict[str, Record]:
    """Return records by offset message id, separately for each run."""
    return {offset_message_id(parse_host(each.store_host), each.physical_offset): each for each in all_of(version)}


@pytest.mark.parametrize(("version", "least"), [("4.9.3", 80), ("5.3.3", 4)])
def test_a_message_sent_back_waits_for_its_next_try_as_in_the_broker(version: str, least: int) -> None:
    by_id = sources(version)
    retried = [each for each in all_of(version) if each.topic == SCHEDULE_TOPIC and b"ORIGIN_MESSAGE_ID" in each.properties]
    assert len(retried) >= least
    for each in retried:
        source = by_id[each.property_map()["ORIGIN_MESSAGE_ID"]]
        group = each.property_map()["REAL_TOPIC"].removeprefix("%RETRY%")
        message = sent_back(source, group, 0, 16, version)
        assert message.topic == f"%RETRY%{group}"
        assert differing(delayed(message, LEVELS, version), each) == {}


@pytest.mark.parametrize(("version", "least"), [("4.9.3", 14), ("5.3.3", 4)])
def test_a_message_after_its_last_try_is_the_brokers_dead_letter(version: str, least: int) -> None:
    by_id = sources(version)
    dead = [each for each in all_of(version) if each.topic.startswith("%DLQ%")]
    assert len(dead) >= least
    for each in dead:
        source = by_id[each.property_map()["ORIGIN_MESSAGE_ID"]]
        message = sent_back(source, each.topic.removeprefix("%DLQ%"), 0, 0, version)
        assert delayed(message, LEVELS, version) is message
        assert differing(message, each) == {}


SOURCE = Record("orders", b"x", physical_offset=17384, store_host="127.0.0.1:10911", queue_id=3, properties=b"KEYS\x01k")


@pytest.mark.parametrize(
    ("delay_level", "tries", "topic", "level"),
    [
        (0, 0, "%RETRY%g", "3"),
        (0, 2, "%RETRY%g", "5"),
        (7, 2, "%RETRY%g", "7"),
        (-1, 0, "%DLQ%g", "0"),
        (0, 3, "%DLQ%g", "0"),
        (7, 4, "%DLQ%g", "0"),
    ],
)
def test_the_level_of_the_next_try_follows_the_tries_unless_one_is_asked_for(delay_level: int, tries: int, topic: str, level: str) -> None:
    message = sent_back(replace(SOURCE, reconsume_times=tries), "g", delay_level, 3, "5.3.3", queue_id=2)
    assert (message.topic, message.property_map()["DELAY"], message.reconsume_times) == (topic, level, tries + 1)
    assert message.queue_id == (2 if topic == "%RETRY%g" else 0)


def test_topic_and_id_of_the_first_send_are_kept_through_all_tries() -> None:
    once = sent_back(SOURCE, "g", 0, 16, "4.9.3")
    assert once.property_map()["ORIGIN_MESSAGE_ID"] == "7F00000100002A9F00000000000043E8"
    again = Record(
        once.topic, b"x", physical_offset=99, store_host="127.0.0.1:1", properties=once.encoded_properties(trailing_separator=False)
    )
    twice = sent_back(again, "g", 0, 16, "4.9.3").property_map()
    assert (twice["RETRY_TOPIC"], twice["ORIGIN_MESSAGE_ID"]) == ("orders", "7F00000100002A9F00000000000043E8")


def test_only_4_9_3_keeps_the_store_host_of_the_record_sent_back() -> None:
    assert sent_back(SOURCE, "g", 0, 16, "4.9.3").store_host == "127.0.0.1:10911"
    assert sent_back(SOURCE, "g", 0, 16, "5.3.3").store_host is None


def time_of(unique_id: str, now: int, zone: datetime.tzinfo = datetime.UTC) -> int:
    """Return when an id was made, in ms: in the month of `now`, or in the one before if that is in the future."""
    since = int(unique_id[-12:-4], 16)
    month = datetime.datetime.fromtimestamp(now / 1000, zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    before = (month - datetime.timedelta(days=1)).replace(day=1)
    made = round(month.timestamp() * 1000) + since
    return made if made < now else round(before.timestamp() * 1000) + since


@given(st.integers(1_000_000_000_000, 4_000_000_000_000), st.ip_addresses(), st.integers(-11, 12), st.integers(1, 86_400_000 * 20))
def test_a_unique_id_holds_the_time_it_was_made(made: int, ip: object, hours: int, later: int) -> None:
    zone = datetime.timezone(datetime.timedelta(hours=hours))
    text = UniqueIds(str(ip), clock=lambda: made, zone=zone).next()
    assert len(text) in (32, 56)
    assert text == text.upper()
    assert time_of(text, made + later, zone) == made


def test_the_counter_of_unique_ids_wraps() -> None:
    ids = UniqueIds(process=0, clock=lambda: 0)
    seen = [ids.next()[-4:] for _ in range(65_537)]
    assert (seen[0], seen[65_535], seen[65_536]) == ("0000", "FFFF", "0000")


def test_golden_unique_ids_were_made_when_their_messages_were_born() -> None:
    """Within 100 ms: the client makes the id, compresses the body, and only then sets the born time."""
    found = [each for each in golden("4.9.3/f-broker-offsets") if each.topic != SCHEDULE_TOPIC]
    for each in found:
        made = time_of(decode_properties(each.properties)["UNIQ_KEY"], each.born_timestamp + 1000)
        assert 0 <= each.born_timestamp - made < 100


NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "CLUSTER", "TRACE_ON", "MSG_REGION", "a", "b" * 9, "c", "ä", ""])
VALUES = st.sampled_from(["x", "true", "o-1 o-2", "", "ü", "=", "y\x01z"])


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
@given(st.lists(st.tuples(NAMES, VALUES), max_size=20), st.booleans(), st.sampled_from(["DefaultRegion", "", "a b"]))
def test_properties_come_out_in_the_order_of_the_brokers_map_however_they_came(
    version: str, pairs: list[tuple[str, str]], trailing: bool, region: str
) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + ("\x02" if trailing else "")
    ids = UniqueIds()
    found = parsed(text.encode(), version)
    has_id = found.get("UNIQ_KEY") is not None
    if version == "4.9.3":
        found.put("CLUSTER", "c")
        found.remove("WAIT")
    else:
        found.put("MSG_REGION", region)
        found.put("TRACE_ON", "true")
        found = parsed(found.encoded(version), version)
        if not has_id:
            found.put("UNIQ_KEY", "?")
        found.put("CLUSTER", "c")
    message = Message("T", b"", properties=text.encode())
    sent = property_text(as_sent(message, version, cluster="c", region=region, ids=ids), version)
    if version != "4.9.3" and not has_id:
        sent = re.sub(rb"(?<=UNIQ_KEY\x01)[0-9A-F]{32}", b"?", sent)
    assert sent == found.encoded(version)
