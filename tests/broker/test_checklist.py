"""The conformance checklist of the remoting protocol (docs/formats/rocketmq-remoting.md, section 8): behaviour that a client relies on.

Items are tested over raw sockets against a broker in this process, in the behaviour of both versions. Those that need real clients
are tested by the scenarios of tests/interop named below; the last test accounts for every number.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.broker import (
    OPEN,
    VERSIONS,
    BrokerThread,
    Wire,
    batch_body,
    framed,
    heartbeat_body,
    held_through,
    lenient,
    properties,
    records,
)

from mqstore.broker import Settings
from mqstore.broker.protocol.codes import RequestCode
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.java_text import java_hash

F = TypeVar("F", bound=Callable[..., Any])

ITEMS: set[int] = set()  # tested in this module

# item: the scenario of real clients that tests it, or the tests of the console
SHOWN_BY_CLIENTS = {
    28: "send-modes",
    32: "compressed",
    38: "unknown-topic",
    52: "tags",
    62: "offset-resume",
    63: "broadcasting",
    65: "retry-exhausted",
    69: "transaction",
    77: "mqadmin-cluster",
    78: "mqadmin-topic",
    79: "mqadmin-query",
    80: "mqadmin-consumer",
    81: "mqadmin-group",
    82: "trace",
}
SHOWN_BY_TESTS = {
    88: "tests/console",
    89: "tests/console",
    90: "tests/console",
    93: "tests/interop/test_broker_killed.py",
    94: "tests/interop/rocketmq-clients/cpp_client.py",
}


def items(*numbers: int) -> Callable[[F], F]:
    """Mark the items that a test covers."""
    ITEMS.update(numbers)
    return lambda test: test


@pytest.fixture(scope="module", params=VERSIONS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("store") / "store", version=request.param) as running:
        yield running


@pytest.fixture
def five(served: BrokerThread) -> bool:
    return served.broker.context.profile.version == "5.3.3"


@pytest.fixture
def bad(five: bool) -> int:
    """Return the response code for an invalid parameter."""
    return 29 if five else 1


@pytest.fixture
def wire(served: BrokerThread, five: bool) -> Iterator[Wire]:
    with Wire(served.address, VERSIONS["5.3.3" if five else "4.9.3"]) as connection:
        yield connection


@pytest.fixture
def topic(wire: Wire, request: pytest.FixtureRequest) -> str:
    return wire.make_topic(re.sub(r"[^a-zA-Z0-9]", "_", request.node.name)[:100])


def dispatched(served: BrokerThread) -> None:
    """Wait until queues and index have everything that was sent."""
    store = served.broker.store.writable
    assert store is not None
    assert store.wait_dispatched()


# frames


@items(1)
def test_a_frame_sent_byte_by_byte_is_answered(wire: Wire) -> None:
    raw, opaque = wire.frame(106)
    for byte in raw:
        wire.socket.sendall(bytes([byte]))
    assert wire.answer(opaque).code == 0


@items(2)
def test_two_frames_in_one_segment_get_two_responses(wire: Wire) -> None:
    (first, one), (second, two) = wire.frame(106), wire.frame(206)
    wire.socket.sendall(first + second)
    assert {wire.read().opaque, wire.read().opaque} == {one, two}


@items(3)
def test_a_header_of_code_and_opaque_is_enough(wire: Wire) -> None:
    wire.socket.sendall(framed(b'{"code":106,"opaque":5}'))
    found = wire.answer(5)
    assert found.code == 0
    assert found.body


@items(4)
def test_a_binary_request_gets_a_binary_response(wire: Wire) -> None:
    found = wire.call(105, {"topic": "TBW102"}, ser=1)
    assert (found.ser, found.code) == (1, 0)
    assert b"brokerDatas" in found.body


@items(5)
def test_the_smallest_response_has_29_bytes(wire: Wire, five: bool) -> None:
    found = wire.answer(wire.post(34, None, heartbeat_body("c@smallest", "", {}), ser=1))
    if five:
        assert found.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        found = wire.call(35, {"clientID": "c@smallest"}, ser=1)
    assert len(found.raw) == 29
    assert found.raw[:8].hex() == "0000001901000015"


@items(6, 7, 8, 9)
@pytest.mark.parametrize(
    "sent",
    [
        b"\x01\x00\x00\x00" + bytes(64),
        b"\xff\xff\xff\xf0" + bytes(64),
        struct.pack(">iI", 10, 100) + b"{}    ",
        framed(b"garbage!"),
        b"\x16\x03\x01\x02\x00\x01",
    ],
    ids=["16 MiB", "negative", "header longer than the frame", "garbage", "TLS"],
)
def test_a_malformed_frame_closes_only_its_own_connection(served: BrokerThread, wire: Wire, sent: bytes) -> None:
    with Wire(served.address) as other:
        other.socket.sendall(sent)
        assert other.closed()
    assert wire.call(106).code == 0


@items(10, 12)
def test_an_unknown_code_is_answered_with_3(wire: Wire) -> None:
    opaque = wire.post(9999)
    found = wire.answer(opaque)
    assert (found.code, found.remark) == (3, " request type 9999 not supported")
    assert found.flag & 1
    assert (found.version, found.opaque) == (wire.version, opaque)


@items(11)
def test_a_oneway_request_is_never_answered(wire: Wire) -> None:
    wire.post(9999, flag=2)
    wire.post(310, {"a": "no topic"}, flag=2)
    assert wire.silent(0.5)


@items(13, 26, 27, 39, 100)
def test_a_send_response_has_the_position_of_the_message(served: BrokerThread, wire: Wire, topic: str, five: bool) -> None:
    answers = [wire.send(topic, b"m%d" % number, properties=properties(KEYS="k", WAIT="true")) for number in range(3)]
    for found in answers:
        assert found.code == 0
        assert found.ext is not None
        assert all(isinstance(value, str) for value in found.ext.values())
        assert re.fullmatch(r"[0-9A-F]{32}|[0-9A-F]{56}", found.field("msgId"))
        assert (found.field("MSG_REGION"), found.field("TRACE_ON"), found.field("queueId")) == ("DefaultRegion", "true", "0")
    assert [found.field("queueOffset") for found in answers] == ["0", "1", "2"]
    positions = [int(found.field("msgId")[-16:], 16) for found in answers]
    dispatched(served)
    stored = records(wire.pull(topic, 0).body)
    sizes = [len(wire.call(33, {"offset": str(position)}).body) for position in positions]
    assert [record.physical_offset for record in stored] == positions
    assert [later - earlier for earlier, later in itertools.pairwise(positions)] == sizes[:2]
    told = stored[0].property_map()
    assert told["CLUSTER"] == "DefaultCluster"
    assert ("WAIT" in told, told.get("MSG_REGION")) == ((True, "DefaultRegion") if five else (False, None))


@items(14)
def test_a_response_without_a_pending_request_is_ignored(wire: Wire) -> None:
    wire.socket.sendall(framed(b'{"code":0,"flag":1,"opaque":424242}'))
    assert wire.call(106).code == 0


@items(15)
def test_an_idle_connection_is_closed_and_a_heartbeat_keeps_it_open(tmp_path: Path) -> None:
    assert Settings().idle_timeout == 120_000
    quick = replace(OPEN, idle_timeout=1000)
    with BrokerThread(tmp_path / "store", settings=quick) as running, Wire(running.address) as idle, Wire(running.address) as busy:
        for _ in range(8):
            time.sleep(0.25)
            busy.heartbeat("c@busy")
        assert idle.closed()
        assert busy.call(106).code == 0


@items(16)
def test_200_requests_at_once_are_all_answered(wire: Wire) -> None:
    opaques = [wire.post(105 if number % 2 else 30, {"topic": "TBW102", "queueId": "0"}) for number in range(200)]
    assert {wire.read().opaque for _ in opaques} == set(opaques)


# name server


@items(17)
def test_an_unknown_topic_has_no_route(wire: Wire) -> None:
    found = wire.call(105, {"topic": "nowhere"})
    assert (found.code, found.body) == (17, b"")
    assert (found.remark or "").startswith("No topic route info in name server for the topic: nowhere")


@items(18)
def test_the_template_topic_has_eight_queues(wire: Wire) -> None:
    queues = wire.route("TBW102")
    assert (queues["perm"], queues["readQueueNums"], queues["writeQueueNums"]) == (7, 8, 8)


def test_the_template_topic_has_as_many_queues_as_the_configuration_says(tmp_path: Path) -> None:
    settings = Settings().with_broker({"autoCreateTopicEnable": "true", "defaultTopicQueueNums": "3"})
    with BrokerThread(tmp_path / "store", settings=settings) as fewer, Wire(fewer.address) as wire:
        assert wire.route("TBW102")["writeQueueNums"] == 3


@items(19)
def test_number_keys_are_quoted_for_clients_that_request_it(wire: Wire) -> None:
    old = wire.call(105, {"topic": "TBW102"}, version=399)
    assert b'{0:"' in old.body
    for new in (
        wire.call(105, {"topic": "TBW102"}, version=479),
        wire.call(105, {"topic": "TBW102", "acceptStandardJsonOnly": "true"}, version=399),
    ):
        assert b'{"0":"' in new.body
        assert json.loads(new.body) == old.json() | json.loads(new.body)


@items(20)
def test_the_cluster_names_a_broker_that_can_be_reached(served: BrokerThread, wire: Wire) -> None:
    cluster = wire.call(106).json()
    assert cluster["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}
    address = cluster["brokerAddrTable"]["broker-a"]["brokerAddrs"]["0"]
    assert address == served.address
    with Wire(address) as there:
        assert there.call(28).code == 0


@items(21, 23)
def test_all_topics_are_listed(wire: Wire, topic: str) -> None:
    listed = set(wire.call(206).json()["topicList"])
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", topic} <= listed
    assert set(wire.call(224, {"cluster": "DefaultCluster"}).json()["topicList"]) == listed
    assert {"DefaultCluster", "broker-a"} <= set(wire.call(304).json()["topicList"])


@items(22)
def test_a_key_value_pair_is_stored_and_deleted(wire: Wire) -> None:
    pair = {"namespace": "N", "key": "k"}
    assert wire.call(100, {**pair, "value": "v"}).code == 0
    assert wire.call(101, pair).field("value") == "v"
    assert wire.call(219, {"namespace": "N"}).json() == {"table": {"k": "v"}}
    assert wire.call(102, pair).code == 0
    assert wire.call(101, pair).code == 22


@items(24)
def test_a_deleted_topic_has_no_route(wire: Wire, topic: str) -> None:
    assert wire.route(topic) is not None
    assert wire.call(215, {"topic": topic}).code == 0
    assert wire.call(216, {"topic": topic}).code == 0
    assert wire.route(topic) is None


def test_a_topic_that_is_created_again_starts_empty(served: BrokerThread, wire: Wire, topic: str) -> None:
    for _ in range(2):
        assert [wire.send(topic, b"x").field("queueOffset") for _ in range(2)] == ["0", "1"]
        dispatched(served)
        assert len(records(wire.pull(topic, 0).body)) == 2
        assert wire.call(215, {"topic": topic}).code == 0
        wire.make_topic(topic)


# sending


@items(25)
def test_the_first_message_creates_a_topic_of_four_queues(wire: Wire, five: bool) -> None:
    assert wire.send("made-by-sending", queue=3).code == 0
    queues = wire.route("made-by-sending")
    assert (queues["perm"], queues["readQueueNums"], queues["writeQueueNums"]) == (6, 4, 4)


@items(29)
def test_the_broker_chooses_a_queue_if_none_is_named_and_refuses_an_unknown_one(wire: Wire, topic: str, bad: int) -> None:
    assert wire.send(topic, queue=-1).field("queueId") in ("0", "1")
    found = wire.send(topic, queue=99)
    assert found.code == bad
    assert (found.remark or "").startswith("request queueId[99] is illegal")


@items(30)
@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("a b", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("x" * 128, "The specified topic is longer than topic max length."),
        ("", "The specified topic is blank."),
    ],
)
def test_an_invalid_topic_name_is_refused(wire: Wire, bad: int, name: str, remark: str) -> None:
    found = wire.send(name)
    assert (found.code, found.remark) == (bad, remark)
    forbidden = wire.send("SCHEDULE_TOPIC_XXXX")
    assert (forbidden.code, forbidden.remark) == (16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.")


@items(31)
def test_a_missing_field_is_named(wire: Wire) -> None:
    found = wire.call(310, {"a": "producers"}, b"x")
    assert found.code == 1
    assert "the custom field <b> is null" in (found.remark or "")


@items(33)
def test_a_body_that_is_too_large_is_refused(wire: Wire, topic: str) -> None:
    assert wire.send(topic, bytes((4 << 20) + 1)).code == 13


@items(34)
def test_long_field_names_mean_the_same(wire: Wire, topic: str) -> None:
    found = wire.send(topic, b"ten", 1, code=10)
    assert (found.code, found.field("queueId")) == (0, "1")


@items(35, 36)
def test_a_batch_is_stored_whole_or_not_at_all(served: BrokerThread, wire: Wire, topic: str) -> None:
    body = batch_body([(b"b%d" % number, properties(UNIQ_KEY=f"u{number}")) for number in range(10)])
    found = wire.send(topic, body, properties=properties(WAIT="true"), code=320, m="true")
    assert found.code == 0
    assert len(found.field("msgId").split(",")) == 10
    dispatched(served)
    assert [record.body for record in records(wire.pull(topic, 0).body)] == [b"b%d" % number for number in range(10)]
    assert wire.send(topic, body[:-3], code=320, m="true").code in (1, 13)
    assert wire.call(30, {"topic": topic, "queueId": "0"}).field("offset") == "10"


@items(37)
def test_a_read_only_store_refuses_messages_with_14(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "store") as running, Wire(running.address) as wire:
        wire.send("T", b"there")
    with BrokerThread(tmp_path / "store", read_only=True) as running, Wire(running.address) as wire:
        refused = wire.send("T")
        assert refused.code == 14
        assert refused.remark
        assert [record.body for record in records(wire.pull("T", 0).body)] == [b"there"]
        assert wire.route("T")["perm"] == 6, "a producer that finds no queue to write to does not ask, and says that there is no route"
        assert {wire.call(code, {"topic": "T"}, b"{}").code for code in (17, 215, 25)} == {16}
        assert wire.heartbeat("c@1", "g", {"T": "*"}).code == 0


# pulling


@items(40, 43)
def test_a_pull_returns_the_bytes_of_the_log(served: BrokerThread, wire: Wire, topic: str) -> None:
    assert wire.pull(topic, 0).code == 19
    positions = [int(wire.send(topic, b"%d" % number).field("msgId")[-16:], 16) for number in range(3)]
    dispatched(served)
    found = wire.pull(topic, 0)
    assert (found.code, found.field("nextBeginOffset"), found.field("minOffset"), found.field("maxOffset")) == (0, "3", "0", "3")
    store = served.broker.store
    assert found.body == b"".join(bytes(store.raw_record_at(position) or b"") for position in positions)


@items(41, 42, 56)
def test_a_pull_needs_the_subscription_of_a_heartbeat(wire: Wire, topic: str) -> None:
    group = f"g-{topic}"
    early = wire.pull(topic, 0, flag=2, group=group, sub_version=1, subscription=None)
    assert early.code == 24
    assert (early.remark or "").startswith("the consumer's group info not exist")
    wire.heartbeat("c@1", group, {topic: "*", "other": "*"}, 5)
    assert wire.pull(topic, 0, flag=0, group=group, sub_version=5, subscription=None).code == 19
    assert wire.pull(topic, 0, flag=0, group=group, sub_version=6, subscription=None).code == 25
    wire.heartbeat("c@1", group, {"other": "*"}, 7)
    assert wire.pull(topic, 0, flag=0, group=group, sub_version=5, subscription=None).code == 24


@items(44)
def test_a_response_has_32_messages_or_256_kib_and_continues_after_filtered_messages(served: BrokerThread, wire: Wire, topic: str) -> None:
    for _ in range(40):
        wire.send(topic, b"small", 0, properties(TAGS="A"))
    for _ in range(5):
        wire.send(topic, bytes(100_000), 1)
    dispatched(served)
    found = wire.pull(topic, 0)
    assert (len(records(found.body)), found.field("nextBeginOffset")) == (32, "32")
    large = records(wire.pull(topic, 0, 1).body)
    assert sum(len(record.body) for record in large) <= 300_000
    none = wire.pull(topic, 0, subscription="B")
    assert none.code == 20
    assert int(none.field("nextBeginOffset")) == 40


@items(45)
def test_an_offset_outside_of_the_queue_is_moved(served: BrokerThread, wire: Wire, topic: str) -> None:
    wire.send(topic)
    dispatched(served)
    found = wire.pull(topic, 1000)
    assert found.code == 21
    assert 0 <= int(found.field("nextBeginOffset")) <= 1


@items(46, 47)
def test_a_pull_at_the_end_waits_if_it_may(served: BrokerThread, wire: Wire, topic: str) -> None:
    found = wire.pull(topic, 0, flag=4, suspend=600_000)  # far more than the client would wait
    assert found.code == 19
    assert set(found.ext or {}) >= {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}
    opaque = wire.post_pull(topic, 0, flag=6, suspend=20_000)
    assert wire.silent(0.3)
    with Wire(served.address) as other:
        other.send(topic, b"wake")
    woken = wire.answer(opaque)
    assert woken.code == 0
    assert records(woken.body)[0].body == b"wake"
    assert wire.pull(topic, 1, flag=6, suspend=300).code == 19


@items(48)
def test_a_held_pull_keeps_waiting_when_another_tag_arrives(served: BrokerThread, wire: Wire, topic: str) -> None:
    with Wire(served.address) as other:
        opaque = held_through(served, wire, topic, "A", "TAG", lambda: other.send(topic, b"not wanted", properties=properties(TAGS="B")))
        other.send(topic, b"wanted", properties=properties(TAGS="A"))
    found = wire.answer(opaque)
    assert [record.body for record in records(found.body)] == [b"wanted"] or found.code == 20


@items(49)
def test_a_pull_commits_even_if_it_finds_nothing(wire: Wire, topic: str) -> None:
    assert wire.pull(topic, 0, flag=5, group="g49", commit=7, suspend=0).code == 19
    assert wire.call(14, {"consumerGroup": "g49", "topic": topic, "queueId": "0"}).field("offset") == "7"


@items(50)
def test_a_pull_from_a_queue_that_cannot_be_read_is_refused(wire: Wire, topic: str, bad: int) -> None:
    far = wire.pull(topic, 0, 99)
    assert far.code == bad
    assert "queueId[99] is illegal" in (far.remark or "")
    assert wire.pull("nowhere", 0).code == 17
    closed = wire.pull(wire.make_topic(f"w-{topic}"[:100], perm=2), 0)
    assert closed.code == 16
    assert "pulling message is forbidden" in (closed.remark or "")


@items(51, 99)
def test_the_requests_of_newer_clients_are_answered(served: BrokerThread, wire: Wire, topic: str) -> None:
    wire.send(topic, b"lite")
    dispatched(served)
    found = wire.pull(topic, 0, code=361, flag=22)
    assert [record.body for record in records(found.body)] == [b"lite"]
    config = wire.call(351, {"topic": topic, "lo": "true"}).json()
    assert (config["topicName"], config["perm"], config["readQueueNums"], config["attributes"]) == (topic, 6, 2, {})
    assert wire.call(351, {"topic": "nowhere"}).code == 17
    assert wire.call(352, {"group": "TOOLS_CONSUMER"}).json()["groupName"] == "TOOLS_CONSUMER"
    assert wire.call(352, {"group": "nobody"}).code == 26


@items(53)
def test_an_sql_expression_filters_if_that_is_enabled(served: BrokerThread, wire: Wire, topic: str, tmp_path: Path) -> None:
    for number in range(4):
        wire.send(topic, b"%d" % number, properties=properties(a=str(number)))
    dispatched(served)
    found = wire.pull(topic, 0, subscription="a > 1", kind="SQL92")
    assert [record.body for record in records(found.body)] == [b"2", b"3"]
    asked = {"clientId": "c@1", "group": "g", "subscriptionData": {"topic": topic, "subString": "a >", "expressionType": "SQL92"}}
    assert wire.call(46, None, json.dumps(asked).encode()).code == 23
    with BrokerThread(tmp_path / "store", settings=Settings(auto_create_topics=True)) as plain, Wire(plain.address) as other:
        other.make_topic(topic)
        for refused in (other.pull(topic, 0, subscription="a > 1", kind="SQL92"), other.call(46, None, json.dumps(asked).encode())):
            assert (refused.code, refused.remark) == (1, "The broker does not support consumer to filter message by SQL92")


# groups


@items(54, 55, 57, 59)
def test_members_are_notified_of_each_other(served: BrokerThread, wire: Wire, topic: str) -> None:
    group = f"g-{topic}"

    def members() -> list[str]:
        return sorted(wire.call(38, {"consumerGroup": group}).json()["consumerIdList"])

    assert wire.heartbeat("c@a", group, {topic: "*"}).code == 0
    assert wire.pushed.pop().code == 40  # before the response
    assert members() == ["c@a"]
    assert wire.route(f"%RETRY%{group}") is not None
    with Wire(served.address) as other:
        other.heartbeat("c@b", group, {topic: "*"})
        assert wire.wait_pushed(40).ext == {"consumerGroup": group}
        assert members() == ["c@a", "c@b"]
        other.call(35, {"clientID": "c@b", "consumerGroup": group})
        wire.wait_pushed(40)
        other.heartbeat("c@b", group, {topic: "*"})
        wire.wait_pushed(40)
    assert wire.wait_pushed(40).flag == 2  # the connection was lost
    assert members() == ["c@a"]
    shown = wire.call(203, {"consumerGroup": group}).json()
    assert [one["clientId"] for one in shown["connectionSet"]] == ["c@a"]
    assert wire.call(35, {"clientID": "c@a", "consumerGroup": group, "producerGroup": ""}).code == 0
    assert wire.call(203, {"consumerGroup": group}).code == 206
    gone = wire.call(38, {"consumerGroup": group})
    assert (gone.code, gone.remark) == (1, f"no consumer for this group, {group}")


@items(58)
def test_a_silent_member_is_removed_after_the_timeout(tmp_path: Path) -> None:
    assert (Settings().client_timeout, Settings().client_scan_interval) == (120_000, 10_000)
    quick = replace(OPEN, client_timeout=5000, client_scan_interval=100)  # a busy machine answers within that time
    with BrokerThread(tmp_path / "store", settings=quick) as running, Wire(running.address) as silent, Wire(running.address) as asking:
        silent.heartbeat("c@1", "g", {"T": "*"})
        silent.pushed.clear()
        assert asking.call(38, {"consumerGroup": "g"}).code == 0
        assert silent.closed()
        assert asking.call(38, {"consumerGroup": "g"}).code == 1


@items(60)
def test_a_queue_is_locked_for_one_client_until_it_is_unlocked_or_the_lock_expires(tmp_path: Path, wire: Wire) -> None:
    assert Settings().lock_timeout == 60_000
    assert len(wire.lock("locks", "c@1", 0)) == 1
    assert wire.lock("locks", "c@2", 0) == []
    wire.lock("locks", "c@2", 0, code=42)
    assert wire.lock("locks", "c@2", 0) == []
    wire.lock("locks", "c@1", 0, code=42)
    assert len(wire.lock("locks", "c@2", 0)) == 1
    with BrokerThread(tmp_path / "store", settings=replace(OPEN, lock_timeout=300)) as running, Wire(running.address) as quick:
        assert len(quick.lock("g", "c@1", 0)) == 1
        time.sleep(0.4)
        assert len(quick.lock("g", "c@2", 0)) == 1


@items(61, 97)
def test_an_offset_is_committed_with_or_without_a_response(wire: Wire, topic: str, five: bool) -> None:
    wire.heartbeat("c@61", "g61", {topic: "*"})
    asked = {"consumerGroup": "g61", "topic": topic, "queueId": "0"}
    first = wire.call(14, asked)
    assert (first.code, first.ext) == ((22, first.ext) if five else (0, {"offset": "0"}))
    wire.post(15, {**asked, "commitOffset": "2"}, flag=2)
    assert wire.call(14, asked).field("offset") == "2"
    assert wire.call(15, {**asked, "commitOffset": "3"}).code == 0
    assert wire.call(14, asked).field("offset") == "3"


@items(64)
def test_a_message_sent_back_is_redelivered_or_becomes_a_dead_letter(served: BrokerThread, wire: Wire, topic: str) -> None:
    group = f"g-{topic}"
    wire.heartbeat("c@64", group, {topic: "*"})
    position = int(wire.send(topic, b"hard").field("msgId")[-16:], 16)
    dispatched(served)
    told = {"offset": str(position), "group": group, "originTopic": topic, "maxReconsumeTimes": "16", "unitMode": "false"}
    assert wire.call(36, {**told, "delayLevel": "1"}).code == 0
    retry = f"%RETRY%{group}"
    found = wire.answer(wire.post_pull(retry, 0, flag=6, suspend=20_000))
    again = records(found.body)[0]
    assert (again.body, again.reconsume_times, again.property_map()["RETRY_TOPIC"]) == (b"hard", 1, topic)
    assert wire.call(36, {**told, "delayLevel": "-1"}).code == 0
    dispatched(served)
    assert records(wire.pull(f"%DLQ%{group}", 0).body)[0].property_map()["RETRY_TOPIC"] == topic


@items(66)
def test_an_offset_without_a_record_cannot_be_sent_back(wire: Wire) -> None:
    told = {"offset": "999999999", "group": "g66", "delayLevel": "0", "maxReconsumeTimes": "16", "unitMode": "false"}
    found = wire.call(36, told)
    assert (found.code, found.remark) == (1, "look message by offset failed, 999999999")


@items(67)
def test_offsets_of_a_group_are_reset(served: BrokerThread, wire: Wire, topic: str, five: bool) -> None:
    group = f"g-{topic}"
    wire.heartbeat("c@67", group, {topic: "*"})
    for queue in (0, 1):
        wire.send(topic, b"x", queue)
        wire.call(15, {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": "1"})
    dispatched(served)
    asked = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
    found = wire.call(222, asked)
    assert found.code == 0
    assert sorted(found.json()["offsetTable"].values()) == [0, 0]
    if not five:
        assert sorted(wire.wait_pushed(220).json()["offsetTable"].values()) == [0, 0]
    assert list(wire.call(222, asked | {"queueId": "1"}).json()["offsetTable"].values()) == ([0] if five else [0, 0])
    wire.call(35, {"clientID": "c@67", "consumerGroup": group})
    assert wire.call(222, asked).code == (0 if five else 206)


# delay and transactions


@items(68)
def test_a_delayed_message_is_delivered_after_its_delay(wire: Wire, topic: str) -> None:
    sent_at = time.time()
    wire.send(topic, b"later", properties=properties(DELAY="1"))
    assert wire.pull(topic, 0).code == 19
    found = wire.answer(wire.post_pull(topic, 0, flag=6, suspend=20_000))
    come = records(found.body)[0]
    assert come.body == b"later"
    assert time.time() - sent_at >= 0.9  # level 1 is a second; clocks are read to the millisecond
    assert come.born_timestamp < come.store_timestamp


@items(70, 71)
def test_a_half_message_is_checked_and_only_its_own_group_decides(tmp_path: Path) -> None:
    quick = replace(OPEN, transaction_check_interval=200, transaction_timeout=100)
    with BrokerThread(tmp_path / "store", settings=quick) as running, Wire(running.address) as wire:
        wire.make_topic("T")
        wire.heartbeat("p@1", producers=("producers",))
        told = properties(TRAN_MSG="true", PGROUP="producers", UNIQ_KEY="unique-71")
        half = wire.send("T", b"maybe", 1, told, f="4")
        assert half.code == 0
        asked = wire.wait_pushed(39)
        record = records(asked.body)[0]
        assert (record.topic, record.queue_id, record.body) == ("T", 1, b"maybe")
        assert asked.field("msgId") == "unique-71"
        end = {"tranStateTableOffset": asked.field("tranStateTableOffset"), "commitLogOffset": asked.field("commitLogOffset")}
        end |= {"commitOrRollback": "8", "fromTransactionCheck": "true", "msgId": "unique-71"}
        wire.post(37, {**end, "producerGroup": "strangers"}, flag=2)
        assert wire.pull("T", 0, 1).code == 19
        asked = wire.wait_pushed(39)
        while wire.pushed:
            asked = wire.pushed.pop()
        end |= {"tranStateTableOffset": asked.field("tranStateTableOffset"), "commitLogOffset": asked.field("commitLogOffset")}
        wire.post(37, {**end, "producerGroup": "producers"}, flag=2)
        found = wire.answer(wire.post_pull("T", 0, 1, flag=6))
        assert [record.body for record in records(found.body)] == [b"maybe"]
        wire.send("T", b"never", 1, told, f="4")
        while records(asked.body)[0].body != b"never":
            asked = wire.wait_pushed(39)
        end |= {"tranStateTableOffset": asked.field("tranStateTableOffset"), "commitLogOffset": asked.field("commitLogOffset")}
        assert wire.call(37, {**end, "commitOrRollback": "12", "producerGroup": "producers"}).code == 0
        assert wire.pull("T", 1, 1).code == 19


# queries and administration


@items(72, 73, 74)
def test_messages_are_found_by_key(served: BrokerThread, wire: Wire, topic: str) -> None:
    for number in range(3):
        wire.send(topic, b"q%d" % number, properties=properties(KEYS=f"k{number} shared", UNIQ_KEY=f"U{number}"))
    dispatched(served)
    asked = {"topic": topic, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1), "_UNIQUE_KEY_QUERY": "false"}

    def bodies(**other: str) -> list[bytes]:
        return [record.body for record in records(wire.call(12, {**asked, **other}).body)]

    assert bodies(key="k1") == [b"q1"]
    assert bodies(key="shared") == [b"q0", b"q1", b"q2"]
    assert bodies(key="shared", maxNum="2") == [b"q1", b"q2"]
    assert bodies(key="U2", _UNIQUE_KEY_QUERY="true", maxNum="0") == [b"q2"]
    miss = wire.call(12, {**asked, "key": "absent"})
    assert (miss.code, miss.ext) == (22, {"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": "0"})


@items(75)
def test_a_message_is_viewed_by_its_offset(wire: Wire, topic: str) -> None:
    position = int(wire.send(topic, b"here").field("msgId")[-16:], 16)
    found = wire.call(33, {"offset": str(position)})
    assert [record.body for record in records(found.body)] == [b"here"]
    assert len(found.body) == int.from_bytes(found.body[:4], "big")
    miss = wire.call(33, {"offset": "999999999"})
    assert (miss.code, miss.remark) == (1, "can not find message by the offset, 999999999")


@items(76)
def test_offsets_are_found_by_time(served: BrokerThread, wire: Wire, topic: str, five: bool) -> None:
    for _ in range(3):
        wire.send(topic)
    dispatched(served)
    queue = {"topic": topic, "queueId": "0"}
    assert wire.call(29, {**queue, "timestamp": "0"}).field("offset") == "0"
    assert wire.call(29, {**queue, "timestamp": str((int(time.time()) + 3600) * 1000)}).field("offset") == ("3" if five else "2")
    first = records(wire.pull(topic, 0).body)[0]
    assert wire.call(32, queue).field("timestamp") == str(first.store_timestamp)
    assert wire.call(32, {"topic": topic, "queueId": "1"}).field("timestamp") == "-1"


@items(83, 84, 85)
def test_statistics_show_where_queues_and_groups_are(served: BrokerThread, wire: Wire, topic: str, five: bool) -> None:
    for _ in range(3):
        wire.send(topic)
    dispatched(served)
    for strict, version in ((False, 399), (True, 479)):
        found = wire.call(202, {"topic": topic}, version=version)
        stats = json.loads(found.body) if strict else lenient(found.body)
        assert ("topicPutTps" in stats) == five
        table = stats["offsetTable"]
        by_queue = {json.loads(key)["queueId"]: value for key, value in table.items()}
        assert (by_queue[0]["minOffset"], by_queue[0]["maxOffset"], by_queue[1]["maxOffset"]) == (0, 3, 0)
        assert by_queue[0]["lastUpdateTimestamp"] > 0 == by_queue[1]["lastUpdateTimestamp"]
    assert wire.call(202, {"topic": "nowhere"}).code == 17
    assert wire.call(105, {"topic": "%RETRY%nobody"}).code == 17
    wire.make_group("offline")
    wire.call(15, {"consumerGroup": "offline", "topic": topic, "queueId": "0", "commitOffset": "2"})
    wire.heartbeat("c@85", "online", {topic: "*"})
    table = wire.call(208, {"consumerGroup": "offline"}).json()["offsetTable"]
    assert {json.loads(key)["queueId"]: value["consumerOffset"] for key, value in table.items() if json.loads(key)["topic"] == topic} == {
        0: 2,
        1: 0,
    }
    assert {"online", "offline"} <= set(wire.call(300, {"topic": topic}).json()["groupList"])
    wire.call(35, {"clientID": "c@85", "consumerGroup": "online"})
    whole = wire.call(317, {"isOrder": "false"}).json()
    assert whole["brokerAddr"] == served.address
    spans = wire.call(303, {"topic": topic, "group": "offline"}).json()["consumeTimeSpanSet"]
    assert {one["messageQueue"]["queueId"] for one in spans} == {0, 1}
    counted = wire.call(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": topic}).json()
    assert counted["statsMinute"]["sum"] == 3
    assert wire.call(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "nowhere"}).code == 1


@items(86)
def test_entries_of_a_queue_are_those_of_the_store(served: BrokerThread, wire: Wire, topic: str) -> None:
    for _ in range(12):
        wire.send(topic, properties=properties(TAGS="A"))
    dispatched(served)
    found = wire.call(321, {"topic": topic, "queueId": "0", "index": "0", "count": "10"}).json()
    assert (found["minQueueIndex"], found["maxQueueIndex"], len(found["queueData"])) == (0, 12, 10)
    store = served.broker.store
    assert isinstance(store, MessageStore)
    queue = store.queue_or_none(topic, 0)
    assert queue is not None
    listed = [(int(one["physical_offset"]), int(one["size"]), int(one["tags_code"])) for one in queue.entries(0, 10)]
    assert [(one["physicOffset"], one["physicSize"], one["tagsCode"]) for one in found["queueData"]] == listed
    assert {one[2] for one in listed} == {java_hash("A")}


@items(87, 98)
def test_the_runtime_table_has_all_that_tools_read(wire: Wire) -> None:
    table = wire.call(28).json()["table"]
    assert all(isinstance(value, str) for value in table.values())
    assert table["brokerVersionDesc"] == ("V5_3_3" if wire.version == 479 else "V4_9_3")
    wanted = "bootTimestamp sendThreadPoolQueueSize pullThreadPoolQueueSize earliestMessageTimeStamp commitLogDiskRatio "
    wanted += "sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills "
    wanted += "msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow "
    wanted += "msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow"
    assert not set(wanted.split()) - set(table)
    for rates in ("putTps", "getTransferedTps", "getTransferredTps"):
        assert [float(rate) >= 0 for rate in table[rates].split(" ")] == [True] * 3


# robustness


@items(91)
def test_a_client_that_dies_in_a_frame_leaves_nothing_behind(served: BrokerThread, wire: Wire, topic: str) -> None:
    group = f"g-{topic}"
    with Wire(served.address) as dying:
        dying.heartbeat("c@dying", group, {topic: "*"})
        dying.post_pull(topic, 0, flag=6)
        dying.socket.sendall(dying.frame(106)[0][:-3])
    deadline = time.monotonic() + 10
    while wire.call(38, {"consumerGroup": group}).code == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert wire.call(38, {"consumerGroup": group}).code == 1
    from mqstore.broker.handlers.long_polling import LongPolling

    assert served.broker.context.component(LongPolling).count == 0


@items(92)
def test_a_thousand_held_pulls_delay_no_other_client(served: BrokerThread, wire: Wire, topic: str) -> None:
    waiting = [Wire(served.address) for _ in range(50)]
    try:
        for connection in waiting:
            for _ in range(20):
                connection.post_pull(topic, 0, 1, flag=6, suspend=8000)
        assert wire.call(106).code == 0
        answered = [wire.send(topic, b"y").code for _ in range(20)]
        assert answered == [0] * 20
        assert waiting[0].silent(0.05)  # while the held pulls of other queues keep waiting
    finally:
        for connection in waiting:
            connection.socket.close()


@items(95, 96)
def test_requests_in_the_form_of_cpp_clients_are_understood(served: BrokerThread, topic: str) -> None:
    with Wire(served.address, version=63) as cpp:
        subscription = {"subString": "TagA", "subVersion": "17", "topic": topic}
        consumer = {"consumeFromWhere": 4, "consumeType": 1, "messageModel": 1, "groupName": f"cpp-{topic}"}
        told = {"clientID": "cpp@1", "consumerDataSet": [{**consumer, "subscriptionDataSet": [subscription]}], "producerDataSet": []}
        assert cpp.call(34, None, json.dumps(told).encode() + b"\n").code == 0
        shown = cpp.call(203, {"consumerGroup": f"cpp-{topic}"}).json()
        assert (shown["messageModel"], shown["consumeType"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
        assert shown["subscriptionTable"][topic]["codeSet"] == [java_hash("TagA")]
        cpp.send(topic, b"x")
        dispatched(served)
        numbers = {"queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 0}
        found = cpp.call(11, {"consumerGroup": f"cpp-{topic}", "topic": topic, "subscription": "*", "subVersion": 17, **numbers})
        assert [record.body for record in records(found.body)] == [b"x"]


def test_an_administrator_reaches_a_consumer_through_the_broker(served: BrokerThread, wire: Wire, topic: str) -> None:
    group = f"g-{topic}"
    sent = wire.send(topic, b"again")
    with Wire(served.address) as consumer:
        consumer.heartbeat("c@through", group, {topic: "*"})
        asked: list[Any] = []

        def answering() -> None:
            for code in (307, 309):
                asked.append(consumer.wait_pushed(code))
                consumer.respond(asked[-1], 0, b'{"{}":1}')

        thread = threading.Thread(target=answering)
        thread.start()
        for code, more in ((307, {"jstackEnable": "false"}), (309, {"msgId": sent.field("msgId")})):
            found = wire.call(code, {"consumerGroup": group, "clientId": "c@through", **more})
            assert (found.code, found.body) == (0, b'{"{}":1}')
        thread.join(10)
        assert [record.body for record in records(asked[1].body)] == [b"again"]
        assert asked[1].field("brokerName") == "broker-a"
    absent = wire.call(307, {"consumerGroup": group, "clientId": "nobody"})
    assert (absent.code, absent.remark) == (1, f"The Consumer <{group}> <nobody> not online")


def test_every_item_of_the_checklist_is_accounted_for() -> None:
    assert ITEMS.isdisjoint(SHOWN_BY_TESTS)
    assert ITEMS | SHOWN_BY_CLIENTS.keys() | SHOWN_BY_TESTS.keys() == set(range(1, 101))
    root = Path(__file__).parents[2]
    assert not [place for place in SHOWN_BY_TESTS.values() if not (root / place).exists()]
    clients = root / "tests" / "interop" / "rocketmq-clients"
    scenarios = "".join(source.read_text(encoding="utf-8") for source in clients.rglob("*.java"))
    assert not [name for name in SHOWN_BY_CLIENTS.values() if f'"{name}"' not in scenarios]


def test_every_request_code_is_answered_by_some_module(served: BrokerThread) -> None:
    broker_to_client = {38 + 1, 40, 220, 221, 326}
    unanswered = {int(code) for code in RequestCode} - served.broker.handlers.keys()
    assert unanswered <= broker_to_client
