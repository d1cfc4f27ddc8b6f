"""Message handling beyond the checklist: dead letters, replies, flushes, requests to consumers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.broker import OPEN, SMALL, VERSIONS, BrokerThread, Wire, batch_body, held_through, properties, records


@pytest.fixture(scope="module", params=VERSIONS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("store") / "store", version=request.param) as running:
        yield running


@pytest.fixture
def five(served: BrokerThread) -> bool:
    return served.broker.context.profile.version == "5.3.3"


@pytest.fixture
def wire(served: BrokerThread, five: bool) -> Iterator[Wire]:
    with Wire(served.address, VERSIONS["5.3.3" if five else "4.9.3"]) as connection:
        yield connection


@pytest.fixture
def topic(wire: Wire, request: pytest.FixtureRequest) -> str:
    return wire.make_topic(re.sub(r"[^a-zA-Z0-9]", "_", request.node.name)[:100])


def dispatched(served: BrokerThread) -> None:
    store = served.broker.store.writable
    assert store is not None
    assert store.wait_dispatched()


# sending


def test_what_a_client_sends_to_a_retry_topic_too_often_is_a_dead_letter(served: BrokerThread, wire: Wire, five: bool) -> None:
    group = "tired5" if five else "tired4"
    wire.heartbeat("c", group, {"T": "*"})
    once = wire.send(f"%RETRY%{group}", b"again", properties=properties(DELAY="3", RETRY_TOPIC="T"), j="2", l="3")
    assert once.code == 0
    last = wire.send(f"%RETRY%{group}", b"enough", properties=properties(DELAY="3", RETRY_TOPIC="T"), j="3", l="3")
    assert last.code == 0
    dispatched(served)
    dead = records(wire.pull(f"%DLQ%{group}", 0).body)
    assert [(one.body, one.property_map()["DELAY"]) for one in dead] == [(b"enough", "0")]
    with Wire(served.address, 63) as old:  # the limit of such an old client is ignored
        assert old.send(f"%RETRY%{group}", b"old", j="3", l="3").code == 0
    dispatched(served)
    assert [one.body for one in records(wire.pull(f"%DLQ%{group}", 0).body)] == [b"enough"]


@pytest.mark.parametrize("name", ["RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "OFFSET_MOVED_EVENT"])
def test_system_topics_refuse_messages_of_clients(wire: Wire, name: str) -> None:
    refused = wire.send(name)
    assert (refused.code, refused.remark) == (16, f"Sending message to topic[{name}] is forbidden.")


def test_a_topic_is_not_created_if_auto_creation_is_disabled(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "store", settings=replace(OPEN, auto_create_topics=False)) as running, Wire(running.address) as client:
        refused = client.send("new")
        assert refused.code == 17
        assert refused.remark is not None
        assert refused.remark.startswith("topic[new] not exist, apply first please!")
        assert client.send("%RETRY%g").code == 0, "retry topics are created nevertheless"


def test_transactions_are_refused_if_so_configured(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "store", settings=replace(OPEN, reject_transactions=True)) as running, Wire(running.address) as client:
        refused = client.send("orders", properties=properties(TRAN_MSG="true", PGROUP="p"))
        assert (refused.code, refused.remark) == (16, "the broker[127.0.0.1] sending transaction message is forbidden")
        assert client.send("orders").field("queueOffset") == "0"


def test_with_sync_flush_the_response_is_sent_after_the_message_is_on_disk(tmp_path: Path) -> None:
    config = replace(SMALL, flush_disk_type="SYNC_FLUSH")
    with BrokerThread(tmp_path / "store", config=config) as running, Wire(running.address) as client:
        client.make_topic("orders")
        store = running.broker.store.writable
        assert store is not None
        sends = [
            client.send("orders", b"one"),
            client.send("orders", batch_body([(b"two", ""), (b"three", "")]), code=320, m="true"),
            client.send("orders", b"half", properties=properties(TRAN_MSG="true", PGROUP="p")),
        ]
        assert [sent.code for sent in sends] == [0, 0, 0]
        assert store.log.flushed == store.log_max
        opaques = [client.post_send("orders", b"%d" % k) for k in range(50)]
        assert {client.answer(opaque).code for opaque in opaques} == {0}
        assert store.log.flushed == store.log_max


def test_a_message_stored_by_a_5_3_3_broker_has_its_region(served: BrokerThread, wire: Wire, topic: str, five: bool) -> None:
    sent = wire.send(topic, b"x", properties=properties(UNIQ_KEY="U1", WAIT="true"))
    dispatched(served)
    (stored,) = records(wire.pull(topic, 0).body)
    expected = {"UNIQ_KEY": "U1", "CLUSTER": "DefaultCluster"}
    if five:
        expected |= {"WAIT": "true", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        assert sent.field("transactionId") == "U1"
    assert stored.property_map() == expected


# pulling


def test_a_response_is_no_longer_than_the_client_requests(served: BrokerThread, wire: Wire, topic: str) -> None:
    for k in range(5):
        wire.send(topic, b"%d" % k * 1000)
    dispatched(served)
    ext = {"consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4"}
    ext |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "maxMsgBytes": "3000"}
    some = wire.call(11, ext)
    assert (some.code, len(records(some.body)), some.field("nextBeginOffset")) == (0, 2, "2")
    least = wire.call(11, ext | {"maxMsgBytes": "1"})
    assert (len(records(least.body)), least.field("nextBeginOffset")) == (1, "1")


def test_a_pull_by_expression_continues_after_what_it_has_examined(served: BrokerThread, wire: Wire, topic: str) -> None:
    for k in range(70):
        wire.send(topic, b"%d" % k, properties=properties(n=str(k)))
    dispatched(served)
    found = wire.pull(topic, 0, subscription="n BETWEEN 40 AND 42", kind="SQL92")
    assert [one.body for one in records(found.body)] == [b"40", b"41", b"42"]
    assert found.field("nextBeginOffset") == "64"
    nothing = wire.pull(topic, 43, subscription="n BETWEEN 40 AND 42", kind="SQL92")
    assert (nothing.code, nothing.field("nextBeginOffset")) == (20, "70")
    one = wire.pull(topic, 0, subscription="n > 9", kind="SQL92", count=1)
    assert ([each.body for each in records(one.body)], one.field("nextBeginOffset")) == ([b"10"], "11")
    assert wire.pull(topic, 0, subscription="n >", kind="SQL92").code == 23


def test_a_pull_held_for_an_expression_wakes_for_a_matching_message(served: BrokerThread, wire: Wire, topic: str) -> None:
    with Wire(served.address) as producer:
        held = held_through(served, wire, topic, "n > 5", "SQL92", lambda: producer.send(topic, b"no", properties=properties(n="1")))
        producer.send(topic, b"yes", properties=properties(n="9"))
    found = wire.answer(held)
    assert [one.body for one in records(found.body)] == [b"yes"] or found.code == 20


def test_a_stopping_broker_answers_the_pulls_that_it_holds(tmp_path: Path) -> None:
    running = BrokerThread(tmp_path / "store")
    with running, Wire(running.address) as client:
        client.make_topic("orders")
        held = client.post_pull("orders", 0, flag=6)
        assert client.silent(0.2)
        running.run(running.broker.stop())
        assert client.answer(held).code == 19


# replies


def test_a_reply_goes_to_the_client_that_asked(served: BrokerThread, wire: Wire) -> None:
    wire.heartbeat("asker@1", producers=("p",))
    reply = properties(MSG_TYPE="reply", REPLY_TO_CLIENT="asker@1", CORRELATION_ID="c-1", TTL="3000")
    with Wire(served.address) as replier:
        sent = replier.post_send("DefaultCluster_REPLY_TOPIC", b"pong", 0, reply, code=325)
        pushed = wire.wait_pushed(326)
        assert (pushed.body, pushed.flag & 3, pushed.field("topic")) == (b"pong", 0, "DefaultCluster_REPLY_TOPIC")
        assert "CORRELATION_ID\x01c-1" in pushed.field("properties")
        assert "PUSH_REPLY_TIME\x01" in pushed.field("properties")
        assert pushed.field("bornHost").startswith("/127.0.0.1:")
        wire.respond(pushed)
        assert replier.answer(sent).code == 0
        unknown = replier.send("DefaultCluster_REPLY_TOPIC", b"pong", 0, properties(REPLY_TO_CLIENT="nobody"), code=325)
        assert (unknown.code, unknown.remark) == (1, "push reply message fail, channel of <nobody> not found.")
        nameless = replier.send("DefaultCluster_REPLY_TOPIC", b"pong", 0, "", code=325)
        assert (nameless.code, nameless.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")


# offsets


def test_a_group_takes_over_the_offsets_of_another(wire: Wire, topic: str) -> None:
    source = {"consumerGroup": "from", "topic": topic, "queueId": "0"}
    wire.heartbeat("c", "from", {topic: "*"})
    assert wire.call(15, source | {"commitOffset": "7"}).code == 0
    assert wire.call(314, {"srcGroup": "from", "destGroup": "into", "topic": topic, "offline": "false"}).code == 0
    assert wire.call(14, source | {"consumerGroup": "into"}).field("offset") == "7"
    table = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', wire.call(43).body))["offsetTable"]
    assert table[f"{topic}@into"] == {"0": 7}
    correction = wire.call(308, {"compareGroup": "into", "topic": topic, "filterGroups": ""})
    assert correction.json() == {"correctionOffsets": {"0": 7}}
    assert wire.call(45).json() == {"offsetTable": {}}


def test_clients_are_asked_for_their_offsets(served: BrokerThread, wire: Wire, topic: str, five: bool) -> None:
    group = "asked5" if five else "asked4"
    wire.heartbeat("consumer@1", group, {topic: "*"})
    with Wire(served.address) as administrator:
        asked = administrator.post(223, {"topic": topic, "group": group, "clientAddr": ""})
        told = wire.wait_pushed(221)
        wire.respond(told, body=b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5}}')
        answer = administrator.answer(asked)
        queue = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'
        assert answer.json() == {"consumerTable": {"consumer@1": {queue: 5}}}
        assert administrator.call(223, {"topic": topic, "group": "nobody"}).code == (206 if five else 1)


def test_cpp_clients_receive_new_offsets_as_a_list(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "store", version="4.9.3") as running, Wire(running.address) as administrator, Wire(running.address) as cpp:
        administrator.make_topic("T", 1)
        administrator.send("T")
        assert running.broker.store.writable is not None
        assert running.broker.store.writable.wait_dispatched()
        body = b'{"clientID":"cpp","consumerDataSet":[{"groupName":"g","messageModel":1,"consumeType":1,"subscriptionDataSet":[]}]}'
        header = b'{"code":34,"flag":0,"language":"CPP","opaque":1,"version":63,"remark":""}\n'
        cpp.socket.sendall((4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body)
        cpp.answer(1)
        administrator.call(15, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"})
        reset = administrator.call(222, {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"})
        assert reset.code == 0
        told = cpp.wait_pushed(220)
        assert json.loads(told.body) == {"offsetTable": [{"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "T"}]}
