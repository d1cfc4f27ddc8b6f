"""What administrators ask of a broker: settings, attributes, cleaning, metrics."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.broker import OPEN, BrokerThread, Wire, properties, records

from mqstore.broker.handlers.metrics import Metrics
from mqstore.broker.handlers.topics import changed_attributes
from mqstore.broker.protocol.frames import AnswerError


@pytest.fixture
def served(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path / "store", settings=replace(OPEN, metrics="127.0.0.1:0"), version="5.3.3") as running:
        yield running


@pytest.fixture
def wire(served: BrokerThread) -> Iterator[Wire]:
    with Wire(served.address, 479) as connection:
        yield connection


def metrics_of(served: BrokerThread, path: str = "/metrics") -> str:
    address = served.broker.context.part(Metrics).address
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answered:
        assert answered.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answered.read(), "utf-8")


def test_settings_are_told_and_those_of_requests_can_change(wire: Wire) -> None:
    told = wire.call(26)
    assert json.loads(told.field("version"))["counter"] == 0
    assert {"brokerName=broker-a", "autoCreateTopicEnable=true"} <= set(told.body.decode().split("\n"))
    assert wire.call(25, None, b"autoCreateTopicEnable=false\nunknown=1\n").code == 0
    told = wire.call(26)
    assert b"autoCreateTopicEnable=false" in told.body
    assert json.loads(told.field("version"))["counter"] == 1
    assert wire.send("not-made").code == 17


@pytest.mark.parametrize("change", ["brokerName=other", "flushDiskType=SYNC_FLUSH", "transactionCheckMax=many"])
def test_what_cannot_change_is_refused_with_a_sentence_and_nothing_changes(wire: Wire, change: str) -> None:
    before = wire.call(26).body
    refused = wire.call(25, None, f"autoCreateTopicEnable=false\n{change}\n".encode())
    assert refused.code == 1
    assert change.partition("=")[0] in (refused.remark or "")
    assert wire.call(26).body == before


def test_groups_are_made_changed_and_deleted(wire: Wire) -> None:
    config = {"groupName": "g", "retryMaxTimes": 3, "consumeEnable": False, "attributes": {"+a": "1"}}
    assert wire.call(200, None, json.dumps(config).encode()).code == 0
    made = wire.call(201).json()["subscriptionGroupTable"]["g"]
    assert (made["retryMaxTimes"], made["consumeEnable"], made["attributes"], made["retryQueueNums"]) == (3, False, {"a": "1"}, 1)
    assert wire.call(200, None, b'{"groupName":"g","retryMaxTimes":"many"}').code == 1
    assert wire.call(200, None, b"{}").code == 1
    wire.call(15, {"consumerGroup": "g", "topic": wire.make_topic("T"), "queueId": "0", "commitOffset": "2"})
    assert wire.call(207, {"groupName": "g", "cleanOffset": "true"}).code == 0
    assert "g" not in wire.call(201).json()["subscriptionGroupTable"]
    assert wire.call(343, {"group": "g"}).json() == {"topicList": []}


def test_topics_and_groups_are_on_disk_before_the_answer(served: BrokerThread, wire: Wire, tmp_path: Path) -> None:
    wire.make_topic("told")
    wire.send("sent-to")
    wire.heartbeat("c@1", "g", {"told": "*"})
    config = tmp_path / "store" / "config"
    topics = (config / "topics.json").read_text(encoding="utf-8")
    assert all(f'"{name}"' in topics for name in ("told", "sent-to", "%RETRY%g"))
    assert '"g"' in (config / "subscriptionGroup.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["TBW102", "DefaultCluster", "rmq_sys_any", "a b", ""])
def test_topics_of_the_broker_and_names_of_none_are_not_made_or_deleted(wire: Wire, name: str) -> None:
    asked = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    assert wire.call(17, asked).code == 29
    assert wire.call(215, {"topic": name}).code == 29


@pytest.mark.parametrize(
    "text",
    ["message.type=FIFO", "+message.type", "+unknown=1", "-queue.type", "+message.type=odd", "+reserve.time=x"],
)
def test_a_change_of_attributes_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(AnswerError):
        changed_attributes({}, text, new=True)


def test_attributes_are_kept_with_their_topic(wire: Wire) -> None:
    asked = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    assert wire.call(17, {**asked, "attributes": "+message.type=FIFO"}).code == 0
    assert wire.call(17, asked).code == 0
    assert wire.call(351, {"topic": "T"}).json()["attributes"] == {"message.type": "FIFO"}


def test_cleaning_removes_queues_of_topics_that_are_not_configured(served: BrokerThread, wire: Wire) -> None:
    store = served.broker.store.writable
    assert store is not None
    wire.send("kept")
    wire.send("unused")
    assert store.wait_dispatched()
    store.topics.delete("unused")
    assert wire.call(306).code == 0
    assert wire.call(316).code == 0
    assert {queue.topic for queue in store.queues()} == {"kept"}


def test_a_half_message_is_put_again_to_be_checked(served: BrokerThread, wire: Wire) -> None:
    half = wire.send("T", b"maybe", 0, properties(TRAN_MSG="true", PGROUP="p"), f="4")
    assert wire.call(323, {"msgId": half.field("msgId")}).code == 0
    store = served.broker.store.writable
    assert store is not None
    assert store.wait_dispatched()
    again = records(wire.pull("RMQ_SYS_TRANS_HALF_TOPIC", 0).body)
    assert [record.body for record in again] == [b"maybe"] * 2
    assert again[1].property_map()["TRANSACTION_CHECK_TIMES"] == "0"
    assert wire.call(323, {"msgId": "no id"}).code == 1
    assert wire.call(323, {"msgId": wire.send("T").field("msgId")}).code == 1


def test_there_is_no_access_control_and_that_is_said(wire: Wire) -> None:
    for code in range(50, 55):
        found = wire.call(code)
        assert found.code == 3
        assert "no access control" in (found.remark or "")


def test_metrics_have_the_exporters_names_and_can_be_read(served: BrokerThread, wire: Wire) -> None:
    for _ in range(3):
        wire.send("orders", b"x", 0)
    store = served.broker.store.writable
    assert store is not None
    assert store.wait_dispatched()
    wire.heartbeat("c@1", 'odd"group', {"orders": "*"})
    wire.call(15, {"consumerGroup": 'odd"group', "topic": "orders", "queueId": "0", "commitOffset": "1"})
    text = metrics_of(served)
    sample = re.compile(r'[a-z][a-z0-9_]*(\{([A-Za-z_]+="(?:[^"\\]|\\.)*",?)+\})? -?[0-9.e+]+')
    assert [line for line in text.splitlines() if not line.startswith("# TYPE ") and not sample.fullmatch(line)] == []
    place = 'cluster="DefaultCluster",broker="broker-a",topic="orders"'
    assert f"rocketmq_producer_offset{{{place}}} 3\n" in text
    assert f'rocketmq_group_consume_total_offset{{{place},group="odd\\"group"}} 1\n' in text
    assert 'rocketmq_group_diff{group="odd\\"group",topic="orders",countOfOnlineConsumers="1",msgModel="1"} 2\n' in text
    for name in ("rocketmq_broker_tps", "rocketmq_broker_qps", "rocketmq_producer_tps", "rocketmq_group_count"):
        assert f"# TYPE {name} gauge\n{name}{{" in text
    for name in ("put_tps10", "getmiss_tps600", "commitlog_maxoffset", "pmdt_0ms", "commitlogdir_capacity_free", "msg_put_total_today_now"):
        assert f"\nrocketmq_brokeruntime_{name}{{" in text


def test_other_paths_and_methods_are_refused(served: BrokerThread) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        metrics_of(served, "/etc/passwd")
    address = served.broker.context.part(Metrics).address
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(f"http://{address}/metrics", data=b"x", timeout=30)
