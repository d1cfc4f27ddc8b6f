"""Administrative requests to a broker: settings, attributes, cleaning, metrics."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.broker import OPEN, BrokerThread, Wire, properties, records

from mqstore.broker.handlers.metrics import Metrics
from mqstore.broker.handlers.metrics_listener import MAX_CONCURRENT
from mqstore.broker.handlers.topics import changed_attributes
from mqstore.broker.protocol.frames import ResponseError
from mqstore.errors import UsageError


@pytest.fixture
def served(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path / "store", settings=replace(OPEN, metrics="127.0.0.1:0"), version="5.3.3") as running:
        yield running


@pytest.fixture
def wire(served: BrokerThread) -> Iterator[Wire]:
    with Wire(served.address, 479) as connection:
        yield connection


def fetched(served: BrokerThread, path: str = "/metrics", **how: Any) -> Any:
    address = served.broker.context.component(Metrics).address
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", **how), timeout=300) as response:
        response.text = str(response.read(), "utf-8")
        return response


def values_of(text: str, name: str) -> dict[frozenset[tuple[str, str]], float]:
    """Return the values of a metric by its labels."""
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families[name].type == "gauge"
    return {frozenset(sample.labels.items()): sample.value for sample in families[name].samples}


def test_settings_are_returned_and_some_can_be_changed_by_request(wire: Wire) -> None:
    told = wire.call(26)
    assert json.loads(told.field("version"))["counter"] == 0
    assert {"brokerName=broker-a", "autoCreateTopicEnable=true"} <= set(told.body.decode().split("\n"))
    assert wire.call(25, None, b"autoCreateTopicEnable=false\nunknown=1\n").code == 0
    told = wire.call(26)
    assert b"autoCreateTopicEnable=false" in told.body
    assert json.loads(told.field("version"))["counter"] == 1
    assert wire.send("not-made").code == 17


@pytest.mark.parametrize("change", ["brokerName=other", "flushDiskType=SYNC_FLUSH", "transactionCheckMax=many"])
def test_an_invalid_change_is_refused_with_an_error_message_and_changes_nothing(wire: Wire, change: str) -> None:
    before = wire.call(26).body
    refused = wire.call(25, None, f"autoCreateTopicEnable=false\n{change}\n".encode())
    assert refused.code == 1
    assert change.partition("=")[0] in (refused.remark or "")
    assert wire.call(26).body == before


def test_groups_are_created_changed_and_deleted(wire: Wire) -> None:
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


def test_topics_and_groups_are_on_disk_before_the_response(served: BrokerThread, wire: Wire, tmp_path: Path) -> None:
    wire.make_topic("told")
    wire.send("sent-to")
    wire.heartbeat("c@1", "g", {"told": "*"})
    config = tmp_path / "store" / "config"
    topics = (config / "topics.json").read_text(encoding="utf-8")
    assert all(f'"{name}"' in topics for name in ("told", "sent-to", "%RETRY%g"))
    assert '"g"' in (config / "subscriptionGroup.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["TBW102", "DefaultCluster", "rmq_sys_any", "a b", ""])
def test_system_topics_and_invalid_names_are_not_created_or_deleted(wire: Wire, name: str) -> None:
    asked = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    assert wire.call(17, asked).code == 29
    assert wire.call(215, {"topic": name}).code == 29


@pytest.mark.parametrize(
    "text",
    ["message.type=FIFO", "+message.type", "+unknown=1", "-queue.type", "+message.type=odd", "+reserve.time=x"],
)
def test_an_invalid_change_of_attributes_is_refused(text: str) -> None:
    with pytest.raises(ResponseError):
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


def test_a_half_message_is_stored_again_to_be_checked(served: BrokerThread, wire: Wire) -> None:
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


def test_there_is_no_access_control_and_the_response_says_so(wire: Wire) -> None:
    for code in range(50, 55):
        found = wire.call(code)
        assert found.code == 3
        assert "no access control" in (found.remark or "")


@pytest.mark.versions
def test_metrics_have_the_exporters_names_and_can_be_read(served: BrokerThread, wire: Wire) -> None:
    for _ in range(3):
        wire.send("orders", b"x", 0)
    store = served.broker.store.writable
    assert store is not None
    assert store.wait_dispatched()
    wire.heartbeat("c@1", 'odd"group', {"orders": "*"})
    wire.call(15, {"consumerGroup": 'odd"group', "topic": "orders", "queueId": "0", "commitOffset": "1"})
    response = fetched(served)
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    place = {"cluster": "DefaultCluster", "broker": "broker-a", "topic": "orders"}
    group = place | {"group": 'odd"group'}
    diff = {"group": 'odd"group', "topic": "orders", "countOfOnlineConsumers": "1", "msgModel": "1"}
    expected = {
        "rocketmq_producer_offset": (place, 3),
        "rocketmq_group_consume_total_offset": (group, 1),
        "rocketmq_consumer_offset": (group, 3),
        "rocketmq_group_diff": (diff, 2),
        "rocketmq_group_count": ({"caddr": f"127.0.0.1:{wire.socket.getsockname()[1]}", "localaddr": "c", "group": 'odd"group'}, 1),
    }
    for name, (labels, value) in expected.items():
        assert values_of(response.text, name)[frozenset(labels.items())] == value
    for name in ("rocketmq_broker_tps", "rocketmq_broker_qps", "rocketmq_producer_tps"):
        assert values_of(response.text, name)
    for name in ("put_tps10", "getmiss_tps600", "commitlog_maxoffset", "pmdt_0ms", "commitlogdir_capacity_free", "msg_put_total_today_now"):
        assert values_of(response.text, f"rocketmq_brokeruntime_{name}")


@pytest.mark.versions
def test_a_prometheus_server_gets_the_openmetrics_format_and_head_gets_no_body(served: BrokerThread) -> None:
    response = fetched(served, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert response.text.endswith("# EOF\n")
    head = fetched(served, method="HEAD")
    assert (int(head.headers["Content-Length"]) > 1000, head.text) == (True, "")


def test_other_paths_and_methods_are_refused(served: BrokerThread) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetched(served, "/etc/passwd")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        fetched(served, data=b"x")


def test_too_many_concurrent_scrapes_are_refused_and_the_next_one_is_served(served: BrokerThread) -> None:
    host, _, port = served.broker.context.component(Metrics).address.rpartition(":")
    waiting = [socket.create_connection((host, int(port)), 10) for _ in range(MAX_CONCURRENT)]
    with pytest.raises(urllib.error.HTTPError, match="503"):
        fetched(served)
    for connection in waiting:
        connection.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.HTTPError):
            assert "rocketmq_broker_tps" in fetched(served).text
            return
    pytest.fail("the listener stays busy")


def test_metrics_without_their_package_are_refused_with_the_way_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.broker.handlers.metrics.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'mqstore\[metrics\]'"):
        BrokerThread(tmp_path / "store", settings=replace(OPEN, metrics="127.0.0.1:0")).__enter__()
    assert not (tmp_path / "store").exists()
